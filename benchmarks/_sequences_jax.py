"""What sequences.py runs in a process of its own: the same iterations by JAX, in fori_loop under
jit. Prints JSON.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import Timing, time_calls
from jax.sharding import NamedSharding, PartitionSpec
from sequences import COUNT, TIMES, per_iteration, relaxed, start_of, steps_of

jax.config.update("jax_enable_x64", sys.argv[3] == "float64")
AXIS = "ranks"
ROWS, WHOLE = PartitionSpec(AXIS), PartitionSpec()


def looped(mesh: Any, body: Callable[[Any], Any], times: int, out: Any) -> Callable[[Any], Any]:
    """A function of an array divided among the devices that repeats `body` on each."""

    def on_device(x: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, state: body(state), x)

    return jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=(out,), out_specs=out, check_vma=False)
    )


def timed(call: Callable[[Any], Any], x: Any, times: int, seconds: float) -> Timing:
    return per_iteration(
        time_calls(lambda: jax.block_until_ready(call(x)), seconds, at_least=4), times
    )


def step(state: Any) -> Any:
    x, _ = state
    x = jax.lax.pmean(0.5 * x + 1.0, AXIS)
    return x, jax.lax.psum(x.sum(), AXIS)


def relax(u: Any, *, size: int, edge: int) -> Any:
    """A step on one device's rows; `edge` is the last row that is not padding."""
    rank, rows = jax.lax.axis_index(AXIS), u.shape[0]
    above = jax.lax.ppermute(u[-1:], AXIS, [(i, i + 1) for i in range(size - 1)])
    below = jax.lax.ppermute(u[:1], AXIS, [(i + 1, i) for i in range(size - 1)])
    wide = jnp.concatenate([above, u, below])
    inner = 0.25 * (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:])
    row = rank * rows + jnp.arange(rows)[:, None]
    inside = (row > 0) & (row < edge)
    return u.at[:, 1:-1].set(jnp.where(inside, inner, u[:, 1:-1]))


def main() -> None:
    size, seconds, dtype, sides = (
        int(sys.argv[1]),
        float(sys.argv[2]),
        np.dtype(sys.argv[3]),
        [int(one) for one in sys.argv[4:]],
    )
    mesh = jax.make_mesh((size,), (AXIS,))
    x = jax.device_put(np.zeros((size, COUNT), dtype), NamedSharding(mesh, ROWS))
    loop = looped(mesh, step, TIMES, (ROWS, WHOLE))
    found = {
        "kernel, all_reduce, kernel, sum": timed(
            lambda one: loop((one, dtype.type(0))), x, TIMES, seconds
        )
    }
    for side in sides:
        start = start_of(side).astype(dtype)
        padded = np.pad(start, ((0, -side % size), (0, 0)))  # JAX divides into equal parts
        u = jax.device_put(padded, NamedSharding(mesh, ROWS))
        body = partial(relax, size=size, edge=side - 1)
        assert np.allclose(
            np.asarray(looped(mesh, body, 10, ROWS)(u))[:side],
            relaxed(start, 10),
            rtol=1e-12 if dtype == np.float64 else 1e-5,
        )
        times = steps_of(side)
        found[f"Jacobi {side}²"] = timed(looped(mesh, body, times, ROWS), u, times, seconds)
    print(json.dumps({what: dataclasses.asdict(timing) for what, timing in found.items()}))


main()
