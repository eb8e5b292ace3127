"""Arrays in mapped files: ranks read the file, nothing is copied to shared memory, and results are
those of NumPy.

np.load(..., mmap_mode="r") ──> the same rows, batches, slices and trees as for an array in memory
                            ──> told by name: files that are truncated, and arguments that are written
"""  # noqa: E501

import logging
import mmap
import os
import subprocess
import sys
from multiprocessing import shared_memory

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._host import segment

ROWS = np.arange(606.0).reshape(101, 6)
BATCHES = (None, 7, slice(10, 60), slice(90, None, -3), [5, 3, 5, 100])


@synk.parallel(outputs={"total": synk.output("sum", shape=()), "copy": synk.output("gather")})
def scaled(x, factor, total, copy):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i, 2])
        copy[i] = factor * x[i, 2]


@synk.function(outputs="gather")
def plus(x, number):
    return x + number


@synk.function(outputs="gather")
def added(pair):
    return pair["a"] + pair["b"]


@synk.function(outputs="sum", broadcast=("x",))
def of_whole(x):
    return x.sum()


@synk.function(outputs="sum")
def total_of(x):
    return x.sum()


@synk.function(inout=("x",))
def double(x):
    x *= 2


@synk.function(outputs="gather")
def taken(x, at):
    return x[:, 0] + at


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    return path


def opened(path, mode="r"):
    return np.load(path, mmap_mode=mode)


def without_copies(monkeypatch):
    """Lets no array be copied: the largest segment that can be made is a page."""
    make = segment.Segment.__init__

    def refuse(self, nbytes):
        assert nbytes <= mmap.PAGESIZE, f"{nbytes} bytes were copied to shared memory"
        make(self, nbytes)

    monkeypatch.setattr(segment.Segment, "__init__", refuse)


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("kind", ["array", "data"])
def test_calls_give_what_they_give_for_arrays_in_memory(world, path, num_slices, kind):
    x = opened(path) if kind == "array" else synk.data(opened(path), copy=False)
    for batch in BATCHES:
        rows = ROWS if batch is None else ROWS[:batch] if isinstance(batch, int) else ROWS[batch]
        for factor in (2.0, -1.0):
            result = scaled(x, factor, batch=batch, num_slices=num_slices)
            assert result.total == (factor * rows[:, 2]).sum()
            assert_array_equal(result.copy, factor * rows[:, 2])
            assert_array_equal(plus(x, factor, batch=batch, num_slices=num_slices), rows + factor)
    assert of_whole(x) == world.world_size * ROWS.sum()
    assert_array_equal(plus(x, 1.0, shards=4), ROWS + 1)
    assert_array_equal(plus.submit(x, 1.0).result(), ROWS + 1)
    assert_array_equal(plus.as_serial(x, 1.0), ROWS + 1)


def test_nothing_is_copied_to_shared_memory(world, tmp_path, monkeypatch):
    rows = np.arange(300_000.0).reshape(100_000, 3)
    np.save(tmp_path / "large.npy", rows)
    x = opened(tmp_path / "large.npy")
    without_copies(monkeypatch)
    assert of_whole(x) == world.world_size * rows.sum()
    assert scaled(x, 1.0, batch=100).total == rows[:100, 2].sum()
    with pytest.raises(AssertionError, match="were copied"):  # as an array in memory is
        of_whole(rows)


def test_parts_of_a_file_are_found_at_their_place(world, path):
    x = opened(path)
    for part, expected in (
        (x[20:], ROWS[20:]),
        (np.asarray(x[50:60]), ROWS[50:60]),
        (x.reshape(202, 3), ROWS.reshape(202, 3)),
    ):
        assert_array_equal(plus(part, 1.0), expected + 1)
    assert_array_equal(added({"a": x[:40], "b": x[40:80]}), ROWS[:40] + ROWS[40:80])


