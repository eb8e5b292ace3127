"""What the parts of a sequence share on a rank: numbers, a board, and what a round returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, final

from synknumba._rank.routine import Place, Repeated, Routine
from synknumba._rank.sequence_numbers import Numbers
from synknumba._types import Array
from synknumba._wire import sequence
from synknumba._wire.messages import Returned
from synknumba._wire.sequence import Part, Parts, SequenceProgram, Shared


class PeerFailed(Exception):  # noqa: N818  # nothing is wrong on this rank
    """Raised in a wait when another rank has failed, which reports it."""


@dataclass(slots=True)
class Progress:
    """The part that is run, or lowered, for messages; None between parts."""

    part: Part | None = None


@final
class RoundNews:
    """What the calls of a round return to the coordinator.

    Attributes:
        returned: number of the program, and what it returned.
        descriptors: of the files that these refer to.
    """

    def __init__(self) -> None:
        self.returned: list[tuple[int, Returned]] = []
        self.descriptors: list[int] = []

    def begin(self) -> None:
        """Begins a round."""
        self.returned, self.descriptors = [], []

    def add(self, number: int, routine: Routine, news: Returned) -> None:
        """Adds what a call returned."""
        self.returned.append((number, news))
        self.descriptors += routine.descriptors(news)


@final
class Board:
    """The words by which ranks show each other where they are (`_wire/sequence.py`).

    Attributes:
        words: the board.
        position: this rank's position; faster to index than the array.
    """

    def __init__(self, words: Array, world_size: int, rank: int) -> None:
        self.words = words
        at = sequence.position_word(world_size, rank)
        self.position = words[at : at + sequence.LINE].data
        self._abort = words[sequence.abort_word(world_size) :].data
        self._world_size, self._rank = world_size, rank

    @property
    def address(self) -> int:
        """Address of the words."""
        return int(self.words.ctypes.data)

    @property
    def has_failed(self) -> bool:
        """Whether a rank has failed."""
        return bool(self._abort[0])

    def abort(self) -> None:
        """Lets the other ranks go, since this one has failed."""
        self._abort[0] = 1

    def report(self, depth: int, iteration: int) -> None:
        """Shows how far recordings are in a loop.

        Raises:
            PeerFailed: another rank has failed.
        """
        word = sequence.inner_word(depth) + 1 if depth else sequence.ITERATION
        if word < sequence.LINE:  # deeper loops are not shown
            self.position[word] = iteration
        if self._abort[0]:
            raise PeerFailed

    def show_ready(self, *, is_ready: bool) -> None:
        """Shows whether all functions of this rank are recorded."""
        self.words[sequence.ready_word(self._world_size, self._rank)] = is_ready

    @property
    def are_ready(self) -> bool:
        """Whether all functions of all ranks are recorded."""
        after = sequence.ready_word(self._world_size, self._world_size)
        return bool(self.words[after - self._world_size : after].all())

    def stage(self, shared: Shared, turn: int, rank: int) -> Array:
        """Returns a rank's place for a result that ranks share, as one number."""
        at = sequence.stage_word(self._world_size, shared.slot, turn, rank)
        memory: Array = self.words[at : at + sequence.LINE].view(shared.dtype)
        return memory[:1]


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """What parts of a sequence refer to on a rank.

    Attributes:
        program: the sequence.
        parts: those that are run: the program's, or those without waits for functions that fail.
        place: state of the rank.
        numbers: numbers of the sequence.
        routines: those of the parts' programs, by number.
        board: where ranks show their counts and put down results.
        turns: how often each shared result has been combined.
        progress: the part that is run.
        news: what the round returns.
    """

    program: SequenceProgram
    parts: Parts
    place: Place
    numbers: Numbers
    routines: Mapping[int, Repeated]
    board: Board
    turns: Array
    progress: Progress
    news: RoundNews

    def fail(self, error: BaseException, times: int) -> NoReturn:
        """Lets the other ranks go, and raises the error with the place where it happened, in a
        call of so many iterations.
        """
        self.board.abort()
        steps = self.numbers.steps.tolist()
        error.add_note(
            sequence.place_of(self.program, times, self.progress.part, self.parts, steps)
        )
        raise error
