"""Device functions in all their spellings."""

import functools
import math
import operator
import warnings

import numpy as np
from numba import cuda, float32, float64, int32, njit, vectorize
from numba.extending import register_jitable

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros


def of_function(jit, f):
    """What a kernel writes that applies the function to each element."""

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = f(x[i])

    kernel[4, 16](X, out := zeros())
    return out


def square(v):
    return v * v


@spelling(simulator="the simulator does not know the options")
def device_options(jit):
    for options in (
        {},
        {"inline": True},
        {"inline": "always"},
        {"forceinline": True},
        {"fastmath": True},
        {"lineinfo": True},
    ):
        yield of_function(jit, jit(device=True, **options)(square)), X * X


@spelling(simulator="the simulator calls what is declared with device=True")
def device_without_the_word(jit):
    yield of_function(jit, jit(square)), X * X


@spelling
def device_signatures(jit):
    for signature in (
        "float64(float64)",
        float64(float64),
        (float64,),
        [float64(float64), float32(float32)],
        "f8(f8)",
    ):
        yield of_function(jit, jit(signature, device=True)(square)), X * X
        yield of_function(jit, jit(signature, device=True, inline=True)(square)), X * X


@spelling(simulator="the simulator does not convert to a signature")
def device_signatures_convert(jit):
    yield (
        of_function(jit, jit("int32(float32)", device=True)(square)),
        np.trunc(X.astype(np.float32) ** 2),
    )
    yield (
        of_function(jit, jit(int32(int32), device=True, inline="always")(square)),
        np.trunc(X) ** 2,
    )


@spelling
def njit_functions(jit):
    for decorator in (
        njit,
        njit(inline="always"),
        njit(fastmath=True),
        njit("f8(f8)"),
        register_jitable,
        njit(cache=False),
    ):
        yield of_function(jit, decorator(square)), X * X


@spelling
def lambdas(jit):
    f = jit(device=True)(lambda v: v + 1)
    yield of_function(jit, f), X + 1
    for g in [jit(lambda v: v * 3, device=True)]:
        yield of_function(jit, g), X * 3


@spelling
def lambda_as_a_kernel(jit):
    @jit(device=True)
    def add(out, v):
        cuda.atomic.add(out, 0, v)

    kernel = jit(lambda x, out: add(out, x[cuda.grid(1)]))
    kernel[1, N](X, out := zeros(n=1))
    yield out, [X.sum()]


@spelling
def lists_of_functions(jit):
    functions = [
        jit(device=True)(f) for f in (lambda v: v, lambda v: v * 2, math.fabs) if f is not math.fabs
    ]
    first, second = functions

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = first(x[i]) + second(x[i])

    kernel[4, 16](X, out := zeros())
    yield out, 3 * X


