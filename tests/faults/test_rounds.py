"""The doorbell and the barriers under load; ten million rounds are `python -m tests.faults.rounds`."""

import pytest

from tests.faults import rounds
from tests.faults.rounds import PATIENCES, Delays


@pytest.mark.parametrize("delays", [False, True], ids=["fast", "delayed"])
@pytest.mark.parametrize("patience", PATIENCES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_payload_arrives(ranks, patience, delays):
    rounds.run(1500 // ranks, ranks, PATIENCES[patience], delays=delays)


def test_a_stale_payload_is_seen(monkeypatch):
    """A coordinator that writes after the doorbell is found out."""
    ring = rounds._spin.call

    def late(base, world_size, sequence, *others):
        code = ring(base, world_size, sequence, *others)
        rounds.payload = lambda sequence, word: 0
        return code

    monkeypatch.setattr(rounds, "payload", rounds.payload)
    monkeypatch.setattr(rounds._spin, "call", late)
    with pytest.raises(AssertionError):
        rounds.run(10, 2, PATIENCES["crowded"], delays=False)


def test_delays_happen():
    slept = []
    delay = Delays(1, wanted=True)
    delay._rng.random = lambda: 0.0
    rounds.time.sleep, sleep = slept.append, rounds.time.sleep
    try:
        delay()
    finally:
        rounds.time.sleep = sleep
    assert slept == [0.0]
