"""Python implementation of `numba.cuda` for kernels that run in Python.

All names refer to the current thread, so they also work in a debugger: `p cuda.threadIdx.x`, or a
breakpoint with the condition `cuda.grid(1) == 17`.

Only one thread runs at a time, so an atomic operation is a plain read, change and write. As on a
GPU, the value is first converted to the array's dtype, and the old element is returned.
"""

import math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from numba.core import types

from synknumba._errors import KernelError
from synknumba._types import class_text
from synknumba.simt._library.words import CACHED_LOADS, CACHED_STORES, WARP_SIZE
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python import arithmetic
from synknumba.simt._python.arithmetic import convert
from synknumba.simt._python.arrays import Array, allocate, is_outside, must_be_writeable, nothing
from synknumba.simt._python.warp import WAITING


def _isnan(value: Any) -> bool:
    return isinstance(value, np.floating) and math.isnan(value)


def _number(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns the choice that ignores NaN."""

    def choose_number(old: Any, value: Any) -> Any:
        if _isnan(value):
            return old
        if _isnan(old):
            return value
        return choose(old, value)

    return choose_number


def _incremented(old: Any, most: Any) -> Any:
    if old >= most:
        return old * 0
    return old + old.dtype.type(1)


def _decremented(old: Any, most: Any) -> Any:
    if old == 0 or old > most:
        return most
    return old - old.dtype.type(1)


# (old element, value) -> new element
_CHANGES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": max,
    "min": min,
    "nanmax": _number(max),
    "nanmin": _number(min),
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "inc": _incremented,
    "dec": _decremented,
    "exch": lambda _old, value: value,
}


def _element(array: Any, index: Any, change: Callable[[Any], Any], value: Any) -> Any:
    """Replaces an element by `change(element)`, which depends on `value`; returns the old value."""
    if not isinstance(array, Array):
        raise TypeError(f"cuda.atomic needs an array, not {class_text(array)}")
    if is_outside(array, index):
        array.memory.watch.outside(array, index, "atomic")
        return nothing(array.dtype)
    old = np.ndarray.__getitem__(array, index)
    if isinstance(old, np.ndarray):
        raise TypeError(
            f"cuda.atomic needs {array.ndim} integer indices for {array.memory.name}, got {index!r}"
        )
    must_be_writeable(array)
    array.memory.watch.access("atomic", array, index, value)
    np.ndarray.__setitem__(array, index, change(old))
    return old


def _make(name: str) -> Callable[[Any, Any, Any], Any]:
    change = _CHANGES[name]

    def atomic(ary: Any, idx: Any, val: Any) -> Any:
        return _element(ary, idx, lambda old: change(old, convert(val, type(old))), val)

    return atomic


def _cas(ary: Any, idx: Any, old: Any, val: Any) -> Any:
    """Stores `val` if the element equals `old`; returns the previous element."""

    def swap(now: Any) -> Any:
        if now == convert(old, type(now)):
            return convert(val, type(now))
        return now

    return _element(ary, idx, swap, val)


def _compare_and_swap(ary: Any, old: Any, val: Any) -> Any:
    """Applies `_cas` to the array's first element."""
    return _cas(ary, (0,) * ary.ndim, old, val)


_ATOMICS: Final = {name: _make(name) for name in _CHANGES} | {
    "cas": _cas,
    "compare_and_swap": _compare_and_swap,
}


class Dim3(NamedTuple):
    """Three sizes or indices, along x, y and z."""

    x: int
    y: int
    z: int

    def at(self, number: int) -> "Dim3":
        """Returns the index, in these sizes, of a linear index, x fastest."""
        return Dim3(number % self.x, number // self.x % self.y, number // (self.x * self.y))


class CurrentIndex:
    """Implements `cuda.threadIdx` and `cuda.blockIdx`, also under an alias: the current thread's
    index.
    """

    def __init__(self, read: Callable[[], Dim3]) -> None:
        self._read = read

    x = property(lambda self: self._read().x)  # the fastest within a warp
    y = property(lambda self: self._read().y)
    z = property(lambda self: self._read().z)

    def __repr__(self) -> str:
        return repr(self._read())


UNASSIGNED: Final = object()


class GridGroup:
    """Result of `cuda.cg.this_grid()`. `_python.source` rewrites calls of `sync()` into grid
    barriers.
    """

    def sync(self) -> None:
        """Raises KernelError: a call that waits cannot be made through a variable."""
        _waits("cg.this_grid().sync")()


def as_numpy(dtype: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype of a Numba type or of anything NumPy accepts as a dtype."""
    if isinstance(dtype, types.Type):
        return as_dtype(dtype)
    return np.dtype(dtype)


def _waits(path: str) -> Callable[..., Any]:
    def call(*_args: Any, **_keywords: Any) -> Any:
        raise KernelError(f"cuda.{path}() must be called by its name, not through a variable")

    return call


# Functions of `cuda.fp16`, such as `hsin`, that NumPy has under the rest of their names.
_HALF_OF_NUMPY: Final = (
    "abs", "add", "ceil", "cos", "exp", "exp2", "floor", "log", "log10", "log2", "rint", "sin",
    "sqrt", "trunc",
)  # fmt: skip
_HALF_BY_NAME: Final = {
    "hneg": np.negative, "hrcp": np.reciprocal, "hsub": np.subtract, "hmul": np.multiply,
    "hdiv": np.divide, "hmax": np.fmax, "hmin": np.fmin, "heq": np.equal, "hne": np.not_equal,
    "hge": np.greater_equal, "hgt": np.greater, "hle": np.less_equal, "hlt": np.less,
    **{f"h{name}": getattr(np, name) for name in _HALF_OF_NUMPY},
}  # fmt: skip
# Computed in float64, where a product of two float16 is exact, and rounded once.
_HALF_WIDE: Final[dict[str, Callable[..., Any]]] = {
    "hexp10": lambda x: np.power(10.0, np.float64(x)),
    "hrsqrt": lambda x: 1 / np.sqrt(np.float64(x)),
    "hfma": lambda a, b, c: np.float64(a) * np.float64(b) + np.float64(c),
}


def _half(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a NumPy function as one of `cuda.fp16`: float16 in, float16 or bool out."""

    def call(*args: Any) -> Any:
        result = function(*(np.float16(arg) for arg in args))
        if isinstance(result, np.bool_):
            return bool(result)
        return np.float16(result)

    return call


_HALF: Final = {name: _half(function) for name, function in (_HALF_BY_NAME | _HALF_WIDE).items()}


_ARITHMETIC: Final = ("popc", "brev", "clz", "ffs", "fma", "cbrt", "selp")
# Members of `numba.cuda` that do not depend on the thread.
_MEMBERS: Final[dict[str, Any]] = {
    **{name: getattr(arithmetic, name) for name in _ARITHMETIC},
    **dict.fromkeys(CACHED_LOADS, operator.getitem),
    **dict.fromkeys(CACHED_STORES, operator.setitem),
    **{path: _waits(path) for path in WAITING},
}


def _first(values: tuple[int, ...], ndim: int) -> int | tuple[int, ...]:
    """Returns the values along this many axes; of one axis, a number."""
    if ndim == 1:
        return values[0]
    return values[:ndim]


class Cuda:
    """Implements the module `numba.cuda` for a launch, a `DebugLaunch`."""

    warpsize = WARP_SIZE
    atomic = SimpleNamespace(**_ATOMICS)
    const = SimpleNamespace(array_like=lambda array: array)
    cg = SimpleNamespace(this_grid=GridGroup)
    fp16 = SimpleNamespace(**_HALF)
    _unassigned = UNASSIGNED

    def __init__(self, launch: Any) -> None:
        self._launch = launch
        self.threadIdx = CurrentIndex(lambda: launch.current.index)
        self.blockIdx = CurrentIndex(lambda: launch.current.block_index)
        self.blockDim, self.gridDim = launch.block, launch.grid
        self.shared = SimpleNamespace(array=self._shared)
        self.local = SimpleNamespace(array=self._local)
        vars(self).update(_MEMBERS)

    def _assigned(self, value: Any, name: str) -> Any:
        """Returns the value of a variable; that which the watch chooses, if it is unassigned."""
        if value is UNASSIGNED:
            return self._launch.watch.unassigned(name)
        return value

    @property
    def laneid(self) -> int:
        """The current thread's index within its warp."""
        return self._launch.current.lane

    def grid(self, ndim: int) -> int | tuple[int, ...]:
        """Returns the current thread's index in the grid."""
        thread, block = self._launch.current.index, self._launch.current.block_index
        index = tuple(b * size + t for t, b, size in zip(thread, block, self.blockDim, strict=True))
        return _first(index, ndim)

    def gridsize(self, ndim: int) -> int | tuple[int, ...]:
        """Returns the number of threads in the grid."""
        return _first(tuple(map(operator.mul, self.gridDim, self.blockDim)), ndim)

    def lanemask_lt(self) -> Any:
        """Returns the mask of the lanes below the current one."""
        return np.uint32((1 << self.laneid) - 1)

    def nanosleep(self, ns: int) -> None:
        """Does nothing: no other thread would run meanwhile."""

    def threadfence(self) -> None:
        """Counts a fence of the current thread."""
        self._launch.current.fences += 1

    threadfence_block = threadfence_system = threadfence

    def _shared(self, shape: Any, dtype: Any, name: str = "shared array", key: str = "") -> Array:
        return self._launch.shared_array(name, key, shape, as_numpy(dtype))

    def _local(self, shape: Any, dtype: Any, name: str = "local array") -> Array:
        return allocate(
            name, "local", shape, as_numpy(dtype), self._launch.watch, self._launch.current
        )


def member(base: Any, path: str) -> Any:
    """Returns the object at a dotted path below `base`."""
    for part in filter(None, path.split(".")):
        base = getattr(base, part)
    return base


_INDICES: Final = {
    f"{word}.{axis}" for word in ("threadIdx", "blockIdx", "blockDim", "gridDim") for axis in "xyz"
}
_FUNCTIONS: Final = {
    "grid", "gridsize", "lanemask_lt", "nanosleep", "threadfence", "threadfence_block",
    "threadfence_system", "shared.array",
    "local.array", "const.array_like", "cg.this_grid", "laneid", "warpsize",
}  # fmt: skip
# Paths below numba.cuda implemented by `Cuda`, and their prefixes, such as `threadIdx` for
# `threadIdx.x`.
KNOWN_PATHS: Final = frozenset(
    {*_INDICES, *_FUNCTIONS, *_MEMBERS}
    | {f"atomic.{name}" for name in _ATOMICS}
    | {f"fp16.{name}" for name in _HALF}
    | {
        "",
        "threadIdx",
        "blockIdx",
        "blockDim",
        "gridDim",
        "shared",
        "local",
        "const",
        "cg",
        "atomic",
        "fp16",
    }
)
FENCES: Final = frozenset({"threadfence", "threadfence_system"})
# Operations of kernels whose threads wait for each other in loops.
LOCKS: Final = FENCES | {
    "threadfence_block",
    "nanosleep",
    "atomic.cas",
    "atomic.compare_and_swap",
    "atomic.exch",
}
