"""Arrays of other libraries as arguments: views of their memory, by `__array_interface__` or
DLPack.

A view shares the memory, so what a kernel writes is in the tensor. The first version of DLPack has
no flag for read-only memory, and NumPy takes all of it as read-only; if `__array__` gives the same
memory to write to, as PyTorch's does, that is used.
"""

import operator
from typing import Any, Final

import numpy as np

from synknumba._errors import ArgumentError

_OF_NUMPY: Final = (np.ndarray, np.generic, int, float, complex, str, bytes, type(None))
# DLDeviceType: kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged
_ON_THE_HOST: Final = frozenset({1, 3, 11, 13})

# kDLCUDA, OpenCL, Vulkan, Metal, ROCM, OneAPI, WebGPU
_ON_GPUS: Final = frozenset({2, 4, 7, 8, 10, 14, 15})


def as_arrays(arg: Any, what: str) -> Any:
    """Returns a view of an array of another library, those of a tuple's parts, or any other
    argument as it is.

    Args:
        arg: the argument.
        what: how errors begin, such as "kernel(): x".

    Raises:
        ArgumentError: the array is in a GPU's memory, or its library does not share it.
    """
    if isinstance(arg, _OF_NUMPY):
        return arg
    if isinstance(arg, tuple):
        parts = [as_arrays(part, what) for part in arg]
        if all(map(operator.is_, parts, arg)):
            return arg
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    if _has(arg, "__array_interface__"):
        try:
            return np.asarray(arg)
        except Exception as error:
            raise ArgumentError(
                f"{what} is a {_name(arg)} whose __array_interface__ NumPy cannot read "
                f"({error}); pass a NumPy array"
            ) from error
    if not _has(arg, "__dlpack_device__"):
        return arg
    device = _device(arg, what)
    if device not in _ON_THE_HOST:
        where = "a GPU's memory" if device in _ON_GPUS else "memory of an unknown kind"
        raise ArgumentError(
            f"{what} is a {_name(arg)} in {where} (DLPack device {device}); pass a copy on the "
            "host, or run the kernel on its device"
        )
    try:
        view = np.from_dlpack(arg)
    except Exception as error:
        raise ArgumentError(
            f"{what} is a {_name(arg)} whose memory its library does not share "
            f"({error}); pass a NumPy array"
        ) from error
    if view.flags.writeable:
        return view
    return _writable(arg, view)


def _device(arg: Any, what: str) -> int:
    """Returns the DLDeviceType of an array."""
    try:
        device = arg.__dlpack_device__()
    except Exception as error:
        raise ArgumentError(
            f"{what} is a {_name(arg)} whose __dlpack_device__() raises {type(error).__name__}: "
            f"{error}; pass a NumPy array"
        ) from error
    try:
        kind, _ = device
        return int(kind)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{what} is a {_name(arg)} whose __dlpack_device__() gives {device!r}, not a device's "
            "type and number; pass a NumPy array"
        ) from None


def _has(arg: Any, name: str) -> bool:
    """Returns whether the class has the member; an instance may raise anything when it is asked."""
    return hasattr(type(arg), name) or name in getattr(arg, "__dict__", ())


def _writable(arg: Any, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array that the library itself makes of the same memory, if that may be written
    to; else the view.
    """
    try:
        array = np.asarray(arg)
    except Exception:  # noqa: BLE001  # the view is right, only read-only
        return view
    if array.flags.writeable and _layout(array) == _layout(view):
        return array
    return view


def _layout(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def _name(arg: Any) -> str:
    return f"{type(arg).__module__.partition('.')[0]}.{type(arg).__qualname__}"
