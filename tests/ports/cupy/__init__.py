"""CuPy's arrays in host memory, as far as the programs of `tests.ports` need them, which is little.

An array wraps a NumPy array and is none, so that a program takes its path for GPUs, and so that
using one as a NumPy array fails, as with CuPy. Every function of NumPy's is a function here.
Kernels get the NumPy array: see `simt.as_cuda`.
"""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

__version__ = "14.0.0"


class ndarray(NDArrayOperatorsMixin):  # noqa: N801  # CuPy's name
    __array_priority__ = 100

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str = "C",
    ):
        assert memptr is strides is None
        self.simt_values = np.empty(shape, dtype, order)

    def __array__(self, *_args: Any, **_options: Any):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, out: Any = None, **options: Any):
        if out is not None:
            options["out"] = _inside(out)
        made = getattr(ufunc, method)(*_inside(args), **_inside(options))
        return (
            made
            if out is None and made is NotImplemented
            else (out[0] if out is not None else _outside(made))
        )

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any):
        return _outside(function(*_inside(args), **_inside(options)))

    @property
    def __cuda_array_interface__(self):
        return {**self.simt_values.__array_interface__, "version": 3}

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "simt_values":
            raise AttributeError(name)
        value = getattr(self.simt_values, name)
        return _called(value) if callable(value) else _outside(value)

    def __getitem__(self, item: Any):
        # an array of no axes for an element, too
        return _array(np.asarray(self.simt_values[_inside(item)]))

    def __setitem__(self, item: Any, value: Any):
        self.simt_values[_inside(item)] = _inside(value)

    def __len__(self):
        return len(self.simt_values)

    def __iter__(self):
        return (self[place] for place in range(len(self)))

    def __bool__(self):
        return bool(self.simt_values)

    def __int__(self):
        return int(self.simt_values)

    def __index__(self):
        return self.simt_values.__index__()

    def __float__(self):
        return float(self.simt_values)

    def __complex__(self):
        return complex(self.simt_values)

    def __repr__(self):
        return repr(self.simt_values)

    def __format__(self, spec: str):
        return format(self.simt_values[()], spec)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.simt_values.ctypes.data)

    def get(self, **_options: Any):
        return self.simt_values.copy()

    def set(self, values: Any, **_options: Any):
        self.simt_values[...] = values


def _array(values: np.ndarray):
    made = ndarray.__new__(ndarray)
    made.simt_values = values
    return made


def _inside(value: Any) -> Any:
    """Arrays as NumPy's."""
    if isinstance(value, ndarray):
        return value.simt_values
    if type(value) in {tuple, list}:
        return type(value)(map(_inside, value))
    return {name: _inside(one) for name, one in value.items()} if type(value) is dict else value


def _outside(value: Any) -> Any:
    """NumPy's arrays and scalars as arrays of this module."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value))
    return type(value)(map(_outside, value)) if type(value) in {tuple, list} else value


def _called(function: Any):
    return lambda *args, **options: _outside(function(*_inside(args), **_inside(options)))


def asnumpy(array: Any, **_options: Any):
    return array.get() if isinstance(array, ndarray) else np.asarray(array)


def asarray(values: Any, dtype: Any = None, order: Any = None, **_options: Any):
    """The same array if it is one already, as CuPy; a copy of what is in the program's memory."""
    return _array(
        np.array(
            _inside(values),
            dtype,
            order=order or "K",
            copy=None if isinstance(values, ndarray) else True,
        )
    )


def get_array_module(*arrays: Any):
    return sys.modules[__name__] if any(isinstance(one, ndarray) for one in arrays) else np


def is_available():
    return True


def get_default_memory_pool():
    return SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: 0)


class _Random:
    """NumPy's generator, with CuPy's argument `dtype`."""

    seed = staticmethod(np.random.seed)

    def __getattr__(self, name: str):
        draw = getattr(np.random, name)
        return lambda *args, dtype=float, **options: _outside(
            np.asarray(draw(*args, **options), dtype)
        )


random = _Random()


def __getattr__(name: str):
    value = getattr(np, name)
    return value if isinstance(value, type) or not callable(value) else _called(value)


from cupy import cuda as cuda  # noqa: E402  # as CuPy's package does
