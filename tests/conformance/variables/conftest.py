"""After each test of variables, a call that is right is right."""

from collections.abc import Iterator

import numpy as np
import pytest

import synknumba as synk
from tests.conformance import kernels


@pytest.fixture
def usable(world: synk.World) -> Iterator[None]:
    yield
    assert not world.closed
    x = np.arange(30.0)
    assert kernels.total_of(x) == x.sum()
