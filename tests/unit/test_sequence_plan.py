"""Plans of sequences: parts, waits, bytes and rounds, told without ranks."""

import random
import re

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._sequence.report import LoopReport
from synknumba._wire.sequence import Loop
from tests.environment import ROOT, run_program
from tests.quick import examples

MANY = synk.variable(np.zeros(4), name="many")


@synk.parallel(grid=1, block=4)
@cuda.jit
def move(u, v, by):
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] = u[i] + by


@synk.parallel(grid=1, block=4, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(v, t):
    i = cuda.grid(1)
    if i < v.shape[0]:
        cuda.atomic.add(t, 0, v[i])


@synk.parallel(
    outputs={
        "top": synk.output("max", shape=(), dtype="float64"),
        "big": synk.output("sum", shape=(9000,)),
    }
)
@cuda.jit
def both(x, top, big):
    i = cuda.grid(1)
    if i < x.shape[0]:
        top[0] = max(top[0], x[i])
        cuda.atomic.add(big, i % 9000, x[i])


@synk.parallel(
    grid=1, block=4, outputs={"doubled": synk.output("sum", shape=(3,), dtype="float64")}
)
@cuda.jit
def double(v, doubled):
    i = cuda.grid(1)
    if i < 3:
        doubled[i] = 2 * v[i]


@synk.parallel(grid=1, block=4, broadcast=("array",))
@cuda.jit
def put(v, array):
    i = cuda.grid(1)
    if i < 3:
        v[i] = array[i]


@synk.function(outputs="mean")
def shrink(v):
    v *= 0.5
    return v[0]


@synk.sequence
def inner(v):
    synk.all_reduce(v, "mean")
    shrink(v)


@synk.sequence
def apart(u, v):
    move(u, v, 1.0)


@synk.sequence
def outer(u, v, x, by):
    move(u, v, by * synk.STEP)
    synk.broadcast(u)
    inner(v, times=3)
    move(v, u, total(v))
    synk.all_reduce(MANY, "sum")
    return total(u), both(x)


def variables(n=4):
    return [synk.variable(np.zeros(n)) for _ in range(2)]


def test_parts():
    u, v = variables()
    plan = outer.plan(u, v, np.zeros(10), 2.0, times=100, world_size=2)
    assert [getattr(part, "call", part.name) for part in plan.parts] == [
        1,
        2,
        "inner",
        5,
        0,
        6,
        7,
        8,
        9,
    ]
    first, cast, loop, measured, number, second, reduced, last, rows = plan.parts
    assert (first.reads, first.writes, first.waits_for, first.moved_bytes) == (
        ("u", "v"),
        ("v",),
        None,
        0,
    )
    assert first.name == "move(u: variable float64 (4,), v: variable float64 (4,), by: float)"
    assert [rank.launches for rank in first.plan.ranks] == [(((1, 1, 1), (4, 1, 1)),)] * 2
    assert (cast.name, cast.writes, cast.waits_for, cast.moved_bytes) == (
        "broadcast",
        ("u",),
        "all ranks",
        32,
    )
    assert (loop.name, loop.times) == ("inner", 3)
    reduce, halve = loop.parts
    assert (reduce.call, reduce.name, reduce.waits_for, reduce.moved_bytes) == (
        3,
        "all_reduce",
        "all ranks",
        2 * 32,
    )
    assert (halve.call, halve.waits_for, halve.results[0].op, halve.results[0].is_returned) == (
        4,
        None,
        "mean",
        False,
    )
    assert [(one.name, one.is_returned, one.is_passed) for one in measured.results] == [
        ("t", False, True)
    ]
    assert (number.name, number.waits_for, number.moved_bytes) == (
        "output t of total, combined by each rank",
        "all ranks",
        16,
    )
    assert (second.reads, second.writes) == (("u", "v"), ("u",))
    assert (reduced.writes, reduced.moved_bytes) == (("MANY",), 64)
    assert last.results[0].is_kept
    assert [(one.name, one.shape, one.is_kept, one.is_returned) for one in rows.results] == [
        ("top", (), True, True),
        ("big", (9000,), False, True),
    ]
    assert rows.reads == ("x",)
    assert [rank.rows for rank in rows.plan.ranks] == [(0, 5), (5, 10)]
    assert (plan.rounds, plan.round_ends, plan.turns, plan.world_size) == (1, "", 1, 2)
    text = str(plan)
    assert text.startswith(
        "outer(u: variable float64 (4,), v: variable float64 (4,), x: float64 (10,), by: "
        "float)\n100 iterations in 1 round"
    )
    assert (
        "\n  inner, 3 times; waits for all ranks before and after\n    3 all_reduce: reads "
        "v; writes v; waits for all" in text
    )
    alone = outer.plan(u, v, np.zeros(10), 2.0, world_size=1)
    assert {getattr(part, "waits_for", None) for part in alone.parts} == {None}
    assert sum(getattr(part, "moved_bytes", 0) for part in alone.parts) == 0
    assert "1 iteration in 1 round, 1 rank\n" in str(alone)


@pytest.mark.parametrize(
    ("record", "by", "acts"),
    [(True, 2.0, ()), (False, 2.0, ("call 2",)), (True, synk.STEP, ("call 2",))],
)
def test_recorded_functions(record, by, acts):
    """GPUs repeat them without the host, if their numbers are those of the first iteration."""

    @synk.function(record=record, outputs="sum")
    def look(v, by):
        return v.sum() * by

    @synk.sequence
    def body(v):
        put(v, np.ones(4))
        return look(v, by)

    told = str(body.plan(synk.variable(np.zeros(4)), world_size=2))
    assert ("all calls of many iterations are one recording" in told) == (not acts)
    assert not acts or f"the host acts at {', '.join(acts)}" in told


@pytest.mark.parametrize(("num_slices", "acts"), [(1, False), (2, True)])
def test_lines_of_row_numbers(num_slices, acts):
    """GPUs go on to the next line without the host, where a rank has one slice."""

    @synk.sequence
    def body(x, rows):
        return total(x, batch=rows[synk.STEP], num_slices=num_slices)

    rows = synk.data(np.arange(6).reshape(3, 2))
    plan = body.plan(np.arange(8.0), rows, times=3, world_size=2)
    assert [part.needs_host for part in plan.parts] == [acts]


def test_arrays_from_call_to_call():
    @synk.sequence
    def body(v):
        put(v, double(v))

    plan = body.plan(synk.variable(np.zeros(4)), world_size=3)
    made, joined, taken = plan.parts
    assert [(one.is_passed, one.is_returned) for one in made.results] == [(True, False)]
    assert (
        "on GPUs, over NCCL: calls in a row are one recording; the host acts at "
        "output doubled of double, combined" in str(plan)
    )
    assert (joined.name, joined.waits_for, joined.moved_bytes) == (
        "output doubled of double, combined by the ranks",
        "all ranks",
        72,
    )
    assert (taken.reads, taken.waits_for) == (("output doubled of double", "v"), "all ranks")
    assert "doubled: sum of float64 (3,), combined by the ranks" in str(
        body.plan(synk.variable(np.zeros(4)), world_size=1)
    )


@synk.sequence
def measure(v):
    return total(v)


@synk.sequence
def average(v):
    return shrink(v)


@synk.function(outputs=None)
def own(v):
    return v[0]


@synk.sequence
def listed(v):
    return own(v)


def test_what_ends_a_round():
    v = synk.variable(np.zeros(4))
    told = [
        (measure, {"times": 7}, 1, ""),
        (measure, {"times": 7, "every": 2}, 1, ""),
        (
            measure,
            {"times": 7, "every": 2, "until": bool},
            4,
            "after every 2 iterations, for until=",
        ),
        (measure, {"times": 7, "until": bool}, 7, "after each iteration, for until="),
        (average, {"times": 7}, 1, ""),
        (
            average,
            {"times": 7, "every": 7},
            1,
            "as ranks keep results known to be small, and the result of shrink is not",
        ),
        (
            listed,
            {"times": 7, "every": 1},
            7,
            "after each iteration, as ranks keep results known to be small, and the result",
        ),
        (
            measure,
            {"times": 10**9, "every": 1},
            10**9,
            "as kept results would take 24,000,000,000 bytes, and ranks keep 67,108,864",
        ),
        (measure, {"times": 0, "every": 1}, 0, ""),
    ]
    for body, options, rounds, why in told:
        plan = body.plan(v, world_size=3, **options)
        assert plan.rounds == rounds
        assert why in plan.round_ends
        assert bool(why) == bool(plan.round_ends)
    with pytest.raises(synk.ArgumentError, match="until= judges what idle returns"):
        synk.sequence(idle).plan(v, times=2, until=bool, world_size=2)
    with pytest.raises(synk.WorldError, match="needs world_size"):
        measure.plan(v)
    with pytest.raises(synk.ArgumentError, match="times must be an int"):
        measure.plan(v, times=-1, world_size=2)


def idle(v):
    shrink(v)


SURE = True
SINGLE = synk.output("max", shape=(), dtype="float32")


@synk.parallel(grid=1, block=1, outputs={"top": SINGLE})
@cuda.jit
def top32(v, top):
    top[0] = v[0]


LONG = eval(compile(f"lambda r: {' | '.join(['(r < 1)'] * 600)}", __file__, "eval"))
REASONS = {  # why the script judges
    "if": (lambda r: 0 < r < 1, "the value of a condition .* and, or, not, if and a < b < c ask"),
    "a name": (lambda r: np.isnan(r) & True, "it uses isnan"),
    "a bool": (lambda r: (r < 1) & ~SURE, "it uses SURE"),
    "an attribute": (lambda r: r.size < 1, "the value of output t of total is not known"),
    "two arguments": (lambda a, b: a < b, "it raises TypeError: .* missing 1 .* 'b'"),
    "no value": (lambda r: print, "it uses print"),
    "no comparison": (lambda r: r + 1, "it returns no comparison of numbers"),
    "exceptions": ("def f(r):\n try: return r < 1\n except: pass", "it may handle exceptions"),
    "a long chain": (LONG, "a condition has 257 operations inside each other, and .* 256"),
    "twice each time": (
        eval(compile(f"lambda r: {'(c := ' * 20}r < 1{') | c' * 20}", __file__, "eval")),
        "a condition has more than 10,000 operations",
    ),
    "another operand": (
        lambda r: r + None < 1,
        "output t of total .* None: a sequence computes with ints",
    ),
}
IN_32_BITS = {
    "of fewer bits": (lambda r: r * 2 < 1, "a sequence .* NumPy would compute this in float32"),
    "of two widths": (
        lambda r: r < synk.STEP / 3,
        "NumPy may compare a number computed from synk.STEP in fewer bits",
    ),
}


@pytest.mark.parametrize("case", [*REASONS, *IN_32_BITS])
def test_why_the_script_judges(case):
    """With the line of the source."""
    until, match = (REASONS | IN_32_BITS)[case]
    if isinstance(until, str):
        scope = {}
        exec(compile(until, __file__, "exec"), scope)
        until = scope["f"]
    result = top32 if case in IN_32_BITS else total

    @synk.sequence
    def body(v):
        return result(v)

    told = body.plan(synk.variable(np.ones(3)), times=9, until=until, world_size=2)
    line = rf"\({re.escape(__file__)}:\d+\)\n"
    assert re.search(rf"until= is judged by the script, as {match}.* {line}", str(told))
    assert told.judged_by.startswith("the script, as ")


def test_swapped_variables_and_halos():
    @synk.parallel(grid="elements")
    @cuda.jit
    def move_elements(u, v):
        j, i = cuda.grid(2)
        if i < v.shape[0] and j < v.shape[1]:
            v[i, j] = u[i, j] + 1.0

    @synk.sequence
    def body(u, v):
        synk.exchange(u)
        move_elements(u, v)
        synk.swap(u, v)

    with synk.fork(2, device="cpu"):
        u, v = (
            synk.scatter(synk.variable(np.zeros((12, 5))), halo=2, periodic=True) for _ in range(2)
        )
    plan = body.plan(u, v, times=5, world_size=3)
    exchange, step, swap = plan.parts
    assert (exchange.reads, exchange.writes, exchange.waits_for) == (("u",), ("u",), "neighbours")
    # 3 ranks get 2 rows of 5 numbers from above and from below
    assert exchange.moved_bytes == 3 * 2 * 2 * 5 * 8
    assert (step.writes, step.waits_for) == (("v",), None)
    assert (swap.name, plan.turns) == ("swap of u and v", 2)
    assert "on GPUs, over NCCL: all calls of many iterations are one recording" in str(plan)
    assert "again after 2 iterations" in str(plan)


@cuda.jit(device=True)
def put_at(array, at, value):
    array[at] = value


def test_a_kernel_may_write_in_functions_that_it_calls():
    """What a kernel passes on, or gives another name, counts as written."""

    @synk.parallel(grid="elements")
    @cuda.jit
    def writes_elsewhere(u, v, own):
        i = cuda.grid(1)
        if own.start <= i < own.stop:
            put_at(u, i, v[i] + u.shape[0])

    @synk.parallel(grid="elements")
    @cuda.jit
    def writes_by_another_name(u, v, own):
        target = u
        i = cuda.grid(1)
        if own.start <= i < own.stop:
            target[i] = v[i]

    @synk.sequence
    def body(u, v, kernel):
        kernel(u, v, synk.OWN)
        synk.exchange(u)
        synk.exchange(v)

    with synk.fork(2, device="cpu"):
        u, v = (synk.scatter(synk.variable(np.zeros(8)), halo=1) for _ in range(2))
        for kernel in (writes_elsewhere, writes_by_another_name):
            call, first, second = body.plan(u, v, kernel).parts
            assert (call.reads, call.writes) == (("u", "v"), ("u",))
            assert first.waits_for == "neighbours"
            assert second.waits_for is None
            body(u, v, kernel)
            (waits, other) = [
                part.wait is not None
                for plan in body._plans.values()
                for part in plan.program.parts[1:]
            ][-2:]
            assert (waits, other) == (True, False)


def test_nothing_is_left_behind():
    u, v = variables()

    @synk.sequence
    def wrong(v):
        move(v, v, 1.0)

    with pytest.raises(synk.ArgumentError, match="same variable"):
        wrong.plan(v, world_size=2)

    @synk.sequence
    def planning(v):
        measure.plan(v)

    with pytest.raises(
        synk.ArgumentError, match=r"measure\.plan\(\) inside planning would run once"
    ):
        planning.plan(v, world_size=2)
    with synk.fork(2, device="cpu") as world:
        rounds = world.statistics().rounds
        outer.plan(u, v, np.zeros(10), 2.0, times=100)
        assert world.statistics().rounds == rounds
        inner(v, times=2)


def test_shapes_are_those_for_the_planned_ranks():
    @synk.sequence
    def body(u, r):
        total(u)
        synk.exchange(u)

    with synk.fork(2, device="cpu"):
        u, r = synk.scatter(synk.variable(np.zeros(300)), halo=1), synk.variable(np.zeros(7))
        for size, length in ((None, 151), (2, 151), (4, 76), (5, 61), (1, 300)):
            told = body.plan(u, r, world_size=size)
            assert told.arguments == (
                f"u: variable float64 ({length},)",
                "r: variable float64 (7,)",
            )
            assert told.parts[0].name == f"total(v: variable float64 ({length},))"
            call = total.plan(u, world_size=size)
            assert call.arguments == (f"v: variable float64 ({length},)",)
        assert [one.held for one in total.plan(u, world_size=3).ranks] == [
            (("v", (101,)),),
            (("v", (102,)),),
            (("v", (101,)),),
        ]


def test_a_plan_tells_what_each_rank_works_on_without_rows_to_divide():
    @synk.function
    def noted(v, k):
        v += k

    @synk.function(outputs="sum")
    def made(k):
        return k

    v = synk.variable(np.zeros((3, 2)))
    lines = str(noted.plan(v, 1, world_size=2)).splitlines()
    assert lines[1:] == [
        "no rows to divide: every rank runs once",
        "  rank 0: has v (3, 2), reads 0 bytes",
        "  rank 1: has v (3, 2), reads 0 bytes",
    ]
    assert str(made.plan(1, world_size=1)).splitlines()[2] == "  rank 0: reads 0 bytes"
    assert "rank 0: has v (4,), reads 0 bytes, launches" in str(
        total.plan(synk.variable(np.zeros(4)), world_size=1)
    )
    assert "rank 1: rows 2..4 in 1 slice(s), reads 16 bytes" in str(
        double.plan(np.zeros(4), world_size=2)
    )


def test_swaps_have_no_number():
    @synk.sequence
    def body(u, v):
        synk.swap(u, v)
        inner(u)
        synk.swap(u, v)
        synk.swap(u, v)
        synk.all_reduce(u, "sum")

    u, v = variables()
    told = body.plan(u, v, world_size=2)
    calls = [one.call for part in told.parts for one in getattr(part, "parts", (part,)) if one.call]
    assert calls == [*range(1, len(calls) + 1)]
    assert [part.call for part in told.parts if getattr(part, "name", "").startswith("swap")] == [
        0,
        0,
        0,
    ]
    assert "\n    swap of u and v\n" in str(told)


def test_turns_of_an_inner_sequence_have_numbers_of_their_own():
    @synk.sequence
    def exchanged(u, v):
        synk.all_reduce(u, "sum")
        synk.swap(u, v)

    @synk.sequence
    def body(u, v):
        exchanged(u, v, times=4)
        synk.all_reduce(u, "sum")

    plan = body.plan(*variables(), world_size=2)
    loop, last = plan.parts
    assert (loop.turns, loop.parts[0].call, last.call) == (2, 1, 3)
    assert "; shows the first of 2 turns of swapped variables, numbered on\n    1 " in str(plan)


def test_a_negative_number_of_times_of_an_inner_sequence():
    @synk.sequence
    def body(v, n, k):
        inner(v, times=n)
        inner(v, times=n - 2 * k)

    v = synk.variable(np.ones(4))
    told = (
        rf"{re.escape(__file__)}:\d+: times of inner must be an int of at least 0, but {{}} is "
        rf"{{}} in this call of body"
    )
    with synk.fork(2, device="cpu"):
        for use in (body, body.submit, body.plan):
            for n, k, label, value in (
                (-1, -1, "n of body", -1),
                (3, 2, "a number computed from n of body", -1),
            ):
                with pytest.raises(synk.ArgumentError, match=told.format(label, value)):
                    use(v, n, k)
        assert np.array_equal(v.get_value(), np.ones(4))
        body(v, 0, 0)
        assert np.array_equal(v.get_value(), np.ones(4))
        body(v, 2, 1)
        once = v.get_value()
        # a call that is known
        with pytest.raises(synk.ArgumentError, match=told.format("n of body", -7)):
            body(v, -7, 1)
        assert np.array_equal(v.get_value(), once)


OPS = {
    "move": lambda a, b: move(a, b, 1.0),
    "number": lambda a, b: move(a, b, total(b)),
    "array": lambda a, b: put(a, double(b)),
    "shrink": lambda a, b: shrink(a),
    "reduce": lambda a, b: synk.all_reduce(a, "sum"),
    "root": lambda a, b: synk.reduce(a, "sum"),
    "broadcast": lambda a, b: synk.broadcast(b),
    "inner": lambda a, b: inner(a, times=2),
    "apart": lambda a, b: apart(a, b, times=2),
    "exchange": lambda a, b: synk.exchange(a),
}


def waits_of_parts(parts):
    """The waits of what the ranks run, those of the steps of a call together."""
    out, last = [], None
    for part in parts:
        whom = None if part.wait is None else "neighbours" if part.wait.nearby else "all ranks"
        if isinstance(part, Loop):
            out.append((part.meets, whom, waits_of_parts(part.parts)))
            last = None
            continue
        step = (part.call, part.name, part.puts or part.combines)
        if step == last:
            before = out.pop()
            whom = "all ranks" if "all ranks" in (whom, before) else whom or before
        out.append(whom)
        last = step
    return out


def waits_of_report(parts):
    return [
        (part.meets, part.waits_for, waits_of_report(part.parts))
        if isinstance(part, LoopReport)
        else part.waits_for
        for part in parts
    ]


def test_waits_are_those_of_the_ranks():
    rng = random.Random(0)
    with synk.fork(3, device="cpu"):
        for _ in range(examples(40, quick=6)):
            ops = [rng.choice([*OPS]) for _ in range(rng.randint(1, 6))]
            pairs = [rng.sample(range(3), 2) for _ in ops]
            sizes = [rng.choice([4, 5000])] * 3
            several = [synk.variable(np.zeros(size)) for size in sizes]
            if "exchange" in ops:
                ops = [
                    "exchange" if op in {"reduce", "root", "broadcast", "inner"} else op
                    for op in ops
                ]
                several = [synk.scatter(one, halo=1) for one in several]

            @synk.sequence
            def body(several, ops=None, pairs=None):
                for op, (a, b) in zip(ops, pairs, strict=True):
                    OPS[op](several[a], several[b])

            told = body.plan(
                several, synk.static(tuple(ops)), synk.static(tuple(map(tuple, pairs))), times=2
            )
            body(several, synk.static(tuple(ops)), synk.static(tuple(map(tuple, pairs))), times=0)
            (plan,) = body._plans.values()
            assert waits_of_report(told.parts) == waits_of_parts(plan.program.parts), (ops, pairs)


def test_inner_sequences_in_which_ranks_have_nothing_to_do_with_each_other():
    @synk.sequence
    def body(u, v, reduced):
        apart(u, v, times=5)
        synk.all_reduce(reduced, "sum")

    u, v, w = (synk.variable(np.zeros(5000)) for _ in range(3))
    # others read and write u in the iteration before
    for reduced, waits in (
        (u, "; waits for all ranks"),
        (w, ""),
    ):
        assert f"\n  apart, 5 times{waits}\n    1 move" in str(
            body.plan(u, v, reduced, times=3, world_size=2)
        )


@pytest.mark.whole
def test_the_page_shows_what_is_printed(tmp_path):
    page = (ROOT / "docs" / "sequences.md").read_text()
    program, shown = re.search(
        r"```python\n(.*?)```.*?it says:\n\n```\n(.*?)```", page, re.DOTALL
    ).groups()
    planned = program.replace(
        "    heat = two_steps(",
        "    print(two_steps.plan(u, v, 0.2, times=100, every=25))\n    heat = two_steps(",
    )
    assert run_program(planned, tmp_path / "plan.py").stdout.startswith(shown)
