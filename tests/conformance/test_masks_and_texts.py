"""Arguments and results that ranks have no counterpart of: masks, and arrays of strings of any
length.
"""

import numpy as np
import pytest

import synknumba as synk
from tests.quick import whole

pytestmark = pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2")


@synk.function(outputs="sum")
def scaled(x, by=1.0):
    return np.sum(x) * by


@synk.function(outputs=None)
def rows(x):
    return len(x)


@synk.function(outputs="gather")
def odd(x, what):
    x = x.get() if hasattr(x, "get") else x  # CuPy has no masked arrays
    masked = np.ma.masked_array(x, mask=np.asarray(x) % 2 == 0)
    return {
        "array": masked,
        "filled": masked.filled(-1.0),
        "unmasked": np.ma.masked_array(x),
        "sum": masked.sum(),
    }[what]


@synk.function(outputs="sum")
def nothing(x):
    x = x.get() if hasattr(x, "get") else x
    return np.ma.masked_array(x, mask=True).sum()


@synk.expectation
def mean(x, by):
    return x * by


@synk.vectorize
def product(x, by):
    return x * by


@pytest.mark.parametrize(
    "masked",
    [np.ma.masked, *whole(np.ma.masked_array(5.0, mask=True), np.ma.masked_array(5, mask=True))],
)
def test_masked_numbers_are_refused(world, masked):
    for call, name in ((scaled, "scaled"), (mean, "mean"), (product, "product")):
        call(np.ones(4), 2.0)
        for _ in range(2):
            with pytest.raises(synk.DataError, match=f"by of {name} is masked.*filled"):
                call(np.ones(4), masked)
    assert scaled(np.ones(4), np.ma.masked_array(5.0)) == 20.0


@pytest.mark.parametrize("num_slices", [1, 2])
def test_masked_results_are_refused(world, num_slices):
    x = np.arange(12.0)
    with pytest.raises(synk.ReductionError, match=r"returned a masked array of shape .*filled"):
        odd(x, "array", num_slices=num_slices)
    with pytest.raises(synk.ReductionError, match=r"returned a masked array of shape \(\)"):
        nothing(x, num_slices=num_slices)
    assert np.array_equal(odd(x, "filled", num_slices=num_slices), np.where(x % 2 == 0, -1.0, x))
    assert np.array_equal(odd(x, "unmasked", num_slices=num_slices), x)


def test_texts_of_any_length_are_refused_at_each_call(world):
    texts = np.array(["a", "bb", "c" * 99], np.dtypes.StringDType())
    of_letters = [np.array(["a", "b", "c"])] if world.device == "cpu" else []  # GPUs have no texts
    for before in (None, np.zeros(3), *of_letters):
        if before is not None:
            rows(before)
        for _ in range(2):
            with pytest.raises(
                synk.DataError, match=r"x: .*StringDType.* cannot be shared.*fixed-size"
            ):
                rows(texts)
    for make in (synk.data, synk.variable, lambda value: synk.data(dtype=value.dtype, shape=3)):
        with pytest.raises(synk.SynkError, match="StringDType"):
            make(texts)
    with pytest.raises(synk.SynkError, match="StringDType"):
        synk.data(np.zeros(3)).set_value(texts)
    with pytest.raises(synk.SynkError):
        synk.output("gather", dtype=texts.dtype)
    for call in (mean, product):
        with pytest.raises(synk.SynkError):
            call(texts, 2.0)


def test_masked_values_in_memory_are_refused():
    values = np.ma.masked_array([1.0, 2.0, 3.0], mask=[True, False, False])
    for call in (
        synk.Estimate.from_values,
        synk.Estimate.blocked,
        lambda one: synk.Estimate.from_values(np.ones(3), one),
    ):
        with pytest.raises(synk.ReductionError, match="has masked items; pass .*compressed"):
            call(values)
    assert synk.Estimate.from_values(values.compressed()).mean == 2.5
