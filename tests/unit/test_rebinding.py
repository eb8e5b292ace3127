"""`new = x.sum(0)` where `new` is to be written in place: refused at definition if the source
shows it with certainty.
"""

# ruff: noqa: B007, B020, F841, PLW0131, RUF059, SIM108, RET504, PLW2901, RUF005, PLR1704  # names assigned and lost are what is tested

import inspect
import math
import re

import numpy as np
import pytest
from numba import cuda, float32

import synknumba as synk

V = synk.variable(np.zeros(3), name="v")
TREE = synk.variable({"w": np.zeros(3)}, name="tree")
SUM = synk.output("sum", shape=(), dtype="float64")


def fill(array):
    array[:] = 1


def decorated(function, role):
    match role:
        case "updates":
            return synk.function(updates={"new": (V, "sum")})(function)
        case "tree":
            return synk.function(updates={"new": (TREE, "sum")})(function)
        case "inout":
            return synk.function(inout=("y",), outputs="sum")(function)
        case "kernel":
            return synk.parallel(inout=("y",))(function)
        case "given":
            return synk.function(givens={"w": V}, outputs="sum")(function)
        case "given tree":
            return synk.function(givens={"w": TREE}, outputs="sum")(function)
        case "given array":
            return synk.function(givens={"w": np.zeros(3)}, outputs="sum")(function)
        case "old":
            return synk.function(givens={"w": V}, updates={"new": (V, "sum")}, outputs="sum")(
                function
            )
        case "given to a kernel":
            return synk.parallel(givens={"w": V})(function)
        case "output":
            return synk.parallel(outputs={"total": SUM})(cuda.jit(function))
        case "accumulator":
            return synk.parallel(updates={"new": (V, "sum")})(function)
    raise ValueError(role)


LOST, RIGHT = [], []


def lost(role, line, advice):
    """A function whose line `line`, counted from its `def`, is refused with this advice."""

    def note(function):
        LOST.append(pytest.param(function, role, line, advice, id=function.__name__))
        return function

    return note


def right(role):
    def note(function):
        RIGHT.append(pytest.param(function, role, id=function.__name__))
        return function

    return note


# ---- functions of arrays


@lost("updates", 1, "new += x.sum(0), or new[:] = x.sum(0)")
def a_sum(x, new):
    new = x.sum(0)


@lost("updates", 2, "new += x.sum(0), or new[:] = new + x.sum(0)")
def added(x, new):
    print(new.shape, new[0] > 0)
    new = new + x.sum(0)


@lost("updates", 1, "new -= x.sum(0), or new[:] = new - x.sum(0)")
def a_step(x, new):
    new = new - x.sum(0)
    new /= 2


@lost("updates", 3, "new += g, or new[:] = g")
def in_a_branch(x, new):
    g = x.sum(0)
    if len(x) > 2:
        new = g
    else:
        new = -g


@lost("updates", 2, "new += g, or new[:] = g")
def in_a_loop(x, new):
    for g in x:
        new = g


@lost("updates", 1, "new += x.sum(0), or new[:] = x.sum(0)")
def one_of_two(x, new):
    count, new = len(x), x.sum(0)
    assert count


@lost("updates", 1, "new += ..., or new[:] = ...")
def unpacked(x, new):
    new, *others = x


@lost("updates", 1, "new += x.sum(0), or new[:] = x.sum(0)")
def named_in_a_statement(x, new):
    (new := x.sum(0))
    new += 1


@lost("inout", 1, "y[:] = 2 * x")
def named_in_an_expression(x, y):
    if (y := 2 * x).any():
        return y.sum()
    return 0


@lost("inout", 2, "Give the variable of the loop another name. Write y[:] = ...")
def the_variable_of_a_loop(x, y):
    total = 0
    for y in x:
        total += y.sum()
    return total


@lost("inout", 1, "Give the variable of the loop another name. Write y[:] = ...")
def written_after_a_loop(x, y):
    for i, y in enumerate(x):
        print(i)
    y[:] = x[0]


