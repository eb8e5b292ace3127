"""Tables: the parts of a sequence as rows of 8 words, which one compiled function runs, iteration
after iteration.

    row     code | operands …                       of each step, wait, loop and operation on numbers
    cell    a number, 8 bytes                       steps, scalars, results, and what is computed from them

    run ──> TO_PYTHON: the row is Python's to do     ──> run again, from the next row
        ──> LATE: other ranks work for long          ──> run again, from the same row
        ──> PAUSED: now and then, to handle signals  ──> run again
        ──> FINISHED, FAILED (a call returned an error), GIVEN_UP (another rank has failed)

Waits and counts are those of `sequence.py`. An operation on numbers whose result could differ from
Python's, such as a sum of integers beyond 64 bits or a division by zero, is left to Python, which
computes the whole formula.
"""  # noqa: E501

from typing import Any

from llvmlite import ir
from numba.extending import register_jitable

from synknumba._wire.compiled import compiled
from synknumba._wire.doorbell import (
    call_with_three,
    call_with_two,
    clock,
    launch,
    load_acquire,
    memcpy,
    now,
    record,
    rest,
    store_release,
    take,
)
from synknumba._wire.numpy_loops import COUNT, STEPS
from synknumba.simt.internals import emitted

ROW_WORDS = 8
SERVE_MS = 50  # `run` then returns to Python, which handles signals

# Codes of rows. Operands that are numbers are given by the addresses of their cells.
(
    LAUNCH,  # thunk, function, words
    COPY,  # target, source, bytes
    MOVE,  # target, source: one word
    TO_SINGLE,  # target, source: float64 to float32
    WAIT,  # parts back, whether for neighbours only
    # whether to show the count, word of the position (0 for none), what it shows of the next part,
    # parts to count
    FINISH,
    MEET,  # wait until all ranks are here
    # step, times, row after the loop, word of the position (0 for none), whether it needs an
    # iteration, without which Python raises an error
    ENTER,
    # step, times, row at which the next iteration begins, word of the position (0 for none), cell
    # that ends the loop (0 for none), what the position shows of the next iteration
    AGAIN,
    TURN,  # number of turns so far, row for odd ones
    JUMP,  # row
    PYTHON,
    PUT,  # stage, source, bytes, bytes between the two stages, turn
    # target, stage, operation on parts, type of the parts, bytes between the two stages, turn
    COMBINE,
    OPERATE,  # target, left, right, operation on numbers
    # of an iteration: row at which the next begins, cell that ends the loop in each period
    # (0 for none)
    END,
    FUNCTION,  # loop of NumPy, its data, words (`numpy_loops.py`)
    REWRITE,  # C function, its three arguments
    NOTE,  # ring of records (`doorbell.py`), number, buffer of a clock
    DUE,  # row to go to unless a period ends with the iteration
    RELAUNCH,  # launch of a recording (`relaunch.Relaunch`); Python launches it if that fails
    TAKE,  # its results; Python waits for them if they are late
) = range(22)

# Operations: on floats, then on ints. What they take is float64 or int64.
# Comparisons give an int, 1 or 0.
TO_FLOAT, ADD, SUB, MUL, DIV, NEG, ABS, POW, ROUND, LESS, AT_MOST, EQUAL = range(12)
INT_ADD, INT_SUB, INT_MUL, INT_DIV, INT_FLOORDIV, INT_MOD, INT_NEG, INT_ABS, INT_MIN, INT_MAX = (
    range(12, 22)
)
INT_LESS, INT_AT_MOST, INT_EQUAL = range(22, 25)
SUM, PROD, LEAST, GREATEST = range(4)  # operations that combine parts
DOUBLE, SINGLE, INT = range(3)  # types of combined parts
MAX_PARTS = 128  # NumPy halves longer sums; it adds shorter ones in eight columns
_COLUMNS = 8

# Words of the state.
AT, DONE_PARTS, ITERATION, TIMES, STEP, PERIOD, KEPT, KEPT_STRIDE, ENTRY, ENTRY_BYTES = range(10)
BOARD, WORLD_SIZE, RANK, PAUSES, YIELDS, POSITION, CODE, BEGAN = range(10, 18)
STRIDE = 18  # from the step of one iteration to that of the next
STATE_WORDS = 19

FINISHED, TO_PYTHON, LATE, PAUSED, FAILED, GIVEN_UP = range(6)
LINE_BYTES = 64  # from one rank's part on a stage to the next
_LINE = 8  # words from one rank's count to the next

