"""Report on a planned sequence: the return value of `Sequence.plan`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from synknumba import _html
from synknumba._call.report import PlanReport
from synknumba._types import Shape

Whom: TypeAlias = Literal["neighbours", "all ranks"]


@dataclass(frozen=True, slots=True)
class ResultReport:
    """A result of a call in a sequence.

    Attributes:
        name: of the output; "result" for a Python function.
        op: combines the ranks' results; for a Python function, its tree of ops.
        dtype, shape: of a kernel's output on one rank; None for a Python function.
        is_returned: whether the body returns it.
        is_kept: whether the ranks keep it from iteration to iteration, so that no round ends for
            it.
        is_passed: whether a later call takes it, as a number or an array, so that the ranks combine
            it themselves.
    """

    name: str
    op: Any
    dtype: Any
    shape: Shape | None
    is_returned: bool
    is_kept: bool
    is_passed: bool

    def __str__(self) -> str:
        """Describes the result and who gets it."""
        what = "a list of the ranks' values" if self.op is None else str(self.op)
        of = "" if self.dtype is None else f" of {self.dtype} {self.shape}"
        goes = (
            ["kept on the ranks until the round ends" if self.is_kept else "read by the script"]
            if self.is_returned
            else []
        )
        goes += ["combined by the ranks for later calls"] if self.is_passed else []
        return (
            f"{self.name}: {what}{of}, "
            f"{' and '.join(goes) or 'not returned, so it stays on the ranks'}"
        )


@dataclass(frozen=True, slots=True)
class PartReport:
    """A call, a collective, a swap, or the combination of a result for later calls, in the body of
    a sequence.

    Attributes:
        call: number of the call in the body, from 1, as in errors; 0 for a swap or a combination.
        name: the call with its arguments, or what else it is.
        reads, writes: names of the variables and arrays that it may read and write.
        waits_for: whom each rank waits for before it; None for nobody.
        moved_bytes: bytes that a collective, or a combination, takes from ranks for others, of all
            ranks together.
        results: results of a call.
        plan: rows, grids and bytes of a call; None for the others.
        needs_host: whether on GPUs the host acts at it; other parts in a row are recorded together.
    """

    call: int
    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    waits_for: Whom | None = None
    moved_bytes: int = 0
    results: tuple[ResultReport, ...] = ()
    plan: PlanReport | None = None
    needs_host: bool = False

    def lines(self, indent: str) -> Iterator[str]:
        """Yields lines of text."""
        told = [
            f"{verb} {', '.join(names)}"
            for verb, names in (("reads", self.reads), ("writes", self.writes))
            if names
        ]
        told += [] if self.waits_for is None else [f"waits for {self.waits_for}"]
        told += [f"moves {self.moved_bytes:,} bytes"] if self.moved_bytes else []
        yield f"{indent}{self.call or ' '} {self.name}{': ' if told else ''}{'; '.join(told)}"
        for result in self.results:
            yield f"{indent}    {result}"


@dataclass(frozen=True, slots=True)
class LoopReport:
    """An inner sequence.

    Attributes:
        name: of the sequence.
        times: number of iterations; None if it is computed.
        parts: parts of an iteration.
        meets: whether all ranks wait for each other before and after it.
        waits_for: ranks that it waits for otherwise.
    """

    name: str
    times: int | None
    parts: "tuple[PartReport | LoopReport, ...]"
    meets: bool = True
    waits_for: Whom | None = None

    def lines(self, indent: str) -> Iterator[str]:
        """Yields lines of text."""
        often = "a computed number of times" if self.times is None else f"{self.times:,} times"
        whom = "all ranks before and after" if self.meets else self.waits_for
        yield f"{indent}{self.name}, {often}{'' if whom is None else f'; waits for {whom}'}"
        for part in self.parts:
            yield from part.lines(f"{indent}  ")


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """A planned call of a sequence, which has not been made. `str` formats it as a list of its
    parts.

    Attributes:
        sequence: name of the sequence.
        arguments: short description of each argument.
        world_size: number of ranks.
        parts: calls, collectives and inner sequences of an iteration, in order.
        turns: number of iterations after which swapped variables have their memory again; 1
            without.
        times: number of iterations; at most, with `until=`.
        rounds: number of rounds, at each of whose ends the script waits for the ranks; at most,
            with `until=`.
        round_ends: why there is more than one round; "" for one.
        kept_bytes: bytes of the small results of an iteration, on all ranks together.
        carries: whether `synk.carry` replaces numbers at the end of an iteration.
    """

    sequence: str
    arguments: tuple[str, ...]
    world_size: int
    parts: tuple[PartReport | LoopReport, ...]
    turns: int
    times: int
    rounds: int
    round_ends: str
    kept_bytes: int
    carries: bool

    def __str__(self) -> str:
        """Formats the report as a list."""
        rounds = f"{self.rounds:,} round{'' if self.rounds == 1 else 's'}"
        lines = [
            f"{self.sequence}({', '.join(self.arguments)})",
            (
                f"{self.times:,} iteration{'' if self.times == 1 else 's'} in "
                f"{rounds}, {self.world_size} ranks"
            ),
        ]
        lines += [f"a round ends {self.round_ends}"] if self.round_ends else []
        lines += [line for part in self.parts for line in part.lines("  ")]
        lines.append(self.gpu_text)
        if self.turns > 1:
            lines.append(f"swapped variables have their memory again after {self.turns} iterations")
        return "\n".join(lines)

    def _repr_html_(self) -> str | None:
        """Shows the report in a notebook, with a row for each part."""
        return _html.of_sequence(self)

    @property
    def gpu_text(self) -> str:
        """What ranks with a GPU each record, as text; over the host's memory, the host also acts
        at each collective.
        """
        acts = [
            f"call {part.call}" if isinstance(part, PartReport) and part.call else part.name
            for part in self.parts
            if _needs_host(part)
        ]
        acts += [
            f"{part.name}, which is recorded for itself"
            for part in self.parts
            if _is_recorded_loop(part)
        ]
        acts += ["synk.carry"] if self.carries else []
        if not acts:
            return "on GPUs, over NCCL: all calls of many iterations are one recording"
        return (
            f"on GPUs, over NCCL: calls in a row are one recording; the host "
            f"acts at {', '.join(acts)}"
        )


def _needs_host(part: PartReport | LoopReport) -> bool:
    return part.needs_host if isinstance(part, PartReport) else not _is_recorded_loop(part)


def _is_recorded_loop(part: PartReport | LoopReport) -> bool:
    return isinstance(part, LoopReport) and not any(
        isinstance(one, LoopReport) or one.needs_host for one in part.parts
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of a call of a sequence.

    Attributes:
        period: of kept results; 0 if only those of the last iteration are returned.
        round_ends: when a round ends; "" if one round does all.
        is_stacked: whether kept results are returned stacked, and not the last ones alone.
    """

    period: int
    round_ends: str
    is_stacked: bool = True

    def rounds(self, times: int) -> int:
        """Returns the number of rounds of so many iterations."""
        return min(times, 1) if not self.round_ends else -(-times // self.period)


LAST_ONLY = Schedule(0, "")


def schedule(
    times: int, every: int | None, *, is_judged: bool, large: str | None, nbytes: int, room: int
) -> Schedule:
    """Returns the rounds of a call.

    Args:
        times: number of iterations.
        every: period of kept results, if given.
        is_judged: whether `until=` is given.
        large: name of a result that the ranks cannot keep; None if there is none.
        nbytes: bytes of the small results of an iteration, on all ranks.
        room: bytes of them that one round keeps.
    """
    if not is_judged and every is None:
        return LAST_ONLY
    period = every or 1
    each = "after each iteration" if period == 1 else f"after every {period:,} iterations"
    if is_judged:
        return Schedule(period, f"{each}, for until=", is_stacked=every is not None)
    if large is not None:
        return Schedule(
            period, f"{each}, as ranks keep small results of kernels only, and {large} is none"
        )
    kept = times // period * nbytes
    if kept > room:
        return Schedule(
            period, f"{each}, as kept results would take {kept:,} bytes, and ranks keep {room:,}"
        )
    return Schedule(period, "")
