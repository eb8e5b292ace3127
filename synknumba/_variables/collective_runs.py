"""How a collective is carried out: variables put on the ranks, their arrays paired, the plan found or made, run, and noted."""

from collections.abc import Callable, Sequence
from typing import Any, cast, final

from synknumba._types import CollectiveKind, CollectiveOp, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.transfers import Pair, Traffic, Work
from synknumba._variables.variable import Values, Variable, traffic_of
from synknumba._world.world import World, current_world, open_world, raise_untold


@final
class placed:  # noqa: N801  # used as a function
    """The open world, begun, with the variables in it. Used in functions that `holds_world` marks.

    Not a generator: one that Ctrl-C has broken off would give the world back when it is collected, in the middle of another
    call.
    """

    def __init__(self, several: Sequence[Variable]) -> None:
        self._several = several

    def __enter__(self) -> World:
        """Takes the world."""
        raise_untold()
        for one in self._several:
            one.check_open()
        self._world = world = current_world()
        world.begin()
        try:
            for one in self._several:
                one.place(world)
        except BaseException:
            world.end()
            raise
        return world

    def __exit__(self, *exc: object) -> None:
        """Gives it back."""
        self._world.end()


def give_values(world: World, several: Sequence[Variable], values: Sequence[Values], *, sharded: bool | None = None) -> None:
    """Gives variables new values: all of them, or, where there is no memory for all, none."""
    rooms = [one.room_for(world, new) for one, new in zip(several, values, strict=True)]
    for one, new, room in zip(several, values, rooms, strict=True):
        one.assign(world, new, room, sharded=sharded)


def pairs_of(one: Variable, source: Allocation, target: Allocation) -> list[Pair]:
    """The arrays of a variable; one vector where it is flat."""
    return [Pair(source, target, leaf) for leaf in source.layout.pieces()]


def run_in_place(world: World, work: Work, several: Sequence[Variable], *, differs: bool) -> None:
    """A collective whose result is where what is given was; `differs` says whether replicas may differ then."""
    traffic = traffic_of(world)
    pairs = [pair for one in several for pair in pairs_of(one, one.storage(), one.storage())]
    run = traffic.collective(work, pairs)
    run()
    for one in several:
        one.mark(differs=differs, sharded=False)
    if len(several) == 1:
        layout = several[0]._layout  # noqa: SLF001  # a key, and no more
        traffic.remember((work, layout, layout), run, [several[0].storage()])


def run_known(vars: Any, kind: CollectiveKind, op: object, root: int = 0, dest: Any = None) -> Any:
    """Repeats a collective over one variable, in place or to one other, that was made before; None where there is none."""
    changing = kind in ("all_gather", "reduce_scatter")
    target = dest if changing else vars
    if type(vars) is not Variable or type(target) is not Variable:
        return None
    if type(root) is not int or not (op is None or type(op) is str):
        return None  # what is not checked yet may not be hashable, or be True, which equals 1
    work = Work(kind, cast("CollectiveOp | None", op), root)
    world = open_world()
    if world is None:
        return None  # and the longer way says why there is none
    world.begin()
    try:
        traffic: Traffic = traffic_of(world)
        run = traffic.remembered((work, vars._layout, target._layout))  # noqa: SLF001  # a key, and no more
        if run is None:
            return None
        run()
        sharded = kind == "reduce_scatter"
        target.mark(differs=(sharded or kind == "reduce") and world.world_size > 1, sharded=sharded)
        return target
    finally:
        world.end()


def run_into(
    world: World,
    work: Work,
    several: Sequence[Variable],
    targets: Sequence[Variable],
    shape: Callable[[tuple[Shape, ...], int], Shape],
    *,
    sharded: bool,
) -> None:
    """A collective whose result has other shapes than what is given."""
    pairs, storages = [], []
    for one, target in zip(several, targets, strict=True):
        shapes = [tuple(shape(given, rank) for rank in range(world.world_size)) for given in one.shapes()]
        storage = target.storage()
        # What is given to be combined or joined must not be written over before it is read.
        if any(target is other for other in several) or target.shapes() != shapes:
            storage = Allocation(world, target.layout_with(shapes))
        storages.append(storage)
        pairs += [Pair(one.storage(), storage, leaf) for leaf in one.leaves()]
    traffic = traffic_of(world)
    run = traffic.collective(work, pairs)
    run()
    for target, storage in zip(targets, storages, strict=True):
        target.replace(storage, sharded=sharded)
    if len(several) == 1 and targets[0] is not several[0]:
        key = (work, several[0]._layout, targets[0]._layout)  # noqa: SLF001  # as in `run_in_place`
        traffic.remember(key, run, [several[0].storage(), targets[0].storage()])
