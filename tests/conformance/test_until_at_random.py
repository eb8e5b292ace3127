"""Random loops that end by random conditions, as written in Python: judged by the ranks, they make
the iterations, and return the results, of those that the script judges, and of NumPy.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._rank import sequence_routine
from tests.conformance.test_sequence_until import (
    RANKS,
    Asked,
    advance,
    counter,
    look32,
    look64,
    look_int,
    looking,
)
from tests.quick import examples, whole

NUMBERS = ("a", "b", "STEP", "tol", "k", "2.5", "3", "0.0", "-1")


def expressions(quantity):
    """Numbers that are computed from numbers."""
    return st.one_of(
        st.tuples(quantity, st.sampled_from(["+", "-", "*"]), quantity).map(
            lambda each: f"({' '.join(each)})"
        ),
        st.tuples(quantity, st.sampled_from(["a", "b"])).map(
            lambda each: f"({each[0]} / {each[1]})"
        ),
        quantity.map(lambda each: f"abs({each})"),
        quantity.map(lambda each: f"(-{each})"),
        st.tuples(st.sampled_from(["minimum", "maximum"]), quantity, quantity).map(
            lambda each: f"np.{each[0]}({each[1]}, {each[2]})"
        ),
        st.tuples(st.sampled_from(["sqrt", "exp", "sin", "arctan"]), quantity).map(
            lambda each: f"np.{each[0]}({each[1]})"
        ),
    )


QUANTITIES = st.recursive(st.sampled_from(NUMBERS), expressions, max_leaves=4)
# the left one has a result, so that Python compares none of its own numbers
COMPARISONS = st.one_of(
    st.tuples(
        st.sampled_from(["a", "b", "(a + {})", "({} * b)", "np.maximum(a, {})", "({} - a / b)"]),
        QUANTITIES,
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        QUANTITIES,
    ).map(lambda each: f"({each[0].format(each[1])} {each[2]} {each[3]})"),
    st.tuples(
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        st.sampled_from(["0.1", "tol", "k", "STEP", "np.float64(0.1)", "c"]),
    ).map(lambda each: f"(c {each[0]} {each[1]})"),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda condition: st.one_of(
        st.tuples(condition, st.sampled_from(["&", "|"]), condition).map(
            lambda each: f"({' '.join(each)})"
        ),
        condition.map(lambda each: f"~{each}"),
    ),
    max_leaves=4,
)
FLOATS = st.sampled_from([0.0, -0.0, 1.0, -2.5, 0.1, 1e-300, 1e300, np.inf, np.nan, 3.0])
TIMES = 5


@synk.sequence
def three(n, a, b, c):
    advance(n)
    return look64(a, synk.STEP), look_int(b, synk.STEP), look32(c, synk.STEP)


def condition_of(text, step, tol, k):
    """The function whose source this is; `step` is what STEP stands for."""
    namespace = {"np": np, "STEP": step, "tol": tol, "k": k}
    exec(f"def holds(results):\n    a, b, c = results\n    return {text}\n", namespace)
    return namespace["holds"]


def iterations(text, columns, tol, k, every):
    """How many iterations NumPy makes whose results are in the columns."""
    period, times = every or 1, len(columns[0])
    for step in range(period - 1, times, period):
        results = tuple(values[step] for values in columns)
        if condition_of(text, np.int64(step), tol, k)(results):
            return step + 1
    return times


@pytest.mark.parametrize("uses_tables", [True, *whole(False)])
def test_any_condition(monkeypatch, uses_tables):
    """Compiled code, and Python on the ranks, judge what Python's evaluation judges."""
    if not uses_tables:
        monkeypatch.setattr(sequence_routine, "runs_natively", lambda device: False)

    @settings(max_examples=examples(150, quick=20))
    @given(
        text=CONDITIONS,
        a=st.lists(FLOATS, min_size=TIMES, max_size=TIMES),
        b=st.lists(st.integers(-4, 4), min_size=TIMES, max_size=TIMES),
        c=st.lists(FLOATS.filter(lambda x: not 1e38 < x < np.inf), min_size=TIMES, max_size=TIMES),
        tol=FLOATS,
        k=st.integers(-3, 3),
        every=st.sampled_from([None, 1, 2]),
    )
    def check(text, a, b, c, tol, k, every):
        kinds = (a, np.float64), (b, np.int64), (c, np.float32)
        columns = [np.array(values, dtype) for values, dtype in kinds]
        for variable, values in zip(variables, columns, strict=True):
            variable.set_value(values)
        variables[0].set_value(columns[0] / 2)  # the sum of two
        with np.errstate(all="ignore"):
            wanted = iterations(text, columns, tol, k, every)
            holds = condition_of(text, synk.STEP, tol, k)
            assert three.plan(n, *variables, times=TIMES, until=holds).judged_by == RANKS
            n.set_value(np.zeros(1, np.int64))
            found = three(n, *variables, times=TIMES, until=holds, every=every)
        assert n.get_value() == wanted
        kept = wanted - 1 if every is None else slice(every - 1, wanted, every)
        for result, values in zip(found, columns, strict=True):
            assert_array_equal(result, values[kept])

    with synk.fork(2, device="cpu"):
        n = counter()
        variables = [synk.variable(np.zeros(TIMES, dtype)) for dtype in ("f8", "i8", "f4")]
        check()


