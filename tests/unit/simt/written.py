"""Kernels written as text, what the compiler makes of them, and plain Python to compare with."""

import ast
import itertools
import linecache
import random
import textwrap
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, int64, njit, typeof, types

from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.generated import define_function
from synknumba.simt._emit.options import Options
from synknumba.simt._library.synchronisation import (
    BARRIER_KINDS,
    BARRIER_PREFIX,
    COLLECTIVE_PREFIX,
    COLLECTIVES,
)
from synknumba.simt._library.words import BLOCK, THREAD
from synknumba.simt._lower.lowering import DeviceFunctions, translate_names
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._source.syntax import unparse
from tests.conformance.simt.python_mode import launch_function

NAMES = {
    "cuda": cuda,
    "np": np,
    "njit": njit,
    "float32": float32,
    "float64": float64,
    "int32": int32,
    "int64": int64,
}
_numbers = itertools.count()


def defined(text: str, name: str = "kernel", **more: Any) -> FunctionType:
    """The function of that name in the text, with a source that Python finds."""
    text = textwrap.dedent(text).strip() + "\n"
    filename = f"<written {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {**NAMES, "__name__": "written", **more}
    exec(compile(text, filename, "exec"), scope)
    found: FunctionType = scope[name]
    return found


def alone(text: str, name: str = "kernel") -> FunctionType:
    """The same text as plain Python, for one thread that is alone on the GPU."""
    zero, one = SimpleNamespace(x=0, y=0, z=0), SimpleNamespace(x=1, y=1, z=1)
    fake = SimpleNamespace(
        jit=lambda function=None, **_: function or (lambda made: made),
        threadIdx=zero,
        blockIdx=zero,
        blockDim=one,
        gridDim=one,
        grid=lambda _: 0,
        syncthreads=lambda: None,
        syncwarp=lambda *_: None,
        shfl_sync=lambda _mask, value, _lane: value,
    )
    return defined(text, name, cuda=fake)


def thread_code(function: FunctionType) -> ThreadCode:
    """One thread's code in plain names."""
    return translate_names(function, DeviceFunctions())


def thread_lines(function: FunctionType) -> list[str]:
    """The same as text."""
    return unparse(thread_code(function).body).splitlines()


def one_thread(function: FunctionType) -> Callable[..., Any]:
    """The plain code of one thread that is alone: it does not wait, and gets its own values
    from shuffles.
    """
    code = thread_code(function)
    scope: dict[str, Any] = {BARRIER_PREFIX + kind: lambda *_: None for kind in BARRIER_KINDS}
    scope |= {COLLECTIVE_PREFIX + path: lambda value, *_: value for path in COLLECTIVES}
    return define_function(
        "kernel", code.source.params, code.body, {**scope, **code.namespace}, code.source
    )


def program_text(
    function: FunctionType, *kinds: types.Type, block: tuple[int, int, int] | None = None
) -> str:
    """The generated launch function, for parameters of these types or of any, and for a block or
    any.
    """
    made = KernelProgram(function, Options())
    return made.text(
        made.launch_body(dict(zip(made.params, kinds, strict=True)) if kinds else {}, block)
    )


def launch(
    function: FunctionType, grid: Any, block: Any, *args: Any, reverse: bool = False, smem: int = 0
) -> None:
    """Runs the generated function in plain Python."""
    program = KernelProgram(function, Options(reverse=reverse))
    sizes = [size if isinstance(size, tuple) else (size,) for size in (grid, block)]
    body = program.launch_body(
        dict(zip(program.params, map(typeof, args), strict=True)), (*sizes[1], 1, 1)[:3]
    )
    launch_function(program, body, *sizes, smem)(*args)


def shape(code: str | list[ast.stmt]) -> tuple[Any, ...]:
    """The loops and conditions of generated code, and what of the user's is written in them.

    A loop over the threads of a block along all axes is `("threads", …)`, one over the blocks of a
    grid `("blocks", …)`; then there are `for`, `while`, `if` and `else`. The other entries name
    variables, `v` or of an array `x[]`, and statements such as `break`. What writes to no variable
    of the user's is left out, and so are the empty conditions that this leaves.
    """
    if isinstance(code, str):
        return shape(parsed(code)[0].body)  # type: ignore[attr-defined]
    return tuple(entry for statement in code for entry in _entries(statement))


