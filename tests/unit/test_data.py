"""`Data` beside a NumPy array that is told the same, and every refusal."""

import copy
import gc
import math
import os
import pickle
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synknumba._errors import DataError, SharedMemoryError
from synknumba._host import segment as segment_module
from synknumba._host.data import Data, data
from synknumba._host.deaths import settle

pytestmark = pytest.mark.usefixtures("maker")

RECORD = np.dtype([("position", "f8", (3,)), ("count", "i4"), ("tag", "S4")], align=True)

# dtypes of every kind that may be shared
DTYPES = [
    "?",
    "i1",
    "u2",
    "i4",
    "i8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "S3",
    "U5",
    "M8[s]",
    "m8[ms]",
    "V6",
    RECORD,
]


def descriptors() -> int:
    return sum(
        "/synk-" in os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if _exists(name)
    )


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    settle()
    before = descriptors()
    yield
    settle()
    if not descriptors() <= before:
        gc.collect()  # slow, and cycles are rare
        settle()
    assert descriptors() <= before


def same(d: Data, expected: Any) -> None:
    assert d.dtype == expected.dtype
    assert d.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(d), expected)


# ---- the same as a NumPy array, whatever is done to it

shapes = st.tuples(st.integers(0, 6), st.integers(0, 5))
oversizes = st.floats(1, 2)
steps = st.one_of(
    st.tuples(st.just("set_value"), hnp.arrays("i4", shapes), oversizes),
    st.tuples(st.just("set_shape"), shapes, oversizes),
    st.tuples(st.just("set_length"), st.integers(0, 9), oversizes),
    st.tuples(st.just("free_memory"), st.none(), oversizes),
    st.tuples(st.just("fill"), st.integers(-9, 9), oversizes),
)


@given(hnp.arrays("i4", shapes), st.lists(steps, max_size=12))
def test_any_history_is_that_of_a_numpy_array(
    first: np.ndarray, history: list[tuple[str, Any, float]]
) -> None:
    d = Data(first)
    model = first.copy()
    for step, argument, oversize in history:
        allocated = d.alloc_size
        match step:
            case "set_value":
                d.set_value(argument, oversize=oversize)
                model = argument.copy()
            case "set_shape":
                d.set_shape(argument, oversize=oversize)
                model.resize(argument, refcheck=False)
            case "set_length":
                d.set_length(argument, oversize=oversize)
                model.resize((argument, *model.shape[1:]), refcheck=False)
            case "free_memory":
                d.free_memory()
                model = np.zeros((0, *model.shape[1:]), model.dtype)
                allocated = 0
            case "fill":
                d[...] = argument
                model[...] = argument
        same(d, model)
        if model.size <= allocated:
            assert d.alloc_size == allocated
        else:
            assert model.size <= d.alloc_size <= math.ceil(model.size * oversize)
        assert d._layout == (d._segment.id, d._segment.generation, model.shape, "<i4", 0, False)
        assert d._segment.size >= d.alloc_size * d.itemsize


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_every_dtype_and_shape(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    value = np.frombuffer(
        rng.integers(65, 90, math.prod(shape) * np.dtype(dtype).itemsize, np.uint8).tobytes(),
        np.uint8,
    )
    value = (
        np.zeros(shape, dtype)
        if np.dtype(dtype).kind in "Ug?"
        else value.view(dtype).reshape(shape)
    )
    d = Data(value)
    same(d, value)
    same(Data(dtype=dtype, shape=shape), np.zeros(shape, dtype))
    assert (d.size, d.ndim, d.nbytes, d.itemsize) == (
        value.size,
        value.ndim,
        value.nbytes,
        value.itemsize,
    )
    assert {d._layout: "plan"}[d._layout] == "plan"  # hashable


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12, dtype=">i4").reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24)[::-2].reshape(3, 4),
        np.broadcast_to(np.float32(2), (3, 4)),
        np.array([(1, 2.0)], dtype=[("a", ">i2"), ("b", ">f8")]),
    ],
)
def test_stored_in_c_order_and_native(value: np.ndarray) -> None:
    d = Data(value)
    np.testing.assert_array_equal(np.asarray(d), value)
    assert d.data.flags.c_contiguous
    assert d.data.flags.writeable
    assert d.dtype.isnative


