"""Rewrites a kernel's source so that each access to an array is checked, before `_lower` gets it.

    v = s[i]                →  v = load(s, i, site)
    s[i] = v                →  store(s, i, v, site)
    r.x = v                 →  set_attribute(r, "x", v, site)         of records
    cuda.atomic.add(s, i, v) → cuda.atomic.add(cell(s, i, site), 0, v)
    a // b, a % b, int(x)   →  floordiv(a, b, site), …                 a thread may end here
    cuda.threadfence()      →  fence(), and the call

and afterwards, in the code of one thread: barriers, collectives and local arrays. A site is the
number of a place in the user's source. What cannot be seen, such as a loop over an array, raises
`NotInstrumentedError`: such a kernel is checked in Python.
"""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final, cast

import numpy as np

from synknumba.simt._checker import accesses, thread_operations
from synknumba.simt._library import words
from synknumba.simt._library.intrinsics import stack_array
from synknumba.simt._library.synchronisation import COLLECTIVES
from synknumba.simt._lower.arrays import ARRAY_PATHS
from synknumba.simt._lower.sync import barrier_kind, collective_of
from synknumba.simt._lower.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._maths import operations as ops
from synknumba.simt._python.source import index_value
from synknumba.simt._python.warp import FULL_MASK, GRID_SYNC, WAITING
from synknumba.simt._source.numba_cuda import MISSING, CudaPath
from synknumba.simt._source.reads import is_jitted, is_njit_function, unassigned_reads
from synknumba.simt._source.scope import Scope
from synknumba.simt._source.syntax import (
    assigned_names,
    copied,
    load,
    one_or_tuple,
    place,
    statements,
    store,
)
from synknumba.simt._source.written import Source

# Kinds of requests, by the number that a thread stores.
KINDS: Final = (*WAITING, GRID_SYNC)
_BARRIERS: Final = {"block": "syncthreads", "warp": "syncwarp", "grid": GRID_SYNC}
# Attributes of arrays that are no fields of records.
_OF_ARRAYS: Final = frozenset(
    {"shape", "size", "ndim", "strides", "dtype", "T", "itemsize", "nbytes", "flat", "real", "imag"}
)
_PREFIX: Final = "_k_check_"
MOST_SITES: Final = 1 << 16
# Bytes of an element whose dtype only Numba can infer.
_LARGEST_ELEMENT: Final = 16


def _flag(name: str) -> str:
    return f"_k_is_set_{name}"


def _emitted(name: str) -> Any:
    """Returns the intrinsic of an access, or of an operation of a thread."""
    return getattr(accesses, name, None) or getattr(thread_operations, name)


class NotInstrumentedError(Exception):
    """The kernel has something whose accesses compiled code cannot check; the message says what."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's source: function, file, line, and the accessed array as it is
    written there, if any.
    """

    function: str
    filename: str
    line: int
    array: str = ""
    constant: np.ndarray[Any, Any] | None = None  # the accessed array if it is a global


@dataclass(slots=True)
class Sites:
    """The places of a kernel and its device functions.

    Attributes:
        all: by number, from 1 on.
        names: names of shared and local arrays, by file and line.
    """

    all: list[Site] = field(default_factory=lambda: [Site("", "", 0)])
    names: dict[tuple[str, int], str] = field(default_factory=dict)

    def instrument(self, source: Source) -> Source:
        """Returns the source with its accesses replaced."""
        return _Instrumenter(source, self).run()


