"""The table of seeded faults goes with the code that they are in."""

import pytest

from tests import seeded


@pytest.mark.whole
def test_every_fault_can_be_made() -> None:
    assert seeded.problems() == []
    assert len(seeded.FAULTS) >= 40
