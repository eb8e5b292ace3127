"""The model of CUDA's threads, which is the oracle of the fuzzer, against NumPy, in both orders
of threads.
"""

import numpy as np
import pytest
from numba import cuda

from tests.conformance.simt import model
from tests.conformance.simt.agree import check
from tests.conformance.simt.cases import NO_WARPS
from tests.conformance.simt.corpus import CASES
from tests.conformance.simt.grids import ONE_BLOCK
from tests.conformance.simt.test_corpus import cases

# What the simulator cannot do but the model can; otherwise they agree.
MORE = {"", NO_WARPS, ONE_BLOCK}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "name",
    cases(name for name, case in CASES.items() if case.expect and case.differs in MORE),
)
def test_agrees_with_numpy(name: str, order: int) -> None:
    case = CASES[name]
    if order == -1 and case.cpu_only:
        pytest.skip(case.cpu_only)
    args = case.make()
    model.run(case.kernel, case.grid, case.block, args, shared=case.shared, order=order)
    check(case, args, case.expect(*case.make()))


def barrier_in_one_branch(out):
    if cuda.threadIdx.x < 3:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


def barrier_and_shuffle(out):
    if cuda.threadIdx.x < 3:
        cuda.syncthreads()
    else:
        out[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, 1, 4)


def shuffle_from_nobody(out):
    out[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, 1, 20)


@pytest.mark.parametrize(
    "kernel", [barrier_in_one_branch, barrier_and_shuffle, shuffle_from_nobody]
)
def test_says_what_hangs_or_is_undefined(kernel) -> None:
    with pytest.raises(model.DivergedError):
        model.run(kernel, 1, 8, (np.zeros(8),))
