"""The script's functions on a rank, unpickled and ready to run on its device."""

import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from synknumba._device import Device, DeviceKernel
from synknumba._ops.launch import LaunchConfig
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.routine import Repeated
from synknumba._wire import function_pickling as pickling
from synknumba._wire.program import FunctionSpec
from synknumba.simt.internals import explain


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function of the script."""

    function: Callable[..., Any]  # the plain Python function
    kernel: DeviceKernel | None  # None for a Python function of arrays
    launch: LaunchConfig | None  # of the kernel


@final
class LoadedFunctions:
    """The functions of a rank.

    Args:
        device: device of the rank.

    Attributes:
        by_id: the functions.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.by_id: dict[int, Loaded] = {}
        self._revision = 0  # of the values in modules of the script

    def load(self, spec: FunctionSpec) -> None:
        """Unpickles a function, after the values that it reads in modules of the script."""
        linecache.cache.update(spec.sources)
        for (module, name), value in spec.of_modules.items():
            if module in sys.modules:
                setattr(sys.modules[module], name, value)
        if spec.revision != self._revision:
            self._revision = spec.revision
            pickling.renew_device_functions()
        function, launch, options = pickling.load(
            spec.payload, lambda number: self.by_id[number].function
        )
        kernel = None
        if spec.style == "kernel":
            kernel = self._device.kernel(function, options)
        self.by_id[spec.id] = Loaded(function, kernel, launch)

    def drop(self, function_ids: Iterable[int]) -> None:
        """Drops functions, those of them that there are."""
        for function_id in function_ids:
            self.by_id.pop(function_id, None)

    # ---- messages

    def explained(self, routine: Repeated | None, error: BaseException) -> BaseException:
        """Returns the error of a routine; a short one if Numba could not compile its function."""
        if not isinstance(routine, KernelRoutine | FunctionRoutine):
            return error
        loaded = self.by_id.get(routine.program.function)
        if loaded is None:
            return error
        is_kernel = isinstance(routine, KernelRoutine)
        explained = explain(error, loaded.function, compiled=is_kernel, anywhere=is_kernel)
        if explained is None:
            return error
        for note in getattr(error, "__notes__", ()):  # where a sequence calls it
            explained.add_note(note)
        return explained

    def name_of(self, routine: Repeated) -> str:
        """Returns the name of the function that a routine runs, or what it is."""
        if isinstance(routine, KernelRoutine | FunctionRoutine):
            function = self.by_id[routine.program.function].function
            return str(getattr(function, "__name__", "function"))
        return type(routine).__name__.removesuffix("Routine").lower()