@spelling
def tuple_of_functions(jit):
    from numba import literal_unroll

    functions = (jit(device=True)(lambda v: v), jit(device=True)(lambda v: v * 2))

    @jit
    def by_number(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = functions[1](x[i]) + functions[0](x[i])

    @jit
    def by_turns(x, out):
        i = cuda.grid(1)
        if i < x.size:
            for f in literal_unroll(functions):
                out[i] += f(x[i])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Numba: functions as values are an experimental feature
        for kernel in (by_number, by_turns):
            kernel[4, 16](X, out := zeros())
            yield out, 3 * X


class Physics:
    """A namespace of device functions."""

    @staticmethod
    @njit
    def energy(v):
        """Returns the kinetic energy."""
        return 0.5 * v * v


@spelling
def functions_of_a_class(jit):
    class Tools:
        """A namespace of device functions."""

        twice = staticmethod(jit(device=True)(lambda v: 2 * v))

        @staticmethod
        @jit(device=True)
        def more(v):
            """Returns v + 1."""
            return v + 1

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = Physics.energy(x[i]) + Tools.twice(x[i]) + Tools.more(x[i])

    kernel[4, 16](X, out := zeros())
    yield out, 0.5 * X * X + 3 * X + 1


@spelling
def several_results(jit):
    @jit(device=True)
    def polar(x, y):
        return math.hypot(x, y), math.atan2(y, x)

    @jit(device=True)
    def with_index(v):
        if v > 0:
            return (v, 1)
        return (0.0, -1)

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            r, phi = polar(x[i], 1.0)
            both = with_index(x[i])
            (value, sign), rest = with_index(x[i]), r
            out[i] = r + phi + both[0] * both[1] + value + sign + rest

    kernel[4, 16](X, out := zeros())
    r = np.hypot(X, 1)
    yield out, 2 * r + np.arctan2(1, X) + np.where(X > 0, 2 * X + 1, -1)


@spelling(simulator="the simulator has no keywords")
def keywords_and_defaults(jit):
    @jit(device=True)
    def mix(a, b=2.0, c=3.0):
        return a * b + c

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = mix(x[i]) + mix(x[i], c=1.0) + mix(b=0.0, a=x[i]) + mix(x[i], 1.0, 1.0)

    kernel[4, 16](X, out := zeros())
    yield out, (2 * X + 3) + (2 * X + 1) + 3 + (X + 1)


@spelling(simulator="the simulator calls them as Python does")
def more_parameters(jit):
    @jit(device=True)
    def total(first, *rest):
        s = first
        for v in rest:
            s += v
        return s

    @jit(device=True)
    def passed_on(f, *args):
        return f(*args) + f(1.0, *args)

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            pair = (x[i], 2.0)
            out[i] = (
                total(x[i], 1.0, 2.0)
                + total(*pair)
                + total(1.0, *pair)
                + passed_on(total, x[i], 3.0)
            )

    kernel[4, 16](X, out := zeros())
    yield out, (X + 3) + (X + 2) + (X + 3) + (X + 3) + (X + 4)


@spelling
def functions_as_arguments(jit):
    @jit(device=True)
    def apply(f, v):
        return f(v)

    @jit(device=True)
    def cube(v):
        return v**3

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = apply(cube, x[i]) + apply(math.sin, x[i])

    kernel[4, 16](X, out := zeros())
    yield out, X**3 + np.sin(X)


@spelling
def recursion(jit):
    @jit("int64(int64)", device=True)
    def fibonacci(n):
        if n < 2:
            return n
        return fibonacci(n - 1) + fibonacci(n - 2)

    @jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = fibonacci(i)

    kernel[1, 16](out := zeros(np.int64, 10))
    yield out, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


@spelling
def functions_inside(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        scale = 2.0 + i

        def f(v):
            return v * scale

        g = lambda v: f(v) + 1
        if i < x.size:
            out[i] = f(x[i]) + g(x[i]) + (lambda v: v - 1)(x[i])

    kernel[4, 16](X, out := zeros())
    yield out, 2 * X * (2 + np.arange(N)) + 1 + X - 1


@spelling
def functions_with_positions(jit):
    """Device functions that ask where they are, take arrays, and wait."""

    @jit(device=True)
    def index():
        return cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x

    @jit(device=True)
    def load(tile, x):
        i = index()
        tile[cuda.threadIdx.x] = x[i] if i < x.size else 0.0
        cuda.syncthreads()

    @jit(device=True)
    def buffer():
        return cuda.shared.array(16, float64)

    @jit
    def kernel(x, out):
        tile = buffer()
        load(tile, x)
        if index() < x.size:
            out[index()] = tile[cuda.threadIdx.x ^ 1]

    kernel[4, 16](X, out := zeros())
    padded = np.append(X, np.zeros(14))
    yield out, padded[np.arange(N) ^ 1]


@spelling
def local_array_of_a_caller(jit):
    @jit(device=True)
    def fill(a, v):
        for k in range(len(a)):
            a[k] = v + k

    @jit(device=True)
    def dot(a, b):
        s = 0.0
        for k in range(a.shape[0]):
            s += a[k] * b[k]
        return s

    @jit
    def kernel(x, out):
        a, b = cuda.local.array(3, float64), cuda.local.array(3, float64)
        i = cuda.grid(1)
        if i < x.size:
            fill(a, x[i])
            fill(b, 1.0)
            out[i] = dot(a, b) + dot(a[:2], b[1:])

    kernel[4, 16](X, out := zeros())
    yield out, X * 1 + (X + 1) * 2 + (X + 2) * 3 + X * 2 + (X + 1) * 3


@spelling
def results_without_value(jit):
    @jit(device=True)
    def store(out, i, v):
        if i >= out.size:
            return
        out[i] = v

    @jit(device=True)
    def nothing(out):
        pass

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        nothing(out)
        store(out, i, x[i] if i < x.size else 0.0)
        return None

    kernel[4, 16](X, out := zeros())
    yield out, X


@spelling
def operators_as_functions(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = (
                operator.add(x[i], operator.mul(2.0, x[i]))
                + max(x[i], 0.0, 1.0)
                + min(x[i], 0.5)
                + pow(x[i], 2)
            )

    kernel[4, 16](X, out := zeros())
    yield out, 3 * X + np.maximum(X, 1) + np.minimum(X, 0.5) + X**2


@spelling(simulator="the simulator copies the attributes of what is wrapped")
def wrapped_functions(jit):
    def noted(f):
        @functools.wraps(f)
        def wrapper(v):
            return f(v) + 1

        return wrapper

    @jit(device=True)
    def inner(v):
        return v * 2

    yield of_function(jit, jit(device=True)(noted(inner))), 2 * X + 1


@spelling(simulator="the simulator calls the ufunc with Python's numbers")
def ufuncs(jit):
    @vectorize
    def tripled(v):
        return 3 * v

    yield of_function(jit, tripled), 3 * X


@spelling
def types_of_functions(jit):
    """Types, shapes and options as arguments of device functions."""

    @jit(device=True)
    def sum_of(n, kind, v):
        a = cuda.local.array(n, kind)
        for k in range(n):
            a[k] = v
        s = kind(0)
        for k in range(n):
            s += a[k]
        return s

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = sum_of(3, float64, x[i]) + sum_of(2, float64, 1.0)

    kernel[4, 16](X, out := zeros())
    yield out, 3 * X + 2


@spelling
def from_a_dictionary(jit):
    functions = {"square": jit(device=True)(square), "half": jit(device=True)(lambda v: v / 2)}
    for name, expected in (("square", X * X), ("half", X / 2)):
        yield of_function(jit, functions[name]), expected


@spelling
def position_as_an_argument(jit):
    @jit(device=True)
    def linear(idx, bdx, bdim):
        return bdx.x * bdim.x + idx.x

    @jit(device=True)
    def store(out, i, v):
        if i < out.size:
            out[i] = v

    @jit
    def kernel(out):
        i = linear(cuda.threadIdx, cuda.blockIdx, cuda.blockDim)
        return store(out, i, i)

    kernel[4, 16](out := zeros())
    yield out, np.arange(N)
