"""Which rows the elements that a kernel uses have, as its source shows them.

    if own.start <= i < own.stop - 1 and j < u.shape[1]:         i: own.start … own.stop − 2, by position along y
        v[i, j] = u[i + 1, j]                                    elements of v at i, and of u at i + 1

An index is a position of the thread in the grid, or runs over a range in a loop. Its bounds are the comparisons around an
element: with lengths of parameters, with rows of a rank's own (`own.start`, `own.stop`), and with ints. Whatever is not
understood makes an element uncertain: another condition, a second comparison of the index, a `return` in between.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import FunctionType
from typing import Literal, TypeAlias, final

from synknumba._call.definition import Definition, atomic_operation, read_code
from synknumba._errors import KernelError
from synknumba._ops.launch import Dim3
from synknumba._types import Shape, Span
from synknumba.simt.internals import CudaPath, Scope, read_definition

Shapes: TypeAlias = Mapping[str, Shape]
Spans: TypeAlias = Mapping[str, Span]

_AXES = {"x": 0, "y": 1, "z": 2}
_LEAVING = ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Assert
_NESTED = ast.FunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_FLIPPED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_NEGATED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}

_Atom: TypeAlias = "tuple[ast.expr, type[ast.cmpop], ast.expr] | None"  # a comparison; None for any other condition


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """A number that is known in a call.

    Attributes:
        kind: an int; the length of an array along an axis, or its `size`; the first of a rank's own rows, or that behind them.
        name: the parameter.
        axis: of a length.
        offset: what is added.
    """

    kind: Literal["int", "length", "size", "start", "stop"]
    name: str = ""
    axis: int = 0
    offset: int = 0

    def plus(self, number: int) -> "Bound":
        """Returns this with a number added."""
        return replace(self, offset=self.offset + number)

    def value(self, shapes: Shapes, spans: Spans) -> int | None:
        """Returns the number, given shapes of arrays and spans of own rows; None if it is not known."""
        shape, span = shapes.get(self.name), spans.get(self.name)
        match self.kind:
            case "int":
                return self.offset
            case "start" | "stop":
                return None if span is None else getattr(span, self.kind) + self.offset
            case "size" if shape is not None and len(shape) > 1:
                return None
        return None if shape is None or len(shape) <= self.axis else shape[self.axis] + self.offset

    def __str__(self) -> str:
        """Returns the source."""
        of = {"int": "", "length": f"{self.name}.shape[{self.axis}]"}.get(self.kind, f"{self.name}.{self.kind}")
        sign = f"{'-' if self.offset < 0 else '+'} {abs(self.offset)}"
        return str(self.offset) if not of else f"{of} {sign}" if self.offset else of


@final
@dataclass(frozen=True, slots=True)
class Index:
    """The values of an index at some place.

    Attributes:
        name: of the variable.
        lowers: bounds, the largest of which is the first value.
        uppers: bounds, the least of which is behind the last value.
        position: the axis of the grid along which the index is a position, and its value in the first thread; None in a loop.
        is_sure: whether the threads of a launch have every value between the bounds.
    """

    name: str
    lowers: tuple[Bound, ...]
    uppers: tuple[Bound, ...]
    position: tuple[int, Bound] | None = None
    is_sure: bool = True

    def values(self, shapes: Shapes, spans: Spans, threads: Dim3) -> range | None:
        """Returns the values in a launch of so many threads; None if they are not known."""
        low, high = ([one.value(shapes, spans) for one in bounds] for bounds in (self.lowers, self.uppers))
        if self.position is not None:
            axis, begin = self.position
            first = begin.value(shapes, spans)
            low.append(first)
            high.append(None if first is None else first + threads[axis])
        lows, highs = ([one for one in bounds if one is not None] for bounds in (low, high))
        if len(lows) < len(low) or len(highs) < len(high) or not highs:
            return None
        return range(max([0, *lows]), min(highs))


@final
@dataclass(frozen=True, slots=True)
class Element:
    """An element that a kernel uses, with its first index.

    Attributes:
        array: the parameter.
        index: values of the variable in the index.
        offset: what is added to them.
        others: values of other variables where the element is used.
        place: file and line.
        statement: number of the statement.
        is_stored: whether the kernel stores to it.
        is_sure: whether it is certainly used for all these values.
    """

    array: str
    index: Index
    offset: int
    others: tuple[Index, ...]
    place: str
    statement: int
    is_stored: bool
    is_sure: bool

    def rows(self, shapes: Shapes, spans: Spans, threads: Dim3) -> range | None:
        """Returns the rows that are certainly used in a launch, first to last; None if they are not known."""
        if not self.is_sure or not self.index.uppers:
            return None
        own, *others = (one.values(shapes, spans, threads) for one in (self.index, *self.others))
        if own is None or not all(others):
            return None
        return range(own.start + self.offset, own.stop + self.offset)

    @property
    def text(self) -> str:
        """The element as in the source, without further indices."""
        sign = f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}" if self.offset else ""
        return f"{self.array}[{self.index.name}{sign}]"


def read_elements(function: Callable[..., object]) -> "Reading | None":
    """Returns what a kernel's source shows; None without source, or of what does not compile."""
    definition = read_code(function.__code__) if isinstance(function, FunctionType) else None
    if definition is None or not isinstance(function, FunctionType) or "numba.cuda" not in sys.modules:
        return None
    try:
        return Reading(definition, Scope(read_definition(function)), function.__code__.co_filename)
    except KernelError:  # raised again by the first call, where it matters
        return None


