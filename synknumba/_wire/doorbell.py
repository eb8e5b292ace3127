"""What is compiled: the waits, on a doorbell and on a counter of arrivals, and rounds that a rank serves without Python.

A wait first tells the core that it spins, `pauses` times; then it gives way to whoever else wants the core, which is a system
call, `yields` times but for no longer than YIELD_MS; then it gives up, and its caller goes to sleep. Compiled code hears of no
signal and looks after nobody, so the limit of time is what bounds how late a death, a `timeout` or Ctrl-C is noticed.

Words are int64, at an address: of the control block, whose layout is in `_control`, or of what is described in `_serving`. All
loads and stores here are atomic: a plain load would be hoisted out of the loop by LLVM, and the order of the stores is the
protocol.

Memory order. A call's number, values and batch are written with plain stores before the doorbell is stored (sequentially
consistent, so also release); a rank reads them after its acquire load of the doorbell. Results are written before the
arrival counter is incremented and read after the coordinator's acquire load of it. The sleep flags are Dekker's pattern
and need sequential consistency on both sides: one side stores its flag and then reads the other's word, the other stores
that word and then exchanges the flag, so at least one of them sees the other and no wake-up is lost. All of it is in
docs/design/2026-11-21-memory-model.md.

Words of 8 bytes as compiled code reads and writes them, and what else it takes from the machine and the C library.

What is made of these is compiled in `_spin`, which has to change with this file.
"""

import platform
import time
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_CLOCK_MONOTONIC_COARSE = 6  # time.h


def _pointer(builder: Any, base: Any, word: Any) -> Any:
    """The address of an int64 word of the control block."""
    address = builder.add(base, builder.shl(word, ir.Constant(_I64, 3)))
    return builder.inttoptr(address, _I64.as_pointer())


def _loading(order: str) -> Any:
    """The type and the code of an atomic load."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], args[1]), order, 8)

    return types.int64(types.int64, types.int64), codegen


def _storing(order: str) -> Any:
    """Those of an atomic store."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, args[0], args[1]), order, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _updating(operation: str) -> Any:
    """Those of a load and a store in one step, sequentially consistent."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(operation, _pointer(builder, args[0], args[1]), args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(typingctx: Any, base: Any, word: Any) -> Any:
    """Reads a word; what its writer stored before it is visible afterwards."""
    return _loading("acquire")


@intrinsic  # type: ignore[untyped-decorator]
def load_ordered(typingctx: Any, base: Any, word: Any) -> Any:
    """Reads a word, sequentially consistent."""
    return _loading("seq_cst")


@intrinsic  # type: ignore[untyped-decorator]
def store_ordered(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word, sequentially consistent."""
    return _storing("seq_cst")


@intrinsic  # type: ignore[untyped-decorator]
def store_release(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word that is read behind another one, which its writer stores later, or by nobody else."""
    return _storing("release")


@intrinsic  # type: ignore[untyped-decorator]
def exchange(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Writes a word and returns what it held, in one step."""
    return _updating("xchg")


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(typingctx: Any, base: Any, word: Any, value: Any) -> Any:
    """Adds to a word and returns what it held, in one step."""
    return _updating("add")


def _calling(arguments: int) -> Any:
    """The type and the code of a call of a C function at an address with so many pointers; it returns an int."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        declared = ir.FunctionType(_I32, [_I64] * arguments)
        code = builder.call(builder.inttoptr(args[0], declared.as_pointer()), args[1:])
        return builder.sext(code, _I64)

    return types.int64(*[types.int64] * (1 + arguments)), codegen


@intrinsic  # type: ignore[untyped-decorator]
def call_with_two(typingctx: Any, function: Any, first: Any, second: Any) -> Any:
    """Calls a C function."""
    return _calling(2)


@intrinsic  # type: ignore[untyped-decorator]
def call_with_three(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Calls a C function."""
    return _calling(3)


@intrinsic  # type: ignore[untyped-decorator]
def store_half(typingctx: Any, address: Any, value: Any) -> Any:
    """Writes the lower 4 bytes of a word."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I32.as_pointer())
        builder.store_atomic(builder.trunc(args[1], _I32), pointer, "monotonic", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def as_single(typingctx: Any, word: Any) -> Any:
    """The bits of a float64 as those of the nearest float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = builder.fptrunc(builder.bitcast(args[0], ir.DoubleType()), ir.FloatType())
        return builder.zext(builder.bitcast(single, _I32), _I64)

    return types.int64(types.int64), codegen


clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
MONOTONIC = int(time.CLOCK_MONOTONIC)

memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))

sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic  # type: ignore[untyped-decorator]
def pause(typingctx: Any) -> Any:
    """Tells the core that it spins, where there is an instruction for it; some 20 to 50 ns, and no system call."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        match platform.machine():
            case "x86_64":
                builder.call(
                    builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir.FunctionType(ir.VoidType(), [])), []
                )
            case "aarch64":
                barrier = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])  # isb: a yield does next to nothing there
                builder.call(builder.module.declare_intrinsic("llvm.aarch64.isb", (), barrier), [ir.IntType(32)(15)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic  # type: ignore[untyped-decorator]
def clock(typingctx: Any) -> Any:
    """Milliseconds, from a clock that is read in some 5 ns without a system call and ticks every 1 to 10 ms."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        timespec = ir.ArrayType(_I64, 2)  # seconds, nanoseconds
        memory = cgutils.alloca_once(builder, timespec)
        declared = ir.FunctionType(ir.IntType(32), [ir.IntType(32), timespec.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, declared, "clock_gettime")
        builder.call(function, [ir.IntType(32)(_CLOCK_MONOTONIC_COARSE), memory])
        seconds, nanoseconds = (builder.extract_value(builder.load(memory), i) for i in range(2))
        return builder.add(builder.mul(seconds, _I64(1000)), builder.sdiv(nanoseconds, _I64(1_000_000)))

    return types.int64(), codegen


# Of `_words`. Numba keeps compiled code beside this file for as long as this file stays as it is, and looks at no other that it
# was made of. So this one has to change with that, which a test sees to.
WORDS_SHA256 = "f6c5c3e69304f45aed16f3461195a4418f9b188e61648ab19d0f8f8ef3574a58"

ALL_DONE = 0  # every rank has arrived, none has anything to say
ALL_DONE_WITH_NEWS = 1  # every rank has arrived and at least one has a message
NOT_YET = 2  # the spin ended before every rank had arrived

# What the longest spin takes where nobody else wants the core. Where somebody does, each time that a wait gives way may last
# for their turn of some milliseconds, and 20,000 times would be a minute.
YIELD_MS = 30

# Beside commands, which are program numbers or small negative numbers.
NO_COMMAND = -(2**62)
MUST_POST = -(2**62) + 1
UNDER_WAY = -(2**62) + 2
FORGOTTEN = -(2**62) + 3  # no round's


def compiled(*signatures: str) -> Callable[[Callable[..., Any]], Any]:
    """Compiles at definition, or loads from Numba's cache beside this file: the waits must be ready before the first fork."""

    def decorate(function: Callable[..., Any]) -> Any:
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(list(signatures), cache=True, **options)(function)
        except RuntimeError:  # Numba finds no folder that it may write to, as in many containers
            return numba.njit(list(signatures), **options)(function)

    return decorate


@compiled("int64(int64, int64, int64)")
def rest(spin: int, pauses: int, since: int) -> int:
    """What a wait does between two looks: the first `pauses` times it keeps the core, then it gives way.

    Returns when it first gave way, which is `since` the next time; 0 where it has not yet; −1 when that is too long ago.
    """
    if spin < pauses:
        pause()
        return 0
    sched_yield()
    now = clock()
    if since == 0:
        return now
    return -1 if now - since > YIELD_MS else since


# Words of the control block (see `_control.ControlBlock`), on cache lines of 8 words.
DOORBELL = 0
COMMAND = 1  # on the doorbell's line, which comes with it
ARRIVED = 16
NEWS = 24
COORDINATOR_SLEEPS = 32
COORDINATOR_SEMAPHORE = 40
CLOCK = 48  # of the coordinator alone, as the next two: where the system writes the time
BEGAN = 50  # when the round began
WORKED = 51  # nanoseconds of all rounds that were over at once
RANK_LINES = 56
WORDS_PER_RANK = 24
SLEEPS = 0  # word in a rank's lines: the rank sleeps on its semaphore
DONE = 8  # word in a rank's lines: the number of the last round it answered
HAS_NEWS = 9  # word in a rank's lines: whether that answer comes with a message
SEMAPHORE = 16  # word in a rank's lines where its semaphore starts


@compiled("int64(int64)")
def _now(base: int) -> int:
    """Nanoseconds, by the clock of `time.monotonic_ns`; 25 ns, since it is no system call."""
    clock_gettime(MONOTONIC, base + 8 * CLOCK)
    return load_acquire(base, CLOCK) * 1_000_000_000 + load_acquire(base, CLOCK + 1)


@compiled("int64(int64, int64, int64, int64)")
def ring(base: int, world_size: int, sequence: int, command: int) -> int:
    """Starts a round. Returns how many ranks may be asleep; `wake` says which."""
    store_release(base, ARRIVED, 0)
    store_release(base, NEWS, 0)
    store_release(base, COMMAND, command)
    store_ordered(base, DOORBELL, sequence)
    asleep = 0
    for rank in range(world_size):
        asleep += load_ordered(base, RANK_LINES + rank * WORDS_PER_RANK + SLEEPS)
    return asleep


@compiled("int64(int64, int64)")
def wake(base: int, rank: int) -> int:
    """Takes a rank's sleep flag down; 1 if it was up, and then its semaphore must be posted."""
    return exchange(base, RANK_LINES + rank * WORDS_PER_RANK + SLEEPS, 0)


@compiled("int64(int64, int64, int64, int64)")
def await_all(base: int, world_size: int, pauses: int, yields: int) -> int:
    """Spins until every rank has arrived."""
    since = 0
    for i in range(pauses + yields):
        if load_acquire(base, ARRIVED) == world_size:
            return ALL_DONE_WITH_NEWS if load_acquire(base, NEWS) != 0 else ALL_DONE
        since = rest(i, pauses, since)
        if since < 0:
            break
    return NOT_YET


@compiled("int64(int64, int64, int64, int64, int64, int64)")
def call(base: int, world_size: int, sequence: int, command: int, pauses: int, yields: int) -> int:
    """A whole round when nobody sleeps: `ring`, then `await_all`; −1 when ranks must be woken first. Its time is noted."""
    began = _now(base)
    store_release(base, BEGAN, began)
    if ring(base, world_size, sequence, command) != 0:
        return -1
    code = await_all(base, world_size, pauses, yields)
    if code == ALL_DONE:
        store_release(base, WORKED, load_acquire(base, WORKED) + _now(base) - began)
    return code


@compiled("int64(int64, int64)")
def coordinator_sleeps(base: int, world_size: int) -> int:
    """Puts the coordinator's sleep flag up; 1 if every rank has arrived in the meantime."""
    store_ordered(base, COORDINATOR_SLEEPS, 1)
    return 1 if load_ordered(base, ARRIVED) == world_size else 0


@compiled("int64(int64)")
def coordinator_wakes(base: int) -> int:
    """Takes the coordinator's sleep flag down; 0 if a rank did so and posts the semaphore."""
    return exchange(base, COORDINATOR_SLEEPS, 0)


@compiled("int64(int64, int64, int64, int64)")
def await_command(base: int, sequence: int, pauses: int, yields: int) -> int:
    """Spins until the doorbell differs from `sequence`; then the command, else NO_COMMAND."""
    since = 0
    for i in range(pauses + yields):
        if load_acquire(base, DOORBELL) != sequence:
            return load_acquire(base, COMMAND)
        since = rest(i, pauses, since)
        if since < 0:
            break
    return NO_COMMAND


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def arrive(base: int, world_size: int, rank: int, sequence: int, news: int, pauses: int, yields: int) -> int:
    """A rank's answer to a round, then `await_command` for the next.

    MUST_POST if this rank was the last and the coordinator sleeps: its semaphore must be posted, and the wait is still to come.
    """
    store_release(base, RANK_LINES + rank * WORDS_PER_RANK + DONE, sequence)
    store_release(base, RANK_LINES + rank * WORDS_PER_RANK + HAS_NEWS, news)
    if news != 0:
        store_release(base, NEWS, 1)
    if fetch_add(base, ARRIVED, 1) + 1 == world_size and exchange(base, COORDINATOR_SLEEPS, 0) != 0:
        return MUST_POST
    return await_command(base, sequence, pauses, yields)


@compiled("int64(int64, int64, int64)")
def rank_sleeps(base: int, rank: int, sequence: int) -> int:
    """Puts a rank's sleep flag up; 1 if the doorbell has rung in the meantime."""
    store_ordered(base, RANK_LINES + rank * WORDS_PER_RANK + SLEEPS, 1)
    return 1 if load_ordered(base, DOORBELL) != sequence else 0


@compiled("int64(int64, int64)")
def read(base: int, word: int) -> int:
    """One word."""
    return load_acquire(base, word)


# ---- rounds without Python: see `_serving` ----

# Words of a `Relaunch`.
LAUNCH, EXECUTABLE, STREAM, BOX, MAILED, TARGETS = range(6)

# Words of a `Rewriting`, behind which come its calls and moves, three words each.
FUNCTION, CALLS, MOVES, FIRST = range(4)
AS_SINGLE = -1  # in place of a move's bytes

# Words of an `Again`: values that are scalars come first, and others select rows.
NUMBER, VALUES, VALUE_BYTES, SCALAR_BYTES, PACKED, RELAUNCH, REWRITING, CHANGED, SCRATCH, AGAIN_WORDS = range(10)

# Words of a `Table`.
SERVED, LATE, REWRITTEN, KNOWN, ENTRIES = range(5)

MAIL_IS_THERE = 1  # the upper half of a word of the mailbox
MAIL_PAUSES, MAIL_YIELDS = 1000, 1000  # of one look: some 30 µs alone on the core, then half a millisecond that gives way
SERVE_MS = 50  # after which Python is asked again


@compiled("int64(int64, int64)")
def find(table: int, number: int) -> int:
    """The address of the call that this round repeats but for its scalars; 0 where none is known."""
    for entry in range(load_acquire(table, KNOWN)):
        again = load_acquire(table, ENTRIES + entry)
        if load_acquire(again, NUMBER) == number:
            scalars = load_acquire(again, SCALAR_BYTES)
            values, packed = load_acquire(again, VALUES) + scalars, load_acquire(again, PACKED) + scalars
            if memcmp(values, packed, load_acquire(again, VALUE_BYTES) - scalars) == 0:
                return again
    return 0


@compiled("int64(int64)")
def other_scalars(again: int) -> int:
    """0 where the scalars of this round are those of the last."""
    return memcmp(load_acquire(again, VALUES), load_acquire(again, PACKED), load_acquire(again, SCALAR_BYTES))


@compiled("int64(int64)")
def rewrite(again: int) -> int:
    """Has the launch use the scalars of this round: 0, or what its function says, or −1 if that is Python's to do.

    Once it has begun, CHANGED says so. Should it fail, PACKED is what it was to become, so the call is no longer known, until
    Python says what the launch uses.
    """
    words = load_acquire(again, REWRITING)
    if words == 0:
        return -1
    number, values = load_acquire(again, NUMBER), load_acquire(again, VALUES)
    store_release(again, NUMBER, FORGOTTEN)
    store_release(again, CHANGED, 1)
    memcpy(load_acquire(again, PACKED), values, load_acquire(again, SCALAR_BYTES))
    calls, moves = load_acquire(words, CALLS), load_acquire(words, MOVES)
    for at in range(FIRST + 3 * calls, FIRST + 3 * (calls + moves), 3):
        source, target, nbytes = values + load_acquire(words, at), load_acquire(words, at + 1), load_acquire(words, at + 2)
        if nbytes == AS_SINGLE:
            memcpy(again + 8 * SCRATCH, source, 8)
            store_half(target, as_single(load_acquire(again, SCRATCH)))
        else:
            memcpy(target, source, nbytes)
    function = load_acquire(words, FUNCTION)
    for at in range(FIRST, FIRST + 3 * calls, 3):
        code = call_with_three(function, load_acquire(words, at), load_acquire(words, at + 1), load_acquire(words, at + 2))
        if code != 0:
            return code
    store_release(again, NUMBER, number)
    return 0


@compiled("int64(int64)")
def launch(relaunch: int) -> int:
    """Empties the mailbox and launches; 0, or the driver's error."""
    box = load_acquire(relaunch, BOX)
    for word in range(load_acquire(relaunch, MAILED)):
        store_release(box, word, 0)
    return call_with_two(load_acquire(relaunch, LAUNCH), load_acquire(relaunch, EXECUTABLE), load_acquire(relaunch, STREAM))


@compiled("int64(int64)")
def take(relaunch: int) -> int:
    """Puts the results where they belong; 1 if all were there in time, else 0, and then it may be called again."""
    box, count = load_acquire(relaunch, BOX), load_acquire(relaunch, MAILED)
    word, since = 0, 0
    for i in range(MAIL_PAUSES + MAIL_YIELDS):
        while word < count:
            mail = load_acquire(box, word)
            if mail >> 32 != MAIL_IS_THERE:
                break
            store_half(load_acquire(relaunch, TARGETS + word), mail)
            word += 1
        if word == count:
            return 1
        since = rest(i, MAIL_PAUSES, since)
        if since < 0:
            break
    return 0


@compiled("int64(int64, int64)")
def repeat(table: int, number: int) -> int:
    """A round, if it repeats a known call: 1 when it is done, UNDER_WAY while its results are late; 0 if it is Python's."""
    again = find(table, number)
    if again == 0:
        return 0
    if other_scalars(again) != 0:
        store_release(table, REWRITTEN, 1)
        if rewrite(again) != 0:
            return 0
    relaunch = load_acquire(again, RELAUNCH)
    if launch(relaunch) != 0:
        return 0  # it is tried again, and fails, where that can be said
    if take(relaunch) == 0:
        store_release(table, LATE, again)
        return UNDER_WAY
    return 1


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def serve(base: int, world_size: int, rank: int, sequence: int, pauses: int, yields: int, table: int) -> int:
    """`arrive`, and then every round that repeats a known call, for a while; the word SERVED says how many there were.

    Returns what `arrive` returns for the first round that repeats none, or UNDER_WAY.
    """
    served, began = 0, clock()
    number = arrive(base, world_size, rank, sequence, 0, pauses, yields)
    while clock() - began < SERVE_MS:
        done = repeat(table, number)
        if done != 1:
            number = UNDER_WAY if done == UNDER_WAY else number
            break
        served += 1
        number = arrive(base, world_size, rank, sequence + served, 0, pauses, yields)
    store_release(table, SERVED, served)
    return number
