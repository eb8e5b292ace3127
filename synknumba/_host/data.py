"""`Data`: a host array in shared memory that every rank can read, and write where a call says so.

    value ──condition──> array that fits ──one copy──> segment ──view──> d[...], np.asarray(d), ranks

A value is checked before anything changes, so a refused call leaves shape and contents unchanged.
The segment is kept if the new shape fits, and grown in place if it does not.

`ArrayOperations` makes any object with a NumPy view usable like an array, without a copy.
`declared` and the `checked_` functions validate dtype, shape and sizes, with error messages that
name the object.
"""  # noqa: E501

import itertools
import math
import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from synknumba import _html
from synknumba import _tracing as tracing
from synknumba._errors import DataError
from synknumba._host.casting import accept, fill
from synknumba._host.copying import private_copy
from synknumba._host.segment import Segment
from synknumba._types import Array, Shape, as_flag, class_text, known_options

_DType: TypeAlias = np.dtype[Any]


class ArrayOperations(NDArrayOperatorsMixin):
    """Mixin: reads, arithmetic, ufuncs and conversions of the array `data`; writing is left to
    the class.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def data(self) -> Array:
        """The current NumPy view."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Returns the view itself unless a cast or a copy is requested."""
        return np.array(self.data, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Applies a ufunc to the views of the inputs, writing into those in `out=`; returns an
        ndarray or `out`.
        """
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
        return tuple(map(_first_given, out, result))

    def sum(
        self, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, **options: Any
    ) -> Any:
        """Returns the sum of the items, computed in this process, like `numpy.ndarray.sum`."""
        return _reduced(self.data.sum, out, axis=axis, dtype=dtype, **options)

    def mean(
        self, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, **options: Any
    ) -> Any:
        """Returns the mean of the items, computed in this process, like `numpy.ndarray.mean`."""
        return _reduced(self.data.mean, out, axis=axis, dtype=dtype, **options)

    def min(self, axis: Any = None, out: Any = None, **options: Any) -> Any:
        """Returns the least item, found in this process, like `numpy.ndarray.min`."""
        return _reduced(self.data.min, out, axis=axis, **options)

    def max(self, axis: Any = None, out: Any = None, **options: Any) -> Any:
        """Returns the greatest item, found in this process, like `numpy.ndarray.max`."""
        return _reduced(self.data.max, out, axis=axis, **options)

    def copy(self) -> Array:
        """Returns a copy as a NumPy array in this process's own memory."""
        return self.data.copy()

    @property
    def T(self) -> Array:  # noqa: N802  # NumPy's name
        """The transposed NumPy view."""
        return self.data.T

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tracing.Number):
            return tracing.Line(self, index)
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


def _reduced(method: Callable[..., Any], out: Any, **options: Any) -> Any:
    result = method(out=unwrap(out), **{name: unwrap(option) for name, option in options.items()})
    return _first_given(out, result)


def _first_given(target: Any, result: Any) -> Any:
    """Returns the array that the caller has given for a result, or else the result."""
    return result if target is None else target


def unwrap(value: Any) -> Any:
    """Replaces an `ArrayOperations` by its view, also within an index or a tuple of outputs."""
    if isinstance(value, ArrayOperations):
        return value.data
    if isinstance(value, tuple):
        return tuple(unwrap(item) for item in value)
    return value


def declared(
    label: str, dtype: DTypeLike | None, shape: int | Shape | None, ndim: int | None
) -> tuple[_DType, Shape]:
    """Returns dtype and initial shape of an array declared without a value; all sizes are 0 if
    only `ndim` is given.
    """
    if dtype is None or (shape is None and ndim is None):
        options = {"dtype": dtype, "shape": shape, "ndim": ndim}
        got = [f"{key}={item!r}" for key, item in options.items() if item is not None]
        raise DataError(
            f"{label} needs value, or dtype with shape or ndim; got {', '.join(got) or 'nothing'}"
        )
    if shape is not None:
        dims = checked_shape(label, shape)
    else:
        dims = (0,) * checked_size(label, "ndim", ndim or 0)
    if ndim is not None and len(dims) != ndim:
        raise DataError(
            f"{label}: shape {dims} has {len(dims)} dimensions but ndim is "
            f"{ndim}; pass only one of them"
        )
    return checked_dtype(label, dtype), dims


