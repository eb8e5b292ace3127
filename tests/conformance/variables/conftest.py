"""After each test of variables, a call that is right is right."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance import kernels


@pytest.fixture
def usable(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests in the kept world; those that make worlds of their own end them."""
    world = None if "fork_row" in request.fixturenames else request.getfixturevalue("world")
    yield
    if world is not None:
        assert not world.closed
        x = np.arange(30.0)
        assert kernels.total_of(x) == x.sum()
