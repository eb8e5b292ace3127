"""Conversions for device functions with declared signatures, such as
`cuda.jit("int32(int32)", device=True)`.

CUDA converts the arguments of a call to the declared types, and the result to the declared result
type. Here the function itself does the conversions:

    def f(n):                       def f(n__arg):
        return n * 0.5      ->          n = int32(n__arg)
                                        return int32(n * 0.5)

Only numbers are converted. Arrays are passed unchanged, as in the signature of a kernel: a GPU does
not convert their elements either.
"""

import ast
from collections.abc import Sequence
from typing import Any

from numba.core import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from synknumba.simt._library.slots import is_number
from synknumba.simt._lower.signatures import Declared, best_declared
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._source.syntax import assign, assigned_names, load, place, walk


class Conversions:
    """Adds conversions of arguments and results to a device function with declared signatures."""

    def __init__(self, code: ThreadCode, declared: Sequence[Declared]) -> None:
        self._code, self._declared = code, declared
        self._name = code.source.tree.name
        for one in declared:
            if len(one.args) != len(code.params):
                construct = (
                    f"a signature of {len(one.args)} arguments for "
                    f"{self._name}({', '.join(code.params)})"
                )
                raise code.source.refusal(
                    code.source.tree, construct, "declare one type per parameter"
                )
        self._kinds = {
            param: [one.args[place] for one in declared] for place, param in enumerate(code.params)
        }
        changed = assigned_names(code.body) | {
            param for param, kinds in self._kinds.items() if any(map(is_number, kinds))
        }
        self._given = {
            param: f"{param}__arg" if param in changed else param for param in code.params
        }

    def apply(self) -> None:
        """Rewrites the function's body and parameters in place."""
        at, code = self._code.source.tree, self._code
        first = [
            assign(param, self._argument(param), at)
            for param, given in self._given.items()
            if given != param
        ]
        code.params = tuple(self._given.values())
        if any(one.result not in {None, types.none} for one in self._declared):
            for node in walk(code.body):
                if isinstance(node, ast.Return) and node.value is not None:
                    node.value = place(self._result(node.value), node)
        code.body = [*first, *code.body]

    def _argument(self, param: str) -> ast.expr:
        kinds, given = self._kinds[param], load(self._given[param])
        if not any(map(is_number, kinds)):
            return given
        if len(set(kinds)) == 1:
            return ast.Call(self._code.bind(f"as_{kinds[0]}", kinds[0]), [given], [])
        return self._fitted(f"fit_{param}", given, self._code.params.index(param))

    def _result(self, value: ast.expr) -> ast.expr:
        results = {one.result for one in self._declared}
        if len(results) > 1:
            return self._fitted("fit_result", value, None)
        (kind,) = results
        return (
            ast.Call(self._code.bind(f"as_{kind}", kind), [value], []) if is_number(kind) else value
        )

    def _fitted(self, word: str, value: ast.expr, position: int | None) -> ast.expr:
        """Returns the call that converts a value as the signature does that fits the arguments
        best.
        """
        given = ast.Tuple([load(name) for name in self._given.values()], ast.Load())
        function = _fit_to_the_best(self._name, self._declared, position)
        return ast.Call(self._code.bind(word, function), [value, given], [])


def _fit_to_the_best(name: str, declared: Sequence[Declared], position: int | None) -> Any:
    """Returns an intrinsic of a value and a tuple of all arguments, which converts the value to a
    type of the best signature.

    Args:
        name: the device function.
        declared: its signatures.
        position: of the argument whose type to convert to; None for the type of the result.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def cast_argument(_context: Any, value: types.Type, given: types.Type) -> Any:
        best = best_declared(name, declared, tuple(given))
        wanted = best.result if position is None else best.args[position]
        kind = wanted if wanted is not None and is_number(wanted) else types.unliteral(value)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return impl_ret_borrowed(
                context, builder, kind, context.cast(builder, args[0], sig.args[0], kind)
            )

        return kind(value, given), codegen

    return cast_argument
