"""A model of CUDA's threads in plain Python: every thread is a generator, and yields wherever it
meets others.

    kernel's source -> the same source with `yield` -> one generator a thread -> rounds

In each round every thread that can runs on, in a fixed order, until it yields a request: its name,
the line, its arguments. `cuda.syncthreads()` has become `(yield ("syncthreads", 12, ()))`, and a
call of a device function `(yield from f(...))`. When all threads that must meet wait, each gets its
answer. Where they can never meet the model raises `DivergedError`: the kernel would hang, or be
undefined, on a GPU.

Numba's simulator does the same with a system thread for each CUDA thread. That takes a thousand
times as long, knows neither warps nor several blocks that wait for each other, and cannot run the
threads in another order. For everything that is not about meeting this model uses the simulator's
own module.
"""

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, types
from numba.core.dispatcher import Dispatcher
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAModule
from numba.np.numpy_support import as_dtype

BLOCK_MEETINGS: dict[str, Callable[[list[Any]], Any]] = {
    "syncthreads": lambda _: None,
    "syncthreads_count": lambda flags: sum(bool(flag) for flag in flags),
    "syncthreads_and": lambda flags: int(all(flags)),
    "syncthreads_or": lambda flags: int(any(flags)),
}
VOTES: dict[str, Callable[[dict[int, Any]], Any]] = {
    "all_sync": lambda flags: all(flags.values()),
    "any_sync": lambda flags: any(flags.values()),
    "eq_sync": lambda flags: len({bool(flag) for flag in flags.values()}) == 1,
    "ballot_sync": lambda flags: _mask(lane for lane, flag in flags.items() if flag),
}
SHUFFLES: dict[str, Callable[[int, int], int]] = {
    "shfl_sync": lambda lane, source: source % 32,
    "shfl_up_sync": lambda lane, delta: lane - delta if lane >= delta else lane,
    "shfl_down_sync": lambda lane, delta: lane + delta if lane + delta < 32 else lane,
    "shfl_xor_sync": lambda lane, bits: (lane ^ bits) % 32,
}
MATCHES = {"match_any_sync", "match_all_sync"}
WARP_MEETINGS = {"syncwarp", "activemask", *VOTES, *SHUFFLES, *MATCHES}
EVERY_LANE = 0xFFFFFFFF


class DivergedError(Exception):
    """Threads wait for others that never come."""


class Thread:
    """One thread: its place, what it waits for, and what it gets."""

    def __init__(
        self, block: "Block", place: tuple[int, int, int], size: tuple[int, int, int]
    ) -> None:
        self.block = block
        self.index = Dim3(*place)
        self.linear = place[0] + size[0] * (place[1] + size[1] * place[2])
        self.lane, self.warp = self.linear % 32, self.linear // 32
        self.steps: Any = None
        self.request: tuple[str, int, tuple[Any, ...]] | None = None
        self.answer: Any = None
        self.alive = True

    def advance(self, module: "Module") -> None:
        """Runs until the next request, or the end."""
        module.thread = self
        try:
            self.request = self.steps.send(self.answer)
        except StopIteration:
            self.alive = False
        self.answer = None

    def get(self, answer: Any) -> None:
        self.answer, self.request = answer, None


class Block:
    """The threads of a block, and the shared memory they have in common."""

    def __init__(
        self, place: tuple[int, int, int], size: tuple[int, int, int], dynamic: int
    ) -> None:
        self.index = Dim3(*place)
        self.threads = [Thread(self, place[::-1], size) for place in np.ndindex(size[::-1])]
        self.static: dict[Any, np.ndarray] = {}
        self.dynamic = np.zeros(dynamic, np.uint8)

    def run(self, module: "Module", order: int) -> bool:
        """Runs until all threads have ended, or wait for the other blocks; says whether they
        wait.
        """
        while True:
            for thread in self.threads[::order]:
                if thread.alive and thread.request is None:
                    thread.advance(module)
            live = [thread for thread in self.threads if thread.alive]
            if not live:
                return False
            if not _meet(live):
                if {thread.request[0] for thread in live} == {"grid"}:
                    return True
                waiting = sorted({(thread.request[1], thread.request[0]) for thread in live})
                raise DivergedError(f"threads wait for others that never come: {waiting}")


