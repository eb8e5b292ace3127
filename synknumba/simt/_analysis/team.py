"""Team: the threads that advance from barrier to barrier together, either a block or a
cooperative grid.
"""

import ast
from dataclasses import dataclass

from synknumba.simt._library.words import AXES, BLOCK, BLOCK_SIZE, GRID_SIZE, LINEAR, THREAD
from synknumba.simt._source.syntax import statements

LINEAR_TEXT = (
    f"{THREAD['x']} + {BLOCK_SIZE['x']} * ({THREAD['y']} + {BLOCK_SIZE['y']} * {THREAD['z']})"
)

# Linear index of the block in the grid, linear index of the thread in the grid, threads per block,
# blocks per grid.
BLOCK_NUMBER = "_k_block"
GRID_NUMBER = "_k_number"
THREADS = "_k_threads"
BLOCKS = "_k_blocks"

_THREADS_TEXT = " * ".join(BLOCK_SIZE[axis] for axis in AXES)
_BLOCKS_TEXT = " * ".join(GRID_SIZE[axis] for axis in AXES)
_BLOCK_TEXT = f"{BLOCK['x']} + {GRID_SIZE['x']} * ({BLOCK['y']} + {GRID_SIZE['y']} * {BLOCK['z']})"


@dataclass(frozen=True, slots=True)
class Team:
    """Threads that run in step: those of a block, or of the whole grid, as in a kernel that
    synchronises it.
    """

    grid: bool = False

    @property
    def index(self) -> str:
        """Variable with the thread's linear index in the team, which also indexes slot arrays."""
        return GRID_NUMBER if self.grid else LINEAR

    @property
    def size(self) -> str:
        """Expression for the number of threads in the team."""
        return f"{THREADS} * {BLOCKS}" if self.grid else THREADS

    def sizes(self, at: ast.AST) -> list[ast.stmt]:
        """Returns the assignments of threads per block and blocks per grid, for the top of a
        launch.
        """
        return statements(f"{THREADS} = {_THREADS_TEXT}\n{BLOCKS} = {_BLOCKS_TEXT}", at)

    def numbers(self, needed: set[str], at: ast.AST) -> list[ast.stmt]:
        """Returns the assignments of the linear indices among `needed`."""
        lines = []
        if needed & {LINEAR, GRID_NUMBER}:
            lines.append(f"{LINEAR} = _k_nonneg({LINEAR_TEXT})")
        if needed & {BLOCK_NUMBER, GRID_NUMBER}:
            lines.append(f"{BLOCK_NUMBER} = _k_nonneg({_BLOCK_TEXT})")
        if GRID_NUMBER in needed:
            lines.append(f"{GRID_NUMBER} = _k_nonneg({LINEAR} + {THREADS} * {BLOCK_NUMBER})")
        return statements("\n".join(lines), at)