class _Instrumenter(ast.NodeTransformer):
    """Rewrites one function in place."""

    def __init__(self, source: Source, sites: Sites) -> None:
        self._source, self._sites, self._scope = source, sites, Scope(source)
        self._used: dict[str, Any] = {}
        self._count = 0
        self._unassigned = unassigned_reads(source.tree)

    def run(self) -> Source:
        """Returns the source, with the operations in its scope."""
        tree = self._source.tree
        names = sorted(self._unassigned)
        flags = statements("\n".join(f"{_flag(name)} = False" for name in names), tree)
        tree.body = flags + self._body(tree.body)
        ast.fix_missing_locations(tree)
        return replace(self._source, scope={**self._source.scope, **self._used})

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return cast(ast.Module, self.generic_visit(ast.Module(body, []))).body

    # ---- variables that may be unassigned

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._unassigned or not isinstance(node.ctx, ast.Load):
            return node
        new = ast.copy_location(load(node.id), node)
        return self._call("assigned", node, new, load(_flag(node.id)), self._site(node, new))

    def _marked(self, targets: list[ast.expr], at: ast.stmt) -> list[ast.stmt]:
        """Returns statements that note the assignment of variables."""
        names = sorted(assigned_names(targets) & self._unassigned)
        return statements("\n".join(f"{_flag(name)} = True" for name in names), at)

    # ---- what is written

    def _site(self, node: ast.AST, array: ast.expr | None = None) -> ast.Constant:
        code = self._source.function.__code__
        text, constant = "", None
        if array is not None:
            text, value = ast.unparse(array), self._scope.resolve(array)
            if isinstance(value, np.ndarray):
                constant = value
        site = Site(code.co_name, code.co_filename, getattr(node, "lineno", 0), text, constant)
        if len(self._sites.all) == MOST_SITES:
            raise NotInstrumentedError(f"more than {MOST_SITES} accesses in the source")
        self._sites.all.append(site)
        return ast.Constant(len(self._sites.all) - 1)

    def _call(self, name: str, at: ast.AST, *args: ast.expr) -> ast.Call:
        self._used[_PREFIX + name] = _emitted(name)
        return place(ast.Call(load(_PREFIX + name), list(args), []), at)

    def _do(self, name: str, at: ast.AST, *args: ast.expr) -> ast.stmt:
        return place(ast.Expr(self._call(name, at, *args)), at)

    def _fresh(self) -> str:
        self._count += 1
        return f"_k_value{self._count}"

    # ---- elements

    def _index(self, node: ast.expr) -> ast.expr:
        """Returns an index as an ordinary expression, with slices as calls of `slice`."""
        if isinstance(node, ast.Tuple) and any(isinstance(part, ast.Starred) for part in node.elts):
            raise NotInstrumentedError("* in an index")
        self._used[f"{_PREFIX}slice"] = slice
        return self.visit(index_value(node, f"{_PREFIX}slice"))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        value = self._scope.resolve(node.value)
        of_shape = isinstance(node.value, ast.Attribute) and node.value.attr in {"shape", "strides"}
        if of_shape or isinstance(value, tuple):
            return self.generic_visit(node)  # type: ignore[return-value]
        array, index = self.visit(copied(node.value)), self._index(node.slice)
        return self._call("load", node, array, index, self._site(node, node.value))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self._scope.resolve(node) is not MISSING:
            return node
        if node.attr in _OF_ARRAYS:
            return self.generic_visit(node)  # type: ignore[return-value]
        value = self.visit(copied(node.value))
        return self._call(
            "attribute", node, value, ast.Constant(node.attr), self._site(node, node.value)
        )

    def _set(self, target: ast.expr, value: ast.expr, at: ast.stmt) -> list[ast.stmt]:
        """Returns the statements that assign an expression, already visited, to a target."""
        match target:
            case ast.Subscript(value=array, slice=index):
                stored, key = self.visit(copied(array)), self._index(index)
                return [self._do("store", at, stored, key, value, self._site(at, array))]
            case ast.Attribute(value=record, attr=attr):
                stored, key = self.visit(copied(record)), ast.Constant(attr)
                return [self._do("set_attribute", at, stored, key, value, self._site(at, record))]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                targets, behind = list[ast.expr](), list[ast.stmt]()
                for part in parts:
                    if isinstance(part, ast.Name):
                        targets.append(store(part.id))
                        continue
                    name = self._fresh()
                    targets.append(store(name))
                    behind += self._set(part, load(name), at)
                unpacked = ast.Assign([ast.Tuple(targets, ast.Store())], value)
                return [place(unpacked, at), *behind]
        return [place(ast.Assign([target], value), at)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        marks = self._marked(node.targets, node)
        return self._assign(node) + marks

    def _assign(self, node: ast.Assign) -> list[ast.stmt]:
        if isinstance(node.value, ast.Call) and self._scope.path_of(node.value.func) in ARRAY_PATHS:
            if isinstance(node.targets[0], ast.Name):
                self._sites.names[self._source.filename, node.value.lineno] = node.targets[0].id
            return [node]
        before = self._before(node.value)
        value = self.visit(node.value)
        if all(isinstance(target, ast.Name) for target in node.targets):
            node.value = value
            return [*before, node]
        if len(node.targets) == 1:
            return before + self._set(node.targets[0], value, node)
        name = self._fresh()
        assignments = [*before, place(ast.Assign([store(name)], value), node)]
        for target in node.targets:
            assignments += self._set(target, place(load(name), node), node)
        return assignments

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            return [ast.copy_location(ast.Pass(), node)]
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        target, before = node.target, self._before(node.value)
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if isinstance(target, ast.Name) and not divides and target.id not in self._unassigned:
            node.value = self.visit(node.value)
            return [*before, node]
        if isinstance(target, ast.Subscript) and _calls(target):
            name = self._fresh()
            before = [place(ast.Assign([store(name)], self._index(target.slice)), node), *before]
            target = ast.copy_location(
                ast.Subscript(target.value, place(load(name), node), ast.Store()), target
            )
        old = ast.copy_location(copied(target), target)
        old.ctx = ast.Load()
        new = self.visit(ast.copy_location(ast.BinOp(old, node.op, node.value), node))
        return before + self._set(target, new, node) + self._marked([target], node)

    # ---- calls

    def visit_Call(self, node: ast.Call) -> ast.expr:
        value = self._scope.resolve(node.func)
        path = value.path if isinstance(value, CudaPath) else ""
        if path in ARRAY_PATHS or path in {"const.array_like", "cg.this_grid", "grid", "gridsize"}:
            return node
        if value is print:
            raise NotInstrumentedError("a call of print()")
        if path in ops.ATOMIC_ARGUMENTS:
            return self._atomic(node, path)
        if isinstance(node.func, ast.Attribute) and value is MISSING:
            node.func.value = self.visit(node.func.value)
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        if path in COLLECTIVES and node.args:
            node.args[0] = self._call("here", node, node.args[0], self._site(node))
        if value is int and len(node.args) == 1:
            return self._call("to_int", node, node.args[0], self._site(node))
        if _is_of_random(value) and len(node.args) >= 2 and not node.keywords:
            states, index = node.args[0], copied(node.args[1])
            node.args[0] = self._call("whole", node, states, index, self._site(node, states))
            return node
        is_ours = is_jitted(value)
        if isinstance(value, FunctionType) and not is_ours:
            node.args = [self._call("no_array", arg, arg) for arg in node.args]
        return node

    def _atomic(self, node: ast.Call, path: str) -> ast.expr:
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise NotInstrumentedError("an atomic operation with arguments by name")
        if len(node.args) != len(ops.ATOMIC_ARGUMENTS[path]):
            return node
        site, array = self._site(node, node.args[0]), self.visit(copied(node.args[0]))
        if path == "atomic.compare_and_swap":
            node.args = [
                self._call("first_cell", node, array, site),
                *map(self.visit, node.args[1:]),
            ]
        else:
            cell = self._call("cell", node, array, self._index(node.args[1]), site)
            node.args = [cell, place(ast.Constant(0), node), *map(self.visit, node.args[2:])]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        name = {ast.FloorDiv: "floordiv", ast.Mod: "mod"}.get(type(node.op))  # type: ignore[call-overload]
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        if name is None or (isinstance(node.right, ast.Constant) and node.right.value):
            return node
        return self._call(name, node, node.left, node.right, self._site(node))

    # ---- statements

    def _before(self, node: ast.AST) -> list[ast.stmt]:
        """Returns a note of the place if threads may wait in the expression."""
        if any(self._scope.path_of(call.func) in WAITING for call in _calls(node)):
            return [self._note(node)]
        return []

    def _note(self, node: ast.AST) -> ast.stmt:
        return self._do("note", node, self._site(node))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        if not isinstance(node.value, ast.Call):
            return node
        path, function = self._scope.path_of(node.value.func), node.value.func
        if path == "nanosleep":
            return node
        if path in words.FENCES:
            return [self._do("fence", node), node]
        if path == "syncwarp":
            arguments = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
            mask: ast.expr = ast.Constant(FULL_MASK)
            if arguments:
                mask = self.visit(copied(arguments[0]))
            return [self._note(node), self._do("set_mask", node, mask), node]
        is_sync = isinstance(function, ast.Attribute) and function.attr == "sync" and path is None
        if is_sync or path == "syncthreads":
            return [self._note(node), node]
        before = self._before(node.value)
        node.value = self.visit(node.value)
        return [*before, node]

    def _noted(self, node: ast.stmt) -> list[ast.stmt]:
        return [self._note(node), cast(ast.stmt, self.generic_visit(node))]

    visit_Raise = visit_Assert = _noted

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        node.iter, marks = self._iterated(node.iter), self._marked([node.target], node)
        node.body, node.orelse = marks + self._body(node.body), self._body(node.orelse)
        parts = ast.walk(node.target)
        if all(isinstance(part, (ast.Name, ast.Tuple, ast.Store)) for part in parts):
            return [node]
        name = self._fresh()
        node.body = [*self._set(node.target, place(load(name), node), node), *node.body]
        node.target = place(store(name), node)
        return [node]

    def _iterated(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Call):
            value = self._scope.resolve(node.func)
            if getattr(value, "__name__", "") == "literal_unroll":
                return node
            if value in {enumerate, zip}:
                node.args = [self._iterated(arg) for arg in node.args]
                return node
            return self.visit(node)
        if isinstance(node, (ast.Tuple, ast.Constant)):
            return self.visit(node)
        return self._call("no_array", node, self.visit(node))


def _calls(node: ast.AST) -> list[ast.Call]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def _is_of_random(value: Any) -> bool:
    """Returns whether this is a function of `cuda.random`, which Numba compiles: it changes the
    state with an index.
    """
    return is_njit_function(value) and value.py_func.__module__ == "numba.cuda.random"


# ---- the code of one thread


@dataclass(slots=True)
class Memory:
    """A shared or local array, named as in the user's source.

    Attributes:
        shape: (0,) of dynamic shared memory.
        dtype: a name in the code's namespace, or `x.dtype`.
        offset: of a local array, into the memory of a thread.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ast.expr
    code: ThreadCode
    offset: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch sets the size."""
        return self.shape == (0,)


class Lowered:
    """Replaces barriers, collectives and local arrays in the code of a kernel and its device
    functions.

    Attributes:
        sites: places in the user's source.
        shared_arrays: the kernel's shared arrays.
        local_arrays: all local arrays.
        local_bytes: bytes of the local memory of a thread.
        grid: whether the kernel has a grid barrier.
    """

    def __init__(self, code: ThreadCode, sites: Sites) -> None:
        self.local_arrays: list[Memory] = []
        self.local_bytes = 0
        self.grid = False
        self.sites, self._places = sites, 0
        self.shared_arrays = [
            self._memory(code, array.at, name, array.shape, array.dtype)
            for name, array in code.shared_arrays.items()
        ]
        for function in _codes(code, set()):
            function.body = self._rewrite(function)

    def _memory(
        self, code: ThreadCode, at: ast.AST, name: str, shape: tuple[int, ...], dtype: ast.expr
    ) -> Memory:
        line = cast(ast.stmt, at).lineno
        name = self.sites.names.get((code.source.filename, line), name)
        return Memory(name, shape, dtype, code, self.local_bytes)

    def _rewrite(self, code: ThreadCode) -> list[ast.stmt]:
        stack = {name for name, value in code.namespace.items() if value is stack_array}
        lowered = self

        class Visitor(ast.NodeTransformer):
            def visit_Expr(self, node: ast.Expr) -> ast.stmt:
                kind = barrier_kind(node)
                if kind is None:
                    return node
                lowered.grid |= kind == "grid"
                return lowered._operation(code, node, "barrier", KINDS.index(_BARRIERS[kind]))

            def visit_Assign(self, node: ast.Assign) -> ast.stmt:
                collective = collective_of(node)
                if collective is not None:
                    lowered._places += 1
                    word = collective.path
                    function = code.bind(f"{_PREFIX[3:]}{word}", _collective(word))
                    args = [*collective.operands.values(), ast.Constant(lowered._places)]
                    target = one_or_tuple([store(name) for name in collective.results], ast.Store())
                    return place(ast.Assign([target], ast.Call(function, args, [])), node)
                match node:
                    case ast.Assign(
                        targets=[ast.Name(id=name)],
                        value=ast.Call(func=ast.Name(id=called), args=[shape, dtype]),
                    ):
                        if called in stack:
                            return lowered._local(code, node, name, shape, dtype)
                return node

        return [Visitor().visit(statement) for statement in code.body]

    def _operation(self, code: ThreadCode, node: ast.stmt, name: str, kind: int) -> ast.stmt:
        self._places += 1
        function = code.bind(f"{_PREFIX[3:]}{name}", _emitted(name))
        return place(
            ast.Expr(ast.Call(function, [ast.Constant(kind), ast.Constant(self._places)], [])), node
        )

    def _local(
        self, code: ThreadCode, node: ast.Assign, name: str, shape: ast.expr, dtype: ast.expr
    ) -> ast.stmt:
        dims = tuple(np.atleast_1d(ast.literal_eval(shape)).tolist())
        self.local_arrays.append(self._memory(code, node, name, dims, dtype))
        itemsize = _LARGEST_ELEMENT
        match dtype:
            case ast.Name(id=word) if isinstance(code.namespace.get(word), np.dtype):
                itemsize = code.namespace[word].itemsize
        function = code.bind(f"{_PREFIX[3:]}local_array", thread_operations.local_array)
        offset = ast.Constant(self.local_bytes)
        self.local_bytes += -(-int(np.prod(dims)) * itemsize // 64) * 64
        return place(
            ast.Assign([store(name)], ast.Call(function, [offset, shape, dtype], [])), node
        )


def _codes(code: ThreadCode, seen: set[int]) -> Iterator[ThreadCode]:
    """Yields the code of a function and of the device functions that it calls, each once."""
    if id(code) in seen:
        return
    seen.add(id(code))
    yield code
    for value in list(code.namespace.values()):
        if isinstance(value, DeviceFunction):
            if value.code is None or value.is_recursive:
                raise NotInstrumentedError(f"the recursive function {value.function.__name__}()")
            yield from _codes(value.code, seen)
        elif is_njit_function(value) and not _is_of_random(value):
            raise NotInstrumentedError(f"{value.py_func.__name__}(), which Numba compiles as it is")


@functools.cache
def _collective(path: str) -> Any:
    return thread_operations.collective(KINDS.index(path), path)