class Module(FakeCUDAModule):
    """`cuda` inside a kernel."""

    def __init__(self, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        super().__init__(grid, block, 0)
        self.thread: Thread = None  # type: ignore[assignment]
        self.shared_here = SimpleNamespace(array=self._shared_array)

    threadIdx = property(lambda self: self.thread.index)  # noqa: N815
    blockIdx = property(lambda self: self.thread.block.index)  # noqa: N815
    laneid = property(lambda self: self.thread.lane)
    shared = property(lambda self: self.shared_here)

    def popc(self, value: Any) -> int:
        return np.asarray(value).view(f"uint{8 * np.asarray(value).itemsize}").item().bit_count()

    def lanemask_lt(self) -> int:
        return (1 << self.thread.lane) - 1

    def _shared_array(self, shape: Any, dtype: Any) -> np.ndarray:
        block = self.thread.block
        # of a _Number, its attribute
        dtype = as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
        if shape == 0:
            return block.dynamic[: block.dynamic.size // dtype.itemsize * dtype.itemsize].view(
                dtype
            )
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lasti
        if place not in block.static:
            made = np.empty(shape, dtype)
            made.view(np.uint8)[...] = 0xAB  # nobody may count on zeros
            block.static[place] = with_fields(made)
        return block.static[place]


def run(
    function: Any, grid: Any, block: Any, args: tuple[Any, ...], *, shared: int = 0, order: int = 1
) -> None:
    """Launches the kernel.

    Args:
        function: the plain function.
        grid: blocks.
        block: threads of a block.
        args: its arguments; arrays are written to.
        shared: bytes of dynamic shared memory.
        order: 1 runs threads and blocks from the first to the last, -1 from the last to the first.
    """
    size = _three(block)
    module = Module(_three(grid), size)
    generator = _Translation(module).generator(getattr(function, "py_func", function))
    args = tuple(with_fields(arg) for arg in args)
    blocks = [Block(place[::-1], size, shared) for place in np.ndindex(_three(grid)[::-1])][::order]
    for one in blocks:
        for thread in one.threads:
            thread.steps = generator(*args)
    with np.errstate(all="ignore"):
        while blocks:
            blocks = [one for one in blocks if one.run(module, order)]
            for thread in itertools.chain(*(one.threads for one in blocks)):
                thread.get(None)


def _meet(live: list[Thread]) -> bool:
    """Gives their answers to the threads that wait for each other and are complete; says whether
    there were any.
    """
    requests = {thread.request[:2] for thread in live}
    name = next(iter(requests))[0]
    if len(requests) == 1 and name in BLOCK_MEETINGS:
        answer = BLOCK_MEETINGS[name](
            [thread.request[2][0] if thread.request[2] else None for thread in live]
        )
        for thread in live:
            thread.get(answer)
        return True
    warps = itertools.groupby(live, key=lambda thread: thread.warp)
    met = [_meet_in_warp({thread.lane: thread for thread in warp}) for _, warp in warps]
    return any(met)


def _meet_in_warp(warp: dict[int, Thread]) -> bool:
    met = False
    for thread in warp.values():
        if thread.request is None or thread.request[0] not in WARP_MEETINGS:
            continue
        name, line, args = thread.request
        mask = EVERY_LANE if not args else int(args[0]) & EVERY_LANE
        same = {
            lane
            for lane, other in warp.items()
            if other.request is not None and other.request[:2] == (name, line)
        }
        named = same if name == "activemask" else {lane for lane in warp if mask >> lane & 1}
        if named <= same and thread.lane in named:
            _answer(name, {lane: warp[lane] for lane in sorted(named)})
            met = True
    return met


def _answer(name: str, lanes: Mapping[int, Thread]) -> None:
    """Answers threads of a warp that have all made the same request."""
    args = {lane: thread.request[2] for lane, thread in lanes.items()}
    given = {lane: each[1] for lane, each in args.items() if len(each) > 1}
    for lane, thread in lanes.items():
        if name in SHUFFLES:
            source = SHUFFLES[name](lane, int(args[lane][2]))
            if source not in given:
                raise DivergedError(
                    f"lane {lane} asks lane {source}, which is not there, in {name}"
                )
            thread.get(given[source])
        elif name in VOTES:
            thread.get(VOTES[name](given))
        elif name == "match_any_sync":
            thread.get(_mask(other for other in lanes if given[other] == given[lane]))
        elif name == "match_all_sync":
            same = all(value == given[lane] for value in given.values())
            thread.get((_mask(lanes) if same else 0, same))
        else:
            thread.get(int(_mask(lanes)) & EVERY_LANE if name == "activemask" else None)


def _mask(lanes: Iterable[int]) -> Any:
    """Bits as the int32 that Numba makes of them."""
    return np.array(sum(1 << lane for lane in lanes)).astype(np.int32)[()]


class _Number:
    """A number type of Numba; a call of it converts, and wraps around."""

    def __init__(self, kind: types.Number) -> None:
        self.dtype = as_dtype(kind)

    def __call__(self, value: Any) -> Any:
        return np.asarray(value).astype(self.dtype)[()]


class _Translation(ast.NodeTransformer):
    """Puts a `yield` wherever a function, or one that it calls, meets other threads."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.made: dict[FunctionType, Any] = {}
        self.scope: dict[str, Any] = {}

    def generator(self, function: FunctionType) -> Any:
        if function in self.made:
            return self.made[function]
        closure = inspect.getclosurevars(function).nonlocals
        scope = {**function.__globals__, **closure, "cuda": self.module}
        self.made[function] = _later(scope, function.__name__)
        for name, value in list(scope.items()):
            if value is cuda:
                scope[name] = self.module
            elif isinstance(value, types.Number):
                scope[name] = _Number(value)
            elif _is_device(value):
                scope[name] = self.generator(value.py_func)
            elif isinstance(value, Dispatcher) and not value.py_func.__module__.startswith("numba"):
                scope[name] = value.py_func
        outer, self.scope = self.scope, {**function.__globals__, **closure}
        tree = self.visit(_syntax(function))
        self.scope = outer
        exec(compile(tree, inspect.getsourcefile(function) or "?", "exec"), scope)
        self.made[function] = scope[function.__name__]
        return self.made[function]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        meeting = name.removeprefix("cuda.")
        if name.endswith(".sync"):
            return self._request("grid", node)
        if name.startswith("cuda.") and meeting in BLOCK_MEETINGS.keys() | WARP_MEETINGS:
            return self._request(meeting, node)
        if isinstance(node.func, ast.Name) and _is_device(self.scope.get(name)):
            return ast.copy_location(ast.YieldFrom(node), node)
        return node

    @staticmethod
    def _request(name: str, node: ast.Call) -> ast.AST:
        parts = [ast.Constant(name), ast.Constant(node.lineno), ast.Tuple(node.args, ast.Load())]
        return ast.fix_missing_locations(
            ast.copy_location(ast.Yield(ast.Tuple(parts, ast.Load())), node)
        )


def _later(scope: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """A function that may call itself, before it is made."""

    def call(*args: Any, **named: Any) -> Any:
        return scope[name](*args, **named)

    return call


def _syntax(function: FunctionType) -> ast.Module:
    """The function without decorators and annotations, a generator even if nothing in it yields."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    definition.decorator_list = []
    for argument in definition.args.args:
        argument.annotation = None
    definition.body[:0] = ast.parse("if False: yield").body
    return tree


def _is_device(value: Any) -> bool:
    return type(value).__name__ == "CUDADispatcher"


def with_fields(value: Any) -> Any:
    """The value; an array of records as one whose fields are attributes too."""
    return value.view(np.recarray) if isinstance(value, np.ndarray) and value.dtype.names else value


def _three(size: Any) -> tuple[int, int, int]:
    parts = tuple(size) if isinstance(size, tuple) else (size,)
    return (*parts, 1, 1)[:3]
