"""Mail: small messages that GPUs of one host write into each other's memory, in kernels of the
package.

    rank 0's kernel   rows ──write──> inbox in rank 1's memory ──read by rank 1's kernel──> rows of its halo
    rank 1's kernel   rows ──write──> inbox in rank 0's memory ──read by rank 0's kernel──> rows of its halo

One kernel writes a rank's letters (`letters.py`) and reads those of the others. A word of an inbox
is 8 bytes of the message, and twice a number that says that they are there: a GPU reads and writes
8 bytes at once, so there is no fence between message and flag, as in NCCL's LL protocol, which
takes twice the bytes and half the time. The number is that of the letter among those of its pair
and index, which both ranks count in their own memory, so a recorded kernel can be launched again as
it is.

Why no letter is overwritten before it is read: a place is used by every second letter of its pair.
Who writes letter n has read letter n − 1 of the other, which began its kernel for it when its
kernel for letter n − 2 had ended.

Blocks wait for blocks of other GPUs, so all of a kernel must run at once: there are at most
`MOST_LETTERS` for each other rank.
"""  # noqa: E501

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias, final

import cupy
import numpy as np
from cupy.cuda import runtime

from synknumba._comm.letters import LETTER_BYTES, MOST_LETTERS, Letter, pieces
from synknumba._types import Array, CollectiveOp

_Call: TypeAlias = Callable[[], object]

_THREADS = 512
_WORDS = LETTER_BYTES // 8
_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess

MOST_RANKS = 16  # of one host; an inbox has 1 MiB for each
MOST_REDUCED_BYTES = 64 << 10  # every rank sends all to all others, so beyond NCCL is faster

# C types of the elements that `reduce` combines, and the ops.
_TYPES = {
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}
_OPS = {  # a NaN is not equal to itself
    "sum": "a + b",
    "prod": "a * b",
    "min": "a != a ? a : b != b || b < a ? b : a",
    "max": "a != a ? a : b != b || b > a ? b : a",
}

_SOURCE = """
typedef unsigned int u32;
typedef unsigned long long u64;

// Word i of a message of so many bytes, which may end within it.
__device__ u64 load(const char* p, long long i, long long bytes)
{
    if (8 * i + 8 <= bytes && (size_t)p % 8 == 0) return ((const u64*)p)[i];
    if (8 * i + 8 <= bytes && (size_t)p % 4 == 0) return ((const u32*)p)[2 * i] | (u64)((const u32*)p)[2 * i + 1] << 32;
    u64 word = 0;
    for (int k = 0; k < 8 && 8 * i + k < bytes; k++) word |= (u64)(unsigned char)p[8 * i + k] << 8 * k;
    return word;
}

__device__ void store(char* p, long long i, long long bytes, u64 word)
{
    if (8 * i + 8 <= bytes && (size_t)p % 8 == 0) {
        ((u64*)p)[i] = word;
    } else if (8 * i + 8 <= bytes && (size_t)p % 4 == 0) {
        ((u32*)p)[2 * i] = (u32)word;
        ((u32*)p)[2 * i + 1] = (u32)(word >> 32);
    } else {
        for (int k = 0; k < 8 && 8 * i + k < bytes; k++) p[8 * i + k] = (char)(word >> 8 * k);
    }
}

__device__ void write_word(uint4* place, u64 word, u32 number)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};"
                 :: "l"(place), "r"((u32)word), "r"(number), "r"((u32)(word >> 32)) : "memory");
}

__device__ u64 read_word(const uint4* place, u32 number)
{
    u32 low, first, high, second;
    do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(low), "=r"(first), "=r"(high), "=r"(second) : "l"(place) : "memory");
    } while (first != number || second != number);
    return low | (u64)high << 32;
}

// The number of the next letter; 0 is that of places never used, and the numbers next to it keep their parity.
__device__ u32 next_number(u32 last)
{
    return last + 1 ? last + 1 : 2;
}

// Where a rank finds words of a letter from another.
__device__ uint4* place_of(u64 inbox, long long from, long long index, u32 number)
{
    return (uint4*)inbox + ((from * MOST_LETTERS + index) * 2 + number % 2) * WORDS;
}

__device__ long long words_of(long long bytes)
{
    return bytes ? (bytes + 7) / 8 : 1;  // an empty letter is a word
}

// A block for each letter: other, index, send, send_bytes, receive, receive_bytes.
extern "C" __global__ void exchange(const long long* letters, const u64* inboxes, u32* numbers, long long rank)
{
    const long long* letter = letters + 6 * blockIdx.x;
    const long long other = letter[0], index = letter[1], send_bytes = letter[3], receive_bytes = letter[5];
    u32* const last = numbers + other * MOST_LETTERS + index;
    const u32 number = next_number(*last);
    uint4* const out = place_of(inboxes[other], rank, index, number);
    const uint4* const in = place_of(inboxes[rank], other, index, number);
    for (long long i = threadIdx.x; i < words_of(send_bytes); i += blockDim.x)
        write_word(out + i, load((const char*)letter[2], i, send_bytes), number);
    for (long long i = threadIdx.x; i < words_of(receive_bytes); i += blockDim.x)
        store((char*)letter[4], i, receive_bytes, read_word(in + i, number));
    __syncthreads();
    if (threadIdx.x == 0) *last = number;
}
"""  # noqa: E501

