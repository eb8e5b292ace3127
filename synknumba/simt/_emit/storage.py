"""Storage of a launch: slot arrays, masks, local and shared arrays.

For the threads of a block it is on the stack: no allocation, and LLVM knows that nothing aliases
it. For the threads of a whole grid, whose number is unbounded, it is on the heap.
"""

import ast
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from synknumba.simt._analysis.namespace import ARRAY_ATTRIBUTES
from synknumba.simt._analysis.team import BLOCK_NUMBER, BLOCKS, Team
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.slots import MARGIN, is_number, itemsize, slots_of
from synknumba.simt._library.words import MAX_BLOCK
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._source.syntax import (
    copied,
    expression,
    nodes_of,
    parts_of,
    place,
    read_names,
    statements,
    store,
    walk,
)

# Beyond this, arrays go to the heap: a stack has 8 MiB, and other functions need some of it.
STACK_BYTES = 1 << 20

SMEM = "_k_smem"  # parameter of the launch function: bytes of dynamic shared memory per block
_DYNAMIC = "_k_dynamic"


@dataclass(slots=True)
class LaunchStorage:
    """Emits the statements that allocate a launch's memory.

    Attributes:
        team: the threads that run in step.
        namespace: globals of the generated function; receives dtypes and slot accessors.
        at: node that gives the statements their line.
        reserve: allocations, for the top of a launch.
        release: statements for the end of a launch, which keep heap arrays alive until there.
        recompute: for a grid, assignments of the block's shared arrays at the start of a thread's
            iteration, by name.
    """

    team: Team
    namespace: MutableMapping[str, Any]
    at: ast.AST
    reserve: list[ast.stmt] = field(default_factory=list)
    release: list[ast.stmt] = field(default_factory=list)
    recompute: dict[str, ast.Assign] = field(default_factory=dict)
    _stack: int = 0

    def slots(self, name: str, kind: types.Type | None, *, padded: bool = False) -> None:
        """Reserves the slot array `name__s`, with one element for each thread of the team.

        Args:
            name: the variable.
            kind: its type; None if Numba has found it unused.
            padded: whether to add `MARGIN` elements at either end, for shuffles.
        """
        element = f"_k_dtype_{name}"
        dtype = self.namespace[element] = slot_dtype(kind)
        if not is_plain(kind):
            self._array(f"{name}__b", (itemsize(kind),), element, itemsize(kind))
            self.namespace[f"_k_slots_{name}"] = slots_of(kind)
            self.reserve += statements(f"{name}__s = _k_slots_{name}({name}__b)", self.at)
        elif padded:
            text = (
                f"{name}__p = _k_stack_array({MAX_BLOCK + 2 * MARGIN}, "
                f"{element})\n{name}__s = _k_inner({name}__p)"
            )
            self.reserve += statements(text, self.at)
        else:
            self._array(f"{name}__s", (), element, dtype.itemsize)

    def local_array(self, name: str, call: ast.Call) -> None:
        """Reserves `name__s`, one local array per thread of the team, with the shape and dtype
        of a `_k_stack_array` call.
        """
        shape, dtype = call.args
        sizes = np.atleast_1d(ast.literal_eval(shape)).tolist()
        self._array(f"{name}__s", tuple(sizes), ast.unparse(dtype), 16 * int(np.prod(sizes)))

    def flags(self, name: str) -> None:
        """Reserves an array of int8 for the threads of the team, such as masks."""
        self._array(name, (), "_k_int8", 1)

    def shared(self, arrays: dict[str, SharedArray]) -> None:
        """Reserves the shared arrays of the block, or of every block of the grid."""
        if any(array.is_dynamic for array in arrays.values()):
            dims = SMEM
            if self.team.grid:
                dims = f"({BLOCKS}, {SMEM})"
            self._heap(_DYNAMIC, dims, "_k_uint8")
        for name, array in arrays.items():
            dtype = ast.unparse(array.dtype)
            if self.team.grid:
                self._shared_of_grid(name, array, dtype)
            elif array.is_dynamic:
                self.reserve += statements(f"{name} = _k_shared_view({_DYNAMIC}, {dtype})", self.at)
            else:
                self.reserve += statements(
                    f"{name} = _k_stack_array({array.shape}, {dtype})", self.at
                )

    def _shared_of_grid(self, name: str, array: SharedArray, dtype: str) -> None:
        if array.is_dynamic:
            text = f"_k_shared_view(_k_slot_get({_DYNAMIC}, {BLOCK_NUMBER}), {dtype})"
        else:
            self._heap(f"{name}__s", f"({BLOCKS}, {', '.join(map(str, array.shape))})", dtype)
            text = f"_k_slot_get({name}__s, {BLOCK_NUMBER})"
        self.recompute[name] = place(ast.Assign([store(name)], expression(text, self.at)), self.at)

    def _array(self, name: str, dims: tuple[int, ...], dtype: str, element_bytes: int) -> None:
        """Reserves an array of shape `(threads, *dims)`: on the stack, or on the heap for a grid
        or a full stack.
        """
        self._stack += MAX_BLOCK * element_bytes
        threads = self.team.size if self.team.grid else str(MAX_BLOCK)
        shape = ", ".join([threads, *map(str, dims)])
        if dims:
            shape = f"({shape})"
        if self.team.grid or self._stack > STACK_BYTES:
            self._heap(name, shape, dtype)
        else:
            if name.endswith("__b"):
                shape = str(MAX_BLOCK * dims[0])
            self.reserve += statements(f"{name} = _k_stack_array({shape}, {dtype})", self.at)

    def _heap(self, name: str, dims: str, dtype: str) -> None:
        self.reserve += statements(
            f"{name}__h = _k_empty({dims}, {dtype})\n{name} = _k_borrowed({name}__h)", self.at
        )
        self.release += statements(f"_k_keep({name}__h)", self.at)


