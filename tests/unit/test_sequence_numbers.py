"""Numbers of sequences: compiled operations give what Python's give, or are left to Python."""

import random
from operator import add, mul, sub, truediv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from synknumba._errors import ArgumentError
from synknumba._formulas import FUNCTIONS, OPERATORS
from synknumba._ops import reduction
from synknumba._rank import sequence_rows
from synknumba._rank.sequence_numbers import Numbers
from synknumba._sequence.call_checks import known_value
from synknumba._tracing import Number
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.numpy_loops import COUNT, STEPS, loop_of, words_of_call
from synknumba._wire.program import HostArray
from synknumba._wire.sequence import SequenceProgram, Shared
from tests.quick import examples

BOARD = HostArray(0, np.dtype(np.int64), (8,))
INTS = (
    0,
    1,
    -1,
    2,
    7,
    -13,
    2**31,
    -(2**31),
    2**53,
    2**53 + 1,
    2**62,
    -(2**62),
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.5, -2.25, 1e-300, 1e300, float("inf"), float("nan"))


def computed(sign, left, right):
    """The result of the compiled operation; None if it is left to Python."""
    cells = [
        np.array([one], np.int64 if isinstance(one, int) else np.float64) for one in (left, right)
    ]
    has_float = isinstance(left, float)
    operations = sequence_rows._FLOAT_OPERATIONS if has_float else sequence_rows._INT_OPERATIONS
    is_float = (has_float or sign == "/") and sign not in {"<", "<=", "=="}
    target = np.zeros(1, np.float64 if is_float else np.int64)
    done = table.operate(
        operations[sign], target.ctypes.data, *(cell.ctypes.data for cell in cells)
    )
    return target[0].item() if done else None


@pytest.mark.parametrize("sign", [*OPERATORS])
@pytest.mark.parametrize("kind", ["int", "float"])
def test_operations(sign, kind):
    operations = (
        sequence_rows._FLOAT_OPERATIONS if kind == "float" else sequence_rows._INT_OPERATIONS
    )
    if sign not in operations:
        # those that compiled code leaves to Python, or to NumPy
        assert sign in {
            "//",
            "%",
            "**",
            "float32",
            *FUNCTIONS,
        }
        return
    rng, numbers, found = random.Random(0), [*(FLOATS if kind == "float" else INTS)], 0
    numbers += [
        rng.gauss(0, 1e3) if kind == "float" else rng.randint(-(10**6), 10**6)
        for _ in range(examples(40, quick=10))
    ]
    for left in numbers:
        for right in numbers:
            ours = computed(sign, left, right)
            if ours is None:
                continue
            found += 1
            told = (
                OPERATORS[sign](left)
                if sign in {"neg", "abs", "float32"}
                else OPERATORS[sign](left, right)
            )
            assert type(ours) is type(told)
            assert repr(ours) == repr(told), (left, right)  # tells −0.0 from 0.0, and NaN is NaN
    assert found > 10


@pytest.mark.parametrize("name", [*FUNCTIONS])
def test_functions_are_those_of_numpy(name):
    rng, ufunc, loop = random.Random(0), FUNCTIONS[name], loop_of(FUNCTIONS[name])
    numbers = [
        *FLOATS,
        *INTS,
        0.5,
        -1.0,
        *(rng.gauss(0, 3) for _ in range(examples(200, quick=40))),
    ]
    for left in numbers:
        for right in numbers if ufunc.nin == 2 else (0,):
            operands = (left, right)[: ufunc.nin]
            with np.errstate(all="ignore"):
                told = ufunc(*operands).item()
                if name in {"minimum", "maximum"} and all(isinstance(one, int) for one in operands):
                    assert OPERATORS[name](*operands) == told
                    continue
            cells = [np.array([float(one)]) for one in operands]
            target = np.zeros(1)
            words = words_of_call([cell.ctypes.data for cell in cells], target.ctypes.data)
            run(loop.address, loop.data, words.ctypes.data)
            assert repr(OPERATORS[name](*operands)) == repr(told), operands
            assert repr(target[0].item()) == repr(told), operands


@njit("void(int64, int64, int64)")
def run(loop, data, words):
    table.run_loop(loop, words, words + 8 * COUNT, words + 8 * STEPS, data)


def test_a_loop_is_found_by_the_layout_of_its_ufunc():
    assert loop_of(np.bitwise_and) is None  # has none for float64
    assert loop_of.__wrapped__(np.frompyfunc(lambda x: x, 1, 1)) is None


