"""The CUDA device's modules on a model of a GPU."""

import pytest

from tests.unit.cuda import stand_in
from tests.unit.cuda.recording import Bench


@pytest.fixture(params=range(2), ids=lambda seed: f"seed{seed}")
def machine(request):
    """A machine of its own for the test; whatever happens in it, no stream is left in capture."""
    made = stand_in.start(request.param)
    yield made
    assert not made.captures


@pytest.fixture
def gpu():
    """The modules."""
    return stand_in.load()


@pytest.fixture
def bench(machine, gpu):
    """A stream, and steps on it."""
    return Bench(machine, gpu)
