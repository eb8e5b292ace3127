"""Checkpoints: saved on n ranks and restored on m, files that the safetensors package alone
reads, and trees at random.
"""

import json
import os
import signal
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_array_equal
from safetensors import safe_open
from safetensors.numpy import load_file

import synknumba as synk
from synknumba._ops.rows import Partition
from synknumba._ops.tree import describe, flatten, unflatten
from tests.conformance.collectives.cases import assert_held
from tests.conformance.conftest import PRIVATE, ROWS
from tests.conformance.variables import functions
from tests.quick import examples, whole

pytestmark = pytest.mark.parametrize("row", [*ROWS, PRIVATE])

State = namedtuple("State", "count moments")
ROWS_OF = np.arange(33.0).reshape(11, 3)


def made():
    """Variables of each kind, and what they are in a file, by name."""
    rng = np.random.default_rng(5)
    w, b, line, ring = (rng.normal(size=shape) for shape in ((2, 3), (), (13,), (12, 2)))
    flat = {"x": rng.normal(size=(4, 2)).astype("f4"), "y": rng.normal(size=7).astype("f4")}
    data, noise = rng.integers(0, 99, 5), rng.normal(size=3) + 1j * rng.normal(size=3)
    tree = {
        "model": synk.variable({"w": [w, np.zeros((0, 2))], "b": b}, "model"),
        "flat": synk.vector(flat),
        "rows": synk.scatter(synk.variable(np.zeros((1, 3))), ROWS_OF),
        "line": synk.scatter(synk.variable(line), halo=1),
        "ring": synk.scatter(synk.variable({"r": ring}), halo=2, periodic=True),
        "opt": State(7, (synk.variable(noise.astype("c8")), noise)),
        "data": synk.data(data),
        "rate": 0.1,
        "best": np.float32(0.3),
    }
    stored = {
        "model.w.0": w,
        "model.w.1": np.zeros((0, 2)),
        "model.b": b,
        "flat.x": flat["x"],
        "flat.y": flat["y"],
        "rows": ROWS_OF,
        "line": line,
        "ring.r": ring,
        "opt.moments.0": np.stack([noise.real, noise.imag], axis=-1).astype("f4"),
        "opt.moments.1": np.stack([noise.real, noise.imag], axis=-1),
        "data": data,
        "best": np.float32(0.3),
    }
    return tree, stored


def blank(tree):
    """The same tree with other values, as a script makes it that goes on."""
    return {
        "model": synk.variable({"w": [np.ones((2, 3)), np.zeros((0, 2))], "b": np.zeros(())}),
        "flat": synk.vector({"x": np.zeros((4, 2), "f4"), "y": np.zeros(7, "f4")}),
        "rows": synk.scatter(synk.variable(np.zeros((11, 3)))),
        "line": synk.scatter(synk.variable(np.zeros(13)), halo=1),
        "ring": synk.scatter(synk.variable({"r": np.zeros((12, 2))}), halo=2, periodic=True),
        "opt": State(0, [synk.variable(np.zeros(3, "c8")), np.zeros(3, "c16")]),
        "data": synk.data(np.zeros(5, int)),
        "rate": None,
        "best": 0.0,
    }


def check(tree, stored, world):
    """The variables and values of a tree are those that were stored."""
    ranks = range(world.world_size)
    for key, names in (
        ("model", ("model.w.0", "model.w.1", "model.b")),
        ("flat", ("flat.x", "flat.y")),
    ):
        for rank in ranks:
            for found, name in zip(flatten(tree[key].get_value(rank))[0], names, strict=True):
                assert_array_equal(found, stored[name], strict=True)
    assert_array_equal(synk.gather(tree["rows"], nd_up=0), ROWS_OF)
    assert synk.get_lengths(tree["rows"]) == list(Partition.even(len(ranks)).counts(11))
    for key, name, reach, is_ring in (("line", "line", 1, False), ("ring", "ring.r", 2, True)):
        value = stored[name]
        for rank in ranks:
            start, stop = Partition.even(len(ranks)).part(len(value), rank)
            held = np.arange(start - reach, stop + reach)
            held = held % len(value) if is_ring else held[(held >= 0) & (held < len(value))]
            ((found,),) = tree[key]._state.fetch([rank], own=False)
            assert_array_equal(found, value[held])
    counted, (small, wide) = tree["opt"]
    assert counted == 7
    assert_held(small, world, [stored["opt.moments.0"].view("c8")[:, 0]] * len(ranks))
    assert_array_equal(np.asarray(wide), stored["opt.moments.1"].view("c16")[:, 0], strict=True)
    assert_array_equal(tree["data"], stored["data"])
    assert (tree["rate"], tree["best"], type(tree["best"])) == (0.1, np.float32(0.3), np.float32)


