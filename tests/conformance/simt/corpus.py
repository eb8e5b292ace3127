"""All cases, from the modules that hold them."""

from tests.conformance.simt import algorithms, barriers, functions, grids, memory, numerics, threads, warps
from tests.conformance.simt.cases import CASES as CASES
from tests.conformance.simt.cases import Case as Case

MODULES = (threads, barriers, memory, functions, warps, algorithms, numerics, grids)
