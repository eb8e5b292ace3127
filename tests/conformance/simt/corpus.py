"""All cases, from the modules that hold them."""

from types import ModuleType

from tests.conformance.simt import (
    algorithms,
    atomics,
    barriers,
    barriers_in_loops,
    control_flow,
    functions,
    grids,
    guards,
    matrices,
    numerics,
    programs,
    scans,
    shared_arrays,
    shuffles,
    small_blocks,
    sorts,
    stencils,
    strides,
    thread_values,
    variables,
    warps,
)
from tests.conformance.simt.cases import CASES as CASES
from tests.conformance.simt.cases import Case as Case

# Where no thread waits for another.
WITHOUT_WAITING = (guards, strides, control_flow, thread_values, atomics)
ALGORITHMS = (scans, sorts, algorithms)
MODULES = (
    *WITHOUT_WAITING,
    *ALGORITHMS,
    barriers,
    barriers_in_loops,
    shared_arrays,
    variables,
    functions,
    shuffles,
    small_blocks,
    warps,
    matrices,
    stencils,
    numerics,
    grids,
    programs,
)


def is_from(case: Case, modules: tuple[ModuleType, ...]) -> bool:
    """Whether the kernel of a case stands in one of the modules."""
    return case.kernel.__module__ in {module.__name__ for module in modules}
