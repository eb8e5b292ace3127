"""What the body of a sequence cannot do with numbers: the error names the operand, and tells
what to write instead.
"""

import math
import operator
import pickle
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._world import open_world
from tests.unit.test_sequence_plan import total

V = synk.variable(np.zeros(4), name="v")
ROWS = synk.data(np.zeros((4, 4)), name="rows")
HEIGHTS = np.arange(4.0)


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
    number = {
        "an argument": lambda n: n,
        "synk.STEP": lambda n: synk.STEP / 2,
        "a result": lambda n: total(V),
    }[of]
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
    "a bool, True": (
        lambda: True,
        r"got a bool, True, as the {} operand; write int\(x\) for a bool",
    ),
    "a bool of NumPy": (
        lambda: np.bool_(False),
        r"got a bool, False, as the {} operand; write int\(x\) for a bool",
    ),
    "a complex": (
        lambda: 1j,
        "got a complex, 1j, as the {} operand; compute with it in a kernel or function",
    ),
    "a decimal": (lambda: Decimal(1), r"got a Decimal as the {} operand; write float\(x\)"),
    "None": (lambda: None, "got a NoneType, None, as the {} operand"),
    "an array": (
        lambda: np.ones(3),
        "got an ndarray as the {} operand; compute with it in a kernel or function",
    ),
    "a list": (
        lambda: [1.0],
        "got a list as the {} operand; compute with it in a kernel or function",
    ),
    "Data": (
        lambda: ROWS,
        "got (a Data|an ndarray) as the {} operand; compute with it in a kernel or function",
    ),
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


@synk.parallel(
    outputs={
        name: synk.output(op, shape=(), dtype="float64")
        for name, op in (("s", "sum"), ("b", "argmax"))
    }
)
@cuda.jit
def extreme(x, s, b):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(s, 0, x[i])
        b[i] = x[i]


@synk.expectation
def average(x):
    return x


@synk.vectorize
def plus(x, y):
    return x + y


TREE = synk.variable({"h": np.zeros(4), "q": np.zeros(4)}, name="tree")
IN_A_BODY = {  # what a body cannot do, and words of the way out
    "an expectation": (
        lambda v: average(ROWS[0]),
        "average is an expectation, .* call a kernel with an output of op",
    ),
    "an expectation with until=": (
        lambda v: average(ROWS[0], until=bool),
        "average is an expectation",
    ),
    "a map without out=": (
        lambda v: plus(ROWS[0], 1.0),
        "plus gives its result to the script, .* pass out=",
    ),
    "a reduction of rows": (
        lambda v: plus.reduce(ROWS[0]),
        r"plus\.reduce cannot be called in a sequence, .* call a kernel",
    ),
    "an exchange of a branch": (
        lambda v: synk.exchange(TREE["h"]),
        r"tree'\['h'\] is a part of one; pass the tree, or make",
    ),
    "an all_reduce of branches": (
        lambda v: synk.all_reduce([TREE["h"]], "sum"),
        "all_reduce takes whole variables",
    ),
    "a swap of branches": (lambda v: synk.swap(TREE["h"], TREE["q"]), "swap takes whole variables"),
    "a branch plus a number": (
        lambda v: scale(v, TREE["h"] + 1),
        "tree'.* lives on the ranks.*pass it to a kernel",
    ),
    "a sum of a branch": (
        lambda v: np.sum(TREE["h"]),
        "tree'.* lives on the ranks.*pass it to a kernel",
    ),
    "the value of a branch": (
        lambda v: TREE["h"].get_value(),
        r"has no get_value\(\); use that of variable 'tree'",
    ),
    "a branch in a map": (
        lambda v: plus(ROWS[0], TREE["h"], out=v),
        "y of plus is variable 'tree'.*one variable per array",
    ),
    "a sum of a variable": (
        lambda v: scale(v, np.sum(v)),
        "'v' lives on the ranks.*for a sum, mean or maximum has an output",
    ),
    "a number of a variable": (
        lambda v: scale(v, float(v)),
        "'v' lives on the ranks.*for a sum, mean or maximum has an output",
    ),
    "the value of a variable": (
        lambda v: v.get_value(),
        r"get_value\(\) inside .* read it after the call; .* every=",
    ),
    "a new value": (
        lambda v: v.set_value(np.ones(4)),
        r"set_value\(\) inside .* a kernel or function can write",
    ),
    "a submitted call": (
        lambda v: scale.submit(v, 1.0),
        r"submit\(\) inside .* leave \.submit out",
    ),
    "scattered rows": (
        lambda v: [synk.scatter(v)],
        r"scatter\(\) inside .* synk\.exchange renews its halos",
    ),
    "gathered rows": (lambda v: [synk.gather(v)], r"gather\(\) inside .* read it after the call"),
    "the value of a maximum": (
        lambda v: scale(v, extreme(ROWS[0]).b.value),
        "b of extreme is not known.*argmax finds .* Return",
    ),
    "the row of a maximum": (
        lambda v: scale(v, extreme(ROWS[0]).b.row),
        "b of extreme is not known.*argmax finds .* Return",
    ),
    "a fraction": (lambda v: scale(v, HALF * synk.STEP), r"got a Fraction .*; write float\(x\)"),
    "an element of a table": (
        lambda v: scale(v, HEIGHTS[synk.STEP]),
        r"in place of table\[synk\.STEP\] pass table, in broadcast=, and synk\.STEP to it",
    ),
    "a member that no result has": (
        lambda v: extreme(ROWS[0]).s.total,
        "s of extreme has no 'total'",
    ),
    "arithmetic of a constant": (
        lambda v: scale(v, 2 * synk.RANK),
        r"synk\.RANK is no number.* Pass it, as in f\(x, synk\.RANK\)",
    ),
    "a number times a constant": (
        lambda v: scale(v, synk.STEP * synk.OFFSET),
        r"synk\.OFFSET is no number.* Pass it, as in f\(x, synk\.OFFSET\)",
    ),
}


