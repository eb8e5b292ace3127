"""Writes random kernels without races, with barriers in nested control flow.

A statement is written for a *level*: where all threads of a block come (`BLOCK`: barriers may stand
there), where all threads of a warp come (`WARP`: shuffles and votes may), or where each comes as it
likes (`THREAD`). A phase writes one element a thread of a shared array, waits, reads another one,
and waits. An update reads elements of an array with one for each thread, waits, writes the thread's
own, and waits.
"""

import random
from typing import Any

import numpy as np

BLOCK, WARP, THREAD = range(3)
REALS = ["v0", "v1", "v2"]
WHOLES = ["k0", "k1"]
UNIFORM = ["u0", "u1"]
SHAPES = [
    ((2,), (8,)),
    ((2, 2), (4, 3)),
    ((1,), (40,)),
    ((1,), (64,)),
    ((1, 2), (16, 3)),
    ((2,), (5, 2, 2)),
]


class Writer:
    """Writes one kernel, and the device functions that it calls.

    Attributes:
        grid: its blocks.
        block: its threads.
        threads: how many these are.
        size: how many threads there are in all.
        axes: those along which there is more than one thread, in the order of an array's
            dimensions.
        own: the thread's own element of an array that has one for each.
        known_to_simulator: whether it has only words that the simulator knows, and uses as CUDA
            does.
    """

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.grid, self.block = self.pick(*SHAPES)
        self.threads = int(np.prod(self.block))
        self.size = int(np.prod(self.grid)) * self.threads
        self.axes = dict(
            reversed(
                [(axis, size) for axis, size in zip("xyz", self.block, strict=False) if size > 1]
            )
        )
        self.leaves = self.chance(0.5)  # threads that have left cannot be asked by shuffles
        self.known_to_simulator = True
        self.counted = False
        self.left = False
        self.own = f"c[{', '.join(f'cuda.threadIdx.{axis}' for axis in self.axes)}]"
        self.names = 0
        self.functions: list[str] = []
        self.lines: list[str] = []

    # ---- choices

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}_"

    def put(self, depth: int, *texts: str) -> None:
        self.lines += ["    " * depth + text for text in texts]

    # ---- expressions

    def uniform(self) -> str:
        one = self.pick(*UNIFORM, "m", "cuda.blockIdx.x", "x.size", str(self.between(0, 4)))
        return self.pick(
            one, f"({one} + {self.pick(*UNIFORM)}) % 5", f"min({one}, {self.between(1, 5)})"
        )

    def real(self) -> str:
        a, b = self.pick(*REALS, "x[i]", "t"), self.pick(*REALS, "0.25", "u0", "k0", "local[1]")
        return self.pick(
            f"{a} + {b}",
            f"{a} - {b}",
            f"({a} * {b}) % 8.0",
            f"{a} * 0.5 + {b} * 0.25",
            f"max({a}, {b})",
        )

    def whole(self) -> str:
        a, b = self.pick(*WHOLES, "y[i]", "t"), self.pick(*WHOLES, *UNIFORM, "3")
        return self.pick(
            f"({a} + {b}) % 31",
            f"({a} * {b}) % 17",
            f"{a} ^ {b}",
            f"max({a} - {b}, 0)",
            f"({a} << 1) & 63",
        )

    def truth(self, level: int) -> str:
        """A condition that is the same in all threads of the level."""
        if level == BLOCK:
            u, v = self.uniform(), self.pick("2", "3", "m")
            return self.pick(
                f"{u} > {v}",
                f"{u} == {v}",
                f"{u} > 1 and {self.uniform()} < 4",
                f"not {u} > {v}",
                f"{u} % 2",
            )
        if level == WARP:
            return self.pick(
                "t // 32 == 0", "t // 32 >= m % 2", "(t // 32 + u0) % 2 == 1", "y[t // 32] > 3"
            )
        v = self.pick(
            f"{self.pick(*REALS)} > {self.pick('0.3', '1.0', 'x[i]')}",
            f"t {self.pick('<', '>=')} {self.between(1, self.threads)}",
            f"{self.pick(*WHOLES)} % 3 == {self.between(0, 2)}",
            f"i < {self.between(1, 2 * self.threads)}",
        )
        return self.pick(
            v, v, f"{v} and {self.pick(*REALS)} < 2.5", f"{v} or t == {self.between(0, 6)}"
        )

    # ---- statements

    def statement(self, depth: int, level: int, left: int, loop: int | None) -> None:
        """One statement at a level, of at most `left` nested blocks; `loop` is the level of the
        loop around, None outside.
        """
        kinds = [self.set_real, self.set_real, self.set_whole, self.use_local, self.count]
        if level == BLOCK:
            kinds += [
                self.phase,
                self.phase,
                self.phase_of_wholes,
                self.set_uniform,
                self.vote,
                self.add_up,
                self.call,
            ]
            kinds += [self.update, self.update]
        if level <= WARP and not self.leaves:
            kinds += [self.shuffle, self.shuffle]
        if level <= WARP:
            kinds += [self.ballot]
        if left:
            kinds += [self.branch, self.branch, self.repeat, self.repeat]
            if level == BLOCK:
                kinds += [self.branch_by_memory, self.repeat_equally]
        if level == loop:
            kinds += [self.leave_loop]
        if self.leaves and level != WARP:
            kinds += [self.leave]
        self.pick(*kinds)(depth, level, left, loop)

    def body(self, depth: int, level: int, left: int, loop: int | None) -> None:
        for _ in range(self.between(1, 2 + (level == BLOCK))):
            self.statement(depth, level, left, loop)

    def set_real(self, depth: int, *_: Any) -> None:
        target = self.pick(*REALS)
        self.put(
            depth,
            self.pick(
                f"{target} = {self.real()}",
                f"{target} += {self.pick(*REALS)} * 0.125",
                f"{target} -= 0.5",
            ),
        )

    def set_whole(self, depth: int, *_: Any) -> None:
        self.put(depth, f"{self.pick(*WHOLES)} = {self.whole()}")

    def set_uniform(self, depth: int, *_: Any) -> None:
        self.put(depth, f"{self.pick(*UNIFORM)} = ({self.uniform()} + {self.uniform()}) % 6")

    def use_local(self, depth: int, *_: Any) -> None:
        place = self.pick("0", "1", "t % 3", "u1 % 3")
        self.put(
            depth,
            self.pick(f"local[{place}] = {self.real()}", f"{self.pick(*REALS)} = local[{place}]"),
        )

    def count(self, depth: int, *_: Any) -> None:
        self.put(
            depth,
            f"cuda.atomic.add(total, {self.pick('0', '1', 't % 3', 'm % 3')}, "
            f"{self.pick('1', 't', *WHOLES)})",
        )

    def phase(self, depth: int, *_: Any) -> None:
        write = f"s[(t + {self.between(0, self.threads)}) % {self.threads}] = {self.real()}"
        read = f"s[(t * {self.between(1, 5)} + {self.pick('0', '1', *UNIFORM)}) % {self.threads}]"
        self.put(
            depth,
            write,
            "cuda.syncthreads()",
            f"{self.pick(*REALS)} = {read} * 0.5",
            "cuda.syncthreads()",
        )

    def update(self, depth: int, *_: Any) -> None:
        """Elements anew from the old ones: in all threads or in some, with more beside."""
        v, w, test = (
            self.pick(*REALS),
            self.pick(*REALS),
            self.pick("cuda.threadIdx.x >= u1", self.truth(THREAD)),
        )
        step, more = self.between(1, 3), self.pick("0", "1", *UNIFORM)
        indices = [
            f"(cuda.threadIdx.{axis} * {step} + {more}) % {size}"
            for axis, size in self.axes.items()
        ]
        read = f"c[{', '.join(indices)}]"
        first = self.pick(
            (f"{v} = {self.own} * 0.5 + {read} * 0.5",),
            (f"{v} = {self.own}", f"if {test}:", f"    {v} = {v} * 0.5 + {read} * 0.25"),
            (f"if {test}:", f"    {v} = {read}"),
            (f"{v} = {read} if {test} else {self.own}", f"{w} = {read} - {v} * 0.5"),
            (f"{v} = 0.0", "for _ in range(2):", f"    {v} += {read} * 0.5"),
        )
        second = self.pick(
            (f"{self.own} = {v}",),
            (f"{self.own} = {self.own} * 0.5 + {v} * 0.25",),
            (f"if {test}:", f"    {self.own} -= {v} * 0.5"),
            (f"if {self.truth(THREAD)}:", f"    {self.own} = {v}", f"    {w} = {self.own} * 0.5"),
            (f"if {test}:", f"    {self.own} = {v}", "else:", f"    {w} += 0.25"),
            (f"{w} = {v} * 0.5", f"{self.own} = {w}", f"{v} = {self.own} + 1.0"),
            (f"s[t] = {v}", f"{self.own} = {w}"),
        )
        self.put(depth, *first, "cuda.syncthreads()", *second, "cuda.syncthreads()")

    def phase_of_wholes(self, depth: int, *_: Any) -> None:
        write = f"q[t // 2, t % 2] = {self.whole()}"
        read = (
            f"q[(t + {self.between(0, 9)}) % {self.threads} // 2, "
            f"{self.pick('0', '1', 'u0 % 2', 't % 2')}]"
        )
        if self.threads % 2:
            read = "q[t // 2, t % 2]"
        self.put(
            depth,
            write,
            "cuda.syncthreads()",
            f"{self.pick(*WHOLES)} = {read}",
            "cuda.syncthreads()",
        )

    def add_up(self, depth: int, *_: Any) -> None:
        place = self.between(0, self.threads // 2 - 1)
        self.put(
            depth,
            f"cuda.atomic.{self.pick('add', 'max', 'xor')}(q, ({place}, "
            f"{self.pick('0', 't % 2')}), {self.pick(*WHOLES)})",
        )
        self.put(
            depth,
            "cuda.syncthreads()",
            f"{self.pick(*WHOLES)} = q[{place}, 0] % 64",
            "cuda.syncthreads()",
        )

    def vote(self, depth: int, *_: Any) -> None:
        kind = self.pick("count", "and", "or")
        vote = f"cuda.syncthreads_{kind}(1 if {self.truth(THREAD)} else 0)"
        self.counted = True
        self.put(
            depth,
            self.pick(
                f"{self.pick(*WHOLES)} = {vote}",
                f"{self.pick(*UNIFORM)} = {vote} % 5",
                f"{self.pick(*REALS)} += {vote} * 0.25",
            ),
        )

    def call(self, depth: int, *_: Any) -> None:
        if len(self.functions) < 2:
            self.functions.append(self.function(f"f{len(self.functions)}"))
        result = (
            f"f{self.between(0, len(self.functions) - 1)}(s, {self.pick(*REALS)}, {self.uniform()})"
        )
        self.put(depth, f"{self.pick(*REALS)} = {result}", "cuda.syncthreads()")

    def shuffle(self, depth: int, *_: Any) -> None:
        self.known_to_simulator = False
        kind = self.pick("up", "down", "xor", "")
        value, target = self.pick((self.pick(*REALS), REALS), (self.pick(*WHOLES), WHOLES))
        mask = "0xFFFFFFFF"
        # The last warp may be short: it is asked only for lanes that it has.
        size = self.threads % 32 or 32
        if kind == "":
            call = (
                f"cuda.shfl_sync({mask}, {value}, "
                f"{self.pick('0', f't % {min(size, 4)}', f'u0 % {min(size, 5)}')})"
            )
        elif kind == "up":
            call = f"cuda.shfl_up_sync({mask}, {value}, {self.pick('1', '3', 'u1 % 3', 't % 2')})"
        elif size < 32:
            call = f"cuda.shfl_up_sync({mask}, {value}, {self.pick('2', '5')})"
        else:
            lane = self.pick("1", "4", "u0 % 3", "t % 4" if kind == "down" else "31")
            call = f"cuda.shfl_{kind}_sync({mask}, {value}, {lane})"
        self.put(
            depth,
            f"{self.pick(*target)} = {call}"
            if target is WHOLES
            else f"{self.pick(*target)} += {call} * 0.5",
        )

    def ballot(self, depth: int, *_: Any) -> None:
        self.known_to_simulator = False
        flag = self.truth(THREAD)
        text = self.pick(
            f"{self.pick(*WHOLES)} = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, {flag}))",
            f"{self.pick(*WHOLES)} = 1 if cuda.any_sync(0xFFFFFFFF, {flag}) else 2",
            f"{self.pick(*REALS)} += 0.5 if cuda.all_sync(0xFFFFFFFF, {flag}) else -0.25",
        )
        self.put(depth, text)

    def branch(self, depth: int, level: int, left: int, loop: int | None) -> None:
        inner = self.random.choice([one for one in (BLOCK, WARP, THREAD) if one >= level])
        if inner == BLOCK and self.chance(0.25):
            self.counted = True
            condition = (
                f"cuda.syncthreads_count(1 if {self.truth(THREAD)} else 0) > "
                f"{self.between(0, self.threads)}"
            )
        else:
            condition = self.truth(inner)
        self.put(depth, f"if {condition}:")
        self.body(depth + 1, inner, left - 1, loop)
        if self.chance(0.2) and inner == BLOCK:
            self.put(depth, f"elif {self.truth(BLOCK)}:")
            self.body(depth + 1, inner, left - 1, loop)
        if self.chance(0.4):
            self.put(depth, "else:")
            self.body(depth + 1, inner, left - 1, loop)

    def branch_by_memory(self, depth: int, _level: int, left: int, loop: int | None) -> None:
        """A condition read from shared memory: it looks as if it differed between threads, and
        does not.
        """
        name = self.name("w")
        self.put(
            depth,
            f"{name} = s[{self.between(0, self.threads - 1)}]",
            "cuda.syncthreads()",
            f"if {name} > 0.6:",
        )
        self.body(depth + 1, BLOCK, left - 1, loop)
        if self.chance(0.4):
            self.put(depth, "else:")
            self.body(depth + 1, BLOCK, left - 1, loop)

    def repeat(self, depth: int, level: int, left: int, _loop: int | None) -> None:
        inner = self.random.choice([one for one in (BLOCK, WARP, THREAD) if one >= level])
        j = self.name("j")
        times = {
            BLOCK: [f"{self.uniform()} % 4", "m", "2"],
            WARP: ["t // 32 + 1", "2 - t // 32 % 2"],
            THREAD: ["t % 3", "k0 % 4", "2"],
        }
        count = self.random.choice(times[inner])
        if self.chance(0.5):
            heads = [f"for {j} in range({count}):", f"for {j} in range({count}, 0, -1):"]
            if inner == BLOCK:
                heads.append(f"for {j} in range(cuda.blockIdx.x * 3, x.size // 8, 5):")
            self.put(depth, self.random.choice(heads))
        else:
            self.put(depth, f"{j} = {self.pick('0', '-1')}", f"while {j} < {count}:")
            self.put(depth + 1, f"{j} += 1")
        self.body(depth + 1, inner, left - 1, inner)
        if self.chance(0.5):
            self.put(depth + 1, f"{self.pick(*REALS)} += {j} * 0.125")

    def repeat_equally(self, depth: int, _level: int, left: int, _loop: int | None) -> None:
        """A loop that starts elsewhere in each thread, and that all run equally often."""
        j, end = self.name("j"), self.pick("3", "4", "u1")
        if self.chance(0.5):
            self.put(depth, f"for {j} in range(t, t + {end}, 2):")
            self.body(depth + 1, BLOCK, left - 1, None)
            self.phase(depth + 1)
            self.put(depth + 1, f"{self.pick(*REALS)} += {j} * 0.125")
        else:
            e = self.name("e")
            self.put(depth, f"{j} = t", f"{e} = t + {end}", f"while {j} < {e}:")
            self.put(depth + 1, f"{j} += 1")
            self.body(depth + 1, BLOCK, left - 1, BLOCK)
            self.phase(depth + 1)

    def leave_loop(self, depth: int, level: int, *_: Any) -> None:
        self.put(depth, f"if {self.truth(level)}:")
        self.put(depth + 1, self.pick("break", "continue"))

    def leave(self, depth: int, *_: Any) -> None:
        self.left = True
        self.put(depth, f"if {self.truth(THREAD)} and t > {self.between(0, self.threads)}:")
        self.put(depth + 1, f"out[i] = {self.pick('-7.0', *REALS)}", "return")

    # ---- whole functions

    def function(self, name: str) -> str:
        """A device function with barriers, perhaps shared memory of its own, and returns that
        all threads take.
        """
        size = self.threads
        kept, self.lines = self.lines, ["@cuda.jit(device=True)", f"def {name}(s, v, u):"]
        self.put(
            1,
            "t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + "
            "cuda.blockDim.y * cuda.threadIdx.z)",
        )
        array = "s"
        if self.chance(0.4):
            array = "own"
            self.put(
                1, f"own = cuda.shared.array({size}, float64)", "own[t] = v", "cuda.syncthreads()"
            )
        if self.chance(0.5):
            self.put(1, f"if u == {self.between(0, 3)}:")
            self.put(2, "return v * 0.5")
        self.put(1, f"{array}[(t + {self.between(0, size)}) % {size}] = v", "cuda.syncthreads()")
        self.put(1, f"w = {array}[(t + u) % {size}] * 0.5", "cuda.syncthreads()")
        if self.chance(0.5):
            self.put(1, f"for j in range(u % {self.between(2, 4)}):")
            self.put(2, f"{array}[t] = w + j", "cuda.syncthreads()")
            self.put(2, f"w = {array}[{size} - 1 - t] * 0.5", "cuda.syncthreads()")
            if self.chance(0.5):
                self.put(2, f"if j + u > {self.between(1, 4)}:")
                self.put(3, "return w - v")
        if self.chance(0.3):
            self.put(1, f"if t % 2 == 0 and v > {self.pick('0.5', '1.0')}:")
            self.put(2, "w = -w")
        self.put(1, "return w + 0.25", "", "")
        made, self.lines = "\n".join(self.lines), kept
        return made

    def text(self) -> str:
        """The source of a module with the kernel."""
        size = self.threads
        self.put(0, "def kernel(x, y, m, total, out, wholes):")
        self.put(1, f"s = cuda.shared.array({size}, float64)")
        self.put(1, f"c = cuda.shared.array({tuple(self.axes.values())}, float64)")
        self.put(1, f"q = cuda.shared.array(({(size + 1) // 2}, 2), {self.pick('int64', 'int32')})")
        self.put(1, "local = cuda.local.array(3, float64)")
        self.put(
            1,
            "t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + "
            "cuda.blockDim.y * cuda.threadIdx.z)",
        )
        self.put(1, f"i = (cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y) * {size} + t")
        for place, name in enumerate(REALS):
            self.put(1, f"{name} = {self.pick(f'x[i] * {place + 1}.0', 't * 0.25', f'{place}.5')}")
        for name in WHOLES:
            self.put(1, f"{name} = {self.pick('y[i]', 't', '2')}")
        for name in UNIFORM:
            self.put(1, f"{name} = {self.pick('m', 'm + 1', '2', 'cuda.blockIdx.x + 1')}")
        self.put(
            1,
            "s[t] = x[i]",
            "q[t // 2, t % 2] = y[i]",
            "local[0] = v0",
            "local[1] = 1.5",
            "local[2] = x[i]",
        )
        self.put(1, f"{self.own} = x[i] * 0.5 + 0.25")
        self.put(1, "cuda.syncthreads()")
        depth = self.pick(2, 2, 3)
        for _ in range(self.between(2, 4)):
            self.statement(1, BLOCK, depth, None)
        self.phase(1)
        if self.leaves and self.chance(0.3):
            self.put(1, f"if i >= x.size - {self.between(0, 9)}:")
            self.put(2, "return")
        self.put(
            1,
            "out[i] = v0 + 2.0 * v1 + 3.0 * v2 + local[0] + local[2] + u0 + 7 * u1",
            f"out[i] += {self.own}",
            "wholes[i] = k0 * 100 + k1",
        )
        if self.left and self.counted:
            self.known_to_simulator = False  # its counts keep what threads said that have ended
        head = ["from numba import cuda, float64, int32, int64", "", "", *self.functions]
        return "\n".join([*head, *self.lines]) + "\n"


def written(seed: int) -> Writer:
    """The writer of the kernel of a seed."""
    return Writer(random.Random(seed))
