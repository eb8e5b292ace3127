"""What users find on the objects that they have: `dir()` shows documented names, and no internal
ones.
"""

import concurrent.futures
import copy
import pickle
import re
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import synknumba as synk

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calls-reference.md").read_text()

WORLD = """
    close closed device devices dump end_reason pids snapshot statistics timeout transport weights world_size
"""  # noqa: E501
FUNCTION = "as_serial build_inputs check plan submit update_modes"
DATA = """
    T alloc_size copy data dtype free_memory freeze frozen itemsize max mean min minibatch name nbytes ndim
    set_length set_shape set_value shape size sum thaw
"""  # noqa: E501
VARIABLE = "dtype get_value name nbytes ndim set_value shape size"
ESTIMATE = """
    blocked control count covariance effective_size from_values jackknife mean propagate stderr stderr_error
    variance
"""  # noqa: E501
FUTURE = " ".join(name for name in dir(concurrent.futures.Future) if not name.startswith("_"))


@synk.function(outputs=None)
def twice(x):
    return 2 * x


@synk.sequence
def steps(x):
    return twice(x)


@synk.vectorize
def squared(x):
    return x * x


@synk.expectation
def mean_of(x):
    return x


def names(one):
    return sorted(name for name in dir(one) if not name.startswith("_"))


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (synk.World, WORLD),
        (synk.Function, FUNCTION),
        (synk.Vectorized, "accumulate as_serial plan reduce submit"),
        (synk.Expectation, "as_serial derivative gradient plan replicated submit"),
        (synk.Sequence, "plan submit"),
        (synk.Future, FUTURE),
        (synk.Data, DATA),
        (synk.Variable, VARIABLE),
        (synk.Batches, "order start_at state steps_per_epoch"),
        (synk.Estimate, ESTIMATE),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_public_names_of_classes(cls, expected):
    assert names(cls) == sorted(expected.split())


@pytest.mark.parametrize(
    "one", [twice, steps, squared, mean_of], ids=lambda one: type(one).__name__
)
def test_public_names_of_decorated_functions(one):
    assert set(names(one)) == {"name", "py_func", *names(type(one))}


def test_public_names_of_other_objects():
    with synk.fork(1, device="cpu") as world:
        future = twice.submit(np.ones(2))
        made = (
            (synk.data([1.0]), DATA),
            (synk.variable(1.0), VARIABLE),
            (synk.vector({"a": 1.0}), VARIABLE),
        )
        for one, expected in ((world, WORLD), (future, FUTURE), *made):
            assert names(one) == sorted(expected.split())
    assert names(synk.Estimate.from_values([1.0, 2.0])) == sorted(ESTIMATE.split())


def test_attributes_of_a_variable():
    v = synk.variable(np.zeros((3, 2), "f4"), name="v")
    assert (v.name, v.dtype, v.shape, v.ndim, v.size, v.nbytes) == (
        "v",
        np.float32,
        (3, 2),
        2,
        6,
        24,
    )
    v.name = "w"
    assert repr(v) == "<Variable 'w' float32 (3, 2), not on any rank yet>"
    for name in {*VARIABLE.split()} - {"name"}:
        assert getattr(synk.Variable, name).__doc__
        with pytest.raises(AttributeError):
            setattr(v, name, 1)
    with pytest.raises(AttributeError):
        v.value = 1  # a misspelt name
    tree = synk.variable({"a": np.zeros(2), "b": np.zeros((1, 2), "i4")})
    assert (tree.dtype, tree.shape) == ({"a": np.float64, "b": np.int32}, {"a": (2,), "b": (1, 2)})
    assert (tree.ndim, tree.size, tree.nbytes) == ({"a": 1, "b": 2}, 4, 24)


@pytest.mark.parametrize("how", ["passed", "bound", "updated"])
def test_values_live_as_long_as_what_uses_them(how):
    """A function keeps the variables that its decorator names, also when the script has dropped
    them; no others.
    """
    made = synk.variable(np.arange(3.0))
    end = weakref.ref(made._state)
    options = {
        "passed": {},
        "bound": {"givens": {"v": made}},
        "updated": {"updates": {"v": (made, "sum")}},
    }[how]
    function = synk.function(lambda v: float(v.sum()), outputs="max", **options)
    passed = [made] if how == "passed" else []
    del made, options
    with synk.fork(2, device="cpu"):
        for _ in range(2):
            assert function(*passed) == (0 if how == "updated" else 3)
        passed.clear()
        assert (end() is None) == (how == "passed")
        del function
    assert end() is None


def test_names_of_a_world_are_documented():
    rows = re.findall(r"^\| (`.*?) \|", PAGE.partition("\n## The world\n")[2], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)(?:\(\))?`", " ".join(rows))) == sorted(WORLD.split())
    assert all(getattr(synk.World, name).__doc__ for name in WORLD.split())


def test_attributes_of_a_world():
    with synk.fork(2, device="cpu", timeout=30) as world:
        assert (world.world_size, world.device, world.devices, world.transport) == (
            2,
            "cpu",
            (),
            "host",
        )
        assert (world.timeout, world.closed, world.end_reason) == (30, False, None)
        world.timeout = 40
        assert world.timeout == 40
        assert len(set(world.pids)) == 2
        assert repr(world) == "<World of 2 cpu ranks, open>"
        assert world.statistics().calls == 0
        for name in {*WORLD.split()} - {"timeout"}:
            with pytest.raises(AttributeError):
                setattr(world, name, 1)
    assert repr(world) == "<World of 2 cpu ranks, closed>"
    assert (world.closed, world.pids) == (True, ())


def test_the_ranks_stay_when_the_script_drops_the_world(monkeypatch):
    """`fork()` at a prompt then returns a new object for the same world; the same one while the
    script has it.
    """
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    world = synk.fork(1, device="cpu")
    try:
        (pid,), gone = world.pids, weakref.ref(world)
        assert synk.fork(1, device="cpu") is world
        del world
        assert gone() is None
        assert synk.world_size() == 1
        again = synk.fork(1, device="cpu")
        assert again.pids == (pid,)
    finally:
        synk.close()
    assert again.closed


def test_a_world_is_neither_pickled_nor_copied():
    with synk.fork(1, device="cpu") as world:
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot pickle a World.*synk\.world_size\(\)"):
                make(world)
