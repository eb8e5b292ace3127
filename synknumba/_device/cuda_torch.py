"""torch in functions on GPUs: it works on the device's stream, so that its work is in order with
all other work of a rank.

Its own current stream is the legacy default stream, for which the device's stream does not wait: a
later call would read what torch has not written yet. Nothing is done until a function has used
torch on the GPU.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from cupy.cuda import runtime


def torch_on_gpu() -> Any:
    """Returns torch, if this process uses the GPU with it; None if not."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while torch is being imported
    return torch if cuda is not None and cuda.is_initialized() else None


@final
class FunctionScope:
    """Context of a function's calls, in which the device's stream is the current one of CuPy, and
    of torch.

    Args:
        stream: CuPy's.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._shared = False  # whether torch's current stream of this thread is the device's

    def __enter__(self) -> None:
        self.share()
        self._stream.__enter__()

    def __exit__(self, *error_info: object) -> None:
        self._stream.__exit__(*error_info)
        if self.share():
            runtime.deviceSynchronize()  # this first time torch worked on its default stream

    def share(self) -> bool:
        """Makes the device's stream torch's, if a function has used torch on the GPU. Returns
        whether it did so.
        """
        torch = None if self._shared else torch_on_gpu()
        if torch is None:
            return False
        torch.cuda.set_stream(torch.cuda.ExternalStream(self._stream.ptr))
        self._shared = True
        return True


@final
class TorchPool:
    """Memory of tensors that are made while a function is recorded: no other tensor gets it
    while the graph refers to it.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context of a recording. Autograd works in this thread: the pool is this thread's
        alone.
        """
        torch = torch_on_gpu()
        if torch is None:
            yield
            return
        if self._pool is None:
            self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool), torch.autograd.set_multithreading_enabled(False):
            yield

    def close(self) -> None:
        self._pool = None
