"""What the body of a sequence has from outside: changes between calls are seen, as by single
calls.
"""

import functools
import random
import weakref
from collections import deque
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal
from scipy import sparse

import synknumba as synk
from synknumba._errors import ArgumentError
from tests.conformance.kernels import add_rows


@synk.parallel(inout=("y",))
@cuda.jit
def add(y, n):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += n


@synk.parallel(inout=("y",), broadcast=("other",))
@cuda.jit
def add_array(y, other):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += other[i]


class Plain:
    shared = 1.0

    def __init__(self, n=1.0):
        self.n = n
        self.inner = SimpleNamespace(n=n)
        self.table = {"n": n}

    def __getitem__(self, name):
        return getattr(self, name)

    def __call__(self):
        return self.n

    @classmethod
    def of_class(cls):
        return cls.shared

    def bound(self):
        half = self.half
        return half()

    def twice(self):
        return 2 * self.half()

    def half(self):
        return self.n / 2

    @property
    def doubled(self):
        return 2 * self.n

    @synk.sequence
    def of_self(self, y):
        add(y, self.n)

    @synk.sequence
    def of_a_method(self, y):
        add(y, self.twice())

    @synk.sequence
    def of_an_inner_object(self, y):
        add(y, self.inner.n)

    @synk.sequence
    def of_a_table(self, y):
        add(y, self.table["n"])


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 1.0


def function_of(module_value):
    return module_value["n"]


def made(get, holder):
    """A sequence that adds what `get` finds in the holder, both variables of its closure."""

    @synk.sequence
    def body(y):
        add(y, get(holder))

    return body


def with_default(value):
    def get(value=value):
        return value["n"]

    return get


def set_item(holder, value, key):
    holder[key] = value


HOLDERS = {  # what holds a number, how the body gets it, how it is set
    "a dict": ({"n": 1.0}, lambda h: h["n"], lambda h, v: set_item(h, v, "n")),
    "a dict, by a function": ({"n": 1.0}, function_of, lambda h, v: set_item(h, v, "n")),
    "a list": ([0, 1.0], lambda h: h[1], lambda h, v: set_item(h, v, 1)),
    "a dict in a dict": (
        {"a": {"n": 1.0}},
        lambda h: h["a"]["n"],
        lambda h, v: set_item(h["a"], v, "n"),
    ),
    "a list in a tuple": (([1.0],), lambda h: h[0][0], lambda h, v: set_item(h[0], v, 0)),
    "an object": (Plain(), lambda h: h.n, lambda h, v: setattr(h, "n", v)),
    "an object, by a method": (Plain(), lambda h: h.twice(), lambda h, v: setattr(h, "n", v)),
    "an object, by a property": (Plain(), lambda h: h.doubled / 2, lambda h, v: setattr(h, "n", v)),
    "an object in an object": (Plain(), lambda h: h.inner.n, lambda h, v: setattr(h.inner, "n", v)),
    "a dict in an object": (
        Plain(),
        lambda h: h.table["n"],
        lambda h, v: set_item(h.table, v, "n"),
    ),
    "an object in a list": ([Plain()], lambda h: h[0].n, lambda h, v: setattr(h[0], "n", v)),
    "a namespace": (SimpleNamespace(n=1.0), lambda h: h.n, lambda h, v: setattr(h, "n", v)),
    "slots": (Slotted(), lambda h: h.n, lambda h, v: setattr(h, "n", v)),
    "a class": (
        type("Made", (Plain,), {}),
        lambda h: h.shared,
        lambda h, v: setattr(h, "shared", v),
    ),
    "a class, hidden by an attribute later": (
        Plain(),
        lambda h: h.shared,
        lambda h, v: setattr(h, "shared", v),
    ),
    "an object, by name": (Plain(), lambda h: getattr(h, "n"), lambda h, v: setattr(h, "n", v)),  # noqa: B009
    "an object, by its own way to get items": (
        Plain(),
        lambda h: h["n"],
        lambda h, v: setattr(h, "n", v),
    ),
    "an object, by calling it": (Plain(), lambda h: h(), lambda h, v: setattr(h, "n", v)),
    "an object, by a bound method": (
        Plain().half.__self__,
        lambda h: 2 * h.bound(),
        lambda h, v: setattr(h, "n", v),
    ),
    "a class, by its method": (
        type("Of", (Plain,), {}),
        lambda h: h.of_class(),
        lambda h, v: setattr(h, "shared", v),
    ),
    "a dict beside an object": (
        {"n": 1.0, "o": Plain()},
        lambda h: h["n"],
        lambda h, v: set_item(h, v, "n"),
    ),
    "a default": ({"n": 1.0}, lambda h: with_default(h)(), lambda h, v: set_item(h, v, "n")),
    "a partial function": (
        {"n": 1.0},
        lambda h: partial(function_of, h)(),
        lambda h, v: set_item(h, v, "n"),
    ),
    "a deque": (deque([1.0]), lambda h: h[0], lambda h, v: set_item(h, v, 0)),
    "a long list": ([1.0] * 1500, lambda h: h[3], lambda h, v: set_item(h, v, 3)),
    "a long array": (np.ones(2000), lambda h: float(h[3]), lambda h, v: set_item(h, v, 3)),
    "the sum of an array": (
        np.zeros(2000),
        lambda h: float(h.sum()),
        lambda h, v: set_item(h, v, 3),
    ),
    "an element of an array": (np.ones(3), lambda h: float(h[1]), lambda h, v: set_item(h, v, 1)),
}