_REDUCE = """
typedef {type} T;

__device__ u64 combine(u64 x, u64 y)
{{
    union {{ u64 word; T parts[8 / sizeof(T)]; }} left = {{x}}, right = {{y}};
    for (int k = 0; k < 8 / sizeof(T); k++) {{
        const T a = left.parts[k], b = right.parts[k];
        left.parts[k] = (T)({op});
    }}
    return left.word;
}}

// A block for each piece: source, target, bytes, and the index of the letters that it writes to all others.
extern "C" __global__ void reduce(const long long* pieces, const u64* inboxes, u32* numbers, int rank, int ranks)
{{
    __shared__ u32 now[MOST_RANKS];
    const long long* piece = pieces + 4 * blockIdx.x;
    const char* const source = (const char*)piece[0];
    const long long bytes = piece[2], index = piece[3], words = words_of(bytes);
    if (threadIdx.x < ranks) now[threadIdx.x] = next_number(numbers[threadIdx.x * MOST_LETTERS + index]);
    __syncthreads();
    for (long long i = threadIdx.x; i < words; i += blockDim.x) {{
        const u64 word = load(source, i, bytes);
        for (int k = 1; k < ranks; k++) {{
            const int other = (rank + k) % ranks;  // not all to rank 0 first
            write_word(place_of(inboxes[other], rank, index, now[other]) + i, word, now[other]);
        }}
    }}
    for (long long i = threadIdx.x; i < words; i += blockDim.x) {{
        u64 result = 0;
        for (int other = 0; other < ranks; other++) {{  // in rank order, so all ranks get the same bits
            const u64 word = other == rank ? load(source, i, bytes)
                                           : read_word(place_of(inboxes[rank], other, index, now[other]) + i, now[other]);
            result = other ? combine(result, word) : word;
        }}
        store((char*)piece[1], i, bytes, result);
    }}
    __syncthreads();
    if (threadIdx.x < ranks && threadIdx.x != rank) numbers[threadIdx.x * MOST_LETTERS + index] = now[threadIdx.x];
}}
"""  # noqa: E501
_OPTIONS = (
    f"-DWORDS={_WORDS}",
    f"-DMOST_LETTERS={MOST_LETTERS}",
    f"-DMOST_RANKS={MOST_RANKS}",
    "--fmad=false",
)


@cache
def _exchange_kernel() -> Any:
    return cupy.RawModule(code=_SOURCE, options=_OPTIONS).get_function("exchange")


@cache
def _reduce_kernel(dtype: str, op: str) -> Any:
    code = _SOURCE + _REDUCE.format(type=_TYPES[dtype], op=_OPS[op])
    return cupy.RawModule(code=code, options=_OPTIONS).get_function("reduce")


