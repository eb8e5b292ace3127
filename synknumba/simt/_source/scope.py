"""Name resolution in kernels: global names, members of `numba.cuda`, local variables, index types.

Global names are resolved to objects, not compared as text: `cuda.grid`, `numba.cuda.grid`,
`nc.grid` and an imported `grid` are all the same function. Local variables include those of inlined
device functions, renamed where names clash.

In CUDA, `cuda.threadIdx.x` and the other indices are int32, and `cuda.grid(1)` is int64. Here all
are int64, like the loop variables over threads. The difference is visible in two places only, where
indices are converted to int32: bit operations, and overload resolution among the signatures of a
device function.
"""

import ast
import builtins
import difflib
import dis
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Final

from numba.core import types

from synknumba.simt._library.synchronisation import BARRIER_PATHS, COLLECTIVES
from synknumba.simt._library.words import INDICES
from synknumba.simt._maths.operations import FUNCTIONS, HEADS, MODULES
from synknumba.simt._source import mlir
from synknumba.simt._source.kernel_names import path_of
from synknumba.simt._source.numba_cuda import (
    MISSING,
    CudaPath,
    cuda_module,
    is_cuda_module,
    is_of_module,
)
from synknumba.simt._source.pickling import is_foreign
from synknumba.simt._source.reads import functions_called, is_device_function, names_in, values_read
from synknumba.simt._source.syntax import (
    assigned_names,
    count_stores,
    param_names,
    read_names,
    walk,
)
from synknumba.simt._source.written import Source

# Members of `numba.cuda` that are numbers of a thread.
NUMBERS: Final = frozenset({*INDICES, "laneid", "warpsize"})


def misspelt(path: str) -> str | None:
    """Returns what is wrong with a path that `numba.cuda` does not have, and the nearest one;
    None if it has it.
    """
    if mlir.has(path):
        return None  # and cannot run here
    value: Any = cuda_module()
    parts = path.split(".")
    for number, part in enumerate(parts):
        if hasattr(value, part):
            value = getattr(value, part)
            continue
        if number and not isinstance(value, (ModuleType, type)):
            return None  # a member of a value
        before, near = ".".join(("cuda", *parts[:number])), _nearest_member(value, part)
        message = f"numba.{before} has no {part}"
        if near is not None:
            message += f"; did you mean {before}.{near}?"
        return message
    return None


def _nearest_member(value: Any, name: str) -> str | None:
    head, _, rest = name.partition("_")
    if hasattr(getattr(value, head, None), rest):
        return f"{head}.{rest}"  # atomic_add
    by_lower = {member.lower(): member for member in dir(value) if not member.startswith("_")}
    for near in difflib.get_close_matches(name.lower(), by_lower, 1, 0.6):
        return by_lower[near]
    return None


def with_function(device_function: Any, function: FunctionType) -> Any:
    """Returns a device function like another, made by `cuda.jit` with the same options, of
    another plain function.
    """
    return type(device_function)(function, targetoptions=device_function.targetoptions)