NUMBER = 1.0


def with_defaults():
    def function(default=1.0, *, named=1.0):
        return default * named

    return function


def try_global():
    try:
        return MAYBE
    except NameError:
        return 1.0


def of_an_argument(one):
    return one.late


@synk.function
def add_by_helper(y, one):
    y += of_an_argument(one)


def derived():
    """A class, one that inherits from it, and an object of that."""

    class Parent(Plain):
        def __call__(self):
            return self.shared

    class Child(Parent):
        pass

    return SimpleNamespace(parent=Parent, child=Child, one=Child())


def put(name, value=10.0):
    return lambda holder: setattr(holder, name, value)


CHANGES = {  # how the holder is made, how the body gets 1 from it, what makes it get 10
    "except NameError": (dict, lambda _: try_global(), lambda _: globals().update(MAYBE=10.0)),
    "an inherited attribute": (derived, lambda h: h.one.shared, lambda h: put("shared")(h.child)),
    "an inherited method": (
        derived,
        lambda h: 2 * h.one.half(),
        lambda h: put("half", lambda self: 5.0)(h.child),
    ),
    "an inherited way to call": (
        derived,
        lambda h: h.one(),
        lambda h: put("__call__", lambda self: 10.0)(h.child),
    ),
    "defaults": (with_defaults, lambda h: h(), put("__defaults__", (10.0,))),
    "defaults by keyword": (with_defaults, lambda h: h(), put("__kwdefaults__", {"named": 10.0})),
    "a default by keyword": (
        with_defaults,
        lambda h: h(),
        lambda h: h.__kwdefaults__.update(named=10.0),
    ),
}


def sums(world, sequence, change):
    """The variable after two calls, a change from 1 to 10, and one more; and how often the body
    was traced until then.
    """
    y = synk.variable(np.zeros(4))
    sequence(y)
    sequence(y)
    traced = sequence._traced if isinstance(sequence, type(made(len, ""))) else None
    change()
    sequence(y)
    return [y.get_value(rank) for rank in range(world.world_size)], traced


@pytest.mark.parametrize("case", HOLDERS)
def test_a_number_in(world, case):
    holder, get, put = HOLDERS[case]
    put(holder, 1.0)
    found, traced = sums(world, made(get, holder), lambda: put(holder, 10.0))
    assert traced == 1
    assert_array_equal(found, np.full((world.world_size, 4), 12.0))


@pytest.mark.parametrize("case", CHANGES)
def test_what_hides_another_value(world, case):
    make, get, change = CHANGES[case]
    holder = make()
    with mock.patch.dict(globals()):
        found, traced = sums(world, made(get, holder), lambda: change(holder))
    assert traced == 1
    assert_array_equal(found, np.full((world.world_size, 4), 12.0))


