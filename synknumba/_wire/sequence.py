"""Sequences as sent to the ranks: parts, what they read and write, and where ranks wait.

All ranks run the same parts in the same order, and count those that they have finished. Each rank
shows its count to the others where they wait for it. A part that reads what other ranks write, or
writes what they read, waits until these have finished the last earlier part that it must not
overtake:

    rank 0   kernel u→v | exchange v: copies rows of rank 1's v ......waits for its kernel.
    rank 1   kernel u→v | exchange v: ...

Numbers that change from iteration to iteration are given by formulas, which the ranks evaluate.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from synknumba._formulas import Formula
from synknumba._types import Op
from synknumba._wire.program import HostArray

Key: TypeAlias = Hashable
"""Memory that parts read and write: ("variable", number, leaf), ("data", segment) or ("stage",
index).
"""

Formulas: TypeAlias = Sequence[tuple[int, str, Formula]]
"""(offset in bytes, `struct` letter, formula) of packed values that change."""

Moves: TypeAlias = tuple[tuple[Formula, Formula], ...]
"""Numbers, ("scalar", index) or ("cell", index), that get other values together, and formulas of
these.
"""

NOTHING: frozenset[Key] = frozenset()

# What calls that may fail on one rank alone write, and collectives on streams read of all ranks: a
# rank that fails never comes to the collective, so the others must not begin it. As for a stage,
# who reads it need not be waited for. Functions that are recorded write a key of their own: once
# they are, they no longer fail.
SUCCESS: frozenset[Key] = frozenset({("stage", "success")})
RECORDED: frozenset[Key] = frozenset({("stage", "recorded")})


@dataclass(frozen=True, slots=True)
class Access:
    """What a part does to memory on its own rank, and on others."""

    reads: frozenset[Key] = NOTHING
    writes: frozenset[Key] = NOTHING
    remote_reads: frozenset[Key] = NOTHING
    remote_writes: frozenset[Key] = NOTHING
    nearby: bool = False  # whether the other ranks are the neighbours only
    exchange: int = (
        0  # number of the exchange that it is a part of, if that runs beside other parts
    )
    beside: int = 0  # number of the exchange that it runs beside, and has nothing to do with


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until other ranks have finished the part `back` places before, over iterations."""

    back: int
    nearby: bool = False  # whether for the neighbours only, the last rank's being the first


