"""What sequences.py runs in a process of its own: the same iterations by JAX, in fori_loop under
jit. Prints JSON.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import Timing, print_timing, time_calls
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


def of_neighbours(first: Any, last: Any, size: int) -> tuple[Any, Any]:
    """The last row of the device above, and the first of the one below."""
    above = jax.lax.ppermute(last, AXIS, [(i, i + 1) for i in range(size - 1)])
    below = jax.lax.ppermute(first, AXIS, [(i + 1, i) for i in range(size - 1)])
    return above, below


def joined(u: Any, *, size: int, edge: int) -> Any:
    """A step on one device's rows, which are joined with those of its neighbours; `edge` is the
    last row that is not padding.
    """
    rank, rows = jax.lax.axis_index(AXIS), u.shape[0]
    above, below = of_neighbours(u[:1], u[-1:], size)
    wide = jnp.concatenate([above, u, below])
    inner = 0.25 * (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:])
    row = rank * rows + jnp.arange(rows)[:, None]
    inside = (row > 0) & (row < edge)
    return u.at[:, 1:-1].set(jnp.where(inside, inner, u[:, 1:-1]))


def in_place(wide: Any, *, size: int, edge: int) -> Any:
    """The same on rows that lie between places for those of neighbours, without a mask: rows at
    the edges of the whole are put back, and padding may be anything.
    """
    rank, rows = jax.lax.axis_index(AXIS), wide.shape[0] - 2
    if size > 1:
        above, below = of_neighbours(wide[1:2], wide[-2:-1], size)
        wide = wide.at[:1].set(above).at[-1:].set(below)
    inner = 0.25 * (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:])
    new = jax.lax.dynamic_update_slice(wide, inner, (1, 1))
    for row in (0, edge):
        place = row - rank * rows + 1
        here = (place >= 1) & (place <= rows)
        place = jnp.clip(place, 1, rows)
        old, moved = (jax.lax.dynamic_slice_in_dim(u, place, 1) for u in (wide, new))
        new = jax.lax.dynamic_update_slice_in_dim(new, jnp.where(here, old, moved), place, 0)
    return new


def among_places(start: Any, size: int) -> Any:
    """Each device's rows with a row of zeros above and below."""
    parts = start.reshape(size, -1, start.shape[1])
    return np.pad(parts, ((0, 0), (1, 1), (0, 0))).reshape(-1, start.shape[1])


def own_rows(wide: Any, size: int) -> Any:
    """What `among_places` was made of."""
    return wide.reshape(size, -1, wide.shape[1])[:, 1:-1].reshape(-1, wide.shape[1])


# of which the faster is the peer: how rows are laid out, the step, and the rows of a layout
FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "concatenated rows": (lambda start, size: start, joined, lambda u, size: u),
    "rows with halos in place": (among_places, in_place, own_rows),
}


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
    timing = timed(lambda one: loop((one, dtype.type(0))), x, TIMES, seconds)
    print_timing("", "kernel, all_reduce, kernel, sum", timing)
    for side in sides:
        start = start_of(side).astype(dtype)
        padded = np.pad(start, ((0, -side % size), (0, 0)))  # JAX divides into equal parts
        for form, (layout, relax, rows_of) in FORMS.items():
            u = jax.device_put(layout(padded, size), NamedSharding(mesh, ROWS))
            body = partial(relax, size=size, edge=side - 1)
            assert np.allclose(
                rows_of(np.asarray(looped(mesh, body, 10, ROWS)(u)), size)[:side],
                relaxed(start, 10),
                rtol=1e-12 if dtype == np.float64 else 1e-5,
            )
            times = steps_of(side)
            timing = timed(looped(mesh, body, times, ROWS), u, times, seconds)
            print_timing(form, f"Jacobi {side}²", timing)


main()