def test_an_object_that_another_function_looks_at_on_the_ranks(world):
    one = SimpleNamespace(late=1.0)

    @synk.sequence
    def body(y):
        add_by_helper(y, one)

    found, _ = sums(world, body, lambda: put("late")(one))
    assert_array_equal(found, np.full((world.world_size, 4), 12.0))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("of_self", lambda one: setattr(one, "n", 10.0)),
        ("of_a_method", lambda one: setattr(one, "n", 10.0)),
        ("of_an_inner_object", lambda one: setattr(one.inner, "n", 10.0)),
        ("of_a_table", lambda one: one.table.update(n=10.0)),
    ],
)
def test_the_object_of_a_method(world, name, change):
    one = Plain()
    found, _ = sums(world, getattr(one, name), lambda: change(one))
    assert_array_equal(found, np.full((world.world_size, 4), 12.0))


@pytest.mark.parametrize("view", [slice(None), slice(1, 5)])
def test_an_array_that_changes_in_place(world, view):
    whole = np.ones(1000)
    outside = whole[:4] if view == slice(None) else whole[view]

    @synk.sequence
    def body(y):
        add_array(y, outside[:])
        add_array(y, np.array([1.0, 2.0, 3.0, 4.0]))  # made here: always the same

    whole[:] = 1
    found, traced = sums(world, body, lambda: whole.fill(10.0))
    assert traced == 1
    assert_array_equal(found, np.tile(12.0 + 3 * np.arange(1.0, 5), (world.world_size, 1)))


def test_an_array_that_one_function_passes_and_another_reads(world):
    outside = np.ones(4)

    def first():
        return outside[0]

    @synk.sequence
    def body(y):
        add_array(y, outside)
        add(y, first())

    found, _ = sums(world, body, lambda: outside.fill(10.0))
    assert_array_equal(found, np.full((world.world_size, 4), 24.0))


def test_an_array_that_is_written(world):
    total, large = np.zeros(100), np.ones(100)

    @synk.sequence
    def body(y):
        add_array(total, large)
        add_array(y, total)

    y = synk.variable(np.zeros(100))
    body(y, times=3)
    assert_array_equal(total, np.full(100, 3.0))
    assert_array_equal(y.get_value(0), np.full(100, 6.0))
    total[:] = 10
    body.submit(y).result()
    assert_array_equal(total, np.full(100, 11.0))
    assert_array_equal(y.get_value(0), np.full(100, 17.0))
    del world


def test_two_arrays_over_the_same_memory(world):
    total = np.zeros(100)
    half = total[:50]

    @synk.sequence
    def body(y):
        add_array(total, np.ones(100))
        add_array(y, half)

    with pytest.raises(ArgumentError, match="over the same memory, and calls write to one of them"):
        body(synk.variable(np.zeros(50)))
    del world


@pytest.mark.parametrize(
    "get",
    [lambda h: h[0], lambda h: h[0][...], lambda h: h[1].reshape(())],
    ids=["0-d", "[...]", "view"],
)
def test_a_number_in_an_array_of_no_dimensions(world, get):
    """A call takes its number, not the array."""
    holder = np.array(1.0), np.ones(1)
    direct, get_it = holder[0], get

    @synk.sequence
    def body(y):
        add(y, direct)
        add(y, get_it(holder))

    y = synk.variable(np.zeros(4))
    for number in (1.0, 1.0, 10.0, 10.0, 1.0):
        for one in holder:
            one[...] = number
        body(y, times=2)
    assert_array_equal(y.get_value(world.world_size - 1), np.full(4, 4 * 23.0))
    assert body._traced == 2  # the numbers of before are known


def test_an_array_is_replaced_by_one_of_another_length(world):
    outside = np.ones(200)

    @synk.sequence
    def body(y):
        add_array(y, outside)

    y = synk.variable(np.zeros(2))
    body(y)
    outside = np.full(100, 10.0)
    body(y)
    assert_array_equal(y.get_value(0), [11.0, 11.0])
    del world


RNG, OLD, PYTHONS = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
DRAWS = {
    "numpy.random": np.random.rand,
    "a generator": RNG.random,
    "a RandomState": OLD.rand,
    "random": random.random,
    "a Random": PYTHONS.random,
}


