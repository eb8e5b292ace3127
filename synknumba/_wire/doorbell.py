"""Compiled synchronisation: the waits on the doorbell and on the arrival counter, and rounds that a
rank serves without Python.

A wait first spins with a pause instruction, `pauses` times. Then it yields the core with a system
call, `yields` times but for at most YIELD_MS. Then it gives up, and its caller sleeps on a
semaphore. Compiled code handles no signals and checks no processes, so this time limit bounds how
late a death, a `timeout` or Ctrl-C is noticed.

Words are int64 at `base + 8 * index`, in the control block (layout: `control.py`) or in the tables
of `relaunch.py`. All loads and stores here are atomic: LLVM would hoist a plain load out of the
loop, and the order of the stores is the protocol.

Memory order. A call's values and batch are written with plain stores, and its number with a release
store, before the doorbell is stored (sequentially consistent, so also release); a rank reads them
after its acquire load of the doorbell. Results are written before the arrival counter is
incremented, and read after the coordinator's acquire load of it. The sleep flags are Dekker's
pattern and need sequential consistency on both sides: the sleeper stores its flag and then reads
the waker's word; the waker stores that word and then exchanges the flag. So at least one of them
sees the other, and no wake-up is lost. The full argument is in
docs/design/2026-11-21-memory-model.md.

The file starts with the intrinsics (atomic accesses, calls of C functions, pause, clock); the
compiled functions follow.
"""

import platform
import time
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from synknumba._wire.compiled import compiled
from synknumba.simt.internals import emitted

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_CLOCK_MONOTONIC_COARSE = 6  # time.h


def _pointer(builder: Any, base: Any, word: Any) -> Any:
    """Returns a pointer to the int64 word at index `word` from address `base`."""
    address = builder.add(base, builder.shl(word, ir.Constant(_I64, 3)))
    return builder.inttoptr(address, _I64.as_pointer())


def _loading(order: str) -> Any:
    @emitted("int64(int64, int64)")
    def load(builder: Any, base: Any, word: Any) -> Any:
        return builder.load_atomic(_pointer(builder, base, word), order, 8)

    return load


def _storing(order: str) -> Any:
    @emitted("void(int64, int64, int64)")
    def store(builder: Any, base: Any, word: Any, value: Any) -> None:
        builder.store_atomic(value, _pointer(builder, base, word), order, 8)

    return store


def _updating(operation: str) -> Any:
    """Returns an intrinsic that reads, modifies and writes a word, sequentially consistent, and
    returns its old value.
    """

    @emitted("int64(int64, int64, int64)")
    def update(builder: Any, base: Any, word: Any, value: Any) -> Any:
        return builder.atomic_rmw(operation, _pointer(builder, base, word), value, "seq_cst")

    return update


# stores made before the word's release store are visible afterwards
load_acquire = _loading("acquire")
load_ordered = _loading("seq_cst")
store_ordered = _storing("seq_cst")
# for words read only after a later store is seen, or only by the writer
store_release = _storing("release")
exchange = _updating("xchg")
fetch_add = _updating("add")


def _calling(arguments: int) -> Any:
    """Returns an intrinsic that calls, by address, a C function of `arguments` pointers returning
    int.
    """

    @emitted(f"int64({', '.join(['int64'] * (1 + arguments))})")
    def call(builder: Any, function: Any, *pointers: Any) -> Any:
        declared = ir.FunctionType(_I32, [_I64] * arguments)
        code = builder.call(builder.inttoptr(function, declared.as_pointer()), pointers)
        return builder.sext(code, _I64)

    return call


call_with_two, call_with_three = _calling(2), _calling(3)


@emitted("void(int64, int64)")
def store_half(builder: Any, address: Any, value: Any) -> None:
    """Stores the lower 4 bytes of a word at an address."""
    pointer = builder.inttoptr(address, _I32.as_pointer())
    builder.store_atomic(builder.trunc(value, _I32), pointer, "monotonic", 4)


