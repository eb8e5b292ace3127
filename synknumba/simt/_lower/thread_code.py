"""Results of `lowering`: the code of one thread with the names and arrays it uses, and device
functions.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType
from typing import Any, Final

from synknumba.simt._library.words import STATE
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._lower.constant_parameters import key
from synknumba.simt._lower.signatures import Declared
from synknumba.simt._source.source import NAME
from synknumba.simt._source.syntax import load
from synknumba.simt._source.written import Source, has_rest, parameters

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(slots=True, eq=False)  # each is its own
class ThreadCode:
    """Code of one thread, with CUDA's operations replaced by plain names."""

    source: Source
    body: list[ast.stmt] = field(default_factory=list)
    params: tuple[str, ...] = ()  # by default those of the source
    # the object behind each global name in the body
    namespace: dict[str, Any] = field(default_factory=dict)
    local_arrays: set[str] = field(default_factory=set)  # variables made by `cuda.local.array`
    shared_arrays: dict[str, SharedArray] = field(default_factory=dict)
    uses_state: bool = False  # whether the body reads the thread's position in its block or grid
    names_grid: bool = False  # whether the body calls `cuda.cg.this_grid()`
    # Whether the body has barriers, collectives or shared arrays; a device function is then
    # inlined.
    must_be_inlined: bool = False

    def __post_init__(self) -> None:
        self.params = self.params or self.source.params

    def state_and_params(self) -> tuple[str, ...]:
        """Returns the parameters of the generated function: the thread's place, if it is read,
        and those of the source.
        """
        if self.uses_state:
            return (*STATE, *self.params)
        return self.params

    def bind(self, word: str, value: Any) -> ast.Name:
        """Binds a value in the namespace and returns its name; the same word and value give the
        same name.
        """
        # A device function may be called like a variable of the generated code; no such variable
        # ends in an underscore.
        first = f"_k_{word}_" if isinstance(value, DeviceFunction) else f"_k_{word}"
        name, number = first, 0
        while self.namespace.get(name, value) is not value:
            number += 1
            name = f"{first}_{number}"
        self.namespace[name] = value
        return load(name)

    def call(self, word: str, value: Any, *args: ast.expr) -> ast.Call:
        """Returns a call of a value that is bound as `bind` does."""
        return ast.Call(self.bind(word, value), list(args), [])


class DeviceFunction:
    """A device function, translated with the kernel that calls it and compiled when the kernel is.

    Args:
        function: the plain Python function.
        declared: signatures given to its decorator.
        fixed: values of the parameters replaced by constants, by name.
    """

    def __init__(
        self,
        function: FunctionType,
        declared: tuple[Declared, ...] = (),
        fixed: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.function, self.declared, self.fixed = function, declared, fixed
        # None while the translation is in progress, which is how recursion is detected
        self.code: ThreadCode | None = None
        # whether the function calls itself, directly or through other functions
        self.is_recursive = False

    @property
    def variant(self) -> Any:
        """Key that distinguishes translations of the same function: its signatures and fixed
        parameters.
        """
        return self.declared, tuple((name, key(self.fixed[name])) for name in sorted(self.fixed))

    @property
    def takes_rest(self) -> bool:
        """Whether the last parameter takes any number of arguments, like `*rest`."""
        return has_rest(self.function) and parameters(self.function)[-1] not in self.fixed

    @property
    def name(self) -> str:
        """Name in generated code: the function's own, or a substitute for a lambda."""
        return self.function.__name__ if self.function.__name__.isidentifier() else NAME
