"""Decorators, signatures, launches and arguments."""

import enum
import functools
from collections import namedtuple
from typing import NamedTuple

import numpy as np
from numba import boolean, complex128, cuda, float32, float64, int32, int64, types, void

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros


def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2


def scaled(x, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * a


NO_SIGNATURES = "the simulator does not convert to a signature"


@spelling
def decorator_forms(jit):
    for kernel in (
        jit(double),
        jit()(double),
        jit(fastmath=True)(double),
        jit(None)(double),
        jit(debug=False, opt=True)(double),
    ):
        kernel[4, 16](X, out := zeros())
        yield out, X * 2


@spelling(simulator="the simulator does not know the options")
def options_of_gpus(jit):
    for options in (
        {"max_registers": 32},
        {"lineinfo": True},
        {"cache": False},
        {"inline": "never"},
        {"launch_bounds": 128},
    ):
        kernel = jit(**options)(double)
        kernel[4, 16](X, out := zeros())
        yield out, X * 2


@spelling
def signature_as_a_string(jit):
    for text in (
        "void(float64[:], float64, float64[:])",
        "(float64[:], float64, float64[:])",
        "(f8[:], f8, f8[:])",
        "void(f8[::1], f8, f8[::1])",
        "void(double[:], double, double[:])",
    ):
        kernel = jit(text)(scaled)
        kernel[4, 16](X, 3, out := zeros())
        yield out, X * 3


@spelling(simulator=NO_SIGNATURES)
def signature_as_types(jit):
    for signature in (
        (float64[:], float32, float64[:]),
        void(float64[:], float32, float64[:]),
        types.void(types.Array(types.float64, 1, "C"), types.float32, types.float64[::1]),
        [(float64[:], float32, float64[:])],
        ["void(float64[:], float32, float64[:])"],
        [void(float64[:], float32, float64[:]), void(float32[:], float32, float32[:])],
    ):
        kernel = jit(signature)(scaled)
        kernel[4, 16](X, 0.1, out := zeros())
        yield out, X * np.float32(0.1)


@spelling
def signature_with_argtypes(jit):
    kernel = jit(argtypes=[float64[:], float64[:]])(double)
    kernel[4, 16](X, out := zeros())
    yield out, X * 2


@spelling(simulator="the simulator takes contiguous arrays")
def signature_of_several_layouts(jit):
    kernel = jit(["(f8[:,:], f8[:,:])", "(f4[:,:], f4[:,:])"])(twice_2d)
    for x in (
        np.ones((4, 5)),
        np.ones((4, 5), np.float32),
        np.ones((4, 5), order="F"),
        np.ones((8, 10))[::2, ::2],
    ):
        out = np.zeros(x.shape, x.dtype)
        kernel[(2, 2), (4, 4)](x, out)
        yield out, 2 * x


def twice_2d(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = 2 * x[i, j]


@spelling
def launch_configurations(jit):
    kernel = jit(double)
    for config in (
        (4, 16),
        (np.int64(4), np.int32(16)),
        ((4,), (16,)),
        ([4], [16]),
        ((4, 1), (16, 1)),
        ((4, 1, 1), (16, 1, 1)),
        (4, 16, 0),
        (4, 16, 0, 0),
        ((np.uint32(4), 1), (16, np.int8(1))),
    ):
        kernel[config](X, out := zeros())
        yield out, X * 2


@spelling(simulator="the simulator takes whole numbers only")
def launch_sizes_from_numpy(jit):
    kernel = jit(double)
    size = np.ceil(N / 16).astype(int)
    for config in (
        (size, 16),
        (size.item(), np.uint8(16)),
        (tuple(np.array([4, 1])), (16, 1)),
        (((N + 15) // 16,), (16,)),
    ):
        kernel[config](X, out := zeros())
        yield out, X * 2


@spelling
def launch_with_a_stream(jit):
    kernel = jit(double)
    stream = cuda.stream() if hasattr(cuda, "FakeStream") else 0
    kernel[4, 16, stream](X, out := zeros())
    yield out, X * 2


@spelling
def launch_in_a_variable(jit):
    configured = jit(double)[4, 16]
    for _ in range(2):
        configured(X, out := zeros())
        yield out, X * 2


@spelling
def forall(jit):
    kernel = jit(double)
    for launcher in (
        kernel.forall(N),
        kernel.forall(ntasks=N),
        kernel.forall(N, tpb=32),
        kernel.forall(np.int64(N)),
    ):
        launcher(X, out := zeros())
        yield out, X * 2


@spelling(simulator="the simulator has no configure()")
def configure(jit):
    jit(double).configure(4, 16)(X, out := zeros())
    yield out, X * 2
    jit(double).configure((4,), (16,), 0, 0)(X, out := zeros())
    yield out, X * 2


@spelling
def dynamic_shared_memory(jit):
    @jit
    def kernel(x, out):
        buffer = cuda.shared.array(0, float64)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        buffer[t] = x[i] if i < x.size else 0.0
        cuda.syncthreads()
        if i < x.size:
            out[i] = buffer[0]

    kernel[4, 16, 0, 16 * 8](X, out := zeros())
    yield out, X[np.arange(N) // 16 * 16]


@spelling
def numbers_of_all_kinds(jit):
    @jit
    def kernel(a, b, c, d, e, f, out):
        if cuda.grid(1) == 0:
            out[0], out[1], out[2], out[3] = a, b, c, d
            out[4], out[5] = e.real, f

    kernel[1, 1](np.float32(1.5), 2, True, np.uint8(4), 5 + 1j, np.bool_(False), out := zeros(n=6))
    yield out, [1.5, 2, 1, 4, 5, 0]


class Colour(enum.IntEnum):
    RED = 1
    GREEN = 2


class Shape(enum.Enum):
    ROUND = 10
    SQUARE = 20


@spelling
def enums(jit):
    @jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            kind = Colour.RED if i % 2 else Colour.GREEN
            out[i] = 10 if kind == Colour.GREEN else Colour.RED + 5
            if Shape.ROUND != Shape.SQUARE:
                out[i] += Shape.SQUARE.value

    kernel[4, 16](out := zeros())
    yield out, np.where(np.arange(N) % 2, 26, 30)


@spelling
def enums_as_arguments(jit):
    @jit
    def kernel(mode, out):
        i = cuda.grid(1)
        if i < out.size and mode == Colour.GREEN:
            out[i] = mode

    kernel[4, 16](Colour.GREEN, out := zeros(np.int64))
    yield out, np.full(N, 2)


Point = namedtuple("Point", "x y")


class Grid(NamedTuple):
    """A grid of cells."""

    origin: float
    step: float
    cells: tuple[int, int]


@spelling
def named_tuples(jit):
    @jit
    def kernel(point, grid, out):
        i = cuda.grid(1)
        if i < out.size:
            moved = Point(point.x + 1, point.y)
            out[i] = moved.x * moved.y + grid.origin + i * grid.step + grid.cells[1]

    kernel[4, 16](Point(1.0, 2.0), Grid(0.5, 0.25, (3, 4)), out := zeros())
    yield out, 4 + 0.5 + 0.25 * np.arange(N) + 4


@spelling
def tuples_of_arrays(jit):
    @jit
    def kernel(arrays, pair, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = arrays[0][i] + arrays[1][i] + pair[0][i] * pair[1]
            for a in arrays:
                out[i] += a[i]

    kernel[4, 16]((X, X + 1), (X, 3), out := zeros())
    yield out, X * 2 + 1 + 3 * X + 2 * X + 1


@spelling
def named_tuple_of_arrays(jit):
    Fields = namedtuple("Fields", ["ex", "ey"])

    @jit
    def kernel(fields, out):
        i = cuda.grid(1)
        if i < out.size:
            ex, ey = fields
            fields.ey[i] = ex[i] + 1
            out[i] = fields.ex[i] + ey[i]

    ey = zeros()
    kernel[4, 16](Fields(X, ey), out := zeros())
    yield out, 2 * X + 1
    yield ey, X + 1


@spelling
def optional_arguments(jit):
    @jit
    def kernel(x, bias, out):
        i = cuda.grid(1)
        if i < out.size:
            if bias is not None:
                out[i] = x[i] + bias[i]
            else:
                out[i] = x[i]

    kernel[4, 16](X, None, out := zeros())
    yield out, X
    kernel[4, 16](X, X, out := zeros())
    yield out, 2 * X


@spelling(simulator="the simulator does not fill in defaults")
def default_arguments(jit):
    @jit
    def kernel(x, out, a=2.0, flag=False):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = -x[i] if flag else a * x[i]

    kernel[4, 16](X, out := zeros())
    yield out, 2 * X
    kernel[4, 16](X, out := zeros(), 3.0)
    yield out, 3 * X


@spelling
def strings_that_choose(jit):
    def make(kind):
        @jit
        def kernel(x, out):
            i = cuda.grid(1)
            if i < out.size:
                if kind == "square":
                    out[i] = x[i] ** 2
                else:
                    out[i] = x[i]

        return kernel

    make("square")[4, 16](X, out := zeros())
    yield out, X**2
    make("plain")[4, 16](X, out := zeros())
    yield out, X


@spelling(simulator="the simulator compares strings as Python does, and has no bytes")
def strings_as_arguments(jit):
    @jit
    def kernel(x, mode, out):
        i = cuda.grid(1)
        if i < out.size:
            if mode == "negative":
                out[i] = -x[i]
            else:
                out[i] = x[i]

    kernel[4, 16](X, "negative", out := zeros())
    yield out, -X


RECORD = np.dtype([("id", np.int32), ("pos", np.float64, (3,)), ("w", np.float32)], align=True)


@spelling
def records(jit):
    @jit
    def kernel(records, out):
        i = cuda.grid(1)
        if i < records.size:
            r = records[i]
            r.w = r.id * 2
            records[i]["pos"][1] = 5.0
            records[i].pos[2] = r["pos"][0]
            out[i] = r.pos[1] + r["w"]

    table = np.zeros(N, RECORD)
    table["id"], table["pos"][:, 0] = np.arange(N), X
    kernel[4, 16](table, out := zeros())
    yield out, 5 + 2 * np.arange(N)
    yield table["pos"][:, 2], X


@spelling
def record_arrays(jit):
    @jit
    def kernel(table, one, out):
        i = cuda.grid(1)
        if i < table.shape[0]:
            out[i] = table.a[i] + table["b"][i] + one.a

    table = np.rec.fromarrays([X, np.arange(N)], dtype=[("a", "f8"), ("b", "i4")])
    kernel[4, 16](table, table[1], out := zeros())
    yield out, X + np.arange(N) + X[1]


@spelling
def dates(jit):
    @jit
    def kernel(when, since, out):
        i = cuda.grid(1)
        if i < when.size:
            out[i] = when[i] - since

    when = np.array(["2026-01-01", "2026-01-03"], "M8[D]")
    kernel[1, 4](when, np.datetime64("2026-01-01", "D"), out := np.zeros(2, "m8[D]"))
    yield out.astype(np.int64), [0, 2]


@spelling(simulator="the simulator takes contiguous arrays")
def arrays_of_all_shapes(jit):
    @jit
    def kernel(scalar, vector, cube, strided, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = (
                scalar[()]
                + vector[i]
                + cube[i % 2, 0, 1]
                + strided[i]
                + vector[-1]
                + vector.ndim
                + cube.shape[2]
            )

    cube = np.arange(12.0).reshape(2, 2, 3)
    kernel[4, 16](np.array(1.0), X, cube, np.repeat(X, 2)[::-2], out := zeros())
    yield out, 1 + X + cube[np.arange(N) % 2, 0, 1] + X[::-1] + X[-1] + 1 + 3


@spelling(simulator="the simulator copies arguments back")
def read_only_arrays(jit):
    x = X.copy()
    x.flags.writeable = False
    jit(double)[4, 16](x, out := zeros())
    yield out, 2 * X


@spelling
def method_of_a_class(jit):
    class Solver:
        """A solver with a kernel of its own."""

        @staticmethod
        @jit
        def kernel(x, out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = x[i] + 1

        def run(self, x):
            """Returns x + 1."""
            out = zeros()
            self.kernel[4, 16](x, out)
            Solver.kernel[4, 16](x, out)
            return out

    yield Solver().run(X), X + 1


@spelling
def kernel_from_a_factory(jit):
    @functools.lru_cache
    def make(op, power):
        f = jit(device=True)(op)

        @jit
        def kernel(x, out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = f(x[i], power)

        return kernel

    for power in (1, 2):
        make(lambda a, b: a**b, power)[4, 16](X, out := zeros())
        yield out, X**power


FACTOR = 2.0


@spelling
def globals_rebound(jit):
    global FACTOR

    def make():
        @jit
        def kernel(x, out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = x[i] * FACTOR

        return kernel

    for value in (2.0, 5.0):
        FACTOR = value
        make()[4, 16](X, out := zeros())
        yield out, X * value


@spelling
def large_and_negative_integers(jit):
    @jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = (a >> np.uint64(60)) + np.uint64(b + 3)

    kernel[1, 4](np.uint64(2**63), -1, out := zeros(np.uint64, 4))
    yield out, np.full(4, 10)


@spelling(simulator=NO_SIGNATURES)
def signature_of_scalars(jit):
    @jit("void(int32, uint8, boolean, complex128, float64[:])")
    def kernel(a, b, c, d, out):
        if cuda.grid(1) == 0:
            out[0], out[1], out[2], out[3] = a, b, c, d.real

    kernel[1, 1](7.9, 257, 2, 1.5, out := zeros(n=4))
    yield out, [7, 1, 1, 1.5]
    other = jit((int32, types.uint8, boolean, complex128, float64[:]))(kernel.py_func)
    other[1, 1](7.9, 257, 2, 1.5, out := zeros(n=4))
    yield out, [7, 1, 1, 1.5]


@spelling
def lazily_for_several_types(jit):
    kernel = jit(double)
    for dtype in (np.float32, np.float64, np.int32, np.uint8, np.complex64):
        x = np.arange(10).astype(dtype)
        out = np.zeros(10, dtype)
        kernel[1, 16](x, out)
        yield out, 2 * x


@spelling(simulator="the simulator does not compile")
def specialised(jit):
    kernel = jit(double)
    kernel.specialize(X, X)[4, 16](X, out := zeros())
    yield out, 2 * X
    kernel.compile((int64[::1], int64[::1]))
    kernel[1, 16](np.arange(3), out := zeros(np.int64, 3))
    yield out, 2 * np.arange(3)
