"""A call of each kernel of the library, and what NumPy says."""

from collections.abc import Callable
from typing import Any

import numpy as np

import synknumba as synk
from synknumba.kernels import (
    elementwise,
    ising,
    matmul,
    montecarlo,
    nbody,
    reduce,
    statistics,
    stencil,
)

SEED = 2**40 + 3
OPTION = (100.0, 105.0, 0.03, 0.25, 1.5)  # spot, strike, rate, volatility, years

Case = Callable[[int, np.random.Generator, dict[str, int]], tuple[Any, Any]]
CASES: dict[str, tuple[Any, Case, float]] = {}


def case(kernel: Any, rtol: float = 1e-11, name: str = "") -> Callable[[Case], Case]:
    """Adds a case: from a number of rows, random numbers and options of the call to what the
    kernel gives and what is right.
    """

    def add(make: Case) -> Case:
        CASES[name or kernel.name] = kernel, make, rtol
        return make

    return add


@case(montecarlo.count_inside, rtol=0)
def _(n, _rng, options):
    return montecarlo.count_inside(
        synk.arange(n), SEED, **options
    ), montecarlo.count_inside_reference(n, SEED)


@case(montecarlo.european_payoffs)
def _(n, _rng, options):
    got = montecarlo.european_payoffs(synk.arange(n), SEED, *OPTION, **options)
    return got, montecarlo.european_payoffs_reference(n, SEED, *OPTION)


@case(montecarlo.asian_payoffs)
def _(n, _rng, options):
    got = montecarlo.asian_payoffs(synk.arange(n), SEED, *OPTION, 7, **options)
    return got, montecarlo.asian_payoffs_reference(n, SEED, *OPTION, 7)


@case(reduce.block_sums)
def _(n, rng, options):
    x = rng.random(n)
    return reduce.block_sums(x, **options).sum(), reduce.block_sums_reference(x)


@case(reduce.block_sums, name="block_sums_float32")
def _(n, rng, options):
    x = rng.random(n, dtype=np.float32)
    return reduce.block_sums(x, **options).sum(), reduce.block_sums_reference(x)


@case(reduce.block_sums, rtol=0, name="block_sums_int16")
def _(n, rng, options):
    x = rng.integers(-(2**15), 2**15, n).astype(np.int16)
    return reduce.block_sums(x, **options).sum(), reduce.block_sums_reference(x)


@case(reduce.block_products)
def _(n, rng, options):
    x, y = rng.random(n, dtype=np.float32), rng.random(n)
    return reduce.block_products(x, y, **options).sum(), reduce.block_products_reference(x, y)


@case(reduce.block_extremes, rtol=0)
def _(n, rng, options):
    x = rng.normal(size=n)
    got = reduce.block_extremes(x, **options)
    return (got.low.min(), got.high.max()), reduce.block_extremes_reference(x)


@case(reduce.column_sums)
def _(n, rng, options):
    x = rng.random((n, 37))
    return reduce.column_sums(x, **options), reduce.column_sums_reference(x)


@case(statistics.power_sums)
def _(n, rng, options):
    x = rng.random(n)
    return statistics.power_sums(x, -0.5, **options), statistics.power_sums_reference(x, -0.5)


@case(statistics.histogram, rtol=0)
def _(n, rng, options):
    x, edges = rng.normal(size=n), np.linspace(-2.0, 2.0, 14)
    return statistics.histogram(x, edges, **options), statistics.histogram_reference(x, edges)


@case(statistics.centered_products)
def _(n, rng, options):
    x, center = rng.random((n, 19)), np.full(19, -0.25)
    got, want = (
        statistics.centered_products(x, center, **options),
        statistics.centered_products_reference(x, center),
    )
    return np.vstack(got), np.vstack(want)


@case(elementwise.axpy)
def _(n, rng, options):
    x, y = rng.random(n), rng.random(n)
    return elementwise.axpy(2.5, x, y, **options), elementwise.axpy_reference(2.5, x, y)


