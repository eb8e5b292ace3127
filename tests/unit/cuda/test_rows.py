"""Rows that lie apart, moved in words as long as their length and their addresses allow."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synknumba._ops.rows import Listed, Range
from tests.unit.cuda import stand_in

WORDS = (1, 2, 4, 8, 16)


def pinned(nbytes, offset=0):
    """Page-locked bytes, at an offset to a multiple of 64."""
    memory = np.frombuffer(stand_in.alloc_pinned_memory(nbytes + 128), np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + nbytes]


def pinned_indices(values):
    made = pinned(8 * len(values)).view(np.int64)
    made[:] = values
    return made


selections = st.one_of(
    st.builds(Range, st.integers(0, 8), st.just(2), st.integers(1, 6)),
    st.builds(Range, st.integers(15, 19), st.integers(-3, -1), st.integers(1, 5)),
    st.lists(st.integers(0, 19), min_size=1, max_size=12),
)


@settings(max_examples=150)
@given(
    rows=selections,
    row_bytes=st.integers(1, 40),
    offsets=st.tuples(st.integers(0, 31), st.integers(0, 31)),
    back=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_of_any_length_at_any_address(rows, row_bytes, offsets, back, seed):
    machine, gpu = stand_in.start(seed), stand_in.load()
    if isinstance(rows, list):
        chosen = list(dict.fromkeys(rows)) if back else rows
        selected = Listed(pinned_indices(chosen))
    else:
        chosen, selected = rows.indices, rows
    table = pinned(20 * row_bytes, offsets[0]).reshape(20, row_bytes)
    table[...] = np.random.default_rng(seed).integers(0, 255, table.shape)
    packed = gpu.memory.typed(
        stand_in.alloc(64 + 20 * row_bytes) + offsets[1], "uint8", (len(chosen), row_bytes)
    )
    packed.now()[...] = np.random.default_rng(seed + 1).integers(0, 255, packed.shape)
    expected_table, expected_packed = table.copy(), packed.now().copy()
    if back:
        expected_table[chosen] = expected_packed
    else:
        expected_packed = expected_table[chosen]
    stream = stand_in.Stream()
    step = gpu.code.move_rows(table.ctypes.data, row_bytes, selected, packed, stream, back=back)
    assert isinstance(step, gpu.steps.StoreToHost) == back
    step()
    machine.synchronize(stream.ptr)  # raises if a word is not where words can be
    np.testing.assert_array_equal(table, expected_table)
    np.testing.assert_array_equal(packed.now(), expected_packed)


@pytest.mark.parametrize(
    ("row_bytes", "table", "together", "word"),
    [
        (3072, 0, 0, 16),
        (48, 0, 16, 16),
        (48, 8, 0, 8),
        (24, 0, 0, 8),
        (20, 0, 0, 4),
        (16, 2, 0, 2),
        (6, 0, 0, 2),
        (16, 0, 1, 1),
    ],
)
def test_the_longest_words_that_fit(gpu, monkeypatch, row_bytes, table, together, word):
    stand_in.start()
    asked = []
    monkeypatch.setattr(gpu.code, "_module", lambda: SimpleNamespace(get_function=asked.append))
    packed = gpu.memory.typed(stand_in.alloc(8192) + together, "uint8", (1, row_bytes))
    gpu.code.move_rows(
        1 << 20 | table, row_bytes, Range(0, 2, 1), packed, stand_in.Stream(), back=False
    )
    assert asked == [f"rows_{word}"]


def test_the_model_refuses_words_in_wrong_places(gpu):
    """So the tests above can fail."""
    machine, stream = stand_in.start(), stand_in.Stream()
    packed = gpu.memory.typed(stand_in.alloc(64), "uint8", (2, 16))
    kernel = gpu.code._module().get_function("rows_16")
    numbers = [np.int64(one) for one in (0, 0, 1, 2, 1)]
    with stream:
        kernel((1,), (32,), (pinned(64, 8).ctypes.data, packed.data.ptr, *numbers, np.bool_(False)))
    with pytest.raises(stand_in.CUDARuntimeError, match="716"):
        machine.synchronize(stream.ptr)


def test_the_grid_covers_the_work_and_not_more_than_the_device(gpu):
    blocks = gpu.code._blocks
    assert [blocks(work) for work in (1, 512, 513, 1024, 1025, 10**9)] == [1, 1, 2, 2, 3, 4]


def test_rows_live_as_long_as_the_step(gpu):
    stand_in.start()
    packed = gpu.memory.typed(stand_in.alloc(64), "float64", (2,))
    listed, host = Listed(pinned_indices([0, 1])), object()
    step = gpu.code.move_rows(4096, 8, listed, packed, stand_in.Stream(), back=True, keeps=host)
    assert step.keeps == (packed, listed, host)
