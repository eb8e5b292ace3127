"""Whatever the rows, slices and batch: sum, mean and gathered rows are NumPy's."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels


@st.composite
def calls(draw):
    """A number of rows, a batch of them, and slices."""
    n = draw(st.integers(1, 60))
    index = st.integers(-n, n - 1)
    batch = draw(
        st.none()
        | st.integers(1, n)
        | st.slices(n)
        | st.lists(index, min_size=1, max_size=2 * n)
        | st.lists(index, min_size=1, max_size=2 * n).map(np.array)
        | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
    )
    return n, batch, draw(st.integers(1, 8))


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(call=calls(), held=st.booleans())
def test_any_call_is_numpys(world, call, held):
    n, batch, num_slices = call
    x = expected.values(n)
    chosen = x[expected.selection(batch)]
    if not len(chosen):
        return  # refused: tests/unit/test_bad_input
    array = synk.data(x) if held else x
    assert_allclose(kernels.total_of(array, batch=batch, num_slices=num_slices), chosen.sum())
    assert_allclose(kernels.mean_of(array, batch=batch, num_slices=num_slices), chosen.mean())
    assert_array_equal(kernels.rows_of(array, batch=batch, num_slices=num_slices), chosen)
    result = kernels.mixed(array, array, batch=batch, num_slices=num_slices)
    assert result.low == chosen.min()
    assert_allclose(result.sums, [chosen.sum()] * 2)
    assert_array_equal(result.out, chosen * chosen)
    assert_allclose(result.means, [chosen.mean()] * 2)
