"""`simt.check`: every kind of finding with its line, array, index and threads; and none where
nothing is wrong.
"""

import linecache
import pickle
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

from synknumba import simt
from synknumba._errors import (
    Access,
    BoundsError,
    DivergenceError,
    Finding,
    KernelCheckError,
    KernelError,
    RaceError,
    UninitializedError,
)

HERE = __file__
BLOCK = 64
FULL = 0xFFFFFFFF
# Kernels of this file that compiled code cannot check, by name.
PYTHON_ONLY = {"loops", "fields", "float_index", "adds_none", "unsupported", "shows", "cuts_off"}


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(False, id="python"),
        pytest.param(True, id="compiled", marks=pytest.mark.whole),
    ],
)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether every check of a test runs in compiled code, as far as that is possible, or all in
    Python.
    """
    check = simt.check

    def check_by(kernel: Any, **options: Any) -> Any:
        compiled = request.param and kernel.__name__ not in PYTHON_ONLY
        return check(kernel, compiled=compiled, **options)

    monkeypatch.setattr(simt, "check", check_by)
    return request.param


def line_of(text: str) -> int:
    """The only line of this file that ends in a mark."""
    found = [
        number
        for number, line in enumerate(linecache.getlines(HERE), 1)
        if line.rstrip().endswith(f"# {text}")
    ]
    assert len(found) == 1, found
    return found[0]


def findings_of(
    kernel: Any, grid: Any, block: Any, *args: Any, smem: int = 0, **options: Any
) -> tuple[Finding, ...]:
    try:
        simt.check(kernel, **options)[grid, block, 0, smem](*args)
    except KernelCheckError as error:
        return error.findings
    return ()


def the_one(
    kernel: Any, grid: Any, block: Any, *args: Any, smem: int = 0, **options: Any
) -> Finding:
    findings = findings_of(kernel, grid, block, *args, smem=smem, **options)
    assert len(findings) == 1, "\n".join(map(str, findings))
    return findings[0]


def accesses(finding: Finding) -> list[tuple[str, int, int]]:
    """What was done, by which thread of the block along x, on which line."""
    return [(access.what, access.thread[0], access.line) for access in finding.accesses]


# ---- classics: right, and with one barrier left out


def reduce_by_halves(x, out, first, second):
    s = cuda.shared.array(BLOCK, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]  # load to reduce
    if first:
        cuda.syncthreads()
    width = BLOCK // 2
    while width > 0:
        if t < width:
            s[t] += s[t + width]  # one halving
        if second:
            cuda.syncthreads()
        width //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def scan_by_doubling(x, out, barrier):
    s = cuda.shared.array(BLOCK, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < BLOCK:
        value = 0.0
        if t >= step:
            value = s[t - step]  # read to scan
        if barrier:
            cuda.syncthreads()
        s[t] += value  # write to scan
        cuda.syncthreads()
        step *= 2
    out[cuda.grid(1)] = s[t]


def multiply_by_tiles(a, b, c, first, second):
    sa = cuda.shared.array((8, 8), float32)
    sb = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(a.shape[1] // 8):
        sa[ty, tx] = a[y, k * 8 + tx]  # load a tile
        sb[ty, tx] = b[k * 8 + ty, x]
        if first:
            cuda.syncthreads()
        for j in range(8):
            total += sa[ty, j] * sb[j, tx]  # use the tiles
        if second:
            cuda.syncthreads()
    c[y, x] = total


def transpose(a, out, barrier):
    tile = cuda.shared.array((8, 9), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = a[cuda.blockIdx.y * 8 + ty, cuda.blockIdx.x * 8 + tx]  # fill the tile
    if barrier:
        cuda.syncthreads()
    out[cuda.blockIdx.x * 8 + ty, cuda.blockIdx.y * 8 + tx] = tile[tx, ty]  # drain the tile


def histogram(x, counts, first, atomic):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0  # zero the bins
    if first:
        cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if atomic:
            cuda.atomic.add(s, x[i], 1)  # count by atomics
        else:
            s[x[i]] += 1  # count without atomics
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


def reduce_by_warps(x, out, barrier):
    s = cuda.shared.array(32, float64)
    value = x[cuda.grid(1)]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, delta)
    warp = cuda.threadIdx.x // 32
    if cuda.laneid == 0:
        s[warp] = value  # one of each warp
    if barrier:
        cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total = 0.0
        for k in range(BLOCK // 32):
            total += s[k]  # sum of the warps
        cuda.atomic.add(out, 0, total)


def within_a_warp(x, out, sync):
    s = cuda.shared.array(32, float64)
    lane = cuda.laneid
    s[lane] = x[lane]  # before syncwarp
    if sync:
        cuda.syncwarp()
    out[lane] = s[31 - lane]  # after syncwarp


X = np.random.default_rng(1).uniform(1.0, 2.0, 2 * BLOCK)
MATRIX = np.random.default_rng(2).uniform(1.0, 2.0, (16, 16)).astype(np.float32)
BINS = np.random.default_rng(3).integers(0, 16, 300)


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "make", "result"),
    [
        (reduce_by_halves, 2, BLOCK, lambda: (X, np.zeros(2), True, True), X.reshape(2, -1).sum(1)),
        (
            scan_by_doubling,
            2,
            BLOCK,
            lambda: (X, np.zeros(2 * BLOCK), True),
            X.reshape(2, -1).cumsum(1).ravel(),
        ),
        (
            multiply_by_tiles,
            (2, 2),
            (8, 8),
            lambda: (MATRIX, MATRIX, np.zeros_like(MATRIX), True, True),
            MATRIX @ MATRIX,
        ),
        (transpose, (2, 2), (8, 8), lambda: (MATRIX, np.zeros_like(MATRIX), True), MATRIX.T),
        (
            histogram,
            2,
            BLOCK,
            lambda: (BINS, np.zeros(16, np.int64), True, True),
            np.bincount(BINS, minlength=16),
        ),
        (reduce_by_warps, 2, BLOCK, lambda: (X, np.zeros(1), True), [X.sum()]),
        (within_a_warp, 1, 32, lambda: (X, np.zeros(32), True), X[31::-1]),
    ],
)
def test_right_kernels_have_no_finding(
    kernel: Any, grid: Any, block: Any, make: Any, result: Any
) -> None:
    args = make()
    simt.check(kernel)[grid, block](*args)
    written = next(arg for arg in args[1:] if isinstance(arg, np.ndarray) and arg is not MATRIX)
    np.testing.assert_allclose(written, result, rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "args", "array", "lines"),
    [
        (
            reduce_by_halves,
            1,
            BLOCK,
            (X, np.zeros(2), False, True),
            "s",
            {("write", "load to reduce"), ("read", "one halving")},
        ),
        (
            reduce_by_halves,
            1,
            BLOCK,
            (X, np.zeros(2), True, False),
            "s",
            {("write", "one halving"), ("read", "one halving")},
        ),
        (
            scan_by_doubling,
            1,
            BLOCK,
            (X, np.zeros(BLOCK), False),
            "s",
            {("read", "read to scan"), ("write", "write to scan")},
        ),
        (
            multiply_by_tiles,
            1,
            (8, 8),
            (MATRIX, MATRIX, MATRIX.copy(), False, True),
            "sa",
            {("write", "load a tile"), ("read", "use the tiles")},
        ),
        (
            multiply_by_tiles,
            1,
            (8, 8),
            (MATRIX, MATRIX, MATRIX.copy(), True, False),
            "sa",
            {("read", "use the tiles"), ("write", "load a tile")},
        ),
        (
            transpose,
            1,
            (8, 8),
            (MATRIX, MATRIX.copy(), False),
            "tile",
            {("write", "fill the tile"), ("read", "drain the tile")},
        ),
        (
            histogram,
            1,
            BLOCK,
            (BINS, np.zeros(16, np.int64), False, True),
            "s",
            {("write", "zero the bins"), ("atomic", "count by atomics")},
        ),
        (
            reduce_by_warps,
            1,
            BLOCK,
            (X, np.zeros(1), False),
            "s",
            {("read", "sum of the warps"), ("write", "one of each warp")},
        ),
        (
            within_a_warp,
            1,
            32,
            (X, np.zeros(32), False),
            "s",
            {("write", "before syncwarp"), ("read", "after syncwarp")},
        ),
    ],
)
def test_a_missing_barrier_is_a_race(
    kernel: Any, grid: Any, block: Any, args: Any, array: str, lines: set[Any]
) -> None:
    findings = findings_of(kernel, grid, block, *args)
    races = [
        finding for finding in findings if finding.error is RaceError and finding.array == array
    ]
    wanted = {(what, line_of(mark)) for what, mark in lines}
    assert wanted in [
        {(access.what, access.line) for access in finding.accesses} for finding in races
    ]
    for finding in races:
        first, second = finding.accesses
        assert first.thread != second.thread
        assert "syncthreads" in finding.advice


def test_counting_without_atomics_is_a_race() -> None:
    findings = findings_of(histogram, 1, BLOCK, BINS, np.zeros(16, np.int64), True, False)
    line = line_of("count without atomics")
    kinds = {
        tuple(sorted((access.what, access.line) for access in finding.accesses))
        for finding in findings
    }
    assert (("read", line), ("write", line)) in kinds


# ---- races, one by one


def neighbours(x):
    t = cuda.threadIdx.x
    x[t + 1] = x[t] + 1  # to the right


def test_a_race_names_both_threads_and_the_element() -> None:
    with pytest.raises(RaceError) as caught:
        simt.check(neighbours)[1, 4](np.arange(5.0))
    (finding,) = caught.value.findings
    line = line_of("to the right")
    assert (finding.array, finding.index, finding.times) == ("x", (1,), 3)
    assert accesses(finding) == [("write", 0, line), ("read", 1, line)]
    text = str(caught.value)
    for part in (
        "neighbours",
        "race at index [1] of the array x",
        "shape (5,)",
        f"{HERE}:{line}",
        "x[t + 1] = x[t] + 1",
        "(3 times)",
    ):
        assert part in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.findings) == (text, caught.value.findings)


def test_different_values_in_one_element_race_and_equal_ones_do_not() -> None:
    def writes(flag, value, equal):
        t = cuda.threadIdx.x
        flag[0] = 1 if equal else t
        value[0] = np.nan if equal else t  # different values

    assert findings_of(writes, 1, 8, np.zeros(1), np.zeros(1), True) == ()
    findings = findings_of(writes, 1, 8, np.zeros(1), np.zeros(1), False)
    assert [finding.array for finding in findings] == ["flag", "value"]
    assert accesses(findings[1]) == [
        (what, t, line_of("different values")) for what, t in (("write", 0), ("write", 1))
    ]
    assert "cuda.atomic" in findings[0].advice


def test_atomics_race_with_plain_accesses_only() -> None:
    def counts(n, mode):
        if mode == 1 and cuda.threadIdx.x == 0:
            n[0] = 5
        if mode < 3:
            cuda.atomic.add(n, 0, 1)
        if mode == 2 and n[0] > 100:
            n[1] = 1
        if mode == 3:
            cuda.atomic.max(n, 0, 2)
            cuda.syncthreads()
            n[1] = n[0]

    assert findings_of(counts, 1, 8, np.zeros(2, np.int32), 0) == ()
    assert {a.what for a in the_one(counts, 1, 8, np.zeros(2, np.int32), 1).accesses} == {
        "write",
        "atomic",
    }
    assert {a.what for a in the_one(counts, 1, 8, np.zeros(2, np.int32), 2).accesses} == {
        "read",
        "atomic",
    }
    assert findings_of(counts, 1, 8, np.zeros(2, np.int32), 3) == ()


def test_syncwarp_orders_its_own_lanes_only() -> None:
    def halves(out, mask):
        s = cuda.shared.array(64, float64)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp(mask if cuda.laneid < 16 else FULL ^ mask)
        out[t] = s[t ^ 1] + s[t ^ 17]

    same = the_one(halves, 1, 32, np.zeros(32), 0xFFFF)
    first, second = (access.thread[0] for access in same.accesses)
    assert first // 16 != second // 16
    assert "syncwarp" in same.advice

    def across(out):
        s = cuda.shared.array(64, float64)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp()
        out[t] = s[t ^ 32]

    assert "syncwarp" not in the_one(across, 1, 64, np.zeros(64)).advice


def test_syncwarp_orders_through_other_lanes() -> None:
    def relay(out):
        s = cuda.shared.array(1, float64)
        lane = cuda.laneid
        if lane == 0:
            s[0] = 7.0
        if lane < 2:
            cuda.syncwarp(0b011)
        if lane > 0:
            cuda.syncwarp(0b110)
        if lane == 2:
            out[0] = s[0]

    assert findings_of(relay, 1, 3, np.zeros(1)) == ()


def test_shuffles_do_not_order_memory() -> None:
    def shuffles(out):
        s = cuda.shared.array(32, float64)
        lane = cuda.laneid
        s[lane] = lane
        cuda.shfl_sync(FULL, lane, 0)
        out[lane] = s[31 - lane]

    assert the_one(shuffles, 1, 32, np.zeros(32)).array == "s"


def test_blocks_race_unless_the_grid_waits() -> None:
    def shifts(x, out, wait):
        i = cuda.grid(1)
        x[i] = i  # written by one block
        if wait:
            cuda.cg.this_grid().sync()
        out[i] = x[(i + 4) % 8]  # read by another

    assert findings_of(shifts, 2, 4, np.zeros(8), np.zeros(8), True) == ()
    finding = the_one(shifts, 2, 4, np.zeros(8), np.zeros(8), False)
    assert accesses(finding) == [
        ("read", 0, line_of("read by another")),
        ("write", 0, line_of("written by one block")),
    ]
    assert [access.block for access in finding.accesses] == [(0, 0, 0), (1, 0, 0)]
    assert "blocks run in any order" in finding.advice


def test_blocks_that_fence_are_left_alone_but_their_threads_are_not() -> None:
    def last_block(partial, done, out, barrier):
        s = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            partial[cuda.blockIdx.x] = cuda.blockIdx.x + 1.0
            cuda.threadfence()
            s[0] = cuda.atomic.add(done, 0, 1)
        if barrier:
            cuda.syncthreads()
        if s[0] == cuda.gridDim.x - 1 and t == 0:
            out[0] = partial[0] + partial[1] + partial[2]

    out = np.zeros(1)
    simt.check(last_block)[3, 8](np.zeros(3), np.zeros(1, np.int32), out, True)
    assert out[0] == 6.0
    assert the_one(last_block, 3, 8, np.zeros(3), np.zeros(1, np.int32), out, False).array == "s"


def test_a_lock_with_fences_orders_its_holders() -> None:
    def locked(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1.0
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    total = np.zeros(1)
    simt.check(locked)[2, 8](np.zeros(1, np.int32), total)
    assert total[0] == 16.0


def test_views_and_names_of_one_array_share_its_elements() -> None:
    def through_views(a, same):
        t = cuda.threadIdx.x
        a.T[t, 1] = t
        row = a[1]
        same[1:][0, 3 - t] += row[2]

    a = np.zeros((2, 4))
    findings = findings_of(through_views, 1, 4, a, a)
    assert {finding.index[0] for finding in findings} == {1}
    assert {finding.array for finding in findings} <= {"a", "same"}
    assert len(findings) >= 2

    def apart(a, b):
        t = cuda.threadIdx.x
        b[t] = a[3 - t]

    base = np.zeros((4, 2))
    assert findings_of(apart, 1, 4, base[:, 0], base[:, 1]) == ()
    assert {finding.error for finding in findings_of(apart, 1, 4, base[:, 0], base[:, 0])} == {
        RaceError
    }


def test_loops_over_arrays_end_with_them() -> None:
    def loops(x, out):
        t = cuda.threadIdx.x
        for i, (v, w) in enumerate(zip(x, x[1:])):  # noqa: B905, RUF007  # what Numba knows
            out[t, i] = v + w
        for row in out:
            if t == 1:
                row[t] = 0

    out = np.zeros((2, 3))
    finding = the_one(loops, 1, 2, np.arange(4.0), out)
    assert (finding.array, finding.index) == ("out", (0, 1))
    np.testing.assert_array_equal(out, [[1, 0, 5], [1, 0, 5]])


def test_fields_of_records_are_elements_of_their_own() -> None:
    kind = np.dtype([("a", np.float64), ("b", np.int32)], align=True)

    def fields(r, same):
        t = cuda.threadIdx.x
        if t == 0:
            r[0].a = 1.0
        else:
            r[0]["b" if not same else "a"] = 2

    assert findings_of(fields, 1, 2, np.zeros(1, kind), False) == ()
    assert the_one(fields, 1, 2, np.zeros(1, kind), True).index == (0,)

    def whole(r):
        t = cuda.threadIdx.x
        r[1] = r[0]
        if t == 1:
            r[1].b = 5

    assert the_one(whole, 1, 2, np.zeros(2, kind)).array == "r"


def test_races_may_be_left_out() -> None:
    assert findings_of(neighbours, 1, 4, np.arange(5.0), races=False) == ()


# ---- bounds, divergence, uninitialized memory


def test_the_launch_goes_on_after_an_index_outside() -> None:
    def shifted(x, out):
        i = cuda.grid(1)
        out[i] = x[i + 2] + 1  # too far to the right

    out = np.full(4, -1.0)
    with pytest.raises(BoundsError) as caught:
        simt.check(shifted)[1, 6](np.arange(4.0), out)
    reads, writes = caught.value.findings
    assert (reads.array, reads.index, reads.times) == ("x", (4,), 4)
    assert accesses(reads) == [("read", 2, line_of("too far to the right"))]
    assert (writes.array, writes.index, writes.times) == ("out", (4,), 2)
    np.testing.assert_array_equal(out, [3, 4, 1, 1])
    assert "2 findings" in str(caught.value)


def test_threads_that_miss_a_barrier() -> None:
    def leaves(x):
        t = cuda.threadIdx.x
        if t >= 6:
            return
        cuda.syncthreads()  # missed by two
        x[t] = t

    finding = the_one(leaves, 1, 8, np.zeros(8))
    assert finding.error is DivergenceError
    assert accesses(finding) == [("waits", 0, line_of("missed by two")), ("ended", 6, 0)]
    assert findings_of(leaves, 1, 8, np.zeros(8), early_returns=False) == ()

    def branches(x):
        if cuda.threadIdx.x % 2:
            cuda.syncthreads()  # odd threads
        else:
            cuda.syncthreads()  # even threads
        x[cuda.threadIdx.x + 8] = 1

    finding = the_one(branches, 1, 8, np.zeros(8))
    assert accesses(finding) == [
        ("waits", 0, line_of("even threads")),
        ("waits", 1, line_of("odd threads")),
    ]


def test_other_blocks_go_on_after_threads_that_cannot_meet() -> None:
    def parts(x):
        if cuda.blockIdx.x == 0:
            if cuda.threadIdx.x % 2:
                cuda.syncthreads()
            else:
                cuda.syncthreads()
        x[cuda.grid(1)] = 1
        x[cuda.grid(1) + 1 + cuda.blockIdx.x] = 1  # outside in the last block

    x = np.zeros(16)
    findings = findings_of(parts, 2, 8, x, races=False)
    assert [finding.error for finding in findings] == [DivergenceError, BoundsError]
    assert accesses(findings[1]) == [("write", 6, line_of("outside in the last block"))]
    np.testing.assert_array_equal(x, [0] * 8 + [1] * 8)


def test_other_lanes_go_on_after_one_that_is_not_in_the_mask() -> None:
    def votes(x):
        lane = cuda.laneid
        x[lane] = cuda.ballot_sync(0xFE, lane > 0)

    x = np.zeros(8)
    finding = the_one(votes, 1, 8, x)
    assert (finding.error, [access.thread[0] for access in finding.accesses]) == (
        DivergenceError,
        [0],
    )
    np.testing.assert_array_equal(x, [0] + [0xFE] * 7)


def test_what_was_found_before_an_end_is_told() -> None:
    def ends_badly(x, how):
        t = cuda.threadIdx.x
        x[t + 2] = 1  # found before
        if how and t == 1:
            raise ValueError("enough")
        if t:
            cuda.syncthreads()
        else:
            cuda.syncwarp(1)
            cuda.syncthreads()

    with pytest.raises(BoundsError) as caught:
        simt.check(ends_badly)[1, 4](np.zeros(3), False)
    assert [finding.error for finding in caught.value.findings] == [BoundsError, DivergenceError]
    with pytest.raises(ValueError, match="earlier findings:\nindex \\[3\\] is outside"):
        simt.check(ends_badly)[1, 4](np.zeros(3), True)


def adds_to_one_element(x, total):
    total[0] += x[cuda.grid(1)]


def adds_on_the_line_of_its_condition(x, total):
    if cuda.grid(1) < x.size: total[0] += x[cuda.grid(1)]  # fmt: skip  # noqa: E701


def adds_in_two_dimensions(x, total):
    total[0, x.size - x.size] = total[0, x.size - x.size] + 2 * x[cuda.grid(1)]


def subtracts_from_shared(x, total):
    s = cuda.shared.array(1, float64)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cuda.syncthreads()
    s[0] -= x[cuda.grid(1)]
    cuda.syncthreads()
    total[0] = s[0]


@pytest.mark.parametrize(
    ("kernel", "grid", "shape", "call"),
    [
        (adds_to_one_element, 1, 1, "cuda.atomic.add(total, 0, x[cuda.grid(1)])"),
        (adds_to_one_element, 2, 1, "cuda.atomic.add(total, 0, x[cuda.grid(1)])"),
        (
            adds_in_two_dimensions,
            1,
            (1, 1),
            "cuda.atomic.add(total, (0, x.size - x.size), 2 * x[cuda.grid(1)])",
        ),
        (subtracts_from_shared, 1, 1, "cuda.atomic.sub(s, 0, x[cuda.grid(1)])"),
        (adds_on_the_line_of_its_condition, 1, 1, "cuda.atomic.add(total, 0, x[cuda.grid(1)])"),
    ],
)
def test_the_advice_for_sums_is_an_atomic_operation(
    kernel: Any, grid: int, shape: Any, call: str
) -> None:
    findings = findings_of(kernel, grid, 8, np.arange(8.0 * grid), np.zeros(shape))
    assert findings
    assert {finding.advice for finding in findings} == {
        f"several threads change one element: write {call}"
    }


def test_the_advice_for_one_line_is_no_barrier_within_it() -> None:
    def largest(x, total):
        total[0] = max(total[0], x[cuda.grid(1)])

    findings = findings_of(largest, 1, 8, np.arange(8.0), np.zeros(1))
    assert findings
    assert all("use cuda.atomic" in finding.advice for finding in findings)


def test_memory_that_nothing_was_written_to() -> None:
    def reads(out, n):
        t = cuda.threadIdx.x
        s = cuda.shared.array(8, float32)
        mine = cuda.local.array(4, int32)
        if t < n:
            s[t] = t
        mine[0] = t
        cuda.syncthreads()
        out[t] = s[7 - t]  # not all written
        out[t] += mine[1 - n % 2]  # beside it

    findings = findings_of(reads, 2, 8, np.zeros(8), 7, races=False)
    assert [(finding.error, finding.array, finding.index) for finding in findings] == [
        (UninitializedError, "s", (7,))
    ]
    assert accesses(findings[0]) == [("read", 0, line_of("not all written"))]
    findings = findings_of(reads, 1, 8, np.zeros(8), 8)
    assert [(finding.array, finding.index, finding.times) for finding in findings] == [
        ("mine", (1,), 8)
    ]
    assert findings_of(reads, 1, 8, np.zeros(8), 8, uninitialized=False) == ()


def neighbour_of_tile(x, out, n):
    tile = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    total = tile[t] + tile[(t + 1) % 8]  # of all threads
    if i < n:
        out[i] = total


def neighbour_of_dynamic_tile(x, out, n):
    tile = cuda.shared.array(0, float64)
    i = cuda.grid(1)
    if i < x.size:
        tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    kept = tile[cuda.threadIdx.x]
    kept = kept * 2 if i < n else -1.0
    if i < n:
        out[i] = kept


def neighbour_of_window(x, out, n):
    window = cuda.local.array(4, int32)
    i = cuda.grid(1)
    for k in range(4):
        if i + k < x.size:
            window[k] = int32(x[i + k] * 100)
    found = 0
    for k in range(4):
        inside = window[k] > 0 and i + k < n
        found += 1 if inside else 0
    if i < out.size:
        out[i] = found


@pytest.mark.parametrize(
    "kernel", [neighbour_of_tile, neighbour_of_dynamic_tile, neighbour_of_window]
)
def test_elements_that_nothing_was_written_to_and_whose_value_is_not_used(kernel: Any) -> None:
    x = np.random.default_rng(0).random(13)
    outs = [np.zeros(13), np.zeros(13)]
    assert findings_of(kernel, 2, 8, x, outs[0], 12, smem=64) == ()
    simt.jit(kernel)[2, 8, 0, 64](x, outs[1], 12)
    np.testing.assert_array_equal(*outs)
    finding = the_one(kernel, 2, 8, x[:11], np.zeros(13), 12, smem=64)
    assert finding.error is UninitializedError


def smallest(x, out):
    s = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    if t < x.size:
        s[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        best = s[0]
        for k in range(1, 8):
            best = min(best, s[k])
        out[0] = best


def largest(x, out):
    s = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    if t < x.size:
        s[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        best = s[0]
        for k in range(1, 8):
            best = max(best, s[k])
        out[0] = best


@pytest.mark.parametrize("kernel", [smallest, largest])
def test_extremes_of_elements_that_nothing_was_written_to(kernel: Any) -> None:
    """With NaN, and with numbers of one sign, the result is the same by chance."""
    assert the_one(kernel, 1, 8, np.linspace(0.2, 0.8, 5), np.zeros(1)).error is UninitializedError


def test_dynamic_memory_may_be_read_as_another_type() -> None:
    def bytes_of(out):
        t = cuda.threadIdx.x
        words = cuda.shared.array(0, int32)
        octets = cuda.shared.array(0, np.uint8)
        words[t] = 0x01020304
        cuda.syncthreads()
        out[t] = octets[4 * t + 1]

    out = np.zeros(4, np.int32)
    simt.check(bytes_of)[1, 4, 0, 16](out)
    np.testing.assert_array_equal(out, 3)
    finding = findings_of(bytes_of, 1, 4, np.zeros(4, np.int32), smem=8)[0]
    assert (finding.error, finding.array) == (BoundsError, "words")


def test_lists_no_more_than_twenty_findings_each_once() -> None:
    assert MANY.count("\n") > 25
    names: dict[str, Any] = {"cuda": cuda}
    linecache.cache["<many>"] = (len(MANY), None, MANY.splitlines(keepends=True), "<many>")
    exec(compile(MANY, "<many>", "exec"), names)
    findings = findings_of(names["many"], 1, 4, np.zeros(1))
    assert len(findings) == 20
    assert {finding.times for finding in findings} == {4}


MANY = "def many(x):\n    i = cuda.grid(1)\n" + "    x[i + 1] = 1\n" * 25


def test_an_access_reads_well() -> None:
    access = Access("write", (1, 2, 3), (4, 5, 6), "kernel", HERE, 1)
    assert str(access).startswith(
        f"write  threadIdx=(1, 2, 3) blockIdx=(4, 5, 6) in kernel ({HERE}:1)\n"
    )
    with open(HERE, encoding="utf-8") as file:
        assert str(access).endswith(file.readline().strip())
    assert repr(simt.check(neighbours)).startswith("<simt.check of neighbours (")


# ---- exceptions that a thread raises


def neighbours_then(x, out, y, i):
    t = cuda.threadIdx.x
    x[t + 1] = x[t] + 1  # race before a fault
    if t < 5:
        value = y[t]
    out[t] = value  # unassigned in some threads


def unassigned(x, out, y, i):
    t = cuda.threadIdx.x
    if t < 5:
        value = y[t]
    out[t] = value  # fault UnboundLocalError


def nan_index(x, out, y, i):
    t = cuda.threadIdx.x
    out[t] = x[int(y[t])]  # fault ValueError


def float_index(x, out, y, i):
    t = cuda.threadIdx.x
    out[t] = x[y[t]]  # fault IndexError


def integer_division(x, out, y, i):
    t = cuda.threadIdx.x
    out[t] = 6 // i[t]  # fault ZeroDivisionError


def infinite_integer(x, out, y, i):
    t = cuda.threadIdx.x
    out[t] = int(1e308 * (y[t] + 10.0))  # fault OverflowError


def adds_none(x, out, y, i):
    t = cuda.threadIdx.x
    out[t] = x[t] + None  # fault TypeError


@pytest.mark.parametrize(
    ("kernel", "y", "times"),
    [
        (unassigned, 0.0, 3),
        (nan_index, np.nan, 8),
        (float_index, 0.5, 8),
        (integer_division, 0.0, 8),
        (infinite_integer, 10.0, 8),
        (adds_none, 0.0, 8),
    ],
)
def test_an_exception_of_a_thread_is_a_finding(kernel: Any, y: float, times: int) -> None:
    mark = next(
        line
        for line in linecache.getlines(HERE)[kernel.__code__.co_firstlineno :]
        if "# fault" in line
    )
    name = mark.split()[-1]
    arrays = np.zeros(9), np.zeros(8), np.full(8, y), np.zeros(8, np.int64)
    with np.errstate(all="ignore"):
        finding = the_one(kernel, 1, 8, *arrays)
    assert finding.error is KernelCheckError
    assert finding.summary.startswith(f"{name}: ")
    what = "read" if kernel is unassigned else "raises"
    assert accesses(finding) == [(what, 8 - times, line_of(f"fault {name}"))]
    assert finding.times == times


def test_an_unassigned_variable_that_does_not_matter_is_a_warning() -> None:
    def sums(x, out, all_of_them):
        t = cuda.threadIdx.x
        if t < 5:
            value = x[t]  # in some threads
        got = cuda.shfl_down_sync(FULL, value, 1)  # of the others, too
        if t < 4 or (all_of_them and t < 7):
            out[t] = got

    x, out = np.arange(8.0), np.zeros(8)
    with pytest.warns(
        simt.KernelCheckWarning, match="warning: UnboundLocalError: the variable value is read"
    ) as caught:
        simt.check(sums)[1, 8](x, out, False)
    (finding,) = caught[0].message.findings
    assert accesses(finding) == [("read", 5, line_of("of the others, too"))]
    assert (finding.times, finding.is_warning) == (3, True)
    assert caught[0].filename == HERE
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 0, 0, 0, 0])
    finding, _ = findings_of(sums, 1, 8, x, out, True)  # the other: lane 7 shuffles from no lane
    assert (finding.error, finding.is_warning) == (KernelCheckError, False)


def test_a_fraction_in_an_array_of_ints_is_a_warning() -> None:
    def cuts_off(x, out, total):
        t = cuda.threadIdx.x
        out[t] = x[t] / 2  # cut off
        cuda.atomic.add(total, 0, 0.5 * x[t])  # as well

    out, total = np.zeros(4, np.int64), np.zeros(1, np.int32)
    with pytest.warns(simt.KernelCheckWarning, match="0.5 is stored in the array out") as caught:
        simt.check(cuts_off)[1, 4](np.arange(4), out, total)
    first, second = caught[0].message.findings
    assert accesses(first) == [("write", 1, line_of("cut off"))]
    assert accesses(second) == [("atomic", 1, line_of("as well"))]
    assert "float64" in first.advice
    simt.check(cuts_off)[1, 4](2 * np.arange(4), out, total)


def test_an_unassigned_variable_that_decides_is_an_error() -> None:
    def decides(x, out):
        t = cuda.threadIdx.x
        for i in range(int(x[t])):
            last = i
        if last > 100:
            out[10] = 1

    finding = the_one(decides, 1, 4, np.array([0.0, 1, 2, 3]), np.zeros(1))
    assert (finding.error, finding.is_warning) == (KernelCheckError, False)
    assert accesses(finding)[0][:2] == ("read", 0)


def test_a_variable_that_an_earlier_turn_of_a_loop_assigned_is_assigned() -> None:
    def turns(x, out):
        t = cuda.threadIdx.x
        for i in range(4):
            if i % 2 == 0:
                before = i
            else:
                x[t] += before + 0.5
        while True:
            if x[t] > 1:
                end = x[t]
                break
            x[t] += 1
        out[t] = end + before

    out = np.zeros(2)
    assert findings_of(turns, 1, 2, np.zeros(2), out) == ()
    np.testing.assert_array_equal(out, [5, 5])


def test_an_exception_does_not_hide_what_was_found_before() -> None:
    with pytest.raises(RaceError) as caught:
        simt.check(neighbours_then)[1, 8](
            np.zeros(9), np.zeros(8), np.zeros(8), np.zeros(8, np.int64)
        )
    race, fault = caught.value.findings
    assert (race.error, race.array) == (RaceError, "x")
    assert accesses(fault) == [("read", 5, line_of("unassigned in some threads"))]
    assert "UnboundLocalError" in str(caught.value)
    assert "(3 times)" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).findings == caught.value.findings


def test_the_launch_goes_on_after_an_exception() -> None:
    def waits(x, out):
        s = cuda.shared.array(4, float64)
        t = cuda.threadIdx.x
        s[t] = t
        if t == 1:
            out[0] = 1 // int(x[t])  # division before a barrier
        cuda.syncthreads()
        v = cuda.shfl_xor_sync(FULL, t, 1)
        cuda.cg.this_grid().sync()
        out[t] = s[t] + v
        out[t + 3] = 1  # outside after it

    out = np.zeros(6)
    findings = findings_of(waits, 1, 4, np.zeros(4), out, races=False, uninitialized=False)
    assert [finding.error for finding in findings] == [KernelCheckError, BoundsError]
    assert accesses(findings[0]) == [("raises", 1, line_of("division before a barrier"))]
    assert accesses(findings[1]) == [("write", 3, line_of("outside after it"))]
    assert out[2] == 2 + 3


def test_different_exceptions_on_one_line_are_two_findings() -> None:
    def two(x, i):
        t = cuda.threadIdx.x
        x[t] = 1 // i[t] if t < 2 else int(x[t])

    findings = findings_of(two, 1, 4, np.full(4, np.nan), np.zeros(4, np.int64))
    assert [(finding.summary.split(":")[0], finding.times) for finding in findings] == [
        ("ZeroDivisionError", 2),
        ("ValueError", 2),
    ]


def raising(v):
    if v > 1:
        raise ValueError("of the user")
    return v


def test_raise_and_assert_keep_their_exception() -> None:
    helper = cuda.jit(device=True)(raising)

    def asserts(x):
        assert x[cuda.threadIdx.x] > 0, "not positive"

    def raises(x):
        x[0] = helper(x[cuda.threadIdx.x])

    with pytest.raises(AssertionError, match="not positive") as caught:
        simt.check(asserts)[1, 4](np.array([1.0, 1.0, 0.0, 0.0]))
    assert "threadIdx=(2, 0, 0)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="of the user"):
        simt.check(raises, races=False)[1, 4](np.array([1.0, 1.0, 2.0, 0.0]))


def test_an_unsupported_call_is_refused_and_is_no_finding() -> None:
    def unsupported(x):
        waits = (cuda.syncthreads, 1)
        waits[0]()

    with pytest.raises(KernelError):
        simt.check(unsupported)[1, 4](np.zeros(4))


def test_threads_that_wait_in_a_loop_for_one_that_raised_do_not_hang() -> None:
    def locks(lock, x, i):
        x[0] = cuda.threadIdx.x  # race before a lock
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        x[1] = 1 // i[cuda.threadIdx.x]
        cuda.atomic.exch(lock, 0, 0)

    findings = findings_of(locks, 1, 4, np.zeros(1, np.int64), np.zeros(2), np.zeros(4, np.int64))
    assert [finding.error for finding in findings] == [KernelCheckError]
    assert findings[0].times == 1


def test_a_block_whose_threads_raised_is_not_missed_at_a_grid_barrier() -> None:
    def meets(x, i):
        x[cuda.grid(1)] = 1 // i[cuda.blockIdx.x]
        cuda.cg.this_grid().sync()
        x[cuda.grid(1)] += x[7 - cuda.grid(1)]
        cuda.cg.this_grid().sync()

    finding = the_one(meets, 2, 4, np.zeros(8), np.array([1, 0]), races=False)
    assert (finding.summary.split(":")[0], finding.times) == ("ZeroDivisionError", 4)


def test_showing_an_array_is_no_access() -> None:
    shown = []

    def shows(x):
        shown.append(f"{x} {x!r}")

    simt.check(shows)[1, 2](np.arange(3))
    assert shown == ["[0 1 2] Array([0, 1, 2])"] * 2


# ---- shuffles from lanes that do not take part


def shuffles_down(out, n, used):
    t = cuda.threadIdx.x
    if t < n:
        v = cuda.shfl_down_sync(FULL, float32(t), 1)  # down
        out[t] = v if t < used else 0


def shuffles_from(out, lane, mask):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_sync(mask, t, lane)  # from
    else:
        out[t] = cuda.shfl_xor_sync(0xFFFF0000, t, 1)


def test_a_shuffle_from_a_lane_that_has_ended() -> None:
    out = np.zeros(32)
    finding = the_one(shuffles_down, 1, 32, out, 16, 16)
    assert finding.error is UninitializedError
    assert "lane 15 shuffles from lane 16, which does not take part" in finding.summary
    assert accesses(finding) == [("read", 15, line_of("down"))]
    np.testing.assert_array_equal(out[:16], [*range(1, 16), 15])
    assert findings_of(shuffles_down, 1, 32, out, 32, 32) == ()  # of lane 31, it is its own value
    assert findings_of(shuffles_down, 1, 32, out, 16, 16, uninitialized=False) == ()


def test_a_shuffle_from_a_lane_that_has_ended_whose_value_is_not_used_is_no_finding() -> None:
    # a warning would be an error of this test
    assert findings_of(shuffles_down, 1, 32, np.zeros(32), 16, 15) == ()


def test_a_shuffle_from_a_lane_beside_the_mask_or_the_block() -> None:
    assert findings_of(shuffles_from, 1, 32, np.zeros(32), 7, 0xFFFF) == ()
    finding = the_one(shuffles_from, 1, 32, np.zeros(32), 20, 0xFFFF)
    assert (finding.error, finding.times) == (UninitializedError, 16)
    assert the_one(shuffles_down, 1, 20, np.zeros(20), 20, 20).times == 1
