"""Static analysis of a function's source: array parameters that it only reads, and parameters that
it writes.

`read_parameters`: on a GPU, a frozen input that is certainly only read needs no copy of its own. An
array is certainly only read if the kernel uses its name only to read elements and to query sizes:
then no view of it exists, so nothing can write through one.

    x[i]   x[i, j + 1]   x[i][j]   x.shape[0]   len(x)   x.size          only read, if i and j are certainly numbers
    x[k]   x[1:]   x[...]   y = x   row = x[i]   store(x, i)   x[i] = 0  and anything else: not certain

The k of x[k] is analysed too, since x[k] is a view if k is a slice, a tuple or None. Numbers are
the variables of loops over ranges, the positions of threads, sizes, results of arithmetic, and
names that are bound to nothing else. Where the analysis fails, an unnecessary copy is made; the
result is the same.

`written_parameters`: inputs are read-only. On the CPU they are the caller's own memory, and on a
GPU, writes to a copy would be lost. The CPU's compiler refuses every such store. This analysis
refuses the obvious ones on every device, before anything is
sent: `x[...] = …`, `x[...] += …`, `x += …` and `cuda.atomic.…(x, …)` where x is a parameter.
"""  # noqa: E501

import ast
import builtins
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, cast, final

import numpy as np

from synknumba._errors import SynkError
from synknumba._source.definition import Definition, atomic_operation, read_code, read_function
from synknumba.simt.internals import CudaPath, Scope, read_definition

SIZES = {"shape", "size", "ndim", "itemsize", "nbytes", "strides", "dtype"}
# these return numbers for every argument that Numba allows
_OF_NUMBERS = {
    "int",
    "len",
    "abs",
    "min",
    "max",
}
_POSITIONS = {
    f"{triple}.{axis}"
    for triple in ("threadIdx", "blockIdx", "blockDim", "gridDim")
    for axis in "xyz"
}
_POSITIONS |= {"laneid", "warpsize"}  # members of numba.cuda that are numbers
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.comprehension

_NUMBER = ast.Constant(0)


def read_parameters(function: Callable[..., Any], dimensions: Mapping[str, int]) -> frozenset[str]:
    """Returns the array parameters of which a kernel certainly reads only elements and sizes.

    `dimensions` has the number of dimensions of each array parameter, at least 1; 0 for each
    number; no other parameters.
    """
    definition = (
        read_code(function.__code__)
        if isinstance(function, FunctionType) and _is_current(function.__code__)
        else None
    )
    if (
        definition is None
        or any(isinstance(node, _SCOPES) for node in definition.nodes)
        or hasattr(function, "__wrapped__")
    ):
        return frozenset()  # a name may have several meanings
    try:
        scope = Scope(read_definition(cast(FunctionType, function)))
    except SynkError:  # raised again by the first call, where it matters
        return frozenset()
    source = _Reads(definition, dimensions, scope)
    return frozenset(
        name for name in source.arrays if all(map(source.only_reads, source.uses(name)))
    )


