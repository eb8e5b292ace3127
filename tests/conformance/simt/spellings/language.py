"""Loops, conditions, assignments and the rest of Python."""

import cmath
import math

import numpy as np
from numba import cuda, float64, prange

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros


@spelling
def stride_loops(jit):
    @jit
    def by_range(x, out):
        start, stride = cuda.grid(1), cuda.gridsize(1)
        for i in range(start, x.size, stride):
            out[i] = x[i]

    @jit
    def by_while(x, out):
        i = cuda.grid(1)
        while i < len(x):
            out[i] = x[i]
            i += cuda.gridDim.x * cuda.blockDim.x

    @jit
    def by_break(x, out):
        i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
        step = cuda.blockDim.x * cuda.gridDim.x
        while True:
            if i >= x.shape[0]:
                break
            out[i] = x[i]
            i = i + step

    for kernel in (by_range, by_while, by_break):
        kernel[2, 8](X, out := zeros())
        yield out, X


@spelling
def stride_loops_in_two_dimensions(jit):
    @jit
    def kernel(out):
        sx, sy = cuda.grid(2)
        gx, gy = cuda.gridsize(2)
        for i in range(sx, out.shape[0], gx):
            for j in range(sy, out.shape[1], gy):
                out[i, j] = i * 10 + j

    kernel[(1, 2), (2, 2)](out := np.zeros((7, 9)))
    yield out, np.arange(7)[:, None] * 10 + np.arange(9)


@spelling
def three_dimensions(jit):
    @jit
    def kernel(out):
        x, y, z = cuda.grid(3)
        if x >= out.shape[0] or y >= out.shape[1] or z >= out.shape[2]:
            return
        out[x, y, z] = x * 100 + y * 10 + z + cuda.gridsize(3)[2] * 0

    kernel[(2, 2, 2), (2, 2, 2)](out := np.zeros((3, 4, 3)))
    yield out, np.arange(3)[:, None, None] * 100 + np.arange(4)[:, None] * 10 + np.arange(3)


@spelling
def position_in_a_tuple(jit):
    @jit
    def kernel(out):
        pos = cuda.grid(2)
        if pos[0] < out.shape[0] and pos[1] < out.shape[1]:
            out[pos] = pos[0] * 10 + pos[1]

    kernel[(2, 2), (4, 4)](out := np.zeros((5, 6)))
    yield out, np.arange(5)[:, None] * 10 + np.arange(6)


@spelling
def guards(jit):
    @jit
    def chained(x, out):
        i = cuda.grid(1)
        if 0 <= i < x.size:
            out[i] = x[i]

    @jit
    def negated(x, out):
        i = cuda.grid(1)
        if not (i < x.size and i >= 0):
            return
        else:
            out[i] = x[i]

    @jit
    def nested(x, out):
        i = cuda.grid(1)
        n = x.shape[0]
        if i < n:
            if x[i] != x[i]:
                pass
            elif x[i] > 0:
                out[i] = x[i]
            else:
                out[i] = x[i]

    @jit
    def conditional(x, out):
        i = cuda.grid(1)
        j = i if i < x.size else x.size - 1
        out[j] = x[j] if j >= 0 else 0.0

    for kernel in (chained, negated, nested, conditional):
        kernel[4, 16](X, out := zeros())
        yield out, X


