"""Every function of `cuda.libdevice` against what an H100 answered, and against other libraries
where that is no measure.
"""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from numba import cuda
from numba.core.errors import TypingError
from numba.cuda import libdevice

from synknumba import simt
from synknumba.simt._maths.libdevice import LIBDEVICE
from tests import quick
from tests.unit.simt.library import STEP, declared, inputs, run

RECORDED = Path(__file__).parent / "libdevice_h100.npz"  # by `python library.py`

# A GPU's own errors are large here, or the last bits are free.
BESSEL = {f"{name}{kind}" for name in ("j0", "j1", "jn", "y0", "y1", "yn") for kind in ("", "f")}
ELSEWHERE = {*BESSEL, "powi", "powif", "lgamma", "lgammaf"}

# Right to the last bit on both sides.
EXACT = (
    "_rd",
    "_rn",
    "_ru",
    "_rz",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "fdim",
    "rint",
    "round",
    "ceil",
    "floor",
    "trunc",
    "fabs",
)
EXACT += (
    "_as_",
    "modf",
    "frexp",
    "ldexp",
    "scalbn",
    "nextafter",
    "remainder",
    "remquo",
    "copysign",
    "logb",
    "half",
    "saturate",
)

# In units of the last place, elsewhere. Two correct libraries differ by 1; NVIDIA allows itself up
# to 7 for some functions.
TOLERANCE = 6


SCIPY = {
    "j0": scipy.special.j0,
    "j1": scipy.special.j1,
    "y0": scipy.special.y0,
    "y1": scipy.special.y1,
    "lgamma": scipy.special.gammaln,
    "erfcx": scipy.special.erfcx,
    "erfinv": scipy.special.erfinv,
    "erfcinv": scipy.special.erfcinv,
    "normcdf": scipy.special.ndtr,
    "normcdfinv": scipy.special.ndtri,
    "cbrt": np.cbrt,
    "fast_sinf": np.sin,
    "fast_powf": np.power,
    "fast_exp10f": lambda x: np.power(np.float64(10), x),
}


def compiled() -> set[str]:
    """All functions; in the quick suite every 24th, beside those that a test wants by name."""
    return {*sorted(declared())[:: 24 if quick.asked else 1], *SCIPY, "powi", "fma_rd", "fma_ru"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return run(simt.jit, tmp_path_factory.mktemp("library"), compiled())


def places(values: np.ndarray) -> np.ndarray:
    """The place of each float among all floats of its type."""
    bits = values.view(f"i{values.itemsize}").astype(object)
    return np.array(
        [bit if bit >= 0 else -(bit + (1 << (8 * values.itemsize - 1))) for bit in bits], object
    )


@pytest.mark.whole
def test_every_function_is_there(answers: dict[str, np.ndarray]) -> None:
    assert {name.rsplit("_", 1)[0] for name in answers} == compiled()
    assert set(LIBDEVICE) == {f"libdevice.{name}" for name in declared()}
    assert len(declared()) > 300


def test_answers_are_those_of_a_gpu(answers: dict[str, np.ndarray]) -> None:
    recorded = np.load(RECORDED)
    assert len(recorded.files) > 300
    unknown = {key.rsplit("_", 1)[0] for key in answers.keys() - {*recorded.files}}
    needed = {name for name in unknown if not name.startswith("fast_")}  # of the exact functions
    assert needed <= SCIPY.keys(), "what is not recorded needs a reference"
    wrong = []
    for key in answers.keys() & recorded.files:
        name = key.rsplit("_", 1)[0]
        theirs, ours = recorded[key], answers[key][::STEP]
        if name in ELSEWHERE:
            continue
        if theirs.dtype.kind == "i":
            both_nan = False
            # the bits of a NaN are free
            if name in {
                "float_as_int",
                "double_as_longlong",
                "double2hiint",
                "double2loint",
            }:
                both_nan = np.isnan(inputs(tuple(map(str, declared()[name].args)))[0][::STEP])
            agree = (theirs == ours) | both_nan
        else:
            both_nan = np.isnan(theirs) & np.isnan(ours)
            exact = any(part in name for part in EXACT)
            apart = np.abs(places(theirs) - places(ours)) <= (0 if exact else TOLERANCE)
            one_nan = np.isnan(theirs) != np.isnan(ours)
            agree = both_nan | (
                apart.astype(bool) & ~one_nan & (np.signbit(theirs) == np.signbit(ours))
            )
        if not agree.all():
            place = int(np.flatnonzero(~agree)[0])
            args = [
                values[::STEP][place] for values in inputs(tuple(map(str, declared()[name].args)))
            ]
            wrong.append(f"{key}{tuple(args)}: {theirs[place]!r} on the GPU, {ours[place]!r} here")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "reference"), SCIPY.items())