class _Reads:
    """A kernel without nested functions, with its names classified as numbers, arrays and
    functions.
    """

    def __init__(self, definition: Definition, dimensions: Mapping[str, int], scope: Scope) -> None:
        own = {*definition.parameters}
        self._parents, self.uses = definition.parents, definition.uses
        bindings: dict[str, list[ast.expr | None]] = {}
        for name, value in _bindings(definition):
            bindings.setdefault(name, []).append(value)
        self._scope, self._own = scope, own | bindings.keys()
        around = {
            name.id: scope.resolve(name) for name in definition.names if name.id not in self._own
        }
        self._builtins = {
            name
            for name, value in around.items()
            if callable(value) and value is getattr(builtins, name, None)
        }
        self._types = {name for name, value in around.items() if _is_type_of_numbers(value)}
        self.arrays = {
            name: number
            for name, number in dimensions.items()
            if number and name in own - bindings.keys()
        }
        self._numpy = {name for name, value in around.items() if value is np}
        constants = {
            name for name, value in around.items() if isinstance(value, int | float | np.number)
        }
        self._numbers = (
            {name for name, number in dimensions.items() if not number} & own
            | (bindings.keys() - own)
            | constants
        )
        # Starts from all candidates, and removes names bound to anything but a number until none is
        # left to remove.
        before = -1
        while len(self._numbers) != before:
            before = len(self._numbers)
            self._numbers = {
                name for name in self._numbers if all(map(self._is_number, bindings.get(name, ())))
            }

    def only_reads(self, name: ast.Name) -> bool:
        """Returns whether one occurrence of an array's name reads an element, or queries a size."""
        indices, node = 0, name
        while (
            isinstance(parent := self._parents.get(id(node)), ast.Subscript)
            and parent.value is node
        ):
            parts = _parts(parent)
            if not (isinstance(parent.ctx, ast.Load) and all(map(self._is_number, parts))):
                return False
            indices += len(parts)
            if indices >= self.arrays[name.id]:
                return True
            node = parent  # type: ignore[assignment]  # a subarray
        return node is name and self._is_size(parent)

    def _is_size(self, node: ast.AST | None) -> bool:
        match node:
            case ast.Attribute(attr=attribute, ctx=ast.Load()):
                return attribute in SIZES
            case ast.Call(func=ast.Name(id="len"), keywords=[]):
                return "len" in self._builtins
        return False

    def _is_number(self, node: ast.expr | None) -> bool:
        """Returns whether an expression is certainly a number, or an array of numbers, which as
        an index copies rows.
        """
        match node:
            case ast.Constant(value=value):
                return type(value) in {int, float}
            case ast.Name(id=name, ctx=ast.Load()):
                return name in self._numbers
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert()):
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                # rules out the concatenation of two tuples
                return self._is_number(left) or self._is_number(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                # rules out the repetition of a tuple
                return self._is_number(left) and self._is_number(right)
            case ast.BinOp():
                return True
            case ast.IfExp(body=first, orelse=second):
                return self._is_number(first) and self._is_number(second)
            case ast.NamedExpr(value=value):
                return self._is_number(value)
            case ast.Subscript():
                return self._is_element(node)
            case ast.Attribute():
                return self._is_position(node)
            case ast.Call(args=args, keywords=[]):
                return self._is_call_for_number(node, args)
        return False

    def _is_element(self, node: ast.Subscript) -> bool:
        """Returns whether a subscript is an element or a row of an array, or one of its sizes."""
        parts = _parts(node)
        if not (parts and all(map(self._is_number, parts))):
            return False
        match node.value:
            case (
                ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="shape" | "strides")
            ):
                return name in self.arrays
        return False

    def _is_position(self, node: ast.Attribute) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="size" | "ndim"):
                return name in self.arrays
        return self._path(node) in _POSITIONS

    def _is_call_for_number(self, node: ast.Call, args: list[ast.expr]) -> bool:
        match node.func:
            case ast.Name(id="range"):  # stands for the loop variable
                return "range" in self._builtins
            case ast.Name(id=name) if name in self._types:
                return True
            case ast.Name(id="len" | "int" as name):
                return name in self._builtins
            case ast.Name(id=name) if name in _OF_NUMBERS & self._builtins:
                return (name == "abs" or len(args) > 1) and all(map(self._is_number, args))
            case ast.Attribute(value=ast.Name(id=name), attr=made) if name in self._numpy:
                kind = getattr(np, made, None)
                return isinstance(kind, type) and issubclass(kind, np.number)
        is_one = len(args) == 1 and isinstance(args[0], ast.Constant) and args[0].value == 1
        return is_one and self._path(node.func) in {"grid", "gridsize"}

    def _path(self, node: ast.expr) -> str | None:
        """Returns the path below `numba.cuda` of what an expression names; None for anything
        else and for local variables.
        """
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self._own:
            return None
        found = self._scope.resolve(node)
        return found.path if isinstance(found, CudaPath) else None


def _parts(node: ast.Subscript) -> list[ast.expr]:
    """Returns the indices inside the brackets."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_type_of_numbers(value: object) -> bool:
    from numba.core.types import Number  # deferred until needed

    return isinstance(value, Number)


def _bindings(definition: Definition) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields each name that a kernel binds, and an expression: if that is a number, the name
    holds one. None: it may not.
    """
    seen: set[int] = set()
    for node in definition.nodes:
        for target, value in _assigned(node):
            if isinstance(target, ast.Name):
                seen.add(id(target))
                yield target.id, value
    for name in definition.names:
        if not isinstance(name.ctx, ast.Load) and id(name) not in seen:
            yield name.id, None
    for other in definition.mentioned:
        yield other, None


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [pair for target in targets for pair in _paired(target, value)]
        case ast.AugAssign(target=ast.Name(id=name) as target, op=operator, value=value):
            return [(target, ast.BinOp(ast.Name(name, ast.Load()), operator, value))]
        case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.For(target=target, iter=ast.Call(func=ast.Name(id="range")) as value):
            return [(target, value)]
    return []


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr | None]]:
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
        case ast.Tuple(elts=targets), ast.Call(
            func=ast.Attribute(attr="grid" | "gridsize") as function, args=[_]
        ):
            return [(one, ast.Call(function, [ast.Constant(1)], [])) for one in targets]
        case ast.Tuple(elts=targets), ast.Attribute(attr="shape"):
            return [(one, ast.Subscript(value, _NUMBER, ast.Load())) for one in targets]
    return [(target, value)]


