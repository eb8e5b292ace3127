"""The CUDA device's own kernels: gather and scatter of rows, accumulation of slices, small results
for the host.

CuPy compiles them on first use and caches them on disk.

Rows are moved in words, as long as a row's length and the addresses allow. Page-locked host rows
are read in place, at nearly the speed of a copy (49 of 55 GB/s on an H100, rows of 3 KB); gathering
them on the host first takes 8 to 22 times as long.
"""

from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Any, NamedTuple, final

import cupy
import numpy as np

from synknumba._device.base import Gather, ResultRing, Step
from synknumba._device.cuda_steps import CopyOut, OnStream, StoreToHost, keeping, make_launch
from synknumba._ops.rows import InLine, Range, Rows
from synknumba._types import Array

MAILED_WORDS = 128  # results of at most so many 4-byte words are mailed, larger ones published

_THREADS = 512
_BLOCKS_PER_MULTIPROCESSOR = 2  # more blocks move no more bytes a second
# As fast as 264 of `rows_16`: 6.4 MB in 134 µs on an H100. Matrix products beside it take 60 µs
# longer, with 264 blocks 160.
_BLOCKS_OF_A_GATHER = 16
_LINE = 3  # position of the number of the line among a gather's arguments

_WORDS = {
    16: "uint4",
    8: "unsigned long long",
    4: "unsigned int",
    2: "unsigned short",
    1: "unsigned char",
}
_SOURCE = (
    """
// Rows start, start + step, … of a table, or those in a list, from or to an array where they lie together.
template <typename T>
__device__ void move_rows(T* table, T* together, const long long* list, long long start, long long step, long long rows,
                          long long words, bool back)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * words; i += stride) {
        const long long row = i / words;
        const long long at = (list ? list[row] : start + row * step) * words + (i - row * words);
        if (back) table[at] = together[i];
        else together[i] = table[at];
    }
}

// The same from a list, with many words under way: few blocks then fill the bus, and leave the multiprocessors to other work.
template <typename T>
__device__ void gather_rows(const T* table, T* together, const long long* list, long long all, long long words)
{
    const int many = 8;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += many * stride) {
        T held[many];
#pragma unroll
        for (int k = 0; k < many; k++) {
            const long long at = i + k * stride, row = at / words;
            if (at < all) held[k] = table[list[row] * words + (at - row * words)];
        }
#pragma unroll
        for (int k = 0; k < many; k++)
            if (i + k * stride < all) together[i + k * stride] = held[k];
    }
}
"""  # noqa: E501
    + "".join(
        f"""
extern "C" __global__ void line_{size}(const {word}* table, {word}* together, const long long* lists, long long line,
                                       long long width, long long rows, long long words)
{{
    gather_rows(table, together, lists + line * width, rows * words, words);
}}

extern "C" __global__ void rows_{size}({word}* table, {word}* together, const long long* list, long long start, long long step,
                                       long long rows, long long words, bool back)
{{
    move_rows(table, together, list, start, step, rows, words, back);
}}

// Words to the next line of a ring, in some iterations; each line of the table is offset, source. The state: iterations until
// then, from one to the next, address and bytes of the line. Loads begin before the state is known: each takes a while.
extern "C" __global__ void keep_{size}(const longlong2* table, int words, volatile long long* state)
{{
    int i = threadIdx.x;
    longlong2 place;
    {word} held;
    if (i < words) {{ place = table[i]; held = *(const {word}*)place.y; }}
    const long long left = state[0] - 1, period = state[1], line = state[2], bytes = state[3];
    while (left == 0 && i < words) {{
        *({word}*)(line + place.x) = held;
        i += blockDim.x;
        if (i < words) {{ place = table[i]; held = *(const {word}*)place.y; }}
    }}
    __syncthreads();
    if (threadIdx.x == 0) {{
        state[0] = left ? left : period;
        if (left == 0) state[2] = line + bytes;
    }}
}}
"""  # noqa: E501
        for size, word in _WORDS.items()
    )
    + """
// Small arrays to the host: each line of the table is target, source, bytes. The host knows by its mailbox that all are there.
extern "C" __global__ void publish(const long long* table, int arrays, volatile unsigned long long* box)
{
    for (int k = 0; k < arrays; k++) {
        const long long target = table[3 * k], source = table[3 * k + 1], bytes = table[3 * k + 2];
        if ((target | source | bytes) % 8 == 0) {
            for (long long i = threadIdx.x; i < bytes / 8; i += blockDim.x)
                ((volatile long long*)target)[i] = ((const long long*)source)[i];
        } else {
            for (long long i = threadIdx.x; i < bytes; i += blockDim.x)
                ((volatile char*)target)[i] = ((const char*)source)[i];
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *box = 1ull << 32;
}

// Words of 4 bytes to the host's mailbox, each with what says that it is there: so they need no fence.
extern "C" __global__ void mail(const unsigned int* const* table, int words, volatile unsigned long long* box)
{
    if (threadIdx.x < words) box[threadIdx.x] = 1ull << 32 | *table[threadIdx.x];
}
"""  # noqa: E501
)


