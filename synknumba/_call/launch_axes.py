"""Kernels that index arrays along y or z, launched with one thread there: `i, j = cuda.grid(2); out[i, j] = …` by default.

In such a launch j is 0 in every thread, and all columns but the first stay as they were. Refused when the kernel is decorated,
where its source, with that of the device functions that it calls, shows it with certainty: an index of a parameter is a
position along an axis for which neither block= nor grid= gives a size. Allowed are kernels that ask for the number of threads
there, such as those that loop with a stride of `cuda.blockDim.y`: they may be right in any launch.

With grid="elements" every axis has a size, and the last axis of the array is along x: `i, j = cuda.grid(2); u[i, j] = …` has a
thread for each element of the transposed array, and leaves out elements of any other. Refused if no index of the kernel, and no
comparison with a shape, shows an axis other than the last along x.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from types import CellType, FunctionType, ModuleType
from typing import Any, TypeAlias

from synknumba._call.definition import Definition, atomic_operation, read_code
from synknumba._errors import KernelError, LaunchError
from synknumba._ops.launch import ELEMENTS, LaunchConfig
from synknumba.simt.internals import CudaPath, Scope, read_definition

_EMPTY = CellType()
_POSITIONS, _SIZES = ("threadIdx", "blockIdx"), ("blockDim", "gridDim")
_MEMBERS = (*_POSITIONS, *_SIZES, "grid", "gridsize")
_AXES = {"x": 0, "y": 1, "z": 2}

_EXAMPLES = {
    1: "block=(16, 16), grid=lambda rows: (-(-rows // 16), 4), which has 64 threads along y",
    2: "block=(16, 4, 4), grid=lambda rows: (-(-rows // 16), 8, 8), which has 32 threads along y and along z",
}
_ELEMENTS = {1: "j, i = cuda.grid(2) for u[i, j]", 2: "k, j, i = cuda.grid(3) for u[i, j, k]"}


def check_axes(name: str, function: Callable[..., Any], launch: LaunchConfig) -> None:
    """Raises `LaunchError` if a kernel certainly indexes a parameter by a position that is 0 in every thread of the launch.

    With grid="elements", also if it indexes parameters by the positions in the order of the axes of the grid.
    """
    by_elements = launch.grid == ELEMENTS
    if (launch.axes == len(_AXES) and not by_elements) or "numba.cuda" not in sys.modules:
        return
    if not isinstance(function, FunctionType) or not _names_positions(function, set()):
        return  # most kernels; to find the source takes milliseconds
    if launch.axes < len(_AXES):
        _check_flat(name, function, launch)
    if by_elements:
        _check_order(name, function)


def _check_order(name: str, function: FunctionType) -> None:
    """Raises `LaunchError` if a kernel launched by elements takes the first axis of its arrays along x."""
    source = _read(function, 0, {})  # in a launch without any size, every position is found
    found = None if source is None else source.reversed_indices()
    if found is None:
        return
    node, array, indices = found
    axes = len(indices)
    element = f"{array}[{', '.join(map(ast.unparse, indices))}]"
    right = _ELEMENTS[axes - 1]
    if all(isinstance(index, ast.Name) for index in indices):
        right = f"{', '.join(map(ast.unparse, reversed(indices)))} = cuda.grid({axes}) for {element}"
    raise LaunchError(
        f"{name} ({function.__code__.co_filename}:{node.lineno}) uses the position along x, {ast.unparse(indices[0])}, as the "
        f'first index in {element}, but grid="elements" has one thread per element with the last axis along x: elements are '
        f"left out if the array's axes differ in length. Write {right}."
    )


def _check_flat(name: str, function: FunctionType, launch: LaunchConfig) -> None:
    """Raises `LaunchError` if a kernel certainly indexes a parameter by a position that is 0 in every thread of the launch."""
    source = _read(function, launch.axes, {})
    found = None if source is None else source.flat_index()
    if found is None:
        return
    node, index, axis = found
    given = "without grid= a launch has one thread per row, along x"
    if launch.grid is not None:
        given = f"block={launch.threads!r} and grid={launch.grid!r} give no size along {'xyz'[axis]}"
    block = " and no block=" if launch.grid == ELEMENTS else ""
    raise LaunchError(
        f"{name} ({function.__code__.co_filename}:{node.lineno}) uses {ast.unparse(index)} as an index in {ast.unparse(node)}, "
        f'but it is 0 in every thread: {given}. Pass grid="elements"{block} for one thread per element, with the last axis '
        f"along x: {_ELEMENTS[axis]}. Or pass both sizes with as many axes as the kernel uses, for example {_EXAMPLES[axis]}; "
        "or loop over the further axes in the kernel."
    )


def _names_positions(function: FunctionType, seen: set[FunctionType]) -> bool:
    """Returns whether a kernel, or a device function that it names, has names such as those of positions along y and z."""
    names = function.__code__.co_names
    if not {"grid", "y", "z"}.isdisjoint(names):
        return True
    seen.add(function)
    values = [function.__globals__.get(name) for name in names]
    values += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
    values += [getattr(value, name, None) for value in values if isinstance(value, ModuleType) for name in names]
    grid = getattr(sys.modules["numba.cuda"], "grid", None)
    if any(value is grid for value in values):  # under another name
        return True
    called = (getattr(value, "py_func", None) for value in values)
    return any(isinstance(one, FunctionType) and one not in seen and _names_positions(one, seen) for one in called)


_Read: TypeAlias = "dict[FunctionType, _ZeroIndices | None]"


def _read(function: FunctionType, axes: int, read: _Read) -> "_ZeroIndices | None":
    """Returns what is found in a function's source, once for each function; None without source, and inside itself."""
    if function not in read:
        read[function] = None
        definition = read_code(function.__code__)
        try:
            scope = None if definition is None else Scope(read_definition(function))
        except KernelError:  # raised again by the first call, where it matters
            scope = None
        if definition is not None and scope is not None:
            read[function] = _ZeroIndices(definition, scope, axes, read)
    return read[function]


