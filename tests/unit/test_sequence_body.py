"""What the source of a sequence's body shows, and the decorator's own errors."""

import copy
import pickle
import re

import numpy as np
import pytest

import synknumba as synk


@synk.function
def add(v, number):
    v += number


def trailing_swap(u, v):
    add(u, 1.0)
    u, v = v, u


def trailing_cycle(u, v, w):
    add(u, 1.0)
    u, v, w = w, u, v


def trailing_name(u, v):
    add(u, 1.0)
    u = v


def trailing_walrus(u, v):
    add(u, 1.0)
    (u := v)  # noqa: PLW0131  # what is tested


def trailing_number(v, beta):
    add(v, beta)
    beta *= 1.01


def trailing_sum(v, beta):
    add(v, beta)
    beta = beta + 0.5 * synk.STEP
    return v


def swap_in_a_branch(u, v):
    if add:
        u, v = v, u
    else:
        synk.swap(u, v)


def swap_before_a_result(u, v):
    add(u, 1.0)
    u, v = v, u
    return add(u, 0.0)


def swap_before_a_result_with_a_name(u, v):
    add(u, 1.0)
    u, v = v, u
    synk.exchange(u)
    total = add(u, 0.0)
    return {"total": total}


def carried_by_the_result(u, old):
    new = add(u, old)
    old = new
    return old  # noqa: RET504  # what is tested


def counter(u, count):
    add(u, 1.0)
    count += 1
    return add(u, 1.0), count


def trailing_result(u, old):
    add(u, old)
    old = add(u, 1.0)


WRONG = {
    swap_before_a_result: ("u, v = v, u is for what the body returns", "synk.swap(u, v)"),
    swap_before_a_result_with_a_name: ("u, v = v, u is for", "name that is no parameter"),
    carried_by_the_result: ("old = new is for", "synk.carry(old, new); for this iteration alone"),
    counter: (r"count \+= 1 is for", "synk.carry(count, count + 1)"),
    trailing_result: (r"old = add\(u, 1.0\) has no effect", "synk.carry(old, add(u, 1.0))"),
    swap_in_a_branch: (r"u, v = v, u has no effect", "write synk.swap(u, v)"),
    trailing_swap: (r"u, v = v, u has no effect", "write synk.swap(u, v)"),
    trailing_cycle: (r"u, v, w = w, u, v has no effect", "write synk.swap(u, v); synk.swap(v, w)"),
    trailing_name: (r"u = v has no effect", "write synk.swap(u, v); to copy, write a kernel"),
    trailing_walrus: (r"u = v has no effect", "write synk.swap(u, v); to copy, write a kernel"),
    trailing_number: (r"beta \*= 1.01 has no effect", "write synk.carry(beta, beta * 1.01)"),
    trailing_sum: (
        r"beta = beta \+ 0.5 \* synk.STEP has no effect",
        "write synk.carry(beta, beta + 0.5 * synk.STEP)",
    ),
}


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
def test_assignments_that_nothing_reads(body):
    what, way_out = WRONG[body]
    line = body.__code__.co_firstlineno + 2
    with pytest.raises(
        synk.ArgumentError, match=rf"{body.__name__} \(.*test_sequence_body\.py:{line}\): {what}"
    ) as caught:
        synk.sequence(body)
    assert way_out in str(caught.value)


def two_steps(u, v):
    add(u, 1.0)
    u, v = v, u
    add(u, 2.0)
    return v


def before_a_branch_ends(u, v):
    if add:
        u, v = v, u
    add(u, 1.0)


def in_a_branch_of_a_loop(u, v):
    for step in range(2):
        add(u, 1.0)
        if step:
            u, v = v, u


def in_a_loop(u, v):
    for _ in range(2):
        add(u, 1.0)
        u, v = v, u


def results_of_collectives(v):
    add(v, 1.0)
    v = synk.all_reduce(v, "sum")


def of_a_collective_to_return(v):
    add(v, 1.0)
    v = synk.all_reduce(v, "sum")
    return add(v, 1.0)


def half_of_an_argument(v, dt):
    dt = dt / 2
    return add(v, dt)


def second_half_step(u, v):
    add(u, 1.0)
    u, v = v, u
    add(u, 2.0)
    return add(v, 1.0)


