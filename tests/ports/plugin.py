"""What single programs need to run their tests beside `simt.as_cuda`: a plugin of pytest, used by
`tests.ports`.

- disimpy 0.3.0 and xarray-spatial 0.5.3 call functions by names that NumPy 2 no longer has.
- fbpic launches kernels by CuPy, as PTX, for speed: its `compile_cupy` becomes `cuda.jit`.
"""

import functools
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest


def _with_jit_for_ptx(module: Any):
    from numba import cuda

    class Compiled:
        def __init__(self, function: Any):
            self._function, self._kernel = function, cuda.jit(function)

        def specialize(self, signature: Any):
            return cuda.jit(signature)(self._function)

        def __getitem__(self, config: Any):
            return self._kernel[config]

    module.compile_cupy = Compiled


class _After(MetaPathFinder):
    """Changes a module as soon as it is imported."""

    def __init__(self, name: str, change: Any):
        self._name, self._change = name, change

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        run = spec.loader.exec_module
        spec.loader.exec_module = functools.wraps(run)(
            lambda module: (run(module), self._change(module))
        )
        return spec


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests():
    for name, value in {"float_": np.float64, "product": np.prod, "trapz": np.trapezoid}.items():
        if name not in vars(np):
            setattr(np, name, value)
    sys.meta_path.insert(0, _After("fbpic.utils.cuda", _with_jit_for_ptx))
