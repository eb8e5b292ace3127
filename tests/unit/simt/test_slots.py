"""What lives across a barrier: slots of every type, and where a launch keeps them."""

import ast
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numba import njit, typeof
from numba.core import types

from synknumba import simt
from synknumba.simt._analysis.team import Team
from synknumba.simt._emit import storage as storage_module
from synknumba.simt._emit.storage import LaunchStorage, slot_dtype
from synknumba.simt._library.slots import (
    MARGIN,
    inner,
    is_number,
    itemsize,
    shared_view,
    slot_get,
    slot_set,
    slots_of,
)
from synknumba.simt._library.words import MAX_BLOCK
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._source.syntax import unparse
from tests.unit.simt.written import defined, launch, program_text

Pair = namedtuple("Pair", "first second")  # as users write them
RECORD = np.dtype([("a", "i2"), ("b", "f8"), ("c", "?")], align=True)
RECORDS = np.array([(1, 2.5, True), (-3, np.inf, False)], RECORD)
MATRIX = np.arange(12.0).reshape(3, 4)


# ---- slots


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "uint64", "float32", "complex128"])
def test_slots_of_numbers_keep_every_bit(dtype: str) -> None:
    kind = np.dtype(dtype)
    limits = (
        [0, 1]
        if kind.kind == "b"
        else [np.iinfo(kind).min, np.iinfo(kind).max]
        if kind.kind in "iu"
        else [-0.0, np.nan]
    )
    values = np.array(limits, kind)
    slots = np.zeros(4, slot_dtype(typeof(values[0])))
    assert slots.dtype == kind

    @njit
    def exchange(slots, values, got):  # type: ignore[no-untyped-def]
        for k in range(2):
            slot_set(slots, k + 1, values[k])
        for k in range(2):
            got[k] = slot_get(slots, 2 - k)

    got = np.ones_like(values)
    exchange(slots, values, got)
    assert got.tobytes() == values[::-1].tobytes()
    assert slots[0] == slots[3] == 0


def test_numbers_of_narrower_types_are_converted() -> None:
    @njit
    def keep(slots):  # type: ignore[no-untyped-def]
        slot_set(slots, 0, 3)
        slot_set(slots, 1, True)
        return slot_get(slots, 0) + slot_get(slots, 1)

    assert keep(np.zeros(2, np.float32)) == 4.0
    assert keep.nopython_signatures[0].return_type == types.float32


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("(v, t)", lambda v, t: v + t),
        ("(v, (t, v > 2), True)", lambda v, t: v + t + (v > 2)),
        ("Pair(v, t * 2)", lambda v, t: v + 2 * t),
        ("x[t:]", lambda v, t: v),
        ("m[t % 3]", lambda v, t: 4.0 * (t % 3) + 1),
        ("m[:, t % 4]", lambda v, t: 4.0 + t % 4),
        ("r[t % 2]", lambda v, t: (1, -3)[t % 2]),
        ("(x[t:], t)", lambda v, t: v + t),
        ("complex(v, t)", lambda v, t: v + t),
    ],
)
def test_values_of_any_type_live_across_a_barrier(text: str, values: Any) -> None:
    """Of every thread its own: read again behind a barrier, by a compiled kernel."""
    read = {
        "(v, t)": "a[0] + a[1]",
        "(v, (t, v > 2), True)": "a[0] + a[1][0] + a[1][1]",
        "Pair(v, t * 2)": "a.first + a.second",
        "x[t:]": "a[0]",
        "r[t % 2]": "a.a",
        "(x[t:], t)": "a[0][0] + a[1]",
        "complex(v, t)": "a.real + a.imag",
    }.get(text, "a[1]")
    kernel = defined(
        f"""
        def kernel(x, m, r, out):
            s = cuda.shared.array(8, float64)
            t = cuda.threadIdx.x
            v = x[t] + 0
            a = {text}
            s[t] = v
            cuda.syncthreads()
            out[t] = {read} + 100 * s[7 - t]
        """,
        Pair=Pair,
    )
    x, out = np.arange(8.0) + 0.5, np.zeros(8)
    simt.jit(kernel)[1, 8](x, MATRIX, RECORDS, out)
    assert out.tolist() == [values(x[t], t) + 100 * x[7 - t] for t in range(8)]


def test_sizes_are_those_of_llvm() -> None:
    assert itemsize(typeof(RECORDS).dtype) >= 8
    assert itemsize(types.UniTuple(types.float64, 3)) == 24
    assert itemsize(types.Tuple((types.int8, types.float64))) == 16
    assert [
        is_number(kind)
        for kind in (types.int8, types.boolean, types.complex64, types.Tuple(()), None)
    ] == [1, 1, 1, 0, 0]


def test_slots_in_bytes() -> None:
    kind = types.Tuple((types.float64, types.int8))
    slots = slots_of(kind)

    @njit
    def exchange(memory):  # type: ignore[no-untyped-def]
        kept = slots(memory)
        for k in range(4):
            slot_set(kept, k, (k * 0.5, np.int8(-k)))
        total = 0.0
        for k in range(4):
            a, b = slot_get(kept, 3 - k)
            total = total * 10 + a + b
        return total

    memory = np.full(4 * itemsize(kind) + 8, 77, np.uint8)
    assert exchange(memory) == -1605
    assert (memory[-8:] == 77).all()


def test_rows_of_local_arrays() -> None:
    @njit
    def rows(slots):  # type: ignore[no-untyped-def]
        slot_get(slots, 1)[2] = 5
        return slot_get(slots, 2).shape, slot_get(slots, 1)[2]

    slots = np.zeros((3, 4))
    assert rows(slots) == ((4,), 5)
    assert np.argwhere(slots).tolist() == [[1, 2]]


