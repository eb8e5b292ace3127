"""The variables of a function that is being translated, and those of the functions pasted into it."""

import ast
from collections import Counter

from synknumba.simt._frontend.scope import Scope
from synknumba.simt._frontend.source import Source
from synknumba.simt._frontend.syntax import read_names, walk


class Locals:
    """The variables of one function.

    Args:
        source: the function, as the user wrote it.
        scope: its names.
    """

    def __init__(self, source: Source, scope: Scope) -> None:
        self._source = source
        self._taken = set(scope.locals)
        stored = (node.id for node in walk(source.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._stores = Counter(stored)

    def is_assigned_once(self, name: str) -> bool:
        """Whether the function has one assignment to the variable."""
        return self._stores[name] == 1

    def new(self, name: str, function: str) -> str:
        """A new variable, for one of a function that is pasted."""
        number, new = 1, f"{name}_{function}"
        while new in self._taken or new in self._source.scope:
            number += 1
            new = f"{name}_{function}{number}"
        self._taken.add(new)
        return new

    def check_known_at_launch(self, dtype: ast.expr, at: ast.AST) -> None:
        """Refuses the dtype of a shared array that is made of variables: the array is there before they are.

        Raises:
            KernelError: the dtype reads a variable that is not an argument, or an argument that is assigned to.
        """
        for name in sorted(read_names(dtype) & self._taken):
            if name not in self._source.params or self._stores[name]:
                construct = f"a shared array whose dtype is in the variable {name!r}"
                raise self._source.refusal(at, construct, "write the dtype, or `x.dtype` of an argument of the kernel")
