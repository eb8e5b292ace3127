"""Memory of a compiled check, shared by Python, the runtime and the instrumented kernel: words of 8
bytes at known offsets.

    STATE ──> threads of the block   THREAD_WORDS each: status, request, answer, vector clock, coroutine
          ──> regions                REGION_WORDS each: arguments that overlap, the shared or the local memory
             └──> cells              CELL_WORDS each: the recent accesses to a piece, as in `_checker.races`
          ──> findings               FOUND_WORDS each, equal ones counted once

A past access is two words:

    key     block + 1 (from bit 26) | thread in the block (16 to 25) | site (0 to 15)
    stamp   grid barriers (54 to 63) | block barriers (32 to 53) | warp barriers (16 to 31) | fences (0 to 15)

Counters wrap around. They are compared for equality, except warp barriers, which saturate.
"""  # noqa: E501

from typing import Final

# Words of the state.
THREADS: Final = 0
COUNT: Final = 1  # threads of a block
CURRENT: Final = 2  # the running thread
NEXT: Final = 3  # position of the thread to resume next; -1 to start a block
REVERSE: Final = 4
SCHEDULER: Final = 5  # context that runs while no thread does
REGIONS: Final = 7
REGION_COUNT: Final = 8
HINTS: Final = 9  # by site: the region of the last access
FOUND: Final = 10
BUDGET: Final = 11  # accesses until the launch returns to Python, which looks for signals
RACES: Final = 12
UNINITIALIZED: Final = 13
ORDERED_BLOCKS: Final = 14  # whether the kernel calls `threadfence`
BLOCK: Final = 15  # linear index
BLOCK_END: Final = 16
SHARED: Final = 17  # address of the block's shared memory
SHARED_WRITTEN: Final = 18  # address of its map of written bytes
SHARED_FILL: Final = 19  # address of its first contents
SHARED_BYTES: Final = 20
SHARED_OFFSETS: Final = 21  # address of the offsets of the shared arrays
DYNAMIC_BYTES: Final = 22
STACK_BYTES: Final = 23
ARGUMENTS: Final = 24  # address of the kernel's arguments, during a call
SCRATCH: Final = 25  # address of `SCRATCH_BYTES` zeros, for what is read out of bounds
EPOCH: Final = 26  # stamp of the block and the grid
SIZES: Final = 27  # block size along x, y, z, grid size along x, y, z
KEPT: Final = 33  # buffer for elements before a write
KEPT_BYTES: Final = 34
# whether threads may wait for each other in loops, for which one that ends must return to Python
SPINS: Final = 35
STAND_IN: Final = 36  # value of a variable that is read unassigned
FLOAT_BYTE: Final = 37  # fills new arrays of floats
BYTE: Final = 38  # fills other new memory
STATE_WORDS: Final = 40

SCRATCH_BYTES: Final = 1 << 16

# Words of a thread.
STATUS: Final = 0
KEY: Final = 1
STAMP: Final = 2
ATOMICS: Final = 3  # whether it has used one
PARKED: Final = 4  # whether its coroutine waits for a further thread to run
CONTEXT: Final = 5
STACK: Final = 6
INDEX: Final = 7  # threadIdx.x, y, z
SITE: Final = 10
KIND: Final = 11  # of the request: position in `KINDS`
PLACE: Final = 12  # number of the operation in the code
MASK: Final = 13
OPERANDS: Final = 14  # bits of two operands
TYPE: Final = 16  # type number of the first operand
ANSWERS: Final = 17  # bits of two results
CODE: Final = 19  # status of an exception, and its address
LOCALS: Final = 21  # address of its local memory
LOCALS_WRITTEN: Final = 22
SEEN: Final = 24  # vector clock: 32 words
THREAD_WORDS: Final = 56

NEW, READY, WAITING, ENDED, FAILED, RAISED, PAUSED = range(7)

# Kinds of requests that the runtime answers itself: positions in `instrument.KINDS`.
SYNCTHREADS: Final = 0
SYNCWARP: Final = 4
SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR = range(5, 9)
ALL, ANY, EQ, BALLOT = range(9, 13)

# Words of a region.
LOW: Final = 0
HIGH: Final = 1
CELLS: Final = 2  # address of the first cell
SHIFT: Final = 3  # log2 of the bytes of a cell
SPACE: Final = 4
WRITTEN: Final = 5  # address of the map of written bytes
USED: Final = 6  # whether cells have been used
FINER: Final = 7  # offset or size of an access that needs smaller cells; 0 if none does
READ_ONLY: Final = 8
REGION_WORDS: Final = 9

GLOBAL_SPACE, SHARED_SPACE, LOCAL_SPACE = range(3)

# A cell: write, another write of the same value, atomic, another atomic, 8 readers; the block that
# has used it last.
READERS: Final = 4
PASTS: Final = 12
TAG: Final = 24
CELL_WORDS: Final = 26

READ, WRITE, SAME, ATOMIC, RAISES = range(5)

# Words of a finding. The first word of the table holds their number.
# kind (from bit 8), what the earlier access did (4 to 7), what the present one does
FOUND_KINDS: Final = 0
FOUND_TIMES: Final = 1
FOUND_AT: Final = 2
FOUND_BEFORE: Final = 3  # keys of the accesses
FOUND_NOW: Final = 4
FOUND_SITES: Final = 5
FOUND_DETAIL: Final = 6  # of an index out of bounds: see `DETAIL_WORDS`
FOUND_WORDS: Final = 20
MOST_FOUND: Final = 500

RACE, OUTSIDE, UNWRITTEN, FAULT, UNSET, ABSENT = range(6)

# Detail of an index out of bounds: address; number of axes, and from bit 8 which have an index;
# indices; sizes.
MOST_AXES: Final = 5
DETAIL_WORDS: Final = 2 + 2 * MOST_AXES

# Results of `advance`.
DONE, STUCK, HAS_RAISED, HAS_PAUSED = range(4)

FAULTS: Final = (
    "ZeroDivisionError: integer division or modulo by zero",
    "ValueError: cannot convert float NaN to integer",
    "OverflowError: cannot convert float infinity to integer",
    "ValueError: assignment destination is read-only",
)
DIVISION, NAN, INFINITY, FROZEN = range(4)
