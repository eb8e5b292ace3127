"""Names of generated code and sizes that every stage knows: indices, block and grid sizes, fences,
cached loads.
"""

from typing import Final

AXES: Final = "xyz"

# Variables of the generated code: thread and block index, block and grid size, and the thread's
# number within its block, x fastest.
THREAD: Final = {axis: f"_k_t{axis}" for axis in AXES}
BLOCK: Final = {axis: f"_k_b{axis}" for axis in AXES}
BLOCK_SIZE: Final = {axis: f"_k_B{axis}" for axis in AXES}
GRID_SIZE: Final = {axis: f"_k_G{axis}" for axis in AXES}
LINEAR: Final = "_k_lin"
SIZES: Final = (*GRID_SIZE.values(), *BLOCK_SIZE.values())
STATE: Final = (*THREAD.values(), *BLOCK.values(), *BLOCK_SIZE.values(), *GRID_SIZE.values())
VARYING_STATE: Final = frozenset({*THREAD.values(), LINEAR})

_TRIPLES: Final = {
    "threadIdx": THREAD,
    "blockIdx": BLOCK,
    "blockDim": BLOCK_SIZE,
    "gridDim": GRID_SIZE,
}
TRIPLES: Final = frozenset(_TRIPLES)
INDICES: Final[dict[str, str]] = {
    f"{path}.{axis}": name for path, names in _TRIPLES.items() for axis, name in names.items()
}

# No-ops: the threads run one after another on one core.
FENCES: Final = frozenset({"threadfence", "threadfence_block", "threadfence_system", "nanosleep"})

# Loads and stores with cache hints, which the CPU ignores.
CACHED_LOADS: Final = frozenset({"ldca", "ldcg", "ldcs", "ldlu", "ldcv"})
CACHED_STORES: Final = frozenset({"stcg", "stcs", "stwb", "stwt"})

WARP_SIZE: Final = 32

# Threads per block, CUDA's limit; a slot array on the stack has this many elements.
MAX_BLOCK = 1024
