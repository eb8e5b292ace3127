"""Errors of Numba in users' functions: the line with a caret, the reason and the way out, in few
lines.
"""

import math
import pickle
import re
import subprocess
import sys
import traceback
from itertools import pairwise

import numba
import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import synknumba as synk
from synknumba import simt
from synknumba.simt.internals import explain
from tests.environment import environment

X = np.arange(10.0)


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


def plain_helper(v):
    return v * 2


@cuda.jit(device=True)
def misspelt_on_a_device(v):
    return math.epx(v)


def misspelt(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = math.epx(x[i])


def misspelt_inside(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = misspelt_on_a_device(x[i])


def undecorated(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 1.0 + plain_helper(x[i])


def wrong_dtype(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 1.0 + (x[i] & 3)


def unknown_attribute(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x.sizes[i]


def undefined(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * nowhere  # noqa: F821


def misspelt_parameter(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        total[i] = totl[i]  # noqa: F821


def too_many_indices(x, y):
    y[0] = x[0, 1]


def stores_with_too_many(x, y):
    y[0, 0, 0] = x[0]


def a_float_as_index(x, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = x[i / 2]


def stores_an_array(x, y):
    y[0] = x


SETTINGS = {"a": 1.0}


class Model:
    slope = 1.0


MODEL = Model()
OBJECTS = [Model()]


def reads_a_dict(x, y):
    y[0] = SETTINGS["a"] * x[0]


def reads_an_object(x, y):
    y[0] = MODEL.slope * x[0]


def reads_a_list_of_objects(x, y):
    y[0] = OBJECTS[0].slope * x[0]


def closing_over(settings):
    def reads_what_it_closes_over(x, y):
        y[0] = settings["a"] * x[0]

    return reads_what_it_closes_over


RANK, rank = synk.RANK, synk.rank


def calls_rank(x, y):
    y[0] = synk.rank()


def calls_world_size(x, y):
    y[0] = synk.world_size()


def reads_rank(x, y):
    y[0] = synk.RANK


def reads_world_size(x, y):
    y[0] = x[0] * synk.WORLD_SIZE


def reads_an_imported_rank(x, y):
    y[0] = RANK


def calls_an_imported_rank(x, y):
    y[0] = rank()


CASES = [  # a kernel, the text under the caret, what the message says
    (misspelt, "math.epx", "'math' has no attribute 'epx'", "Did you mean math.exp?"),
    (misspelt_inside, "math.epx", "misspelt_on_a_device (", "Did you mean math.exp?"),
    (undecorated, "plain_helper", "plain_helper (", "@cuda.jit(device=True)"),
    (wrong_dtype, "x[i] & 3", "no operator & for float64 and 3", "Convert an operand"),
    (unknown_attribute, "x.sizes", "'sizes'", "Did you mean x.size?"),
    (undefined, "nowhere", "'nowhere'", "Assign or import it"),
    (misspelt_parameter, "totl", "'totl'", "Did you mean total?"),
    (
        too_many_indices,
        "x[0, 1]",
        "an array of 1 dimension has 2 indices here",
        "Pass an array of 2 dimensions, or use 1 index.",
    ),
    (
        stores_with_too_many,
        "y[0, 0, 0]",
        "an array of 1 dimension has 3 indices here",
        "Pass an array of 3 dimensions",
    ),
    (a_float_as_index, "y[i] = x[i / 2]", "an index is a float64", "divide by // in place of /"),
    (
        stores_an_array,
        "y[0]",
        "an array of 1 dimension is stored where one float64 belongs",
        "Store one of its elements.",
    ),
    (
        reads_a_dict,
        "SETTINGS",
        "SETTINGS is a dict, which Numba cannot use",
        "Pass its numbers as arguments",
    ),
    (reads_an_object, "MODEL", "MODEL is a Model, which Numba cannot use", "use constants"),
    (
        reads_a_list_of_objects,
        "OBJECTS",
        "OBJECTS is a list, which Numba cannot use",
        "use constants",
    ),
    (
        closing_over(SETTINGS),
        "settings",
        "settings is a dict, which Numba cannot use",
        "use constants",
    ),
    (calls_rank, "synk.rank", "no value in compiled code", "pass synk.RANK as"),
    (calls_world_size, "synk.world_size", "no value in compiled code", "pass synk.WORLD_SIZE as"),
    (reads_rank, "synk.RANK", "no value in compiled code", "pass synk.RANK as"),
    (reads_world_size, "synk.WORLD_SIZE", "no value in compiled code", "pass synk.WORLD_SIZE as"),
    (reads_an_imported_rank, "RANK", "no value in compiled code", "pass synk.RANK as"),
    (calls_an_imported_rank, "rank", "no value in compiled code", "pass synk.RANK as"),
]


def marked(message: str) -> str:
    """The part of the source line that a message underlines."""
    above, marks = next(
        (a, b) for a, b in pairwise(message.splitlines()) if re.fullmatch(r" +\^+", b)
    )
    return above[marks.index("^") : len(marks)]


@pytest.mark.parametrize(
    ("function", "under", "reason", "way_out"),
    CASES,
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_kernels(function, under, reason, way_out):
    kernel = synk.parallel(inout=(function.__code__.co_varnames[1],))(cuda.jit(function))
    with pytest.raises(synk.KernelError) as caught:
        kernel(X, np.zeros(10))
    message = str(caught.value)
    assert marked(message) == under
    assert reason in message
    assert way_out in message
    assert __file__ in message.splitlines()[0]
    assert "SYNKNUMBA_FULL_TRACEBACK=1" in message
    assert len(message.splitlines()) == 4
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 40
    assert "raised on rank 0, 1" in caught.value.__notes__[0]


def adds_a_row(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(y, 0, x[i])


def adds_twice_a_row(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(y, 0, 2.0 * x[i])


def takes_the_largest_row(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.max(y, 0, x[i])


def compares_rows(x, y):
    if cuda.grid(1) == 0:
        y[0] = max(y[0], x[0])


def adds_to_an_element(x, y):
    if cuda.grid(1) == 0:
        y[0] += x[0]


ROWS = [  # a kernel that takes rows of a matrix for numbers, the text under the caret, the reason
    (
        adds_a_row,
        "cuda.atomic.add(y, 0, x[i])",
        "cuda.atomic.add needs a number, and gets an array of 1 dimension",
    ),
    (adds_twice_a_row, "cuda.atomic.add(y, 0, 2.0 * x[i])", "cuda.atomic.add needs a number"),
    (takes_the_largest_row, "cuda.atomic.max(y, 0, x[i])", "cuda.atomic.max needs a number"),
    (compares_rows, "max(y[0], x[0])", "Numba has no max"),
    (adds_to_an_element, "y[0] += x[0]", "Numba has no operator +"),
]


@pytest.mark.parametrize(
    ("function", "under", "reason"), ROWS, ids=lambda case: getattr(case, "__name__", "")
)
def test_rows_of_a_matrix_that_stand_for_numbers(function, under, reason):
    kernel = synk.parallel(outputs={"y": synk.output("sum", shape=(), dtype="float64")})(
        cuda.jit(function)
    )
    with pytest.raises(synk.KernelError) as caught:
        kernel(np.zeros((10, 1)))
    message = str(caught.value)
    assert marked(message) == under
    assert reason in message
    assert re.search(
        r"\nx has 2 dimensions, and x\[[i0]\] has 1 index. Pass an array of 1 dimension, such "
        r"as x\.ravel\(\), or use 2",
        message,
    )
    assert "x: float64 (10, 1)" in caught.value.__notes__[0]
    assert "any_order" not in message
    assert len(message.splitlines()) == 4


def between(x, lo, hi, total):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        if lo < x[i] < hi:
            total[i] = x[i]


def test_too_few_indices():
    def adds(x, y):
        cuda.atomic.add(y, 0, x[0])

    kernel = synk.parallel(outputs={"y": synk.output("sum", shape=(2, 2))})(cuda.jit(adds))
    with pytest.raises(synk.KernelError, match=r"\nUse 2 indices, or an array of another shape"):
        kernel(X)


def test_arguments_in_another_order():
    kernel = synk.parallel(outputs={"total": synk.output("gather")})(cuda.jit(between))
    with pytest.raises(synk.KernelError) as caught:
        kernel(-4.0, 4.0, X)
    message = str(caught.value)
    assert marked(message) == "x.shape"
    assert (
        "\nx is a number here, and between uses x.shape. Pass an array as x: the parameters are "
        "x, lo, hi, total, in this order. SYNKNUMBA"
    ) in message


@pytest.mark.parametrize(
    "made",
    [
        synk.vectorize,
        lambda f: synk.vectorize(f, signatures="float64(float64)"),
        synk.expectation,
    ],
    ids=["vectorize", "vectorize with a signature", "expectation"],
)
def test_functions_of_rows(made):
    def slope(v):
        return math.epx(v)

    def calls_plain(v):
        return plain_helper(v)

    def bits(v):
        return v & 3

    def of_a_rank(v):
        return v + synk.rank()

    def of_a_dict(v):
        return v + SETTINGS["a"]

    cases = (
        (slope, "math.epx"),
        (calls_plain, "plain_helper"),
        (bits, "v & 3"),
        (of_a_rank, "synk.rank"),
        (of_a_dict, "SETTINGS"),
    )
    for function, under in cases:
        with pytest.raises(synk.SynkError) as caught:
            made(function)(X)
        assert marked(str(caught.value)) == under
        assert len(str(caught.value).splitlines()) == 4
        assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 45


def test_a_compiled_function_in_an_array_function():
    @numba.njit
    def bits(v):
        return v & 3

    @synk.function(outputs="sum")
    def total(x):
        return bits(x[0])

    with pytest.raises(synk.KernelError, match="no operator & for float64 and 3") as caught:
        total(X)
    assert marked(str(caught.value)) == "v & 3"


def test_an_attribute_that_python_does_not_find_stays_an_error_of_python():
    @synk.function(outputs="sum")
    def total(x):
        return math.epx(x[0])

    with pytest.raises(synk.RankError, match="AttributeError") as caught:
        total(X)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_ranks_are_known_to_an_array_function_whose_compiled_one_fails():
    @numba.njit
    def bits(v):
        return v & 3

    @synk.function(outputs="sum")
    def total(x):
        return bits(x[0]) + synk.rank() + len(SETTINGS)

    with pytest.raises(synk.KernelError, match="no operator & for float64 and 3"):
        total(X)


def test_a_span_of_rows():
    @synk.parallel(inout=("y",))
    @cuda.jit
    def rows(r, y):
        y[0] = r.shape[0]

    with pytest.raises(synk.KernelError, match=r"use r\.start and r\.stop") as caught:
        rows(synk.arange(10), np.zeros(10))
    assert marked(str(caught.value)) == "r.shape"


def test_any_exception_of_the_compiler_names_the_kernel(monkeypatch):
    def kernel(x):
        x[0] = 1

    def compiles(*_):
        raise KeyError("inside")

    monkeypatch.setattr(numba.core.compiler.Compiler, "define_pipelines", compiles)
    try:
        numba.njit(kernel)(X)
    except KeyError as error:
        message = str(explain(error, kernel, anywhere=True))
    assert message.startswith(f"{kernel.__qualname__} ({__file__}:")
    assert "KeyError in Numba's compiler: 'inside'" in message
    assert len(message.splitlines()) == 4
    assert explain(KeyError("of another library"), kernel) is None


@pytest.mark.parametrize(
    "made", [synk.function, synk.vectorize, synk.expectation], ids=lambda made: made.__name__
)
def test_a_kernel_for_a_decorator_of_functions(made):
    for jit, told in ((cuda.jit, "cuda"), (simt.jit, "simt")):
        with pytest.raises(
            synk.ArgumentError, match=rf"wrong_dtype is a kernel.*@{told}\.jit; use @synk\.parallel"
        ):
            made(jit(wrong_dtype))


def test_a_function_that_returns_a_value_is_no_kernel():
    for decorated in (cuda.jit(device=True)(lambda v: 2 * v), numba.njit(lambda v: 2 * v)):
        assert np.array_equal(synk.vectorize(decorated)(X), 2 * X)


def of_dynamic_shared_memory(x, y):
    part = cuda.shared.array(0, np.float64)
    part[cuda.threadIdx.x] = 1.0
    cuda.syncthreads()
    if cuda.grid(1) < y.shape[0]:
        y[cuda.grid(1)] = part[cuda.threadIdx.x] * x[cuda.grid(1)]


def test_dynamic_shared_memory_without_bytes():
    y = np.zeros(10)
    line = of_dynamic_shared_memory.__code__.co_firstlineno + 1
    says = (
        rf"uses dynamic shared memory \({re.escape(__file__)}:{line}\), but "
        rf"smem_bytes is 0; pass smem_bytes="
    )
    kernel = synk.parallel(inout=("y",), block=32)(cuda.jit(of_dynamic_shared_memory))
    for call in (kernel, kernel[1, 32], kernel.check):
        with pytest.raises(synk.LaunchError, match=says):
            call(X, y)
    assert not y.any()
    kernel[1, 32, 0, 32 * 8](X, y)
    assert np.array_equal(y, X)
    enough = synk.parallel(inout=("y",), block=32, smem_bytes=32 * 8)(
        cuda.jit(of_dynamic_shared_memory)
    )
    enough(X, y)
    assert np.array_equal(y, X)


@synk.parallel
@cuda.jit
def shifts(v, by):
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] += by


@synk.function
def shifts_by_numpy(v, by):
    v += by


@synk.sequence
def shifted(v, by, kernel):
    kernel(v, 1.0)
    kernel(v, by)


@pytest.mark.parametrize("by", [1j, None])
def test_the_call_of_a_sequence_is_told(by):
    line = shifted.py_func.__code__.co_firstlineno + 3
    place = (
        rf"in iteration 0 of 2 of shifted, call 2: {{}}\(v: variable float64 \(3,\), by: .*\) "
        rf"\({re.escape(__file__)}:{line}\)"
    )
    with pytest.raises(synk.KernelError, match=r"^shifts \(") as caught:
        shifted(synk.variable(np.zeros(3)), by, shifts, times=2)
    assert [
        re.fullmatch(place.format("shifts"), note) is not None for note in caught.value.__notes__
    ] == [True, False]
    with pytest.raises(synk.RankError, match=place.format("shifts_by_numpy")):
        shifted(synk.variable(np.zeros(3)), by, shifts_by_numpy, times=2)


def test_a_users_op():
    def worst(a, b):
        return math.epx(a) + b

    @synk.function(outputs=worst)
    def first(x):
        return x[0]

    with pytest.raises(synk.ReductionError, match="op worst cannot be compiled") as caught:
        first(X)
    assert marked(str(caught.value)) == "math.epx"
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 40


SCRIPT = """
import math, numpy as np
from numba import cuda
import synknumba as synk

@synk.parallel(inout=("y",))
@cuda.jit
def bits(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] & 3

with synk.fork(1, device="cpu"):
    bits(np.zeros(3), np.zeros(3))
"""


@pytest.mark.parametrize("full", ["0", pytest.param("1", marks=pytest.mark.whole)])
def test_numbas_own_text_is_kept_on_request(tmp_path, full):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    env = environment(SYNKNUMBA_FULL_TRACEBACK=full)
    run = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 1
    assert ("candidate implementations" in run.stderr) == (full == "1")
    assert (len(run.stderr.splitlines()) < 35) == (full == "0")


def first_of_two(x, pair):
    cuda.atomic.add(x, 0, pair); cuda.atomic.add(x, 0, 1.0)  # noqa: E702  # fmt: skip


def two_in_one(x, pair):
    x[1] = cuda.atomic.add(x, 0, pair) + cuda.atomic.add(x, 0, 1.0)


def other_of_two(x, pair):
    cuda.atomic.max(x, 0, pair); cuda.atomic.add(x, 0, 1.0)  # noqa: E702  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "marked"),
    [
        (first_of_two, None),
        (two_in_one, "x[1] = cuda.atomic.add(x, 0, pair) + cuda.atomic.add(x, 0, 1.0)"),
        (other_of_two, "cuda.atomic.max(x, 0, pair)"),
    ],
)
def test_marks_are_below_all_that_an_error_may_be_about(kernel, marked):
    with pytest.raises(synk.KernelError, match="needs a number, and gets a Tuple") as caught:
        simt.jit(kernel)[1, 1](np.ones(3), (1, None))
    _, text, marks, *_ = str(caught.value).splitlines()
    spans = [match.span() for match in re.finditer(r"\^+", marks)]
    assert [text[slice(*span)] for span in spans] == ([] if marked is None else [marked])


def subclasses(kind):
    """Returns all classes below one, with itself."""
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_tracebacks_name_public_classes():
    """Private classes are shown as the public one that they are, and pickle as what they are."""
    public_names = {**vars(simt), **vars(synk)}
    classes = subclasses(synk.SynkError)
    private = [kind for kind in classes if public_names.get(kind.__name__) is not kind]
    assert len(private) >= 6
    for kind in private:
        public = public_names[kind.__name__]
        assert issubclass(kind, public)
        assert (kind.__module__, kind.__qualname__) == (public.__module__, public.__qualname__)
        error = kind("what is wrong")
        error.add_note("where")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert again.args == error.args == ("what is wrong",)
        assert again.__notes__ == ["where"]


def test_a_kernel_whose_types_do_not_fit_is_shown_as_a_kernel_error():
    with pytest.raises(TypingError) as raised:
        simt.jit(wrong_dtype)[1, 16](X, X.copy())
    shown = traceback.format_exception_only(raised.value)[0]
    assert shown.startswith("synknumba._errors.KernelError: ")