def _entries(statement: ast.stmt) -> list[Any]:
    match statement:
        case ast.For(target=ast.Name(id=name)):
            word = "for"
            for indices, index_word in ((THREAD, "threads"), (BLOCK, "blocks")):
                word = index_word if name in indices.values() else word
            match shape(statement.body):
                case (tuple() as inner,) if inner and inner[0] == word != "for":
                    return [inner]  # the next axis
                case inner:
                    return [(word, *inner)]
        case ast.While():
            return [("while", *shape(statement.body))]
        case ast.If():
            parts = ("if", *shape(statement.body)), ("else", *shape(statement.orelse))
            return [part for part in parts if len(part) > 1]
        case ast.Break() | ast.Continue() | ast.Return() | ast.Raise():
            return [type(statement).__name__.lower()]
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            return _written(target)
        case ast.Expr(ast.Call(args=[ast.Name() as array, *_])):
            return [f"{name}[]" for name in _written(array) if name == array.id]
    return []


def _written(target: ast.expr) -> list[str]:
    """The user's name for a target, without the endings that the compiler gives it."""
    if isinstance(target, ast.Subscript):
        return [f"{name}[]" for name in _written(target.value)]
    name = ast.unparse(target).split("__")[0]
    return [] if name.startswith("_k_") else [name]


class Statements:
    """Writes random statements that note in a list where they come, and leave in many ways.

    Args:
        seed: of the choices.
        exits: which of `return`, `break` and `continue` may stand outside the loops that are
            written.
        value: whether a `return` has a value.
    """

    def __init__(
        self, seed: int, exits: tuple[str, ...] = ("return",), *, value: bool = False
    ) -> None:
        self._random = random.Random(seed)
        self._exits = exits
        self._value = value
        self._count = 0

    def text(self, depth: int = 3) -> str:
        return "\n".join(self._body(depth, inside=False))

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _condition(self) -> str:
        # What it says depends on how much has been noted, and on the seed.
        return (
            f"(len(trace) * {self._random.randint(1, 5)} + seed) % "
            f"{self._random.randint(2, 4)} == 0"
        )

    def _body(self, depth: int, *, inside: bool) -> list[str]:
        lines = []
        for _ in range(self._random.randint(1, 3)):
            lines += self._statement(depth, inside=inside)
        return lines

    def _statement(self, depth: int, *, inside: bool) -> list[str]:
        kind = self._random.choice(
            ["note", "exit", *(["if", "if", "else", "for", "while"] if depth else [])]
        )
        number = self._next()
        if kind == "note":
            return [f"trace.append({number})"]
        if kind == "exit":
            leave = self._random.choice([*self._exits, *(["break", "continue"] if inside else [])])
            if leave == "return" and self._value:
                leave = f"return {number}"
            return (
                [f"if {self._condition()}:", f"    {leave}"]
                if self._random.random() < 0.8
                else [leave]
            )
        indent = "    "
        if kind == "if":
            return [
                f"if {self._condition()}:",
                *(indent + line for line in self._body(depth - 1, inside=inside)),
            ]
        if kind == "else":
            then, other = (self._body(depth - 1, inside=inside) for _ in range(2))
            return [
                f"if {self._condition()}:",
                *(indent + line for line in then),
                "else:",
                *(indent + line for line in other),
            ]
        body = [indent + line for line in self._body(depth - 1, inside=True)]
        if kind == "for":
            return [f"for i{number} in range({self._random.randint(1, 3)}):", *body]
        return [
            f"n{number} = 0",
            f"while n{number} < 2:",
            f"    n{number} += 1",
            f"    trace.append(-{number})",
            *body,
        ]


def parsed(text: str) -> list[ast.stmt]:
    """The statements of a text."""
    return ast.parse(textwrap.dedent(text)).body
