"""The table of seeded faults goes with the code that they are in."""

from tests import seeded


def test_every_fault_can_be_made() -> None:
    assert seeded.problems() == []
    assert len(seeded.FAULTS) >= 40