@pytest.fixture(scope="module")
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("case", IN_A_BODY)
def test_the_way_out_of_what_a_body_cannot_do(case):
    compute, match = IN_A_BODY[case]
    with pytest.raises(
        synk.SynkError,
        match=rf"^\S*{re.escape(__file__)}:\d+: (?!.*(Branch|ResultHandle|RankConstant)).*{match}",
    ):
        synk.sequence(compute)(V)


def check_that_a_planned_body_reads_no_values():
    for use in (
        lambda v: v.get_value(),
        lambda v: v.set_value(np.zeros(4)),
        lambda v: [synk.snapshot(v)],
    ):
        with pytest.raises(synk.ArgumentError, match="inside .* would run once"):
            synk.sequence(use).plan(synk.variable(np.ones(4)), world_size=2)


def test_values_are_not_read_in_a_body_that_is_planned_without_a_world(monkeypatch):
    monkeypatch.setattr(open_world.CURRENT, "world", None)
    check_that_a_planned_body_reads_no_values()


@pytest.mark.usefixtures("world")
def test_values_are_not_read_in_a_body_that_is_planned():
    check_that_a_planned_body_reads_no_values()


@pytest.mark.usefixtures("world")
def test_a_map_with_out_is_a_call_of_a_body():
    out = np.zeros(4)
    synk.sequence(lambda x, y: plus(x, 1.0, out=y))(np.arange(4.0), out, times=2)
    np.testing.assert_array_equal(out, np.arange(4.0) + 1)