@pytest.mark.parametrize("case", DRAWS)
def test_random_numbers_of_the_body_are_refused(world, case):
    draw = DRAWS[case]

    @synk.sequence
    def body(y):
        add(y, draw())

    y = synk.variable(np.zeros(4))
    with pytest.raises(
        ArgumentError,
        match=r"body \(.*\) draws random numbers in its body, which runs once.*synk.random",
    ):
        body(y)
    assert_array_equal(y.get_value(0), np.zeros(4))
    del world


class Simulation:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    @synk.sequence
    def step(self, y):
        add(y, self.rng.random())


def test_random_numbers_of_an_object_are_refused(world):
    with pytest.raises(ArgumentError, match=r"step \(.*\) draws random numbers in its body"):
        Simulation().step(synk.variable(np.zeros(4)))
    del world


PASSED = {
    "a generator": lambda: np.random.default_rng(1),
    "its method": lambda: np.random.default_rng(1).random,
    "a RandomState": lambda: np.random.RandomState(1),
    "a Random": lambda: random.Random(1),
    "a method of one": lambda: random.Random(1).random,
    "in a tree": lambda: {"rng": [np.random.default_rng(1)]},
    "in an object": Simulation,
    "static": lambda: synk.static(np.random.default_rng(1)),
}


def drawn(given):
    while not callable(given) and not hasattr(given, "random"):
        given = (
            given.rng
            if isinstance(given, Simulation)
            else next(iter(given.values() if isinstance(given, dict) else given))
        )
    return given() if callable(given) else given.random()


@pytest.mark.parametrize("case", PASSED)
def test_random_numbers_of_an_argument_are_refused(world, case):
    @synk.sequence
    def body(y, given):
        add(y, drawn(given))

    y, given = synk.variable(np.zeros(4)), PASSED[case]()
    with pytest.raises(ArgumentError, match=r"body \(.*\) draws random numbers in its body"):
        body(y, given)
    assert_array_equal(y.get_value(0), np.zeros(4))

    @synk.sequence
    def only_gets_it(y, given):
        add(y, 1.0)

    only_gets_it(y, given)
    del world


def test_a_generator_without_a_seed_is_refused():
    with pytest.raises(
        ArgumentError, match=r"body .*np\.random\.default_rng\(\) has other numbers each time"
    ):

        @synk.sequence
        def body(y):
            add(y, np.random.default_rng().random())


def test_a_generator_with_a_seed_is_a_constant(world):
    @synk.sequence
    def body(y):
        add(y, np.random.default_rng(3).random())

    y = synk.variable(np.zeros(4))
    body(y)
    assert_array_equal(y.get_value(0), np.full(4, np.random.default_rng(3).random()))
    del world


def test_a_kernel_that_the_body_decorates(world):
    def plain(y, n):
        i = cuda.grid(1)
        if i < y.size:
            y[i] += n

    @synk.sequence
    def body(y):
        synk.parallel(cuda.jit(plain), inout=("y",))(y, getattr(y, "missing", 2.0))

    y = synk.variable(np.zeros(4))
    body(y, times=3)
    assert_array_equal(y.get_value(world.world_size - 1), np.full(4, 6.0))


def test_what_is_not_read_makes_no_other_sequence(world):
    holder = Plain()

    @synk.sequence
    def body(y):
        add(y, holder.n)

    found, traced = sums(world, body, lambda: setattr(holder, "other", 3))
    assert traced == body._traced == 1
    assert_array_equal(found[0], np.full(4, 3.0))


class Kept:
    """Its attributes are set by name, and many of them are not for the body."""

    def __init__(self, **given):
        self.__dict__.update(given)

    def __repr__(self):
        return f"Kept({vars(self)})"

    def rate(self):
        return self.n if hasattr(self, "n") else 1.0


def test_what_other_methods_look_at_makes_no_other_sequence(world):
    holder = Kept(n=1.0, dir="out", vars=3, history=[])

    @synk.sequence
    def body(y):
        add(y, holder.rate() if holder.dir == "out" and holder.vars else 0.0)

    y = synk.variable(np.zeros(4))
    for call in range(4):
        body(y)
        holder.history.append(call)
        holder.last = call
    assert body._traced == 1
    holder.n = 8.0
    body(y)
    assert_array_equal(y.get_value(0), np.full(4, 12.0))
    del world