@pytest.mark.parametrize("order", ["strided", "fortran", "big-endian", "unaligned", "private"])
def test_other_forms_are_copied_and_the_log_tells_why(world, tmp_path, path, order, caplog):
    told = {
        "strided": "C-contiguous",
        "fortran": "C-contiguous",
        "big-endian": "byte order",
        "unaligned": "multiple of 8",
    }
    expected, x = ROWS, None
    if order == "strided":
        expected, x = ROWS[::2], opened(path)[::2]
    elif order == "fortran":
        np.save(tmp_path / "other.npy", np.asfortranarray(ROWS))
    elif order == "big-endian":
        np.save(tmp_path / "other.npy", ROWS.astype(">f8"))
    elif order == "unaligned":
        (tmp_path / "raw").write_bytes(b"abc" + ROWS.tobytes())
        x = np.memmap(
            tmp_path / "raw", ">f8" if order == "big-endian" else "f8", "r", 3, ROWS.shape
        )
    else:
        x = opened(path, "c")
        x[0, 0] = 1e6
        expected = np.array(x)
    x = opened(tmp_path / "other.npy") if x is None else x
    with caplog.at_level(logging.DEBUG, "synknumba"):
        assert_array_equal(plus(x, 1.0), expected + 1)
    lines = [one.getMessage() for one in caplog.records if "is copied" in one.getMessage()]
    assert [told[order] in line and "x of plus" in line for line in lines] == (
        [True] if order in told else []
    )


def test_contents_that_change_are_seen(world, path):
    x = opened(path)
    for k in range(3):
        rows = ROWS + k
        np.copyto(opened(path, "r+"), rows)
        os.utime(path, ns=(k, k))
        assert_array_equal(plus(x, 1.0, batch=slice(None, None, 2)), rows[::2] + 1)
        assert scaled(x, 2.0).total == (2 * rows[:, 2]).sum()


def test_a_file_that_the_script_may_write_to_is_copied_unless_asked_otherwise(world, path):
    x = opened(path, "r+")
    future = plus.submit(x, 0.0)
    x[:] = 1.0  # while the ranks work
    assert_array_equal(future.result(), ROWS)
    shared = synk.data(x, copy=False)
    assert not shared.frozen
    assert_array_equal(plus(shared, 0.0), np.ones_like(ROWS))
    x[:] = ROWS
    assert_array_equal(plus(shared, 0.0), ROWS)
    with pytest.raises(synk.DataError, match='mode "r"'):
        shared.freeze()


def test_the_rows_are_those_of_the_array_where_its_path_leads_to_another_file(world, path):
    renamed, gone = opened(path), opened(path)
    os.rename(path, path.with_suffix(".old"))
    np.save(path, ROWS + 1000)
    assert_array_equal(plus(renamed, 0.0), ROWS)
    assert_array_equal(plus(opened(path), 0.0), ROWS + 1000)
    os.unlink(path.with_suffix(".old"))
    assert_array_equal(plus(gone, 0.0), ROWS)
    del renamed, gone
    assert_array_equal(plus(opened(path), 0.0), ROWS + 1000)


