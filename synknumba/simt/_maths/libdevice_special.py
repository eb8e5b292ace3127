"""Functions of `cuda.libdevice` that neither Python nor the C library provides."""

import math
from typing import Any, Final

import numpy as np

from synknumba.simt._library.typed import Code, body, c_function, strict, typed
from synknumba.simt._maths.bits import cbrt, fma

_PI = math.pi
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_REST = -4.833646656726457e-17  # exact sqrt(0.5) minus its float64 value
_LOG_2 = math.log(2.0)
_HALVING_IS_EXACT = (
    1e-300  # halving is exact from here on: far above the smallest normal float64, 2.2e-308
)
_SQRT_PI = math.sqrt(math.pi)


# ---- sines and cosines of multiples of pi: the argument reduction is exact, so they are accurate
# for any x


@strict
def _sincospi(x: float) -> tuple[float, float]:
    if not math.isfinite(x):
        return math.nan, math.nan
    x_rest = np.fmod(x, 2.0)
    quarter = np.rint(2.0 * x_rest)  # the nearest multiple of pi/2
    rest = _PI * (x_rest - 0.5 * quarter)
    sine, cosine = math.sin(rest), math.cos(rest)
    place = int(quarter) & 3
    if place == 1:
        sine, cosine = cosine, -sine
    elif place == 2:
        sine, cosine = -sine, -cosine
    elif place == 3:
        sine, cosine = -cosine, sine
    if sine == 0.0:
        sine = math.copysign(0.0, x)  # IEEE 754
    return sine, cosine + 0.0  # the cosine is never -0


# ---- the normal distribution


@strict
def _normcdf(x: float) -> float:
    """Phi(x) = erfc(-x / sqrt(2)) / 2. Far below 0, erfc magnifies its argument's rounding
    error, which `low` corrects.
    """
    high = -x * _SQRT_HALF
    low = fma(-x, _SQRT_HALF, -high) - x * _SQRT_HALF_REST
    value = math.erfc(high)
    if 0.0 < high < 40.0:
        value -= 2.0 / _SQRT_PI * math.exp(-high * high) * low
    return 0.5 * value


@strict
def _normal_tail(r: float) -> float:
    """Absolute quantile at the tail probability exp(-r * r) (Wichura 1988, algorithm AS 241,
    PPND16).
    """
    if r <= 5.0:
        r -= 1.6
        top = (
            7.74545014278341407640e-4 * r + 2.27238449892691845833e-2
        ) * r + 2.41780725177450611770e-1
        top = (
            (top * r + 1.27045825245236838258e0) * r + 3.64784832476320460504e0
        ) * r + 5.76949722146069140550e0
        top = (top * r + 4.63033784615654529590e0) * r + 1.42343711074968357734e0
        bottom = (
            1.05075007164441684324e-9 * r + 5.47593808499534494600e-4
        ) * r + 1.51986665636164571966e-2
        bottom = (
            (bottom * r + 1.48103976427480074590e-1) * r + 6.89767334985100004550e-1
        ) * r + 1.67638483018380384940e0
        bottom = (bottom * r + 2.05319162663775882187e0) * r + 1.0
    else:
        r -= 5.0
        top = (
            2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
        ) * r + 1.24266094738807843860e-3
        top = (
            (top * r + 2.65321895265761230930e-2) * r + 2.96560571828504891230e-1
        ) * r + 1.78482653991729133580e0
        top = (top * r + 5.46378491116411436990e0) * r + 6.65790464350110377720e0
        bottom = (
            2.04426310338993978564e-15 * r + 1.42151175831644588870e-7
        ) * r + 1.84631831751005468180e-5
        bottom = (
            (bottom * r + 7.86869131145613259100e-4) * r + 1.48753612908506148525e-2
        ) * r + 1.36929880922735805310e-1
        bottom = (bottom * r + 5.99832206555887937690e-1) * r + 1.0
    return top / bottom