def checked_dtype(label: str, dtype: DTypeLike) -> _DType:
    """Returns the dtype in native byte order; refuses objects, items without a fixed size and
    subarrays.
    """
    try:
        checked: _DType = np.dtype(dtype)
    except TypeError as error:
        raise DataError(f"{label}: {dtype!r} is not a dtype: {error}") from error
    if checked.hasobject or checked.itemsize == 0 or checked.subdtype is not None:
        hint = (
            " such as float64, U16 or a structured dtype of those; put the dimensions "
            "of a subarray into shape"
        )
        raise DataError(
            f"{label}: dtype {checked} cannot be shared between processes; give "
            f"a fixed-size dtype{hint}"
        )
    return checked.newbyteorder("=")


def checked_shape(label: str, shape: int | Shape) -> Shape:
    """Returns the shape as a tuple; a number gives one dimension."""
    if not isinstance(shape, tuple | list):
        shape = (shape,)
    return tuple(checked_size(label, "shape", size) for size in shape)


def checked_size(label: str, argument: str, size: Any) -> int:
    """Returns a number of rows, items or dimensions as an int; refuses negative numbers and
    non-integers.
    """
    try:
        checked = operator.index(size)
    except TypeError:
        checked = -1
    if checked < 0:
        raise DataError(f"{label}: {argument} needs non-negative integers, got {size!r}")
    return checked


def check_oversize(oversize: float) -> None:
    """Refuses an `oversize` that is not a number from 1 to 2."""
    is_number = isinstance(oversize, int | float | np.integer | np.floating)
    if not is_number or not 1 <= oversize <= 2:
        raise DataError(f"oversize must be a number from 1 to 2, got {oversize!r}")


def oversized(size: int, oversize: float) -> int:
    """Returns the number of items to reserve for `size` items."""
    # 20000 × 1.1 is 22000.000000000004
    if oversize == 1:
        return size
    return max(size, round(size * float(oversize)))


def _with_dtype(value: ArrayLike) -> Any:
    """Returns a value with a dtype; read once, since it may be a file or a long list."""
    if isinstance(value, Data | np.ndarray | np.generic):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{class_text(value)} cannot be read as an array: {error}") from error


_versions = itertools.count(1)


def next_version() -> int:
    """Returns a new version of frozen contents."""
    return next(_versions)