class Copy(NamedTuple):
    """A copy of a small array to the host."""

    target: int  # host address, page-locked
    source: int  # device address
    nbytes: int


class Mailbox:
    """Page-locked words by which the device signals that it has finished; see `_wire.relaunch`."""

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(8 * MAILED_WORDS)
        self.words = np.frombuffer(self._memory, np.int64, MAILED_WORDS)
        self.words[:] = 0
        self.address: int = self.words.ctypes.data
        self._nowhere = np.zeros(1, np.int64)
        # 4 bytes that are never read: the target of a word without a result
        self.nowhere: int = self._nowhere.ctypes.data


# Numbers are passed in the target's dtype. Without fused multiply-add: NumPy rounds the product
# before it adds.
ADD_WEIGHTED = cupy.ElementwiseKernel(
    "S source, T weight",
    "T target",
    "target += T(source) * weight",
    "synknumba_add_weighted",
    options=("--fmad=false",),
)
DIVIDE = cupy.ElementwiseKernel(
    "T divisor", "T target", "target = target / divisor", "synknumba_divide_by"
)

# Arithmetic on a thread's own number, of which a GPU's rate is measured.
BUSY = cupy.ElementwiseKernel(
    "T x",
    "T y",
    "T v = x; for (int k = 0; k < 4096; k++) v = v * T(0.5) + T(0.5); y = v",
    "synknumba_busy",
)


@cache
def _module() -> Any:
    return cupy.RawModule(code=_SOURCE)


@cache
def _most_blocks() -> int:
    return _BLOCKS_PER_MULTIPROCESSOR * cupy.cuda.Device().attributes["MultiProcessorCount"]