# ---- worked numbers of Synkhronos


def test_oversize_leaves_room_to_grow() -> None:
    d = data(np.ones((2000, 10), "f4"), oversize=1.1)
    assert d.alloc_size == 22000
    segment, generation = d._segment.id, d._segment.generation
    d.set_value(np.full((2100, 10), 2, "f4"))
    assert (d.shape, d.alloc_size) == ((2100, 10), 22000)
    assert (d._segment.id, d._segment.generation) == (segment, generation)


def test_safe_casts_and_forced_casts() -> None:
    d = data(dtype="float32", ndim=1)
    d.set_value(np.arange(3, dtype="int16"))
    same(d, np.arange(3, dtype="float32"))
    with pytest.raises(
        DataError, match=r"holds float32, but the value has dtype float64.*force_cast=True"
    ):
        d.set_value(np.arange(4.0))
    same(d, np.arange(3, dtype="float32"))
    d.set_value(np.array([0.1]), force_cast=True)
    same(d, np.array([0.1], "float32"))


# ---- making one


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({}, "needs value, or dtype with shape or ndim; got nothing"),
        ({"ndim": 2}, "needs value, or dtype with shape or ndim; got ndim=2"),
        ({"dtype": "f4"}, "got dtype='f4'"),
        ({"shape": (2,)}, r"got shape=\(2,\)"),
        ({"value": [1], "shape": (1,)}, "value and shape were both given"),
        ({"value": [1], "ndim": 2}, r"has 2 dimensions, but the value has 1 \(shape \(1,\)\)"),
        ({"value": np.zeros(3), "dtype": "f4"}, "does not cast safely"),
        ({"dtype": "f4", "shape": (2, 3), "ndim": 1}, "has 2 dimensions but ndim is 1"),
        ({"dtype": "f4", "shape": (2, -1)}, "shape needs non-negative integers, got -1"),
        ({"dtype": "f4", "shape": 2.5}, "shape needs non-negative integers"),
        ({"dtype": "f4", "ndim": -1}, "ndim needs non-negative integers"),
        ({"dtype": "float3", "ndim": 1}, "is not a dtype"),
        ({"dtype": object, "ndim": 1}, "give a fixed-size dtype"),
        ({"dtype": [("a", "f4"), ("b", "O")], "ndim": 1}, "give a fixed-size dtype"),
        ({"dtype": np.dtypes.StringDType(), "ndim": 1}, "give a fixed-size dtype"),
        ({"dtype": "U", "ndim": 1}, "give a fixed-size dtype"),
        ({"dtype": ("f4", (3,)), "ndim": 1}, "give a fixed-size dtype"),
        ({"value": [1, None]}, "give a fixed-size dtype"),
        ({"value": [[1, 2], [3]]}, "cannot be read as an array"),
        (
            {"dtype": "f4", "ndim": 1, "oversize": 0.9},
            "oversize must be a number from 1 to 2, got 0.9",
        ),
        ({"value": [1.0], "oversize": 2.1}, "oversize"),
        ({"value": [1.0], "oversize": float("nan")}, "oversize"),
        ({"value": [1.0], "oversize": "big"}, "oversize"),
    ],
)
def test_too_little_or_contradictory(kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        data(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"dtype": "f4", "ndim": 2}, np.zeros((0, 0), "f4")),
        ({"dtype": "f4", "ndim": 0}, np.zeros((), "f4")),
        ({"dtype": "f4", "shape": 3}, np.zeros(3, "f4")),
        ({"dtype": "f4", "shape": [2, 1], "ndim": 2}, np.zeros((2, 1), "f4")),
        ({"value": 3}, np.array(3)),
        ({"value": [[1, 2]], "dtype": "f4", "ndim": 2}, np.array([[1, 2]], "f4")),
        ({"value": np.arange(3.0), "dtype": "i2", "force_cast": True}, np.arange(3, dtype="i2")),
        ({"value": range(3), "dtype": "f4"}, np.arange(3, dtype="f4")),
        ({"value": data([1, 2])}, np.array([1, 2])),
        ({"value": np.float32(2)}, np.array(2, "f4")),
        ({"value": "abc"}, np.array("abc")),
        ({"value": [], "dtype": "f4"}, np.zeros(0, "f4")),
    ],
)
def test_made_from(kwargs: dict[str, Any], expected: np.ndarray) -> None:
    same(data(**kwargs), expected)