def test_the_file_is_safetensors(world, tmp_path):
    """Its arrays are wholes, whatever the number of ranks, and the tree is in its metadata."""
    tree, stored = made()
    synk.save(tmp_path / "a", tree)
    found = load_file(tmp_path / "a")
    assert found.keys() == stored.keys()
    for name, array in stored.items():
        assert_array_equal(found[name], array, strict=True)
    with safe_open(str(tmp_path / "a"), "np") as file:
        text = json.loads(file.metadata()["synknumba"])
    nodes = dict(text["tree"]["dict"])
    assert text["version"] == 1
    assert nodes["model"] == {
        "dict": [
            ["w", {"list": [{"array": "model.w.0"}, {"array": "model.w.1"}]}],
            ["b", {"array": "model.b"}],
        ]
    }
    moments = {
        "tuple": [
            {"array": f"opt.moments.{k}", "dtype": name}
            for k, name in enumerate(("complex64", "complex128"))
        ]
    }
    assert nodes["opt"] == {"namedtuple": ["State", ["count", "moments"], [7, moments]]}
    assert (nodes["rate"], nodes["best"]) == (0.1, {"scalar": "best"})
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("size", [2, *whole(1, 4)])
def test_on_another_number_of_ranks(fork_row, tmp_path, size):
    """Into the same variables, and into those of a script that starts again."""
    path = str(tmp_path / "model.safetensors")
    with fork_row() as world:
        tree, stored = made()
        synk.save(path, tree)
        check(synk.load(path, like=tree), stored, world)
        functions.add(tree["rows"], 1.0)
    with synk.fork(size, device="cpu") as world:
        for like in (tree, blank(tree)):
            found = synk.load(path, like=like)
            assert all(
                found[key] is like[key] for key in ("model", "flat", "rows", "line", "ring", "data")
            )
            assert type(found["opt"]) is State
            assert type(found["opt"].moments) is type(like["opt"].moments)
            check(found, stored, world)
        functions.add(found["rows"], 1.0)
        synk.exchange([found["line"], found["ring"]])
        assert_array_equal(synk.gather(found["rows"], nd_up=0), ROWS_OF + 1)


def test_without_a_world(fork_row, tmp_path):
    """Saved after the world, and restored before the next one."""
    path = tmp_path / "model"
    with fork_row() as world:
        tree, stored = made()
        functions.add(tree["rows"], 1.0)
    synk.save(path, tree)
    assert_array_equal(load_file(path)["rows"], ROWS_OF + 1)
    stored["rows"] = ROWS_OF
    with fork_row():
        functions.add(tree["rows"], -1.0)
        synk.save(path, tree)
        functions.add(tree["rows"], 5.0)
        tree["line"].set_value(np.zeros(synk.get_lengths(tree["line"])[0]), rank=0)
    synk.load(path, like=tree)
    assert_array_equal(synk.snapshot(tree["rows"]), ROWS_OF)
    assert repr(tree["rows"]).endswith("of a world that is closed>")
    for start in (fork_row, lambda: synk.fork(2, device="cpu"), fork_row):
        with start() as world:
            check(
                {**tree, "opt": synk.load(path)["opt"]._replace(moments=tree["opt"].moments)},
                stored,
                world,
            )


def test_values_that_are_lost(fork_row, tmp_path):
    """After a rank's death, in the next world and before it."""
    path = tmp_path / "model"
    v, rows = synk.variable(np.arange(3.0), "v"), synk.variable(np.zeros((1, 3)), "rows")
    like = {"v": v, "rows": rows, "step": 3}
    with fork_row() as world:
        synk.scatter(rows, ROWS_OF)
        functions.add(v, 1.0)
        synk.save(path, like)
        functions.add(v, 1.0)
        functions.add(rows, 1.0)
        os.kill(world.pids[-1], signal.SIGKILL)
        with pytest.raises(synk.RankDied):
            functions.add(v, 1.0)
    for is_open in (True, False):
        if not is_open:
            assert synk.load(path, like=like)["step"] == 3
        with fork_row() as world:
            if is_open:
                assert synk.load(path, like=like)["step"] == 3
            assert_held(v, world, [np.arange(3.0) + 1] * world.world_size)
            assert_array_equal(synk.gather(rows, nd_up=0), ROWS_OF)
            functions.add(v, 1.0)
            os.kill(world.pids[0], signal.SIGKILL)
            with pytest.raises(synk.RankDied):
                functions.add(v, 1.0)


