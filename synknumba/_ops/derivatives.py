"""Derivatives of NumPy's functions of one number, by which an `Estimate` propagates its error."""

from collections.abc import Callable

import numpy as np

from synknumba._types import Array

DERIVATIVES: dict[np.ufunc, Callable[[Array], Array]] = {
    np.absolute: lambda x: x / np.absolute(x),  # NaN at 0, where there is none
    np.reciprocal: lambda x: -1 / x**2,
    np.square: lambda x: 2 * x,
    np.sqrt: lambda x: 0.5 / np.sqrt(x),
    np.cbrt: lambda x: 1 / (3 * np.cbrt(x) ** 2),
    np.exp: np.exp,
    np.exp2: lambda x: np.log(2) * np.exp2(x),
    np.expm1: np.exp,
    np.log: lambda x: 1 / x,
    np.log2: lambda x: 1 / (np.log(2) * x),
    np.log10: lambda x: 1 / (np.log(10) * x),
    np.log1p: lambda x: 1 / (1 + x),
    np.sin: np.cos,
    np.cos: lambda x: -np.sin(x),
    np.tan: lambda x: 1 / np.cos(x) ** 2,
    np.arcsin: lambda x: 1 / np.sqrt(1 - x**2),
    np.arccos: lambda x: -1 / np.sqrt(1 - x**2),
    np.arctan: lambda x: 1 / (1 + x**2),
    np.sinh: np.cosh,
    np.cosh: np.sinh,
    np.tanh: lambda x: 1 / np.cosh(x) ** 2,
}
