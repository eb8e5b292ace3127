"""Bars over the slices of a call and over the iterations of a sequence, from what the ranks show
in shared memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from synknumba._progress import Bar, Progress, lag_told
from synknumba._wire.program import Program
from synknumba._world.engine import Engine


@contextmanager
def slices_shown(world: Engine, program: Program, name: str, mode: Progress) -> Iterator[None]:
    """Context of a call whose program shows its slices: a bar over those of all ranks of this
    machine.

    Slices without rows count, too, so that the total is known beforehand.
    """
    words = world.slices_done
    words[:] = 0
    shards = [program.own_shards(rank) for rank in range(len(words))]
    goals = [program.num_slices * (after - first) for first, after in shards]
    done = [0] * len(goals)

    def look() -> None:
        at_work = world.at_work()
        if not at_work:
            return  # an error may have ended the call: its result says whether all is done
        # the rounds that complete a call show nothing, so none goes back
        for rank, slices in enumerate(words.tolist()):
            done[rank] = max(done[rank], slices if rank in at_work else goals[rank])
        bar.show(sum(done), lag_told(done, goals))

    with Bar(mode, name, " slices", sum(goals)) as bar:
        with world.showing(look):
            yield
        bar.show(sum(goals))
        bar.finish()


@contextmanager
def iterations_shown(
    world: Engine, done: Callable[[set[int]], list[int]], times: int, name: str, mode: Progress
) -> Iterator[Callable[[], None]]:
    """Context of a call of a sequence: a bar over its iterations, as far as the slowest rank.

    Args:
        world: the world.
        done: returns the iterations that each rank has done, given the ranks at work.
        times: iterations of the call.
        name: of the sequence.
        mode: as for `Bar`.

    Yields:
        A function to call after each round.
    """
    goals = [times] * world.world_size

    def show(at_work: set[int]) -> None:
        iterations = done(at_work)
        bar.show(min(iterations), lag_told(iterations, goals))

    def look() -> None:
        # Several machines do the parts of a sequence in rounds of their own, at whose ends the
        # iteration goes on.
        at_work = set(range(world.world_size)) if world.spans_machines else world.at_work()
        if at_work:
            show(at_work)

    with Bar(mode, name, "it", times) as bar:
        with world.showing(look):
            yield lambda: show(set())
        bar.finish()
