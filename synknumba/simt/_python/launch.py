"""Launch syntax `kernel[grid, block, stream, smem](*args)` for kernels that run in Python."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from synknumba._errors import ArgumentError, LaunchError
from synknumba._types import class_text
from synknumba.simt._explain.arguments import wrong_count
from synknumba.simt._jit import jit
from synknumba.simt._kernel import Kernel
from synknumba.simt._launch import Configuration, refuse_names
from synknumba.simt._python.arrays import Watch
from synknumba.simt._python.cuda import Dim3
from synknumba.simt._python.program import DebugProgram
from synknumba.simt._python.run import DebugLaunch, Launch
from synknumba.simt._python.source import device_code

Run = Callable[..., None]


class PythonKernel:
    """A kernel that runs in Python, thread by thread; the result of `debug` and `check`.

    The source is read again at each launch, so global variables have their values at that time.
    """

    stand_ins = False  # whether a variable that is read unassigned has a value

    def __init__(self, kernel: Any, word: str, make_watch: Callable[[Launch], Watch]) -> None:
        function = device_code(kernel) or kernel
        if not isinstance(function, FunctionType):  # a kernel decorated by synk.parallel
            function = getattr(kernel, "__wrapped__", None)
        if not isinstance(function, FunctionType):
            raise ArgumentError(
                f"simt.{word} takes a kernel: a function, one decorated by cuda.jit or "
                f"synk.parallel, or a simt kernel; got {kernel!r}"
            )
        self.py_func: FunctionType = function
        if not isinstance(kernel, Kernel):
            kernel = jit(function)
        self._kernel = kernel
        self._word, self._make_watch = word, make_watch

    def __repr__(self) -> str:
        """Returns the tool, the kernel and its location."""
        code = self.py_func.__code__
        return (
            f"<simt.{self._word} of {self.py_func.__qualname__} "
            f"({code.co_filename}:{code.co_firstlineno})>"
        )

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        """Raises LaunchError: a kernel needs a grid and a block."""
        raise LaunchError(
            f"{self.py_func.__qualname__} is a kernel: launch it as "
            f"simt.{self._word}(kernel)[grid, block](...)"
        )

    def __getitem__(self, config: Any) -> Run:
        """Returns a launcher for `kernel[grid, block, stream, smem]`; the stream is ignored, smem
        is in bytes.
        """
        return self._launcher(Configuration.of(config, self.py_func, f"simt.{self._word}(kernel)"))

    def forall(self, n: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Run:
        """Returns a launcher with at least n threads, in blocks of `tpb` threads if given."""
        return self._launcher(Configuration.forall(n, tpb, stream, sharedmem))

    def _launcher(self, sizes: Configuration) -> Run:
        grid, block = Dim3(*sizes.grid), Dim3(*sizes.block)

        def run(*args: Any, **named: Any) -> None:
            refuse_names(self.py_func.__qualname__, named)
            program = DebugProgram(self.py_func, stand_ins=self.stand_ins)
            arguments = self._kernel.coerce(args)
            missing = len(program.params) - len(arguments)
            if not 0 <= missing <= len(program.defaults):
                raise wrong_count(self.py_func, program.params, arguments)
            arguments += program.defaults[len(program.defaults) - missing :]
            for name, arg in zip(program.params, arguments, strict=True):
                _refuse_containers(f"{self.py_func.__qualname__}(): {name}", arg)
            if grid.x:  # `forall(0)` has no blocks
                self._run(program, grid, block, sizes.smem, arguments).finish()

        return run

    def _run(
        self, program: DebugProgram, grid: Dim3, block: Dim3, smem: int, args: tuple[Any, ...]
    ) -> Watch:
        """Runs a launch with checked arguments, and returns its watch."""
        launch = DebugLaunch(program, grid, block, smem, self._make_watch)
        launch.run(args)
        return launch.watch


def _refuse_containers(what: str, arg: Any) -> None:
    """Raises ArgumentError for arguments that work in Python but not in a compiled kernel."""
    if isinstance(arg, (list, dict, set)):
        raise ArgumentError(
            f"{what} is {class_text(arg)}; pass NumPy arrays, numbers, and tuples of them"
        )
    # `_ary`: an array of Numba's CUDA simulator
    is_host = isinstance(arg, np.ndarray) or hasattr(arg, "_ary")
    if not is_host and hasattr(arg, "__cuda_array_interface__"):
        raise ArgumentError(
            f"{what} is an array in a GPU's memory ({type(arg).__qualname__}); pass a copy on the "
            "host"
        )
