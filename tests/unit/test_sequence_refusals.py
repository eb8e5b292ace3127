"""What the body of a sequence cannot do with numbers: the error names the operand, and tells what to write instead."""

import math
import operator
import re

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from tests.unit.test_sequence_plan import total

V = synk.variable(np.zeros(4), name="v")
ROWS = synk.data(np.zeros((4, 4)), name="rows")


@synk.parallel(grid=1, block=4)
@cuda.jit
def scale(v, by):
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] *= by


@synk.function(outputs=None)
def first(v):
    return v[0]


def planned(compute, *numbers):
    synk.sequence(lambda v, n, k: scale(v, compute(n, k))).plan(V, *numbers, world_size=2)


def refused(compute, *numbers):
    with pytest.raises(synk.ArgumentError, match=rf"^\S*{re.escape(__file__)}:\d+: ") as caught:
        planned(compute, *numbers)
    return str(caught.value)


GENERAL = ["np.sqrt", "np.maximum", "np.minimum", "+ - *"]
MAXIMUM = "np.maximum(a, b) in place of max(a, b), and np.minimum(a, b) in place of min(a, b)"
SQRT = "np.sqrt(n) in place of math.sqrt(n), and 1.0 * n in place of float(n)"
HINTS = {
    "n & 1": "n % 2 ** k",
    "6 & n": "n % 2 ** k",
    "n << 2": "n * 2 ** k",
    "1 << n": "n * 2 ** k",
    "n >> 2": "n // 2 ** k",
    "~n": "-n - 1",
    "np.left_shift(n, 2)": "n * 2 ** k",
    "divmod(n, 2)": "n // m and n % m",
    "round(n)": "(n + 0.5) // 1",
    "np.round(n)": "(n + 0.5) // 1",
    "np.floor(n)": "n // 1",
    "math.floor(n)": "n // 1",
    "math.ceil(n)": "-(-n // 1)",
    "int(n)": "n // 1",
    "np.square(n)": "n * n",
    "np.clip(n, 0, 2)": "np.minimum(np.maximum(n, low), high)",
    "max(n, 2)": MAXIMUM,
    "min(2, n)": MAXIMUM,
    "math.sqrt(n)": SQRT,
    "float(n)": SQRT,
    "n | 1": "",
    "n ^ 1": "",
    "n @ n": "",
    "np.isnan(n)": "",
    "np.cumsum(n)": "",
    "n == 3": "",
    "n.real": "",
    "'a' if n else 'b'": "",
    "f'{n}'": "",
}


@pytest.mark.parametrize("case", HINTS)
@pytest.mark.parametrize("of", ["an argument", "synk.STEP", "a result"])
def test_the_hint_fits_the_operation(case, of):
    compute = eval(compile(f"lambda n: {case}", __file__, "eval"), {"np": np, "math": math})
    number = {"an argument": lambda n: n, "synk.STEP": lambda n: synk.STEP / 2, "a result": lambda n: total(V)}[of]
    told = refused(lambda n, k: compute(number(n)), 3.5, 2)
    assert HINTS[case] in told
    assert not [one for one in GENERAL if one in told and one not in HINTS[case]]
    assert "kernel" in told


OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "maximum": np.maximum,
    "arctan2": np.arctan2,
}
OPERANDS = {
    "a bool, True": (lambda: True, r"got a bool, True, as the {} operand; write int\(x\) for a bool"),
    "a bool of NumPy": (lambda: np.bool_(False), r"got a bool, False, as the {} operand; write int\(x\) for a bool"),
    "a complex": (lambda: 1j, "got a complex, 1j, as the {} operand; compute with it in a kernel or function"),
    "None": (lambda: None, "got a NoneType, None, as the {} operand"),
    "an array": (lambda: np.ones(3), "got a ndarray as the {} operand; compute with it in a kernel or function"),
    "a list": (lambda: [1.0], "got a list as the {} operand; compute with it in a kernel or function"),
    "Data": (lambda: ROWS, "got a (Data|ndarray) as the {} operand; compute with it in a kernel or function"),
    "a variable": (lambda: V, "got a Variable as the {} operand|variable 'v' lives on the ranks"),
    "a result": (lambda: first(V), "the value of the result of first is not known"),
    "a line": (lambda: ROWS[synk.STEP], "the value of a line of rows is not known"),
}


