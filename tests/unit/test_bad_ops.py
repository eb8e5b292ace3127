"""Ops of the user's that cannot be: refused by name before anything is sent, and the world stays
usable.
"""

import re

import numpy as np
import pytest

import synknumba as synk

X = np.arange(5.0)


def attribute(a, b):
    return a.real_part + b


def text(a, b):
    return "more"


def helper(a, b):
    return a + b


def not_decorated(a, b):
    return helper(a, b)


def larger(a, b):
    return max(a, b)


def nothing(a, b):
    pass


def average(a, b):
    return (a + b + 1) / 2


def choosy(a, b):
    if b > 2:
        raise ValueError("more than two")
    return a + b


def total_by(op, **options):
    @synk.parallel(
        outputs={"total": synk.output(op, shape=(), dtype="float64", **options)}, grid=1, block=1
    )
    def total_of(x, total):
        for i in range(x.shape[0]):
            total[0] += x[i]

    return total_of


def test_ops_by_other_names():
    for op, meant in (("add", "sum"), ("mul", "prod"), ("average", "mean"), ("maxx", "max")):
        with pytest.raises(synk.ReductionError, match=f"got '{op}'. Did you mean '{meant}'"):
            synk.output(op, shape=())
        with pytest.raises(synk.ReductionError, match=f"got '{op}'. Did you mean '{meant}'"):
            synk.all_reduce(synk.variable(X), op)


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.mark.parametrize(
    "op", [attribute, text, not_decorated, nothing], ids=lambda op: op.__name__
)
def test_what_does_not_compile(op):
    told = (
        f"total of total_of: op {op.__name__} cannot be compiled for two numbers "
        f"of dtype float64: [^\n]+"
    )
    with pytest.raises(synk.ReductionError, match=told):
        total_by(op, identity=0)(X)
    assert total_by(helper, identity=0)(X) == 10


def importing(a, b):
    import math

    return math.hypot(a, b)


REASONS = {
    attribute: "Unknown attribute 'real_part' of type float64",
    text: r"it returns .*str.*, not a number",
    not_decorated: r"helper \(.* is a plain Python function",
    nothing: "it returns none, not a number",
    importing: "import is not supported",
}


@pytest.mark.parametrize("op", REASONS, ids=lambda op: op.__name__)
def test_what_does_not_compile_for_the_results_of_a_function(world, op):
    """On one rank, too, which has nothing to combine."""
    calls = world.statistics().calls
    total_of = synk.function(lambda x: x.sum(), outputs=op, name="total_of")
    for call in (total_of, total_of.as_serial):
        with pytest.raises(
            synk.ReductionError, match=f"op {op.__name__} cannot be compiled[^\n]*: {REASONS[op]}"
        ):
            call(X)
    assert world.statistics().calls == calls
    assert synk.function(lambda x: x.sum(), outputs=helper)(X) == 10


def xor(a, b):
    return a ^ b


@pytest.mark.parametrize(
    "how", [{}, {"num_slices": 2}, {"shards": 3}, {"shards": 3, "num_slices": 2}], ids=str
)
def test_what_does_not_compile_for_the_dtype_of_the_results(world, how):
    parity = synk.function(
        lambda x: x.sum() if x.dtype == float else np.bitwise_xor.reduce(x),
        outputs=xor,
        name="parity",
    )
    told = "outputs of parity: op xor cannot be compiled for two numbers of dtype float64: xor ("
    reason = "): Numba has no operator ^ for float64 and float64"
    for call in (parity, parity.as_serial):
        with pytest.raises(synk.ReductionError, match=f"{re.escape(told)}.*{re.escape(reason)}"):
            call(X, **how)
        assert call(np.arange(5), **how) == 0 ^ 1 ^ 2 ^ 3 ^ 4


def test_an_identity_that_changes_something():
    with pytest.raises(
        synk.ReductionError,
        match=r"identity=0 of op average is not neutral: average\(0.0, 0.0\) is 0.5",
    ):
        total_by(average, identity=0)(X)


def test_an_identity_of_another_dtype_than_the_argument_that_the_output_is_like():
    @synk.parallel(
        outputs={"total": synk.output(larger, shape=(), like="x", identity=0.5)}, grid=1, block=1
    )
    def total_of(x, total):
        total[0] += x[0]

    assert total_of(np.zeros(1) + 1) == 1.5
    with pytest.raises(
        synk.ReductionError,
        match=r"total: identity=0.5 of op larger is not exactly representable in dtype int64",
    ):
        total_of(np.arange(3))


def test_an_op_that_raises_tells_on_whichever_side_it_is_run():
    f = total_by(choosy, identity=0)
    with pytest.raises(synk.RankError, match="more than two"):
        f(X, num_slices=2)
    with pytest.raises(ValueError, match="more than two"):
        f(X)
    assert f(X[:2]) == 1


def test_updates_take_names():
    variable = synk.variable(0.0)
    with pytest.raises(synk.ReductionError, match='op must be one of "sum", "prod", "min", "max"'):
        synk.parallel(updates={"t": (variable, helper)})(lambda x, t: None)