def test_another_object_is_not_taken_for_the_first(world):
    @synk.sequence
    def body(y, one):
        add(y, getattr(one, "n") + one.shift)  # noqa: B009  # what is tested

    y = synk.variable(np.zeros(4))
    for n in (1.0, 5.0):
        body(y, Kept(n=n, shift=0.0))
    assert_array_equal(y.get_value(0), np.full(4, 6.0))
    del world


class Logged:
    def __init__(self, y):
        self.y, self.history = y, []

    @synk.sequence
    def step(self):
        add(self.y, 1.0)


def test_what_only_init_names_makes_no_other_sequence(world):
    one = Logged(synk.variable(np.zeros(4)))
    traced = Logged.step._traced
    for call in range(3):
        one.step()
        one.history.append(call)
    assert Logged.step._traced == traced + 1
    assert_array_equal(one.y.get_value(0), np.full(4, 3.0))
    del world


def total_of(function, *args, times=1):
    y = synk.variable(np.zeros(4))
    for arg in args:
        function(y, arg, times=times)
    return y.get_value(0)[0]


BY_ARRAY = {
    "an element": lambda y, p: add(y, p[0]),
    "a condition": lambda y, p: add(y, 5.0 if p[0] > 2 else 1.0),
    "a sum": lambda y, p: add(y, p.sum()),
    "a loop": lambda y, p: add(y, sum(value for value in p)),
    "a computed array": lambda y, p: add_array(y, np.resize(2 * p, 4) / 2),
    "NumPy's function": lambda y, p: add(y, float(np.dot(p, np.array([1.0, 0.0])))),
}


@pytest.mark.parametrize("case", BY_ARRAY)
@pytest.mark.parametrize("make", [np.array, synk.data])
def test_what_the_body_reads_of_an_argument(world, case, make):
    body = synk.sequence(BY_ARRAY[case])
    p = make(np.array([1.0, 0.0]))
    y = synk.variable(np.zeros(4))
    body(y, p)
    body(y, p)
    traced = body._traced
    p[0] = 5.0
    body(y, p)
    assert traced == 1
    assert y.get_value(0)[0] == 7.0
    del world


def test_an_argument_that_is_only_passed_makes_no_other_recording(world):
    @synk.sequence
    def body(y, p):
        add_array(y, p)

    assert total_of(body, np.ones(4), np.full(4, 5.0)) == 6.0
    assert body._traced == 1
    del world


@synk.function(outputs="sum")
def rows(x):
    return x.sum()


def test_rows_that_an_argument_selects(world):
    x = np.arange(10.0)

    @synk.sequence
    def body(x, index):
        return rows(x, batch=index)

    shared = synk.data(x)
    assert [float(body(shared, np.array(index))) for index in ([0, 1], [8, 9], [8, 9], [1, 0])] == [
        1.0,
        17.0,
        17.0,
        1.0,
    ]
    del world


@synk.function
def add_of_object(y, one):
    y += one.n


def test_an_object_that_a_function_takes(world):
    one = Plain()

    @synk.sequence
    def by_argument(y, one):
        add_of_object(y, one)

    @synk.sequence
    def from_outside(y):
        add_of_object(y, one)

    y = synk.variable(np.zeros(4))
    for value in (1.0, 5.0):
        one.n = value
        by_argument(y, one)
        from_outside(y)
    assert_array_equal(y.get_value(0), np.full(4, 12.0))
    del world


VIEWS = {
    "reshaped": lambda: np.zeros(12).reshape(3, 4)[0],
    "transposed": lambda: np.zeros((4, 3)).T[1],
    "reversed": lambda: np.zeros(4)[::-1],
    "a window": lambda: np.lib.stride_tricks.sliding_window_view(np.zeros(7), 4, writeable=True)[2],
    "of a buffer": lambda: np.frombuffer(bytearray(32)),
}