@pytest.mark.parametrize("sign", OPERATIONS)
@pytest.mark.parametrize("case", OPERANDS)
def test_the_wrong_operand_is_named(sign, case):
    made, match = OPERANDS[case]
    compute = OPERATIONS[sign]
    assert re.search(match.format("second"), refused(lambda n, k: compute(n, made()), 3, 2))
    assert re.search(match.format("first"), refused(lambda n, k: compute(made(), n), 3, 2))
    if case in {"a result", "a line"}:
        assert re.search(match, refused(lambda n, k: compute(made(), made()), 3, 2))


POWERS = {
    "an int": lambda n, k: np.power(n, 64),
    "of an int": lambda n, k: np.power(5, k),
    "a negative int": lambda n, k: np.power(n, -1),
    "the step": lambda n, k: np.power(n, synk.STEP),
    "of NumPy's int": lambda n, k: np.int64(5) ** k,
}


@pytest.mark.parametrize("case", POWERS)
def test_powers_of_ints_by_numpy_wrap(case):
    assert "np.power of two ints wraps in NumPy" in refused(POWERS[case], 5, 64)
    planned(lambda n, k: np.power(1.0 * n, k) + n**2 + np.power(n, 0.5), 5, 64)


class Model:
    n = 1.0


MODEL, OBJECTS, TEXT = Model(), np.array([1.0, None], dtype=object), "text"
VALUES = {
    "an object": lambda v: scale(v, MODEL),
    "an array of objects": lambda v: scale(v, OBJECTS),
    "an array of objects, for a function": lambda v: first(OBJECTS),
    "an array of objects in a tree": lambda v: first({"a": [OBJECTS]}),
    "a string": lambda v: scale(TEXT, 1.0),
    "a module": lambda v: scale(v, math),
    "too few": lambda v: scale(v=v),
    "a misspelt name": lambda v: scale(v, bye=1.0),
    "an object in a collective": lambda v: synk.all_reduce(MODEL, "sum"),
    "an array in a collective": lambda v: synk.exchange(np.ones(3)),
    "an op": lambda v: synk.all_reduce(v, TEXT),
    "no variable": lambda v: synk.swap(v, MODEL),
}


@pytest.mark.parametrize("option", ["batch", "local_batch"])
def test_rows_by_a_number_of_the_sequence(option):
    def call(rows, k):
        scale(rows, 1.0, **{option: k})

    told = rf"{option}= of scale must be known while .*; got {{}}"
    static = r"pass synk\.static\(k\), which makes another recording for each value"
    for compute, got in ((lambda k: k, "k of <lambda>"), (lambda k: k // 2, "a number computed from k of <lambda>")):
        body = synk.sequence(lambda rows, k, compute=compute: call(rows, compute(k)))
        with pytest.raises(synk.ArgumentError, match=rf"{re.escape(__file__)}:\d+: {told.format(got)}.*{static}"):
            body.plan(ROWS, 3, world_size=2)
    with pytest.raises(synk.ArgumentError, match=rf"{told.format('synk.STEP')}.*rows\[synk\.STEP\]") as caught:
        synk.sequence(lambda rows: call(rows, synk.STEP)).plan(ROWS, world_size=2)
    assert "static" not in str(caught.value)


@pytest.mark.parametrize("case", VALUES)
def test_values_that_calls_do_not_take_are_told_with_the_line(case):
    with pytest.raises(synk.SynkError, match=rf"^\S*{re.escape(__file__)}:\d+: (?!\S*{re.escape(__file__)})"):
        synk.sequence(VALUES[case]).plan(V, world_size=2)
