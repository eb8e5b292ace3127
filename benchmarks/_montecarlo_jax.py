"""JAX: one process with as many devices as there are ranks, chunks in a loop on each. Started by
`_gpu_call_peers`.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gpu_call_peers import Row, Settings, print_rows, time_steps
from _montecarlo import DISCOUNT, DRIFT, SPOT, SPREAD, STRIKE, affordable, check
from jax.sharding import PartitionSpec

CHUNKS = (1 << 20, 1 << 24)  # samples of a device in a turn of its loop; the faster one counts
# JAX's own, which fuses with what follows, and XLA's, which fills arrays
GENERATORS = (
    "threefry2x32",
    "rbg",
)


def sum_of_chunk(work: str, key: Any, size: int, dtype: Any) -> Any:
    """The samples in that type, their sum in float64."""
    if work == "pi":
        x, y = jax.random.uniform(key, (2, size), dtype)
        samples = jnp.where(x * x + y * y < 1, dtype(4), dtype(0))
    else:
        z = jax.random.normal(key, (size,), dtype)
        samples = dtype(DISCOUNT) * jnp.maximum(
            dtype(SPOT) * jnp.exp(dtype(DRIFT) + dtype(SPREAD) * z) - dtype(STRIKE), 0
        )
    return samples.sum(dtype=jnp.float64)


def total_on(mesh: Any, work: str, chunk: int, dtype: Any) -> Any:
    """A function of a key and a number of chunks of each device: the sum over all devices."""

    def on_device(key: Any, chunks: Any) -> Any:
        own = jax.random.fold_in(key, jax.lax.axis_index("ranks"))

        def add(turn: Any, total: Any) -> Any:
            return total + sum_of_chunk(work, jax.random.fold_in(own, turn), chunk, dtype)

        return jax.lax.psum(jax.lax.fori_loop(0, chunks, add, jnp.float64(0)), "ranks")

    whole = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=(whole, whole), out_specs=whole, check_vma=False
        )
    )


def measure(mesh: Any, settings: Settings, generator: str, dtype: Any, chunk: int) -> Row:
    """With another key for each call."""
    total, seeds, turn = total_on(mesh, settings.work, chunk, dtype), count(), mesh.size * chunk

    def mean(samples: int) -> float:
        key = jax.random.key(next(seeds), impl=generator)
        return float(total(key, samples // turn)) / samples

    samples = affordable(mean, turn, max(settings.rows), settings.seconds)
    what = f"{generator}, chunks in fori_loop, shard_map, {np.dtype(dtype).name}"
    timing = time_steps(lambda: check(settings.work, mean(samples), samples), settings)
    return Row("JAX", what, mesh.size, samples, timing)


def jax_rows(settings: Settings) -> Iterator[Row]:
    """Both generators and both types, on every number of devices. The first one tells which
    chunks are faster.
    """
    jax.config.update("jax_enable_x64", True)  # float32 is asked for by name
    platform = jax.devices()[0].platform
    assert platform == ("gpu" if settings.device == "cuda" else "cpu"), (
        f"JAX computes on a {platform}"
    )
    for generator in GENERATORS:
        for dtype in (np.float64, np.float32):
            chunks: Sequence[int] = CHUNKS
            for ranks in settings.ranks:
                mesh = jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("ranks",))
                assert mesh.size == ranks, f"{mesh.size} devices for {ranks} ranks"
                most = max(1, max(settings.rows) // ranks)
                found = {
                    chunk: measure(mesh, settings, generator, dtype, min(chunk, most))
                    for chunk in chunks
                }
                chunks = [
                    min(found, key=lambda chunk: found[chunk].timing.median / found[chunk].rows)
                ]
                yield found[chunks[0]]


if __name__ == "__main__":
    print_rows(jax_rows)