def test_against_scipy(answers: dict[str, np.ndarray], name: str, reference: Any) -> None:
    args = inputs(tuple(map(str, declared()[name].args)))
    ours = answers[f"{name}_0"]
    with np.errstate(all="ignore"):
        theirs = np.asarray(reference(*(arg.astype(np.float64) for arg in args)))
        theirs = theirs.astype(ours.dtype)
        usual = (
            np.isfinite(theirs)
            & np.all([np.abs(arg) < 1e4 for arg in args], axis=0)
            & (np.abs(theirs) > 1e-30)
        )
    assert usual.sum() > 50
    np.testing.assert_allclose(
        ours[usual], theirs[usual], rtol=3e-6 if ours.dtype == np.float32 else 2e-13, atol=1e-15
    )


def test_integer_powers_against_exact_arithmetic(answers: dict[str, np.ndarray]) -> None:
    checked = 0
    for x, n, result in zip(*inputs(("float64", "int32")), answers["powi_0"], strict=True):
        if (
            math.isfinite(x)
            and x != 0
            and abs(int(n)) <= 40
            and abs(int(n) * math.log(abs(x))) < 600
        ):
            exact = Fraction(float(x)) ** int(n)
            assert abs(Fraction(float(result)) - exact) <= abs(exact) * Fraction(1, 2**52)
            checked += 1
    assert checked > 100


def test_directions_enclose_the_exact_result(answers: dict[str, np.ndarray]) -> None:
    x, y, z = inputs(("float64", "float64", "float64"))
    checked = 0
    for k in range(x.size):
        down, up = answers["fma_rd_0"][k], answers["fma_ru_0"][k]
        if not all(map(math.isfinite, (x[k], y[k], z[k], down, up))):
            continue
        exact = Fraction(float(x[k])) * Fraction(float(y[k])) + Fraction(float(z[k]))
        assert Fraction(float(down)) <= exact <= Fraction(float(up))
        assert down == up == exact or np.nextafter(down, np.inf) == up
        checked += 1
    assert checked > 300


def test_reciprocal_roots_are_rounded_correctly() -> None:
    """Of 1 / sqrt(x) all mantissas that come near a tie, in both parities of the exponent."""

    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = libdevice.frsqrt_rn(x[i])

    x = np.arange(1 << 23, 3 << 23, dtype=np.int64)
    x = np.concatenate([x[: 1 << 23], x[1 << 23 :] - (1 << 23)]).astype(np.float64) * np.repeat(
        [1.0, 2.0], 1 << 23
    )
    through = 1 / np.sqrt(x)
    scaled = through * 2.0 ** (24 - np.frexp(through)[1])
    near = np.abs(scaled - np.floor(scaled) - 0.5) < 1e-7
    hard = x[near].astype(np.float32)
    assert hard.size > 1
    out = np.zeros_like(hard)
    kernel[-(-hard.size // 256), 256](hard, out)
    for value, result in zip(hard, out, strict=True):
        low, high = (
            (Fraction(float(result)) + Fraction(float(np.nextafter(result, np.float32(side))))) / 2
            for side in (0, np.inf)
        )
        assert low * low * Fraction(float(value)) <= 1 <= high * high * Fraction(float(value))


class TestCalls:
    def test_arguments_are_converted(self) -> None:
        @simt.jit
        def kernel(out):
            out[0] = libdevice.sqrtf(2)
            out[1] = libdevice.sqrtf(2.0)
            out[2] = libdevice.sqrt(True)
            out[3] = libdevice.ldexp(1, 3)

        out = np.zeros(4)
        kernel[1, 1](out)
        assert (out == [np.sqrt(np.float32(2)), np.sqrt(np.float32(2)), 1, 8]).all()

    def test_names_imported_by_themselves(self) -> None:
        from numba.cuda.libdevice import fadd_rd as add_down

        @simt.jit
        def kernel(out):
            out[0] = add_down(1.0, -1e-30)

        out = np.zeros(1, np.float32)
        kernel[1, 1](out)
        assert out[0] == np.nextafter(np.float32(1), np.float32(0))

    def test_exact_arithmetic_is_not_contracted(self) -> None:
        @simt.jit
        def kernel(x, out):
            i = cuda.grid(1)
            out[i] = libdevice.fadd_rn(libdevice.fmul_rn(x[i], x[i]), -1.0)

        x = np.float32(1 + 2**-12) * np.ones(40, np.float32)
        out = np.zeros(40, np.float32)
        kernel[1, 40](x, out)
        assert (out == x * x - np.float32(1)).all()

    @pytest.mark.parametrize("argument", [1j, (1.0,), np.ones(2)])
    def test_no_numbers(self, argument: Any) -> None:
        @simt.jit
        def kernel(x, out):
            out[0] = libdevice.sinf(x)

        with pytest.raises(TypingError):
            kernel[1, 1](argument, np.zeros(1))