@pytest.mark.parametrize("kind", ["array", "data"])
def test_a_file_that_is_truncated_is_told_by_name(world, path, kind):
    x = opened(path) if kind == "array" else synk.data(opened(path), copy=False)
    assert_array_equal(plus(x, 1.0), ROWS + 1)
    os.truncate(path, 1000)
    with pytest.raises(
        synk.DataError, match=r"x of plus: the file .*rows.npy has been truncated to 1,000 bytes"
    ):
        plus(x, 1.0)
    assert_array_equal(plus(ROWS, 1.0), ROWS + 1)  # the ranks live


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
@pytest.mark.parametrize("rows", [0, 5, 70])
def test_a_file_that_is_truncated_before_its_first_call_is_told_by_name(world, path, mode, rows):
    x = opened(path, mode)
    size = os.path.getsize(path)
    np.save(path, ROWS[:rows])  # in place
    end, told = (
        os.path.getsize(path),
        r"x of {}: the file .*rows.npy has been truncated to {:,} bytes since .* byte {:,}; open",
    )
    with pytest.raises(synk.DataError, match=told.format("plus", end, size)):
        plus(x, 1.0)
    with pytest.raises(synk.DataError, match=told.format("plus", end, size - 96)):
        plus(x[::2][:50], 1.0)
    with pytest.raises(synk.DataError, match="rows.npy has been truncated"):
        synk.sequence(lambda x: plus(x, 1.0))(x, times=1)
    for copy in (True, False)[: 1 if mode == "c" else 2]:
        with pytest.raises(synk.DataError, match="rows.npy has been truncated"):
            synk.data(x, copy=copy)
    if mode == "r+":
        with pytest.raises(synk.DataError, match=told.format("double", end, size)):
            double(x)
    if rows:
        assert_array_equal(plus(x[:rows], 1.0), ROWS[:rows] + 1)
        assert_array_equal(plus(opened(path), 1.0), ROWS[:rows] + 1)


@pytest.mark.one_machine
def test_a_file_that_is_truncated_during_a_call_ends_the_world_with_a_reason(fork_row, path):
    @synk.function(outputs="sum")
    def truncated(x):
        os.truncate(path, 0)
        return x.sum()

    world = fork_row()
    if world.device == "cuda":
        pytest.skip("the rows have been copied before")
    with pytest.raises(synk.RankDied, match=r"SIGBUS .*a file that was truncated"):
        truncated(opened(path))


def test_a_file_that_has_grown_is_mapped_anew(world, tmp_path):
    path = tmp_path / "raw"
    ROWS[:50].tofile(path)
    assert_array_equal(plus(np.memmap(path, "f8", "r", 0, (50, 6)), 1.0), ROWS[:50] + 1)
    ROWS.tofile(path)
    assert_array_equal(plus(np.memmap(path, "f8", "r", 0, (101, 6)), 1.0), ROWS + 1)


def test_rows_of_files_are_not_written(world, path):
    with pytest.raises(synk.ArgumentError, match="x is in inout=.* read-only"):
        double(opened(path))
    x = synk.data(opened(path), copy=False, name="table")
    with pytest.raises(
        synk.ArgumentError, match=r"x of double is in inout=.*over the file .*rows.npy"
    ):
        double(x)
    for change in (
        x.thaw,
        x.free_memory,
        lambda: x.set_value(ROWS),
        lambda: x.set_length(3),
        lambda: x.__setitem__(0, 1.0),
    ):
        with pytest.raises(synk.DataError, match="Data 'table' is over the file"):
            change()
    assert_array_equal(x, ROWS)
    writable = opened(path, "r+")
    double(writable)
    assert_array_equal(writable, 2 * ROWS)
    assert_array_equal(x, 2 * ROWS)


def test_data_over_files_are_data(world, path):
    x = synk.data(opened(path), copy=False, minibatch=True, name="x")
    assert x.frozen
    assert (x.shape, x.dtype, x.nbytes, x.name) == (ROWS.shape, ROWS.dtype, ROWS.nbytes, "x")
    assert_array_equal(x + 1, ROWS + 1)
    assert_array_equal(
        taken(x, synk.data(np.arange(300.0)), batch=slice(100, 201)),
        ROWS[:, 0] + np.arange(100.0, 201.0),
    )
    assert str(path) in plus.plan(x, 1.0).arguments[0]
    plan = plus.plan(opened(path), 1.0, batch=100)
    assert "in a file" in plan.arguments[0]
    assert sum(rank.file_bytes for rank in plan.ranks) == 4800
    assert (
        f"reads {plan.ranks[0].input_bytes:,} bytes, {plan.ranks[0].input_bytes:,} of them from "
        "files" in str(plan)
    )
    assert sum(rank.file_bytes for rank in plus.plan(ROWS, 1.0).ranks) == 0
    for wrong, text in (
        (ROWS, "not that of a file"),
        ([1.0], "not that of a file"),
        (opened(path)[:, 1], "C-contiguous"),
    ):
        with pytest.raises(synk.DataError, match=text):
            synk.data(wrong, copy=False)
    with pytest.raises(synk.DataError, match="only minibatch and name"):
        synk.data(opened(path), copy=False, dtype="float32")


