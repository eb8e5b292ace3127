"""The rows that collectives are tested on."""

from typing import Any

import pytest

from synknumba._device import probe
from synknumba._variables import collective_plans
from tests.conformance.conftest import COLLECTIVE_ROWS


@pytest.fixture(params=COLLECTIVE_ROWS)
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of `fork()`."""
    needed = len(set(request.param.get("devices", ())))
    if needed > 2 and probe().count < needed:  # one GPU and two have markers
        pytest.skip(f"needs {needed} GPUs")
    return request.param


@pytest.fixture(autouse=True)
def _little_done_by_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that arrays that the ranks work on need not be very large."""
    monkeypatch.setattr(collective_plans, "DIRECT_BYTES", 128 << 10)
