"""The threads that go from barrier to barrier together: those of a block, or of a grid that the kernel synchronises."""

import ast
from dataclasses import dataclass

from synknumba.simt._frontend.syntax import statements
from synknumba.simt._library.operations import AXES, BLOCK, BLOCK_SIZE, GRID_SIZE, LINEAR, THREAD

LINEAR_TEXT = f"{THREAD['x']} + {BLOCK_SIZE['x']} * ({THREAD['y']} + {BLOCK_SIZE['y']} * {THREAD['z']})"

# The number of a block within the grid, of a thread within the grid, of threads in a block, and of blocks in the grid.
BLOCK_NUMBER = "_k_block"
GRID_NUMBER = "_k_number"
THREADS = "_k_threads"
BLOCKS = "_k_blocks"

_THREADS_TEXT = " * ".join(BLOCK_SIZE[axis] for axis in AXES)
_BLOCKS_TEXT = " * ".join(GRID_SIZE[axis] for axis in AXES)
_BLOCK_TEXT = f"{BLOCK['x']} + {GRID_SIZE['x']} * ({BLOCK['y']} + {GRID_SIZE['y']} * {BLOCK['z']})"


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that run in step.

    Attributes:
        grid: whether they are those of the whole grid.
    """

    grid: bool = False

    @property
    def index(self) -> str:
        """The variable that numbers the team's threads, and so the elements of slot arrays."""
        return GRID_NUMBER if self.grid else LINEAR

    @property
    def size(self) -> str:
        """The number of the team's threads."""
        return f"{THREADS} * {BLOCKS}" if self.grid else THREADS

    def sizes(self, at: ast.AST) -> list[ast.stmt]:
        """Assigns the sizes, at the top of a launch."""
        return statements(f"{THREADS} = {_THREADS_TEXT}\n{BLOCKS} = {_BLOCKS_TEXT}", at)

    def numbers(self, needed: set[str], at: ast.AST) -> list[ast.stmt]:
        """Assigns those of a thread's numbers that are needed."""
        lines = []
        if needed & {LINEAR, GRID_NUMBER}:
            lines.append(f"{LINEAR} = _k_nonneg({LINEAR_TEXT})")
        if needed & {BLOCK_NUMBER, GRID_NUMBER}:
            lines.append(f"{BLOCK_NUMBER} = _k_nonneg({_BLOCK_TEXT})")
        if GRID_NUMBER in needed:
            lines.append(f"{GRID_NUMBER} = _k_nonneg({LINEAR} + {THREADS} * {BLOCK_NUMBER})")
        return statements("\n".join(lines), at)