@lost("inout", 1, "Give the variable of the with statement another name. Write y[:] = ...")
def the_variable_of_a_with_statement(x, y):
    with np.errstate(all="ignore"), memoryview(x) as y:
        return y[0]


@lost(
    "inout",
    2,
    "Pass x, y in the other order at the next call, or exchange variables by synk.swap(x, y)",
)
def exchanged(x, y):
    y[:] = 2 * x
    x, y = y, x


@lost("updates", 1, "new += x.sum(0), or new[:] = x.sum(0)")
def annotated(x, new):
    new: object = x.sum(0)


@lost("tree", 1, "new[key] += ...")
def a_tree(x, new):
    new = {"w": x.sum(0)}


@lost("inout", 1, "y[:] = 2 * x")
def doubled(x, y):
    y = 2 * x


@lost("inout", 1, "y[:] = 2 * x")
def then_written(x, y):
    y = 2 * x
    y[0] = 0


@lost("inout", 2, "y += 1, or y[:] = y + 1")
def raised_and_returned(x, y):
    a = y / 2 - y.mean()
    y = y + 1
    return y.sum() + a.sum()


@lost("inout", 1, "y[:] = a * x + y")
def axpy(a, x, y):
    y = a * x + y


@lost("inout", 1, "y[:] = np.maximum(y, 0)")
def clipped(y):
    y = np.maximum(y, 0)


@lost("inout", 1, "y[:] = ...")
def by_a_long_expression(x, y):
    y = 1 + x + x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120 + x**6 / 720 + x**7 / 5040


@lost("inout", 3, "y[:] = x[order]")
def after_other_uses(x, y):
    order = np.argsort(x)
    x = x * (y[0] > 0)
    y = x[order]
    fill(y)


@right("updates")
def in_place(x, new):
    new += x.sum(0)


@right("updates")
def by_elements(x, new):
    new[:] = x.sum(0)
    new = None


@right("updates")
def by_out(x, new):
    np.sum(x, 0, out=new)
    new = new / 2


@right("updates")
def by_a_function(x, new):
    fill(new)
    new = x


@right("updates")
def under_another_name(x, new):
    accumulator = new
    new = x.sum(0)
    accumulator += new


@right("updates")
def by_an_inner_function(x, new):
    def add(g):
        new[:] += g

    add(x.sum(0))


@right("updates")
def inner_parameters(x, new):
    def double(new):
        new = 2 * new
        return new

    fill(new)
    return double(x)


@right("updates")
def a_variable_of_an_inner_function(x, new):
    def double():
        new = x
        return new

    double()
    new += 1


@right("updates")
def not_written(x, new):
    assert new.shape == x.shape[1:]


@right("tree")
def leaves(x, new):
    for one in new.values():
        one += 1
    new = None


@right("inout")
def written_then_reshaped(x, y):
    y[:] = 2 * x
    y = y.reshape(-1)
    return y.sum()


@right("inout")
def a_view(x, y):
    y = y.reshape(-1)
    y += 1
    return y.sum()


@right("inout")
def another_view(x, y):
    y = y.T
    y[:] = x.T


@right("inout")
def part_of_it(x, y):
    y = y[1:]
    y *= 2
    return y.sum()


@right("inout")
def perhaps_a_copy(x, y):
    y = np.atleast_2d(y)
    y += x


@right("inout")
def either(x, y):
    y = y if len(x) else x
    y += 1


@right("inout")
def a_list(x, y):
    y = y + [x]
    y[0] += 1


@right("inout")
def another_list(x, y):
    both = y + [x]
    both[0] += 1
    y = x


@right("inout")
def in_a_branch_only(x, y):
    if len(x) > 100:
        y = 2 * x
    y[:] = x


@right("inout")
def written_in_a_loop(x, y):
    for _ in range(3):
        y += 1
        y = y[1:]


@right("inout")
def by_its_name(x, y):
    locals()["y"][:] = x
    y = x