@emitted("int64(int64)")
def as_single(builder: Any, word: Any) -> Any:
    """Converts the bits of a float64 to those of the nearest float32, zero-extended."""
    single = builder.fptrunc(builder.bitcast(word, ir.DoubleType()), ir.FloatType())
    return builder.zext(builder.bitcast(single, _I32), _I64)


MONOTONIC = int(time.CLOCK_MONOTONIC)

clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


@emitted("void()")
def pause(builder: Any) -> None:
    """Executes a pause instruction, where there is one; about 20 to 50 ns, no system call."""
    match platform.machine():
        case "x86_64":
            declared = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), declared), [])
        case "aarch64":
            # isb: a yield does next to nothing there
            barrier = ir.FunctionType(ir.VoidType(), [_I32])
            builder.call(
                builder.module.declare_intrinsic("llvm.aarch64.isb", (), barrier), [_I32(15)]
            )


@emitted("int64()")
def clock(builder: Any) -> Any:
    """Returns milliseconds from the coarse monotonic clock: read in about 5 ns, no system call,
    resolution 1 to 10 ms.
    """
    timespec = ir.ArrayType(_I64, 2)  # seconds, nanoseconds
    memory = cgutils.alloca_once(builder, timespec)
    declared = ir.FunctionType(_I32, [_I32, timespec.as_pointer()])
    function = cgutils.get_or_insert_function(builder.module, declared, "clock_gettime")
    builder.call(function, [_I32(_CLOCK_MONOTONIC_COARSE), memory])
    seconds, nanoseconds = (builder.extract_value(builder.load(memory), i) for i in range(2))
    return builder.add(builder.mul(seconds, _I64(1000)), builder.sdiv(nanoseconds, _I64(1_000_000)))


ALL_DONE = 0  # every rank has arrived, none has a message
ALL_DONE_WITH_NEWS = 1  # every rank has arrived and at least one has a message
NOT_YET = 2  # the spin ended before every rank had arrived

# Duration of the longest spin on an idle core. On a busy core, each yield may take another
# process's time slice of some milliseconds, and 20,000 yields would take a minute.
YIELD_MS = 30

# Results of waits that are no commands; commands are program numbers or small negative numbers.
NO_COMMAND = -(2**62)
MUST_POST = -(2**62) + 1
UNDER_WAY = -(2**62) + 2
FORGOTTEN = -(2**62) + 3  # program number of no round


@compiled("int64(int64, int64, int64)")
def rest(spin: int, pauses: int, since: int) -> int:
    """Rests between two polls of a wait: pauses the first `pauses` times, then yields the core.

    Args:
        spin: number of polls so far.
        pauses: number of polls that keep the core.
        since: return value of the previous call, initially 0.

    Returns:
        The time of the first yield in ms; 0 before it; −1 if it was more than YIELD_MS ago.
    """
    if spin < pauses:
        pause()
        return 0
    sched_yield()
    now = clock()
    if since == 0:
        return now
    return -1 if now - since > YIELD_MS else since


# Words of the control block (`control.ControlBlock`), on cache lines of 8 words.
DOORBELL = 0
COMMAND = 1  # on the doorbell's cache line, so it is loaded with it
ARRIVED = 16
NEWS = 24
COORDINATOR_SLEEPS = 32
COORDINATOR_SEMAPHORE = 40
CLOCK = 48  # buffer of clock_gettime; private to the coordinator, as are BEGAN and WORKED
BEGAN = 50  # start of the round
WORKED = 51  # total nanoseconds of the rounds that ended within `call`
RING_OF_ROUNDS = 52  # address of the coordinator's `Ring`, while the world is traced; else 0
RANK_LINES = 56
WORDS_PER_RANK = 24
SLEEPS = 0  # word in a rank's lines: flag, the rank sleeps on its semaphore
DONE = 8  # word in a rank's lines: number of the last round that it answered
HAS_NEWS = 9  # word in a rank's lines: flag, that answer comes with a message
# word in a rank's lines: address of its `Ring`, while it is traced; else 0; private to the rank, as
# are the next ones
RING = 10
SEEN = 11  # word in a rank's lines: when it saw the round that it works on
RANK_CLOCK = 12  # words in a rank's lines: buffer of clock_gettime
SLICES = 14  # word in a rank's lines: slices that it has done of a call that shows them
SEMAPHORE = 16  # word in a rank's lines: start of its semaphore


