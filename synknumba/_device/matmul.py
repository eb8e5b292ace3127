"""The product of two matrices, for functions that may be recorded."""

import sys
from typing import Any

import numpy as np


def matmul(a: Any, b: Any) -> Any:
    """Returns the matrix product a @ b, on a GPU by cuBLAS.

    In functions with `record=True` it takes the place of `a @ b`, `dot` and `matmul`: CuPy's own
    cannot be recorded. Elsewhere the results are theirs.

    Args:
        a: array of shape (m, k) or (k,), of NumPy or CuPy.
        b: array of shape (k, n) or (k,), of the same library.

    Returns:
        A new array of shape (m, n), without the axes that `a` and `b` lack.

    Raises:
        ValueError: the shapes do not fit.
        DeviceError: cuBLAS is missing, or has failed.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.matmul(np.array([[1.0, 2.0]]), np.array([3.0, 4.0]))
        array([11.])
    """
    cupy = sys.modules.get("cupy")
    if cupy is None or not (isinstance(a, cupy.ndarray) and isinstance(b, cupy.ndarray)):
        return np.matmul(a, b)
    from synknumba._device import cuda_blas  # on first use: it loads cuBLAS

    return cuda_blas.matmul(a, b)
