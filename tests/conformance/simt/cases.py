"""What a case of the corpus is: a kernel, its launch, its arguments and what they hold after it.

The kernels run through `synknumba.simt` on the CPU, in Numba's CUDA simulator (in a process of its
own), in the model of `model.py`, and through `numba.cuda.jit` on a GPU. That is why these modules
import neither synknumba nor pytest.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba.cuda.random import xoroshiro128p_dtype

# The simulator of Numba has no word for them.
NO_WARPS = "the simulator has no warp operations"


@dataclass(frozen=True)
class Case:
    """A launch and its result.

    Attributes:
        kernel: the plain function.
        grid: blocks.
        block: threads of a block.
        make: makes the arguments.
        expect: from the arguments before the launch, the arrays after it, by their place; None
            where only the simulator knows.
        rtol: how closely floats agree.
        atol: how closely they agree near zero.
        differs: why the simulator computes something else; empty if it does not.
        shared: bytes of dynamic shared memory.
        unordered: places of arrays that are filled in the order in which threads come; they are
            compared sorted.
        cooperative: whether blocks wait for each other, which a GPU allows only if all of them fit
            at once.
        cpu_only: why it does not run on a GPU; empty if it does.
    """

    kernel: Callable[..., None]
    grid: Any
    block: Any
    make: Callable[[], tuple[Any, ...]]
    expect: Callable[..., dict[int, Any]] | None
    rtol: float = 1e-12
    atol: float = 1e-12
    differs: str = ""
    shared: int = 0
    unordered: tuple[int, ...] = ()
    cooperative: bool = False
    cpu_only: str = ""


CASES: dict[str, Case] = {}


def case(grid, block, make, expect=None, *, name="", **more):
    """Makes a case of the kernel below it."""

    def add(kernel):
        _add(name or kernel.__name__, Case(kernel, grid, block, make, expect, **more))
        return kernel

    return add


def again(name, of, grid, block, make, expect=None, **more):
    """The same kernel with another launch or other arguments."""
    changes = {"expect": expect} if expect else {}
    _add(name, replace(CASES[of], grid=grid, block=block, make=make, **changes, **more))


def _add(name, made):
    if name in CASES:
        raise ValueError(f"two cases are called {name}")
    CASES[name] = made


def real(*shape, seed=1, dtype=np.float64):
    """Numbers from -2 to 2."""
    return np.random.default_rng(seed).uniform(-2.0, 2.0, shape).astype(dtype)


def whole(*shape, low=-50, high=50, seed=1, dtype=np.int64):
    """Integers from `low` to `high`, without the latter."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def values(dtype, *shape, seed=1):
    """Small numbers of any type: integers and booleans of all patterns, or reals, or complex
    ones.
    """
    kind = np.dtype(dtype).kind
    if kind in "iub":
        return whole(
            *shape,
            low=0 if kind != "i" else -50,
            high=2 if kind == "b" else 50,
            seed=seed,
            dtype=dtype,
        )
    if kind == "c":
        return (real(*shape, seed=seed) + 1j * real(*shape, seed=seed + 1)).astype(dtype)
    return real(*shape, seed=seed, dtype=dtype)


def rows(x, width):
    """`x` as rows of `width`, the last one filled up with zeros: what each block of `width`
    threads sees of it.
    """
    padded = np.zeros(-(-x.size // width) * width, x.dtype)
    padded[: x.size] = x
    return padded.reshape(-1, width)


def flat(made, x):
    """The rows that were made of `x`, one after the other, without what they were filled up
    with.
    """
    return np.concatenate(list(made))[: x.size]


def warps(x):
    """Rows of what a warp sees; `x` must fill all of them."""
    return x.reshape(-1, 32)


def states(n):
    """xoroshiro128+ states, made without numba.cuda: its own functions for that differ in the
    simulator.
    """
    seeds = np.random.default_rng(5).integers(1, 1 << 62, (n, 2), dtype=np.uint64)
    made = np.empty(n, xoroshiro128p_dtype)
    made["s0"], made["s1"] = seeds[:, 0], seeds[:, 1]
    return made