def test_repr_names_what_matters() -> None:
    assert repr(data([1, 2], dtype="i4")) == "Data([1, 2], dtype=int32)"
    assert repr(data(2.5)) == "Data(2.5, dtype=float64)"
    assert repr(data([[1.0, 2], [3, 4]])) == "Data([[1., 2.],\n      [3., 4.]], dtype=float64)"
    assert repr(data(["a", "bc"])) == "Data(['a', 'bc'], dtype=<U2)"
    d = data([1.0], name="x", minibatch=True, oversize=2)
    assert repr(d) == "Data([1.], dtype=float64, alloc_size=2, name='x', minibatch=True)"
    with pytest.raises(DataError, match="Data 'x' has 1 dimensions"):
        d.set_value(3.0)


def test_repr_of_a_large_one_is_short_and_of_a_freed_one_says_so() -> None:
    d = data(np.arange(1_000_000))
    assert (
        repr(d) == "Data([     0,      1,      2, ..., 999997, 999998, 999999], "
        "shape=(1000000,), dtype=int64)"
    )
    d.free_memory()
    assert repr(d) == "Data([], shape=(0,), dtype=int64, alloc_size=0)"


# ---- other libraries


def test_other_libraries_share_the_memory() -> None:
    d = data(np.arange(6.0).reshape(2, 3))
    by_dlpack, by_interface = np.from_dlpack(d), np.asarray(_OnlyInterface(d))
    assert d.__dlpack_device__() == (1, 0)
    for view in by_dlpack, by_interface, np.asarray(d):
        assert np.shares_memory(view, d.data)
        same(view, np.arange(6.0).reshape(2, 3))
    d[1, 2] = 9
    assert by_dlpack[1, 2] == by_interface[1, 2] == 9
    by_interface[0, 0] = 7
    assert d[0, 0] == by_dlpack[0, 0] == 7


class _OnlyInterface:
    """An object that has `__array_interface__` and nothing else."""

    def __init__(self, d: Data) -> None:
        self.__array_interface__ = d.__array_interface__


@pytest.mark.parametrize(
    "export", [np.from_dlpack, lambda d: np.asarray(_OnlyInterface(d)), np.asarray]
)
@pytest.mark.parametrize("end", ["free", "grow", "collect"])
def test_an_exported_view_outlives_the_memory_of_the_data(export: Any, end: str) -> None:
    d = data(np.arange(10_000.0))
    view = export(d)
    match end:
        case "free":
            d.free_memory()
        case "grow":
            d.set_shape(10_000_000)
            d[:] = -1
        case "collect":
            del d
    gc.collect()
    # would take the place of what was unmapped
    others = [data(np.full(10_000, 5.0)) for _ in range(8)]
    if end != "grow":  # then it shows the same memory
        assert view.sum() == 10_000 * 9_999 / 2
    else:
        assert view.sum() == -10_000
    assert len(others) == 8


def test_a_frozen_one_is_exported_for_reading_only() -> None:
    d = data(np.arange(3.0))
    d.freeze()
    views = [np.asarray(_OnlyInterface(d)), np.asarray(d)]
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        views.append(np.from_dlpack(d))
    else:  # its DLPack has no word for read-only
        with pytest.raises(BufferError, match="readonly"):
            np.from_dlpack(d)
    for view in views:
        assert not view.flags.writeable
        assert view.sum() == 3