@strict
def _normal_centre(q: float) -> float:
    """Quantile at the probability 0.5 + q, for abs(q) <= 0.425 (Wichura 1988, algorithm AS 241,
    PPND16).
    """
    r = 0.180625 - q * q
    top = (2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r + 6.7265770927008700853e4
    top = (
        (top * r + 4.5921953931549871457e4) * r + 1.3731693765509461125e4
    ) * r + 1.9715909503065514427e3
    top = (top * r + 1.3314166789178437745e2) * r + 3.3871328727963666080e0
    bottom = (5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r + 3.9307895800092710610e4
    bottom = (
        (bottom * r + 2.1213794301586595867e4) * r + 5.3941960214247511077e3
    ) * r + 6.8718700749205790830e2
    bottom = (bottom * r + 4.2313330701600911252e1) * r + 1.0
    return q * top / bottom


@strict
def _quantile(q: float, tail: float) -> float:
    """Quantile at the probability p = 0.5 + q; `tail` is min(p, 1 - p)."""
    if abs(q) <= 0.425:
        return _normal_centre(q)  # type: ignore[no-any-return]
    if tail == 0.0:
        return math.copysign(math.inf, q)
    if not 0.0 < tail <= 0.5:
        return math.nan
    return math.copysign(_normal_tail(math.sqrt(-math.log(tail))), q)


def _normcdfinv(p: float) -> Any:
    p = np.float64(p)
    return _quantile(p - 0.5, min(p, 1.0 - p))


def _erfinv(x: float) -> Any:
    x = np.float64(x)
    return _quantile(0.5 * x, 0.5 * (1.0 - abs(x))) * _SQRT_HALF


def _erfcinv(x: float) -> Any:
    x = np.float64(x)
    if 0.0 < x < _HALVING_IS_EXACT:
        return _normal_tail(math.sqrt(_LOG_2 - math.log(x))) * _SQRT_HALF
    return _quantile(0.5 * (1.0 - x), 0.5 * min(x, 2.0 - x)) * _SQRT_HALF


# ---- others

_c_remquo = typed(
    "libdevice.remquo", {"fi(f,f)": c_function("remquof"), "di(d,d)": c_function("remquo")}
)


def _erfcx(x: float) -> Any:
    """exp(x * x) * erfc(x); from 26 on by the asymptotic series (Abramowitz and Stegun, 7.1.23)."""
    x = np.float64(x)
    if x < 26.0:
        square = x * x
        rest = fma(x, x, -square)
        power = math.exp(square)
        value = power * math.erfc(x)
        if value < math.inf:
            value += value * rest
        return value
    term = total = 1.0
    for n in range(1, 9):
        term *= -(2 * n - 1) / (2.0 * x * x)
        total += term
    return total / _SQRT_PI / x


def _saturate(x: float) -> Any:
    if x >= np.float32(1.0):
        return np.float32(1.0)
    if x > np.float32(0.0):
        return x
    return np.float32(0.0)  # of NaN too


def _fmax(x: float, y: float) -> float:
    if x == y:
        return y if math.copysign(1.0, x) < 0.0 else x
    return x if x > y or y != y else y  # noqa: PLR0124  # true only for NaN


def _fmin(x: float, y: float) -> float:
    if x == y:
        return x if math.copysign(1.0, x) < 0.0 else y
    return x if x < y or y != y else y  # noqa: PLR0124


def _remquo(x: float, y: float) -> tuple[float, int]:
    """Remainder, and the low 3 bits of the quotient with its sign, as on a GPU; a C library may
    return more bits.
    """
    rest, quotient = _c_remquo(x, y)
    low = abs(quotient) & 7
    return rest, -low if quotient < 0 else low


def _ilogb(x: float) -> int:
    if x == 0.0 or x != x:  # noqa: PLR0124
        return -(1 << 31)
    if math.isinf(x):
        return (1 << 31) - 1
    return math.frexp(x)[1] - 1


def _logb(x: float) -> Any:
    if x == 0.0:
        return -math.inf
    if not math.isfinite(x):
        return abs(x)
    return np.float64(math.frexp(x)[1] - 1)


def _half_to_float(x: int) -> Any:
    """Converts the bits of a half-precision number (1 sign, 5 exponent, 10 fraction) to its
    value.
    """
    exponent, fraction = (x >> 10) & 31, x & 1023
    if exponent == 31:
        value = math.inf if fraction == 0 else math.nan
    elif exponent == 0:
        value = math.ldexp(np.float64(fraction), -24)
    else:
        value = math.ldexp(np.float64(1024 + fraction), exponent - 25)
    return -value if x < 0 else value


def _float_to_half(x: float) -> int:
    """Returns the bits of the nearest half-precision number, ties to even."""
    sign = 0x8000 if math.copysign(1.0, x) < 0.0 else 0
    if x != x:  # noqa: PLR0124
        return 0x7FFF
    magnitude = abs(np.float64(x))
    if magnitude >= 65520.0:
        return sign | 0x7C00
    if magnitude == 0.0:
        return sign
    # In units in the last place, 2**-24 for subnormals. A carry out of the fraction correctly
    # increments the exponent.
    exponent = max(math.frexp(magnitude)[1], -13)
    return sign | (int(np.rint(math.ldexp(magnitude, 11 - exponent))) + ((exponent + 13) << 10))


def _both(signature: str, **functions: Any) -> dict[str, tuple[str, Code]]:
    """Returns the entries of float64 and float32 functions, by name; `d` in the signature is `f`
    in the latter.
    """
    table = {}
    for name, function in functions.items():
        table[name] = signature, body(function)
        table[f"{name}f"] = signature.replace("d", "f"), body(function)
    return table


# Name -> signature, code.
SPECIAL: Final[dict[str, tuple[str, Code]]] = {
    **_both(
        "d(d)",
        sinpi=lambda x: _sincospi(np.float64(x))[0],
        cospi=lambda x: _sincospi(np.float64(x))[1],
        normcdf=lambda x: _normcdf(np.float64(x)),
        normcdfinv=_normcdfinv,
        erfinv=_erfinv,
        erfcinv=_erfcinv,
        erfcx=_erfcx,
        rsqrt=lambda x: np.float32(1.0) / math.sqrt(x),
        rcbrt=lambda x: np.float32(1.0) / cbrt(x),
        exp10=lambda x: math.pow(10.0, np.float64(x)),
        logb=_logb,
    ),
    **_both(
        "d(d,d)", fdim=lambda x, y: np.float32(0.0) if x <= y else x - y, fmax=_fmax, fmin=_fmin
    ),
    **_both("d(d,i)", powi=lambda x, n: math.pow(np.float64(x), np.float64(n))),
    **_both(
        "dd(d)",
        sincos=lambda x: (math.sin(x), math.cos(x)),
        sincospi=lambda x: _sincospi(np.float64(x)),
    ),
    **_both("i(d)", ilogb=_ilogb),
    **_both("di(d,d)", remquo=_remquo),
    "saturatef": ("f(f)", body(_saturate)),
    "half2float": ("f(h)", body(_half_to_float)),
    "float2half_rn": ("h(f)", body(_float_to_half)),
}
