"""`simt.check` in compiled code: it finds what Python finds, and takes over from it."""

import ctypes
import itertools
import linecache
import sys
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba import complex64, cuda, float32, float64, int32
from numba.cuda.random import (
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_uniform_float32,
)

from synknumba import simt
from synknumba._errors import (
    BoundsError,
    Finding,
    KernelCheckError,
    KernelError,
    RaceError,
    UninitializedError,
)
from synknumba.simt._checker import check as check_module
from synknumba.simt._checker import compiled, layout, runtime
from synknumba.simt._checker.instrument import KINDS
from synknumba.simt._checker.integer_code import compile_functions
from synknumba.simt._python.run import DebugLaunch

FULL = 0xFFFFFFFF


def findings_of(
    kernel: Any, grid: Any, block: Any, *args: Any, by: bool | None, smem: int = 0
) -> tuple[Finding, ...]:
    try:
        simt.check(kernel, compiled=by)[grid, block, 0, smem](*args)
    except KernelCheckError as error:
        return error.findings
    return ()


def both(kernel: Any, grid: Any, block: Any, *args: Any, smem: int = 0) -> tuple[Finding, ...]:
    """The findings, which are the same in Python and in compiled code, as are the arrays behind."""
    results = []
    for by in (False, True):
        given = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
        results.append((findings_of(kernel, grid, block, *given, by=by, smem=smem), given))
    (first, arrays), (second, others) = results
    # The order of threads in reverse adds pairs of accesses.
    assert first == second[: len(first)]
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(one, other)
    return second


def parts_of_arrays(x, out, wrong):
    s = cuda.shared.array((4, 8), float32)
    mine = cuda.local.array(6, float64)
    t = cuda.threadIdx.x
    mine[:] = 0.0
    mine[2:4] = 1.5
    s[t, :] = t
    if not wrong:
        cuda.syncthreads()
    row = s[3 - t]
    out[t, :8] = row
    out[t, 8:] = mine[1:5]
    row[wrong] = x[t, -1]


@pytest.mark.whole  # Numba compiles assignments of arrays to parts for seconds
def test_parts_of_arrays() -> None:
    x, out = np.arange(12.0).reshape(4, 3), np.zeros((4, 12), np.float32)
    kinds = {finding.error for finding in both(parts_of_arrays, 1, 4, x, out, 1)}
    assert RaceError in kinds


def test_assignments_to_parts() -> None:
    def all_set(flags, different):
        flags[1:3] = 7 if not different else cuda.threadIdx.x

    assert both(all_set, 1, 4, np.zeros(4), False) == ()
    assert {finding.index for finding in both(all_set, 1, 4, np.zeros(4), True)} == {(1,)}


def test_rows_outside() -> None:
    def beside(a):
        a[cuda.threadIdx.x, 1:] = 3.0
        a[0, 0] = a[cuda.threadIdx.x + 2][1]

    findings = both(beside, 1, 3, np.zeros((3, 4)))
    assert [(finding.error, finding.index) for finding in findings[:2]] == [
        (BoundsError, (3,)),
        (RaceError, (2, 1)),
    ]


def test_the_else_of_a_loop() -> None:
    def behind(a):
        for k in range(2):
            if k > 2:
                break
        else:
            a[cuda.threadIdx.x + 3] = 1.0

    findings = both(behind, 1, 2, np.zeros(4))
    assert [(finding.error, finding.index) for finding in findings] == [(BoundsError, (4,))]


POINT = np.dtype([("x", np.float32), ("flags", np.uint8), ("y", np.float64)])


def test_records_and_complex_numbers() -> None:
    def moves(points, single, z, barrier):
        s = cuda.shared.array(4, complex64)
        t = cuda.threadIdx.x
        s[t] = z[t] * 1j
        p = points[t]
        p.x += single.x
        points[t].y = p.x
        if barrier:
            cuda.syncthreads()
        z[t] = s[3 - t]
        points[3 - t].flags = t
        points[3 - t].y += 1

    points, single = np.ones(4, POINT), np.ones(1, POINT)[0]
    z = np.arange(4) + 0j
    assert both(moves, 1, 4, points, single, z, True) == ()
    assert {finding.array for finding in both(moves, 1, 4, points, single, z, False)} == {
        "s",
        "points",
    }

    def swaps(points):
        t = cuda.threadIdx.x
        points[t] = points[1 - t]

    (finding,) = both(swaps, 1, 2, points)
    assert (finding.error, finding.array, finding.index) == (RaceError, "points", (0,))