@right("inout")
def by_augmented_assignment(x, y):
    y += x


@right("inout")
def as_a_target(x, y):
    y[0], y[1:] = 1, x[1:]


@right("inout")
def a_variable_of_a_loop(x, y):
    y[:] = 0
    for y in x:
        assert y.ndim == 0


@right("inout")
def rows_that_a_loop_writes(x, y):
    for y in y:
        y += 1


@right("inout")
def exchanged_in_a_loop(x, y):
    for _ in range(4):
        y[:] = 2 * x
        x, y = y, x


@right("inout")
def exchanged_and_returned(x, y):
    y[:] = 2 * x
    x, y = y, x
    return y.sum()


@right("inout")
def written_and_named(x, y):
    y[:] = 2 * x
    return (y := y.ravel())[0]


@right("inout")
def of_a_comprehension(x, y):
    y[:] = sum(y for y in x)


# ---- variables in givens=: a local of that name is right if it is read


@lost("given", 2, "w -= g, or w[:] = w - g")
def an_update(x, w):
    g = x.sum(0)
    w = w - g


@lost("given", 3, "w -= 0.1 * g, or w[:] = w - 0.1 * g")
def after_a_call(x, w):
    g = np.outer(x, w).sum(0)
    loss = (g * w).sum()
    w = w - 0.1 * g
    return loss


@lost("given", 2, "w[:] = np.maximum(w, 0)")
def in_one_branch(x, w):
    if len(x):
        w = np.maximum(w, 0)
    return x.sum()


@lost("given tree", 1, "w[key] += ...")
def a_given_tree(x, w):
    w = {"w": w["w"] - x.sum(0)}


@lost("old", 2, "Accumulate into the parameter that updates= names")
def the_old_value(x, w, new):
    new += x.sum(0)
    w = w + 1


@lost("given to a kernel", 2, "w[i] = w[i] - x[i]")
def an_element_of_a_variable(x, w):
    i = cuda.grid(1)
    w = w[i] - x[i]


@lost("given", 1, "w /= 2, or w[:] = w / 2")
def with_another(x, w):
    w, n = w / 2, len(x)
    return n


@lost("given", 1, "w -= x.sum(0), or w[:] = w - x.sum(0)")
def named(x, w):
    (w := w - x.sum(0))


@lost("given", 1, "w -= x.sum(0), or w[:] = w - x.sum(0)")
def twice(x, w):
    w = new = w - x.sum(0)


@lost("given", 2, "Give the variable of the loop another name. Write w[:] = ...")
def of_a_loop(x, w):
    n = 0
    for w in x:
        n += 1
    return n


@lost(
    "given",
    2,
    "Pass w, x in the other order at the next call, or exchange variables by synk.swap(w, x)",
)
def exchanged_with_an_argument(x, w):
    w += x.sum(0)
    w, x = x, w


@right("given")
def read_later(x, w):
    w = w - x.mean(0)
    return (w**2).sum()


@right("given")
def read_in_a_loop(x, w):
    for row in x:
        w = w - row
    return 0


@right("given")
def read_in_an_inner_function(x, w):
    def norm():
        return (w**2).sum()

    w = w - x.sum(0)
    return norm()


@right("given")
def written_too(x, w):
    w -= x.sum(0)
    w = w.ravel()


@right("given")
def dropped(x, w):
    w -= x.sum(0)
    w = None


@right("given")
def one_of_two_is_read(x, w):
    w, n = np.frexp(w)
    return n


@right("given")
def named_and_read(x, w):
    return np.abs(w := w - x.sum(0)).sum()


@right("given")
def named_in_a_condition(x, w):
    while (w := w / 2).any():
        pass


@right("given")
def rows_of_a_loop(x, w):
    total = w.sum()
    for w in x:
        total += w.sum()
    return total


@right("given")
def a_counter(x, w):
    total = w.sum()
    for w in range(3):
        total += 1
    return total


@right("given")
def chained(x, w):
    w = new = w - x.sum(0)
    return new.sum()


