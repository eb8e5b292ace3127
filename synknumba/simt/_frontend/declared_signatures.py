"""Conversions for device functions with declared signatures, such as `cuda.jit("int32(int32)", device=True)`.

CUDA converts the arguments of a call to the declared types, and the result to the declared result type. Here the function
itself does the conversions:

    def f(n):                       def f(n__arg):
        return n * 0.5      ->          n = int32(n__arg)
                                        return int32(n * 0.5)

Only numbers are converted. Arrays are passed unchanged, as in the signature of a kernel: a GPU does not convert their elements
either.
"""

import ast
from collections.abc import Sequence
from typing import Any

from numba.core import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from synknumba.simt._frontend.signatures import Declared, best_declared
from synknumba.simt._frontend.syntax import assign, assigned_names, load, place, walk
from synknumba.simt._frontend.thread_code import ThreadCode
from synknumba.simt._library.slots import is_number


class Conversions:
    """Adds conversions of arguments and results to a device function.

    Args:
        code: the function.
        declared: its signatures.

    Raises:
        KernelError: the number of arguments in a signature differs from the function's.
    """

    def __init__(self, code: ThreadCode, declared: Sequence[Declared]) -> None:
        self._code, self._declared = code, declared
        self._name = code.source.tree.name
        for one in declared:
            if len(one.args) != len(code.params):
                construct = f"a signature of {len(one.args)} arguments for {self._name}({', '.join(code.params)})"
                raise code.source.refusal(code.source.tree, construct, "declare one type per parameter")
        self._kinds = {param: [one.args[place] for one in declared] for place, param in enumerate(code.params)}
        changed = assigned_names(code.body) | {param for param, kinds in self._kinds.items() if any(map(is_number, kinds))}
        self._given = {param: f"{param}__arg" if param in changed else param for param in code.params}

    def apply(self) -> None:
        """Rewrites the function's body and parameters in place."""
        at, code = self._code.source.tree, self._code
        first = [assign(param, self._argument(param), at) for param, given in self._given.items() if given != param]
        code.params = tuple(self._given.values())
        if any(one.result not in {None, types.none} for one in self._declared):
            for node in walk(code.body):
                if isinstance(node, ast.Return) and node.value is not None:
                    node.value = place(self._result(node.value), node)
        code.body = [*first, *code.body]

    def _all_given(self) -> ast.expr:
        return ast.Tuple([load(name) for name in self._given.values()], ast.Load())

    def _argument(self, param: str) -> ast.expr:
        kinds, given = self._kinds[param], load(self._given[param])
        if not any(map(is_number, kinds)):
            return given
        if len(set(kinds)) == 1:
            return ast.Call(self._code.bind(f"as_{kinds[0]}", kinds[0]), [given], [])
        function = _argument_of_the_best(self._name, self._declared, self._code.params.index(param))
        return ast.Call(self._code.bind(f"fit_{param}", function), [self._all_given()], [])

    def _result(self, value: ast.expr) -> ast.expr:
        results = {one.result for one in self._declared}
        kind = next(iter(results))
        if len(results) > 1:
            function = _result_of_the_best(self._name, self._declared)
            return ast.Call(self._code.bind("fit_result", function), [value, self._all_given()], [])
        return ast.Call(self._code.bind(f"as_{kind}", kind), [value], []) if is_number(kind) else value


def _argument_of_the_best(name: str, declared: Sequence[Declared], position: int) -> Any:
    """Returns an intrinsic that takes all arguments as a tuple and converts the one at `position` to the best signature."""

    @intrinsic  # type: ignore[untyped-decorator]
    def fit(_context: Any, given: types.Type) -> Any:
        kinds = tuple(types.unliteral(kind) for kind in given)
        wanted = best_declared(name, declared, kinds).args[position]
        kind = wanted if is_number(wanted) else kinds[position]

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = builder.extract_value(args[0], position)
            return impl_ret_borrowed(context, builder, kind, context.cast(builder, value, sig.args[0][position], kind))

        return kind(given), codegen

    return fit


def _result_of_the_best(name: str, declared: Sequence[Declared]) -> Any:
    """Returns an intrinsic that converts a result to the result type of the signature that fits the arguments best."""

    @intrinsic  # type: ignore[untyped-decorator]
    def fit_result(_context: Any, value: types.Type, given: types.Type) -> Any:
        wanted = best_declared(name, declared, tuple(given)).result
        kind = wanted if wanted is not None and is_number(wanted) else types.unliteral(value)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return impl_ret_borrowed(context, builder, kind, context.cast(builder, args[0], sig.args[0], kind))

        return kind(value, given), codegen

    return fit_result