@dataclass(frozen=True, slots=True)
class Shared:
    """A number that all ranks compute from a result of each: all put theirs down, wait, and combine
    them in rank order.

    Attributes:
        slot: index of the number, for formulas.
        offset: of the result in a rank's small results, in bytes.
        dtype: of the result.
        op: combines the ranks' results.
        weights: rows of each rank, for a mean.
    """

    slot: int
    offset: int
    dtype: Any
    op: Op
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """The condition that ends a loop, which each rank judges with the same numbers.

    Attributes:
        formula: of numbers that all ranks have; other than 0, it ends the loop.
        shares: results that ranks put down, and combine, for it alone.
    """

    formula: Formula
    shares: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A call or collective of a sequence: a program on the ranks, and the formulas of its values.

    Attributes:
        number: of the program; −1 for one of the steps of a `Shared`.
        name: for messages.
        call: number of the call in the body, from 1.
        access: memory that it reads and writes.
        values: its packed values, with zeros in place of those in `formulas`.
        formulas: of the values that change.
        puts, combines: a number to put down for the other ranks, or to combine.
        wait: wait before it; None if it waits for no other rank.
        shows: whether the rank shows its count afterwards.
    """

    number: int
    name: str
    call: int
    access: Access
    values: bytes = b""
    formulas: Formulas = ()
    puts: Shared | None = None
    combines: Shared | None = None
    wait: Wait | None = None
    shows: bool = False

    @property
    def is_recorded(self) -> bool:
        """Whether it is a function that is to be recorded."""
        return self.access.writes >= RECORDED


@dataclass(frozen=True, slots=True)
class Loop:
    """An inner sequence: parts that are repeated.

    All ranks are at the same place before and after, unless its parts have nothing to do with other
    ranks. Then it counts as one part, whatever the number of iterations, and is waited for like
    one.

    Attributes:
        name: of the sequence.
        times: number of iterations; at most, with `ends`.
        depth: of its step among the steps.
        parts: of an iteration; of several as in a `SequenceProgram`.
        access: memory that the parts read and write, if only the rank's own; None: ranks meet
            before and after.
        wait: wait before it; None if it waits for no other rank, or if ranks meet.
        shows: whether the rank shows its count afterwards.
        starts: index of the first part of each of the iterations that differ.
        begins: numbers that have values of their own in the loop.
        carried: of each of these iterations, numbers that have other values after it.
        ends: of each, other than 0, it ends the loop behind it; empty if none does.
        returns: whether it has results, which are those of its last iteration.
    """

    name: str
    times: Formula
    depth: int
    parts: "tuple[Part | Loop, ...]"
    access: Access | None = None
    wait: Wait | None = None
    shows: bool = False
    starts: tuple[int, ...] = (0,)
    begins: Moves = ()
    carried: tuple[Moves, ...] = ((),)
    ends: tuple[Formula, ...] = ()
    returns: bool = False

    @property
    def meets(self) -> bool:
        """Whether all ranks are at the same place before and after."""
        return self.access is None


Parts: TypeAlias = Sequence[Part | Loop]


@dataclass(frozen=True, slots=True)
class BodyLines:
    """Files and lines of a sequence's body, as "file:line", for messages.

    Attributes:
        numbers: where a number is computed, by the part's name and the formula.
        calls: where a call is made, by its number.
    """

    numbers: Mapping[tuple[str, Formula], str] = field(default_factory=dict)
    calls: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """Ids of segments, and numbers of variables' memory, that the parts of a sequence use."""

    segments: frozenset[int] = frozenset()
    variables: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SequenceProgram:
    """A sequence.

    The values of a round are the number of its first iteration, the count of iterations, those of
    all rounds of the call, the period of kept results and of `ends` (0 for none of both), the
    segment for kept results (−1 to keep none; int64 each), and then the scalars, 8 bytes each.

    Attributes:
        parts: the parts of an iteration; of as many iterations as it takes for swapped variables to
            have their memory again.
        starts: index of the first part of each of these iterations.
        scalars: `struct` letters of the scalars.
        slots: number of results that ranks share.
        lines: of the body, for messages.
        board: where ranks show their counts and put down results: int64, `board_words(W, slots)`
            long.
        entry_bytes: bytes of a rank's small results that are kept.
        free: the parts with the waits that they need once all functions are recorded; empty if
            there is no difference.
        cells: `struct` letters of the numbers of inner loops.
        carried: of each of the iterations that `starts` tells apart, scalars that have other values
            from the next iteration on, which are evaluated at the end.
        ends: of each of these iterations, the condition that ends the loop behind it; empty if
            none does.
    """

    number: int
    name: str
    parts: tuple[Part | Loop, ...]
    scalars: str
    slots: int
    board: HostArray
    entry_bytes: int
    starts: tuple[int, ...] = (0,)
    memory: UsedMemory = UsedMemory()
    lines: BodyLines = BodyLines()
    free: tuple[Part | Loop, ...] = ()
    cells: str = ""
    carried: tuple[Moves, ...] = ((),)
    ends: tuple[Ending, ...] = ()

    def segments(self) -> frozenset[int]:
        """Returns the ids of the segments that the parts use."""
        return self.memory.segments | {self.board.segment}

    def variables(self) -> frozenset[int]:
        """Returns the numbers of the variables' memory that the parts use."""
        return self.memory.variables

    def turns(self, parts: "Parts") -> "list[Parts]":
        """Returns these parts, or `free`, by the iterations that `starts` tells apart."""
        return turns_of(parts, self.starts)


def turns_of(parts: "Parts", starts: Sequence[int]) -> "list[Parts]":
    """Returns the parts of iterations that differ, given the index of the first of each."""
    ends = (*starts[1:], len(parts))
    return [parts[start:end] for start, end in zip(starts, ends, strict=True)]


def without_iterations(inner: str) -> str:
    """Returns why an inner sequence with results makes an iteration, and the way out."""
    return (
        f"{inner} returns results, which a loop without iterations does not have; write "
        f"np.maximum(n, 1), or return nothing from {inner}"
    )


def depth(parts: "Parts") -> int:
    """Returns the number of loops inside each other, with the one over the parts."""
    return 1 + max((depth(part.parts) for part in parts if isinstance(part, Loop)), default=0)


CARRIED = "the next iteration"  # stands for the name of a part that gets a number
JUDGED = "until="  # as well
INNER_TIMES = "times= of an inner sequence"  # as well
HEAD = "qqqqq"  # first iteration, count, count in all rounds, period, segment of kept results
LINE = 8  # words of a cache line; ranks' counts are on lines of their own
# Words of a rank's position, for messages: iteration, index of the part that it runs, and then two
# words for each loop inside
# another: index plus 1 of its part, 0 if that is not known, and its iteration.
ITERATION, AT, INNER = range(3)
NOT_BEGUN = -1  # the iteration of a rank that has not begun a round
ENDED = -2  # in place of the index of a part: the condition has ended the loop


