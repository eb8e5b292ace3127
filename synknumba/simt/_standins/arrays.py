"""Arrays that behave like those of `numba.cuda` in a GPU's memory, and lie in the host's.

A `DeviceArray` has the methods of Numba's device arrays and no others: like theirs, it is no NumPy
array, so a program that computes with one before copying it back fails here too. Transfers are
copies, as to and from a GPU.
"""

import contextlib
import ctypes
import math
from collections.abc import Iterator
from typing import Any, TypeAlias, final

import numpy as np
from numba import typeof
from numba.core import types

from synknumba._errors import ArgumentError, DeviceError
from synknumba._types import class_text
from synknumba.simt import _ufuncs

HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Of new memory, whose content is undefined: a float is then NaN and an integer −1, where the host's
# new memory is mostly 0.
_UNSET = 0xFF


@final
class Memory:
    """A stand-in for the `MemoryPointer` of a device array, with the address of an element in host
    memory.

    Args:
        values: the array.
    """

    def __init__(self, values: HostArray) -> None:
        self._values = values
        self.size = values.nbytes
        self.device_pointer = ctypes.c_void_p(0)
        if values.size:
            self.device_pointer = ctypes.c_void_p(values.ctypes.data)
        self.handle = self.device_ctypes_pointer = self.device_pointer
        self.device_pointer_value = self.device_pointer.value

    def memset(self, byte: int, count: int | None = None, stream: Any = 0) -> None:
        """Sets the first `count` bytes, by default all."""
        del stream
        if count is None:
            count = self.size
        ctypes.memset(self.device_pointer, byte, count)


@final
class DeviceArray:
    """A stand-in for `numba.cuda.cudadrv.devicearray.DeviceNDArray`.

    Args:
        values: the elements, in host memory that nothing else uses, or a view of another device
            array's.
        stream: the stream it is bound to, which changes nothing.
    """

    __cuda_memory__ = True
    __cuda_ndarray__ = True

    def __init__(self, values: HostArray, stream: Any = 0) -> None:
        self.simt_values, self.stream = values, stream
        self.shape, self.strides, self.dtype = values.shape, values.strides, values.dtype
        self.ndim, self.size, self.nbytes = values.ndim, values.size, values.nbytes

    def __repr__(self) -> str:
        """Returns shape and dtype, which cost no transfer."""
        return f"<simt device array, shape {self.shape}, {self.dtype}>"

    # ---- what it is

    @property
    def flags(self) -> Any:
        """Layout, as NumPy describes it; no attribute, as it cannot be copied."""
        return self.simt_values.flags

    @property
    def alloc_size(self) -> int:
        """Bytes from the first element to the last."""
        low, high = np.lib.array_utils.byte_bounds(self.simt_values)
        return high - low

    @property
    def gpu_data(self) -> Memory:
        """Where the elements lie."""
        return Memory(self.simt_values)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """Address of the first element; 0 for an empty array."""
        return self.gpu_data.device_ctypes_pointer

    @property
    def _numba_type_(self) -> types.Type:
        return typeof(self.simt_values)

    @property
    def __cuda_array_interface__(self) -> "Interface":  # the protocol's name
        return Interface(self.simt_values)

    def __getattr__(self, name: str) -> Any:
        text = f"a device array has no attribute {name!r}"
        if hasattr(np.ndarray, name):
            text += "; compute in a kernel, or on the host: copy_to_host()"
        raise AttributeError(text, name=name, obj=self)

    def is_c_contiguous(self) -> bool:
        """Returns whether the elements lie in C order."""
        return self.simt_values.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Returns whether the elements lie in Fortran order."""
        return self.simt_values.flags.f_contiguous

    def __len__(self) -> int:
        return len(self.simt_values)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    # ---- transfers

    def copy_to_host(self, ary: HostArray | None = None, stream: Any = 0) -> HostArray:
        """Returns a copy of the elements, in `ary` if given."""
        del stream
        if any(step < 0 for step in self.strides):
            # as Numba
            raise NotImplementedError(
                f"D->H copy not implemented for negative strides: {self.strides}"
            )
        if ary is None:
            return self.simt_values.copy("K")
        _check_compatible(self.simt_values, ary, order=True)
        np.copyto(ary, self.simt_values.reshape(ary.shape))
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copies an array of the host, or another device array, into this one."""
        del stream
        values = host_values(ary)
        if values.size:
            _check_one_buffer(self.simt_values)
            _check_compatible(self.simt_values, values)
            np.copyto(self.simt_values, values.reshape(self.shape))

    def get_ipc_handle(self) -> Any:
        """Raises DeviceError: no other process can open the memory."""
        raise DeviceError(
            "get_ipc_handle() shares a GPU's memory with another process; it needs a GPU"
        )

    def bind(self, stream: Any = 0) -> "DeviceArray":
        """Returns the array, bound to a stream."""
        return DeviceArray(self.simt_values, stream)

    # ---- views and elements

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """Returns `self[item]`."""
        del stream
        return self[item]

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Does `self[key] = value`."""
        del stream
        self[key] = value

    def __getitem__(self, item: Any) -> Any:
        _check_basic(item)
        part = self.simt_values[item]
        if not isinstance(part, np.ndarray):
            return part
        return DeviceArray(part, self.stream)

    def __setitem__(self, key: Any, value: Any) -> None:
        _check_basic(key)
        self.simt_values[key] = host_values(value)

    def reshape(self, *shape: Any, order: str = "C") -> "DeviceArray":
        """Returns a view of another shape; raises NotImplementedError where that needs a copy."""
        view = self.simt_values.reshape(*shape, order=order)  # type: ignore[call-overload]
        if not np.shares_memory(view, self.simt_values) and self.size:
            raise NotImplementedError("reshape would require copy")  # Numba's words
        return DeviceArray(view, self.stream)

    def ravel(self, order: str = "C", stream: Any = 0) -> "DeviceArray":
        """Returns a view with one axis."""
        del stream
        return self.reshape(-1, order=order)

    def view(self, dtype: Any) -> "DeviceArray":
        """Returns a view of the same bytes as another type."""
        return DeviceArray(self.simt_values.view(dtype), self.stream)

    def squeeze(self, axis: Any = None, stream: Any = 0) -> "DeviceArray":
        """Returns a view without axes of length one."""
        del stream
        return DeviceArray(self.simt_values.squeeze(axis), self.stream)

    def transpose(self, axes: Any = None) -> "DeviceArray":
        """Returns the transposed array, a copy like that of Numba."""
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            # Numba's words
            raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
        return DeviceArray(self.simt_values.T.copy(), self.stream)

    T = property(transpose)

    def split(self, section: int, stream: Any = 0) -> Iterator["DeviceArray"]:
        """Yields views of `section` elements; the last may be shorter."""
        del stream
        if self.ndim != 1:
            raise ValueError("only support 1d array")  # Numba's words
        for part in range(math.ceil(self.size / section)):
            yield self[part * section : (part + 1) * section]


class Interface(dict[str, Any]):
    """The CUDA array interface of a stand-in, by which an object that passes it on is known for
    one.
    """

    def __init__(self, values: HostArray) -> None:
        of_host = values.__array_interface__
        super().__init__(
            {name: of_host[name] for name in ("shape", "typestr", "data", "strides")},
            stream=None,
            version=3,
        )
        self.simt_values = values


class MappedArray(np.ndarray[Any, np.dtype[Any]]):
    """A stand-in for arrays that host and GPU see both: a NumPy array with the transfers of a
    device array.
    """

    def copy_to_host(self, ary: HostArray | None = None, stream: Any = 0) -> HostArray:
        """Returns a copy of the elements, in `ary` if given."""
        return DeviceArray(self.view(np.ndarray)).copy_to_host(ary, stream)

    @property
    def gpu_data(self) -> Memory:
        """Where the elements lie."""
        return Memory(self)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """Address of the first element; 0 for an empty array."""
        return self.gpu_data.device_ctypes_pointer

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copies an array into this one."""
        DeviceArray(self.view(np.ndarray)).copy_to_device(ary, stream)


