"""The same few things in the many spellings of public Numba CUDA code.

Each entry launches small kernels and says what NumPy computes for them. The entries of all modules
but `imported` run in Numba's simulator too, for which this package imports neither synknumba nor
pytest.
"""

import numpy as np
from numba import cuda

from tests.conformance.simt.spellings import (
    functions,
    language,
    launches,
    memory,
    names,
    operations,
)
from tests.conformance.simt.spellings.entry import ENTRIES as ENTRIES
from tests.conformance.simt.spellings.entry import NOT_SIMULATED as NOT_SIMULATED

MODULES = (functions, language, launches, memory, names, operations)


def simulate() -> None:
    """Runs the entries in Numba's simulator, and prints the names of those that agree with
    NumPy.
    """
    for name, entry in ENTRIES.items():
        if name in NOT_SIMULATED:
            continue
        pairs = list(entry(cuda.jit))
        for got, wanted in pairs:
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9, err_msg=name)
        print(name)
