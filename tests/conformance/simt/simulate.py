"""Runs the corpus in Numba's CUDA simulator: `python -m tests.conformance.simt.simulate OUT`,
with NUMBA_ENABLE_CUDASIM=1.
"""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np

# How long a system thread keeps Python to itself while others wait. With Python's 5 ms the corpus
# takes twice as long.
SWITCH_SECONDS = 5e-4


def main(out: str, names: str) -> None:
    warnings.simplefilter("ignore")
    sys.setswitchinterval(SWITCH_SECONDS)
    from numba import cuda

    from tests.conformance.simt.corpus import CASES

    results = {}
    for name in names.split():
        case = CASES[name]
        args = case.make()
        try:
            cuda.jit(case.kernel)[case.grid, case.block, 0, case.shared](*args)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
        else:
            results[name] = {
                place: arg for place, arg in enumerate(args) if isinstance(arg, np.ndarray)
            }
    Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
