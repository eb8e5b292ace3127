"""Base of `Expectation` and `Vectorized`: the wrapped function, its parameters, and the cache of its generated kernels."""

from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar, final

from synknumba._call.bind import Binder, signature_names
from synknumba._call.options import FunctionOptions, check_names
from synknumba._call.serialize import InnerFunction
from synknumba._rowwise.generate import check_own_names
from synknumba._types import DeviceKind
from synknumba._world.world import open_world

MAX_KERNELS = 64  # per function: one for each combination of argument types and shapes of a row
MAX_KNOWN = 512  # quick keys per function; beyond, most are of variables that no longer exist

_SELECTION = ("batch", "local_batch", "num_slices", "shards")

Made = TypeVar("Made")


@final
class KernelCache(Generic[Made]):
    """Generated kernels by all that they depend on, and calls by a key that is quick to compute.

    Attributes:
        known: what calls with the same quick key have in common; a repeated call looks there only.
    """

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}
        self._made: dict[tuple[Any, ...], Made] = {}

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: tuple[Any, ...], make: Callable[..., Made]) -> Made:
        """Returns what `make(*key)` returned for the key. Beyond `MAX_KERNELS` the oldest is dropped, here and on the ranks."""
        found = self._made.get(key)
        if found is None:
            while len(self._made) >= MAX_KERNELS:
                del self._made[next(iter(self._made))]
                self.known.clear()
            found = self._made[key] = make(*key)
        return found

    def note(self, quick_key: Any, call: Any) -> None:
        """Adds an entry to `known`."""
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[quick_key] = call


class RowFunction:
    """A function of one row that is called like a `Function`; kernels are generated around it for the arguments it gets.

    Args:
        function: a plain function.
        options: given to the decorator.
        name: for messages; None for the function's.
        own_names: global names that the kernels use, which no parameter may have.
    """

    def __init__(
        self, function: Callable[..., Any], options: FunctionOptions, name: str | None, own_names: Collection[str]
    ) -> None:
        self.py_func = function
        self.name: str = name or function.__name__
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._options = options
        self._parameters = signature_names(function, "the function")
        check_own_names(self.name, self._parameters, own_names)
        check_names(self.name, self._parameters, options)
        self._binder = Binder(self.name, self._parameters, options)
        self._inner = InnerFunction(self.name, function)
        self._kernels: KernelCache[Any] = KernelCache()
        self._known = self._kernels.known

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<synknumba {type(self).__name__.lower()} {self.name}({', '.join(self._parameters)})>"


def split_selection(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a call that select rows, and its other keyword arguments."""
    selection = {name: kwargs.pop(name) for name in _SELECTION if name in kwargs}
    return selection, kwargs


def plan_device() -> DeviceKind:
    """The device that a call is planned for: that of the open world, or the CPU."""
    world = open_world()
    return "cpu" if world is None else world.device