def test_padding() -> None:
    @njit
    def fill(padded):  # type: ignore[no-untyped-def]
        array = inner(padded)
        array[0], array[array.size - 1] = 1, 2
        return array.size

    padded = np.zeros(10 + 2 * MARGIN)
    assert fill(padded) == 10
    assert np.flatnonzero(padded).tolist() == [MARGIN, MARGIN + 9]


def test_bytes_as_an_array_of_a_type() -> None:
    @njit
    def view(memory):  # type: ignore[no-untyped-def]
        wide, narrow = shared_view(memory, np.float64), shared_view(memory, np.int16)
        wide[1] = 1.0
        return wide.size, narrow.size, narrow[7]

    assert view(np.zeros(27, np.uint8)) == (3, 13, 0x3FF0)


# ---- where they are kept


def storage(*, grid: bool = False) -> tuple[LaunchStorage, dict[str, Any]]:
    names: dict[str, Any] = {}
    return LaunchStorage(Team(grid=grid), names, ast.Pass(lineno=1)), names


def test_slots_lie_on_the_stack_until_it_is_full() -> None:
    made, names = storage()
    count = storage_module.STACK_BYTES // (8 * MAX_BLOCK)
    for number in range(count + 1):
        made.slots(f"v{number}", types.float64)
    lines = unparse(made.reserve).splitlines()
    assert lines[count - 1] == f"v{count - 1}__s = _k_stack_array(1024, _k_dtype_v{count - 1})"
    assert lines[count:] == [
        f"v{count}__s__h = _k_empty(1024, _k_dtype_v{count})",
        f"v{count}__s = _k_borrowed(v{count}__s__h)",
    ]
    assert unparse(made.release) == f"_k_keep(v{count}__s__h)"
    assert names["_k_dtype_v0"] == np.float64


def test_slots_of_other_types_and_with_margins() -> None:
    made, names = storage()
    made.slots("pair", types.UniTuple(types.int64, 2))
    made.slots("taken", types.float32, padded=True)
    made.slots("unused", None)
    made.local_array("c", ast.parse("f((2, 3), float32)", mode="eval").body)  # type: ignore[arg-type]
    assert unparse(made.reserve).splitlines() == [
        "pair__b = _k_stack_array(16384, _k_dtype_pair)",
        "pair__s = _k_slots_pair(pair__b)",
        "taken__p = _k_stack_array(1088, _k_dtype_taken)",
        "taken__s = _k_inner(taken__p)",
        "unused__s = _k_stack_array(1024, _k_dtype_unused)",
        "c__s = _k_stack_array((1024, 2, 3), float32)",
    ]
    assert [names[f"_k_dtype_{name}"] for name in ("pair", "taken", "unused")] == [
        np.uint8,
        np.float32,
        np.int8,
    ]


def test_the_grid_keeps_everything_on_the_heap() -> None:
    made, _ = storage(grid=True)
    made.slots("v", types.int32)
    made.local_array("c", ast.parse("f(3, float32)", mode="eval").body)  # type: ignore[arg-type]
    made.shared(
        {
            "s": SharedArray((4, 2), ast.Name("float64"), ast.Pass()),
            "d": SharedArray((0,), ast.Name("int8"), ast.Pass()),
        }
    )
    assert [line for line in unparse(made.reserve).splitlines() if "_k_empty" in line] == [
        "v__s__h = _k_empty(_k_threads * _k_blocks, _k_dtype_v)",
        "c__s__h = _k_empty((_k_threads * _k_blocks, 3), float32)",
        "_k_dynamic__h = _k_empty((_k_blocks, _k_smem), _k_uint8)",
        "s__s__h = _k_empty((_k_blocks, 4, 2), float64)",
    ]
    assert {name: unparse([statement]) for name, statement in made.recompute.items()} == {
        "s": "s = _k_slot_get(s__s, _k_block)",
        "d": "d = _k_shared_view(_k_slot_get(_k_dynamic, _k_block), int8)",
    }


def test_many_large_local_arrays_across_a_barrier() -> None:
    kernel = defined("""
    def kernel(x):
        t = cuda.threadIdx.x
        a = cuda.local.array((20, 30), float64)
        b = cuda.local.array(7, int64)
        a[19, 29], b[6] = x[t], t
        cuda.syncthreads()
        x[t] = a[19, 29] * 2 + b[6]
    """)
    assert "a__s__h = _k_empty((1024, 20, 30)" in program_text(kernel, typeof(np.zeros(1)))
    x = np.arange(1024.0)
    simt.jit(kernel)[1, 1024](x)
    assert np.array_equal(x, np.arange(1024.0) * 3)


def test_every_block_of_a_grid_has_shared_memory_of_its_own() -> None:
    kernel = defined("""
    def kernel(x):
        s = cuda.shared.array((2, 2), int64)
        d = cuda.shared.array(0, float64)
        g = cuda.cg.this_grid()
        t, i = cuda.threadIdx.x, cuda.grid(1)
        s[t // 2, t % 2] = i
        d[t] = i * 0.5
        g.sync()
        x[i] = s[1 - t // 2, t % 2] + d[3 - t]
    """)
    i = np.arange(12)
    for run in (lambda x: launch(kernel, 3, 4, x, smem=32), simt.jit(kernel)[3, 4, 0, 32]):
        x = np.zeros(12)
        run(x)
        assert np.array_equal(x, (i ^ 2) + (i ^ 3) * 0.5)
