"""A device function with barriers or shared memory in place of its call: they are those of the kernel.

Its statements come in front of the one around the call, and its result takes the place of the call.
"""

import ast
from typing import cast

from synknumba.simt._frontend.arrays import SharedArray
from synknumba.simt._frontend.inlined_body import ReturnsAssigned, last_return, renamed
from synknumba.simt._frontend.locals import Locals
from synknumba.simt._frontend.syntax import assign, assigned_names, load, place
from synknumba.simt._frontend.thread_code import ThreadCode


class Paster:
    """Pastes device functions into one function.

    Args:
        code: of the function that they are pasted into; it gets their arrays and what they need.
        variables: of that function; those of the pasted ones are added.
    """

    def __init__(self, code: ThreadCode, variables: Locals) -> None:
        self._code, self._variables = code, variables
        self._shared: dict[tuple[int, str, str], str] = {}

    def paste(self, called: ThreadCode, args: list[ast.expr], at: ast.Call) -> tuple[list[ast.stmt], ast.expr]:
        """The statements that a call stands for, and its value.

        Args:
            called: the device function.
            args: its arguments, evaluated already.
            at: the call.
        """
        self._code.needs_block = True
        self._code.uses_state |= called.uses_state
        word = called.source.tree.name
        given, names, values = self._variables_of(called, args, at)
        self._code.local_arrays |= {names[name] for name in called.local_arrays}
        self._take_shared_arrays(called, names, values, at)
        body = renamed(called.body, names, values)
        simple = last_return(body)
        if simple is not None:
            return given + simple[0], simple[1] or place(ast.Constant(None), at)
        result, flag = self._variables.new("result", word), self._variables.new("returned", word)
        done = ReturnsAssigned(result, flag).lower(body)
        return given + done, place(load(result) if result in assigned_names(done) else ast.Constant(None), at)

    def _variables_of(
        self, called: ThreadCode, args: list[ast.expr], at: ast.Call
    ) -> tuple[list[ast.stmt], dict[str, str], dict[str, ast.expr]]:
        """The assignments of arguments to new variables, the new names, and what stands for the names that have none."""
        word = called.source.tree.name
        changed = assigned_names(called.body)
        names = {name: self._variables.new(name, word) for name in changed}
        values: dict[str, ast.expr] = {
            name: self._code.bind(name.removeprefix("_k_"), value)
            for name, value in called.namespace.items()
            if name not in changed
        }
        given: list[ast.stmt] = []
        for param, arg in zip(called.params, args, strict=True):
            if param not in changed and (isinstance(arg, (ast.Name, ast.Constant)) or _is_dtype_of_variable(arg)):
                values[param] = arg
            else:
                names.setdefault(param, self._variables.new(param, word))
                given.append(assign(names[param], arg, at))
        return given, names, values

    def _take_shared_arrays(self, called: ThreadCode, names: dict[str, str], values: dict[str, ast.expr], at: ast.Call) -> None:
        """Gives the shared arrays of the device function names in the caller."""
        for name, array in called.shared_arrays.items():
            dtype = cast(ast.Expr, renamed([place(ast.Expr(array.dtype), at)], names, values)[0]).value
            self._variables.check_known_at_launch(dtype, at)
            key = (id(called), name, ast.unparse(dtype))
            if key not in self._shared:  # every call of a function has the same array, as on a GPU
                self._shared[key] = self._variables.new(name, called.source.tree.name)
            names[name] = self._shared[key]
            self._code.shared_arrays[names[name]] = SharedArray(array.shape, dtype, array.at)


def _is_dtype_of_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.value, ast.Name)