# Words of a ring of records: how many were written in all, for how many there is room; then the
# records.
WRITTEN, ROOM, RECORDS = range(3)
RECORD_WORDS = 4  # of a round: its number, its command, when it was seen and when it was answered


@compiled("int64(int64, int64)")
def now(base: int, word: int) -> int:
    """Returns `time.monotonic_ns`, by a buffer of two words; takes 25 ns, no system call."""
    clock_gettime(MONOTONIC, base + 8 * word)
    return load_acquire(base, word) * 1_000_000_000 + load_acquire(base, word + 1)


@compiled("int64(int64, int64)")
def see(base: int, rank: int) -> int:
    """Notes when a rank sees a round, if it is traced."""
    line = RANK_LINES + rank * WORDS_PER_RANK
    if load_acquire(base, line + RING) != 0:
        store_release(base, line + SEEN, now(base, line + RANK_CLOCK))
    return 0


@compiled("int64(int64, int64, int64, int64, int64)")
def record(ring: int, first: int, second: int, third: int, fourth: int) -> int:
    """Writes a record to a ring, over the oldest if it is full."""
    written = load_acquire(ring, WRITTEN)
    at = RECORDS + written % load_acquire(ring, ROOM) * RECORD_WORDS
    store_release(ring, at, first)
    store_release(ring, at + 1, second)
    store_release(ring, at + 2, third)
    store_release(ring, at + 3, fourth)
    store_release(ring, WRITTEN, written + 1)
    return 0


@compiled("int64(int64, int64, int64)")
def record_round(base: int, rank: int, sequence: int) -> int:
    """Records the round that a rank is about to answer, if it is traced."""
    line = RANK_LINES + rank * WORDS_PER_RANK
    ring = load_acquire(base, line + RING)
    if ring != 0:
        answered = now(base, line + RANK_CLOCK)
        record(
            ring, sequence, load_acquire(base, COMMAND), load_acquire(base, line + SEEN), answered
        )
    return 0


@compiled("int64(int64, int64, int64, int64)")
def ring(base: int, world_size: int, sequence: int, command: int) -> int:
    """Starts a round. Returns how many ranks may be asleep; `wake` tests each."""
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
    """Clears a rank's sleep flag. Returns 1 if the caller must post the rank's semaphore."""
    return exchange(base, RANK_LINES + rank * WORDS_PER_RANK + SLEEPS, 0)


@compiled("int64(int64, int64, int64, int64)")
def await_all(base: int, world_size: int, pauses: int, yields: int) -> int:
    """Spins until every rank has arrived. Returns ALL_DONE, ALL_DONE_WITH_NEWS or NOT_YET."""
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
    """Runs a round: `ring`, then `await_all`; adds its time to WORKED if ALL_DONE. Returns −1 if
    ranks must be woken first.
    """
    began = now(base, CLOCK)
    store_release(base, BEGAN, began)
    if ring(base, world_size, sequence, command) != 0:
        return -1
    code = await_all(base, world_size, pauses, yields)
    if code == ALL_DONE:
        ended = now(base, CLOCK)
        store_release(base, WORKED, load_acquire(base, WORKED) + ended - began)
        if load_acquire(base, RING_OF_ROUNDS) != 0:
            record(load_acquire(base, RING_OF_ROUNDS), sequence, command, began, ended)
    return code


@compiled("int64(int64, int64)")
def coordinator_sleeps(base: int, world_size: int) -> int:
    """Sets the coordinator's sleep flag. Returns 1 if every rank has arrived by now."""
    store_ordered(base, COORDINATOR_SLEEPS, 1)
    return 1 if load_ordered(base, ARRIVED) == world_size else 0


@compiled("int64(int64)")
def coordinator_wakes(base: int) -> int:
    """Clears the coordinator's sleep flag. Returns 0 if a rank has cleared it already and posts
    the semaphore.
    """
    return exchange(base, COORDINATOR_SLEEPS, 0)


