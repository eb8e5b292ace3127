"""What makes an object with a NumPy view of its own usable like an array, without a copy."""

import operator
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike

from synknumba._types import Array


class ArrayOperations(NDArrayOperatorsMixin):
    """Reads, arithmetic, ufuncs and conversions of the array that is `data`; how it is written to is its own affair."""

    __slots__ = ()

    @property
    @abstractmethod
    def data(self) -> Array:
        """The view of now."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """The view itself where neither a cast nor a copy is asked for."""
        return np.array(self.data, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Reads such objects among the inputs as arrays and writes into those in `out=`; the result is an ndarray or `out`."""
        out = kwargs.get("out")
        if out is not None:
            kwargs["out"] = tuple(unwrap(item) for item in out)
        if "where" in kwargs:
            kwargs["where"] = unwrap(kwargs["where"])
        result = getattr(ufunc, method)(*(unwrap(item) for item in inputs), **kwargs)
        if out is None:
            return result
        if not isinstance(result, tuple):
            return out[0]
        return tuple(part if given is None else given for part, given in zip(result, out, strict=True))

    def __getitem__(self, index: Any) -> Any:
        return self.data[unwrap(index)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __contains__(self, item: object) -> bool:
        return item in self.data

    def __bool__(self) -> bool:
        return bool(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __complex__(self) -> complex:
        return complex(self.data)

    def __index__(self) -> int:
        return operator.index(self.data)


def unwrap(value: Any) -> Any:
    """The array in place of such an object, also within an index or a tuple of outputs."""
    if isinstance(value, ArrayOperations):
        return value.data
    if isinstance(value, tuple):
        return tuple(unwrap(item) for item in value)
    return value