def host_values(array: Any) -> Any:
    """Returns the elements of a device array as a NumPy array that shares its memory; other
    values as they are.
    """
    if isinstance(array, DeviceArray):
        return array.simt_values
    return array


def is_cuda_array(obj: Any) -> bool:
    """Returns whether an object has a CUDA array interface."""
    return hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """Returns an array with a CUDA array interface as a device array that shares its memory."""
    del sync
    if not is_cuda_array(obj):
        raise TypeError("*obj* doesn't implement the cuda array interface.")  # Numba's words
    return from_cuda_array_interface(obj.__cuda_array_interface__, obj)


def from_cuda_array_interface(desc: Any, owner: Any = None, sync: bool = True) -> DeviceArray:
    """Returns the device array that an interface describes; its memory must be the host's, as
    that of every stand-in is.
    """
    del sync
    values = getattr(desc, "simt_values", getattr(owner, "simt_values", None))
    if values is None:
        raise DeviceError(
            f"the array of shape {tuple(desc['shape'])} has a CUDA array interface that is not of "
            "cuda.to_device, cuda.device_array and the like, whose arrays kernels on cores take: "
            "pass such an array, or one in host memory"
        )
    return DeviceArray(values)


# ---- making them


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0
) -> DeviceArray:
    """Returns a new device array; its content is undefined, and no zeros."""
    return DeviceArray(_new(shape, dtype, strides, order), stream)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """Returns a new device array of an array's shape, dtype and order."""
    return DeviceArray(_like(ary), stream)


def to_device(
    obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None
) -> DeviceArray:
    """Returns a copy of an array or a structured scalar; a device array as it is."""
    if to is None:
        if is_cuda_array(obj):
            return as_cuda_array(obj)
        values = np.asarray(obj)
        _check_one_buffer(values)
        to = device_array_like(values, stream)
    if copy:
        to.copy_to_device(np.asarray(host_values(obj)), stream)
    return to


def pinned_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C"
) -> HostArray:
    """Returns a new NumPy array."""
    return _new(shape, dtype, strides, order)