_EXACT = 1 << 53  # up to here float64 has all integers
_HALF = 1 << 62  # sums of two smaller integers fit in 64 bits
_ROOT = 1 << 31  # products of two smaller integers do


def _loading(kind: Any, number: str) -> Any:
    @emitted(f"{number}(int64)")
    def load(builder: Any, address: Any) -> Any:
        return builder.load(builder.inttoptr(address, kind.as_pointer()))

    return load


def _storing(kind: Any, number: str) -> Any:
    @emitted(f"void(int64, {number})")
    def store(builder: Any, address: Any, value: Any) -> None:
        builder.store(value, builder.inttoptr(address, kind.as_pointer()))

    return store


_DOUBLE, _SINGLE, _WORD = ir.DoubleType(), ir.FloatType(), ir.IntType(64)
load_double, store_double = _loading(_DOUBLE, "float64"), _storing(_DOUBLE, "float64")
load_single, store_single = _loading(_SINGLE, "float32"), _storing(_SINGLE, "float32")
load_word, store_word = _loading(_WORD, "int64"), _storing(_WORD, "int64")


@emitted("float32(float64)")
def _as_single(builder: Any, value: Any) -> Any:
    """Converts a float64 to the nearest float32."""
    return builder.fptrunc(value, ir.FloatType())


@emitted("void(int64, int64, int64, int64, int64)")
def run_loop(builder: Any, loop: Any, *args: Any) -> None:
    """Calls a loop of NumPy by its address, with its arguments, count, steps and data."""
    declared = ir.FunctionType(ir.VoidType(), [_WORD] * 4)
    builder.call(builder.inttoptr(loop, declared.as_pointer()), args)