@pytest.mark.parametrize("case", VIEWS)
def test_views_are_written_and_read_anew(world, case):
    view = VIEWS[case]()

    @synk.sequence
    def body(y):
        add(view, 1.0)
        add_array(y, view)

    y = synk.variable(np.zeros(4))
    body(y)
    view[:] = 10
    body(y)
    assert_array_equal(view, np.full(4, 11.0))
    assert_array_equal(y.get_value(0), np.full(4, 12.0))
    assert body._traced == 1
    del world


def test_an_argument_that_the_body_has_from_outside_too(world):
    outside = np.zeros(4)

    @synk.sequence
    def body(a):
        add(a, 1.0)
        add(outside, 10.0)

    with pytest.raises(ArgumentError, match="over the same memory"):
        body(outside)
    shared = synk.data(np.zeros(4))
    view = np.asarray(shared)

    @synk.sequence
    def other():
        add(shared, 1.0)
        add(view, 10.0)

    with pytest.raises(ArgumentError, match="over the same memory"):
        other()
    del world


def test_a_read_only_array_that_is_written(world):
    outside = np.zeros(4)
    outside.setflags(write=False)

    @synk.sequence
    def body():
        add(outside, 1.0)

    with pytest.raises(ArgumentError, match=r"read-only|cannot be written"):
        body()
    del world


def test_zeros_and_ones_of_other_kinds(world):
    sign = [0.0]

    @synk.sequence
    def body(y):
        add(y, float(np.copysign(1.0, sign[0])))

    y = synk.variable(np.zeros(4))
    body(y)
    sign[0] = -0.0
    body(y)
    assert_array_equal(y.get_value(0), np.zeros(4))
    del world


class Base:
    def __init__(self):
        self.y = synk.variable(np.zeros(4))

    @synk.sequence
    def step(self):
        add(self.y, 1.0)


class Derived(Base):
    @synk.sequence
    def step(self):
        super().step()
        add(self.y, 10.0)


def test_a_method_may_call_the_one_that_it_overrides(world):
    one = Derived()
    one.step(times=2)
    one.step.submit(times=3).result()
    assert_array_equal(one.y.get_value(0), np.full(4, 55.0))
    assert "add" in str(one.step.plan(times=2))
    del world


class Bad:
    def __getattr__(self, name):
        raise KeyError(name)


def test_an_exception_of_an_object_is_not_the_end(world):
    holder = SimpleNamespace(n=1.0, extra=None)

    @synk.sequence
    def body(y):
        add(y, holder.n + (holder.extra is None))

    y = synk.variable(np.zeros(4))
    body(y)
    holder.extra, holder.n = Bad(), 5.0
    body(y)
    assert_array_equal(y.get_value(0), np.full(4, 7.0))
    del world


def test_objects_of_calls_are_freed(world):
    one = Plain()

    @synk.sequence
    def body(y, one):
        add(y, one.n)

    y = synk.variable(np.zeros(4))
    for _ in range(2):
        body(y, one)
        body(y, Plain(5.0))
    reference, one = weakref.ref(one), None
    assert reference() is None
    assert_array_equal(y.get_value(0), np.full(4, 12.0))
    del world


STORES = [
    "self.t += 1.0",
    "self.a, self.b = self.b, self.a",
    "self['t'] = 1.0",
    "del self.t",
    "self.rows[0] = 2",
    "self.a.t = 1",
    "self.seen.append(add(self.y, 1.0))",
    "self.kept['a'].insert(0, 1.0)",
]


@pytest.mark.parametrize("store", [*STORES, "global T\n    T = 1"])
def test_assignments_to_what_outlives_the_body_are_refused(store, tmp_path):
    path = tmp_path / "body.py"
    path.write_text(f"def step(self):\n    {store}\n    add(self.y, 1.0)\n")
    names = {"add": add}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ArgumentError, match=r"body.py:[23]\): .* would be (assigned|called) once"):
        synk.sequence(names["step"])


COUNT, LAST, LOG, TABLE, KEPT = 0, None, [], {}, []


class Counter:
    n, value = 0, 1.0

    @functools.cached_property
    def factor(self):
        return 1.0


COUNTER = Counter()


def counts():
    global COUNT  # noqa: PLW0603  # what is tested
    COUNT += 1
    return 1.0


def logs():
    LOG.append(len(LOG))
    return 1.0


