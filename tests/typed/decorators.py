"""Types of what the decorators return, as type checkers see them; nothing here runs. mypy checks
this file with the package.

An error that must be found is ignored by its code: mypy fails if it does not find it.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import synknumba as synk


def numbers(x: Any, beta: float) -> float:
    return float(x.sum() * beta)


untyped: Any = numbers  # what decorators of Numba return

with synk.fork(2) as world:
    assert_type(world, synk.World)

# ---- functions of arrays: parameters are those of the function


@synk.function(outputs="sum", broadcast=("c",))
def summed(x: Any, c: float = 1.0) -> Any:
    return (c * x).sum()


@synk.function
def logged(x: np.ndarray[Any, Any] | synk.Data) -> None:
    print(x.sum())


data = synk.data(np.arange(8.0))
assert_type(summed(data), Any)
assert_type(summed(data, c=2.0), Any)
summed(data, 2.0)
summed(data, 2.0, num_slices=2)
summed(data, c=2.0, batch=slice(4), shards=3)
summed(data, local_batch=[1, 2], output_subset=0)
summed.as_serial(data)
assert_type(summed.plan(data, world_size=2), synk.PlanReport)
assert_type(summed.submit(data, c=2.0), synk.Future[Any])
assert_type(summed.submit(data, batch=4).result(timeout=1.0), Any)
assert_type(logged.submit(data), synk.Future[None])
logged(data)
logged(np.arange(3.0))

variable = synk.variable(np.zeros(3), name="v")


@synk.function(givens={"w": variable}, updates={"new": (variable, "sum")}, outputs="mean")
def step(x: Any, w: Any, new: Any) -> Any:  # callers pass x alone
    new += w * x.sum(0)
    return x.mean()


assert_type(step(data), Any)
assert_type(synk.function(numbers, givens={"beta": 0.5}, outputs="sum")(data), Any)
assert_type(synk.function(untyped), synk.Function[..., None])
assert_type(step, synk.Function[..., Any])

# ---- halos


assert_type(synk.exchange(synk.scatter(variable, data, halo=1, periodic=True)), Any)
step(data, variable, synk.OFFSET, synk.OWN)
step(data, variable, synk.OFFSET, synk.ROWS)
own: synk.Span = synk.Span(1, 3)
assert_type(own.start, int)

# ---- kernels: parameters are those of a plain function, unless some are outputs, and those of a
# dispatcher are unknown


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def energy(x: Any, beta: float, total: Any) -> None:
    total[0] = beta * x[0]


@synk.parallel(inout=("y",), block=128)
def doubled(x: Any, y: Any) -> None:
    y[0] = x[0]


@synk.parallel
def tripled(x: Any) -> None:
    x[0] *= 3


tripled()  # type: ignore[call-overload]  # x is missing
energy(data, 0.5)
assert_type(energy, synk.Function[..., Any])
doubled(data, data, num_slices=2)
assert_type(synk.parallel(block=64)(untyped), synk.Function[..., None])
assert_type(synk.parallel(untyped), synk.Function[..., None])
assert_type(synk.parallel(untyped, givens={"beta": 0.5}), synk.Function[..., Any])
assert_type(
    synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})(untyped),
    synk.Function[..., Any],
)

# ---- functions of one row or number: annotations are those of a row, and callers pass arrays


@synk.expectation
def density(x: float, seed: int) -> float:
    return x * seed


@synk.expectation(weights="w", covariance=True)
def weighted(x: float, w: float) -> tuple[float, float]:
    return x, w


@synk.vectorize
def squared(x: float) -> float:
    return x * x


@synk.vectorize(["float32(float32)"], broadcast=())
def halved(x: float) -> float:
    return x / 2


assert_type(density(data, 7), synk.Estimate)
assert_type(density(synk.arange(100), seed=7, num_slices=2), synk.Estimate)
assert_type(density.plan(data, 7, world_size=2), synk.PlanReport)
assert_type(density.submit(data, 7).result(), synk.Estimate)
assert_type(density(data, 7, block=np.int64(4)), synk.Estimate)
assert_type(synk.Estimate.from_values(np.arange(8.0), block=np.int64(4)), synk.Estimate)
assert_type(density.submit(data, 7).exception(), Exception | None)
assert_type(density.submit(data, 7).done(), bool)
assert_type(squared.submit(data, shards=2), synk.Future[Any])
assert_type(weighted, synk.Expectation)
assert_type(squared, synk.Vectorized)
assert_type(halved, synk.Vectorized)
squared(data, out=data, shards=2)

# ---- sequences: editors show the body's parameters, beside the options


@synk.sequence
def steps(x: Any, w: Any) -> Any:
    return doubled(x, w)


assert_type(steps(data, variable), Any)
assert_type(steps(data, w=variable, times=3, every=1), Any)
steps(data, variable, until=8, every="1")  # type: ignore[call-overload]

# ---- checkpoints and batches

synk.save(Path("model"), {"v": variable, "step": 3})
assert_type(synk.load("model"), Any)
assert_type(synk.load(Path("model"), like={"v": variable}), Any)
for rows in synk.batches(data, 4, seed=0, epochs=None):
    assert_type(rows, np.ndarray[tuple[Any, ...], np.dtype[np.int64]])
    summed(data, batch=rows)
assert_type(
    synk.batches(np.zeros(8), 4, seed=0).start_at(synk.batches(8, 4, seed=0).state()), synk.Batches
)
assert_type(len(synk.batches(8, 4, seed=0).start_at(1)), int)

# ---- errors that must be found

synk.save(variable, "model")  # type: ignore[arg-type]
synk.load("model", {"v": variable})  # type: ignore[call-arg]
synk.batches(8.0, 4, seed=0)  # type: ignore[arg-type]
synk.batches(8, 4)  # type: ignore[call-arg]

summed()  # type: ignore[call-overload]  # x is missing
summed(data, 2.0, 3.0)  # type: ignore[call-overload]
summed.submit(data, d=2.0)  # type: ignore[call-overload]
density.submit(data, 7, until=lambda e: True)  # type: ignore[arg-type]
summed(data, d=2.0)  # type: ignore[call-overload]
summed(data, shards="all")  # type: ignore[call-overload]
doubled(data)  # type: ignore[call-overload]  # y is missing
synk.scatter(variable, halo="1")  # type: ignore[arg-type]
logged(8)  # type: ignore[call-overload]
summed.plam(data)  # type: ignore[attr-defined]
density.plam(data)  # type: ignore[attr-defined]
synk.function(otputs="sum")  # type: ignore[call-overload]
synk.parallel(grid="x")  # type: ignore[call-overload]
synk.parallel(grid="elements", block=(32, 8))(untyped)
synk.parallel(grid=lambda shapes: shapes["u"][0], block=None)(untyped)
synk.parallel(grid=lambda rows, shapes: (rows, shapes["u"][1]))(untyped)
synk.parallel(grid=str.upper)(untyped)  # type: ignore[arg-type]