def test_elements_are_written_by_kernels():
    def assigned(v):
        v[0] = 2.0

    with pytest.raises(
        synk.ArgumentError,
        match=r"v\[0\] would be assigned once.* call a kernel or a function with v",
    ):
        synk.sequence(assigned)


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
    for compute, got in (
        (lambda k: k, "k of <lambda>"),
        (lambda k: k // 2, "a number computed from k of <lambda>"),
    ):
        body = synk.sequence(lambda rows, k, compute=compute: call(rows, compute(k)))
        with pytest.raises(
            synk.ArgumentError, match=rf"{re.escape(__file__)}:\d+: {told.format(got)}.*{static}"
        ):
            body.plan(ROWS, 3, world_size=2)
    with pytest.raises(
        synk.ArgumentError, match=rf"{told.format('synk.STEP')}.*rows\[synk\.STEP\]"
    ) as caught:
        synk.sequence(lambda rows: call(rows, synk.STEP)).plan(ROWS, world_size=2)
    assert "static" not in str(caught.value)


@pytest.mark.parametrize("case", VALUES)
def test_values_that_calls_do_not_take_are_told_with_the_line(case):
    with pytest.raises(
        synk.SynkError, match=rf"^\S*{re.escape(__file__)}:\d+: (?!\S*{re.escape(__file__)})"
    ):
        synk.sequence(VALUES[case]).plan(V, world_size=2)


PLACEHOLDERS = {
    "equal": lambda: synk.RANK == 0,
    "not equal": lambda: synk.RANK != 0,
    "on the right": lambda: 2 == synk.WORLD_SIZE,  # noqa: SIM300  # the other operand's comparison comes first
    "with an array": lambda: np.zeros(2) == synk.OFFSET,
    "true": lambda: bool(synk.RANK),
    "not": lambda: not synk.OFFSET,
    "or": lambda: synk.OWN or 3,
    "if": lambda: 1 if synk.WORLD_SIZE else 2,
    "in": lambda: synk.RANK in (0, 1),
}


@pytest.mark.parametrize("case", PLACEHOLDERS)
def test_what_ranks_fill_in_is_no_number_before(case):
    """A comparison would be false, and a condition true, on every rank."""
    ask, line = PLACEHOLDERS[case], PLACEHOLDERS[case].__code__.co_firstlineno
    refused = (
        rf"^{re.escape(__file__)}:{line}: synk\.[A-Z_]+ is no number.*Pass it, as "
        rf"in f\(x, synk\.[A-Z_]+\)"
    )
    with pytest.raises(synk.ArgumentError, match=refused):
        ask()

    @synk.sequence
    def body(v):
        scale(v, 2.0 if ask() else 3.0)

    with pytest.raises(
        synk.ArgumentError, match=rf"^\S*{re.escape(__file__)}:\d+: .*synk\.[A-Z_]+ is no number"
    ):
        body.plan(V, world_size=2)


def test_what_ranks_fill_in_is_told_apart():
    constants = [synk.RANK, synk.WORLD_SIZE, synk.OFFSET, synk.ROWS, synk.OWN]
    assert [[one == other for other in constants] for one in constants] == np.eye(5).tolist()
    assert len({*constants, *pickle.loads(pickle.dumps(constants))}) == 5


@synk.function(inout=("o",))
def shift(o):
    o += 1


@synk.function(outputs="gather")
def taken(x):
    return x.copy()


@synk.function(inout=("x",))
def put(x):
    x += 1


@synk.sequence
def one_taken(x, order):
    return taken(x, batch=order[synk.STEP])


TABLE = synk.data(np.tile(np.arange(4), (4, 1)), name="table")
SHIFT, TAKEN = r"o of shift \(call {}, \S+:\d+\)", r"batch= of taken \(call {}, \S+:\d+\)"


def before(x, order, _):
    shift(order)
    return taken(x, batch=order[synk.STEP])


def after(x, order, _):
    last = taken(x, batch=order[synk.STEP])
    shift(order)
    return last


def second_name(x, order, again):
    shift(again)
    return taken(x, batch=order[synk.STEP])


def from_outside(x, order, _):
    shift(order)
    return taken(x, batch=TABLE[synk.STEP])


def in_inner_loop(x, order, _):
    one_taken(x, order, times=2)
    shift(order)


def in_its_own_rows(_x, order, _):
    put(order, batch=order[synk.STEP])


def under_swapped_variables(x, order, _):
    u, v = LEFT, RIGHT
    synk.swap(u, v)
    shift(order)
    taken(x, batch=order[synk.STEP])


LEFT, RIGHT = synk.variable(np.zeros(2)), synk.variable(np.zeros(2))
WRITERS = {
    before: (SHIFT.format(1), TAKEN.format(2)),
    after: (SHIFT.format(2), TAKEN.format(1)),
    second_name: (SHIFT.format(1), TAKEN.format(2)),
    from_outside: (SHIFT.format(1), TAKEN.format(2)),
    in_inner_loop: (SHIFT.format(2), TAKEN.format(1)),
    in_its_own_rows: (r"x of put \(call 1, \S+:\d+\)", r"batch= of put \(call 1, \S+:\d+\)"),
    under_swapped_variables: (SHIFT.format(1), TAKEN.format(2)),
}


@pytest.mark.parametrize("body", WRITERS, ids=lambda body: body.__name__)
def test_a_table_of_rows_is_not_written_beside_calls_that_select_by_it(body):
    """Its numbers are tested before the ranks begin."""
    writer, reader = WRITERS[body]
    with pytest.raises(
        synk.ArgumentError,
        match=rf"{body.__name__}: {writer} writes.*by which {reader} selects.*"
        "a second array.*single calls",
    ):
        synk.sequence(body).plan(np.zeros(9), TABLE, TABLE, world_size=2)


def test_plans_tell_tables_of_rows_and_test_them():
    x, order = np.zeros(9), np.tile(np.arange(4), (3, 1))
    report = one_taken.plan(x, synk.data(order), times=3, world_size=2)
    assert report.parts[0].reads == ("order", "x")
    order[1, 2] = 9
    with pytest.raises(synk.BatchError, match="has row 9 in line 1"):
        one_taken.plan(x, synk.data(order), times=3, world_size=2)


@synk.function(outputs="sum")
def summed(u):
    return u.sum()


@synk.parallel(grid="elements", outputs={"m": synk.output("max", shape=(), dtype="float32")})
@cuda.jit
def largest(u, m):
    i = cuda.grid(1)
    if i < u.shape[0]:
        cuda.atomic.max(m, 0, u[i])


def two(u):
    return largest(u), largest(u)


NOTHING, HALF = None, Fraction(1, 2)
CONDITIONS = {
    "a function": (summed, lambda r: r < 1, "return a number which ranks compare"),
    "isnan": (largest, lambda r: np.isnan(r) & True, r"write r != r in place of np.isnan\(r\)"),
    "a fraction": (
        largest,
        lambda r: r < HALF,
        r"uses HALF, which is a Fraction.*pass a number, as by a = float\(x\)",
    ),
    "none": (largest, lambda r: r < NOTHING, "uses NOTHING, which is a NoneType.*pass a number"),
    "float32": (largest, lambda r: r * 2 < 1, r"write np.float64\(1\) \* r"),
    "a pair": (two, lambda r: r < 1, "take one argument"),
    "arguments": (two, lambda a, b: a < b, "take one argument"),
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_conditions_of_inner_sequences_say_what_to_write(condition):
    function, until, match = condition

    @synk.sequence
    def inner(u):
        return function(u)

    @synk.sequence
    def body(u):
        inner(u, times=3, until=until)

    with pytest.raises(synk.ArgumentError, match=match):
        body.plan(synk.variable(np.zeros(4, np.float32)), world_size=2)