def cleared(v, w):
    add(v, 1.0)
    w = None  # noqa: F841


def read_by_an_inner_function(v, number):
    def half():
        add(v, number)

    half()
    number = number + 1
    half()


def own_names(v, beta):
    half = beta / 2
    add(v, half)
    half = 2 * half  # no parameter


RIGHT = [
    two_steps,
    before_a_branch_ends,
    in_a_branch_of_a_loop,
    in_a_loop,
    results_of_collectives,
    of_a_collective_to_return,
    half_of_an_argument,
    second_half_step,
    cleared,
    read_by_an_inner_function,
    own_names,
]


@pytest.mark.parametrize("body", RIGHT, ids=lambda body: body.__name__)
def test_assignments_that_are_right(body):
    assert synk.sequence(body).name == body.__name__


def test_options_belong_to_the_call():
    for wrong, told in (
        (lambda: synk.sequence(times=3), "and pass times=3 to the call, as in step(u, v, times=3)"),
        (lambda: synk.sequence(every=2, times=4), "pass every=2, times=4 to the call"),
        (synk.sequence, "write @synk.sequence without parentheses above the function"),
        (lambda: synk.sequence(3), "got an int"),
    ):
        with pytest.raises(synk.ArgumentError, match=re.escape(told)):
            wrong()


NUMBER, TEXT, FIELD, OTHER = 2.0, "twice", synk.variable(np.zeros(2)), synk.variable(np.zeros(2))


@synk.sequence
def inner():
    add(FIELD, NUMBER)


def helper():
    add(FIELD, 100.0 if TEXT == "hundred" else 0.0)


@synk.sequence
def outer():
    inner(times=2)
    helper()


def test_rebound_globals_are_seen(monkeypatch):
    module = __import__("sys").modules[__name__]
    with synk.fork(2, device="cpu"):
        outer()
        outer()
        assert outer._traced == 1
        monkeypatch.setattr(module, "NUMBER", 5)
        outer()
        assert FIELD.get_value()[0] == 4 + 4 + 10
        monkeypatch.setattr(module, "NUMBER", float("2.0"))  # an equal number
        outer()
        assert (FIELD.get_value()[0], outer._traced) == (22, 2)
        monkeypatch.setattr(module, "TEXT", "hundred")
        outer()
        assert (FIELD.get_value()[0], outer._traced) == (126, 3)
        before = FIELD
        monkeypatch.setattr(module, "FIELD", OTHER)
        outer()
        assert (before.get_value()[0], OTHER.get_value()[0]) == (126, 104)
        monkeypatch.setattr(module, "add", synk.function(subtract))
        outer()
        assert OTHER.get_value()[0] == 0
        assert outer._traced == 5


def subtract(v, number):
    v -= number


def test_rebound_variables_of_closures_are_seen():
    step, field = 1.0, synk.variable(np.zeros(1))

    @synk.sequence
    def body():
        add(field, step)

    with synk.fork(2, device="cpu"):
        body(times=3)
        step = 10.0
        body()
        first, field = field, synk.variable(np.zeros(1))
        body()
        assert (first.get_value()[0], field.get_value()[0]) == (13, 10)


def test_bodies_changed_in_place_are_seen(monkeypatch):
    """As %autoreload does."""
    field = synk.variable(np.zeros(1))

    def once():
        add(field, 1.0)

    def twice():
        add(field, 1.0)
        add(field, 1.0)

    inside = synk.sequence(once)

    @synk.sequence
    def body():
        inside()

    with synk.fork(2, device="cpu"):
        body()
        monkeypatch.setattr(once, "__code__", twice.__code__)
        body()
        assert field.get_value()[0] == 3


def test_what_a_body_used_is_freed():
    import weakref

    field = synk.variable(np.zeros(1))

    @synk.sequence
    def body():
        add(field, 1.0)

    with synk.fork(1, device="cpu"):
        body()
        body()
        reference, field = weakref.ref(field), None
        assert reference() is None


def test_times_of_an_inner_sequence_are_ints():
    @synk.sequence
    def body(n):
        inner(times=n / 2)

    with (
        synk.fork(1, device="cpu"),
        pytest.raises(synk.ArgumentError, match=r"y:\d+: times of inner must be an int.*//"),
    ):
        body(4)