@compiled("int64(int64, int64, int64, int64)")
def await_command(base: int, sequence: int, pauses: int, yields: int) -> int:
    """Spins until the doorbell differs from `sequence`. Returns the command, or NO_COMMAND if it
    has not rung.
    """
    since = 0
    for i in range(pauses + yields):
        if load_acquire(base, DOORBELL) != sequence:
            return load_acquire(base, COMMAND)
        since = rest(i, pauses, since)
        if since < 0:
            break
    return NO_COMMAND


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def arrive(
    base: int, world_size: int, rank: int, sequence: int, news: int, pauses: int, yields: int
) -> int:
    """Answers a round as a rank, then waits for the next with `await_command`.

    Returns MUST_POST, without waiting, if this rank arrived last and the coordinator sleeps: the
    caller must post the coordinator's semaphore and then wait.
    """
    record_round(base, rank, sequence)
    store_release(base, RANK_LINES + rank * WORDS_PER_RANK + DONE, sequence)
    store_release(base, RANK_LINES + rank * WORDS_PER_RANK + HAS_NEWS, news)
    if news != 0:
        store_release(base, NEWS, 1)
    if fetch_add(base, ARRIVED, 1) + 1 == world_size and exchange(base, COORDINATOR_SLEEPS, 0) != 0:
        return MUST_POST
    number = await_command(base, sequence, pauses, yields)
    if number != NO_COMMAND:
        see(base, rank)
    return number


@compiled("int64(int64, int64, int64)")
def rank_sleeps(base: int, rank: int, sequence: int) -> int:
    """Sets a rank's sleep flag. Returns 1 if the doorbell has rung by now."""
    store_ordered(base, RANK_LINES + rank * WORDS_PER_RANK + SLEEPS, 1)
    return 1 if load_ordered(base, DOORBELL) != sequence else 0


@compiled("int64(int64, int64)")
def read(base: int, word: int) -> int:
    """Returns one word."""
    return load_acquire(base, word)


@compiled("int64(int64, int64, int64)")
def write(base: int, word: int, value: int) -> int:
    """Writes one word."""
    store_release(base, word, value)
    return 0


# ---- rounds without Python: see `relaunch.py` ----

# Words of a `Relaunch`.
LAUNCH, EXECUTABLE, STREAM, BOX, MAILED, TARGETS = range(6)

# Words of a `Rewriting`, followed by its calls and moves, three words each.
FUNCTION, CALLS, MOVES, FIRST = range(4)
ANY_RESULT = -1  # of a row of `run_rows`
AS_SINGLE = -1  # instead of a move's number of bytes: convert float64 to float32

# Words of an `Again`. Among its values, scalars precede those that select rows.
(
    NUMBER,
    VALUES,
    VALUE_BYTES,
    SCALAR_BYTES,
    PACKED,
    RELAUNCH,
    REWRITING,
    CHANGED,
    SCRATCH,
    AGAIN_WORDS,
) = range(10)

# Words of a `Table`.
SERVED, LATE, REWRITTEN, KNOWN, ENTRIES = range(5)

MAIL_IS_THERE = 1  # upper half of a mailbox word whose lower half is valid
# of one `take`: about 30 µs of pauses, then half a millisecond of yields
MAIL_PAUSES, MAIL_YIELDS = (
    1000,
    1000,
)
SERVE_MS = 50  # `serve` then returns to Python, which handles signals


@compiled("int64(int64, int64)")
def find(table: int, number: int) -> int:
    """Returns the address of the `Again` that this round repeats, up to its scalars; or 0."""
    for entry in range(load_acquire(table, KNOWN)):
        again = load_acquire(table, ENTRIES + entry)
        if load_acquire(again, NUMBER) == number:
            scalars = load_acquire(again, SCALAR_BYTES)
            values, packed = (
                load_acquire(again, VALUES) + scalars,
                load_acquire(again, PACKED) + scalars,
            )
            if memcmp(values, packed, load_acquire(again, VALUE_BYTES) - scalars) == 0:
                return again
    return 0