ROW = np.dtype(
    [
        ("p", np.float32, (4,)),
        ("q", np.int32),
        ("inner", [("x", np.float64), ("n", np.int32, (2,))]),
    ]
)


def test_arrays_and_records_in_records() -> None:
    def moves(rows, out, k):
        t = cuda.threadIdx.x
        rows[0].p[t % (4 - k)] = t
        cuda.syncthreads()
        rows[t].inner.x = rows[t]["q"] + 0.5
        rows[t]["inner"].n[1] = rows[t].q + 1
        rows["p"][t, 1] += rows.q[t]
        cuda.atomic.add(rows[0].inner.n, 0, t)
        mine = rows[t].p
        out[t] = mine[2] + mine.size
        if k:
            out[t + 3] = rows[t].p[3 + k]

    rows = np.zeros(4, ROW)
    rows["q"] = range(4)
    assert both(moves, 1, 4, rows, np.zeros(4), 0) == ()
    findings = {
        (finding.error, finding.array) for finding in both(moves, 1, 4, rows, np.zeros(4), 1)
    }
    assert findings == {
        (RaceError, "rows"),
        (BoundsError, "rows"),
        (BoundsError, "out"),
        (RaceError, "out"),
    }


@pytest.mark.whole
def test_assignments_to_arrays_in_records() -> None:
    def sets(rows, different):
        t = cuda.threadIdx.x
        rows[t].p[1:3] = t
        rows[3 - t].inner.n[:] = 5
        rows[0].p[3:] = t * different

    rows = np.zeros(4, ROW)
    assert both(sets, 1, 4, rows, 0) == ()
    assert {finding.index for finding in both(sets, 1, 4, rows, 1)} == {(0,)}


CONSTANT_ROWS = np.zeros(2, ROW)