def test_names_that_calls_do_not_have():
    @synk.sequence
    def steps(u):
        add(u, 1.0)

    u = synk.variable(np.zeros(2))
    for name, near in (("evry", "every"), ("time", "times"), ("untl", "until")):
        options = "times, every, until, progress"
        says = (
            rf"no parameter '{name}'; it has u, and calls have the options "
            rf"{options}\. Did you mean {near}\?"
        )
        with pytest.raises(synk.ArgumentError, match=says):
            steps.plan(u, world_size=2, **{name: 2})


def test_every_needs_results():
    @synk.sequence
    def steps(u):
        add(u, 1.0)

    u = synk.variable(np.zeros(2))
    says = (
        "steps: every= keeps what steps returns, and it returns nothing; "
        "return the result of a call"
    )
    with synk.fork(1, device="cpu"):
        for times in (0, 4):
            for call in (steps, steps.submit, steps.plan):
                with pytest.raises(synk.ArgumentError, match=says):
                    call(u, times=times, every=2)


def test_until_that_forgets_its_return():
    @synk.function(outputs="sum")
    def total(u):
        return u.sum()

    @synk.sequence
    def steps(u):
        add(u, 1.0)
        return total(u)

    def large(result):
        result > 5  # noqa: B015  # what is tested

    u = synk.variable(np.zeros(2))
    with synk.fork(1, device="cpu"):
        with pytest.raises(
            synk.ArgumentError,
            match=r"steps: until= must return True or False, got None; .* return statement",
        ):
            steps(u, times=10, until=large)
        assert u.get_value()[0] == 1
        with pytest.raises(synk.ArgumentError, match=r"got array.*ask for all of them"):
            steps(u, times=10, until=lambda result: np.array([result, 0.0]) > 5)
        for value in (-2, 1.0, "yes"):
            with pytest.raises(synk.ArgumentError, match=rf"got {value!r}; .*write not flag"):
                steps(u, times=10, until=lambda result: value)  # noqa: B023  # it is called here
        u.set_value(np.full(2, 2.0))
        assert steps(u, times=8, until=lambda result: np.array([result > 5])) == 6
        u.set_value(np.full(2, 2.0))
        assert steps(u, times=10, until=lambda result: result > 5) == 6
        assert steps(u, times=10, every=1, until=lambda result: result > 9).tolist() == [8, 10]


def test_options_of_several_iterations_need_their_number():
    """A call without times= makes one iteration, of which until= would say nothing."""

    @synk.function(outputs="sum")
    def total(u):
        return u.sum()

    @synk.sequence
    def steps(u):
        add(u, 1.0)
        return total(u)

    u = synk.variable(np.zeros(2))
    with synk.fork(1, device="cpu"):
        for call in (steps, steps.plan):
            says = (
                r"steps: until= needs times=, the largest number of iterations.*steps\(\.\.\., "
                r"times=10_000, until=\.\.\.\)"
            )
            with pytest.raises(synk.ArgumentError, match=says):
                call(u, until=lambda result: result > 5)
        for call in (steps, steps.submit, steps.plan):
            with pytest.raises(
                synk.ArgumentError, match=r"steps: every= needs times=.*times=1_000, every=10\)"
            ):
                call(u, every=10)
            with pytest.raises(
                synk.ArgumentError, match="steps: every must be an int of at least 1, got 0"
            ):
                call(u, every=0)
        assert u.get_value()[0] == 0
        assert steps(u) == 2
        assert steps(u, every=1).tolist() == [4]
        assert steps.submit(u).result() == 6
        assert steps(u, times=1, until=lambda result: result < 0) == 8
        assert steps.plan(u).times == 1
        assert not steps.plan(u).round_ends

        @synk.sequence
        def twice(u):
            steps(u)
            return steps(u)

        assert twice(u, times=2) == 16


def test_the_step_is_copied_and_pickled():
    for copied in (copy.copy(synk.STEP), pickle.loads(pickle.dumps(synk.STEP))):
        assert copied.label == synk.STEP.label


def test_carry_takes_two_arguments():
    @synk.sequence
    def steps(u, number):
        add(u, number)
        synk.carry(number)

    with pytest.raises(
        synk.ArgumentError, match=r"missing 1 required .*; write carry\(number, value\)"
    ):
        steps.plan(synk.variable(np.zeros(2)), 1, world_size=2)