def test_replicas_that_differ(world, tmp_path):
    """Are refused by name, before the file is touched; those that are equal are not, whatever
    the script knows.
    """
    path, v = tmp_path / "model", synk.variable([np.zeros(3), np.full(2, np.nan)], "v")
    synk.save(path, 5)
    synk.set_value(world.world_size - 1, v, [np.array([0.0, -0.0, 0.0]), np.full(2, np.nan)])
    if world.world_size > 1:
        with pytest.raises(
            synk.PartitionError,
            match=r"^save: net\.0: the replicas of variable 'v' differ between the ranks.*broad",
        ):
            synk.save(path, {"net": v})
        assert synk.load(path) == 5
        synk.set_value(world.world_size - 1, v, [np.zeros(3), np.full(2, np.nan)])
    assert "may differ" in repr(v) or world.world_size == 1
    synk.save(path, {"net": v})
    assert_array_equal(load_file(path)["net.1"], np.full(2, np.nan))
    synk.set_value(0, v, [np.zeros(4), np.zeros(2)])
    if world.world_size > 1:
        with pytest.raises(synk.PartitionError, match=r"net\.0: the .* 'v' differ"):
            synk.save(path, {"net": v})
        with pytest.raises(
            synk.DataError,
            match=r"net\.0: the file has float64 \(3,\), like= has .* each "
            r"rank has an array of its own",
        ):
            synk.load(path, like={"net": v})


# ---- trees at random

DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", ">f8", "c8", "c16"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(
        np.dtype(dtype), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=4)
)
keys = st.recursive(
    st.sampled_from(
        [
            "",
            "w",
            ".",
            "a.b",
            "a",
            "b",
            "0",
            "[0]",
            "%",
            "%2E",
            "__metadata__",
            "é",
            "\udc80",
            "\0",
            "value",
        ]
    )
    | st.text(max_size=3)
    | st.integers(-1, 2)
    | st.none()
    | st.floats(allow_nan=False),
    lambda parts: st.lists(parts, max_size=2).map(tuple),
    max_leaves=2,
)
trees = st.recursive(
    arrays | plain,
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(State, inner, inner)
    ),
    max_leaves=8,
)


def placed(array, kind):
    """An array as a variable, rows of one, `Data`, a scalar, or itself."""
    match kind:
        case "variable":
            return synk.variable(array)
        case "rows" if array.ndim:
            return synk.scatter(synk.variable(array))
        case "data":
            return synk.data(array)
        case "scalar" if not array.ndim:
            return array[()]
    return array


def value_of(leaf):
    return (
        synk.snapshot(leaf)
        if isinstance(leaf, synk.Variable)
        else np.array(leaf)
        if isinstance(leaf, synk.Data)
        else leaf
    )


def assert_same(found, wanted):
    """Two trees are equal: types, dtypes, shapes and bits."""
    (found, of_found), (wanted, of_wanted) = flatten(found), flatten(wanted)
    assert describe(of_found) == describe(of_wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, np.ndarray | np.generic):
            assert isinstance(one, np.generic) == isinstance(other, np.generic)
            native = np.asarray(other, np.asarray(other).dtype.newbyteorder("="))
            assert (one.dtype, one.shape) == (native.dtype, native.shape)
            assert one.tobytes() == native.tobytes()
        else:
            assert type(one) is type(other)
            assert repr(one) == repr(other) if isinstance(other, float | complex) else one == other


@pytest.mark.usefixtures("usable")
def test_trees_at_random(world, tmp_path):
    path = tmp_path / "tree"

    @settings(
        max_examples=examples(60, quick=15), suppress_health_check=list(HealthCheck), database=None
    )
    @given(trees, st.data())
    def round_trip(tree, draw):
        leaves, structure = flatten(tree)
        are_arrays = [isinstance(leaf, np.ndarray) for leaf in leaves]
        kinds = st.sampled_from(["variable", "rows", "data", "scalar", "array"])
        drawn = draw.draw(st.lists(kinds, min_size=len(leaves), max_size=len(leaves)))
        mine = [
            placed(leaf, kind) if is_array else leaf
            for leaf, kind, is_array in zip(leaves, drawn, are_arrays, strict=True)
        ]
        synk.save(path, unflatten(structure, mine))
        wanted = [value_of(leaf) for leaf in mine]
        assert_same(synk.load(path), unflatten(structure, wanted))

        in_file = load_file(path)
        stored = [np.asarray(leaf) for leaf in wanted if isinstance(leaf, np.ndarray | np.generic)]
        assert len(in_file) == len(stored)  # no two have one name
        assert sum(one.nbytes for one in in_file.values()) == sum(one.nbytes for one in stored)

        again = [
            placed(np.zeros_like(leaf), kind) if is_array else leaf
            for leaf, kind, is_array in zip(leaves, drawn, are_arrays, strict=True)
        ]
        like = unflatten(structure, again)
        found = synk.load(path, like=like)
        of_like = [leaf for leaf in flatten(like)[0] if isinstance(leaf, synk.Variable | synk.Data)]
        of_found = [
            leaf for leaf in flatten(found)[0] if isinstance(leaf, synk.Variable | synk.Data)
        ]
        assert all(map(lambda one, other: one is other, of_like, of_found))
        leaves_found, structure_found = flatten(found)
        assert_same(
            unflatten(structure_found, [value_of(leaf) for leaf in leaves_found]),
            unflatten(structure, wanted),
        )

    round_trip()