@final
class Reading:
    """A kernel's source, with its indices.

    Attributes:
        parameters: names of those that are bound once.
        values: expressions of the variables that are bound once.
    """

    def __init__(self, definition: Definition, scope: Scope, file: str) -> None:
        self._definition, self._scope, self._file = definition, scope, file
        self.parameters = {*definition.parameters} - {*definition.stored}
        self.values: dict[str, ast.expr] = {}
        self._lengths: dict[str, Bound] = {}  # names of `rows, columns = u.shape`
        self._positions: dict[str, tuple[int, Bound]] = {}  # names of positions, with axis and value in the first thread
        self._loops: dict[str, ast.For] = {}  # names that run over a range
        self._indices: dict[str, Index] = {}  # without the comparisons around elements
        for node in definition.nodes:
            self._note(node)
        positions = ((name, self._position(value)) for name, value in self.values.items())
        self._positions |= {name: found for name, found in positions if found is not None}
        for name in (*self._positions, *self._loops):
            self._indices[name] = self._free(name)
        body = definition.tree.body
        leaving = (at for at, one in enumerate(body) if _early_return(one) is None and any(map(_leaves, ast.walk(one))))
        self._end = next(leaving, len(body))  # the first statement that may end the kernel, or break off a loop

    def _note(self, node: ast.AST) -> None:
        """Notes what a statement binds, of names that are bound once."""
        once = self._definition.stored.count
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if once(name) == 1:
                self.values[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Attribute(value=ast.Name(id=array), attr="shape")):
                lengths = {
                    one.id: Bound("length", array, axis) for axis, one in enumerate(targets) if isinstance(one, ast.Name)
                }
                self._lengths |= {name: length for name, length in lengths.items() if once(name) == 1}
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call(func=function)) if self._path(function) == "grid":
                names = [(axis, one.id) for axis, one in enumerate(targets) if isinstance(one, ast.Name)]
                self._positions |= {name: (axis, Bound("int")) for axis, name in names if once(name) == 1}
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))) if once(name) == 1:
                self._loops[name] = node

    # ---- expressions

    def _path(self, node: ast.expr) -> str | None:
        found = self._scope.resolve(node)
        return found.path if isinstance(found, CudaPath) else None

    def _place(self, node: ast.expr) -> tuple[str, int] | None:
        """Returns the name and axis of a part of `threadIdx`, `blockIdx` or `blockDim`."""
        if isinstance(node, ast.Attribute) and node.attr in _AXES and (path := self._path(node.value)) is not None:
            return path, _AXES[node.attr]
        return None

    def _position(self, node: ast.expr, depth: int = 4) -> tuple[int, Bound] | None:
        """Returns the axis along which an expression is a position in the grid, and its value in the first thread."""
        if isinstance(node, ast.Name) and node.id in self._positions:
            return self._positions[node.id]
        if isinstance(node, ast.Name) and depth and node.id in self.values:
            return self._position(self.values[node.id], depth - 1)
        if isinstance(node, ast.Call):
            is_one = [*map(ast.unparse, node.args)] == ["1"] and not node.keywords
            return (0, Bound("int")) if is_one and self._path(node.func) == "grid" else None
        if not isinstance(node, ast.BinOp):
            return None
        places, others = list[tuple[str, int] | None](), list[ast.expr]()
        for one in _summands(node):
            factors = [self._place(factor) for factor in _factors(one)]
            if None in factors:
                others.append(one)
            else:
                places += factors
        axes = {place[1] for place in places if place is not None}
        if len(axes) == 1 and sorted(place[0] for place in places if place is not None) == [
            "blockDim",
            "blockIdx",
            "threadIdx",
        ]:
            found: tuple[int, Bound] | None = axes.pop(), Bound("int")
        else:
            at = next((one for one in others if self._position(one, depth - 1) is not None), None) if depth else None
            found = None if at is None or places or len(others) < 2 else self._position(at, depth - 1)
            others = [one for one in others if one is not at]
        for one in others:
            added = self.number(one)
            if found is None or added is None:
                return None
            axis, begin = found
            if added.kind != "int" and begin.kind != "int":
                return None
            found = (axis, added.plus(begin.offset) if begin.kind == "int" else begin.plus(added.offset))
        return found

    def number(self, node: ast.expr, depth: int = 4) -> Bound | None:
        """Returns a number that is known in calls: an int, a length, or the begin or end of own rows, with an int added."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return Bound("int", offset=value)
            case ast.Name(id=name) if name in self._lengths:
                return self._lengths[name] if self._lengths[name].name in self.parameters else None
            case ast.Name(id=name) if depth and name in self.values:
                return self.number(self.values[name], depth - 1)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=int(axis))):
                return Bound("length", name, axis) if name in self.parameters and axis >= 0 else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]) if name in self.parameters:
                return Bound("length", name)
            case ast.Attribute(value=ast.Name(id=name), attr="size" | "start" | "stop" as kind) if name in self.parameters:
                return Bound(kind, name)  # type: ignore[arg-type]  # one of these
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return Bound("int", offset=-value)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                one, other = self.number(left, depth), self.number(right, depth)
                if one is None or other is None:
                    return None
                if other.kind == "int":
                    return one.plus(other.offset if isinstance(op, ast.Add) else -other.offset)
                return other.plus(one.offset) if one.kind == "int" and isinstance(op, ast.Add) else None
        return None

    def _shifted(self, node: ast.expr) -> tuple[str, int] | None:
        """Returns the index variable in `i`, `i + 1` or `i - 1`, and the number that is added."""
        match node:
            case ast.Name(id=name) if name in self._indices:
                return name, 0
            case ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub() as op, right=right) if name in self._indices:
                added = self.number(right)
                if added is not None and added.kind == "int":
                    return name, added.offset if isinstance(op, ast.Add) else -added.offset
            case ast.BinOp(left=left, op=ast.Add(), right=ast.Name(id=name)) if name in self._indices:
                added = self.number(left)
                if added is not None and added.kind == "int":
                    return name, added.offset
        return None

    def _free(self, name: str) -> Index:
        """Returns the values that an index has where nothing is compared with it."""
        if name in self._positions:
            return Index(name, (), (), self._positions[name])
        iterated = self._loops[name].iter
        assert isinstance(iterated, ast.Call)
        match iterated.args:
            case [stop]:
                begin: Bound | None = Bound("int")
            case [start, stop]:
                begin = self.number(start)
            case [start, stop, step]:
                position = self._position(start)
                place = self._place(self.values.get(start.id, start) if isinstance(start, ast.Name) else start)
                begin = position[1] if position is not None else Bound("int") if place == ("threadIdx", 0) else None
                if isinstance(step, ast.Constant | ast.UnaryOp):
                    begin = None
            case _:
                return Index(name, (), (), is_sure=False)
        end = self.number(stop)
        known = [() if one is None else (one,) for one in (begin, end)]
        return Index(name, known[0], known[1], is_sure=begin is not None and end is not None)

    # ---- conditions

    def _inequality(self, atom: _Atom) -> tuple[str, bool, Bound] | None:
        """Returns the index that a comparison bounds, whether from above, and the bound."""
        if atom is None:
            return None
        left, op, right = atom
        shifted, number = self._shifted(left), self.number(right)
        if shifted is None:
            shifted, number, op = self._shifted(right), self.number(left), _FLIPPED.get(op, op)
        if shifted is None or number is None or op not in _FLIPPED:
            return None
        (name, added), is_upper = shifted, op in {ast.Lt, ast.LtE}
        return name, is_upper, number.plus((op in {ast.LtE, ast.Gt}) - added)

    def _around(self, node: ast.AST) -> "tuple[list[tuple[ast.expr, list[_Atom]]], list[str], ast.stmt, bool] | None":
        """Returns what holds where a node is evaluated: conditions, as their parts; and loops around it; and its statement.

        The last part is whether these are all. None inside nested functions.
        """
        parents, atoms, loops = self._definition.parents, list[tuple[ast.expr, list[_Atom]]](), list[str]()
        is_all, statement = True, node if isinstance(node, ast.stmt) else None
        while (parent := parents.get(id(node))) is not None:
            match parent:
                case ast.BoolOp(op=ast.And(), values=values):
                    atoms += [(one, _atoms(one)) for one in values[: values.index(node)]]  # type: ignore[arg-type]  # one of these
                case ast.BoolOp(values=values):
                    atoms += [(one, _negated(one)) for one in values[: values.index(node)]]  # type: ignore[arg-type]  # as above
                case ast.If(test=test, body=body, orelse=orelse):
                    if node in body:
                        atoms.append((test, _atoms(test)))
                    elif node in orelse:
                        atoms.append((test, _negated(test)))
                case ast.IfExp(test=test, body=body, orelse=orelse):
                    if node is not test:
                        atoms.append((test, _atoms(test) if node is body else _negated(test)))
                case ast.For(target=ast.Name(id=name)) if name in self._loops:
                    if node in parent.body:
                        loops.append(name)
                    is_all = is_all and node not in parent.orelse
                case ast.Compare(left=left, comparators=[first, *_]):
                    is_all = is_all and (node is left or node is first)  # a < b < c may end after b
                case ast.For() | ast.While() | ast.Try() | ast.With() | ast.Match():
                    is_all = False
                case _ if isinstance(parent, _NESTED):
                    return None
            node = parent
            statement = node if statement is None and isinstance(node, ast.stmt) else statement
        body = self._definition.tree.body
        if statement is None or node not in body:
            return None
        tests = map(_early_return, body[: body.index(node)])
        atoms += [(test, _negated(test)) for test in tests if test is not None]
        return atoms, loops, statement, is_all and body.index(node) < self._end

    # ---- elements

    def elements(self) -> Iterator[Element]:
        """Yields the elements whose first index is an index variable, or one with an int added."""
        for node in self._definition.nodes:
            array, first = _first_index(node)
            shifted = self._shifted(first) if first is not None and array in self.parameters else None
            around = None if shifted is None else self._around(node)
            if shifted is None or around is None:
                continue
            (name, offset), (atoms, loops, statement, is_all) = shifted, around
            indices, is_understood = self._bounded(atoms, [name, *loops])
            own, others = indices.pop(name), tuple(indices.values())
            used = {id(one) for test, _ in atoms for one in ast.walk(test)}
            is_sure = (
                is_all
                and is_understood
                and (name not in self._loops or name in loops)
                and all(one.is_sure for one in (own, *others))
                and not any(self._is_bounded_again(one.name, used) for one in (own, *others))
            )
            place = f"{self._file}:{node.lineno}"  # type: ignore[attr-defined]  # of an expression
            yield Element(array, own, offset, others, place, id(statement), _is_store(node), is_sure)

    def _bounded(self, atoms: list[tuple[ast.expr, list[_Atom]]], names: list[str]) -> tuple[dict[str, Index], bool]:
        """Returns the values of indices under conditions, by name, and whether each condition is understood."""
        found = {name: self._indices[name] for name in names}
        is_understood = True
        for _, parts in atoms:
            for atom in parts:
                bound = self._inequality(atom)
                if bound is None:
                    is_understood = False
                    continue
                name, is_upper, number = bound
                index = found.setdefault(name, self._indices[name])
                lowers = index.lowers if is_upper else (*index.lowers, number)
                uppers = (*index.uppers, number) if is_upper else index.uppers
                found[name] = replace(index, lowers=lowers, uppers=uppers)
        return found, is_understood

    def _is_bounded_again(self, name: str, tests: set[int]) -> bool:
        """Returns whether an index is in other comparisons than these, or has another name, which may be."""
        compared = (node for node in self._definition.nodes if isinstance(node, ast.Compare) and _is_part(node, name))
        renamed = any(isinstance(value, ast.Name) and value.id == name for value in self.values.values())
        return renamed or any(id(node) not in tests for node in compared)

    def may_know_rows(self, name: str) -> bool:
        """Returns whether a parameter is used in another way than by its elements and lengths of further axes."""
        parents = self._definition.parents
        for use in self._definition.uses(name):
            parent = parents.get(id(use))
            match parents.get(id(parent)), parent:
                case _, ast.Subscript():
                    continue
                case ast.Subscript(slice=ast.Constant(value=int(axis))), ast.Attribute(attr="shape") if axis > 0:
                    continue
            if parent is None or atomic_operation(parent) is None:
                return True
        return False

    def is_written(self, name: str) -> bool:
        """Returns whether the kernel stores to elements of a parameter."""
        parents = [self._definition.parents.get(id(use)) for use in self._definition.uses(name)]
        return any(one is not None and (_is_store(one) or atomic_operation(one) is not None) for one in parents)

    def is_at(self, array: str, index: str) -> bool:
        """Returns whether a parameter is used by elements at this index alone, and its sizes."""
        for use in self._definition.uses(array):
            parent = self._definition.parents.get(id(use))
            name, first = _first_index(parent) if parent is not None else ("", None)
            if name == array and isinstance(first, ast.Name) and first.id == index:
                continue
            is_size = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and ast.unparse(parent.func) == "len")
            if not is_size:
                return False
        return True

    def looked_up(self) -> Iterator[str]:
        """Yields the parameters of which each element has a first index that is the value of another array."""
        found: dict[str, bool] = {}
        for node in self._definition.nodes:
            name, first = _first_index(node)
            if isinstance(node, ast.Subscript) and first is not None and name in self.parameters:
                found[name] = found.get(name, True) and self._is_value(first, name)
        yield from (name for name, always in found.items() if always)

    def _is_value(self, node: ast.expr, name: str, depth: int = 4) -> bool:
        """Returns whether an expression contains an element of another parameter than `name`."""
        for part in ast.walk(node):
            match part:
                case ast.Subscript(value=ast.Name(id=array)) if array in self.parameters and array != name:
                    return True
                case ast.Name(id=variable) if depth and (value := self.values.get(variable)) is not None:
                    if self._is_value(value, name, depth - 1):
                        return True
        return False

    # ---- launches

    def limits(self) -> tuple[tuple[int, Bound], ...]:
        """Returns the lengths with which positions are compared, each with the axis of the grid.

        None if a position is used where no comparison with a known number bounds it from above.
        """
        found: dict[tuple[int, Bound], None] = {}
        for use in self._definition.names:
            if use.id not in self._positions or not isinstance(use.ctx, ast.Load) or self._is_compared(use):
                continue
            around = self._around(use)
            uppers = () if around is None else self._bounded(around[0], [use.id])[0][use.id].uppers
            if not uppers:
                return ()
            axis, _ = self._positions[use.id]
            found |= dict.fromkeys((axis, replace(one, offset=0)) for one in uppers if one.kind in {"length", "size"})
        return tuple(found)

    def _is_compared(self, node: ast.AST) -> bool:
        """Returns whether a node is part of an operand of a comparison."""
        parent = self._definition.parents.get(id(node))
        while isinstance(parent, ast.BinOp | ast.UnaryOp):
            parent = self._definition.parents.get(id(parent))
        return isinstance(parent, ast.Compare)


def pairs(elements: Sequence[Element]) -> Iterator[tuple[Element, Element]]:
    """Yields elements of different arrays at the same index in one statement."""
    plain = sorted((one for one in elements if not one.offset), key=lambda one: (one.statement, one.index.name))
    for _, group in groupby(plain, lambda one: (one.statement, one.index.name)):
        by_array = {one.array: one for one in sorted(group, key=lambda one: one.is_stored)}  # stores replace reads
        several = list(by_array.values())
        yield from ((one, other) for number, one in enumerate(several) for other in several[number + 1 :])


def _first_index(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Returns the array of which a node is an element, also in an atomic operation, and the first index; "" for others."""
    match node:
        case ast.Subscript(value=ast.Name(id=array), slice=index) | ast.Call(args=[ast.Name(id=array), index, *_]):
            if isinstance(node, ast.Call) and atomic_operation(node) is None:
                return "", None
            return array, index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return "", None


