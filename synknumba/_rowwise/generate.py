"""Kernels generated around a user's function: their names, and how their text becomes a Python
function.
"""

import builtins
import dis
import hashlib
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, Literal, TypeAlias

import numpy as np
from numba.core import types

from synknumba._errors import GENERATED
from synknumba.simt.internals import cuda_module

SIGNED, UNSIGNED = "synk_int64", "synk_uint64"  # the types of indices in a generated kernel
THREADS = 256  # of a block
INDEX_TYPES: Mapping[str, Any] = {SIGNED: types.int64, UNSIGNED: types.uint64}

Kind: TypeAlias = Literal["rows", "numbers", "indices", "number", "whole", "scalar"]
"""What a kernel gets of an argument: an array of rows, or of rows that are numbers; the global
indices of rows; a 0-d array; an array passed whole; the argument itself.
"""
ARRAYS_OF_ROWS: frozenset[Kind] = frozenset({"numbers", "rows"})
DIVIDED: frozenset[Kind] = ARRAYS_OF_ROWS | {"indices"}  # over the ranks

# Limits of a light function: Python instructions, and calls.
_LIGHT_INSTRUCTIONS = 64
_LIGHT_CALLS = 3


def kernel_name(what: str, function: str) -> str:
    """A name for the kernel around a function, which may be a lambda."""
    return f"{what}_{function}" if function.isidentifier() else f"{what}_rows"


def is_light(function: Callable[..., Any]) -> bool:
    """Whether a function seems to cost little beside reading its arguments: some arithmetic,
    functions of `math`, no loop.

    A kernel may then contain it several times, for several rows at once. With a heavy function such
    a kernel is slower, and slower to compile.

    >>> is_light(lambda x, y: y * math.exp(-x * x))
    True
    >>> is_light(lambda x: sum(x for _ in range(10)))
    False
    """
    code = function.__code__
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        return False  # an inner function, of unknown cost
    instructions, calls = [], 0
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "PRECALL":  # Python 3.11 has it before a CALL
            continue
        if "BACKWARD" in name or name.startswith("FOR_"):  # a loop
            return False
        calls += name.startswith("CALL")
        instructions.append(instruction)
    if calls > _LIGHT_CALLS or len(instructions) > _LIGHT_INSTRUCTIONS:
        return False
    try:
        return all(map(_is_light_value, _outside(function, instructions)))
    except ValueError:  # an empty cell: the name has no value yet
        return False


def _outside(
    function: Callable[..., Any], instructions: Iterable[dis.Instruction]
) -> Iterator[object]:
    """The values of the global and closure names that a function reads."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for instruction in instructions:
        if instruction.opname == "LOAD_GLOBAL":
            yield function.__globals__.get(
                instruction.argval, getattr(builtins, instruction.argval, None)
            )
        elif instruction.argval in cells and instruction.opname.startswith("LOAD_"):
            yield cells[instruction.argval].cell_contents


def _is_light_value(value: object) -> bool:
    """Whether a value is a number, an array or type of numbers, or of `math`."""
    if isinstance(value, tuple):
        return all(map(_is_light_value, value))
    if isinstance(value, int | float | complex | np.number | np.ndarray | types.Number):
        return True
    if any(value is light for light in (math, np, abs, bool, float, int, max, min)):
        return True
    return getattr(value, "__module__", None) == "math"


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a kernel, one level deeper."""
    return (f"    {line}" for line in lines)


def numbered(count: int, *lines: str) -> list[str]:
    """Lines of a kernel for each number below `count`, which is # in them."""
    return [line.replace("#", str(number)) for number in range(count) for line in lines]


def row_count(parameter: str, *, is_range: bool) -> str:
    """The number of rows of a parameter in a kernel."""
    return f"{parameter}.stop - {parameter}.start" if is_range else f"{parameter}.shape[0]"


def kernel_text(name: str, parameters: Iterable[str], body: Iterable[str]) -> str:
    """The source of a kernel, from the lines of its body."""
    return "\n".join([f"def {name}({', '.join(parameters)}):", *indented(body)]) + "\n"


def define_kernel(
    text: str, name: str, what: str, function: Any, scope: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compiles a kernel's source to a Python function whose source `inspect` finds, on the ranks
    too.

    Args:
        text: the source.
        name: the kernel's.
        what: the feature it is generated for; part of its file name.
        function: the user's, from `InnerFunction.device_function`; `synk_function` in the text.
        scope: values of the other names in the text, besides `cuda`.
    """
    namespace = {
        "synk_function": function,
        "cuda": cuda_module(),
        "__name__": function.py_func.__module__,
        **scope,
    }
    kernel = define(text, name, what, namespace)
    kernel.__doc__ = function.py_func.__doc__
    return kernel


def define(text: str, name: str, what: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Returns a function from its source, which `inspect` finds; the arguments are those of
    `define_kernel`.
    """
    # the same text, the same name: kernels on disk are found again
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    filename = f"{GENERATED}{what} {digest}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)  # noqa: S102  # generated
    return scope[name]  # type: ignore[no-any-return]
