"""The format of checkpoints: a tree as named arrays and a text, and back (pure).

    {"params": {"w": [array, array]}, "rate": 0.1}
        arrays   params.w.0, params.w.1                        tensors of a safetensors file
        text     {"version": 1, "tree": {"dict": [["params", …], ["rate", 0.1]]}}      its metadata, under `METADATA_KEY`

The name of an array is its path: keys, positions and fields, joined by dots; `value` if the tree is
one array. Names are unambiguous. In a string key "%", "." and a "[" at the beginning are written as
"%25", "%2E" and "%5B", and the empty key as "%". Other keys are written in brackets: "[0]", "[(1,
'a')]".

In the text, values that JSON has are themselves, and everything else is an object with one entry
that says what it is, besides the dtype of complex arrays: safetensors has no complex128, so a
complex array is stored with a last axis of length 2, for its real and imaginary parts.
"""  # noqa: E501

import collections
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._errors import ArgumentError, DataError
from synknumba._ops.tree import is_nested
from synknumba._types import Array, Shape

METADATA_KEY = "synknumba"
VERSION = 1
LONE_ARRAY = "value"  # name of an array that is the whole tree
DTYPES: Mapping[str, str] = {  # of safetensors, and NumPy's
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_OTHER_DTYPES = {  # by kind, what to save in their place
    "f": "value.astype(np.float64)",
    "c": "value.astype(np.complex128)",
    "M": "value.view(np.int64)",
    "m": "value.view(np.int64)",
    "U": "a list of strings, value.tolist()",
    "S": "value.view(np.uint8)",
    "O": "an array of numbers, or a list",
}
_SMALL_INT = 1 << 63  # Python neither writes nor reads ints of more than 4300 decimal digits
# safetensors' own entry; surrogates, which UTF-8 has not
_ESCAPED = re.compile(r"^\[|^_(?=_metadata__\Z)|[%.\ud800-\udfff]")

Plain: TypeAlias = bool | int | float | complex | str | None
Node: TypeAlias = Any  # what `json` reads and writes


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """An array or NumPy scalar of a file: its name there, and its dtype and shape in the tree."""

    name: str
    dtype: Any
    shape: Shape
    is_scalar: bool = False


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """A tree, taken apart.

    Attributes:
        text: the tree, with the name of each array.
        arrays: what has the dtype and shape of each array, by name.
    """

    text: str
    arrays: dict[str, Any]


@final
@dataclass(slots=True)
class _Encoder:
    kinds: tuple[type, ...]  # of arrays, besides NumPy's
    arrays: dict[str, Any] = field(default_factory=dict)

    def node(self, value: Any, name: str) -> Node:
        match value:
            case dict() if is_nested(value):
                pairs = []
                for key, child in value.items():
                    pairs.append([_key(key, name), self.node(child, child_name(name, key))])
                return {"dict": pairs}
            case list() | tuple():
                children = [*map(self.node, value, item_names(name, value))]
                fields = getattr(value, "_fields", None)
                if fields is not None:
                    return {"namedtuple": [type(value).__name__, list(fields), children]}
                return {"list" if isinstance(value, list) else "tuple": children}
            case np.ndarray() | np.generic():
                return self._array(value, name)
        if isinstance(value, self.kinds):
            return self._array(value, name)
        if is_plain(value):
            return _plain(value)
        raise unsupported(value, name)

    def _array(self, value: Any, name: str) -> Node:
        array_name = name or LONE_ARRAY
        if isinstance(value, np.ma.MaskedArray):
            raise ArgumentError(
                f"save: {array_name} is a masked array; save value.filled(…), and the "
                f"mask as an array of its own"
            )
        self.arrays[array_name] = value
        dtype = check_dtype(value.dtype, array_name)
        node = {"scalar" if isinstance(value, np.generic) else "array": array_name}
        if dtype.name in _COMPLEX:
            node["dtype"] = dtype.name
        return node


def encode(tree: Any, kinds: tuple[type, ...] = ()) -> Encoded:
    """Takes apart a tree of arrays and plain values; `kinds` are classes of arrays besides NumPy's,
    with dtype and shape.

    >>> encode({"w": [np.zeros(3)], "k": 2}).text
    '{"version":1,"tree":{"dict":[["w",{"list":[{"array":"w.0"}]}],["k",2]]}}'

    Raises:
        ArgumentError: the tree has a value or a key that a checkpoint does not hold.
        RecursionError: it is nested too deeply, or contains itself.
        DataError: an array has a dtype that it does not hold.
    """
    encoder = _Encoder(kinds)
    content = {"version": VERSION, "tree": encoder.node(tree, "")}
    return Encoded(json.dumps(content, allow_nan=False, separators=(",", ":")), encoder.arrays)


def unsupported(value: object, name: str) -> ArgumentError:
    """Returns the error for a value that checkpoints do not hold."""
    kind = type(value)
    type_name = kind.__qualname__
    if kind.__module__ != "builtins":
        type_name = f"{kind.__module__}.{type_name}"
    state = getattr(kind, "state", None)
    way_out = "Convert it, as by np.asarray(…), list(…) or int(…)"
    if kind.__module__.startswith("synknumba.") and state is not None:
        way_out = f"Save its state, {name or 'step'}.state"
        if not isinstance(state, property):
            way_out += "()"
    return ArgumentError(
        f"{name or 'the tree'} has type {type_name}; checkpoints hold variables, Data, NumPy "
        f"arrays, numbers, strings, bools and None, in dicts, lists, tuples and named "
        f"tuples. {way_out}"
    )


def is_plain(value: object) -> bool:
    """Returns whether a value is stored in the text. Subclasses are not: they would come back as
    another type.
    """
    return value is None or type(value) in (bool, int, float, complex, str)


def item_names(parent: str, items: Sequence[Any]) -> list[str]:
    """Returns the names of the items of a list, tuple or named tuple, from that of the list.

    >>> item_names("w", [1, 2]), item_names("", (3,))
    (['w.0', 'w.1'], ['0'])
    """
    fields = getattr(items, "_fields", None)
    if fields is not None:
        return [child_name(parent, field) for field in fields]
    return [_below(parent, str(position)) for position in range(len(items))]


def child_name(parent: str, key: Any) -> str:
    """Returns the name of an entry of a dict, or of a field, from that of the dict.

    >>> child_name("params", "w"), child_name("", "a.b"), child_name("a", 0), child_name("a", "0")
    ('params.w', 'a%2Eb', 'a.[0]', 'a.0')
    """
    step = f"[{key!a}]"
    if isinstance(key, str):
        step = _ESCAPED.sub(_escape, key) or "%"
    return _below(parent, step)


def _below(parent: str, step: str) -> str:
    return f"{parent}.{step}" if parent else step


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _key(key: Any, name: str) -> Node:
    if isinstance(key, tuple) and type(key) is tuple:
        return {"tuple": [_key(part, name) for part in key]}
    if is_plain(key) and not isinstance(key, complex) and key == key:  # noqa: PLR0124  # two NaNs may be keys of one dict
        return _plain(key)
    raise ArgumentError(
        f"save: {name or 'the tree'} has the key {key!r}; keys are strings, ints, floats, bools, "
        "None, or tuples of these, and no NaN. Use str(key)"
    )


def _plain(value: Any) -> Node:
    match value:
        case None | bool() | str():
            return value
        case int() if abs(value) >= _SMALL_INT:
            return {"int": hex(value)}
        case float() if not math.isfinite(value):
            return {"float": repr(value)}
        case int() | float():
            return value
        case _:
            return {"complex": [_plain(value.real), _plain(value.imag)]}


def check_dtype(dtype: "np.dtype[Any]", name: str) -> "np.dtype[Any]":
    """Returns a dtype in native byte order; raises `DataError` if files cannot hold it."""
    native: np.dtype[Any] = dtype.newbyteorder("=")
    if native.name in DTYPES.values() or native.name in _COMPLEX:
        return native
    way_out = _OTHER_DTYPES.get(
        dtype.kind, "it with a dtype of NumPy's own, as by value.view(np.uint8)"
    )
    if dtype.names is not None:
        way_out = "a dict of its fields, {name: value[name] for name in value.dtype.names}"
    raise DataError(
        f"save: {name} has dtype {dtype}, which safetensors files do not have; save {way_out}"
    )


def as_tensor(array: Array) -> Array:
    """Returns an array as it is stored: contiguous, in native byte order, complex numbers as
    pairs on a last axis.
    """
    plain = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    part = _COMPLEX.get(plain.dtype.name)
    if part is None:
        return plain
    return plain.reshape(-1).view(part).reshape(*plain.shape, 2)


def from_tensor(tensor: Array, stored: Stored) -> Any:
    """Returns the array, or the NumPy scalar, that is stored as a tensor."""
    array = tensor.reshape(-1).view(stored.dtype).reshape(stored.shape)
    return array[()] if stored.is_scalar else array


def decode(text: str, tensors: Mapping[str, tuple[str, Iterable[int]]]) -> Any:
    """Returns the tree of a text of `encode`, with a `Stored` for each array; `tensors` are dtype
    and shape by name.

    Raises:
        ValueError: the text is damaged, or does not fit the tensors.
    """
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(
                f"its version is {content['version']!r}, and this synknumba reads "
                f"version {VERSION}; update it"
            )
        return _decoded(content["tree"], dict(tensors))
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its metadata are damaged ({type(error).__name__}: {error})") from error


def _decoded(node: Node, tensors: dict[str, tuple[str, Iterable[int]]]) -> Any:
    match node:
        case {"dict": pairs}:
            return {_decoded_key(key): _decoded(child, tensors) for key, child in pairs}
        case {"list": children}:
            return [_decoded(child, tensors) for child in children]
        case {"tuple": children}:
            return tuple(_decoded(child, tensors) for child in children)
        case {"namedtuple": [name, fields, children]}:
            return _named(name, tuple(fields))(*(_decoded(child, tensors) for child in children))
        case {"array": str(name)} | {"scalar": str(name)}:
            return _stored(name, node, *tensors.pop(name))  # one value each, as `encode` has it
        case _:
            return _decoded_plain(node)


def _stored(name: str, node: Node, code: str, lengths: Iterable[int]) -> Stored:
    shape, dtype = tuple(lengths), node.get("dtype", DTYPES[code])
    if "dtype" in node:
        if shape[-1:] != (2,) or _COMPLEX[dtype] != DTYPES[code]:
            raise ValueError(f"{name} should be {dtype}, and is {code} {shape}")
        shape = shape[:-1]
    if "scalar" in node and shape:
        raise ValueError(f"{name} should be a number, and has shape {shape}")
    return Stored(name, np.dtype(dtype), shape, "scalar" in node)


def _decoded_key(node: Node) -> Any:
    match node:
        case {"tuple": parts}:
            return tuple(map(_decoded_key, parts))
        case _:
            return _decoded_plain(node)


def _decoded_plain(node: Node) -> Plain:
    match node:
        case None | bool() | int() | float() | str():
            return node
        case {"int": text}:
            return int(text, 16)
        case {"float": text}:
            return float(text)
        case {"complex": [real, imag]}:
            return complex(_decoded_plain(real), _decoded_plain(imag))  # type: ignore[arg-type]  # else a TypeError
        case _:
            raise ValueError("its metadata are damaged")


@lru_cache(64)
def _named(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)
