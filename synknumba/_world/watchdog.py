"""The watchdog of a world: checks whether the ranks live while the coordinator waits for them, and
ends them all after a death, a timeout or an interrupt.

    a wait ── check, every 50 ms ──> a rank has died ── kill ──> RankDied
    the time is up, Ctrl-C, close() ─────────────────── kill

Threads and signal handlers may ask for the end at the same time. The first ends the ranks, and
others wait until their resources are freed.
"""

import threading
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeAlias

from synknumba._errors import SynkError, WorldError
from synknumba._host.signals import held_signals
from synknumba._world.failure import JOB_IS_OVER, CallInfo, Death, rank_died
from synknumba._world.machines import OtherMachines
from synknumba._world.processes import Processes

END_SECONDS = 20.0  # wait for another thread that is ending the ranks and freeing their resources

Watch: TypeAlias = Callable[[], None]
"""Called repeatedly during a wait; raises to leave it."""

# weakly refers to what is called with the reason when the ranks have been ended
Ended: TypeAlias = Callable[[], Callable[[str | None], None] | None]


class Watchdog:
    """Checks whether the ranks of one world live, and ends them.

    Args:
        processes: processes of the ranks.
        ended: called with the reason when the ranks have been ended; the reason is None if the
            script closed the world.
        others: the ranks of other machines; None if there are none.

    Attributes:
        starts_again: whether the next call starts the ranks again after a failure; for messages.
    """

    def __init__(
        self, processes: Processes, ended: Ended, others: OtherMachines | None = None
    ) -> None:
        self.starts_again = False
        self._processes = processes
        self._others = others
        self._ended = ended
        self._lock = threading.Lock()  # held by the thread that kills the ranks
        self._has_begun = False  # set before they are killed: their deaths are then no errors
        self._is_over = threading.Event()  # set once their resources are freed

    # ---- checks

    def check(
        self, info: CallInfo, grace: float = 0.0, last_word: Callable[[int], None] | None = None
    ) -> None:
        """Ends all ranks and raises `RankDied` if one has ended, within `grace` seconds; first
        calls `last_word` with it, which may raise instead.
        """
        death = self._processes.find_dead(grace)
        self.check_open(info)
        if death is not None:
            if last_word is not None:
                last_word(death.rank)
            self.end(str(death), death, info)
        if self._others is not None and self._others.is_dead:
            reason = f"{self._others.relay} has ended {info.when}"
            self.kill(reason)
            raise WorldError(
                f"{reason}. All ranks have been terminated; every Data keeps "
                f"its contents. {JOB_IS_OVER}"
            )

    def check_open(self, info: CallInfo) -> None:
        """Raises `WorldError` if another thread or a signal handler is ending the ranks."""
        if not self._has_begun:
            return
        self._is_over.wait(END_SECONDS)  # else the script would still find the world open
        raise WorldError(
            f"the world was closed during {info}, by another thread or a signal handler; "
            f"call fork() to start again"
        )

    @property
    def is_over(self) -> bool:
        """Whether the ranks have been ended, and their resources freed."""
        return self._is_over.is_set()

    @property
    def has_dead(self) -> bool:
        """Whether a rank, or the process that serves those of other machines, has ended."""
        return self._processes.has_dead or (self._others is not None and self._others.is_dead)

    def located(self, error: SynkError, ranks: Iterable[int]) -> SynkError:
        """Notes the machines of ranks, if there are several."""
        if self._others is not None:
            error.add_note(self._others.whereabouts(ranks))
        return error

    # ---- the end

    def end(
        self, reason: str, death: Death, info: CallInfo, last_words: tuple[str, str] | None = None
    ) -> NoReturn:
        """Ends all ranks, and raises `RankDied` with the reason; `last_words` are those of a
        rank of another machine.
        """
        at = "".join(f", {place}" for place in info.places([death.rank]).values())
        reason = f"{reason} {info.when}{at}"
        self._processes.kill()
        stack, stderr = last_words or self._processes.last_words(death.rank)
        self.kill(reason)
        raise rank_died(reason, death, info, stack, stderr, starts_again=self.starts_again)

    def kill(self, reason: str | None = None) -> None:
        """Kills all ranks and ends the world, even if Ctrl-C is pressed repeatedly meanwhile."""
        try:
            with held_signals():
                self._kill(reason)
        except BaseException:
            if not self._is_over.is_set():  # a handler raised before signals were deferred
                with held_signals():
                    self._kill(reason)
            raise

    def _kill(self, reason: str | None) -> None:
        self._has_begun = True
        with self._lock:
            if self._is_over.is_set():
                return  # another thread was faster
            if self._others is not None:
                self._others.end()
            self._processes.kill()
            ended = self._ended()
            if ended is not None:
                ended(reason)
            self._is_over.set()

    def disown(self) -> None:
        """Resets the state in a child that the script has forked, as if the world had ended."""
        is_over = threading.Event()
        is_over.set()
        # another thread of the script may have used the old ones
        self._lock, self._is_over = threading.Lock(), is_over
        self._has_begun = True