def abort_word(world_size: int) -> int:
    """Returns the index of the word of the board that is set when a rank has failed."""
    return world_size * LINE


def position_word(world_size: int, rank: int) -> int:
    """Returns the index of the first word of a rank's position, on a line that no other reads."""
    return (world_size + 1 + rank) * LINE


def ready_word(world_size: int, rank: int) -> int:
    """Returns the index of the board's word that tells whether a rank's functions are recorded."""
    return position_word(world_size, world_size) + rank


def stage_word(world_size: int, slot: int, turn: int, rank: int) -> int:
    """Returns the index of the board's word for a rank's result; turns 0 and 1 alternate."""
    first = ready_word(world_size, 0) + -(-world_size // LINE) * LINE
    return first + ((2 * slot + turn) * world_size + rank) * LINE


def inner_word(depth: int) -> int:
    """Returns the index, in a rank's position, of the first word of a loop inside `depth`
    others; `LINE` or more: not shown.
    """
    return INNER + 2 * (depth - 1)


def board_words(world_size: int, slots: int) -> int:
    """Returns the length of a board."""
    return stage_word(world_size, slots, 0, 0)


# ---- messages ------------------------------------------------------------------------------------


Path: TypeAlias = Sequence[tuple[int, int]]
"""Where a rank is: from the outermost loop on, its iteration, and the index of the part that the
rank runs there.
"""


def path_to(part: Part, parts: "Parts") -> tuple[int, ...]:
    """Returns indices, from the outermost loop on: of the inner loop that has the part, and at
    last of the part; () if none.
    """
    for index, item in enumerate(parts):
        if item is part:
            return (index,)
        inside = path_to(part, item.parts) if isinstance(item, Loop) else ()
        if inside:
            return (index, *inside)
    return ()


def place_of(
    program: SequenceProgram,
    times: int,
    part: Part | None,
    parts: "Parts",
    steps: Sequence[int],
) -> str:
    """Returns in words where a part is among parts of a sequence, given the steps of its loops."""
    indices = () if part is None else path_to(part, parts)
    return place_text(program, times, list(zip(steps, indices or (-1,), strict=False)))


def shown_path(words: Sequence[int]) -> Path:
    """Returns the path that the words of a rank's position show."""
    path = [(int(words[ITERATION]), int(words[AT]))]
    for word in range(INNER, LINE, 2):
        if not words[word]:
            break
        path.append((int(words[word + 1]), int(words[word]) - 1))
    return path


def place_text(program: SequenceProgram, times: int, path: Path) -> str:
    """Returns in words where a rank is, as in "in iteration 5 of 100 of loop, call 2: f(x)
    (file:line)"; from 0.
    """
    name, count, parts = program.name, f" of {times}", program.parts
    if path[0][0] == NOT_BEGUN:
        return f"before the first iteration of {name}"
    iterations, part = [], None
    for iteration, index in path:
        iterations.append(f"iteration {iteration}{count} of {name}")
        # Compiled code leaves the index behind the last part when an iteration begins.
        part = parts[index % len(parts)] if parts and index >= 0 else None
        if isinstance(part, Loop):
            name, parts, count = part.name, part.parts, ""
            if part.times[0] == "value":
                count = f" of {part.times[1]}"
    text = f"in {', '.join(iterations)}"
    if isinstance(part, Loop):
        text += f", a call of {part.name}"
    elif part is not None:
        text += f", call {part.call}: {part.name}"
        if line := program.lines.calls.get(part.call):
            text += f" ({line})"
    return text


# ---- waits ---------------------------------------------------------------------------------------


def conflict(earlier: Access, later: Access) -> tuple[bool, bool]:
    """Returns whether `later` on one rank must not overtake `earlier` on another, and whether
    that concerns neighbours only.
    """
    if (earlier.exchange and earlier.exchange == later.beside) or (
        later.exchange and later.exchange == earlier.beside
    ):
        return False, True
    # Whoever puts down a result has combined the one before, for which all others had finished
    # combining the one before that, whose memory is used again. So reads of a stage need not be
    # waited for.
    first = (_unstaged(earlier.remote_reads) & (later.writes | later.remote_writes)) | (
        earlier.remote_writes
        & (later.reads | later.writes | later.remote_reads | later.remote_writes)
    )
    second = (later.remote_reads & (earlier.writes | earlier.remote_writes)) | (
        later.remote_writes
        & (earlier.reads | earlier.writes | earlier.remote_reads | earlier.remote_writes)
    )
    nearby = (earlier.nearby or not first) and (later.nearby or not second)
    return bool(first or second), nearby


def united(accesses: Sequence[Access]) -> Access:
    """Returns what several accesses do together."""
    return Access(
        NOTHING.union(*(access.reads for access in accesses)),
        NOTHING.union(*(access.writes for access in accesses)),
        NOTHING.union(*(access.remote_reads for access in accesses)),
        NOTHING.union(*(access.remote_writes for access in accesses)),
    )


def own_access(parts: "Parts") -> Access | None:
    """Returns what the parts of an inner sequence do together, if that has nothing to do with
    other ranks, else None.
    """
    accesses = [part.access for part in parts if part.access is not None]
    together = united(accesses)
    is_own = not (together.remote_reads or together.remote_writes)
    return together if is_own and len(accesses) == len(parts) else None


def _unstaged(keys: frozenset[Key]) -> frozenset[Key]:
    return frozenset(key for key in keys if not (isinstance(key, tuple) and key[0] == "stage"))


def waits(accesses: Sequence[Access | None]) -> tuple[list[Wait | None], set[int]]:
    """Finds where ranks must wait in a loop over parts.

    Args:
        accesses: of each part; None for an inner loop around which all ranks wait for each other.

    Returns:
        The wait before each part, and the indices of the parts after which ranks show their counts.
    """
    size = len(accesses)
    # Parts of equal accesses have the same conflicts, and only the last of them counts. Most access
    # no other rank's memory, and do not conflict with each other: so the work does not grow with
    # the square of the parts.
    kinds: dict[Access, int] = {}
    kind_of = [
        None if access is None else kinds.setdefault(access, len(kinds)) for access in accesses
    ]
    of_kind, known_conflicts = list(kinds), dict[tuple[int, int], tuple[bool, bool]]()
    remote = {kind for access, kind in kinds.items() if access.remote_reads or access.remote_writes}
    # since the last barrier: greatest index of a part of a kind, counted over iterations
    last: dict[int, int] = {}
    wait_before: list[Wait | None] = [None] * size
    shown_after: set[int] = set()
    # Greatest index of a part, counted over iterations, that all other ranks, or the neighbours,
    # are known to have finished.
    finished = {False: -1, True: -1}
    for turn in range(3):  # in the last one, waits are those of every iteration
        for place, kind in enumerate(kind_of):
            now = turn * size + place
            if kind is None:
                finished = {False: now, True: now}
                wait_before[place] = None
                last.clear()
                continue
            needed = {False: -1, True: -1}
            # a part may conflict with itself, too
            for earlier in last if kind in remote else remote & last.keys():
                pair = earlier, kind
                if pair not in known_conflicts:
                    known_conflicts[pair] = conflict(of_kind[earlier], of_kind[kind])
                conflicts, nearby = known_conflicts[pair]
                if conflicts:
                    needed[nearby] = max(needed[nearby], last[earlier])
            last[kind] = now
            wait_before[place] = wait = _wait(now, needed, finished)
            if wait is not None:
                level = now - wait.back
                finished[True] = max(finished[True], level)
                finished[False] = max(finished[False], -1 if wait.nearby else level)
    for place, wait in enumerate(wait_before):
        if wait is not None:
            shown_after.add((place - wait.back) % size)
    return wait_before, shown_after


def _wait(now: int, needed: dict[bool, int], finished: dict[bool, int]) -> Wait | None:
    missing = {False: -1, True: -1}
    for nearby in missing:
        if needed[nearby] > finished[nearby]:
            missing[nearby] = needed[nearby]
    if missing[False] >= 0:
        return Wait(now - max(missing.values()))
    if missing[True] >= 0:
        return Wait(now - missing[True], nearby=True)
    return None


def ordered(parts: "Parts", without: frozenset[Key] = NOTHING) -> "list[Part | Loop]":
    """Returns the parts of a loop with their waits, as if no part read these keys of other
    ranks.
    """
    accesses: list[Access | None] = []
    for part in parts:
        access = part.access
        if access is not None:
            access = replace(access, remote_reads=access.remote_reads - without)
        accesses.append(access)
    before, awaited = waits(accesses)
    placed: list[Part | Loop] = []
    for index, (part, wait) in enumerate(zip(parts, before, strict=True)):
        if isinstance(part, Loop):
            part = replace(part, parts=tuple(ordered(part.parts, without)))  # noqa: PLW2901
        placed.append(replace(part, wait=wait, shows=index in awaited))
    return placed


def free_of_recorded(parts: "Parts") -> "tuple[Part | Loop, ...]":
    """Returns parts with the fewer waits that suffice once all functions are recorded; () if
    that makes no difference.
    """
    if not any(map(_has_recorded, parts)):
        return ()
    return tuple(ordered(parts, RECORDED))


def _has_recorded(part: Part | Loop) -> bool:
    if isinstance(part, Loop):
        return any(map(_has_recorded, part.parts))
    return part.is_recorded
