"""The kernels that simt runs on a CPU, through `numba.cuda.jit` on a GPU: they are CUDA, and
compute the same there.
"""

from typing import Any

import numpy as np
import pytest
from numba import cuda

from synknumba import simt
from tests.conformance.simt import fuzz
from tests.conformance.simt.agree import check
from tests.conformance.simt.cases import Case
from tests.conformance.simt.corpus import CASES
from tests.conformance.simt.kernel_writer import written

# they are small on purpose
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*Grid size"),
]


def on_the_gpu(case: Case) -> tuple[Any, ...]:
    """The arguments after a launch."""
    args = tuple(cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in case.make())
    cuda.jit(case.kernel)[case.grid, case.block, 0, case.shared](*args)
    return tuple(arg.copy_to_host() if cuda.is_cuda_array(arg) else arg for arg in args)


def on_the_cpu(case: Case) -> dict[int, Any]:
    args = case.make()
    simt.jit(case.kernel)[case.grid, case.block, 0, case.shared](*args)
    return {place: arg for place, arg in enumerate(args) if isinstance(arg, np.ndarray)}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.cpu_only])
def test_agrees(name: str) -> None:
    case = CASES[name]
    check(case, on_the_gpu(case), case.expect(*case.make()) if case.expect else on_the_cpu(case))


@pytest.mark.parametrize("seed", range(20))
def test_random_kernels_agree_with_the_model(seed: int) -> None:
    writer = written(seed)
    text = writer.text()
    kernel = fuzz.load(text, f"<kernel {seed}>")
    compiled = cuda.jit(kernel)
    for m in fuzz.STEPS:
        args = [
            cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg
            for arg in fuzz.arguments(writer.size, m)
        ]
        compiled[writer.grid, writer.block](*args)
        got = [arg.copy_to_host() for arg in fuzz.results(args)]
        fuzz.agree(got, fuzz.expected(kernel, writer.grid, writer.block, m), f"m = {m}\n{text}")
