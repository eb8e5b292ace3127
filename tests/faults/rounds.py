"""The doorbell and the barriers alone, as fast as they go: every round's payload is checked by both
sides.

    python -m tests.faults.rounds --rounds 10000000 --ranks 2 --patience mixed --delays

What is written before the doorbell with plain stores must be what ranks read after it, and what
they write before they arrive must be what the coordinator reads after the last has. A wake-up that
is lost shows as a round that does not end.
"""

import argparse
import os
import random
import signal
import sys
import time

from synknumba._wire import doorbell as doorbell_module
from synknumba._wire.control import CROWDED, RESULT_BYTES, ROOMY, ControlBlock, Patience

# one look, then sleep: every round is about flags and semaphores
NEVER = Patience(pauses=0, rank=1, coordinator=1)
SHORT = Patience(pauses=20, rank=5, coordinator=5)  # asleep or not, by chance
PATIENCES = {"crowded": CROWDED, "roomy": ROOMY, "never": NEVER, "mixed": SHORT}
HANG_SECONDS = 20.0
DELAYED = 0.002  # of the places where something may be delayed
WORDS = (0, 7, 500, 2047)  # of the values: on cache lines of their own
LAST = RESULT_BYTES // 8 - 1
ODD = 0x9E3779B97F4A7C15 >> 1


def payload(sequence: int, word: int) -> int:
    """What is sent in a round; other in every round and at every place."""
    return (sequence * ODD + word) & 0x7FFFFFFFFFFFFFFF


class Delays:
    """Stops a process for up to two milliseconds now and then, by sleeping or by keeping its
    core.
    """

    def __init__(self, seed: int, *, wanted: bool) -> None:
        self._rng = random.Random(seed)
        self._wanted = wanted

    def __call__(self) -> None:
        if self._wanted and self._rng.random() < DELAYED:
            seconds = self._rng.random() * 2e-3
            if self._rng.random() < 0.5:
                time.sleep(seconds)
            else:
                until = time.perf_counter() + seconds
                while time.perf_counter() < until:
                    pass


def rank_side(
    control: ControlBlock, rank: int, coordinator: int, rounds: int, delay: Delays
) -> None:
    """What a rank does, round after round; raises at a wrong payload."""
    base, world_size, patience = control.base, control.world_size, control.patience
    values = control.values.data.cast("q")
    results = control.results[rank].data.cast("q")
    number = doorbell_module.NO_COMMAND
    for sequence in range(1, rounds + 1):
        while number == doorbell_module.NO_COMMAND:
            number = doorbell_module.await_command(
                base, sequence - 1, patience.pauses, patience.rank
            )
            if number == doorbell_module.NO_COMMAND:
                delay()
                if not control.sleep_line(rank, sequence - 1, lambda: os.getppid() == coordinator):
                    return
        assert number == sequence % 1000, (rank, sequence, number)
        for word in WORDS:
            assert values[word] == payload(sequence, word), (rank, sequence, word)
        delay()
        results[0] = results[LAST] = payload(sequence, rank)
        number = doorbell_module.arrive(
            base, world_size, rank, sequence, sequence % 7 == rank, patience.pauses, patience.rank
        )
        if number == doorbell_module.MUST_POST:
            delay()
            control.done.post()
            number = doorbell_module.NO_COMMAND


def coordinator_side(control: ControlBlock, rounds: int, delay: Delays) -> None:
    """What the coordinator does; raises at a wrong payload, and where a round does not end."""
    base, world_size, patience = control.base, control.world_size, control.patience
    values = control.values.data.cast("q")
    results = [control.results[rank].data.cast("q") for rank in range(world_size)]
    for sequence in range(1, rounds + 1):
        for word in WORDS:
            values[word] = payload(sequence, word)
        delay()
        code = doorbell_module.call(
            base, world_size, sequence, sequence % 1000, patience.pauses, patience.coordinator
        )
        if code == -1:
            delay()
            control.wake_ranks()
            code = doorbell_module.await_all(
                base, world_size, patience.pauses, patience.coordinator
            )
        began = time.monotonic()
        while code == doorbell_module.NOT_YET and not control.sleep_coordinator():
            assert time.monotonic() < began + HANG_SECONDS, (
                sequence,
                "never answered by",
                control.missing(sequence),
            )
        for rank in range(world_size):
            expected = payload(sequence, rank)
            assert (results[rank][0], results[rank][LAST]) == (expected, expected), (sequence, rank)
        assert control.with_news(sequence) == [
            rank for rank in range(world_size) if sequence % 7 == rank
        ], sequence


def run(rounds: int, ranks: int, patience: Patience, *, delays: bool) -> float:
    """Seconds that all rounds took."""
    control = ControlBlock(ranks, patience)
    coordinator, pids = os.getpid(), []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            try:
                rank_side(control, rank, coordinator, rounds, Delays(rank, wanted=delays))
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
        pids.append(pid)
    began = time.monotonic()
    try:
        coordinator_side(control, rounds, Delays(-1, wanted=delays))
        seconds = time.monotonic() - began
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        pids.clear()
        return seconds
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        control.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--patience", choices=PATIENCES, default="crowded")
    parser.add_argument("--delays", action="store_true")
    options = parser.parse_args()
    seconds = run(options.rounds, options.ranks, PATIENCES[options.patience], delays=options.delays)
    print(
        f"{options.rounds} rounds, {options.ranks} ranks, "
        f"{options.patience}{', delays' if options.delays else ''}: "
        f"{seconds:.0f} s, {seconds / options.rounds * 1e6:.1f} us a round"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