# one rounding less where a device fuses multiplication and addition
@case(elementwise.axpy_in_place, rtol=1e-6)
def _(n, rng, options):
    x, y = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
    want = y.copy()
    elementwise.axpy_in_place_reference(np.float32(2.5), x, want)
    elementwise.axpy_in_place(np.float32(2.5), x, y, **options)
    return y, want


@case(elementwise.black_scholes)
def _(n, rng, options):
    columns = rng.uniform(50.0, 150.0, n), rng.uniform(50.0, 150.0, n), rng.uniform(0.1, 3.0, n)
    got = elementwise.black_scholes(*columns, 0.03, 0.2, **options)
    # A price far below the share's is a difference of numbers of its size.
    return np.array(got) + 1.0, np.array(
        elementwise.black_scholes_reference(*columns, 0.03, 0.2)
    ) + 1.0


@case(elementwise.softmax, rtol=1e-5)
def _(n, rng, options):
    x = rng.normal(0.0, 30.0, (n, 9)).astype(np.float32)
    x[0] += 1000.0  # exp would be infinite
    return elementwise.softmax(x, **options), elementwise.softmax_reference(x)


@case(nbody.accelerations_float64)
def _(n, rng, options):
    bodies = rng.normal(size=(n, 3)), rng.normal(size=(300, 3)), rng.random(300)
    return nbody.accelerations(*bodies, 0.1, **options), nbody.accelerations_reference(*bodies, 0.1)


@case(nbody.accelerations_float32, rtol=1e-6)
def _(n, rng, options):
    bodies = rng.normal(size=(n, 3)), rng.normal(size=(600, 3)), rng.random(600)
    bodies = [array.astype(np.float32) for array in bodies]
    return nbody.accelerations(*bodies, 0.1, **options), nbody.accelerations_reference(*bodies, 0.1)


@case(nbody.potentials)
def _(n, rng, options):
    bodies = rng.normal(size=(n, 3)), rng.normal(size=(300, 3)), rng.random(300)
    return nbody.potentials(*bodies, 0.1, **options), nbody.potentials_reference(*bodies, 0.1)


@case(ising.sweep, rtol=0)
def _(n, rng, options):
    spins, betas = rng.choice(np.array([-1, 1], np.int8), (n, 6, 6)), rng.uniform(0.2, 1.0, n)
    want = spins.copy()
    ising.sweep_reference(want, betas, SEED, 3, 2)
    ising.sweep(spins, betas, synk.OFFSET, SEED, 3, 2, **options)
    return spins, want


@case(ising.observe)
def _(n, rng, options):
    spins = rng.choice(np.array([-1, 1], np.int8), (n, 6, 6))
    return np.array(ising.observe(spins, **options)), np.array(ising.observe_reference(spins))


@case(stencil.heat_step)
def _(n, rng, options):
    old, new = rng.random((n, 133)), np.zeros((n, 133))
    stencil.heat_step(old, new, synk.OFFSET, 0.2, **options)
    return new, stencil.heat_step_reference(old, 0.2)


@case(stencil.life_step, rtol=0)
def _(n, rng, options):
    old, new = rng.integers(0, 2, (n, 133), np.uint8), np.zeros((n, 133), np.uint8)
    stencil.life_step(old, new, synk.OFFSET, **options)
    return new, stencil.life_step_reference(old)


@case(matmul.matmul, rtol=1e-9)
def _(n, rng, options):
    a, b = rng.random((n, 37)), rng.random((37, 21))
    return matmul.matmul(a, b, **options), matmul.matmul_reference(a, b)


@case(matmul.matmul, rtol=1e-5, name="matmul_float32")
def _(n, rng, options):
    a, b = rng.random((n, 17), dtype=np.float32), rng.random((17, 16), dtype=np.float32)
    return matmul.matmul(a, b, **options), matmul.matmul_reference(a, b)