def _leaves(node: ast.AST) -> bool:
    return isinstance(node, _LEAVING)


def _is_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) or (isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load))


def _is_part(node: ast.AST, name: str) -> bool:
    """Returns whether a variable is part of an expression, other than as an index."""
    if isinstance(node, ast.Name):
        return node.id == name
    return not isinstance(node, ast.Subscript) and any(_is_part(child, name) for child in ast.iter_child_nodes(node))


def _early_return(statement: ast.AST) -> ast.expr | None:
    """Returns the condition of `if …: return`."""
    match statement:
        case ast.If(test=test, body=[ast.Return()], orelse=[]):
            return test
    return None


def _atoms(test: ast.expr) -> list[_Atom]:
    """Returns the comparisons that all hold if a condition does."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return [atom for one in values for atom in _atoms(one)]
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            operands = [left, *comparators]
            return [(operands[at], type(op), operands[at + 1]) for at, op in enumerate(ops)]
    return [None]


def _negated(test: ast.expr) -> list[_Atom]:
    """Returns the comparisons that all hold if a condition does not."""
    match test:
        case ast.BoolOp(op=ast.Or(), values=values):
            return [atom for one in values for atom in _negated(one)]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _NEGATED:
            return [(left, _NEGATED[type(op)], right)]
    return [None]


def _summands(node: ast.expr) -> list[ast.expr]:
    return (
        [*_summands(node.left), *_summands(node.right)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
        else [node]
    )


def _factors(node: ast.expr) -> list[ast.expr]:
    return (
        [*_factors(node.left), *_factors(node.right)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        else [node]
    )
