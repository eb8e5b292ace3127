"""Numba's ufuncs on one GPU, `numba.vectorize(target="cuda")`. Started by `_gpu_call_peers`."""

import math
from collections.abc import Iterator

import numba
from _gpu_call_peers import Row, Settings, print_rows, time_steps
from _vectorize import FACTOR, check, exact, rows_of
from numba import cuda


def linear(x, y):
    return FACTOR * x + y


def wave(x, y):
    return math.exp(-0.5 * x * x) * math.cos(3.0 * x)


def numba_rows(settings: Settings) -> Iterator[Row]:
    """Arrays on the GPU, and arrays of the host, which Numba copies there and back."""
    if settings.work == "sum of rows":
        return
    ufunc = numba.vectorize(["float64(float64, float64)"], target="cuda")(
        linear if settings.work == "linear" else wave
    )
    for count in settings.rows:
        hosts = rows_of(count)
        x, y = map(cuda.to_device, hosts)
        out = cuda.device_array_like(x)

        def on_devices() -> None:
            ufunc(x, y, out=out)  # noqa: B023  # called in this turn of the loop
            cuda.synchronize()

        on_devices()
        check("numba-cuda", out.copy_to_host(), exact(settings.work, *hosts))
        yield Row(
            "numba-cuda: vectorize", "on devices, out=", 1, count, time_steps(on_devices, settings)
        )
        yield Row(
            "numba-cuda: vectorize",
            "gathered",
            1,
            count,
            time_steps(lambda: ufunc(*hosts), settings),  # noqa: B023
        )


if __name__ == "__main__":
    print_rows(numba_rows)