@spelling
def assignments(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            a = b = x[i]
            c, (d, e) = 1.0, (2.0, 3.0)
            a, b = b, a + 1
            k: float = 4.0
            t = (a, b, c)
            p, q, r = t
            s = t[1:] + (d,)
            out[i] = p + q + r + s[0] + s[2] + e + k + len(s)

    kernel[4, 16](X, out := zeros())
    yield out, X + X + 1 + 1 + X + 1 + 2 + 3 + 4 + 3


@spelling
def augmented(jit):
    @jit
    def kernel(x, whole, out):
        i = cuda.grid(1)
        if i < x.size:
            v = x[i]
            v += 1
            v *= 2
            v -= 0.5
            v /= 4
            v **= 2
            n = whole[i]
            n <<= 2
            n |= 1
            n ^= 8
            n &= 0xFF
            n >>= 1
            n //= 2
            n %= 7
            out[i] = v + n
            out[i] += ~n + -n

    whole = np.arange(N)
    kernel[4, 16](X, whole, out := zeros())
    v = (((X + 1) * 2 - 0.5) / 4) ** 2
    n = ((((whole << 2) | 1) ^ 8) & 0xFF) >> 1
    n = n // 2 % 7
    yield out, v + n + ~n - n


@spelling
def loops(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            total = 0.0
            for k, v in enumerate((1.0, 2.0, 3.0)):
                total += k * v
            for a, b in zip((1, 2), (3, 4)):
                total += a * b
            for k in range(10, 0, -3):
                if k == 4:
                    continue
                total += k
            for v in x[:3]:
                total += v
            for _ in range(3):
                total += 1
            else:
                total += 100
            for j in prange(2):
                total += j
            for idx in np.ndindex(2, 2):
                total += idx[0] + idx[1]
            while total > 1000:
                total -= 1000
            out[i] = total

    kernel[4, 16](X, out := zeros())
    yield out, np.full(N, (0 + 2 + 6) + (3 + 8) + (10 + 7 + 1) + X[:3].sum() + 3 + 100 + 1 + 4)


@spelling
def asserts_and_raises(jit):
    limit = 100

    @jit
    def kernel(x, out, name):
        i = cuda.grid(1)
        assert x.size == out.size
        assert x.size <= limit, "too many"
        assert name > 0, f"the number is {name} of {limit}"
        if i < x.size:
            if out.size < 3:
                raise ValueError("too small")
            if out.size < 2:
                raise ValueError
            out[i] = x[i]

    kernel[4, 16](X, out := zeros(), 1)
    yield out, X


@spelling(simulator="the simulator prints as Python does")
def prints(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i == 0:
            print("thread", i, x[0], cuda.threadIdx.x)
            print("done")
            print()
        if i == -1:
            print(f"thread {i} has {x[0]}")
        if i < x.size:
            out[i] = x[i]

    kernel[4, 16](X, out := zeros())
    yield out, X


@spelling
def docstrings_and_annotations(jit):
    @jit
    def kernel(x: "np.ndarray", out: np.ndarray, n: int) -> None:
        """Copies x.

        With a second paragraph.
        """
        i: int = cuda.grid(1)
        j: int
        "a string as a comment"
        if i < n:
            j = i
            out[j] = x[j]
        ...
        return

    kernel[4, 16](X, out := zeros(), N)
    yield out, X


@spelling
def arithmetic(jit):
    @jit
    def kernel(x, whole, out):
        i = cuda.grid(1)
        if i < x.size:
            n = whole[i]
            out[i] = (
                n / 4
                + n // 4
                + n % 4
                + (-n) // 4
                + (-n) % 4
                + x[i] ** 2
                + 2**n % 5
                + divmod(n, 3)[1]
            )
            out[i] += (
                (n & 1)
                + (n | 2)
                + (n ^ 3)
                + (n << 1)
                + (n >> 1)
                + round(x[i])
                + round(x[i], 1)
                + 1e3
                + 0x10
                + 0b1
            )

    whole = np.arange(N) % 20
    kernel[4, 16](X, whole, out := zeros())
    n = whole
    expected = n / 4 + n // 4 + n % 4 + (-n) // 4 + (-n) % 4 + X**2 + 2**n % 5 + n % 3
    expected = (
        expected
        + (n & 1)
        + (n | 2)
        + (n ^ 3)
        + (n << 1)
        + (n >> 1)
        + np.round(X)
        + np.round(X * 10) / 10
        + 1017
    )
    yield out, expected


@spelling(simulator="the simulator adds NumPy's booleans")
def booleans(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            positive = x[i] > 0
            small = abs(x[i]) < 1
            flag = positive and not small or x[i] == 0
            out[i] = (
                flag
                + (positive & small)
                + (positive | small)
                + (positive ^ small)
                + (True if flag else False)
            )
            out[i] += 1 if x[i] else 0
            out[i] += bool(i) is True

    kernel[4, 16](X, out := zeros())
    p, s = X > 0, np.abs(X) < 1
    f = (p & ~s) | (X == 0)
    yield out, 2.0 * f + (p & s) + (p | s) + (p ^ s) + (X != 0) + (np.arange(N) > 0)


@spelling
def complex_numbers(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            z = complex(x[i], 1.0)
            w = z * 2j + z.conjugate() + abs(z)
            out[i] = (
                cmath.exp(w * 0.1)
                + w.real
                + w.imag * 1j
                + cmath.phase(z)
                + np.complex128(1)
                + cmath.sqrt(z)
            )

    kernel[4, 16](X, out := zeros(np.complex128))
    z = X + 1j
    w = z * 2j + z.conjugate() + np.abs(z)
    yield out, np.exp(w * 0.1) + w + np.angle(z) + 1 + np.sqrt(z)


MATH = [
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "sin",
        "sinh",
        "tan",
        "tanh",
        "exp",
        "expm1",
        "log",
    ),
    *(
        "log10",
        "log1p",
        "log2",
        "sqrt",
        "erf",
        "erfc",
        "gamma",
        "lgamma",
        "fabs",
        "ceil",
        "floor",
        "trunc",
        "degrees",
        "radians",
    ),
]


@spelling
def functions_of_math(jit):
    x = np.linspace(0.1, 0.9, 16)
    for start in range(0, len(MATH), 6):
        a, b, c, d, e, f = [getattr(math, name) for name in (MATH[start : start + 6] * 6)[:6]]

        @jit
        def kernel(x, out):
            i = cuda.grid(1)
            if i < x.size:
                u = 1 / x[i] if start == 0 else x[i]
                out[i] = a(x[i]) + b(u) + c(x[i]) + d(x[i]) + e(x[i]) + f(x[i])

        kernel[1, 16](x, out := zeros(n=16))
        u = 1 / x if start == 0 else x
        yield out, [a(v) + b(w) + c(v) + d(v) + e(v) + f(v) for v, w in zip(x, u, strict=True)]


@spelling
def more_of_math(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            m, e = math.frexp(x[i])
            fraction, whole = math.modf(x[i])
            s = (
                math.copysign(1.0, x[i])
                + math.fmod(x[i], 0.3)
                + math.hypot(x[i], 2.0)
                + math.atan2(x[i], 2.0)
            )
            s += m + e + fraction + whole + math.ldexp(x[i], 2) + math.pow(x[i], 2)
            s += (
                math.isnan(x[i])
                + math.isinf(x[i])
                + math.isfinite(x[i])
                + math.e
                + math.tau
                + math.gcd(i, 6)
            )
            out[i] = s + (x[i] == math.nan) + (x[i] < math.inf)

    kernel[4, 16](X, out := zeros())
    s = (
        np.copysign(1, X)
        + np.fmod(X, 0.3)
        + np.hypot(X, 2)
        + np.arctan2(X, 2)
        + sum(np.frexp(X))
        + X
        + 4 * X
        + X * X
    )
    yield out, s + 1 + math.e + math.tau + np.gcd(np.arange(N), 6) + 1.0


@spelling
def functions_of_numpy(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            v = x[i]
            out[i] = (
                np.sqrt(np.abs(v))
                + np.floor(v)
                + np.maximum(v, 0.0)
                + np.minimum(v, 1)
                + np.arctan2(v, 2.0)
            )
            out[i] += (
                np.hypot(v, 1.0)
                + np.power(abs(v), 0.5)
                + np.sign(v)
                + np.isnan(v)
                + np.log1p(np.exp(v))
                + np.square(v)
            )
            out[i] += (
                np.pi
                + np.e
                + np.float32(v)
                + np.int64(v)
                + np.rint(v)
                + np.deg2rad(v)
                + np.fmod(v, 0.7)
                + np.cbrt(v)
            )
            out[i] += np.inf if v == np.nan else 0

    kernel[4, 16](X, out := zeros())
    v = X
    expected = (
        np.sqrt(np.abs(v)) + np.floor(v) + np.maximum(v, 0) + np.minimum(v, 1) + np.arctan2(v, 2)
    )
    expected += (
        np.hypot(v, 1)
        + np.sqrt(np.abs(v))
        + np.sign(v)
        + np.log1p(np.exp(v))
        + v * v
        + np.pi
        + np.e
    )
    expected += (
        v.astype(np.float32)
        + np.trunc(v)
        + np.rint(v)
        + np.deg2rad(v)
        + np.fmod(v, 0.7)
        + np.cbrt(v)
    )
    yield out, expected


@spelling
def array_attributes(jit):
    @jit
    def kernel(x, m, out):
        i = cuda.grid(1)
        if i < x.size:
            h, w = m.shape
            rows = m.shape[0]
            row = m[i % rows]
            column = m[:, 1]
            out[i] = (
                h
                + w
                + row[0]
                + column[i % rows]
                + m[-1, -1]
                + m.size
                + m.ndim
                + len(m)
                + m.T[0, 1]
                + m[i % 2][1]
            )
            out[i] += x.itemsize + x.strides[0] + row.shape[0] + m[1:, ::2].shape[1] + x.nbytes

    m = np.arange(6.0).reshape(2, 3)
    kernel[4, 16](X, m, out := zeros())
    i = np.arange(N)
    yield (
        out,
        5
        + m[i % 2, 0]
        + m[i % 2, 1]
        + 5
        + 6
        + 2
        + 2
        + m[1, 0]
        + m[i % 2, 1]
        + 8
        + 8
        + 3
        + 2
        + 8 * N,
    )


@spelling
def slices(jit):
    @jit
    def kernel(m, out):
        i = cuda.grid(1)
        if i < m.shape[0]:
            out[i, :] = m[i, ::-1]
            out[i, 1:3] = 7.0
            row = out[i]
            row[0] += m[i, :].sum()
            out[i, -1] = m[i].max() + row.mean() * 0

    m = np.arange(20.0).reshape(5, 4)
    kernel[1, 8](m, out := np.zeros((5, 4)))
    expected = m[:, ::-1].copy()
    expected[:, 1:3] = 7
    expected[:, 0] += m.sum(1)
    expected[:, -1] = m.max(1)
    yield out, expected


@spelling
def early_exits(jit):
    @jit
    def kernel(x, out):
        tile = cuda.shared.array(16, float64)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        if i >= x.size:
            tile[t] = 0.0
        else:
            tile[t] = x[i]
        cuda.syncthreads()
        found = -1
        for k in range(16):
            if tile[k] > 0:
                found = k
                break
        if i >= x.size:
            return
        while found > 0:
            found -= 1
            if found == 2:
                return
        out[i] = 1.0

    kernel[4, 16](X, out := zeros())
    padded = np.append(X, np.zeros(14)).reshape(4, 16) > 0
    first = np.where(padded.any(1), padded.argmax(1), -1)
    yield out, np.repeat(np.where(first > 2, 0.0, 1.0), 16)[:N]


@spelling
def lists_and_comprehensions_of_constants(jit):
    """What a GPU's compiler takes because it is gone before code is made."""

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            total = 0.0
            for k in (1, 2, 3):
                total += k
            total += sum((1, 2, 3)) + max((1.0, 5.0)) + min(4, 2)
            out[i] = total + len((1, 2))

    kernel[4, 16](X, out := zeros())
    yield out, np.full(N, 6 + 6 + 5 + 2 + 2.0)


@spelling
def several_statements_on_a_line(jit):
    # fmt: off
    @jit
    def kernel(x, out):
        i = cuda.grid(1); n = x.size
        if i < n: out[i] = x[i]; out[i] += \
            1
    # fmt: on

    kernel[4, 16](X, out := zeros())
    yield out, X + 1


@spelling
def cases(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            match i % 7:
                case 0:
                    out[i] = 1.0
                case 1 | 2:
                    out[i] = 2.0
                case n if i > 40:
                    out[i] = n
                case _:
                    out[i] = x[i]

    def wanted(i):
        return 1.0 if i % 7 == 0 else 2.0 if i % 7 < 3 else i % 7 if i > 40 else X[i]

    kernel[4, 16](X, out := zeros())
    yield out, [wanted(i) for i in range(N)]


@spelling
def assignment_expressions(jit):
    @jit
    def kernel(x, out):
        if (i := cuda.grid(1)) < x.size and (v := x[i]) > 0:
            k = 3
            while (k := k - 1) > 0:
                out[i] += v
            n = 1
            out[i] += n + (n := 5) * n + (n if (m := n + 1) > 5 else m) + m

    kernel[4, 16](X, out := zeros())
    yield out, np.where(X > 0, 2 * X + 1 + 25 + 5 + 6, 0)


LIMIT = 4


@spelling
def lists_and_globals(jit):
    """Lists of constants, which CPython makes tuples, and a statement that only says what Python
    knows.
    """

    @jit
    def kernel(x, out):
        global LIMIT
        i = cuda.grid(1)
        if i < x.size:
            for d in [-1, 1, i]:
                out[i] += d * LIMIT
            if i in [1, 2, 3] or i not in (0, 5):
                out[i] += 0.5

    kernel[4, 16](X, out := zeros())
    i = np.arange(N)
    yield out, 4.0 * i + 0.5 * ((i != 0) & (i != 5))


@spelling
def kernels_with_more_parameters(jit):
    @jit
    def kernel(out, *arrays):
        i = cuda.grid(1)
        if i < out.size:
            for a in arrays:
                out[i] += a[i]

    kernel[4, 16](out := zeros(), X, X + 1)
    yield out, 2 * X + 1
    kernel[4, 16](out := zeros(), X, X, X)
    yield out, 3 * X


@spelling
def complex_parts_and_rows(jit):
    """Atomic updates of parts of arrays."""

    @jit
    def kernel(z, rows, records):
        i = cuda.grid(1)
        if i < 50:
            cuda.atomic.add(z.real, i % 2, 1.0)
            cuda.atomic.add(z.imag, i % 2, 2.0)
            cuda.atomic.add(rows[i % 3], 1, i)
            cuda.atomic.add(rows[1, :], (0,), 1)
            cuda.atomic.add(records["n"], i % 2, 1)

    z, rows = np.zeros(2, np.complex128), np.zeros((3, 2), np.int64)
    records = np.zeros(2, [("n", np.int64), ("x", np.float64)])
    kernel[4, 16](z, rows, records)
    yield z, [25 + 50j] * 2
    i = np.arange(50)
    yield rows[:, 1], np.bincount(i % 3, i)
    yield rows[1, 0], 50
    yield records["n"], [25, 25]
