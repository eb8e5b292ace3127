"""Which parameters a kernel surely only reads; a kernel's source may be another's, and a name
may mean something else.
"""

import functools
import importlib.util
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, uint64
from numba.cuda import threadIdx

from synknumba._source.access import read_parameters
from tests.unit.reads.asked import read, run


def of(value):
    return value


# ---- kernels that read ---------------------------------------------------------------------------


def an_element(x, out):
    for i in range(x.shape[0]):
        out[i] = x[i]


def elements_by_two_indices(m, out):
    for i in range(m.shape[0]):
        for j in range(len(m)):
            out[i] = m[i, j] + m[i][j]


def three_axes(c, out):
    n, k, _ = c.shape
    for i in range(n):
        out[i] = c[i, 0][k - 1] + c[i][0, -1] + c[0][i][1]


def the_element_goes_on(x, out):
    i = 0
    value = x[i]
    other = value
    other += 1
    out[i] = of(x[i]) + other


def sizes(x, m, out):
    out[0] = x.size + m.ndim + m.shape[1] + x.itemsize + len(m) + m.strides[0]


def by_another_array(x, at, out):
    for i in range(len(at)):
        j = at[i]
        out[i] = x[j] + x[at[i] + 1]


def with_arithmetic(x, n, out):
    half, rest = x.size // 2, 1
    i = abs(-1)
    while i < half:
        i += rest
        out[i] = (
            x[min(i, x.size - 1)]
            + x[n]
            + x[i * 2 % 8]
            + x[-1]
            + x[int(out[0])]
            + x[i if i < 3 else 3]
            + x[-i]
        )


def a_new_index(x, out):
    if (i := 3) < x.size:
        out[i] = x[(j := i + 1)] + x[j]


def a_number_that_changes(x, n, out):
    n = n + 1
    n *= 2
    out[0] = x[n]


STEP = np.uint64(2)


def by_constants(x, out):
    i = np.uint64(1)
    i += STEP
    out[0] = x[i + STEP] + x[np.int32(STEP)] + x[uint64(2)]


READS = [
    (an_element, {"x"}),
    (elements_by_two_indices, {"m"}),
    (three_axes, {"c"}),
    (the_element_goes_on, {"x"}),
    (sizes, {"x", "m"}),
    (by_another_array, {"x", "at"}),
    (with_arithmetic, {"x"}),
    (a_new_index, {"x"}),
    (a_number_that_changes, {"x"}),
    (by_constants, {"x"}),
]


@pytest.mark.parametrize(
    ("kernel", "expected"), READS, ids=lambda one: getattr(one, "__name__", "")
)
def test_elements_and_sizes_are_reads(kernel, expected):
    assert read(kernel) == expected
    assert run(kernel) == {"out"}


@cuda.jit
def by_threads(x, m, out):
    i = cuda.grid(1)
    t = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    for k in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        out[k] = x[i] * x[t] + x[cuda.laneid] + x[cuda.threadIdx.x]
    row, column = cuda.grid(2)
    if row < m.shape[0] and column < m.shape[1]:
        cuda.atomic.add(out, 0, m[row, column])


def test_positions_of_threads_are_numbers():
    assert read_parameters(by_threads.py_func, {"x": 1, "m": 2, "out": 1}) == {"x", "m"}


def test_positions_under_other_names_are_numbers():
    from numba.cuda import grid as where

    def by_names(x, out):
        i = where(1)
        out[i] = x[i] + x[threadIdx.x]

    assert read_parameters(by_names, {"x": 1, "out": 1}) == {"x"}


def test_a_global_that_is_no_number_is_not():
    def by_a_slice(x, out):
        out[0] = x[PART][0]

    assert read_parameters(by_a_slice, {"x": 1, "out": 1}) == frozenset()


PART = slice(1, 3)


def test_sizes_of_what_is_not_an_array_are_not_known():
    assert read_parameters(an_element, {"out": 1}) == frozenset()
    assert read_parameters(an_element, {"x": 1, "out": 1}) == {"x"}
    # the index may be anything
    assert read_parameters(by_another_array, {"x": 1, "out": 1}) == frozenset()


# ---- names that mean something else --------------------------------------------------------------


def test_functions_with_the_names_of_others():
    def len(array):  # noqa: A001
        array[0] = 0
        return 1

    def counts(x, out):
        out[0] = len(x)

    assert run(counts) == {"x", "out"}
    assert read(counts) == frozenset()

    range = lambda _: (slice(0, 2),)  # noqa: A001, E731

    def loops(x):
        for s in range(3):
            part = x[s]
            part[0] = 0

    assert run(loops) == {"x"}
    assert read(loops) == frozenset()

    cuda = SimpleNamespace(grid=lambda _: slice(0, 2), threadIdx=SimpleNamespace(x=slice(0, 2)))

    def asks(x):
        i = cuda.grid(1)
        part = x[i]
        part[0] = 0

    def asks_again(x):
        part = x[cuda.threadIdx.x]
        part[0] = 0

    assert run(asks) == run(asks_again) == {"x"}
    assert read(asks) == read(asks_again) == frozenset()


def test_an_array_under_two_names_of_parameters_is_judged_by_name():
    def copies(x, y):
        y[0] = x[0]

    assert read(copies) == {"x"}


# ---- source that is another's --------------------------------------------------------------------


def test_a_function_that_wraps_another():
    @functools.wraps(an_element)
    def wrapper(x, out):
        x[0] = 0
        an_element(x, out)

    assert run(wrapper) == {"x", "out"}
    assert read(wrapper) == frozenset()


def test_source_that_was_changed_since(tmp_path):
    file = tmp_path / "changing.py"
    text = "def kernel(x, out):\n    x[0] = out[0]\n    out[1] = x[1]\n"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("changing", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert run(module.kernel) == {"x", "out"}
    file.write_text(text.replace("x[0] = out[0]", "out[0] = x[0]; 0"))
    assert read(module.kernel) == frozenset()
    spec.loader.exec_module(module)
    assert read(module.kernel) == {"x"}


def test_a_function_without_source():
    space = {}
    exec("def kernel(x, out):\n    out[0] = x[0]\n", space)
    assert read(space["kernel"]) == frozenset()
    same_place = compile(textwrap.dedent("def a_store(x): x[0] = 0"), __file__, "exec")
    exec(same_place, space)
    assert read(space["a_store"]) == frozenset()


def test_a_lambda_is_left_alone():
    kernel = lambda x: x[0]  # noqa: E731
    assert read(kernel) == frozenset()


def test_a_field_of_an_element_is_stored_to():
    def by_attribute(x, out):
        x[0].a = out[0]

    def by_name(x, out):
        x[0]["a"] = out[0]

    for kernel in (by_attribute, by_name):
        assert read_parameters(kernel, {"x": 1, "out": 1}) == {"out"}
