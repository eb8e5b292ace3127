"""Vector versions of mathematical functions: found, used in kernels only, and as right as
promised.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding as llvm
from numba import cuda, float64, njit, typeof
from numba.core import errors

from synknumba import simt
from synknumba.simt._machine import vector_math
from synknumba.simt._machine.codegen import Launch, compile_launch
from synknumba.simt._machine.vector_math import SWITCH, VectorFunction, mark_calls, vector_library

MANGLED = {"libmvec": "_ZGV", "svml": "__svml_"}

# Units in the last place; Intel promises less than 1 for most functions.
BOUND = {"libmvec": 4.0, "svml": 1.5}

needs_library = pytest.mark.skipif(
    vector_library() is None, reason="there is no vector math library"
)
needs_longdouble = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double"
)


def uniform(low: float, high: float) -> Any:
    return lambda random, n: random.uniform(low, high, n)


def magnitudes(low: float, high: float) -> Any:
    return lambda random, n: 10.0 ** random.uniform(low, high, n)


# The functions and where to try them; NumPy's name where it is another.
FUNCTIONS: dict[str, tuple[str, Any]] = {
    "exp": ("exp", uniform(-80, 80)),
    "log": ("log", magnitudes(-30, 30)),
    "sin": ("sin", uniform(-10, 10)),
    "cos": ("cos", magnitudes(-5, 30)),
    "tan": ("tan", uniform(-10, 10)),
    "exp2": ("exp2", uniform(-100, 100)),
    "expm1": ("expm1", uniform(-2, 2)),
    "log10": ("log10", uniform(0.5, 2)),
    "log1p": ("log1p", magnitudes(-10, 10)),
    "sinh": ("sinh", uniform(-10, 10)),
    "tanh": ("tanh", uniform(-10, 10)),
    "asin": ("arcsin", uniform(-1, 1)),
    "atan": ("arctan", magnitudes(-10, 10)),
    "acosh": ("arccosh", magnitudes(0.1, 10)),
}
SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-310,
    -1e-310,
    1e300,
    -1e300,
    1.0,
    -1.0,
    0.5,
    2.0,
    -2.0,
    700.0,
    -800.0,
]


def compiled(function: Any, dtype: Any) -> tuple[Any, str]:
    """A loop that applies the function, compiled as a kernel is, and its machine code as text."""

    def loop(x, out):
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    kind = typeof(np.zeros(1, dtype))
    made = compile_launch(Launch(njit(error_model="numpy")(loop), ""), (kind, kind), "")
    return made.entry, made.result.library.get_asm_str()


def _is_known(function: Any) -> bool:
    """Whether Numba compiles calls of the function; 0.62 knows no `math.exp2`."""
    try:
        njit(lambda x: function(x)).compile((float64,))  # noqa: PLW0108  # a function that calls it
    except errors.TypingError:
        return False
    return True


@needs_library
class TestFunctions:
    @needs_longdouble
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_error(self, name: str, dtype: Any) -> None:
        if name == "exp2" and not _is_known(math.exp2):
            pytest.skip("this version of Numba has no math.exp2")
        library = vector_library()
        assert library
        numpy_name, values = FUNCTIONS[name]
        x = values(np.random.default_rng(1), 20_003).astype(dtype)
        out = np.empty_like(x)
        entry, text = compiled(getattr(math, name), dtype)
        assert MANGLED[library] in text
        entry(x, out)
        exact = getattr(np, numpy_name)(x.astype(np.longdouble))
        assert (
            np.max(np.abs(out - exact) / np.spacing(np.abs(exact.astype(dtype)))) <= BOUND[library]
        )

    @pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh"])
    def test_special_values(self, name: str) -> None:
        x = np.array(SPECIAL * 8)
        out = np.empty_like(x)
        compiled(getattr(math, name), np.float64)[0](x, out)
        with np.errstate(all="ignore"):
            expected = getattr(np, FUNCTIONS[name][0])(x)
        np.testing.assert_allclose(out, expected, rtol=1e-15)
        assert (np.signbit(out) == np.signbit(expected))[~np.isnan(expected)].all()

    def test_power(self) -> None:
        def power(x):
            return x**1.7

        x = np.random.default_rng(1).uniform(0.1, 100, 10_001)
        out = np.empty_like(x)
        entry, text = compiled(njit(power), np.float64)
        assert MANGLED[vector_library() or ""] in text
        entry(x, out)
        np.testing.assert_allclose(out, x**1.7, rtol=1e-15)


class TestKernel:
    @needs_library
    def test_kernel_calls_it_and_njit_does_not(self) -> None:
        @simt.jit(cache=False)
        def kernel(x, out):
            i = cuda.grid(1)
            if i < x.size:
                out[i] = math.exp(x[i])

        @njit
        def loop(x, out):
            for i in range(x.size):
                out[i] = math.exp(x[i])

        x = np.linspace(-5, 5, 1003)
        out, plain = np.zeros_like(x), np.zeros_like(x)
        kernel[8, 128](x, out)
        loop(x, plain)
        np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)
        assert not any(
            name in text for text in loop.inspect_asm().values() for name in MANGLED.values()
        )

    def test_switch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SWITCH, "off")
        assert vector_library() is None
        assert vector_math.describe() == ()
        entry, text = compiled(math.exp, np.float64)
        assert not any(name in text for name in MANGLED.values())
        x = np.linspace(-5, 5, 99)
        out = np.zeros_like(x)
        entry(x, out)
        np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)

    def test_unknown_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SWITCH, "another")
        assert vector_library() is None


@pytest.fixture
def fresh() -> Iterator[None]:
    vector_math._load.cache_clear()
    yield
    vector_math._load.cache_clear()


@pytest.mark.usefixtures("fresh")
class TestFinding:
    def test_none_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(_: str) -> None:
            raise RuntimeError

        monkeypatch.setattr(llvm, "load_library_permanently", fails)
        assert vector_library() is None

    def test_svml_that_does_not_load(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vector_math, "SVML_WHEEL", "no-such-wheel")
        monkeypatch.setattr("sys.prefix", str(tmp_path))
        assert vector_math._svml_folder() is None
        (tmp_path / "lib").mkdir()
        for name in ("libsvml.so", "libintlc.so.5"):
            (tmp_path / "lib" / name).write_text("not a library")
        assert vector_math._svml_folder() == tmp_path / "lib"
        monkeypatch.setenv(SWITCH, "svml")
        assert vector_library() is None

    def test_svml_of_a_wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libsvml.so").touch()
        records = tmp_path / "site" / "intel_cmplr_lib_rt-1.0.dist-info"
        records.mkdir(parents=True)
        (records / "RECORD").write_text("../lib/libsvml.so,,\n")
        # imports, too, pass over what is not a string
        monkeypatch.setattr("sys.path", [None, 1, b"/bytes", tmp_path, str(tmp_path / "site")])
        assert vector_math._svml_folder() == tmp_path / "lib"


KNOWN = {
    "llvm.exp.f64": (VectorFunction("vector_exp", "double", 4, 1),),
    "powf": (VectorFunction("vp", "float", 8, 2),),
}


class TestMarks:
    def test_calls(self) -> None:
        text = (
            "define double @f(double %x, float %y) {\n"
            "  %1 = call fast double @llvm.exp.f64(double %x), !dbg !7\n"
            "  %2 = tail call double @llvm.exp.f64(double %1) #3\n"
            "  %3 = call float @powf(float %y, float %y)\n"
            "  %4 = call double @unknown(double %2)\n"
            "}"
        )
        exp = '"vector-function-abi-variant"="_ZGV_LLVM_N4v_llvm.exp.f64(vector_exp)"'
        power = '"vector-function-abi-variant"="_ZGV_LLVM_N8vv_powf(vp)"'
        assert mark_calls(text, KNOWN).splitlines() == [
            "define double @f(double %x, float %y) {",
            f"  %1 = call fast double @llvm.exp.f64(double %x) {exp}, !dbg !7",
            f"  %2 = tail call double @llvm.exp.f64(double %1) #3 {exp}",
            f"  %3 = call float @powf(float %y, float %y) {power}",
            "  %4 = call double @unknown(double %2)",
            "}",
            "declare <4 x double> @vector_exp(<4 x double>) memory(none) nounwind willreturn",
            "declare <8 x float> @vp(<8 x float>, <8 x float>) memory(none) nounwind willreturn",
            (
                "@llvm.compiler.used = appending global [2 x ptr] [ptr @vector_exp, ptr "
                '@vp], section "llvm.metadata"'
            ),
        ]

    def test_nothing_to_mark(self) -> None:
        text = "declare double @llvm.exp.f64(double)\n"
        assert mark_calls(text, KNOWN) == text

    @pytest.mark.parametrize(
        ("features", "sets"),
        [
            ("", [("b", 2)]),
            ("+avx,+sse2", [("b", 2), ("c", 4)]),
            ("+avx,+avx2,-avx512f", [("b", 2), ("d", 4)]),
            ("+avx512f,+avx,+avx2", [("b", 2), ("d", 4), ("e", 8)]),
        ],
    )
    def test_instruction_sets(self, features: str, sets: Any) -> None:
        assert list(vector_math._instruction_sets(features)) == sets
