"""Where the device functions run: compiled for a core, under the checker, and on a GPU."""

import pytest
from numba import cuda

from synknumba import simt


@pytest.fixture(
    params=[
        pytest.param(simt.jit, id="compiled"),
        pytest.param(simt.check, id="checked"),
        pytest.param(
            cuda.jit,
            id="cuda",
            marks=[
                pytest.mark.gpu,
                # small grids, and arrays of the host
                pytest.mark.filterwarnings("ignore:.*Grid size", "ignore:.*Host array"),
            ],
        ),
    ]
)
def run(request):
    """What makes a kernel of a function."""
    return request.param