def _blocks(work: int) -> int:
    return max(1, min(-(-work // _THREADS), _most_blocks()))


def move_rows(
    table: int,
    row_bytes: int,
    rows: Rows,
    together: Any,
    stream: Any,
    *,
    back: bool,
    keeps: Any = None,
) -> OnStream:
    """Returns a step that gathers rows of a table into the device array `together`, or scatters
    them `back`.

    The table is the address of its first row, on the device or page-locked on the host. The device
    reads listed rows when the step is run, so the list must be page-locked too. `keeps` is an
    object that must live as long as the step.
    """
    size = gcd(row_bytes, table, together.data.ptr, 16)
    words = row_bytes // size
    places = (
        (0, rows.start, rows.step) if isinstance(rows, Range) else (rows.indices.ctypes.data, 0, 0)
    )
    args = (table, together.data.ptr, *map(np.int64, (*places, rows.count, words)), np.bool_(back))
    kernel = _module().get_function(f"rows_{size}")
    step = (StoreToHost if back else OnStream)(
        launch_own, stream, kernel, (_blocks(rows.count * words), _THREADS), args
    )
    return keeping(step, together, rows, keeps)


def gather_line(table: Array, rows: InLine, together: Any, stream: Any) -> Gather:
    """Returns a gather of the rows of a line from a page-locked table, as the lines are, into a
    device array.
    """
    row_bytes = together.nbytes // rows.count
    size = gcd(row_bytes, table.ctypes.data, together.data.ptr, 16)
    lists, words = rows.table.ctypes.data + 8 * rows.start, row_bytes // size
    numbers = map(np.int64, (lists, rows.line, rows.table.shape[1], rows.count, words))
    arguments = [np.int64(table.ctypes.data), np.int64(together.data.ptr), *numbers]
    kernel = _module().get_function(f"line_{size}")
    sizes = min(_blocks(-(-rows.count * words // 8)), _BLOCKS_OF_A_GATHER), _THREADS

    def launch(*arguments: Any) -> None:
        launch_own(stream, kernel, sizes, arguments)

    step = keeping(make_launch(launch, arguments, (_LINE,)), together, table, rows)
    step.stream = stream
    return Gather(step, arguments, _LINE, len(rows.table))


def launch_own(stream: Any, kernel: Any, sizes: tuple[int, int], args: tuple[Any, ...]) -> None:
    """Launches one of these kernels."""
    blocks, threads = sizes
    with stream:
        kernel((blocks,), (threads,), args)


def publish(copies: Sequence[Copy], box: Mailbox, stream: Any) -> OnStream:
    """Returns a step that copies small arrays to page-locked memory, then signals it in the
    first word of the mailbox.
    """
    largest = max((copy.nbytes for copy in copies), default=0)
    table = np.array(copies, np.int64).reshape(-1, 3)
    return _one_block("publish", table, largest // 8, box.address, stream)


def mail(sources: Sequence[int], box: Mailbox, stream: Any) -> OnStream:
    """Returns a step that writes 4 bytes from each device address to the mailbox."""
    return _one_block("mail", np.array(sources, np.int64), len(sources), box.address, stream)


@final
class CudaRing(ResultRing):
    """Lines of device memory, which a kernel fills one after the other.

    Args:
        line: host memory of which an iteration's results are a copy.
        stream: that of the iterations.
    """

    def __init__(self, line: Array, stream: Any) -> None:
        self._stream, self._first, self._nbytes = stream, line.ctypes.data, line.nbytes
        with stream:
            self._state = cupy.zeros(4, cupy.int64)
            self._lines = cupy.zeros((0, line.nbytes), cupy.uint8)

    def step(self, copies: Sequence[Step]) -> Step:
        moves = []
        for copy in copies:
            assert isinstance(copy, CopyOut)  # `only_copies_to`
            moves.append(copy.args[:3])
        size = gcd(16, self._nbytes, self._first, *(number for move in moves for number in move))
        words = [
            (target - self._first + at, source + at)
            for target, source, nbytes in moves
            for at in range(0, nbytes, size)
        ]
        table = np.array(words, np.int64).reshape(-1, 2)
        step = _one_block(f"keep_{size}", table, len(words), self._state.data.ptr, self._stream)
        return keeping(step, *step.keeps, self._state, copies)

    def begin(self, entries: int, period: int) -> None:
        with self._stream:
            if len(self._lines) < entries:
                self._lines = cupy.zeros((entries, self._nbytes), cupy.uint8)
            self._state.set(np.array([period, period, self._lines.data.ptr, self._nbytes]))

    def take(self, lines: Array) -> None:
        lines[...] = self._lines[: len(lines)].get(self._stream)


def _one_block(name: str, rows: Array, work: int, target: int, stream: Any) -> OnStream:
    """Returns a step that launches one block of a kernel that reads a table on the device and
    writes to the target, such as a mailbox.
    """
    table = cupy.asarray(rows)
    cupy.cuda.Device().synchronize()  # any stream may read the table from now on
    threads = min(max(-(-work // 32), 1) * 32, _THREADS)  # fewer warps start sooner
    args = (table, np.int32(len(rows)), np.int64(target))
    return keeping(
        OnStream(launch_own, stream, _module().get_function(name), (1, threads), args), table
    )
