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
from synknumba.simt._source.syntax import assign, assigned_names, load, nodes_of, place


class Conversions:
    """Adds conversions of arguments and results to a device function with declared signatures."""

    def __init__(self, code: ThreadCode, declared: Sequence[Declared]) -> None:
        self._code, self._declared = code, declared
        self._name = code.source.tree.name
        for signature in declared:
            if len(signature.args) != len(code.params):
                call = f"{self._name}({', '.join(code.params)})"
                construct = f"a signature of {len(signature.args)} arguments for {call}"
                way_out = "declare one type per parameter"
                raise code.source.refusal(code.source.tree, construct, way_out)
        columns = zip(*(signature.args for signature in declared), strict=True)
        self._kinds = dict(zip(code.params, columns, strict=True))
        # the parameters of the converted function
        self._params = {param: param for param in code.params}
        assigned = assigned_names(code.body)
        for param, kinds in self._kinds.items():
            if param in assigned or any(map(is_number, kinds)):
                self._params[param] = f"{param}__arg"

    def apply(self) -> None:
        """Rewrites the function's body and parameters in place."""
        at, code = self._code.source.tree, self._code
        first = [
            assign(param, self._argument(param), at)
            for param, name in self._params.items()
            if name != param
        ]
        code.params = tuple(self._params.values())
        if any(signature.result not in {None, types.none} for signature in self._declared):
            for node in nodes_of(ast.Return, code.body):
                if node.value is not None:
                    node.value = place(self._result(node.value), node)
        code.body = [*first, *code.body]

    def _argument(self, param: str) -> ast.expr:
        kinds, value = self._kinds[param], load(self._params[param])
        if len(set(kinds)) == 1:
            return self._converted(kinds[0], value)
        if not any(map(is_number, kinds)):
            return value
        return self._cast_by_best(f"fit_{param}", value, self._code.params.index(param))

    def _result(self, value: ast.expr) -> ast.expr:
        results = {signature.result for signature in self._declared}
        if len(results) > 1:
            return self._cast_by_best("fit_result", value, None)
        (result,) = results
        return self._converted(result, value)

    def _converted(self, kind: types.Type | None, value: ast.expr) -> ast.expr:
        return self._code.call(f"as_{kind}", kind, value) if is_number(kind) else value

    def _cast_by_best(self, word: str, value: ast.expr, position: int | None) -> ast.expr:
        """Returns the call that converts a value as the signature does that fits the arguments
        best.
        """
        args = ast.Tuple(list(map(load, self._params.values())), ast.Load())
        function = _caster(self._name, self._declared, position)
        return self._code.call(word, function, value, args)


def _caster(name: str, declared: Sequence[Declared], position: int | None) -> Any:
    """Returns an intrinsic of a value and a tuple of all arguments, which converts the value to a
    type of the best signature.

    Args:
        name: the device function.
        declared: its signatures.
        position: of the argument whose type to convert to; None for the type of the result.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def cast_argument(_context: Any, value: types.Type, args: types.Type) -> Any:
        best = best_declared(name, declared, tuple(args))
        kind: Any = best.result if position is None else best.args[position]
        if not is_number(kind):
            kind = types.unliteral(value)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            converted = context.cast(builder, args[0], sig.args[0], kind)
            return impl_ret_borrowed(context, builder, kind, converted)

        return kind(value, args), codegen

    return cast_argument
