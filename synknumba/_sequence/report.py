"""Report on a planned sequence: the return value of `Sequence.plan`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from synknumba import _html
from synknumba._call.report import PlanReport
from synknumba._sequence.schedule import RANKS
from synknumba._types import Shape, count_text

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
        is_passed: whether a later call takes it, as a number or an array, or the condition of the
            loop, so that the ranks combine it themselves.
    """

    name: str
    op: Any
    dtype: Any
    shape: Shape | None
    is_returned: bool = False
    is_kept: bool = False
    is_passed: bool = False

    def __str__(self) -> str:
        """Describes the result and who gets it."""
        what = "a list of the ranks' values"
        if self.op is not None:
            what = str(self.op)
        if self.dtype is not None:
            what += f" of {self.dtype} {self.shape}"
        goes = []
        if self.is_returned and self.is_kept:
            goes.append("kept on the ranks until the round ends")
        elif self.is_returned:
            goes.append("read by the script")
        if self.is_passed:
            goes.append("combined by the ranks")
        where = " and ".join(goes) or "not returned, so it stays on the ranks"
        return f"{self.name}: {what}, {where}"


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
        effects = []
        if self.reads:
            effects.append(f"reads {', '.join(self.reads)}")
        if self.writes:
            effects.append(f"writes {', '.join(self.writes)}")
        if self.waits_for is not None:
            effects.append(f"waits for {self.waits_for}")
        if self.moved_bytes:
            effects.append(f"moves {self.moved_bytes:,} bytes")
        text = f"{indent}{self.call or ' '} {self.name}"
        if effects:
            text += f": {'; '.join(effects)}"
        yield text
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
        ends: whether it has `until=`, which the ranks judge.
        turns: number of iterations after which swapped variables have their memory again, each
            with calls of its own; `parts` are those of the first.
    """

    name: str
    times: int | None
    parts: "tuple[PartReport | LoopReport, ...]"
    meets: bool = True
    waits_for: Whom | None = None
    ends: bool = False
    turns: int = 1

    @property
    def often(self) -> str:
        """How often it is repeated, as text."""
        times = "a computed number of times"
        if self.times is not None:
            times = f"{self.times:,} times"
        return f"at most {times}, by until=" if self.ends else times

    def lines(self, indent: str) -> Iterator[str]:
        """Yields lines of text."""
        text = f"{indent}{self.name}, {self.often}"
        if self.meets:
            text += "; waits for all ranks before and after"
        elif self.waits_for is not None:
            text += f"; waits for {self.waits_for}"
        if self.turns > 1:
            text += f"; shows the first of {self.turns} turns of swapped variables, numbered on"
        yield text
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
            with `until=` and for results of Python functions.
        round_ends: why there is more than one round; "" for one.
        judged_by: who judges `until=`, and why if it is the script; "" without it.
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
    judged_by: str
    kept_bytes: int
    carries: bool

    def __str__(self) -> str:
        """Formats the report as a list."""
        iterations, rounds = count_text(self.times, "iteration"), count_text(self.rounds, "round")
        lines = [
            f"{self.sequence}({', '.join(self.arguments)})",
            f"{iterations} in {rounds}, {count_text(self.world_size, 'rank')}",
        ]
        if self.round_ends:
            lines.append(f"a round ends {self.round_ends}")
        if self.judged_by:
            lines.append(f"until= is judged by {self.judged_by}")
        for part in self.parts:
            lines += part.lines("  ")
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
        acts, recorded_loops = [], []
        for part in self.parts:
            match part:
                case PartReport(needs_host=False):
                    continue
                case PartReport(call=call) if call:
                    acts.append(f"call {call}")
                case LoopReport() if _is_recorded(part):
                    recorded_loops.append(f"{part.name}, which is recorded for itself")
                case _:
                    acts.append(part.name)
        acts += recorded_loops
        if self.carries:
            acts.append("synk.carry")
        if self.judged_by == RANKS:
            acts.append("until=")
        if not acts:
            return "on GPUs, over NCCL: all calls of many iterations are one recording"
        return (
            f"on GPUs, over NCCL: calls in a row are one recording; the host "
            f"acts at {', '.join(acts)}"
        )


def _is_recorded(loop: LoopReport) -> bool:
    return not any(isinstance(part, LoopReport) or part.needs_host for part in loop.parts)