@pytest.mark.parametrize(
    "dtype",
    ["M8[ns]", "U3", "S2", "?", "c16", "f2", np.dtype([("a", "i1"), ("b", "f8")], align=True)],
    ids=str,
)
def test_conversions_keep_the_dtype(dtype: Any) -> None:
    d = data(dtype=dtype, shape=(2, 3))
    view = np.asarray(d)
    assert view.dtype == d.dtype
    assert view.shape == (2, 3)
    assert np.shares_memory(view, d.data)


# ---- values: what is weakly typed, what is cast, what is refused


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", 1),
        ("f4", [[1, 2.5], [True, 4]]),
        ("f2", 1.5),
        ("c8", [1, 2.0, 3j]),
        ("i1", [-128, 127]),
        ("u8", 2**64 - 1),
        ("?", True),
        ("f4", float("inf")),
        ("f4", (1.0, 2.0)),
        ("S3", [b"abc", b"d"]),
        ("U3", ["abc", "d"]),
        (RECORD, [((1, 2, 3.0), 4, b"abcd")]),
        ([("a", "f4")], [(1,), (2,)]),
    ],
)
def test_python_values_take_the_dtype_where_their_kind_fits(dtype: Any, value: Any) -> None:
    same(Data(value, dtype=dtype), np.array(value, dtype))


@pytest.mark.parametrize(
    ("dtype", "value", "match"),
    [
        ("i4", 1.5, "does not cast safely"),
        ("i4", [1, 2.0], "does not cast safely"),
        ("f4", 1j, "does not cast safely"),
        ("?", 1, "does not cast safely"),
        ("f4", np.float64(1), "does not cast safely"),
        ("f4", [np.float64(1)], "does not cast safely"),
        ("i1", 128, "does not fit"),
        ("u1", [-1], "does not fit"),
        ("i8", 2**63, "does not fit"),
        ("f4", 1e300, "does not fit"),
        ("f4", 2**200, "does not fit"),
        ("f8", 10**400, "does not fit"),
        ("f2", [[70000]], "does not fit"),
        ("c8", 1e300j, "does not fit"),
        ([("a", "i1")], (300,), "does not fit"),
        ([("a", "i1")], np.array([(3,)], [("a", "i4")])[0], "does not cast safely"),
        ("S2", b"abc", "does not cast safely"),
        ("U2", ["abc"], "does not cast safely"),
        ("f4", np.array([1, 2], object), "give a fixed-size dtype"),
        ("f4", [1, None], "give a fixed-size dtype"),
        ("f4", "1", "does not cast safely"),
        ("f4", np.ma.array([1, 2], mask=[0, 1], dtype="f4"), "masked"),
        ("f4", [[1], [1, 2]], "cannot be read as an array"),
    ],
)
def test_values_that_do_not_fit_change_nothing(dtype: Any, value: Any, match: str) -> None:
    d = Data(dtype=dtype, shape=(2,) * depth(value))
    before, layout = np.array(d), d._layout
    with pytest.raises(DataError, match=match):
        d.set_value(value)
    same(d, before)
    assert d._layout == layout