class _ZeroIndices:
    """Finds what in a kernel's source is 0 in every thread where a launch has sizes along the first `axes` axes only."""

    def __init__(self, definition: Definition, scope: Scope, axes: int, read: _Read) -> None:
        self._axes, self._scope = axes, scope
        self._nodes, self._parents, stores = definition.nodes, definition.parents, definition.stored
        self.order = definition.parameters
        parameters = {*definition.parameters}
        returned = [node.value for node in self._nodes if isinstance(node, ast.Return)]
        self.returned = returned[0] if len(returned) == 1 else None
        self._called: dict[int, _ZeroIndices] = {}  # device functions, by the id of the call
        for node in self._nodes:
            function = getattr(scope.resolve(node.func), "py_func", None) if isinstance(node, ast.Call) else None
            if isinstance(function, FunctionType) and (found := _read(function, axes, read)) is not None:
                self._called[id(node)] = found
        self._parameters = parameters - {*stores}
        self._values = {  # of the variables that are bound once
            name: value for name, value in self._assigned() if stores.count(name) == 1 and name not in parameters
        }
        self._zeros: dict[str, int] = {}  # variables that are 0 in every thread, and the axis
        count = -1
        while len(self._zeros) != count:
            count = len(self._zeros)
            axes_of = {name: self.zero(value) for name, value in self._values.items()}
            self._zeros = {name: axis for name, axis in axes_of.items() if axis is not None}

    def flat_index(self) -> tuple[ast.expr, ast.expr, int] | None:
        """Returns an expression with an index that is 0 in every thread, the index and its axis; None if none certainly is."""
        if self.asks_for_sizes():
            return None
        return next(((node, index, axis) for node, _, index, axis in self.flat()), None)

    def flat(self) -> Iterator[tuple[ast.expr, str, ast.expr, int]]:
        """Yields expressions with an index that is 0 in every thread, the parameter, the index and its axis."""
        for node in self._nodes:
            array, indices = self._indices(node)
            for index in indices:
                axis = self.zero(index)
                if axis is None and (dimensions := self.grid(index)) is not None and dimensions > self._axes:
                    axis = dimensions - 1  # the whole tuple as the index
                if axis is not None:
                    yield node, array, index, axis  # type: ignore[misc]  # nodes with indices are expressions
            if isinstance(node, ast.Call) and (called := self._called.get(id(node))) is not None:
                for _, parameter, index, axis in called.flat():
                    match node.args[called.order.index(parameter) :]:
                        case [ast.Name(id=name), *_] if name in self._parameters:
                            yield node, name, index, axis

    def reversed_indices(self) -> tuple[ast.expr, str, list[ast.expr]] | None:
        """Returns an expression whose indices are the positions along x, y and z in this order, the parameter and the indices.

        None if there is none, or if another expression takes the axes in the other order, so that this one may be a transpose.
        """
        found = None
        if self.asks_for_sizes() or any(map(self._compares_along_last, self._nodes)):
            return None
        for node in self._nodes:
            array, indices = self._all_indices(node)
            along = [self._positions(index) for index in indices]
            if len(indices) > 1 and any(axis for axis in along[0]):
                return None
            if any(max(first) > min(second) for first, second in combinations(filter(None, along), 2)):
                return None
            if len(indices) > 1 and [self.zero(index) for index in indices] == [*range(len(indices))]:
                found = found or (node, array, indices)
        return found  # type: ignore[return-value]  # nodes with indices are expressions

    def _positions(self, index: ast.expr) -> set[int]:
        """Returns the axes of the positions in an index."""
        axes = (self.zero(part) for part in ast.walk(index) if isinstance(part, ast.expr))
        return {axis for axis in axes if axis is not None}

    def _all_indices(self, node: ast.AST) -> tuple[str, list[ast.expr]]:
        """Returns what `_indices` does, with `u[i][j]` and `u[cuda.grid(2)]` as `u[i, j]`."""
        parent = self._parents.get(id(node))
        if isinstance(parent, ast.Subscript) and parent.value is node:
            return "", []  # a part of that
        array, indices = self._indices(node)
        inner = node.value if isinstance(node, ast.Subscript) else None
        while isinstance(inner, ast.Subscript):
            indices = [*(inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]), *indices]
            inner = inner.value
        if len(indices) == 1 and (dimensions := self.grid(indices[0])) is not None:
            indices = [_item(indices[0], axis) for axis in range(dimensions)]
        return array, indices if array else []

    def _compares_along_last(self, node: ast.AST) -> bool:
        """Returns whether a node compares a position with the length of another axis, as in `i < u.shape[1]` with i along x."""
        match node:
            case ast.Compare(left=left, comparators=[ast.Subscript(value=ast.Attribute(attr="shape"), slice=axis)]):
                position = self.zero(left)
                return position is not None and ast.unparse(axis) != str(position)
        return False

    def asks_for_sizes(self) -> bool:
        return any(map(self._asks_for_size, self._nodes)) or any(one.asks_for_sizes() for one in self._called.values())

    def _indices(self, node: ast.AST) -> tuple[str, list[ast.expr]]:
        """Returns the parameter that a node indexes, and the indices; none for other nodes."""
        match node:
            case ast.Subscript(value=array, slice=index):
                while isinstance(array, ast.Subscript):
                    array = array.value
            case ast.Call(args=[array, index, *_]) if atomic_operation(node) is not None:
                pass
            case _:
                return "", []
        if not (isinstance(array, ast.Name) and array.id in self._parameters):
            return "", []
        return array.id, index.elts if isinstance(index, ast.Tuple) else [index]

    def zero(self, node: ast.expr) -> int | None:
        """Returns the axis of a position that is 0 in every thread of such a launch; None for any other expression."""
        match node:
            case ast.Name(id=name):
                return self._zeros.get(name)
            case ast.Attribute(value=position, attr="x" | "y" | "z" as letter) if self._member(position) in _POSITIONS:
                return _AXES[letter] if _AXES[letter] >= self._axes else None
            case ast.Subscript(value=several, slice=ast.Constant(value=int(axis))):
                return self.zero_part(several, axis)
            case ast.Call() if (result := self._result(node)) is not None:
                return result[0].zero(result[1])
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                first = self.zero(left)
                return self.zero(right) if first is None else first
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                return None if self.zero(right) is None else self.zero(left)
        return None

    def zero_part(self, node: ast.expr, number: int) -> int | None:
        """Returns the axis of a part of a tuple, as `zero` does."""
        if (dimensions := self.grid(node)) is not None:
            return number if self._axes <= number < dimensions else None
        match node:
            case ast.Name(id=name) if name in self._values and not isinstance(self._values[name], ast.Name):
                return self.zero_part(self._values[name], number)
            case ast.Tuple(elts=parts) if 0 <= number < len(parts):
                return self.zero(parts[number])
            case ast.Call() if (result := self._result(node)) is not None:
                return result[0].zero_part(result[1], number)
        return None

    def grid(self, node: ast.expr) -> int | None:
        """Returns the number of axes of `cuda.grid(2)`, `cuda.grid(3)`, or what is such a tuple: a variable, a result."""
        match node:
            case ast.Name(id=name) if name in self._values and not isinstance(self._values[name], ast.Name):
                return self.grid(self._values[name])
            case ast.Call(func=function, args=[count], keywords=[]) if self._member(function) == "grid":
                dimensions = self._number(count)
                return dimensions if dimensions in {2, 3} else None
            case ast.Call() if (result := self._result(node)) is not None:
                return result[0].grid(result[1])
        return None

    def _number(self, node: ast.expr) -> int | None:
        """Returns the number that an expression is: a literal, or a name of one."""
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in self._values and not isinstance(self._values[name], ast.Name):
                return self._number(self._values[name])
            case ast.Name() | ast.Attribute() if isinstance(number := self._scope.resolve(node), int):
                return number
        return None

    def _asks_for_size(self, node: ast.AST) -> bool:
        """Returns whether a node is a number of threads along y or z, other than a factor as in `blockIdx.y * blockDim.y`."""
        match node:
            case ast.Attribute(value=size, attr="y" | "z") if self._member(size) in _SIZES:
                parent = self._parents.get(id(node))
                return not (isinstance(parent, ast.BinOp) and self.zero(parent) is not None)
            case ast.Call(func=function, args=args) if self._member(function) == "gridsize":
                return not (len(args) == 1 and isinstance(args[0], ast.Constant) and args[0].value == 1)
            case ast.Name(ctx=ast.Load()) if self._member(node) in _SIZES:
                return not isinstance(self._parents.get(id(node)), ast.Attribute)  # under another name
        return False

    def _assigned(self) -> Iterator[tuple[str, ast.expr]]:
        """Yields variables and their values, of a tuple's parts each on its own."""
        for node in self._nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    yield name, value
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    parts = value.elts if isinstance(value, ast.Tuple) else [_item(value, axis) for axis in range(len(targets))]
                    for target, part in zip(targets, parts, strict=False):
                        if isinstance(target, ast.Name):
                            yield target.id, part

    def _result(self, node: ast.Call) -> "tuple[_ZeroIndices, ast.expr] | None":
        """Returns a device function that is called, and the only expression that it returns; None for other calls."""
        called = self._called.get(id(node))
        return None if called is None or called.returned is None else (called, called.returned)

    def _member(self, node: ast.expr) -> str | None:
        """Returns the name in `numba.cuda` of what an expression names: one of `_MEMBERS`, else None."""
        found = self._scope.resolve(node)
        return found.path if isinstance(found, CudaPath) and found.path in _MEMBERS else None


def _item(value: ast.expr, axis: int) -> ast.expr:
    return ast.Subscript(value, ast.Constant(axis), ast.Load())
