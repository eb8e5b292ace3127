"""What the names in a kernel stand for.

They are resolved to objects, not compared as text: `cuda.grid`, `numba.cuda.grid`, `nc.grid` and an imported `grid` are all the
same function.

The variables of a function that is being translated, and those of the functions pasted into it.

Where it matters that indices are int32 in CUDA.

`cuda.threadIdx.x` and its like are int32 there, `cuda.grid(1)` is int64. Here all are int64, as the loops over threads are, and
that shows in few places: operations on bits, and the choice between signatures of a device function.
"""

import ast
import builtins
import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

from synknumba.simt._frontend.pickling import is_foreign
from synknumba.simt._frontend.source import Source
from synknumba.simt._frontend.syntax import assigned_names, read_names, walk
from synknumba.simt._library.operations import HEADS, INDICES, MODULES, cuda_module
from synknumba.simt._library.synchronisation import BARRIER_PATHS, COLLECTIVES


@dataclass(frozen=True, slots=True)
class CudaPath:
    """Something below the module `numba.cuda`, by its dotted path."""

    path: str


class _Missing:
    """Stands for a name that is not known before the kernel runs."""


MISSING: Final = _Missing()


def is_device_function(value: object) -> bool:
    """Whether the value is made by `cuda.jit`, by the simulator's `cuda.jit`, or by `simt.jit`."""
    return type(value).__name__ in {"CUDADispatcher", "FakeCUDAKernel"} or hasattr(value, "__simt_kernel__")


def is_njit_function(value: object) -> bool:
    """Whether the value is made by `njit`."""
    return type(value).__name__ == "CPUDispatcher"


class Scope:
    """Finds out what the names in a function stand for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.locals = set(source.params) | assigned_names(source.tree) | _names_of_functions(source.tree)
        self.constants = _constants(source)
        self._cuda = cuda_module()
        self._paths = _members(self._cuda)

    def resolve(self, node: ast.expr) -> Any:
        """What a name, or a chain of attributes that begins with one, stands for: an object, a `CudaPath` or `MISSING`."""
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                return MISSING
            return self._known(self.source.scope.get(node.id, getattr(builtins, node.id, MISSING)))
        if not isinstance(node, ast.Attribute):
            return MISSING
        base = self.resolve(node.value)
        if isinstance(base, CudaPath) and base.path == "random":
            return getattr(self._cuda.random, node.attr, MISSING)  # ordinary functions
        if isinstance(base, CudaPath):
            return CudaPath(f"{base.path}.{node.attr}" if base.path else node.attr)
        if isinstance(base, (ModuleType, type)):
            return self._known(getattr(base, node.attr, MISSING))
        return MISSING

    def _known(self, value: Any) -> Any:
        if value is self._cuda:
            return CudaPath("")
        if isinstance(value, (int, float, str)):
            return value
        path = self._paths.get(id(value)) or _path_in_module(value)
        if path is not None:
            return CudaPath(path)
        return value

    def mentions_cuda(self, function: FunctionType, seen: set[FunctionType] | None = None) -> bool:
        """Whether a function, or an njit function that it calls, names anything of `numba.cuda`."""
        seen = seen if seen is not None else set()
        if function in seen:
            return False
        seen.add(function)
        for value in _values_named(function):
            if isinstance(self._known(value), CudaPath) or is_device_function(value) or is_foreign(value):
                return True
            if is_njit_function(value) and self.mentions_cuda(value.py_func, seen):
                return True
        return False


def _members(cuda: ModuleType) -> dict[int, str]:
    """The path below `numba.cuda` of what is found there, by the object's identity: a program may have another name for it."""
    paths = {id(value): name for name, value in vars(cuda).items() if isinstance(value, FunctionType)}
    return paths | {id(getattr(cuda, head)): head for head in HEADS if hasattr(cuda, head)}


def _path_in_module(value: Any) -> str | None:
    """The path of a module below `numba.cuda` whose functions are for kernels, or of such a function.

    Whatever else is defined in some module below `numba.cuda` is nothing special.
    """
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    package, _, module = str(home).rpartition(".")
    if package != "numba.cuda" or module not in MODULES:
        return None
    if value is sys.modules.get(str(home)):
        return module
    is_its_own = isinstance(value, FunctionType) and getattr(sys.modules.get(str(home)), value.__name__, None) is value
    return f"{module}.{value.__name__}" if is_its_own else None


# Names that only kernels use whose threads work together.
_BLOCK_WORDS = frozenset({"shared", "cg", *BARRIER_PATHS, *COLLECTIVES})


