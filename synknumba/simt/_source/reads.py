"""What a function reads and calls: names, values, functions, reads before assignment."""

import ast
import dis
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from synknumba.simt._source import mlir
from synknumba.simt._source.syntax import assigned_names, param_names, read_names

_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})
_CLOSURE_READS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF"})
_ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_DISPATCHERS = frozenset({"CUDADispatcher", "FakeCUDAKernel", "MLIRDispatcher"})


def is_device_function(value: object) -> bool:
    """Returns whether the value was made by a `cuda.jit`, of Numba, its simulator or
    numba-cuda-mlir, or by `simt.jit`.
    """
    return type(value).__name__ in _DISPATCHERS or hasattr(value, "__simt_kernel__")


def is_njit_function(value: object) -> bool:
    """Returns whether the value was made by `njit`."""
    return type(value).__name__ == "CPUDispatcher"


def is_jitted(value: object) -> bool:
    """Returns whether the value is a device function, or was made by `njit`."""
    return is_device_function(value) or is_njit_function(value)


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def names_in(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes that code uses, with the functions inside it."""
    for inner in code_objects(code):
        yield from inner.co_names


def chains_in(code: CodeType, closure: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields each global or closure name read by the code, with the attribute chain read directly
    from it.
    """
    for inner in code_objects(code):
        chain: tuple[str, ...] = ()
        for instruction in dis.get_instructions(inner):
            operation, name = instruction.opname, instruction.argval
            if chain and operation in _ATTRIBUTE_READS:
                chain = (*chain, name)
                continue
            if operation == "EXTENDED_ARG":  # prefix of the next instruction
                continue
            if chain:
                yield chain
            chain = ()
            # a local variable, captured by an inner function, is in no closure
            is_local = operation in _CLOSURE_READS and name not in closure
            if operation in _GLOBAL_READS and not is_local:
                chain = (name,)


def closure_values(function: FunctionType) -> dict[str, Any]:
    """Returns the values of the closure variables; those that the enclosing function has not
    assigned yet are left out.
    """
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            values[name] = cell.cell_contents
    return values


def values_read(function: FunctionType) -> list[Any]:
    """Returns the values of the global and closure names that a function reads, and of its names in
    modules among them.
    """
    names, space = dict.fromkeys(names_in(function.__code__)), function.__globals__
    values = [space[name] for name in names if name in space]
    values += closure_values(function).values()
    for module in [value for value in values if isinstance(value, ModuleType)]:
        values += [vars(module)[name] for name in names if name in vars(module)]
    return values


def functions_called(function: FunctionType) -> Iterator[FunctionType]:
    """Yields a function and the device and njit functions that it calls, directly or not, each
    once.
    """
    visited, waiting = set(), [function]
    while waiting:
        called = waiting.pop()
        if called in visited:
            continue
        visited.add(called)
        yield called
        values = map(mlir.counterpart, values_read(called))
        waiting += [value.py_func for value in values if is_jitted(value)]


def exposed(
    body: Iterable[ast.stmt], tracked: set[str], defined: AbstractSet[str] = frozenset()
) -> tuple[set[str], set[str]]:
    """Finds variables that may be read before assignment (live on entry), and variables assigned on
    every path.

    Args:
        body: statements that run in order.
        tracked: the variables of interest.
        defined: the variables assigned on every path before the statements; the second result
            includes them.
    """
    live: set[str] = set()
    sure = set(defined)

    def reads(node: ast.AST) -> set[str]:
        return (read_names(node) & tracked) - sure

    for statement in body:
        match statement:
            case ast.AnnAssign(value=None):
                continue
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                live |= reads(statement)
                sure |= assigned_names(statement) & tracked
            case ast.If():
                live |= reads(statement.test)
                live_then, sure_then = exposed(statement.body, tracked, sure)
                live_else, sure_else = exposed(statement.orelse, tracked, sure)
                live |= live_then | live_else
                sure |= sure_then & sure_else
            case ast.For(iter=head) | ast.While(test=head):
                live |= reads(head)
                inside = set(sure)
                if isinstance(statement, ast.For):
                    inside |= assigned_names(statement.target) & tracked
                live |= exposed(statement.body, tracked, inside)[0]
                live |= exposed(statement.orelse, tracked, sure)[0]
            case _:
                live |= reads(statement)
    return live, sure


def unassigned_reads(tree: ast.FunctionDef) -> frozenset[str]:
    """Returns the local variables that may be read before their assignment, by a path that the
    syntax allows.
    """
    tracked = assigned_names(tree)
    return frozenset(exposed(tree.body, tracked, param_names(tree) & tracked)[0])