@compiled("int64(int64, int64, int64, int64)")
def operate(operation: int, target: int, left: int, right: int) -> int:
    """Computes a number from one or two others. Returns 0 if that is left to Python."""
    if operation < INT_ADD:
        if operation == TO_FLOAT:
            store_double(target, float(load_word(left)))
            return 1
        x = load_double(left)
        if operation == NEG:
            store_double(target, -x)
            return 1
        if operation == ABS:
            store_double(target, abs(x))
            return 1
        if operation == ROUND:
            store_double(target, float(_as_single(x)))
            return 1
        y = load_double(right)
        if operation == ADD:
            store_double(target, x + y)
        elif operation == SUB:
            store_double(target, x - y)
        elif operation == MUL:
            store_double(target, x * y)
        elif operation == POW:
            store_double(target, x**y)
        elif operation == LESS:
            store_word(target, int(x < y))
        elif operation == AT_MOST:
            store_word(target, int(x <= y))
        elif operation == EQUAL:
            store_word(target, int(x == y))
        else:
            if y == 0.0:
                return 0
            store_double(target, x / y)
        return 1
    a = load_word(left)
    b = load_word(right)
    if not (-_HALF < a < _HALF and -_HALF < b < _HALF):
        return 0
    if operation == INT_ADD:
        store_word(target, a + b)
    elif operation == INT_SUB:
        store_word(target, a - b)
    elif operation == INT_NEG:
        store_word(target, -a)
    elif operation == INT_ABS:
        store_word(target, abs(a))
    elif operation == INT_MUL:
        if not (-_ROOT < a < _ROOT and -_ROOT < b < _ROOT):
            return 0
        store_word(target, a * b)
    elif operation == INT_MIN:
        store_word(target, min(a, b))
    elif operation == INT_MAX:
        store_word(target, max(a, b))
    elif operation == INT_LESS:
        store_word(target, int(a < b))
    elif operation == INT_AT_MOST:
        store_word(target, int(a <= b))
    elif operation == INT_EQUAL:
        store_word(target, int(a == b))
    elif b == 0:
        return 0
    elif operation == INT_DIV:
        if not (-_EXACT < a < _EXACT and -_EXACT < b < _EXACT):
            return 0
        store_double(target, float(a) / float(b))
    elif operation == INT_FLOORDIV:
        store_word(target, a // b)
    else:
        store_word(target, a % b)
    return 1


@register_jitable  # type: ignore[untyped-decorator]
def _joined(x: Any, y: Any, operation: int) -> Any:
    if operation == SUM:
        return x + y
    if operation == PROD:
        return x * y
    if x != x:  # noqa: PLR0124  # a NaN is not equal to itself
        return x
    if operation == LEAST:
        return x if x < y else y
    return x if x > y else y


def _combining(load: Any) -> Any:
    """Returns a function that combines the ranks' parts of a number."""

    @register_jitable  # type: ignore[untyped-decorator]
    def column(stage: int, first: int, end: int, step: int, operation: int) -> Any:
        x = load(stage + first * LINE_BYTES)
        for rank in range(first + step, end, step):
            x = _joined(x, load(stage + rank * LINE_BYTES), operation)
        return x

    @register_jitable  # type: ignore[untyped-decorator]
    def pair(stage: int, first: int, end: int) -> Any:
        left = column(stage, first, end, _COLUMNS, SUM)
        return left + column(stage, first + 1, end, _COLUMNS, SUM)

    @register_jitable  # type: ignore[untyped-decorator]
    def combine(stage: int, count: int, operation: int) -> Any:
        if operation != SUM or count < _COLUMNS:
            return column(stage, 0, count, 1, operation)
        end = count - count % _COLUMNS
        a = pair(stage, 0, end) + pair(stage, 2, end)
        total = a + (pair(stage, 4, end) + pair(stage, 6, end))
        for rank in range(end, count):
            total += load(stage + rank * LINE_BYTES)
        return total

    return combine


_combine_doubles, _combine_singles = _combining(load_double), _combining(load_single)
_combine_words = _combining(load_word)


@compiled("void(int64, int64, int64, int64, int64)")
def combine(target: int, stage: int, world_size: int, operation: int, kind: int) -> None:
    """Combines the ranks' parts of a number: a sum of `MAX_PARTS` parts at most, in the order of
    NumPy's pairwise sums, else in rank order.
    """
    if kind == DOUBLE:
        store_double(target, _combine_doubles(stage, world_size, operation))
    elif kind == SINGLE:
        store_double(target, float(_combine_singles(stage, world_size, operation)))
    else:
        store_word(target, _combine_words(stage, world_size, operation))


@compiled("int64(int64, int64, int64)")
def _wait(state: int, level: int, nearby: int) -> int:
    """Spins until the other ranks, or the neighbours if `nearby`, show counts of at least `level`.

    Returns:
        −1; GIVEN_UP if a rank has failed; LATE if the spins ended first, so that Python handles
        signals.
    """
    board = load_word(state + 8 * BOARD)
    world_size, rank = load_word(state + 8 * WORLD_SIZE), load_word(state + 8 * RANK)
    pauses, yields = load_word(state + 8 * PAUSES), load_word(state + 8 * YIELDS)
    spin, since, index = 0, 0, 0
    end = 2 if nearby != 0 else world_size
    while index < end:
        peer = index
        if nearby != 0:
            peer = (rank + world_size - 1 + 2 * index) % world_size
        if peer == rank or load_acquire(board, peer * _LINE) >= level:
            index += 1
            continue
        if load_acquire(board, world_size * _LINE) != 0:
            return GIVEN_UP
        if spin >= pauses + yields:
            return LATE
        since = rest(spin, pauses, since)
        if since < 0:
            return LATE
        spin += 1
    return -1


@compiled("int64(int64, int64)")
def _row(row: int, state: int) -> int:
    """Runs a row that neither waits nor changes the order. Returns −1, or why `run` must return."""
    code = load_word(row)
    a, b, c = load_word(row + 8), load_word(row + 16), load_word(row + 24)
    if code == COPY:
        memcpy(a, b, c)
    elif code == MOVE:
        store_word(a, load_word(b))
    elif code == TO_SINGLE:
        store_single(a, _as_single(load_double(b)))
    elif code == OPERATE:
        if operate(load_word(row + 32), a, b, c) == 0:
            return TO_PYTHON
    elif code == FUNCTION:
        run_loop(a, c, c + 8 * COUNT, c + 8 * STEPS, b)
    elif code == PUT:
        memcpy(a + (load_word(load_word(row + 40)) & 1) * load_word(row + 32), b, c)
    elif code == COMBINE:
        turn = load_word(row + 48)
        stage = b + (load_word(turn) & 1) * load_word(row + 40)
        combine(a, stage, load_word(state + 8 * WORLD_SIZE), c, load_word(row + 32))
        store_word(turn, load_word(turn) + 1)
    elif code == REWRITE:
        if call_with_three(a, b, c, load_word(row + 32)) != 0:
            return FAILED
    elif code == RELAUNCH:
        if launch(a) != 0:
            return TO_PYTHON
    elif code == TAKE:
        if take(a) == 0:
            return TO_PYTHON
    elif code == NOTE:
        record(a, b, now(c, 0), load_word(load_word(state + 8 * STEP)), 0)
    else:
        return TO_PYTHON
    return -1


@compiled("void(int64, int64, int64, int64)")
def _show(position: int, word: int, part: int, step: int) -> None:
    """Shows the part and the step of an inner loop."""
    if word != 0:
        store_release(position, word, part)
        store_release(position, word + 1, step)


@compiled("int64(int64, int64)")
def run(table: int, state: int) -> int:
    """Runs the rows from word AT of the state on, until all iterations are finished or Python
    has to do something.
    """
    board, rank = load_word(state + 8 * BOARD), load_word(state + 8 * RANK)
    at, count, began = (
        load_word(state),
        load_word(state + 8 * DONE_PARTS),
        load_word(state + 8 * BEGAN),
    )
    if began == 0:
        began = clock()
    times, iteration = load_word(state + 8 * TIMES), load_word(state + 8 * ITERATION)
    step, period = load_word(state + 8 * STEP), load_word(state + 8 * PERIOD)
    stride = load_word(state + 8 * STRIDE)
    first = load_word(step) - iteration * stride
    position = load_word(state + 8 * POSITION)
    why = FINISHED
    while iteration < times:
        row = table + at * (8 * ROW_WORDS)
        code = load_word(row)
        if code == LAUNCH:
            result = call_with_two(load_word(row + 8), load_word(row + 16), load_word(row + 24))
            if result != 0:
                store_word(state + 8 * CODE, result)
                why = FAILED
                break
        elif code == FINISH:
            count += load_word(row + 32)
            if load_word(row + 16) != 0:
                store_release(position, load_word(row + 16), load_word(row + 24))
            if load_word(row + 8) != 0:
                store_release(board, rank * _LINE, count)
        elif code == WAIT:
            level = count - load_word(row + 8) + 1
            result = _wait(state, level, load_word(row + 16)) if level > 0 else -1
            if result >= 0:
                why = result
                break
        elif code == MEET:
            store_release(board, rank * _LINE, count)
            result = _wait(state, count, 0)
            if result >= 0:
                why = result
                break
        elif code == TURN:
            turn = load_word(load_word(row + 8))
            store_word(load_word(row + 8), turn + 1)
            if turn & 1 != 0:
                at = load_word(row + 16)
                continue
        elif code == END:
            iteration += 1
            is_due = period != 0 and iteration % period == 0
            if is_due and load_word(state + 8 * KEPT) != 0:
                target = load_word(state + 8 * KEPT) + (iteration // period - 1) * load_word(
                    state + 8 * KEPT_STRIDE
                )
                memcpy(target, load_word(state + 8 * ENTRY), load_word(state + 8 * ENTRY_BYTES))
            at = load_word(row + 8)
            if is_due and load_word(row + 16) != 0 and load_word(load_word(row + 16)) != 0:
                times = iteration
                store_word(state + 8 * TIMES, 0)
            if iteration < times:
                store_word(step, first + iteration * stride)
                store_release(position, 0, first + iteration * stride)
                if clock() - began > SERVE_MS:
                    why = PAUSED
                    break
            continue
        elif code == JUMP:
            at = load_word(row + 8)
            continue
        elif code == DUE:
            if period == 0 or (iteration + 1) % period != 0:
                at = load_word(row + 8)
                continue
        elif code == ENTER:
            store_word(load_word(row + 8), 0)
            if load_word(load_word(row + 16)) <= 0:
                if load_word(row + 40) != 0:
                    why = TO_PYTHON
                    break
                at = load_word(row + 24)
                continue
            _show(position, load_word(row + 32), 1, 0)
        elif code == AGAIN:
            inner = load_word(load_word(row + 8)) + 1
            ends = load_word(row + 40) != 0 and load_word(load_word(row + 40)) != 0
            if inner < load_word(load_word(row + 16)) and not ends:
                store_word(load_word(row + 8), inner)
                _show(position, load_word(row + 32), load_word(row + 48), inner)
                at = load_word(row + 24)
                if clock() - began > SERVE_MS:
                    why = PAUSED
                    break
                continue
            _show(position, load_word(row + 32), 0, 0)
        else:
            result = _row(row, state)
            if result >= 0:
                why = result
                break
        at += 1
    store_word(state, at)
    store_word(state + 8 * DONE_PARTS, count)
    store_word(state + 8 * ITERATION, iteration)
    store_word(state + 8 * BEGAN, began if why == TO_PYTHON else 0)
    return why