class Scope:
    """Resolves the names in a function.

    Attributes:
        source: the function.
        locals: its parameters, variables and inner functions.
        constants: local variables assigned once, and the expressions assigned.
        aliases: local variables that stand for a member of `numba.cuda` that is no value, as after
            `tid = cuda.threadIdx`.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.locals = (
            set(source.params) | assigned_names(source.tree) | _names_of_functions(source.tree)
        )
        self.constants = _constants(source)
        self._cuda = cuda_module()
        self._paths = _members(self._cuda)
        self.aliases: dict[str, CudaPath] = {}
        # an alias may be assigned from another one
        while (aliases := self._aliases_of(source)) != self.aliases:
            self.aliases = aliases

    def _aliases_of(self, source: Source) -> dict[str, CudaPath]:
        stores = count_stores(source.tree)
        fixed = {*source.params, *_names_of_functions(source.tree)}
        assigned: dict[str, list[Any]] = {}
        for name, value in _assignments(source.tree):
            if isinstance(value, (ast.Name, ast.Attribute)) and name not in fixed:
                assigned.setdefault(name, []).append(self.resolve(value))
        aliases = {}
        for name, values in assigned.items():
            if _is_no_value(values[0]) and values.count(values[0]) == stores[name]:
                aliases[name] = values[0]
        return aliases

    def resolve(self, node: ast.expr) -> Any:
        """Resolves a name, or attributes and constant indices of one, to an object, a `CudaPath`
        or `MISSING`.
        """
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                return self.aliases.get(node.id, MISSING)
            return self._known(self.source.scope.get(node.id, getattr(builtins, node.id, MISSING)))
        if isinstance(node, ast.Subscript):
            return self._part(node)
        if not isinstance(node, ast.Attribute):
            return MISSING
        base = self.resolve(node.value)
        if isinstance(base, CudaPath):
            if base.path == "random":  # ordinary functions
                return getattr(getattr(self._cuda, "random", None), node.attr, MISSING)
            return base.below(node.attr)
        if isinstance(base, (ModuleType, type)):
            return self._known(getattr(base, node.attr, MISSING))
        return MISSING

    def path_of(self, node: ast.expr) -> str | None:
        """Returns the path below `numba.cuda` that an expression resolves to, else None."""
        target = self.resolve(node)
        return target.path if isinstance(target, CudaPath) else None

    def _part(self, node: ast.Subscript) -> Any:
        """Resolves an element of a tuple, by a constant index."""
        match node.slice:
            case ast.Constant(value=int(position)):
                functions = self.resolve(node.value)
                if isinstance(functions, tuple) and position in range(len(functions)):
                    return self._known(functions[position])
        return MISSING

    def _known(self, value: Any) -> Any:
        value = mlir.counterpart(value)
        if isinstance(value, CudaPath):
            return value
        if is_cuda_module(value):
            return CudaPath("")
        if isinstance(value, (int, float, str)):
            return value
        path = self._paths.get(id(value)) or path_of(value) or _path_in_module(value)
        if path is None:
            return value
        return CudaPath(path)

    def mentions_cuda(self, function: FunctionType) -> bool:
        """Returns whether a function, or an njit function that it calls, refers to `numba.cuda`
        or a device function.
        """
        values = chain.from_iterable(map(values_read, functions_called(function)))
        return any(map(self._is_of_cuda, map(mlir.counterpart, values)))

    def _is_of_cuda(self, value: Any) -> bool:
        if isinstance(self._known(value), CudaPath):
            return True
        return is_device_function(value) or is_foreign(value)


def _is_no_value(value: Any) -> bool:
    """Returns whether this is a member of `numba.cuda` that a kernel can name but not compute
    with: a module, a barrier.
    """
    if not isinstance(value, CudaPath):
        return False
    if value.path in NUMBERS or value.path in FUNCTIONS:
        return False
    member = value.member()
    return member is not MISSING and not isinstance(member, (types.Type, int, float))


_DEFINED: Final = (FunctionType, type)


def _members(cuda: ModuleType) -> dict[int, str]:
    """Maps the id of each member of `numba.cuda` to its path; a program may have imported it
    under another name.
    """
    paths = {}
    for name, value in vars(cuda).items():
        if isinstance(value, FunctionType):
            paths[id(value)] = name
    # op = cuda.atomic.add outside the kernel; members with an identity
    for head in ("atomic", "shared", "local", "const"):
        group = getattr(cuda, head, None)
        if not isinstance(group, type):
            continue
        for name in vars(group):
            value = getattr(group, name)
            if isinstance(value, _DEFINED):
                paths[id(value)] = f"{head}.{name}"
    for head in HEADS:
        if hasattr(cuda, head):
            paths[id(getattr(cuda, head))] = head
    return paths


# Where numba-cuda defines what these submodules import.
_GENERATED: Final = {
    "numba.cuda._internal.cuda_fp16": "fp16",
    "numba.cuda._internal.cuda_bf16": "bf16",
}


def _path_in_module(value: Any) -> str | None:
    """Returns the path of a `numba.cuda` submodule whose functions are for kernels, or of one of
    its functions.

    Returns None for all other values, including those defined in other submodules of `numba.cuda`.
    """
    home = getattr(value, "__module__", None)
    if isinstance(value, ModuleType):
        home = value.__name__
    if home in _GENERATED and isinstance(value, FunctionType):
        return f"{_GENERATED[home]}.{value.__name__.lstrip('_')}"
    package, _, module = str(home).rpartition(".")
    if package != "numba.cuda" or module not in MODULES:
        return None
    if value is sys.modules.get(str(home)):
        return module
    if not is_of_module(value, str(home)):
        return None
    return f"{module}.{value.__name__}"


# Names used only by kernels whose threads cooperate; and those that tell a thread's block.
_BLOCK_WORDS = frozenset({"shared", "cg", *BARRIER_PATHS, *COLLECTIVES})
_PLACE_WORDS = frozenset({"threadIdx", "blockIdx", "laneid"})


def splits_block(function: FunctionType) -> bool:
    """Estimates, without translating, whether code specialised for a block size is much faster.

    True for kernels split into regions by barriers, shared memory or warp operations, judged by the
    names in the kernel and the functions it calls. True for kernels with a loop too, since loop
    inversion may make the innermost loop as long as the block.
    """
    return _has_loop(function) or _uses(function, _BLOCK_WORDS)


def may_gather_blocks(function: FunctionType) -> bool:
    """Estimates, without translating, whether launches of small blocks need code that gathers
    their threads in larger ones.

    False for kernels whose threads cooperate, and for kernels that are flat without it: those that
    have no loop, and no index but the global one.
    """
    if _uses(function, _BLOCK_WORDS):
        return False
    return _has_loop(function) or _uses(function, _PLACE_WORDS)


def _has_loop(function: FunctionType) -> bool:
    instructions = dis.get_instructions(function)
    return any(instruction.opname.startswith("JUMP_BACKWARD") for instruction in instructions)


def _uses(function: FunctionType, words: frozenset[str]) -> bool:
    """Returns whether the function, or one that it calls, uses a member of `numba.cuda`."""
    cuda = cuda_module()
    members = {id(getattr(cuda, word)) for word in words if hasattr(cuda, word)}
    for called in functions_called(function):
        if not words.isdisjoint(names_in(called.__code__)):
            return True
        if not members.isdisjoint(map(id, map(mlir.counterpart, values_read(called)))):
            return True
    return False


def _names_of_functions(tree: ast.FunctionDef) -> set[str]:
    """Returns the names of functions inside a function, and of their parameters."""
    names = set()
    for node in walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not tree:
            names |= param_names(node)
            names.add(getattr(node, "name", ""))
    return names - {""}


def _constants(source: Source) -> dict[str, ast.expr]:
    """Returns the expressions of local variables assigned once, as in `n = 16`; not those with a
    call or a subscript.
    """
    stores, constants = count_stores(source.tree), {}
    for name, value in _assignments(source.tree):
        if stores[name] != 1 or name in source.params:
            continue
        if not any(isinstance(part, (ast.Call, ast.Subscript)) for part in walk(value)):
            constants[name] = value
    return constants


def _assignments(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Yields the variable and expression of each plain assignment, with `n, m = 16, 4` and
    `n = m = 16` split into two.
    """
    for node in walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _pairs(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _pairs(target, value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for left, right in zip(targets, values, strict=True):
                yield from _pairs(left, right)


class Locals:
    """The local variables of one function as the user wrote it, and new names for those of
    functions inlined into it.
    """

    def __init__(self, source: Source, scope: Scope) -> None:
        self._source = source
        self._taken = set(scope.locals)
        self._stores = count_stores(source.tree)

    def is_assigned_once(self, name: str) -> bool:
        """Returns whether the function assigns the variable exactly once."""
        return self._stores[name] == 1

    def new(self, name: str, function: str) -> str:
        """Returns a new variable name, for a variable of an inlined function."""
        number, new = 1, f"{name}_{function}"
        while new in self._taken or new in self._source.scope:
            number += 1
            new = f"{name}_{function}{number}"
        self._taken.add(new)
        return new

    def check_known_at_launch(self, dtype: ast.expr, at: ast.AST) -> None:
        """Rejects a shared array whose dtype depends on variables: the array is allocated before
        they are assigned.
        """
        for name in sorted(read_names(dtype) & self._taken):
            if name not in self._source.params or self._stores[name]:
                construct = f"a shared array whose dtype is in the variable {name!r}"
                raise self._source.refusal(
                    at, construct, "write the dtype, or `x.dtype` of an argument of the kernel"
                )


# Operations of `numba.cuda` whose result depends on the width of an integer.
WIDTH_DEPENDENT: Final = frozenset({"brev", "clz", "ffs", "popc"})


def is_index(node: ast.expr, scope: Scope) -> bool:
    """Returns whether an expression is an index, a size, a lane or the warp size, or a variable
    bound only to one.
    """
    followed: set[str] = set()
    while isinstance(node, ast.Name) and node.id in scope.constants.keys() - followed:
        followed.add(node.id)
        node = scope.constants[node.id]
    value = scope.resolve(node)
    return isinstance(value, CudaPath) and value.path in NUMBERS


def indices_as_int32(
    nodes: list[ast.expr], scope: Scope, int32: Callable[[ast.expr], ast.expr]
) -> list[ast.expr]:
    """Returns the arguments of a call, with indices converted by `int32`; `scope` has the names
    of the caller.
    """
    return [int32(node) if is_index(node, scope) else node for node in nodes]
