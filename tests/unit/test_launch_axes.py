"""Kernels that use positions along y or z in a launch without a size there: refused if they certainly index by 0."""

import inspect

import numba
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import blockDim, blockIdx, grid, threadIdx

import synknumba as synk

OUT = {"out": synk.output("gather", like="x")}
FLAT, RIGHT = [], []


def flat(line, index, **launch):
    """A kernel whose line `line`, counted from its `def`, is refused: it indexes by something that is 0 everywhere."""

    def note(function):
        FLAT.append(pytest.param(function, launch, line, index, id=f"{function.__name__}-{len(FLAT)}"))
        return function

    return note


def right(**launch):
    def note(function):
        RIGHT.append(pytest.param(function, launch, id=f"{function.__name__}-{len(RIGHT)}"))
        return function

    return note


@flat(3, "j")
@flat(3, "j", block=128)
@flat(3, "j", block=(128,), grid=4)
@flat(3, "j", grid=(4,))
@right(grid=lambda rows: (rows, 2))
@right(block=(16, 16), grid=(4, 4))
@right(grid=(4, 4))
@right(block=(64, 1), grid=4)
def doubled(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = 2 * x[i, j]


@flat(3, "j")
def spelled_out(x, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    out[i, j] = 2 * x[i, j]


@flat(2, "j")
def imported_names(x, out):
    i, j = blockIdx.x * blockDim.x + threadIdx.x, blockDim.y * blockIdx.y + threadIdx.y
    out[i, j] = x[i, j]


@flat(2, "position[1]")
def as_a_tuple(x, out):
    position = numba.cuda.grid(2)
    out[position[0], position[1]] = 1


AXES = 2
positions_in_the_grid = grid


@flat(2, "j")
def under_another_name(x, out):
    i, j = positions_in_the_grid(2)
    out[i, j] = x[i, j]


class Settings:
    axes = 3


@flat(2, "j")
def axes_by_name(x, out):
    i, j = cuda.grid(AXES)
    out[i, j] = x[i, j]


@flat(3, "j")
def axes_in_a_variable(x, out):
    n = 2
    i, j = cuda.grid(n)
    out[i, j] = x[i, j]


@flat(2, "k")
def axes_of_a_class(x, out):
    _, _, k = cuda.grid(Settings.axes)
    out[k] = x[k]


@flat(2, "position")
def a_whole_tuple(x, out):
    position = grid(2)
    out[position] = 1


@flat(2, "j")
def by_rows(x, out):
    i, j = cuda.grid(2)
    out[i][j] = 1


@flat(2, "j")
def by_an_atomic(x, out):
    i, j = cuda.grid(2)
    cuda.atomic.add(out, (i, j), x[i, 0])


@flat(1, "cuda.threadIdx.y")
def in_the_brackets(x, out):
    out[cuda.grid(1), cuda.threadIdx.y] = 1


@flat(2, "k", block=(16, 16), grid=(4, 4))
@flat(2, "j")
@right(block=(8, 8, 4), grid=1)
def in_three_axes(x, out):
    i, j, k = cuda.grid(3)
    out[i, j, k] = x[i, j, k]


@flat(3, "b")
def a_batch(x, out):
    i = cuda.grid(1)
    b = cuda.blockIdx.y
    out[b, i] = x[b, i]


@right()
def one_axis(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


@right()
def the_first_of_two(x, out):
    i, _ = cuda.grid(2)
    out[i, 0] = x[i, 0]


@right()
def strides(x, out):
    first, start = cuda.grid(2)
    rows, columns = cuda.gridsize(2)
    for i in range(first, x.shape[0], rows):
        for j in range(start, x.shape[1], columns):
            out[i, j] = x[i, j]


@right()
def strides_of_a_block(x, out):
    ty = cuda.threadIdx.y
    i = cuda.grid(1)
    for j in range(ty, x.shape[1], cuda.blockDim.y):
        out[i, j] = x[i, j]
    out[i, ty] += 1


@right()
def a_while_loop(x, out):
    i, j = cuda.grid(2)
    while i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]
        j += cuda.gridDim.y * cuda.blockDim.y


@right()
def any_launch(x, out):
    if cuda.blockDim.y == 1:
        for j in range(x.shape[1]):
            out[cuda.grid(1), j] = 1
    else:
        i, j = cuda.grid(2)
        out[i, j] = 1


@right()
def a_flat_index(x, out):
    tid = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    out[cuda.blockIdx.x * cuda.blockDim.x + tid] = x[tid]


@right()
def a_guard(x, out):
    i = cuda.grid(1)
    if cuda.threadIdx.y == 0 and cuda.blockIdx.y == 0:
        out[i] = x[i]


@right()
def shared_by_position(x, out):
    s = cuda.shared.array((4, 256), float32)
    s[cuda.threadIdx.y, cuda.threadIdx.x] = x[cuda.grid(1)]
    out[cuda.grid(1)] = s[cuda.threadIdx.y, cuda.threadIdx.x]


@cuda.jit(device=True)
def position():
    return cuda.grid(2)


@cuda.jit(device=True)
def along_y():
    return cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y


@numba.njit
def position_by_parts():
    i, _ = position()
    return i, along_y()


@cuda.jit(device=True)
def put(to, i, x):
    to[i, cuda.threadIdx.y] = x


@cuda.jit(device=True)
def put_twice(x, to):
    put(to, cuda.grid(1), x)


@cuda.jit(device=True)
def stride():
    return cuda.blockDim.y


@flat(2, "j")
def position_by_a_function(x, out):
    i, j = position()
    out[i, j] = x[i, j]


@flat(2, "j")
def column_by_a_function(x, out):
    i, j = cuda.grid(1), along_y()
    out[i, j] = x[i, j]


@flat(2, "p[1]")
def position_by_functions_of_functions(x, out):
    p = position_by_parts()
    out[p[0], p[1]] = x[0, 0]


@flat(1, "position_by_parts()[1]")
def position_in_the_index(x, out):
    out[cuda.grid(1), position_by_parts()[1]] = x[0, 0]


@flat(1, "cuda.threadIdx.y")
def stored_by_a_function(x, out):
    put_twice(1.0, out)


@right()
def into_shared_by_a_function(x, out):
    s = cuda.shared.array((4, 256), float32)
    put(s, cuda.threadIdx.x, 1.0)
    out[cuda.grid(1)] = s[0, cuda.threadIdx.x]


@right()
def strides_by_a_function(x, out):
    i, j = position()
    while j < x.shape[1]:
        out[i, j] = x[i, j]
        j += stride()


@right()
def first_by_a_function(x, out):
    i = position_by_parts()[0]
    out[i] = x[i]


class Point:
    y = 2


point = Point()


@right()
def another_y(x, out):
    out[cuda.grid(1), point.y] = x[cuda.grid(1), point.y]


def define(function, launch):
    return synk.parallel(outputs=OUT, **launch)(cuda.jit(function))


@pytest.mark.parametrize(("function", "launch", "line", "index"), FLAT)
def test_refused(function, launch, line, index):
    code = function.__code__
    with pytest.raises(synk.LaunchError) as caught:
        define(function, launch)
    text = str(caught.value)
    decorators = sum(text.startswith("@") for text in inspect.getsourcelines(function)[0])
    assert text.startswith(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno + decorators + line})")
    assert f"uses {index} as an index" in text
    assert "block=(16, " in text
    assert "grid=lambda rows" in text


@pytest.mark.parametrize(("function", "launch"), RIGHT)
def test_allowed(function, launch):
    assert define(function, launch).py_func is function


def test_cuda_of_a_closure():
    from numba import cuda as gpu

    def kernel(x, out):
        i, j = gpu.grid(2)
        out[i, j] = x[i, j]

    with pytest.raises(synk.LaunchError, match="without grid= a launch has one thread per row"):
        synk.parallel(outputs=OUT)(kernel)


def test_without_source():
    namespace = {"cuda": cuda}
    exec("def f(x, out):\n    i, j = cuda.grid(2)\n    out[i, j] = x[i, j]", namespace)
    assert synk.parallel(outputs=OUT)(namespace["f"]).name == "f"


def test_the_advice_and_what_is_allowed_are_right():
    x = np.arange(40.0 * 50).reshape(40, 50)
    with synk.fork(2, device="cpu"):
        advised = define(doubled, {"block": (16, 16), "grid": lambda rows: (-(-rows // 16), 4)})
        assert np.array_equal(advised(x), 2 * x)
        assert np.array_equal(define(strides, {})(x), x)
        assert np.array_equal(define(a_while_loop, {})(x), x)


def test_members_under_names_of_their_own_are_known():
    @cuda.jit
    def strided(x, out):
        block, size = cuda.blockIdx, cuda.blockDim
        i = block.x * size.x + cuda.threadIdx.x
        j = block.y * size.y + cuda.threadIdx.y
        out[i, j] = x[i, j]

    with pytest.raises(synk.LaunchError, match="uses j as an index"):
        synk.parallel(outputs=OUT)(strided)


REVERSED, IN_ORDER = [], []


def reversed_axes(line, element, advice, **launch):
    def note(function):
        REVERSED.append(pytest.param(function, launch, line, element, advice, id=function.__name__))
        return function

    return note


def in_order(function):
    IN_ORDER.append(pytest.param(function, id=function.__name__))
    return function


@reversed_axes(3, "v[i, j]", "j, i = cuda.grid(2) for v[i, j]")
def added(v, k):
    i, j = cuda.grid(2)
    if i < v.shape[0] and j < v.shape[1]:
        v[i, j] += k


@reversed_axes(3, "v[i, j]", "j, i = cuda.grid(2) for v[i, j]", block=(16, 16))
def added_by_parts(v, k):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    v[i, j] += k


@reversed_axes(2, "v[a, b, c]", "c, b, a = cuda.grid(3) for v[a, b, c]")
def added_in_three_axes(v, k):
    a, b, c = cuda.grid(3)
    v[a, b, c] += k


@reversed_axes(2, "v[i, j]", "j, i = cuda.grid(2) for v[i, j]")
def of_neighbours(v, w):
    i, j = cuda.grid(2)
    v[i][j] = w[i - 1, j] + w[i, j + 1]


@reversed_axes(2, "v[p[0], p[1]]", "j, i = cuda.grid(2) for u[i, j]")
def by_the_tuple(v, k):
    p = position()
    v[p] += k


@reversed_axes(5, "v[i, j]", "j, i = cuda.grid(2) for v[i, j]")
def a_product(v, w):
    i, j = cuda.grid(2)
    s = 0.0
    for k in range(w.shape[0]):
        s += v[i, k] * w[k, j]
    cuda.atomic.add(v, (i, j), s)


@in_order
def last_along_x(v, k):
    j, i = cuda.grid(2)
    if i < v.shape[0] and j < v.shape[1]:
        v[i, j] += k


@in_order
def transposed(v, w):
    i, j = cuda.grid(2)
    w[i, j] = v[j, i]


@in_order
def compared(v, w):
    i, j = cuda.grid(2)
    if i < v.shape[1] and j < v.shape[0]:
        w[i, j] = 1


@in_order
def by_strides(v, k):
    first, start = cuda.grid(2)
    rows, columns = cuda.gridsize(2)
    for i in range(first, v.shape[0], rows):
        for j in range(start, v.shape[1], columns):
            v[i, j] += k


@in_order
def rows_of_another(v, w):
    i, j = cuda.grid(2)
    w[i, j] = v[j, 0] + v[j, i + 1]


@in_order
def into_shared(v, k):
    s = cuda.shared.array((32, 8), float32)
    s[cuda.threadIdx.x, cuda.threadIdx.y] = k
    j, i = cuda.grid(2)
    v[i, j] = s[cuda.threadIdx.x, cuda.threadIdx.y]


@in_order
def flat_in_one_axis(v, k):
    i = cuda.grid(1)
    v[i] += k


@pytest.mark.parametrize(("function", "launch", "line", "element", "advice"), REVERSED)
def test_the_order_of_axes(function, launch, line, element, advice):
    with pytest.raises(synk.LaunchError) as caught:
        synk.parallel(grid="elements", **launch)(cuda.jit(function))
    text, code = str(caught.value), function.__code__
    decorators = sum(one.startswith("@") for one in inspect.getsourcelines(function)[0])
    assert text.startswith(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno + decorators + line})")
    assert f"as the first index in {element}, but" in text
    assert text.endswith(f"Write {advice}.")


@pytest.mark.parametrize("function", IN_ORDER)
def test_axes_in_order(function):
    assert synk.parallel(grid="elements")(cuda.jit(function)).py_func is function
