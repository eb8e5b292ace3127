"""Rewrites kernel source into Python generators, one per thread.

The user's syntax tree keeps its names, lines and columns, and is compiled under the user's file
name, so tracebacks, breakpoints and local variables match the source. Only these nodes change:

- a call of an operation that waits, such as `cuda.syncthreads()`, becomes `(yield request)`;
- a call of a device function that waits becomes `(yield from function(...))`, and that function
  becomes a generator too;
- operators become calls that use Numba's types, see `_python.arithmetic`;
- global names are rebound: `cuda` to a `Cuda`, device functions to their rewritten code, global
  arrays to `Array`s.
"""

import ast
import functools
import operator
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from numba import njit, typeof
from numba.core import types
from numba.core.errors import NumbaError
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target

from synknumba._errors import KernelError
from synknumba.simt._lower.signatures import Declared, declared_signatures
from synknumba.simt._maths import bfloat16
from synknumba.simt._maths.operations import FUNCTIONS, way_out
from synknumba.simt._python import arithmetic
from synknumba.simt._python.arrays import Array, Record
from synknumba.simt._python.cuda import KNOWN_PATHS, GridGroup, as_numpy, member
from synknumba.simt._python.warp import GRID_SYNC, WAITING, Request, request
from synknumba.simt._source.numba_cuda import MISSING, CudaPath, cuda_module
from synknumba.simt._source.reads import is_jitted, unassigned_reads
from synknumba.simt._source.scope import WIDTH_DEPENDENT, Scope, indices_as_int32, misspelt
from synknumba.simt._source.syntax import place
from synknumba.simt._source.written import Source

# Name of the `Cuda` object in the globals of rewritten code; also marks frames as user code.
MARK: Final = "_k_cuda"