def _is_current(code: CodeType) -> bool:
    """Returns whether the source of code is available, and has not changed since it was
    compiled.
    """
    try:
        found = _codes_of("".join(inspect.findsource(code)[0]), code.co_filename)
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    return sum(one == code for one in found) == 1


@lru_cache(maxsize=4)  # files; compiling one of 200 lines takes 3 ms
def _codes_of(text: str, filename: str) -> list[CodeType]:
    """Returns the code of all functions of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [*_codes(compile(text, filename, "exec", dont_inherit=True))]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


@final
@dataclass(frozen=True, slots=True)
class Use:
    """A use of elements of a parameter, as the source shows it.

    Attributes:
        line: in the file.
        index: the text in the brackets, or of the second argument of an atomic operation; None if
            there is none.
        is_first: whether that is certainly the constant 0.
        is_stored: whether it is a store.
    """

    line: int
    index: str | None
    is_first: bool
    is_stored: bool


def written_parameters(function: Callable[..., Any]) -> dict[str, int]:
    """Returns the parameters that a function stores to, with the line of the first store; empty
    if there is no source.
    """
    found: dict[str, int] = {}
    for name, use in element_uses(function):
        if use.is_stored:
            found.setdefault(name, use.line)
    return found


def element_uses(function: Callable[..., Any]) -> list[tuple[str, Use]]:
    """Returns where a function stores to parameters, or reads elements of them; empty if there
    is no source.
    """
    definition = read_function(function)
    if definition is None:
        return []
    names = {argument.arg for argument in definition.tree.args.args}
    nodes = definition.own
    # on an array, `x += …` works in place
    added_to = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    stores = (
        node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    names -= {node.id for node in stores if id(node) not in added_to}
    found: list[tuple[str, Use]] = []
    for node in nodes:
        read = node if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) else None
        for name, index in _stored(node) if read is None else _elements(read):
            if name in names:
                text = None if index is None else ast.unparse(index)
                text = text[1:-1] if text is not None and isinstance(index, ast.Tuple) else text
                first = index is not None and _is_zero(index, definition, function)
                found.append((name, Use(node.lineno, text, first, read is None)))  # type: ignore[attr-defined]  # these have lines
    return found


def _is_zero(index: ast.expr, definition: Definition, function: Callable[..., Any]) -> bool:
    """Returns whether an index is 0, `(0,)`, or a name that a function finds outside, and that
    is 0.
    """
    match index:
        case ast.Constant(value=value):
            return type(value) is int and value == 0
        case ast.Tuple(elts=[one]):
            return _is_zero(one, definition, function)
        case ast.Name(id=name) if (
            name not in definition.stored and name not in definition.parameters
        ):
            try:
                around = inspect.getclosurevars(function)
            except (TypeError, ValueError):
                return False
            found = around.nonlocals.get(name, around.globals.get(name))
            return isinstance(found, int | np.integer) and found == 0
    return False


def _stored(node: ast.AST) -> list[tuple[str, ast.expr | None]]:
    """Returns the names to whose elements a statement or call stores, each with its first index."""
    match node:
        case ast.Assign(targets=targets):
            return [pair for target in targets for pair in _elements(target)]
        case ast.AugAssign(target=ast.Name(id=name)):
            return [(name, None)]
        case ast.AugAssign(target=target):
            return _elements(target)
        case ast.Call(args=[ast.Name(id=name), *others]) if atomic_operation(node) is not None:
            return [(name, others[0] if others else None)]
    return []


def _elements(target: ast.expr) -> list[tuple[str, ast.expr | None]]:
    match target:
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            return [pair for one in targets for pair in _elements(one)]
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            return [(name, index)]
        case (
            ast.Subscript(value=ast.Subscript() as inner)
            | ast.Attribute(value=ast.Subscript() as inner)
        ):
            return _elements(inner)
    return []