# ---- any loop

sum_int = looking("int64")
LONGEST = 12  # iterations, in which sums of the ranks' float64 are exact


@synk.parallel(grid=1, block=1)
@cuda.jit
def update(x, y, z, by, q):
    x[0] = x[0] * by + q
    y[0] = q - 2 * y[0]
    z[0] = z[0] * by - q


@synk.parallel(grid=1, block=1)
@cuda.jit
def update_into(new, x, by, q):
    new[0] = x[0] * by + q


@synk.sequence
def in_place(n, x, spare, y, z, by, q):
    advance(n)
    update(x, y, z, by, q)
    return look64(x, 0), sum_int(y, 0), look32(z, 0)


@synk.sequence
def swapping(n, x, spare, y, z, by, q):
    advance(n)
    update_into(spare, x, by, q)
    update(x, y, z, by, q)
    synk.swap(x, spare)
    return look64(x, 0), sum_int(y, 0), look32(z, 0)


@synk.sequence
def carrying(n, x, spare, y, z, by, q):
    advance(n)
    update(x, y, z, by, q)
    synk.carry(q, 1 - q)
    return look64(x, 0), sum_int(y, 0), look32(z, 0)


@synk.sequence
def twice(x, y, z, by, q):
    update(x, y, z, by, q)


@synk.sequence
def around(n, x, spare, y, z, by, q):
    advance(n)
    twice(x, y, z, by, q, times=2)
    return look64(x, 0), sum_int(y, 0), look32(z, 0)


def results_of(body, x, y, z, by, q, times):
    """What NumPy gets in each iteration, of one number for each rank."""
    columns = [], [], []
    for _ in range(times):
        for _ in range(2 if body is around else 1):
            x, y, z = x * by + q, q - 2 * y, (z * by - q).astype(np.float32)
        if body is carrying:
            q = 1 - q
        for column, value in zip(columns, (x.sum(), y.sum(), z.max()), strict=True):
            column.append(value)
    return list(map(np.array, columns))


@pytest.mark.parametrize("world_size", [2, *whole(1, 3, 4)])
def test_any_loop(world_size):
    @settings(max_examples=examples(150, quick=20))
    @given(
        text=CONDITIONS,
        body=st.sampled_from([in_place, swapping, carrying, around]),
        start=st.tuples(*[st.integers(-4, 4)] * 3),
        by=st.sampled_from([0.5, -0.5, 1.0, -2.0, 0.0]),
        q=st.integers(-3, 3),
        tol=FLOATS,
        k=st.integers(-3, 3),
        times=st.integers(1, LONGEST),
        every=st.one_of(st.none(), st.integers(1, 8)),
    )
    def check(text, body, start, by, q, tol, k, times, every):
        every = min(every, times) if every else None
        factors = 1 + np.arange(world_size)
        kinds = np.float64, np.int64, np.float32
        x, y, z = (
            (number * factors).astype(kind) for number, kind in zip(start, kinds, strict=True)
        )

        def run(until):
            for variable, values in zip(variables, (x, x, y, z), strict=True):
                for rank in range(world_size):
                    variable.set_value(values[rank : rank + 1], rank=rank)
            n = counter()
            results = body(n, *variables, by, q, times=times, until=until, every=every)
            return int(n.get_value()[0]), results

        def ends(results):
            step = len(asked.results) * (every or 1) - 1
            return condition_of(text, np.int64(step), tol, k)(results)

        holds, asked = condition_of(text, synk.STEP, tol, k), Asked(ends)
        with np.errstate(all="ignore"):
            columns = results_of(body, x, y, z, by, q, times)
            wanted = iterations(text, columns, tol, k, every)
            plan = body.plan(counter(), *variables, by, q, times=times, until=holds)
            assert plan.judged_by == RANKS
            runs = [run(holds), run(asked)]
        kept = wanted - 1 if every is None else slice(every - 1, wanted, every)
        for count, results in runs:
            assert count == wanted
            for result, values in zip(results, columns, strict=True):
                assert_array_equal(result, values[kept])

    with synk.fork(world_size, device="cpu"):
        dtypes = np.float64, np.float64, np.int64, np.float32
        variables = [synk.variable(np.zeros(1, dtype)) for dtype in dtypes]
        check()