_OPERATORS: Final[dict[type[ast.operator | ast.unaryop], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.MatMult: operator.matmul, ast.Pow: operator.pow,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
# Nested scopes, where a `yield` would not suspend the thread.
_INNER: Final = (
    ast.FunctionDef,
    ast.Lambda,
    ast.GeneratorExp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.ClassDef,
)
# Its functions are valid in Python, too; to compile one takes longer than most checks.
_RANDOM: Final = "synknumba.random"
# Plain functions of these modules are called unchanged: debuggers, built-ins and NumPy.
_AS_THEY_ARE: Final = frozenset(
    {"pdb", "bdb", "ipdb", "pudb", "debugpy", "IPython", "web_pdb", "builtins", "numpy"}
)


@dataclass(slots=True)
class SourceFunction:
    """A kernel or device function of a program."""

    source: Source
    waits: bool = False  # whether a thread may wait in the function
    calls: set[FunctionType] = field(default_factory=set)  # the device functions it names
    code: CodeType | None = None  # rewritten
    # of global names; a `FunctionType` stands for its rewritten code
    bindings: dict[str, Any] = field(default_factory=dict)
    # global arrays, and tuples that may contain arrays
    constants: dict[str, Any] = field(default_factory=dict)
    declared: tuple[Declared, ...] = ()  # signatures in the decorator, if any
    # variables that may be read unassigned, and are then replaced
    unassigned: frozenset[str] = frozenset()


def device_code(value: Any) -> FunctionType | None:
    """Returns the plain function of a `cuda.jit`, `simt.jit` or `njit` function; None for any
    other value.
    """
    if is_jitted(value):
        return getattr(value, "py_func", None) or value.fn  # `fn` in Numba's CUDA simulator
    return None


def is_waiting_call(scope: Scope, node: ast.Call) -> bool:
    value = scope.resolve(node.func)
    if isinstance(value, CudaPath):
        return value.path in WAITING
    return _is_sync(value, node)


def _is_sync(value: Any, node: ast.Call) -> bool:
    """Returns whether the call may be a grid group's `sync`, since any variable may hold the
    group.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr="sync"), args=[], keywords=[]):
            return value is MISSING
    return False


def _sync(group: Any) -> Generator[Request, Any, Any]:
    if isinstance(group, GridGroup):
        return (yield Request(GRID_SYNC))
    return group.sync()


class Rewriter(ast.NodeTransformer):
    """Rewrites a function's syntax tree in place and compiles it."""

    def __init__(
        self,
        function: SourceFunction,
        waits: Callable[[FunctionType], bool],
        *,
        is_kernel: bool,
        stand_ins: bool = False,
    ) -> None:
        self.function, self.source, self._waits = function, function.source, waits
        self.scope, self.is_kernel = Scope(self.source), is_kernel
        if stand_ins and not _has_inner(self.source.tree):
            self.function.unassigned = unassigned_reads(self.source.tree)
        self._inner = 0
        self._array_name = ""

    def run(self) -> None:
        tree = self.source.tree
        tree.body = [self.visit(statement) for statement in tree.body]
        for name in sorted(self.function.unassigned):
            nothing = ast.Attribute(ast.Name(MARK, ast.Load()), "_unassigned", ast.Load())
            tree.body.insert(
                0, place(ast.Assign([ast.Name(name, ast.Store())], nothing), tree.body[0])
            )
        if self.is_kernel or self.function.waits:
            # An unreachable `yield` makes the function a generator. On the first line, debuggers do
            # not stop at it.
            never = ast.If(ast.Constant(value=False), [ast.Expr(ast.Yield())], [])
            tree.body.insert(0, place(never, tree.body[0]))
        tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kwonlyargs)
        module = ast.fix_missing_locations(ast.Module([tree], []))
        self.function.code = compile(module, self.source.filename, "exec", dont_inherit=True)

    # ---- names

    def _bind(self, node: ast.AST, word: str, value: Any) -> ast.expr:
        """Binds the value to a global name and returns the name node."""
        bindings, name, number = self.function.bindings, f"_k_{word}", 0
        while name in bindings and bindings[name] is not value:
            number += 1
            name = f"_k_{word}_{number}"
        bindings[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _replacement(self, node: ast.expr, value: Any) -> ast.expr | None:
        """Returns the replacement of a name or attribute with this value; None if it stays
        unchanged.
        """
        if isinstance(value, CudaPath):
            return self._cudamember(node, value)
        callee = device_code(value)
        if callee is not None:
            if self._waits(callee):
                raise self.source.refusal(
                    node,
                    f"{callee.__name__} as a value",
                    "call it by its name: it synchronises threads",
                )
            return self._bind(node, callee.__name__, callee)
        if isinstance(value, (np.ndarray, tuple)):
            name = f"_k_{ast.unparse(node)}"
            if isinstance(node, ast.Name):
                name = node.id
            self.function.constants[name] = value
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        return None

    def _cudamember(self, node: ast.expr, value: CudaPath) -> ast.expr | None:
        """Returns the replacement of a member of `numba.cuda`. The module keeps its name, for
        use in a debugger.
        """
        word = value.path.replace(".", "_")
        if value.path not in KNOWN_PATHS:
            if value.path in FUNCTIONS:
                return self._bind(node, word, _of_library(FUNCTIONS[value.path]))
            try:
                value_of_gpu = member(cuda_module(), value.path)
            except AttributeError:
                value_of_gpu = None
            if not isinstance(value_of_gpu, (types.Type, int, float, ModuleType)):
                if way_out(value.path) == way_out("") and (mistake := misspelt(value.path)):
                    raise self.source.error(node, mistake)
                raise self.source.refusal(node, f"cuda.{value.path}", way_out(value.path))
            if value_of_gpu == bfloat16.kind():
                value_of_gpu = as_numpy(value_of_gpu).type
            return self._bind(node, word, value_of_gpu)
        if isinstance(node, ast.Attribute) and isinstance(self.scope.resolve(node.value), CudaPath):
            node.value = self.visit(node.value)
            return node
        if value.path == "laneid":  # an attribute, as the value depends on the thread
            return place(ast.Attribute(ast.Name(MARK, ast.Load()), "laneid", ast.Load()), node)
        if isinstance(node, ast.Name):
            self.function.bindings[node.id] = value
            return node
        return self._bind(node, f"cuda_{word}", value)

    def visit_Name(self, node: ast.Name | ast.Attribute) -> ast.expr:
        replacement = None
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in self.function.unassigned:
                return self._assigned(node)
            case ast.expr(ctx=ast.Load()):
                replacement = self._replacement(node, self.scope.resolve(node))
        return replacement or self.generic_visit(node)  # type: ignore[return-value]

    visit_Attribute = visit_Name

    def _assigned(self, node: ast.Name) -> ast.expr:
        """Returns the read of a variable that may be unassigned, which then has another value."""
        function = ast.Attribute(ast.Name(MARK, ast.Load()), "_assigned", ast.Load())
        return place(
            ast.Call(function, [ast.Name(node.id, ast.Load()), ast.Constant(node.id)], []), node
        )

    # ---- calls

    def visit_Call(self, node: ast.Call) -> ast.expr:
        value = self.scope.resolve(node.func)
        if isinstance(value, CudaPath) and value.path in WAITING:
            return self._wait(node, value.path)
        if isinstance(value, CudaPath) and value.path in {"shared.array", "local.array"}:
            return self._array(node, value.path)
        callee = device_code(value)
        is_overloaded = callee is not None and len(declared_signatures(value)) > 1
        if is_overloaded or (isinstance(value, CudaPath) and value.path in WIDTH_DEPENDENT):
            node.args = indices_as_int32(node.args, self.scope, self._int32)
        if callee is not None:
            self._arguments(node)
            node.func = self._bind(node.func, callee.__name__, callee)
            if not self._waits(callee):
                return node
            self._may_wait(node)
            return ast.copy_location(ast.YieldFrom(node), node)
        if _is_sync(value, node):
            self._may_wait(node)
            call = self._operation(node, "sync", _sync, [self.visit(node.func.value)])  # type: ignore[attr-defined]
            return ast.copy_location(ast.YieldFrom(call), node)
        function = self._function(node, value)
        if function is not None:
            node.func = self._bind(node.func, getattr(value, "__name__", str(value)), function)
        return self.generic_visit(node)  # type: ignore[return-value]

    def _int32(self, node: ast.expr) -> ast.expr:
        return self._operation(node, "int32", np.int32, [node])

    def _arguments(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def _wait(self, node: ast.Call, path: str) -> ast.expr:
        self._may_wait(node)
        self._arguments(node)
        node.func = self._bind(node.func, "request", request)
        node.args.insert(0, ast.copy_location(ast.Constant(path), node))
        return ast.copy_location(ast.Yield(node), node)

    def _may_wait(self, node: ast.AST) -> None:
        if self._inner:
            what = "synchronising threads in a function inside a kernel"
            raise self.source.refusal(node, what, "move it to the kernel itself")

    def _array(self, node: ast.Call, path: str) -> ast.expr:
        name = self._array_name or f"{path.removesuffix('.array')} array of line {node.lineno}"
        hidden = [("name", name)]
        if path == "shared.array":
            hidden.append(("key", f"{self.source.name}:{node.lineno}:{node.col_offset}"))
        node.keywords += [
            ast.keyword(key, ast.copy_location(ast.Constant(text), node)) for key, text in hidden
        ]
        node.func = self.visit(node.func)
        return self._arguments(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        target = node.targets[0]
        self._array_name = getattr(target, "id", "")
        node.value = self.visit(node.value)
        self._array_name = ""
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def _function(self, node: ast.Call, value: Any) -> Callable[..., Any] | None:
        """Returns the replacement of a called function or type; None if the call stays
        unchanged.
        """
        if id(value) in arithmetic.CALLS:
            return arithmetic.CALLS[id(value)]
        if isinstance(value, (types.Number, types.Boolean)) or (
            isinstance(value, type) and issubclass(value, np.number)
        ):
            kind = as_numpy(value).type
            return lambda number: arithmetic.convert(number, kind)
        if isinstance(value, _Intrinsic):
            return _of_library(value)
        module = getattr(value, "__module__", None) or ""
        is_as_it_is = module == _RANDOM or module.split(".")[0] in _AS_THEY_ARE
        if not isinstance(value, FunctionType) or is_as_it_is:
            return None
        if not _numba_knows(value):
            way = "decorate it with cuda.jit(device=True) or njit"
            raise self.source.refusal(
                node, f"a call of the plain Python function {value.__name__}()", way
            )
        return _compiled(value)

    # ---- operators

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        operands = [self.visit(node.left), self.visit(node.right)]
        return self._operation(node, "binary", arithmetic.binary, [self._operator(node), *operands])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not) or isinstance(node.operand, ast.Constant):
            return node
        return self._operation(
            node, "unary", arithmetic.unary, [self._operator(node), node.operand]
        )

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        sign, value, target = self._operator(node), self.visit(node.value), node.target
        if isinstance(target, ast.Name):
            old: ast.expr = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            if target.id in self.function.unassigned:
                old = self._assigned(target)
            new = self._operation(node, "binary", arithmetic.binary, [sign, old, value])
            return ast.copy_location(ast.Assign([target], new), node)
        container = self.visit(target.value)
        if isinstance(target, ast.Subscript):
            word, key = "update_element", index_value(self.visit(target.slice))
        else:
            word, key = "update_attribute", ast.copy_location(ast.Constant(target.attr), target)
        call = self._operation(
            target, word, getattr(arithmetic, word), [container, key, sign, value]
        )
        return ast.copy_location(ast.Expr(call), node)

    def _operator(self, node: ast.BinOp | ast.UnaryOp | ast.AugAssign) -> ast.expr:
        function = _OPERATORS[type(node.op)]
        return self._bind(node, function.__name__, function)

    def _operation(
        self, node: ast.AST, word: str, function: Callable[..., Any], args: list[ast.expr]
    ) -> ast.expr:
        return ast.copy_location(ast.Call(self._bind(node, word, function), args, []), node)

    # ---- nested scopes and the user's own `yield`

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise self.source.refusal(node, "yield or await")
        if not isinstance(node, _INNER):
            return super().visit(node)
        self._inner += 1
        try:
            return super().visit(node)
        finally:
            self._inner -= 1


def _has_inner(tree: ast.FunctionDef) -> bool:
    """Returns whether there is a scope inside the function, which may read its variables at any
    time.
    """
    return any(isinstance(node, _INNER) for statement in tree.body for node in ast.walk(statement))


def _compiled(function: Any) -> Callable[..., Any]:
    """Wraps a function that only Numba can compile, so that Python can call it."""
    compiled = njit(lambda *args: function(*args))  # noqa: PLW0108  # Numba compiles Python functions only

    def call(*args: Any) -> Any:
        if any(isinstance(arg, (Array, Record)) for arg in args):
            name = getattr(function, "__name__", str(function))
            raise KernelError(
                f"{name}() works on an array in compiled code, where its indices cannot be "
                f"checked; write it with njit"
            )
        try:
            bfloat16.prepare()
            result = compiled(*args)
        except (NumbaError, NotImplementedError) as error:
            name = getattr(function, "__name__", str(function))
            raise KernelError(
                f"{name}() cannot be compiled for the CPU; register it for every target\n{error}"
            ) from error
        if bfloat16.kind() is None:
            return result
        kind = compiled.overloads[typeof(args),].signature.return_type
        if kind == bfloat16.kind():  # comes back as a float
            return bfloat16.as_dtype(kind).type(result)
        return result

    return call


# Of functions that have no overloads, to which a program could add: compiled once for all kernels.
_of_library: Final = functools.cache(_compiled)


def index_value(index: ast.expr, slice_name: str = "slice") -> ast.expr:
    """Returns an index as an ordinary expression, with slices as calls of `slice`, which has the
    given name.
    """
    if isinstance(index, ast.Slice):
        parts = [part or ast.Constant(None) for part in (index.lower, index.upper)]
        if index.step is not None:
            parts.append(index.step)
        return ast.copy_location(ast.Call(ast.Name(slice_name, ast.Load()), parts, []), index)
    if isinstance(index, ast.Tuple):
        parts = [index_value(part, slice_name) for part in index.elts]
        return ast.copy_location(ast.Tuple(parts, ast.Load()), index)
    return index


def _numba_knows(function: FunctionType) -> bool:
    """Returns whether Numba can call the plain function, by `overload` or `register_jitable`."""
    # else it lacks what was registered since Numba has last compiled something
    cpu_target.typing_context.refresh()
    try:
        cpu_target.typing_context.resolve_value_type(function)
    except Exception:  # noqa: BLE001  # raises many types
        return False
    return True