@pytest.mark.parametrize("further", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_read_only_records(*, further: bool) -> None:
    def field(rows):
        rows[0].q += 9

    def element(rows):
        rows[0].p[1] = 9

    def nested(rows):
        rows[0].inner.x = 9

    def part(rows):
        rows[1].p[1:] = 9

    def added(rows):
        cuda.atomic.add(rows[0].inner.n, 1, 1)

    def constant(rows):
        CONSTANT_ROWS[0].q = 9 + rows.size

    rows = np.zeros(2, ROW)
    rows.setflags(write=False)
    for kernel in (nested, part, added) if further else (field, element, constant):
        (finding,) = findings_of(kernel, 1, 2, rows, by=False)
        assert (finding.summary, finding.times) == (
            "ValueError: assignment destination is read-only",
            2,
        )
        assert findings_of(kernel, 1, 2, rows, by=True) == (finding,)
    assert rows.tobytes() == CONSTANT_ROWS.tobytes() == bytes(rows.nbytes)


def test_read_only_records_beside_others_stay_in_python() -> None:
    with pytest.raises(
        KernelError, match=r"read-only records that overlap writeable arrays \(rows, whole\)"
    ):
        simt.check(lambda rows, whole: rows.size, compiled=True)[1, 1](*overlapping_read_only())
    findings = findings_of(_writes_both, 1, 1, *overlapping_read_only(), by=None)
    assert [finding.summary for finding in findings] == [
        "ValueError: assignment destination is read-only"
    ]


def overlapping_read_only() -> tuple[Any, Any]:
    whole = np.zeros(2, ROW)
    rows = whole[:]
    rows.setflags(write=False)
    return rows, whole


def _writes_both(rows, whole):
    whole[0].q = 1
    rows[0].q = 2


@pytest.mark.whole
def test_random_numbers_need_a_state_that_can_be_written() -> None:
    def draws(states, out):
        out[0] = xoroshiro128p_uniform_float32(states, 0)

    states = np.zeros(1, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 1, 0)
    states.setflags(write=False)
    with pytest.raises(KernelError, match="Cannot modify readonly array"):
        simt.check(draws, compiled=True)[1, 1](states, np.zeros(1, np.float32))


def test_a_record_outside_is_zeros_and_may_be_set() -> None:
    def outside(rows, out):
        row = rows[5]
        row.q = 7
        out[0] = rows[5].q + out[3]

    out = np.ones(3)
    for by in (False, True):
        findings = findings_of(outside, 1, 1, np.zeros(2, ROW), out, by=by)
        assert {(finding.error, finding.array) for finding in findings} == {
            (BoundsError, "rows"),
            (BoundsError, "out"),
        }
        assert out[0] == 0


# ---- memory accessed as several types, and arguments that overlap


def crossing(a, b):
    t = cuda.threadIdx.x
    a[t] = 1
    b[7 - t] = 2


def crossing_rows(a, b):
    t = cuda.threadIdx.x
    a[t % 4, t // 4] = 1
    b[3 - t % 4, t // 4] = 2


def crossing_fields(a, b):
    t = cuda.threadIdx.x
    a[t].y = 1
    b[7 - t] = 2


def crossing_records(a, b):
    t = cuda.threadIdx.x
    a[t].x = 1
    b[7 - t].p = 2


PAIR = np.dtype([("p", np.int16), ("q", np.int32)])


def overlapping_arguments() -> dict[str, tuple[Any, Any, Any]]:
    """Kernels and two arguments of 8 elements or more, in the same 128 bytes or more of zeros."""
    z, x, i, p = np.zeros(8, "c16"), np.zeros(16), np.zeros(32, np.int32), np.zeros(9, POINT)
    grid = np.zeros((4, 4))
    return {
        "imaginary parts": (crossing, z, z.imag),
        "real and imaginary parts": (crossing, z.real, z.imag),
        "second halves": (crossing, x, x.view("i4")[1::2]),
        "first elements as halves": (crossing, x.view("i4")[:8], x[:8]),
        "bytes": (crossing, x[:8], x.view("u1")[3::8]),
        "shifted by one": (crossing, x, x[1:]),
        "shifted by half": (crossing, i[1:17].view("f8"), x.view("f8")),
        "shifted by half of the same": (crossing, i[1:17].view("f8"), i[:16].view("f8")),
        "backwards": (crossing, x[:8], x[7::-1]),
        "even and odd": (crossing, x[::2], x[1::2]),
        "apart": (crossing, x[:8], x[8:]),
        "rows": (crossing_rows, grid, grid.T),
        "columns": (crossing_rows, grid[:, :2], grid[:, 2:]),
        "parts of columns": (crossing_rows, grid[:, :2], grid.view("f4")[:, 3:6]),
        "a field": (crossing_fields, p[:8], p["y"][:8]),
        "another field": (crossing_fields, p[:8], p["x"][:8]),
        "bytes of a field": (crossing_fields, p[:8], p.view("u1")[10::13]),
        "records of another dtype": (crossing_records, p[:8], p.view("u1")[2:104].view(PAIR)),
    }


def elements(kernel: Any, a: Any, b: Any, t: int) -> tuple[Any, Any]:
    """What a thread of these kernels writes, as arrays."""
    if kernel is crossing_rows:
        return a[t % 4 : t % 4 + 1, t // 4], b[3 - t % 4 : 4 - t % 4, t // 4]
    field = {crossing_fields: "y", crossing_records: "x"}.get(kernel)
    one, other = a[t : t + 1], b[7 - t : 8 - t]
    return one[field] if field else one, other["p"] if kernel is crossing_records else other


def threads_overlap(kernel: Any, a: Any, b: Any) -> bool:
    written = [elements(kernel, a, b, t) for t in range(8)]
    return any(
        np.shares_memory(one, two)
        for t, (one, _) in enumerate(written)
        for u, (_, two) in enumerate(written)
        if t != u
    )


@pytest.mark.parametrize("name", overlapping_arguments())
@pytest.mark.parametrize("by", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_arguments_race_where_their_elements_share_bytes(name: str, *, by: bool) -> None:
    kernel, a, b = overlapping_arguments()[name]
    expected = {RaceError} if threads_overlap(kernel, a, b) else set()
    assert {finding.error for finding in findings_of(kernel, 1, 8, a, b, by=by)} == expected


def test_overlapping_arguments_race_in_some_cases_only() -> None:
    assert {threads_overlap(*case) for case in overlapping_arguments().values()} == {False, True}


def test_parts_of_complex_numbers() -> None:
    z = np.zeros(8, "c16")
    found = [findings_of(crossing, 1, 8, z, z.imag, by=by) for by in (False, True)]
    assert found[0] == found[1][: len(found[0])]
    assert {(finding.array, finding.index, finding.times) for finding in found[0]} == {
        ("a", (4,), 4),
        ("b", (3,), 4),
    }


def narrowed(out, x, wrong):
    s = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    halves = s.view(np.int32)
    s[t // 2] = 1.5
    cuda.syncthreads()
    halves[t - wrong] = t
    cuda.syncthreads()
    out.view(np.int32)[t] = halves[15 - t] + int(x.real[t // 2])
    out[0 if wrong else 8 + t] = s[wrong]


def test_views_of_a_narrower_dtype_race_by_their_bytes() -> None:
    out, x = np.zeros(24), np.ones(8, np.complex64)
    assert both(narrowed, 1, 16, out, x, 0) == ()
    findings = {
        (finding.error, finding.array, finding.index)
        for finding in both(narrowed, 1, 16, out, x, 1)
    }
    assert (RaceError, "out", (0,)) in findings


@pytest.mark.whole
def test_views_of_a_wider_dtype_race_by_their_bytes() -> None:
    def widened(out, wrong):
        t = cuda.threadIdx.x
        if t < 8:
            out.view(np.float64)[t] = 1.5
        else:
            out[t + 8 - wrong] = t

    assert both(widened, 1, 16, np.zeros(24, np.int32), 0) == ()
    (finding,) = both(widened, 1, 16, np.zeros(24, np.int32), 1)
    assert (finding.error, finding.index) == (RaceError, (15,))


def test_a_number_of_which_a_part_is_written() -> None:
    def half(out):
        s = cuda.shared.array(4, float64)
        mine = cuda.local.array(2, float64)
        s.view(np.int32)[2] = mine.view(np.int32)[0] = 1
        out[0] = s.view(np.int32)[2]
        out[1] = s[1]
        out[2] = mine[0]

    findings = both(half, 1, 1, np.zeros(3))
    assert {(finding.error, finding.array, finding.index) for finding in findings} == {
        (UninitializedError, "s", (1,)),
        (UninitializedError, "mine", (0,)),
    }


def test_memory_that_nothing_was_written_to() -> None:
    @cuda.jit(device=True)
    def last_of(values):
        mine = cuda.local.array(3, int32)
        mine[0] = values[0]
        return mine[values[0]]

    def reads(out, n):
        dynamic = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        if t < n:
            dynamic[t] = t % 2
        cuda.syncthreads()
        out[t] = last_of(dynamic[t:])

    findings = both(reads, 2, 8, np.zeros(8, np.int32), 6, smem=32)
    kinds = {(finding.error, finding.array, finding.index) for finding in findings}
    assert {(UninitializedError, "mine", (1,)), (UninitializedError, "dynamic", (6,))} <= kinds


def test_a_race_that_only_the_reverse_order_shows() -> None:
    def flag(x, out):
        t = cuda.threadIdx.x
        if t == 1:
            x[0] = 1.0
        if t == 0 and x[0] == 1.0:
            out[5] = 1.0

    findings = findings_of(flag, 1, 2, np.zeros(1), np.zeros(1), by=True)
    assert BoundsError in {finding.error for finding in findings}
    assert BoundsError not in {
        finding.error for finding in findings_of(flag, 1, 2, np.zeros(1), np.zeros(1), by=False)
    }


def raises_later(x):
    t = cuda.threadIdx.x
    x[t + 1] = x[t] + 1
    cuda.syncthreads()
    assert x[t] < 3, "too large"


def test_an_exception_of_the_kernel_tells_thread_line_and_findings() -> None:
    for by in (False, True):
        with pytest.raises(AssertionError, match="too large") as caught:
            simt.check(raises_later, compiled=by)[1, 4](np.arange(5.0))
        place, findings = caught.value.__notes__
        line = raises_later.__code__.co_firstlineno + 4
        assert (
            place == f"in raises_later ({__file__}:{line}), threadIdx=(3, 0, 0) blockIdx=(0, 0, 0)"
        )
        assert "race at index [1]" in findings


class Coloured:
    """How Numba writes where colorama is installed."""

    def __getattr__(self, kind: str) -> Any:
        return lambda text: f"{text}\x1b[0m"


@pytest.mark.parametrize("colours", [None, Coloured()], ids=["plain", "colours"])
def test_what_compiled_code_cannot_check_is_refused_with_the_reason(
    colours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.core.errors, "_termcolor_inst", colours)

    def prints(x):
        print(x[0])

    with pytest.raises(
        KernelError, match=r"prints \(.*cannot be checked in compiled code: a call of print\(\)"
    ):
        simt.check(prints, compiled=True)[1, 1](np.zeros(1))

    def over(x, out):
        for value in x:
            out[0] += value

    with pytest.raises(KernelError, match="accesses its elements unseen") as caught:
        simt.check(over, compiled=True)[1, 1](np.zeros(1), np.zeros(1))
    line = over.__code__.co_firstlineno
    assert f"over ({__file__}:{line}) cannot be checked" in str(caught.value)
    assert str(caught.value).endswith(f" unseen ({__file__}:{line + 1}); leave out compiled=True")


# ---- Python first


def many_accesses(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        out[i] += x[(i + k) % x.size]
    out[i + 1] = 1.0  # a race


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[str]:
    """The ways in which launches run, in order; the changeover is at once, and no kernel of
    other tests is kept.
    """
    ways: list[str] = []
    run_python, run_compiled = DebugLaunch.run, compiled.CompiledLaunch.run
    monkeypatch.setattr(
        DebugLaunch, "run", lambda self, args: (ways.append("python"), run_python(self, args))[1]
    )
    monkeypatch.setattr(
        compiled.CompiledLaunch,
        "run",
        lambda self: (ways.append("compiled"), run_compiled(self))[1],
    )
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_programs", type(compiled._programs)())
    return ways


def test_compiled_code_begins_again_with_the_arrays_as_they_were(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "PYTHON_SECONDS", 0.0)
    x, out = np.arange(8.0), np.zeros(9)
    with pytest.raises(RaceError):
        simt.check(many_accesses)[1, 8](x, out, 40)
    assert changes == ["python", "compiled", "compiled"]
    expected = np.zeros(9)
    for i in range(8):
        for k in range(40):
            expected[i] += x[(i + k) % 8]
        expected[i + 1] = 1.0
    np.testing.assert_array_equal(out, expected)


def test_short_launches_stay_in_python(changes: list[str]) -> None:
    findings_of(many_accesses, 1, 2, np.arange(8.0), np.zeros(9), 40, by=None)
    assert changes == ["python"]


def test_a_kernel_that_cannot_be_compiled_goes_on_in_python(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "PYTHON_SECONDS", 0.0)

    def over(x, out):
        for value in x:
            out[cuda.threadIdx.x] += value

    out = np.zeros(2)
    assert findings_of(over, 1, 2, np.ones(100), out, by=None) == ()
    assert changes == ["python"]
    np.testing.assert_array_equal(out, 100)


def test_a_debugger_keeps_a_launch_in_python(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "PYTHON_SECONDS", 0.0)
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        findings_of(many_accesses, 1, 8, np.arange(8.0), np.zeros(9), 40, by=None)
    finally:
        sys.settrace(before)
    assert changes == ["python"]


def test_what_takes_too_much_memory_goes_on_in_python(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "PYTHON_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "MOST_THREADS", 4)

    def meets(x):
        i = cuda.grid(1)
        for k in range(100):
            x[i] += k
        cuda.cg.this_grid().sync()
        x[i] += x[7 - i]

    assert {finding.error for finding in findings_of(meets, 2, 4, np.zeros(8), by=None)} == {
        RaceError
    }
    assert changes == ["python"]


@pytest.mark.parametrize("rounds", [1, 4])
def test_long_source_stays_in_python_for_as_long_as_compiling_takes(
    changes: list[str], monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    text = (
        "def long(x, rounds):\n    for k in range(rounds):\n"
        + "        y = x[cuda.grid(1)] + 1\n" * 200
    )
    linecache.cache["<long kernel>"] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        "<long kernel>",
    )
    scope: dict[str, Any] = {"cuda": cuda}
    exec(compile(text, "<long kernel>", "exec"), scope)
    ticks = itertools.count()
    # s, for 64 accesses
    monkeypatch.setattr(
        check_module, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.05)
    )
    monkeypatch.setattr(
        check_module._Launch, "can_be_compiled", lambda _: changes.append("compiling")
    )
    assert findings_of(scope["long"], 1, 8, np.zeros(8), rounds, by=None) == ()
    assert changes == ["python"] if rounds == 1 else ["python", "compiling"]


def test_code_on_disk_takes_over_early(changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.arange(8.0), np.zeros(9), 40
    findings = findings_of(many_accesses, 1, 8, *given, by=True)
    monkeypatch.setattr(compiled, "_programs", type(compiled._programs)())
    monkeypatch.setattr(check_module, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(compiled.CheckedProgram, "_build", None)  # fails if called
    changes.clear()
    assert findings_of(many_accesses, 1, 8, *given, by=None) == findings
    assert changes == ["python", "compiled", "compiled"]


STEP = 1


def test_a_changed_global_makes_another_kernel(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(x):
        x[cuda.threadIdx.x + STEP] = 1.0

    for step, count in ((1, 1), (3, 3)):
        monkeypatch.setitem(steps.__globals__, "STEP", step)
        (finding,) = findings_of(steps, 1, 4, np.zeros(4), by=True)
        assert finding.times == count


def test_ctrl_c_ends_a_launch_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def spins(x):
        while x[0] == 0:
            pass

    monkeypatch.setattr(compiled, "BUDGET", 1000)
    seen = []

    def interrupts(self: Any) -> None:
        seen.append(1)
        if len(seen) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(compiled.CompiledFindings, "drain", interrupts)
    with pytest.raises(KeyboardInterrupt):
        simt.check(spins, compiled=True)[1, 2](np.zeros(1))


def test_the_runtime_is_compiled_once() -> None:
    assert runtime.installed() is runtime.installed()


def test_parts_of_shapes_are_no_accesses() -> None:
    def sizes(x, out):
        planes, rows = x.shape[1:]
        out[cuda.threadIdx.x] = planes * rows + x.strides[-1]

    assert both(sizes, 1, 2, np.zeros((2, 3, 4)), np.zeros(2)) == ()


def test_elements_of_views_are_those_of_numpy() -> None:
    addresses, _library = compile_functions((runtime.element,), {})
    element = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(addresses["element"])
    view = np.zeros((5, 6, 7))[1:3, ::2, ::-1]
    sizes = np.array([*view.shape, *view.strides])
    for number, index in enumerate(np.ndindex(view.shape)):
        address = element(view.ctypes.data, view.ndim, sizes.ctypes.data, number)
        assert address == view[index[:-1]][index[-1] :].ctypes.data


def test_a_launch_in_reverse_order_that_never_ends_is_given_up() -> None:
    def waits(x, out):
        t = cuda.threadIdx.x
        if t == 0:
            x[0] = 1.0
        while t == 1 and x[0] == 0.0:
            pass

    assert {
        finding.error for finding in findings_of(waits, 1, 2, np.zeros(1), np.zeros(1), by=True)
    } == {RaceError}


@pytest.mark.whole
def test_threads_that_share_a_state_of_random_numbers_race() -> None:
    def draws(states, out, shared):
        t = cuda.threadIdx.x
        out[t] = xoroshiro128p_uniform_float32(states, t // 2 if shared else t)

    states = np.zeros(4, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 1, 0)
    out = np.zeros(8, np.float32)
    assert both(draws, 1, 4, states, out, False) == ()
    for by in (False, True):
        kinds = {
            (finding.error, finding.array)
            for finding in findings_of(draws, 1, 4, states, out, True, by=by)
        }
        assert kinds == {(RaceError, "states")}
    (finding,) = findings_of(draws, 1, 5, states, out, False, by=True)
    assert (finding.error, finding.index) == (BoundsError, (4,))


def test_warp_operations_of_the_runtime_are_those_of_python() -> None:
    names = {
        layout.SYNCTHREADS: "syncthreads",
        layout.SYNCWARP: "syncwarp",
        layout.SHFL: "shfl_sync",
        layout.EQ: "eq_sync",
    }
    names |= {
        layout.SHFL_UP: "shfl_up_sync",
        layout.SHFL_DOWN: "shfl_down_sync",
        layout.SHFL_XOR: "shfl_xor_sync",
    }
    names |= {layout.ALL: "all_sync", layout.ANY: "any_sync", layout.BALLOT: "ballot_sync"}
    assert {number: KINDS[number] for number in names} == names

    def asks(out, n):
        t = cuda.threadIdx.x
        lane = cuda.laneid
        if t < n:
            out[t, 0] = cuda.shfl_sync(FULL, t * 1.5, 40 - lane)
            out[t, 1] = cuda.shfl_up_sync(FULL, t, 3)
            out[t, 2] = cuda.shfl_down_sync(FULL, float32(t), lane % 5)
            out[t, 3] = cuda.shfl_xor_sync(FULL, -t, 9)
            out[t, 4] = cuda.ballot_sync(FULL, lane % 3 == 1)
            out[t, 5] = (
                cuda.all_sync(FULL, t < 40)
                + 2 * cuda.any_sync(FULL, t > 40)
                + 4 * cuda.eq_sync(FULL, t < 40)
            )
            if lane < 16:
                out[t, 6] = cuda.shfl_down_sync(0xFFFF, t, 8)
            else:
                out[t, 6] = cuda.shfl_up_sync(0xFFFF0000, t, 8)

    answers, others = np.zeros((2, 50, 7))
    findings = findings_of(asks, 1, 50, answers, 45, by=False)
    # shuffles from lanes that have ended
    assert all("does not take part" in finding.summary for finding in findings)
    # Warps are answered in another order, so that another lane may be the first.
    found = findings_of(asks, 1, 50, others, 45, by=True)
    first, second = (
        {(one.accesses[0].line, one.times) for one in these} for these in (findings, found)
    )
    assert first == second
    np.testing.assert_array_equal(others, answers)


def test_syncwarp_orders_in_the_runtime_as_in_python() -> None:
    def relays(out, in_halves):
        s = cuda.shared.array(64, float64)
        t = cuda.threadIdx.x
        for k in range(3):
            s[t] = t + k
            cuda.syncwarp(FULL if not in_halves else 0xFFFF if t % 32 < 16 else 0xFFFF0000)
            out[t] = s[t ^ 1] + s[t ^ 17]
            cuda.syncwarp()

    assert both(relays, 1, 64, np.zeros(64), False) == ()
    findings = both(relays, 1, 64, np.zeros(64), True)
    assert {finding.error for finding in findings} == {RaceError}


@cuda.jit(device=True)
def taken(x, i):
    return x[i] + x[i + 1]


def test_kernels_that_share_a_device_function() -> None:
    """Its accesses have other numbers in each kernel: many come before them in one, none in the
    other.
    """

    @cuda.jit
    def late(x, out):
        i = cuda.grid(1)
        out[i] = x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7]
        out[i] += taken(x, i)

    @cuda.jit
    def early(x, out):
        i = cuda.grid(1)
        out[i] = taken(x, i)

    for kernel in (late, early, late):
        (finding,) = {
            one.summary: one
            for one in findings_of(kernel, 1, 9, np.arange(9.0), np.zeros(9), by=True)
        }.values()
        assert (finding.error, finding.array, finding.index) == (BoundsError, "x", (9,))