def depth(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.ndim
    return 1 + depth(value[0]) if isinstance(value, list) else 0


numbers = st.sampled_from(["?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])


@given(numbers, numbers, st.data())
def test_arrays_are_cast_exactly_where_numpy_says_safe(
    source: str, target: str, draw: st.DataObject
) -> None:
    value = draw.draw(hnp.arrays(source, (3,)))
    d = Data(np.array([1, 0, 1], target))
    before = np.array(d)
    if np.can_cast(source, target, "safe"):
        d.set_value(value)
        same(d, value.astype(target))
        return
    with pytest.raises(DataError, match="does not cast safely"):
        d.set_value(value)
    same(d, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        d.set_value(value, force_cast=True)  # silent, whatever the numbers
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        # what the others become is the processor's choice
        finite = np.isfinite(value.astype("c16"))
        np.testing.assert_array_equal(np.asarray(d)[finite], value.astype(target)[finite])


def test_a_forced_cast_that_fails_halfway_changes_nothing() -> None:
    d = Data([1.0, 2.0])
    d.set_value(np.array(["3", "4"]), force_cast=True)
    with pytest.raises(DataError, match="does not cast to float64"):
        d.set_value(np.array(["5", "six"]), force_cast=True)
    same(d, np.array([3.0, 4.0]))


def test_a_forced_python_value_wraps_as_numpy_does() -> None:
    d = Data(dtype="i1", ndim=1)
    d.set_value([300], force_cast=True)
    same(d, np.array([300]).astype("i1"))


@pytest.mark.parametrize("call", ["set_value", "set_shape"])
def test_wrong_ndim_names_both(call: str) -> None:
    d = data(np.ones((2, 3)), name="x")
    with pytest.raises(
        DataError, match=r"Data 'x' has 2 dimensions.*(3,).* has 1|has 1 \(shape \(3,\)\)"
    ):
        getattr(d, call)((3,) if call == "set_shape" else np.ones(3))
    same(d, np.ones((2, 3)))


@pytest.mark.parametrize("oversize", [0, 0.99, 2.01, -1, float("inf"), None])
def test_oversize_is_checked_where_nothing_is_allocated_too(oversize: Any) -> None:
    d = data(np.ones(4))
    for call, argument in (("set_value", np.zeros(2)), ("set_shape", (2,)), ("set_length", 2)):
        with pytest.raises(DataError, match="oversize must be a number from 1 to 2"):
            getattr(d, call)(argument, oversize=oversize)
    same(d, np.ones(4))


def test_set_length_needs_a_length() -> None:
    with pytest.raises(DataError, match="no length"):
        data(1.0).set_length(3)
    with pytest.raises(DataError, match="n needs non-negative integers"):
        data([1.0]).set_length(-3)
    with pytest.raises(DataError, match="n needs non-negative integers"):
        data([1.0]).set_length(2.0)  # type: ignore[arg-type]


# ---- memory


def test_growth_keeps_contents_and_old_views() -> None:
    d = data(np.arange(6.0).reshape(3, 2))
    old = d.data
    d.set_length(5000)
    np.testing.assert_array_equal(d[:3], np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(d[3:], 0)
    assert d._segment.generation == 1
    d[0, 0] = 70
    old[0, 1] = 80
    assert (old[0, 0], d[0, 1]) == (70, 80)
    assert d.data.shape == (5000, 2)


def test_memory_used_before_is_zero_when_it_comes_back() -> None:
    d = data(np.ones(1000))
    d.set_length(10)
    d.set_length(1200)
    same(d, np.concatenate([np.ones(10), np.zeros(1190)]))


def test_room_of_oversize_is_zero() -> None:
    d = data(np.ones(1000), oversize=2)
    d.set_value(np.full(1500, 2.0))
    d.set_value(np.ones(3))
    d.set_length(2000)
    same(d, np.concatenate([np.ones(3), np.zeros(1997)]))


@pytest.mark.parametrize(
    "take",
    [
        lambda d, _: d,
        lambda d, _: d[::-1],
        lambda d, _: np.concatenate([d, d]),
        lambda d, _: np.broadcast_to(d[:, None], (1000, 9))[:, 0],
        lambda _, old: old[::-1],  # a mapping of before: other addresses, same memory
        lambda _, old: old[1:],
    ],
    ids=["itself", "reversed", "copy", "broadcast", "old reversed", "old shifted"],
)
def test_a_value_may_be_a_view_of_the_same_memory(take: Callable[[Data, np.ndarray], Any]) -> None:
    d = data(np.arange(1000.0))
    old = d.data
    d.set_length(2000)
    d.set_length(1000)
    expected = np.array(take(d, old))
    d.set_value(take(d, old))
    same(d, expected)


def test_assignment_from_an_old_view_of_the_same_memory() -> None:
    d = data(np.arange(1000.0))
    old = d.data
    d.set_length(2000)
    d[1:1001] = old
    np.testing.assert_array_equal(d[1:1001], np.arange(1000.0))


def test_free_memory_keeps_rows_dtype_and_old_views() -> None:
    d = data(np.ones((1000, 30), "f4"), oversize=1.5)
    view, before = d.data, d._layout
    d.free_memory()
    assert (d.shape, d.dtype, d.alloc_size) == ((0, 30), np.dtype("f4"), 0)
    assert d._segment.size == segment_module.mmap.PAGESIZE
    assert d._layout[0] != before[0]
    assert view.sum() == 30000
    d.set_length(2)
    same(d, np.zeros((2, 30), "f4"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_free_memory_makes_a_0d_zero(dtype: Any) -> None:
    d = Data(dtype=dtype, ndim=0)
    d._segment.array("u1", (d.itemsize,))[:] = 1
    d.free_memory()
    same(d, np.zeros((), dtype))


def test_memory_goes_with_the_last_reference() -> None:
    told: list[int] = []
    unsubscribe = segment_module.on_release(told.append)
    before = descriptors()
    d = data(np.ones(100_000))
    segment = d._segment.id
    status = os.fstat(d._segment.fd)
    assert status.st_blocks * 512 == d._segment.size
    assert status.st_nlink == 0
    assert descriptors() > before
    del d
    settle()  # as the next Data or call does
    assert descriptors() == before
    assert told == [segment]
    unsubscribe()


def test_a_lack_of_memory_changes_nothing(maker: str) -> None:
    too_many = 1 << 47
    reason = {"posix": "--shm-size", "memfd": "bytes left"}[maker]
    d = data(np.arange(3.0))
    for grow in (
        lambda: d.set_length(too_many),
        lambda: d.set_value(np.broadcast_to(0.0, (too_many,))),
    ):
        with pytest.raises(SharedMemoryError, match=reason):
            grow()
        same(d, np.arange(3.0))
        assert d.alloc_size == 3
    with pytest.raises(SharedMemoryError):
        data(dtype="f8", shape=too_many)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_file_goes_straight_into_shared_memory(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.random.default_rng(0).random((1000, 3)).astype("f4")
    np.save(tmp_path / "x.npy", value)
    copies: list[Any] = []
    copyto = np.copyto
    monkeypatch.setattr(
        np,
        "copyto",
        lambda to, source, **kw: (copies.append((to, source)), copyto(to, source, **kw)),
    )
    loaded = np.load(tmp_path / "x.npy", mmap_mode="r")
    d = data(loaded, dtype=dtype)
    same(d, value.astype(dtype))
    ((to, source),) = copies  # one copy, from the file's pages into the segment's
    assert d._segment.overlaps(to)
    assert np.shares_memory(source, loaded)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones((1000, 500), "f4"), "f4"),
        (np.ones((1000, 500), "f4"), "f8"),
        (np.ones((1000, 500), ">f4"), "f4"),
        (np.ones((1000, 500), "f8"), "i2"),
        (np.ones((1000, 500), "c16"), "f8"),
        (np.ones((500, 1000), "f4").T, "f8"),
        (np.ones((2000, 500), "f4")[::-2], "f4"),
    ],
    ids=[
        "as it is",
        "wider",
        "byte order",
        "narrower",
        "real part",
        "transposed",
        "every other row",
    ],
)
def test_nothing_is_copied_but_into_shared_memory(value: np.ndarray, dtype: str) -> None:
    d = data(dtype=dtype, ndim=2)
    tracemalloc.start()
    try:
        d.set_value(value, force_cast=True)  # grows
        d.set_value(value, force_cast=True, oversize=2)  # fits
        d = data(value, dtype=dtype, force_cast=True)
        d.set_length(3000, oversize=1.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    same(d[:1000], value.real.astype(dtype))
    assert peak < value.nbytes / 5


def test_what_is_no_array_is_read_once() -> None:
    class File:
        reads = 0

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            self.reads += 1
            return np.array([1.0, 2.0], dtype)

    file = File()
    same(data(file), np.array([1.0, 2.0]))
    assert file.reads == 1
    same(data(file, dtype="f4", force_cast=True), np.array([1.0, 2.0], "f4"))
    assert file.reads == 2


# ---- as NumPy sees it


def test_indexing_gives_views_and_writes() -> None:
    d = data(np.arange(12).reshape(3, 4))
    d[1] = 7
    d[2, ::2] = [8, 9]
    d[[0, 0], [1, 2]] = -1
    view = d[:, 3]
    view[0] = 100
    np.testing.assert_array_equal(np.asarray(d), [[0, -1, -1, 100], [7, 7, 7, 7], [8, 9, 9, 11]])
    assert np.shares_memory(view, d.data)
    np.testing.assert_array_equal(d[data([2, 0])], d.data[[2, 0]])
    np.testing.assert_array_equal(d[data([2, 0]), 1], d.data[[2, 0], 1])
    d[data([True, False, False])] = data([5, 5, 5, 5])
    np.testing.assert_array_equal(d[0], 5)
    assert [row.tolist() for row in d] == d.data.tolist()
    assert len(d) == 3
    assert 11 in d
    assert 12 not in d
    with pytest.raises(TypeError, match="unsized"):
        len(data(1))
    with pytest.raises(IndexError):
        d[3]


def test_asarray_follows_numpy_2() -> None:
    d = data(np.arange(3.0))
    assert np.shares_memory(np.asarray(d), d.data)
    assert np.shares_memory(np.asarray(d, copy=False), d.data)
    assert not np.shares_memory(np.array(d), d.data)
    assert np.asarray(d, dtype="f4").dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.asarray(d, dtype="f4", copy=False)


def test_ufuncs_read_and_write() -> None:
    d = data([1.0, 4.0, 9.0])
    e = data([1.0, 1.0, 1.0])
    for result in (d + e, d + 1, 1 + d, np.add(d, [1, 1, 1]), np.add(np.ones(3), d)):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, [2, 5, 10])
    np.testing.assert_array_equal(np.sqrt(d), [1, 2, 3])
    np.testing.assert_array_equal(d > 3, [False, True, True])
    assert np.sqrt(d, out=e) is e
    np.testing.assert_array_equal(e, [1, 2, 3])
    same_d = d
    d += 1
    d *= e
    assert d is same_d
    np.testing.assert_array_equal(d, [2, 10, 30])
    array = np.zeros(3)
    array += d
    np.testing.assert_array_equal(array, [2, 10, 30])
    whole = data(np.zeros(3))
    fraction, given = np.modf(np.array([1.5, 2.5, 3.0]), out=(None, whole))
    assert given is whole
    np.testing.assert_array_equal(fraction, [0.5, 0.5, 0])
    np.testing.assert_array_equal(whole, [1, 2, 3])
    assert np.add.reduce(d) == 42
    assert np.sum(d) == 42
    assert np.mean(d) == 14
    np.testing.assert_array_equal(
        np.add(d, 1, where=data([True, False, True]), out=np.zeros(3)), [3, 0, 31]
    )
    np.add.at(d, [0, 0], 1)
    assert d[0] == 4
    np.testing.assert_array_equal(np.concatenate([d, e]), [4, 10, 30, 1, 2, 3])
    np.testing.assert_array_equal(d @ e, 4 + 20 + 90)


@pytest.mark.parametrize("dtype", ["?", "i4", "u2", "f4", "f8", "c16"])
def test_methods_of_arrays(dtype: str) -> None:
    """As methods, and through NumPy's functions, which look for the methods first."""
    x = np.arange(-5, 7).reshape(3, 4).astype(dtype)
    d, mask = data(x), data(x.real > 2)
    for name in ("sum", "mean", "min", "max"):
        of_numpy = getattr(np, name)
        for options in ({}, {"axis": 0}, {"axis": (0, 1)}, {"axis": -1, "keepdims": True}):
            for found in (getattr(d, name)(**options), of_numpy(d, **options)):
                np.testing.assert_array_equal(found, of_numpy(x, **options), strict=True)
        np.testing.assert_array_equal(getattr(d, name)(1), of_numpy(x, 1), strict=True)
        out = data(np.zeros(4, of_numpy(x, 0).dtype))
        assert getattr(d, name)(axis=0, out=out) is out
        np.testing.assert_array_equal(out, of_numpy(x, axis=0))
        assert of_numpy(d, axis=0, out=out) is out
    assert d.sum(where=mask) == x.sum(where=x.real > 2)
    assert d.mean(dtype="c16").dtype == d.sum(dtype="c16").dtype == np.complex128
    assert d.max(initial=100) == np.max(x, initial=100)
    assert d.T.base is not None
    np.testing.assert_array_equal(d.T, x.T, strict=True)
    own = d.copy()
    assert type(own) is np.ndarray
    d[...] = 0
    np.testing.assert_array_equal(own, x, strict=True)
    assert not d.T.any()
    with pytest.raises(ValueError, match="zero-size"):
        data(shape=(0,), dtype=dtype).min()


def test_a_0d_is_a_number() -> None:
    d = data(2)
    assert (int(d), float(d), complex(d), bool(d), [10, 20, 30][d], math.sqrt(data(4.0))) == (
        2,
        2.0,
        2,
        True,
        30,
        2.0,
    )
    d[...] = 0
    assert not d
    with pytest.raises(ValueError, match="ambiguous"):
        bool(data([1, 2]))
    with pytest.raises(TypeError, match="unhashable"):
        hash(d)


def test_minibatch_and_name_may_be_set() -> None:
    d = data([1.0])
    layout = d._layout
    assert (d.minibatch, d.name, layout[-1]) == (False, None, False)
    d.minibatch, d.name = True, "m"
    assert (d.minibatch, d.name, d._layout) == (True, "m", (*layout[:-1], True))


def test_layout_is_rebuilt_only_when_it_changes() -> None:
    d = data(np.ones(4))
    layout = d._layout
    d[:] = 3
    d += 1
    assert d._layout is layout
    a, b = (np.dtype([("a", kind)]) for kind in ("f4", "i4"))
    assert Data(dtype=a, ndim=1)._layout[3] != Data(dtype=b, ndim=1)._layout[3]


# ---- other processes


@pytest.mark.parametrize(
    "dump",
    [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy],
    ids=["pickle", "cloudpickle", "copy", "deepcopy"],
)
def test_pickling_is_refused_with_the_way_out(dump: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match="Data 'x' cannot be pickled.*[Pp]ass it as an argument"):
        dump(data([1.0], name="x"))


def test_a_function_that_captured_data_is_refused() -> None:
    d = data([1.0])
    with pytest.raises(DataError, match="capturing"):
        cloudpickle.dumps(lambda: d[0])


def test_on_a_rank_it_says_what_to_do() -> None:
    d = data([1.0])
    uses: list[Callable[[], Any]] = [
        lambda: d[0],
        lambda: np.asarray(d),
        lambda: d + 1,
        lambda: d.set_value([2.0]),
        lambda: d.set_length(3),
        d.free_memory,
    ]
    pid = os.fork()
    if pid == 0:
        segment_module.release_inherited()
        refused = 0
        for use in uses:
            try:
                use()
            except DataError as error:
                refused += "pass it as an argument" in str(error)
        os._exit(0 if refused == len(uses) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    same(d, np.array([1.0]))
