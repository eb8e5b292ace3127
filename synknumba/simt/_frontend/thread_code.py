"""What `_names` makes of a function: one thread's code, and what it needs around it."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType
from typing import Any, Final

from synknumba.simt._frontend.arrays import SharedArray
from synknumba.simt._frontend.constant_parameters import key
from synknumba.simt._frontend.signatures import Declared
from synknumba.simt._frontend.source import Source, identifier
from synknumba.simt._frontend.syntax import load

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(slots=True)
class ThreadCode:
    """One thread's code in plain names.

    Attributes:
        source: the function it was made from.
        body: the statements.
        params: the names of its parameters.
        namespace: what the global names in the body stand for.
        local_arrays: the variables made by `cuda.local.array`.
        shared_arrays: the variables made by `cuda.shared.array`.
        uses_state: whether the body reads the thread's place in its block or grid.
        names_grid: whether it asks for the group of the whole grid.
        needs_block: whether it has barriers, collectives or shared arrays, so that a device function is pasted into the kernel.
    """

    source: Source
    body: list[ast.stmt] = field(default_factory=list)
    params: tuple[str, ...] = ()
    namespace: dict[str, Any] = field(default_factory=dict)
    local_arrays: set[str] = field(default_factory=set)
    shared_arrays: dict[str, SharedArray] = field(default_factory=dict)
    uses_state: bool = False
    names_grid: bool = False
    needs_block: bool = False

    def __post_init__(self) -> None:
        """The parameters are those of the source, until someone changes them."""
        self.params = self.params or self.source.params

    def bind(self, word: str, value: Any) -> ast.Name:
        """A name of the generated function that stands for the value."""
        # A device function may have any name, also that of a variable of the generated code; none of these ends so.
        first = f"_k_{word}_" if isinstance(value, DeviceFunction) else f"_k_{word}"
        name, number = first, 0
        while name in self.namespace and self.namespace[name] is not value:
            number += 1
            name = f"{first}_{number}"
        self.namespace[name] = value
        return load(name)


class DeviceFunction:
    """A function called in a kernel that is translated too; it is compiled when the kernel is.

    Args:
        function: the plain function.
        declared: the signatures that its decorator was given.
        fixed: the parameters that have been replaced by what they stand for, and that.

    Attributes:
        code: its code; None while it is being translated, which is how a recursion is found.
        is_recursive: whether it calls itself, perhaps through others.
    """

    def __init__(self, function: FunctionType, declared: tuple[Declared, ...] = (), fixed: Mapping[str, Any] = NOTHING) -> None:
        self.function, self.declared, self.fixed = function, declared, fixed
        self.code: ThreadCode | None = None
        self.is_recursive = False

    @property
    def variant(self) -> Any:
        """What tells the translations of the same function apart."""
        return self.declared, tuple((name, key(self.fixed[name])) for name in sorted(self.fixed))

    @property
    def name(self) -> str:
        """What to call it in generated code; the name of a lambda could not stand there."""
        return identifier(self.function)
