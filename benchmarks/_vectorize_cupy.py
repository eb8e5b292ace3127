"""CuPy on one GPU: kernels of one element, `cupy.fuse`, and its sum. Started by
`_gpu_call_peers`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
from _gpu_call_peers import Row, Settings, print_rows, time_steps
from _vectorize import FACTOR, check, exact, rows_of

KERNELS = {
    "linear": cupy.ElementwiseKernel("T x, T y", "T out", f"out = {FACTOR} * x + y", "linear"),
    "wave": cupy.ElementwiseKernel(
        "T x, T y", "T out", "out = exp(-0.5 * x * x) * cos(3.0 * x)", "wave"
    ),
}


@cupy.fuse()
def linear(x, y):
    return FACTOR * x + y


@cupy.fuse()
def wave(x, y):
    return cupy.exp(-0.5 * x * x) * cupy.cos(3.0 * x)


FUSED = {"linear": linear, "wave": wave}


def ways(work: str, hosts: tuple[Any, Any]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Library, how, and what is timed; each returns what it has made."""
    x, y = map(cupy.asarray, hosts)
    done = cupy.cuda.get_current_stream().synchronize

    def on_devices(kernel: Callable[..., Any]) -> Any:
        out = kernel(x, y)
        done()
        return out

    def there_and_back(kernel: Callable[..., Any]) -> Any:
        return cupy.asnumpy(kernel(*map(cupy.asarray, hosts)))

    if work == "sum of rows":
        yield "CuPy: sum", "on devices, reduce", lambda: float(x.sum())
        return
    out = cupy.empty_like(x)
    yield (
        "CuPy: ElementwiseKernel",
        "on devices, out=",
        lambda: on_devices(lambda a, b: KERNELS[work](a, b, out)),
    )
    yield "CuPy: fuse", "on devices, out=", lambda: on_devices(FUSED[work])
    yield "CuPy: ElementwiseKernel", "gathered", lambda: there_and_back(KERNELS[work])


def cupy_rows(settings: Settings) -> Iterator[Row]:
    """One GPU, for CuPy's arrays lie on one."""
    for count in settings.rows:
        hosts = rows_of(count)
        wanted = exact(settings.work, *hosts)
        for library, how, call in ways(settings.work, hosts):
            got = call()
            check(
                library, got if isinstance(got, float | np.ndarray) else cupy.asnumpy(got), wanted
            )
            yield Row(library, how, 1, count, time_steps(call, settings))


if __name__ == "__main__":
    print_rows(cupy_rows)