def sets():
    setattr(COUNTER, "n", COUNTER.n + 1)  # noqa: B010  # what is tested
    return 1.0


def alternates():
    COUNTER.value = -COUNTER.value
    return COUNTER.value


def looks_up():
    if "one" not in TABLE:
        TABLE["one"] = 1.0
    return TABLE["one"]


def remembers():
    global LAST  # noqa: PLW0603  # as above
    if LAST is None:
        LAST = 1.0
    return LAST


def makes_once():
    if not KEPT:
        KEPT.append(1.0)
    return KEPT[0] * COUNTER.factor


@pytest.mark.parametrize("helper", [counts, logs, sets, alternates], ids=lambda one: one.__name__)
def test_what_functions_of_a_body_change_each_time_is_refused(world, helper):
    """It would be done once, while the body is recorded."""
    y = synk.variable(np.zeros(4))

    @synk.sequence
    def body(y):
        add(y, helper())

    says = (
        r"body \(.*test_sequence_outside\.py:\d+\) changes (COUNT|LOG|n|value), itself or in a "
        r"function that it calls\. .*"
    )
    for _ in range(2):
        with pytest.raises(ArgumentError, match=rf"{says}synk\.carry.*every=1"):
            body(y, times=3)
    assert_array_equal(y.get_value(0), np.zeros(4))

    @synk.sequence
    def of_an_argument(y, counter):
        counter.move()
        add(y, counter.n)

    class Moving(Counter):
        def move(self):
            self.n += 1

    with pytest.raises(ArgumentError, match=r"of_an_argument \(.*\) changes n,"):
        of_an_argument(y, Moving())
    del world


@pytest.mark.parametrize("helper", [looks_up, remembers, makes_once], ids=lambda one: one.__name__)
def test_functions_of_a_body_may_fill_a_cache(world, helper):
    @synk.sequence
    def body(y):
        add(y, helper())
        synk.swap(y, z)
        add(y, helper())

    y, z = synk.variable(np.zeros(4)), synk.variable(np.ones(4))
    for _ in range(2):
        body(y, times=3)
    assert_array_equal(y.get_value(0), np.full(4, 6.0))
    assert_array_equal(z.get_value(0), np.full(4, 7.0))
    del world


def test_what_the_body_makes_may_be_assigned_to(world):
    @synk.sequence
    def body(y):
        numbers = {}
        numbers["n"] = 2.0
        add(y, numbers["n"])

    y = synk.variable(np.zeros(4))
    body(y, times=2)
    assert_array_equal(y.get_value(0), np.full(4, 4.0))
    del world


def test_arrays_that_are_read_and_written(world):
    """The body would read them before its calls write them."""
    p, y = synk.data(np.zeros(3)), synk.data(np.zeros(3))

    @synk.sequence
    def reads_later(y, p):
        add_rows(p, 1.0)
        add_rows(y, p.sum())

    @synk.sequence
    def reads_first(y, p):
        add_rows(y, float(p[0]))
        add_rows(p, 1.0)

    @synk.sequence
    def reads_other(y, p):
        add_rows(y, float(p[0]))

    for body in (reads_later, reads_first):
        with pytest.raises(
            synk.ArgumentError,
            match=rf"test_sequence_outside.py:\d+: {body.name} reads an array that its calls",
        ):
            body(y, p, times=3)
        with pytest.raises(synk.ArgumentError, match="reads an array that its calls write"):
            body.plan(y, p, times=3)
    reads_other(y, p, times=3)
    p[0] = 2.0
    reads_other(y, p, times=3)
    assert_array_equal(y.data, np.full(3, 6.0))
    assert_array_equal(p.data, [2.0, 0.0, 0.0])


def test_an_argument_that_is_a_dict_of_a_matrix():
    matrix = sparse.dok_matrix(np.diag(np.arange(1.0, 5.0)))

    @synk.function(outputs="sum")
    def total(matrix):
        return matrix.sum()

    @synk.sequence
    def body(matrix):
        return total(matrix)

    with synk.fork(2, device="cpu"):
        assert total(matrix) == body(matrix) == 20  # each rank has all of it
        with pytest.raises(synk.DataError, match="dtype object"):
            synk.variable(matrix)