# as NumPy has them, and as a sequence has: numbers that calls pass, and plain ones
OPERANDS = (
    (1.5, Number(("value", 1.5), "t", is_int=False)),
    (
        np.float32(0.1),
        Number(("value", float(np.float32(0.1))), "r", is_int=False, dtype="float32"),
    ),
    (3, Number(("value", 3), "n", is_int=True)),
    (np.float64(0.3), np.float64(0.3)),
    (0.3, 0.3),
    (np.float32(0.3), np.float32(0.3)),
)


@given(
    operands=st.lists(st.sampled_from(OPERANDS), min_size=3, max_size=4),
    signs=st.lists(st.sampled_from([add, sub, mul, truediv, np.maximum]), min_size=3, max_size=3),
)
def test_numbers_are_promoted_as_by_numpy(operands, signs):
    told, ours = operands[0]
    for sign, (value, number) in zip(signs, operands[1:], strict=False):
        told = sign(told, value)
        is_plain = not isinstance(ours, Number) and not isinstance(number, Number)
        if not is_plain and isinstance(told, np.float32):
            with pytest.raises(ArgumentError, match="NumPy would compute this in float32"):
                sign(ours, number)
            return
        ours = sign(ours, number)
    if isinstance(ours, Number):
        assert ours.is_float64 == isinstance(told, np.float64)
        assert known_value(ours.formula, [], step=0) == told


def test_what_is_left_to_python():
    assert computed("/", 1.0, 0.0) is None
    assert computed("//", 1, 0) is None
    assert computed("%", 1, 0) is None
    assert computed("*", 2**40, 2**40) is None
    assert computed("+", 2**62, 2**62) is None
    assert computed("/", 2**60 + 1, 3) is None
    assert computed("maximum", 2**62, 0) is None


def test_results_of_other_dtypes_have_no_cell():
    program = SequenceProgram(
        number=0, name="", parts=(), scalars="qd", slots=3, board=BOARD, entry_bytes=0, cells="dq"
    )
    numbers = Numbers(program)
    singles, words = np.array([0.25, 0.5], np.float32), np.array([2**64 - 1, 7], np.uint64)
    for slot, values in enumerate((singles, words)):
        shared = Shared(slot, 0, values.dtype, "max")
        numbers.keep(shared)
        numbers.combine(shared, values)
    numbers.scalars[:] = [3, np.float64(0.25).view(np.int64)]
    numbers.steps[0] = 4
    formula = ("+", ("*", ("result", 0), ("scalar", 1)), ("-", ("step", 0), ("scalar", 0)))
    assert numbers.evaluate(formula) == 0.5 * 0.25 + 4 - 3
    assert numbers.evaluate(("result", 1)) == 2**64 - 1
    assert [numbers.place("result", slot)[2] for slot in (0, 1)] == ["d", ""]
    first, second = ("cell", 0), ("cell", 1)
    numbers.move(((first, formula), (second, ("value", 3))))
    numbers.move(((first, second), (second, ("+", second, ("value", 1)))))
    assert [*map(numbers.evaluate, (first, second))] == [3.0, 4]
    with pytest.raises(OverflowError, match="for the next iteration .* 64 bits"):
        numbers.move(((first, ("value", 0)), (second, ("value", 2**63))))
    assert numbers.evaluate(first) == 3.0  # none is replaced before all are known


COMBINED = {"sum": table.SUM, "prod": table.PROD, "min": table.LEAST, "max": table.GREATEST}
KINDS = {"float64": table.DOUBLE, "float32": table.SINGLE, "int64": table.INT}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("op", COMBINED)
def test_parts_are_combined_as_numpy_does(op, dtype):
    rng = np.random.default_rng(0)
    for count in range(1, table.MAX_PARTS + 1):
        lines = np.zeros((count, table.LINE_BYTES // np.dtype(dtype).itemsize), dtype)
        lines[:, 0] = 100 * rng.standard_normal(count)
        if dtype != "int64" and count % 5 == 0:
            lines[rng.integers(count), 0] = rng.choice([np.nan, np.inf, -np.inf])
        cell = np.zeros(1, "int64" if dtype == "int64" else "float64")
        table.combine(cell.ctypes.data, lines.ctypes.data, count, COMBINED[op], KINDS[dtype])
        with np.errstate(over="ignore"):
            want = reduction.UFUNCS[op].reduce(np.ascontiguousarray(lines[:, 0]))
        np.testing.assert_array_equal(cell[0], want)
