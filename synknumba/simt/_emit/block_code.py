"""What the emitter is told, and what it makes."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from synknumba.simt._analysis.team import Team
from synknumba.simt._frontend.arrays import SharedArray

Block = tuple[int, ...]  # the sizes along x, y and z


@dataclass(frozen=True, slots=True)
class Style:
    """How the code of a kernel is made.

    Attributes:
        flat: the axes that are run as one block.
        split: whether loops may be turned inside out. Without it a kernel that has no barriers is a single region.
        cuts: whether the statements between two barriers may be run as several loops.
        reverse: whether threads run in the reverse order.
        shared: the kernel's shared arrays.
        block: the only block that the kernel will be launched with; None if it may be any.
    """

    flat: frozenset[str] = frozenset()
    split: bool = True
    cuts: bool = False
    reverse: bool = False
    shared: Mapping[str, SharedArray] = field(default_factory=dict)
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class BlockCode:
    """The loops over the grid.

    Attributes:
        body: the statements.
        varying_slots: the variables that need an array with one element for each thread.
        padded: those of them that need margins.
        swapped: the shared arrays that change places with a second one.
        undefined: the uniform variables that may be read before they are assigned, as after an `if` that sets them. Python and
            Numba want a value there, though none that matters.
        uses_mask: whether there is an array of masks.
        uses_active: whether there is an array of the threads that take part in a collective.
        team: the threads that run in step.
    """

    body: list[ast.stmt]
    varying_slots: tuple[str, ...]
    padded: frozenset[str]
    swapped: frozenset[str]
    undefined: tuple[str, ...]
    uses_mask: bool
    uses_active: bool
    team: Team