@right("given")
def by_name_later(x, w):
    w = w - x.sum(0)
    return locals()["w"].sum()


@right("given array")
def no_variable(x, w):
    w = w - x.sum(0)


# ---- kernels


@lost("output", 4, "total[i] = acc, or cuda.atomic.add(total, i, acc)")
def an_output(x, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        acc += x[i]
    total = acc


@lost("kernel", 3, "y[i] = 2 * x[i] + y[i]")
def an_element(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y = 2 * x[i] + y[i]


@lost("kernel", 2, "y[i] = math.exp(x[i])")
def in_a_grid_stride(x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y = math.exp(x[i])


@lost("accumulator", 2, "cuda.atomic.add(new, i, x[i, 0])")
def accumulated(x, new):
    i = cuda.grid(1)
    new = x[i, 0]


@lost(
    "output",
    1,
    "Give the variable of the loop another name. Write to its elements: total[i] = ..., or "
    "cuda.atomic.add(total, i, ...)",
)
def a_loop_of_a_kernel(x, total):
    for total in range(3):
        pass


@lost("kernel", 2, "y[i] = 2 * x[i]")
def a_pair_in_a_kernel(x, y):
    i = cuda.grid(1)
    n, y = len(x), 2 * x[i]


@right("output")
def an_atomic_sum(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])


@right("kernel")
def a_row(x, y):
    i = cuda.grid(1)
    if i < len(x):
        y = y[i]
        y[0] = x[i, 0]


@right("kernel")
def shared_first(x, y):
    s = cuda.shared.array(256, float32)
    i = cuda.grid(1)
    s[cuda.threadIdx.x] = x[i]
    y[i] = s[0]


@pytest.mark.parametrize(("function", "role", "line", "advice"), LOST)
def test_refused(function, role, line, advice):
    code = function.__code__
    lines, first = inspect.getsourcelines(function)
    first += next(number for number, text in enumerate(lines) if text.startswith("def "))
    with pytest.raises(synk.ArgumentError) as caught:
        decorated(function, role)
    given = dict.fromkeys(["given", "given tree", "given to a kernel", "old"], "w")
    parameter = {"output": "total", "inout": "y", "kernel": "y", **given}.get(role, "new")
    option = {
        "output": "outputs",
        "inout": "inout",
        "kernel": "inout",
        **dict.fromkeys(given, "givens"),
    }.get(role, "updates")
    start = (
        f"{code.co_name} ({code.co_filename}:{first + line}) assigns to "
        f"{parameter}, which {option}= names"
    )
    assert re.match(re.escape(start), str(caught.value))
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(("function", "role"), RIGHT)
def test_allowed(function, role):
    assert decorated(function, role).py_func is function


# ---- variables that a call passes


def step(w, g, rate):
    w = w - rate * g


def maximum(w, g, rate):
    loss = (w * g).sum()
    if rate > 0:
        w = np.maximum(w, g)
    return loss


def kernel_step(w, g, rate):
    i = cuda.grid(1)
    w = w[i] - rate * g[i]


def used_afterwards(w, g, rate):
    w = w * rate
    return (w + g).sum()


def reshaped(w, g, rate):
    w = w.reshape(-1)
    w -= rate * g


def dropped_at_the_end(w, g, rate):
    w -= rate * g
    w = None


def variables(shape=(3,)):
    return synk.variable(np.zeros(shape), name="w"), synk.variable(np.ones(shape), name="g")


def exchanged_variables(w, g, rate):
    w += g
    w, g = g, w


@pytest.mark.parametrize(
    ("function", "line", "advice"),
    [
        (
            synk.function(exchanged_variables),
            2,
            "Pass w, g in the other order at the next call, or exchange "
            "variables by synk.swap(w, g)",
        ),
        (synk.function(step), 1, "Write w -= rate * g, or w[:] = w - rate * g"),
        (synk.function(maximum, outputs=None), 3, "Write w[:] = np.maximum(w, g)"),
        (
            synk.parallel(cuda.jit(kernel_step)),
            2,
            "Write to its elements: w[i] = w[i] - rate * g[i]",
        ),
    ],
    ids=["exchanged", "step", "maximum", "kernel"],
)
def test_a_variable_that_a_call_passes(function, line, advice):
    code = function.py_func.__code__
    found = re.escape(
        f"{function.name} ({code.co_filename}:{code.co_firstlineno + line}) assigns to w, to which "
        "the call passes a variable, and never reads it again: this rebinds the name, and variable "
        "'w' keeps its values. " + advice
    )
    with pytest.raises(synk.ArgumentError, match=f"^{found}$"):
        function.plan(*variables(), 0.1, world_size=2)
    with synk.fork(2, device="cpu"):
        for call in (function, function.as_serial):
            with pytest.raises(synk.ArgumentError, match=f"^{found}$"):
                call(*variables(), 0.1)


def test_a_tree_and_a_number_that_a_call_passes():
    w, g = variables(())
    function = synk.function(step)
    with pytest.raises(
        synk.ArgumentError, match=re.escape("Write w -= rate * g, or w[...] = w - rate * g")
    ):
        function.plan(w, g, 0.1, world_size=2)
    for tree in (synk.variable({"a": np.zeros(3)}), [w, 1.0]):
        with pytest.raises(
            synk.ArgumentError, match=re.escape("Write to its arrays in place, as in w[key] += ...")
        ):
            function.plan(tree, g, 0.1, world_size=2)


@pytest.mark.parametrize(
    "function", [used_afterwards, reshaped, dropped_at_the_end], ids=lambda one: one.__name__
)
def test_a_local_with_the_name_of_a_variable_that_a_call_passes(function):
    with synk.fork(2, device="cpu"):
        w, g = variables()
        synk.function(function, outputs=None)(w, g, 0.5)
        assert np.array_equal(
            w.get_value(), np.zeros(3) if function is used_afterwards else np.full(3, -0.5)
        )


def test_arrays_and_numbers_that_a_call_passes_may_be_assigned_to():
    with synk.fork(2, device="cpu"):
        synk.function(step)(synk.data(np.zeros(4)), np.ones(4), 0.1)


def test_without_source():
    namespace: dict = {}
    exec("def f(x, y):\n    y = 2 * x", namespace)
    assert synk.function(inout=("y",))(namespace["f"]).name == "f"


def test_source_of_another_function(tmp_path):
    path = tmp_path / "changed.py"
    path.write_text("def f(x, z):\n    z = 2 * x\n")
    namespace: dict = {}
    exec(compile("def f(x, y):\n    y[:] = 2 * x\n", path, "exec"), namespace)
    assert synk.function(inout=("y",))(namespace["f"]).name == "f"


def test_the_wrapper_counts_not_what_it_wraps():
    def wrapper(x, y):
        fill(y)

    def wrapped(x, y):
        y = x

    wrapper.__wrapped__ = wrapped
    assert synk.function(inout=("y",))(wrapper).py_func is wrapper


def test_a_method_in_a_class():
    with pytest.raises(
        synk.ArgumentError, match=r"assigns to y, which inout= names.*y\[:\] = self\.a \* x"
    ):

        class Model:
            a = 2.0

            @synk.function(inout=("y",))
            def double(self, x, y):
                y = self.a * x


def test_what_is_allowed_is_written():
    with synk.fork(2, device="cpu"):
        x, y = synk.data(np.arange(5.0)), synk.data(np.zeros(5))
        decorated(written_then_reshaped, "inout")(x, y)
        assert np.array_equal(y, 2 * np.arange(5.0))
        decorated(a_view, "inout")(x, y)
        assert np.array_equal(y, 2 * np.arange(5.0) + 1)
        decorated(part_of_it, "inout")(x, y)
        assert np.array_equal(y, [1, 6, 5, 14, 18])  # rows 0, 1 and 2, 3, 4
