"""Runs the corpus in Numba's CUDA simulator: `python simulate.py OUT.pickle`, with NUMBA_ENABLE_CUDASIM=1."""

import importlib.util
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np


def main(out: str) -> None:
    warnings.simplefilter("ignore")
    from numba import cuda

    spec = importlib.util.spec_from_file_location("corpus", Path(__file__).with_name("corpus.py"))
    corpus = importlib.util.module_from_spec(spec)
    sys.modules["corpus"] = corpus
    spec.loader.exec_module(corpus)
    results = {}
    for name, case in corpus.CASES.items():
        args = case.make()
        try:
            cuda.jit(case.kernel)[case.grid, case.block](*args)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
        else:
            results[name] = {place: arg for place, arg in enumerate(args) if isinstance(arg, np.ndarray)}
    Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
