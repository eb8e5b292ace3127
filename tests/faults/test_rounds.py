"""The doorbell and the barriers under load; ten million rounds are
`python -m tests.faults.rounds`.
"""

import pytest

from synknumba._wire.control import ControlBlock
from tests.faults import rounds
from tests.faults.rounds import PATIENCES, Delays


@pytest.mark.parametrize("delays", [False, True], ids=["fast", "delayed"])
@pytest.mark.parametrize("patience", PATIENCES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_payload_arrives(ranks, patience, delays):
    rounds.run(1500 // ranks, ranks, PATIENCES[patience], delays=delays)


@pytest.fixture
def soon(monkeypatch):
    """A round that does not end is found out soon."""
    monkeypatch.setattr(rounds, "HANG_SECONDS", 0.5)


@pytest.mark.parametrize("word", rounds.WORDS)
def test_values_of_the_round_before_are_seen(word, soon, monkeypatch, capfd):
    """A coordinator whose store comes after the doorbell is found out by the ranks, whichever
    store it is.
    """
    real, controls = rounds.doorbell_module.call, []
    monkeypatch.setattr(
        rounds, "ControlBlock", lambda *given: controls.append(ControlBlock(*given)) or controls[0]
    )

    def late(base, world_size, sequence, *others):
        if sequence == 5:
            controls[0].values.data.cast("q")[word] = rounds.payload(4, word)
        return real(base, world_size, sequence, *others)

    monkeypatch.setattr(rounds.doorbell_module, "call", late)
    with pytest.raises(AssertionError, match="never answered by"):
        rounds.run(10, 2, PATIENCES["crowded"], delays=False)
    assert f"5, {word})" in capfd.readouterr().err


@pytest.mark.parametrize("word", [0, rounds.LAST])
def test_results_of_the_round_before_are_seen(word, monkeypatch):
    """A rank whose store comes after its arrival is found out by the coordinator."""
    real, controls = rounds.doorbell_module.arrive, []
    monkeypatch.setattr(
        rounds, "ControlBlock", lambda *given: controls.append(ControlBlock(*given)) or controls[0]
    )

    def late(base, world_size, rank, sequence, *others):
        if (rank, sequence) == (1, 5):
            controls[0].results[rank].data.cast("q")[word] = rounds.payload(4, rank)
        return real(base, world_size, rank, sequence, *others)

    monkeypatch.setattr(rounds.doorbell_module, "arrive", late)
    with pytest.raises(AssertionError, match=r"\(5, 1\)"):
        rounds.run(10, 2, PATIENCES["crowded"], delays=False)


def test_a_wake_up_that_is_lost_is_seen(soon, monkeypatch):
    """Ranks that are not woken leave a round without end."""
    monkeypatch.setattr(ControlBlock, "wake_ranks", lambda self: None)
    monkeypatch.setattr(
        ControlBlock, "sleep_line", lambda self, rank, sequence, lives: rounds.time.sleep(3600)
    )
    with pytest.raises(AssertionError, match="never answered by"):
        rounds.run(10, 2, PATIENCES["never"], delays=False)


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