@compiled("int64(int64)")
def other_scalars(again: int) -> int:
    """Compares the scalars of this round with those of the launch. Returns 0 if they are equal."""
    return memcmp(
        load_acquire(again, VALUES), load_acquire(again, PACKED), load_acquire(again, SCALAR_BYTES)
    )


@compiled("int64(int64)")
def rewrite(again: int) -> int:
    """Makes the launch use the scalars of this round.

    Sets CHANGED once it begins. After a failure, PACKED no longer matches what the launch uses, so
    the call stays FORGOTTEN until Python updates it.

    Returns:
        0 on success, −1 to fall back to Python, else the driver's error code.
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
        source, target, nbytes = (
            values + load_acquire(words, at),
            load_acquire(words, at + 1),
            load_acquire(words, at + 2),
        )
        if nbytes == AS_SINGLE:
            memcpy(again + 8 * SCRATCH, source, 8)
            store_half(target, as_single(load_acquire(again, SCRATCH)))
        else:
            memcpy(target, source, nbytes)
    function = load_acquire(words, FUNCTION)
    for at in range(FIRST, FIRST + 3 * calls, 3):
        code = call_with_three(
            function,
            load_acquire(words, at),
            load_acquire(words, at + 1),
            load_acquire(words, at + 2),
        )
        if code != 0:
            return code
    store_release(again, NUMBER, number)
    return 0


@compiled("int64(int64)")
def run_rows(rows: int) -> int:
    """Runs rows of four words, after their number. Returns 0, the code of the first that fails, or
    UNDER_WAY.

    A row is a thunk, a function, its words (`native.py`), and the result with which it is done, or
    ANY_RESULT: with another one Python goes on. Or it is 0, a target, a source and the bytes to
    copy.
    """
    for row in range(1, 1 + 4 * load_acquire(rows, 0), 4):
        thunk, first, second = (
            load_acquire(rows, row),
            load_acquire(rows, row + 1),
            load_acquire(rows, row + 2),
        )
        if thunk == 0:
            memcpy(first, second, load_acquire(rows, row + 3))
        else:
            code = call_with_two(thunk, first, second)
            if code != 0:
                return code
            expected = load_acquire(rows, row + 3)
            if expected != ANY_RESULT and load_acquire(second, 0) != expected:
                return UNDER_WAY
    return 0


@compiled("int64(int64)")
def launch(relaunch: int) -> int:
    """Empties the mailbox and launches. Returns 0 or an error code."""
    if load_acquire(relaunch, LAUNCH) == 0:
        return run_rows(load_acquire(relaunch, EXECUTABLE))
    box = load_acquire(relaunch, BOX)
    for word in range(load_acquire(relaunch, MAILED)):
        store_release(box, word, 0)
    return call_with_two(
        load_acquire(relaunch, LAUNCH),
        load_acquire(relaunch, EXECUTABLE),
        load_acquire(relaunch, STREAM),
    )


@compiled("int64(int64)")
def take(relaunch: int) -> int:
    """Copies results from the mailbox to their targets. Returns 1 if all have arrived, 0 if some
    are late; may be repeated.
    """
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
    """Serves a round that repeats a known call. Returns 1 when done, UNDER_WAY if results are
    late, 0 to leave it to Python.
    """
    again = find(table, number)
    if again == 0:
        return 0
    if other_scalars(again) != 0:
        store_release(table, REWRITTEN, 1)
        if rewrite(again) != 0:
            return 0
    relaunch = load_acquire(again, RELAUNCH)
    code = launch(relaunch)
    if code == UNDER_WAY:
        store_release(table, LATE, again)
        return UNDER_WAY
    if code != 0:
        return 0  # Python launches again, and reports the error
    if take(relaunch) == 0:
        store_release(table, LATE, again)
        return UNDER_WAY
    return 1


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def serve(
    base: int, world_size: int, rank: int, sequence: int, pauses: int, yields: int, table: int
) -> int:
    """Arrives, then serves rounds that repeat known calls for up to SERVE_MS; counts them in the
    word SERVED.

    Returns:
        The result of `arrive` for the first round not served, or UNDER_WAY if its call was launched
        but is late.
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
