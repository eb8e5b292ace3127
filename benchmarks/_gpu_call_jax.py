"""JAX: one process with as many devices as there are ranks. Started by `_gpu_call_peers`."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gpu_call_peers import (
    BLOCK,
    Row,
    Settings,
    Step,
    check,
    pairs,
    print_rows,
    sum_of_pairs,
    time_steps,
)
from jax.sharding import NamedSharding, PartitionSpec


def jax_rows(settings: Settings) -> Iterator[Row]:
    """One process with as many devices as there are ranks; arrays that cannot be divided evenly
    are left out.
    """
    jax.config.update("jax_enable_x64", settings.work == "sum")
    for ranks in settings.ranks:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("ranks",))
        assert mesh.size == ranks, f"{mesh.size} devices for {ranks} ranks"
        for rows in settings.rows:
            if rows % ranks == 0 or settings.work == "sum":
                what, step, expected = (jax_sum if settings.work == "sum" else jax_mean)(mesh, rows)
                check(what, step(), expected, settings)
                yield Row("JAX", what, ranks, rows, time_steps(step, settings))


def jax_sum(mesh: Any, rows: int) -> tuple[str, Step, float]:
    """shard_map; zeros at the end where the rows cannot be divided evenly."""
    values = np.zeros(-(-rows // mesh.size) * mesh.size)
    values[:rows] = np.arange(rows)
    x = jax.device_put(values, NamedSharding(mesh, PartitionSpec("ranks")))
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), "ranks"),
        mesh=mesh,
        in_specs=PartitionSpec("ranks"),
        out_specs=PartitionSpec(),
    )
    total = jax.jit(mapped)
    return "jit of shard_map with psum, float", lambda: float(total(x)), float(values.sum())


def jax_mean(mesh: Any, rows: int) -> tuple[str, Step, float]:
    """One expression over sharded arrays, which are made where they lie."""
    sharding = NamedSharding(mesh, PartitionSpec("ranks"))
    repeat = jax.jit(
        lambda block: jnp.tile(block, -(-rows // BLOCK))[:rows], out_shardings=sharding
    )
    x, y = (repeat(block) for block in pairs())
    mean = jax.jit(lambda x, y: jnp.mean(y * jnp.exp(-x * x)))
    return (
        "jit of a mean over sharded arrays, float",
        lambda: float(mean(x, y)),
        sum_of_pairs(rows) / rows,
    )


if __name__ == "__main__":
    print_rows(jax_rows)