@final
class GpuMail:
    """One rank's inbox and those of the others.

    Args:
        rank: of this process.
        inboxes: address of each rank's inbox, in this process.
        stream: CuPy's, on which letters are written and read.
    """

    def __init__(self, rank: int, inboxes: Sequence[int], stream: Any) -> None:
        self._rank, self._world_size, self._stream = rank, len(inboxes), stream
        self._inboxes = cupy.array(inboxes, np.uint64)
        # of the last letters, by other rank and index
        self._numbers = cupy.zeros(len(inboxes) * MOST_LETTERS, np.uint32)
        cupy.cuda.Device().synchronize()

    def exchange(self, letters: Sequence[Letter]) -> list[_Call]:
        """Returns the calls that write and read letters: one or none."""
        if not letters:
            return []
        return [self._launch(_exchange_kernel(), np.array(letters, np.int64), np.int64(self._rank))]

    def reduces(self, dtype: Any, op: CollectiveOp, nbytes: int) -> bool:
        """Whether `reduce` is possible, and worth it, for so many bytes."""
        dtype = np.dtype(dtype)
        is_defined = dtype.name in _TYPES and (dtype.kind != "b" or op in {"min", "max"})
        return op in _OPS and is_defined and nbytes <= MOST_REDUCED_BYTES

    def reduce(
        self, dtype: Any, op: CollectiveOp, arrays: Iterable[tuple[int, int, int]]
    ) -> list[_Call]:
        """Returns the calls that combine arrays of all ranks into each rank's: one or none.

        Args:
            dtype: of the elements.
            op: how they are combined, in rank order.
            arrays: address of the source, address of the target, and bytes, of each array; together
                at most `MOST_REDUCED_BYTES`, and a piece each at least.
        """
        table: list[tuple[int, int, int, int]] = []
        for source, target, nbytes in arrays:
            sent, received = pieces((source, nbytes)), pieces((target, nbytes))
            for (send, count), (receive, _) in zip(sent, received, strict=True):
                table.append((send, receive, count, len(table)))
        if not table:
            return []
        kernel, ranks = _reduce_kernel(np.dtype(dtype).name, op), np.int32(self._world_size)
        return [self._launch(kernel, np.array(table, np.int64), np.int32(self._rank), ranks)]

    def _launch(self, kernel: Any, table: Array, *rest: Any) -> _Call:
        on_device = cupy.asarray(table)
        cupy.cuda.Device().synchronize()  # any stream may read the table from now on
        args = (on_device, self._inboxes, self._numbers, *rest)
        return partial(_launch, self._stream, kernel, len(table), args)


def _launch(stream: Any, kernel: Any, blocks: int, args: tuple[Any, ...]) -> None:
    with stream:
        kernel((blocks,), (_THREADS,), args)


def open_mail(
    rank: int, world_size: int, gather: Callable[[Array], Array], stream: Any
) -> GpuMail | None:
    """Opens the mail between all ranks' GPUs; None, on all ranks, if one of them cannot write to
    another's memory.

    So it is also where the user has set `NCCL_P2P_DISABLE`, with which NCCL itself goes over the
    host.

    Called by all ranks; each waits for all others.

    Args:
        rank: of this process.
        world_size: W.
        gather: returns the uint8 arrays of all ranks, given this rank's: shape (n,) to (W, n).
        stream: CuPy's, for letters.
    """
    if world_size > MOST_RANKS or os.environ.get("NCCL_P2P_DISABLE", "0") != "0":
        return None
    inbox, handle = _inbox(world_size)
    handles = gather(np.frombuffer(handle, np.uint8))
    inboxes = [inbox] * world_size
    try:
        for peer in range(world_size):
            if peer != rank:
                inboxes[peer] = runtime.ipcOpenMemHandle(handles[peer].tobytes(), _LAZY_PEER_ACCESS)
        opened = any(handle)
    except runtime.CUDARuntimeError:
        opened = False
    everywhere = gather(np.array([opened], np.uint8)).all()
    if not everywhere:
        return None
    return GpuMail(rank, inboxes, stream)


def _inbox(world_size: int) -> tuple[int, bytes]:
    """Returns the address and the handle of an inbox, which lives as long as the process; a
    handle of zeros if it failed.
    """
    try:
        nbytes = world_size * MOST_LETTERS * 2 * _WORDS * 16
        address = runtime.malloc(nbytes)
        runtime.memset(address, 0, nbytes)
        runtime.deviceSynchronize()
        return address, runtime.ipcGetMemHandle(address)
    except runtime.CUDARuntimeError:
        return 0, bytes(64)