def splits_block(function: FunctionType) -> bool:
    """Whether code for one size of block is likely to be much faster, as far as can be told without translating.

    That is where barriers, shared memory or warps cut a kernel, going by the names in it and in the functions that it calls;
    and where a loop may be turned inside out, so that the innermost loop is as long as the block.
    """
    if any(instruction.opname.startswith("JUMP_BACKWARD") for instruction in dis.get_instructions(function)):
        return True
    cuda = cuda_module()
    words = {id(getattr(cuda, word)) for word in _BLOCK_WORDS if hasattr(cuda, word)}
    seen: set[FunctionType] = set()

    def looks(function: FunctionType) -> bool:
        if function in seen:
            return False
        seen.add(function)
        if not _BLOCK_WORDS.isdisjoint(_names_in(function)):
            return True
        values = _values_named(function)
        called = [value.py_func for value in values if is_device_function(value) or is_njit_function(value)]
        return any(id(value) in words for value in values) or any(map(looks, called))

    return looks(function)


def _names_in(function: FunctionType) -> tuple[str, ...]:
    """The names in a function's code that are not its own variables: globals, attributes, those of functions around it."""
    return (*function.__code__.co_names, *function.__code__.co_freevars)


def _values_named(function: FunctionType) -> list[Any]:
    """What these names stand for; as they may be attributes too, whatever the modules among the values have by these names."""
    names = _names_in(function)
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        values += [vars(module)[name] for name in names if name in vars(module)]
    return values


def _names_of_functions(tree: ast.FunctionDef) -> set[str]:
    """The functions inside a function, and their parameters."""
    inner = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not tree]
    params = {node.arg for function in inner for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return params | {node.name for node in inner if isinstance(node, ast.FunctionDef)}


def _constants(source: Source) -> dict[str, ast.expr]:
    """The local variables assigned once, by a plain statement, and their values: `n = 16`, then `shape=n`."""
    stores = Counter(node.id for node in walk(source.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {
        name: value
        for name, value in _assignments(source.tree)
        if stores[name] == 1
        and name not in source.params
        and not any(isinstance(part, (ast.Call, ast.Subscript)) for part in ast.walk(value))
    }


def _assignments(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """The variables and values of all assignments that name both, each of `n, m = 16, 4` among them."""
    for node in walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = list(zip(target.elts, value.elts, strict=True))
            yield from ((left.id, right) for left, right in pairs if isinstance(left, ast.Name))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # reading it is the test
    except ValueError:
        return False
    return True


class Locals:
    """The variables of one function.

    Args:
        source: the function, as the user wrote it.
        scope: its names.
    """

    def __init__(self, source: Source, scope: Scope) -> None:
        self._source = source
        self._taken = set(scope.locals)
        stored = (node.id for node in walk(source.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._stores = Counter(stored)

    def is_assigned_once(self, name: str) -> bool:
        """Whether the function has one assignment to the variable."""
        return self._stores[name] == 1

    def new(self, name: str, function: str) -> str:
        """A new variable, for one of a function that is pasted."""
        number, new = 1, f"{name}_{function}"
        while new in self._taken or new in self._source.scope:
            number += 1
            new = f"{name}_{function}{number}"
        self._taken.add(new)
        return new

    def check_known_at_launch(self, dtype: ast.expr, at: ast.AST) -> None:
        """Refuses the dtype of a shared array that is made of variables: the array is there before they are.

        Raises:
            KernelError: the dtype reads a variable that is not an argument, or an argument that is assigned to.
        """
        for name in sorted(read_names(dtype) & self._taken):
            if name not in self._source.params or self._stores[name]:
                construct = f"a shared array whose dtype is in the variable {name!r}"
                raise self._source.refusal(at, construct, "write the dtype, or `x.dtype` of an argument of the kernel")


# Operations below `numba.cuda` whose result depends on how many bits an integer has.
OF_THE_WIDTH: Final = frozenset({"brev", "clz", "ffs", "popc"})


def is_index(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is an index, a size or a lane, or a variable that is never anything else."""
    followed: set[str] = set()
    while isinstance(node, ast.Name) and node.id in scope.constants and node.id not in followed:
        followed.add(node.id)
        node = scope.constants[node.id]
    found = scope.resolve(node)
    return isinstance(found, CudaPath) and (found.path in INDICES or found.path in {"laneid", "warpsize"})


def as_in_cuda(nodes: list[ast.expr], scope: Scope, int32: Callable[[ast.expr], ast.expr]) -> list[ast.expr]:
    """The arguments of a call, indices among them as int32.

    Args:
        nodes: the expressions.
        scope: what their names stand for.
        int32: makes the expression that converts one.
    """
    return [int32(node) if is_index(node, scope) else node for node in nodes]