def pinned_array_like(ary: Any) -> HostArray:
    """Returns a new NumPy array of an array's shape, dtype and order."""
    return _like(ary)


def mapped_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_options: Any
) -> MappedArray:
    """Returns a new array that the program and kernels see; for `mapped_array` and
    `managed_array`.
    """
    return _new(shape, dtype, strides, order).view(MappedArray)


def mapped_array_like(ary: Any, **_options: Any) -> MappedArray:
    """Returns a new array of an array's shape, dtype and order that the program and kernels see."""
    return _like(ary).view(MappedArray)


@contextlib.contextmanager
def pinned(*arrays: HostArray) -> Iterator[None]:
    """A context in which a GPU could copy the arrays without waiting."""
    del arrays
    yield


@contextlib.contextmanager
def mapped(*arrays: HostArray, stream: Any = 0) -> Iterator[Any]:
    """A context with device arrays that share the memory of host arrays: one, or a list of them."""
    views = [DeviceArray(array, stream) for array in arrays]
    if len(views) == 1:
        yield views[0]
    else:
        yield views


def _as_tuple(sizes: Any) -> tuple[int, ...]:
    """Returns sizes along axes as a tuple; a number is that of the only axis."""
    if isinstance(sizes, (int, np.integer)):
        return (int(sizes),)
    return tuple(sizes)


def _new(shape: Any, dtype: Any, strides: Any = None, order: Any = "C") -> HostArray:
    shape = _as_tuple(shape)
    if any(size < 0 for size in shape):
        # NumPy's words; a buffer hides it
        raise ValueError(f"negative dimensions are not allowed, got the shape {shape}")
    dtype = np.dtype(dtype)
    if dtype.hasobject:  # references, of which a copy of the bytes would own none
        raise ArgumentError(
            f"a GPU's memory holds no Python objects, as the dtype {dtype} does; "
            f"pass an array of numbers"
        )
    nbytes = math.prod(shape) * dtype.itemsize
    if strides is not None:
        strides = _as_tuple(strides)
        steps = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
        nbytes = sum(steps) + dtype.itemsize
    memory = np.full(max(nbytes, 0), _UNSET, np.uint8)
    return np.ndarray(shape, dtype, memory.data, strides=strides, order=order)


def _like(ary: Any) -> HostArray:
    values = host_values(ary)
    if not values.size:
        return _new(values.shape, values.dtype)
    return _new(values.shape, values.dtype, np.empty_like(values, subok=False).strides)


def _check_one_buffer(array: HostArray) -> None:
    """Raises ValueError for an array with gaps, which is no single transfer; broadcast arrays
    are compared by their core.
    """
    if not array.size:
        return
    axes: list[Any] = [slice(None)] * array.ndim
    for axis, step in enumerate(array.strides):
        if not step:
            axes[axis] = 0
    core = array[tuple(axes)]
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(
            "Array contains non-contiguous buffer and cannot be transferred as "
            "a single memory region. "
            "Please ensure contiguous buffer with numpy .ascontiguousarray()"  # Numba's words
        )


def _check_compatible(first: HostArray, second: HostArray, *, order: bool = False) -> None:
    """Raises TypeError or ValueError for arrays of which one cannot be copied to the other, as
    Numba does.
    """
    if first.dtype != second.dtype:
        raise TypeError(f"incompatible dtype: {first.dtype} vs. {second.dtype}")
    first, second = first.squeeze(), second.squeeze()
    if first.shape != second.shape:
        raise ValueError(f"incompatible shape: {first.shape} vs. {second.shape}")
    if order and first.size and first.strides != second.strides:
        raise ValueError(f"incompatible strides: {first.strides} vs. {second.strides}")


def _check_basic(item: Any) -> None:
    """Raises TypeError for an index by an array or a list, which device arrays do not have."""
    parts = item
    if not isinstance(item, tuple):
        parts = (item,)
    for part in parts:
        if not isinstance(part, (int, np.integer, slice, type(Ellipsis), str)):
            raise TypeError(
                "a device array takes integers and slices as indices, not "
                f"{class_text(part)}; select the elements in a kernel, or copy "
                "the array to the host: copy_to_host()[...]"
            )


@final
class OfDeviceArrays:
    """A function of arrays, such as a ufunc or a reduction, that takes device arrays, too: it then
    returns one.

    Args:
        function: of arrays in host memory; its methods take device arrays likewise.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._function, name)
        if callable(member):
            return OfDeviceArrays(member)
        return member

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the function alone."""
        return OfDeviceArrays, (self._function,)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the function with the elements of device arrays."""
        in_host = {name: _in_host(value) for name, value in options.items()}
        result = self._function(*map(_in_host, args), **in_host)
        out = options.get("out")
        if isinstance(out, DeviceArray):
            return out
        if not isinstance(result, np.ndarray):
            return result
        if any(isinstance(operand, DeviceArray) for operand in (*args, *options.values())):
            return DeviceArray(result.view(np.ndarray))
        return result


def _in_host(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.simt_values.view(_ufuncs.HostArray)
    return value
