"""Compiles kernels for a GPU, down to machine code, where there is none."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from numba import cuda

WITHOUT_GPU = Path(__file__).resolve()
HOPPER = (9, 0)


@contextlib.contextmanager
def compiling_without_gpu() -> Iterator[None]:
    """What the driver is asked is answered here, and a kernel that is to be put on the GPU is
    linked, but goes nowhere.
    """
    from numba.cuda import codegen, dispatcher
    from numba.cuda.cudadrv import driver

    def linked(library: Any) -> Any:
        library.get_cubin(cc=(*HOPPER, "a"))
        return SimpleNamespace(
            module=SimpleNamespace(initialized=True), set_shared_memory_carveout=lambda _: None
        )

    device = SimpleNamespace(compute_capability=HOPPER, id=0)
    library = codegen.CUDACodeLibrary
    with (
        mock.patch.object(cuda, "get_current_device", return_value=device),
        mock.patch.object(dispatcher, "get_current_device", return_value=device),
        mock.patch.object(driver, "get_version", return_value=(13, 0)),
        mock.patch.object(library, "_ensure_cc", lambda _, cc: cc or (*HOPPER, "a")),
        mock.patch.object(library, "get_cufunc", linked),
    ):
        yield