def is_plain(kind: types.Type | None) -> bool:
    """Returns whether a NumPy array can hold a variable of this type: a number, or one that Numba
    found unused.
    """
    return kind is None or is_number(kind)


def slot_dtype(kind: types.Type | None) -> np.dtype[Any]:
    """Returns the dtype that stores a number of the type; bytes for other types, and for None, a
    variable that Numba found unused.
    """
    if kind is None:
        return np.dtype(np.int8)
    if not is_number(kind):
        return np.dtype(np.uint8)
    if isinstance(kind, types.Boolean):
        return np.dtype(np.bool_)
    return np.dtype(as_dtype(kind))


def local_array_calls(body: list[ast.stmt], names: set[str]) -> dict[str, ast.Call]:
    """Returns copies of the calls that create local arrays, by variable."""
    calls: dict[str, ast.Call] = {}
    for node in walk(body):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if name in names:
                calls[name] = copied(call)
    return calls


def escaping(analysis: Analysis, local_arrays: set[str]) -> set[str]:
    """Returns the local arrays that may have aliases or views, which might outlive the array's
    own variable.
    """
    calls = local_array_calls(analysis.body, local_arrays)
    inside: set[int] = set()
    for node in walk(analysis.body):
        match node:
            case ast.Attribute(array, attr) if attr in ARRAY_ATTRIBUTES:
                inside.add(id(array))
            case ast.Subscript(array, _, ast.Store()):
                inside.add(id(array))
            case ast.Subscript(array) if _is_element(node, calls, analysis):
                inside.add(id(array))
    outside = (node for node in nodes_of(ast.Name, analysis.body) if id(node) not in inside)
    return read_names(outside) & calls.keys()


def _is_element(node: ast.Subscript, calls: dict[str, ast.Call], analysis: Analysis) -> bool:
    """Returns whether the subscript is a number in a local array, as opposed to a view or a
    record.
    """
    match node.value:
        case ast.Name(name) if name in calls:
            shape, dtype = calls[name].args
        case _:
            return False
    index = parts_of(node.slice)
    if _is_record(dtype, analysis) or len(index) != len(parts_of(shape)):
        return False
    return not any(isinstance(part, ast.Slice) for part in index)


def _is_record(dtype: ast.expr, analysis: Analysis) -> bool:
    kind: Any = None
    match dtype:
        case ast.Name(name):
            kind = analysis.namespace.get(name)
        case ast.Attribute(ast.Name(array), "dtype"):
            kind = getattr(analysis.types.params.get(array), "dtype", None)
    if isinstance(kind, np.dtype):
        return kind.fields is not None
    return isinstance(kind, types.Record)