def test_paths_are_no_arrays(path):
    (path.parent / "raw").write_bytes(b"")
    for one in (path, str(path), "none.npy", str(path.parent / "raw")):
        with pytest.raises(
            synk.DataError, match=r"value is the path '.*', not an array; pass np.load\(path\)"
        ):
            synk.data(one)
        with pytest.raises(synk.DataError, match="value is the path"):
            synk.data(one, copy=False)
    assert synk.data("a text").shape == ()


@pytest.mark.one_machine
def test_shared_memory_of_others_is_used_in_place(world, monkeypatch):
    memory = shared_memory.SharedMemory(create=True, size=ROWS.nbytes)
    try:
        theirs = np.ndarray(ROWS.shape, ROWS.dtype, memory.buf)
        theirs[:] = ROWS
        without_copies(monkeypatch)
        x = synk.data(theirs, copy=False)
        assert scaled(x, 1.0).total == ROWS[:, 2].sum()
        theirs[:] = 1.0
        assert scaled(x, 1.0).total == len(ROWS)
        del x, theirs
    finally:
        memory.close()
        memory.unlink()


def test_sequences_read_files(world, path):
    x, outside = opened(path), opened(path)
    data = synk.data(outside, copy=False)

    @synk.sequence
    def steps(x, y):
        return of_whole(x), of_whole(y), of_whole(outside)

    for k in range(3):
        np.copyto(opened(path, "r+"), ROWS + k)
        os.utime(path, ns=(k, k))
        assert steps(x, data, times=3) == (world.world_size * (ROWS + k).sum(),) * 3


@synk.vectorize
def squared(x):
    return x * x


@synk.expectation
def mean_of(x):
    return x[2]


@pytest.mark.whole
def test_functions_of_elements_and_of_rows(world, path):
    assert_array_equal(squared(opened(path)), ROWS * ROWS)
    assert mean_of(opened(path)).mean == ROWS[:, 2].mean()


def test_rows_by_lines_of_row_numbers(world, path):
    lines = np.array([[1, 2, 3], [7, 8, 100], [0, 50, 99]])

    @synk.sequence
    def epoch(x, lines):
        return total_of(x, batch=lines[synk.STEP])

    x = synk.data(opened(path), copy=False)
    for _ in range(2):
        assert_array_equal(epoch(x, synk.data(lines), times=3, every=1), ROWS[lines].sum((1, 2)))


LARGE = """
import resource
import sys

import numpy as np

import synknumba as synk

@synk.function(outputs="sum")
def total(x):
    return x.sum()

path, rows = sys.argv[1], 25_000_000
with open(path, "wb") as file:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (rows,)})
    begin = file.tell()
    file.truncate(begin + 8 * rows)  # 200 MB, of which the disk has a page
    file.seek(begin + 8 * (rows - 1))
    file.write(np.float64(3.5).tobytes())
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))  # also of shared memory
with synk.fork(2, device="cpu"):
    assert total(np.load(path, mmap_mode="r"), num_slices=4) == 3.5
    try:
        total(np.load(path))
    except synk.SharedMemoryError as error:
        print("a copy does not fit:", error)
"""  # noqa: E501


@pytest.mark.whole
def test_a_file_may_be_larger_than_shared_memory(tmp_path):
    arguments = [sys.executable, "-c", LARGE, str(tmp_path / "large.npy")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (
        "a copy does not fit: x: " in done.stdout
        or "a copy does not fit: cannot allocate 200,000,000" in done.stdout
    )
