"""Base of `Expectation` and `Vectorized`: the wrapped function, its parameters, and the cache of
its generated kernels.
"""

from collections.abc import Callable, Collection
from typing import Any

from synknumba._call.bind import RESERVED, Binder, signature_names
from synknumba._call.call import OWN_PREFIX
from synknumba._call.distribute import Decorated, InnerFunction
from synknumba._call.options import FunctionOptions, check_names
from synknumba._errors import ArgumentError
from synknumba._types import Cache, DeviceKind
from synknumba._world.engine import Engine
from synknumba.simt.internals import keep_text

MAX_KERNELS = 64  # per function: one for each combination of argument types and shapes of a row
MAX_KNOWN = 512  # quick keys per function; beyond, most are of variables that no longer exist


class RowFunction(Decorated):
    """A function of one row that is called like a `Function`; kernels are generated around it for
    the arguments it gets.

    Args:
        function: a plain function.
        options: given to the decorator.
        name: for messages; None for the function's.
        own_names: global names that the kernels use, which no parameter may have.
        reserved: options of calls, which no parameter may have the name of.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        name: str | None,
        own_names: Collection[str],
        reserved: Collection[str] = RESERVED,
    ) -> None:
        keep_text(function)
        self.py_func = function
        self.name: str = name or function.__name__
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._options = options
        self._parameters = signature_names(function, "the function", reserved)
        for parameter in self._parameters:
            if parameter.startswith(OWN_PREFIX) or parameter in own_names:
                raise ArgumentError(
                    f"{self.name} has a parameter named {parameter!r}, which the "
                    f"generated kernel uses; rename it"
                )
        check_names(self.name, self._parameters, options)
        self._binder = Binder(
            self.name,
            self._parameters,
            options,
            [option for option in reserved if option != "output_subset"],
        )
        self._inner = InnerFunction(self.name, function)
        # generated kernels, by all that they depend on
        self._kernels: Cache[tuple[Any, ...], Any] = Cache(MAX_KERNELS)
        # what calls with the same quick key have in common; a repeated call looks there only
        self._known: Cache[Any, Any] = Cache(MAX_KNOWN)
        self._inner.dependent += [self._kernels, self._known]

    def __repr__(self) -> str:
        """Name and parameters."""
        return (
            f"<synknumba {type(self).__name__.lower()} {self.name}({', '.join(self._parameters)})>"
        )

    def _device(self, world: Engine | None) -> DeviceKind:
        """The device that a call is made or planned for: that of the world, or the CPU.

        Kernels, and the types that they are for, depend on the values that the function reads. What
        was made for another world, by a plan, or with other values, is dropped.
        """
        if world is None:
            self._inner.renew()
            return "cpu"
        if self._inner._number_now(world) not in world.holdings.shipped:  # noqa: SLF001  # of one class
            self._inner.renew()
        return world.device

    def _kernel(self, key: tuple[Any, ...], make: Callable[..., Any]) -> Any:
        """Returns what `make(*key)` returned for the key. Beyond `MAX_KERNELS` the oldest is
        dropped, here and on the ranks.
        """
        kernel = self._kernels.get(key)
        if kernel is None:
            if len(self._kernels) == MAX_KERNELS:
                self._known.clear()
            kernel = self._kernels[key] = make(*key)
        return kernel


def split_selection(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of a call that select rows out of its keyword arguments, and returns
    them.
    """
    selection: dict[str, Any] = {}
    for name in ("batch", "local_batch", "num_slices", "shards"):
        if name in kwargs:
            selection[name] = kwargs.pop(name)
    return selection