class Data(ArrayOperations):
    """A host array in shared memory, with fixed dtype and dimensions; the shape may change.

    Behaves like a NumPy array: indexing, `len`, iteration, arithmetic, ufuncs and `np.asarray` read
    and write the shared memory without a copy. It may be created before or after `fork()` and
    outlives `close()`. It cannot be pickled; pass it to a function as an argument.

    A view (`d.data`, `d[2:5]`, `np.asarray(d)`) has the shape of its time. Take a new one after
    `set_value`, `set_shape`, `set_length` or `free_memory`: an old view stays valid, but has the
    old shape and, after `free_memory`, the old memory.

    For arguments and errors, see `data()`.

    Attributes:
        name: name in messages; None or any string.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> d = synk.data([[1, 2, 3], [4, 5, 6]], dtype="float32", name="x")
        >>> d
        Data([[1., 2., 3.],
              [4., 5., 6.]], dtype=float32, name='x')
        >>> d[1, 2] = 9
        >>> d.set_length(3)
        >>> d[:, 2]
        array([3., 9., 0.], dtype=float32)
        >>> np.sqrt(d + 1)[1, 2] == np.float32(10) ** np.float32(0.5)
        np.True_
    """

    __slots__ = (
        "__weakref__",
        "_alloc_size",
        "_dtype",
        "_layout",
        "_minibatch",
        "_segment",
        "_used",
        "_version",
        "_view",
        "name",
    )
    _used: int
    _offset: int = 0  # bytes of the segment before the first item

    def __init__(
        self,
        value: ArrayLike | None = None,
        *,
        dtype: DTypeLike | None = None,
        shape: int | Shape | None = None,
        ndim: int | None = None,
        minibatch: bool = False,
        force_cast: bool = False,
        oversize: float = 1.0,
        name: str | None = None,
    ) -> None:
        self.name = name
        self._minibatch = as_flag(minibatch, "minibatch")
        force_cast = as_flag(force_cast, "force_cast")
        self._version = 0  # version of frozen contents; 0 if they may change
        check_oversize(oversize)
        if value is None:
            self._dtype, new_shape = declared(self._label(), dtype, shape, ndim)
            self._open(new_shape, oversize)
            return
        if shape is not None:
            raise DataError(
                f"{self._label()}: value and shape were both given; give value alone, or shape "
                f"with dtype and set_value() later"
            )
        contents: Any = value
        if dtype is None:
            contents = _with_dtype(value)
            dtype = contents.dtype
        self._dtype = checked_dtype(self._label(), dtype)
        source = self._accept(contents, ndim, force_cast=force_cast)
        self._open(source.shape, oversize)
        fill(self._view, source)

    @property
    def data(self) -> Array:
        """A NumPy view of the current shape, writable unless frozen; take a new one after the
        shape has changed.
        """
        self._check_usable()
        if tracing.current is not None:
            tracing.note_read(self)
        return self._view

    @property
    def shape(self) -> Shape:
        """The current shape."""
        return self._view.shape

    @property
    def size(self) -> int:
        """The number of items of the current shape."""
        return self._view.size

    @property
    def ndim(self) -> int:
        """The number of dimensions; fixed."""
        return self._view.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, in native byte order; fixed."""
        return self._dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the items of the current shape."""
        return self._view.nbytes

    @property
    def alloc_size(self) -> int:
        """Number of items allocated (size requested × oversize), and the limit of new shapes."""
        return self._alloc_size

    @property
    def minibatch(self) -> bool:
        """Whether a call's `batch` indexes this array by position in the batch instead of by
        data row; settable.
        """
        return self._minibatch

    @minibatch.setter
    def minibatch(self, value: bool) -> None:
        self._minibatch = as_flag(value, "minibatch")
        self._set_layout()

    @property
    def frozen(self) -> bool:
        """Whether the contents are frozen, so that ranks can keep their copies of them."""
        return self._version != 0

    def freeze(self) -> None:
        """Freezes the contents until `thaw`, so that ranks may reuse their copies.

        A function called again with the same rows of a frozen array uses the copies that its ranks
        hold: nothing is copied to GPUs. Meanwhile `set_value`, assignment by index and calls that
        have the array in `inout=` are refused. Earlier views
        (`np.asarray(d)`, `d[2:5]`) remain writable, but ranks may not see what is written to them.
        """
        self._check_usable()
        self._version = next_version()
        self._view.flags.writeable = False
        self._set_layout()

    def thaw(self) -> None:
        """Allows the contents to change again; every call then sends them, as before `freeze`."""
        self._check_usable()
        self._version = 0
        self._show(self.shape)

    def set_value(
        self, value: ArrayLike, *, force_cast: bool = False, oversize: float = 1.0
    ) -> None:
        """Stores `value` and adopts its shape.

        An array opened with `np.load(..., mmap_mode="r")` is copied directly from the file into
        shared memory.

        Args:
            value: array of any layout and byte order, number, or nested list, with `ndim`
                dimensions. Another dtype is cast if the cast is safe in NumPy's sense (int16 to
                float32, not float64 to float32). Python numbers have no width, as in NumPy (NEP
                50): 1 fits every numeric dtype, 1.5 every float; a number out of range is an error.
            force_cast: allow every cast that NumPy can do, silently, even if values change.
            oversize: factor from 1 to 2 by which newly allocated memory exceeds the value's size,
                for later growth.

        Raises:
            DataError: wrong ndim, a dtype that needs `force_cast`, or an invalid `oversize`.
                Nothing has changed.
            SharedMemoryError: memory is full. Nothing has changed.
        """
        self._check_thawed()
        check_oversize(oversize)
        force_cast = as_flag(force_cast, "force_cast")
        source = self._detached(self._accept(value, self.ndim, force_cast=force_cast))
        self._reshape(source.shape, oversize)
        self._used = max(self._used, source.size)
        fill(self._view, source)

    def set_shape(self, shape: int | Shape, *, oversize: float = 1.0) -> None:
        """Changes the shape like `numpy.ndarray.resize`: items keep their C order, new ones are 0.

        Args:
            shape: new shape, with `ndim` dimensions.
            oversize: as in `set_value`.

        Raises:
            DataError: wrong ndim, a negative size, or an invalid `oversize`. Nothing has changed.
            SharedMemoryError: memory is full. Nothing has changed.
        """
        self._check_thawed()
        check_oversize(oversize)
        dims = checked_shape(self._label(), shape)
        if len(dims) != self.ndim:
            raise DataError(
                f"{self._label()} has {self.ndim} dimensions, which are fixed, but "
                f"shape {dims} has {len(dims)}"
            )
        old = self.size
        self._reshape(dims, oversize)
        # new items in memory used before; the rest of the segment is zero
        stale = min(self.size, self._used) - old
        if stale > 0:
            self._segment.array(np.uint8, (stale * self.itemsize,), old * self.itemsize)[:] = 0
        self._used = max(self._used, self.size)

    def set_length(self, n: int, *, oversize: float = 1.0) -> None:
        """Changes the number of rows: keeps rows, new ones are zero. Errors as in `set_shape`."""
        if self.ndim == 0:
            raise DataError(f"{self._label()} is 0-d and has no length to set")
        self.set_shape((checked_size(self._label(), "n", n), *self.shape[1:]), oversize=oversize)

    def free_memory(self) -> None:
        """Frees the memory, here and on the ranks, except one page; the length becomes 0. Row shape
        and dtype are kept.

        The single item of a 0-d `Data` becomes zero, and its page is kept.
        """
        self._check_thawed()
        self._check_usable()
        if self.ndim == 0:
            self._view[...] = np.zeros((), self._dtype)
            return
        self._segment.close()
        self._open((0, *self.shape[1:]), 1.0)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_thawed()
        value = unwrap(value)
        if isinstance(value, np.ndarray) and self._segment.generation > 0:
            value = self._detached(value)
        self.data[unwrap(index)] = value

    def __len__(self) -> int:
        return len(self._view)

    if not TYPE_CHECKING:  # else a checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raises for an attribute that it does not have; in the body of a sequence with the
            line.
            """
            tracing.refuse_member("an array" if self.name is None else self._label(), name)
            return object.__getattribute__(self, name)  # raises the usual error

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface. Its buffer is an object instead of an address, so that
        consumers keep the memory mapped.
        """
        view = self.data
        interface = view.__array_interface__
        # of records and extension types NumPy would change the dtype
        if np.dtype(interface["typestr"]) != self._dtype:
            raise AttributeError(f"dtype {self._dtype} has no exact form in the array interface")
        return {**interface, "data": view.reshape(-1).view(np.uint8)}

    def __dlpack__(self, **options: Any) -> Any:
        """Exports the memory without a copy, as `numpy.ndarray.__dlpack__`; the capsule keeps it
        mapped.
        """
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the device of the memory: the CPU."""
        kind, number = self.data.__dlpack_device__()
        return int(kind), int(number)

    def __repr__(self) -> str:
        """Shows the contents as NumPy does, with dtype and name, and the shape if needed."""
        more = f"dtype={self._dtype}"
        if self.size == 0 or self.size > np.get_printoptions()["threshold"]:
            more = f"shape={self.shape}, {more}"
        if self._alloc_size == 0 or self._alloc_size != self.size:  # 0: never allocated, or freed
            more += f", alloc_size={self._alloc_size}"
        if self.name is not None:
            more += f", name={self.name!r}"
        if self._minibatch:
            more += ", minibatch=True"
        if self._segment.closed:
            return f"<Data of the coordinator, without memory on a rank; {more}>"
        return f"Data({np.array2string(self._view, separator=', ', prefix='Data(')}, {more})"

    def _repr_html_(self) -> str | None:
        """Shows shape, dtype, bytes and a few values in a notebook."""
        return _html.of_data(self)

    def __reduce__(self) -> NoReturn:
        """Refuses pickling: a copy in another process would not be shared."""
        raise DataError(
            f"{self._label()} cannot be pickled or deep-copied: it is shared memory. Pass it as an "
            "argument instead of capturing it in the function, or use np.array(d) for a copy"
        )

    def _label(self) -> str:
        return "Data" if self.name is None else f"Data {self.name!r}"

    def _check_usable(self) -> None:
        if self._segment.closed:
            raise DataError(
                f"{self._label()} belongs to the coordinator and cannot be used on a rank; pass it "
                "as an argument instead of capturing it in the function"
            )

    def _check_thawed(self) -> None:
        if self._version:
            raise DataError(f"{self._label()} is frozen; call thaw() before changing it")

    def _open(self, shape: Shape, oversize: float) -> None:
        size = math.prod(shape)
        self._alloc_size = oversized(size, oversize)
        self._segment = Segment(self._alloc_size * self._dtype.itemsize)
        self._used = size  # items of the segment that may be non-zero
        self._show(shape)

    def _reshape(self, shape: Shape, oversize: float) -> None:
        self._check_usable()
        size = math.prod(shape)
        if size > self._alloc_size:
            capacity = oversized(size, oversize)
            self._segment.grow(capacity * self._dtype.itemsize)
            self._alloc_size = capacity
        self._show(shape)

    def _show(self, shape: Shape) -> None:
        self._view = self._segment.array(self._dtype, shape)
        self._set_layout()

    def _set_layout(self) -> None:
        # Everything that a plan depends on, in a plain attribute: the fast path of a call uses it
        # as a dict key.
        self._layout = (
            self._segment.id,
            self._segment.generation,
            self.shape,
            dtype_key(self._dtype),
            self._version,
            self._minibatch,
        )

    def _detached(self, array: Array) -> Array:
        """Returns `array`, or a copy if it shares this memory: NumPy does not detect overlap
        through another mapping.
        """
        if self._segment.overlaps(array):
            return private_copy(array)
        return array

    def _accept(self, value: Any, ndim: int | None, *, force_cast: bool) -> Array:
        """Returns `value` as an array that `fill` can store, or raises DataError."""
        if isinstance(value, Data):
            value = value.data
        return accept(value, self._dtype, ndim, self._label(), force_cast=force_cast)


_NO_OPTIONS = {"dtype": None, "shape": None, "ndim": None, "force_cast": False, "oversize": 1.0}


def dtype_key(dtype: "np.dtype[Any]") -> Any:
    """Returns a dtype for a dict key: its text, which is hashed sooner, if that says all."""
    if dtype.names is None:
        return dtype.str
    return dtype


def segment_of(array: Data) -> Segment:
    """Returns the shared memory of a `Data`, with which the package works."""
    return array._segment  # noqa: SLF001  # for the package


@known_options
def data(
    value: ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    shape: int | Shape | None = None,
    ndim: int | None = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1.0,
    name: str | None = None,
    copy: bool = True,
) -> Data:
    """Creates an array in shared memory from `value`, or of zeros from a dtype and a shape.

    Pass `value` (with `dtype` to cast it, `ndim` to check it, or both), or `dtype` with `shape` or
    `ndim`. `value` and `shape` together are refused. With `ndim` instead of `shape`, the shape is
    (0, 0, …) until it is set.

    Args:
        value: host array, number or nested list; copied. See `Data.set_value` for the casts
            allowed.
        dtype: any dtype of fixed size: numbers, `S16`, `U16`, times, records of these; no objects.
            Default: the value's.
        shape: initial shape of an array of zeros.
        ndim: number of dimensions, at least 0.
        minibatch: whether a call's `batch` indexes this array by position in the batch instead of
            by data row.
        force_cast: cast the value even if the cast is unsafe in NumPy's sense.
        oversize: factor from 1 to 2 by which the allocation exceeds the size, for later growth.
        name: name in messages.
        copy: False for a read-only `Data` over the memory of `value`, which must be in a file that
            this process has mapped, as `np.load(path, mmap_mode="r")` is, or in shared memory with
            a descriptor; ranks map the file. Or a dataset of h5py or an array of zarr in files, of
            which ranks read the rows.

    Returns:
        The `Data`.

    Raises:
        DataError: missing or contradictory arguments, a value that does not fit or cannot be had
            without a copy, or a dtype without a fixed size.
        SharedMemoryError: memory is full.

    Example:
        >>> import synknumba as synk
        >>> x = synk.data(shape=(2000, 10), dtype="float32", oversize=1.1)
        >>> x.alloc_size
        22000
        >>> x.set_length(2100)  # fits
        >>> x.shape, x.alloc_size
        ((2100, 10), 22000)
    """
    tracing.refuse("synk.data()")
    from synknumba._host.file_data import refuse_truncated  # which build on this module
    from synknumba._host.foreign import adopted, is_foreign, without_copy

    if _is_path(value):
        path: Any = value
        raise DataError(
            f"value is the path {os.fspath(path)!r}, not an array; pass np.load(path), or "
            "np.load(path, mmap_mode='r') with copy=False for a file that stays where it is"
        )
    options: dict[str, Any] = {
        "dtype": dtype,
        "shape": shape,
        "ndim": ndim,
        "force_cast": force_cast,
        "oversize": oversize,
    }
    if not as_flag(copy, "copy"):
        if value is None or options != _NO_OPTIONS:
            raise DataError(
                "copy=False takes an array as it is: pass value, and of the "
                "others only minibatch and name"
            )
        return without_copy(value, minibatch=as_flag(minibatch, "minibatch"), name=name)
    if is_foreign(value):
        value = adopted(value, "value")
    if isinstance(value, np.ndarray):
        refuse_truncated(value, "value")
    return Data(value, minibatch=minibatch, name=name, **options)


def _is_path(value: Any) -> bool:
    """Returns whether a value, which would become an array of a single text, leads to a file."""
    if not isinstance(value, str):
        return isinstance(value, os.PathLike)
    return value.endswith((".npy", ".npz")) or os.path.isfile(value)
