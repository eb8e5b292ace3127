"""The host transport: every participant has mapped all arrays of all ranks, and works in place on
its part of each.

    rank 0's array   [ part 0 | part 1 | part 2 ]      participant 1 reads part 1 of every array, combines them in
    rank 1's array   [ part 0 | part 1 | part 2 ]      rank order, and writes the result to part 1 of every target;
    rank 2's array   [ part 0 | part 1 | part 2 ]      the others do the same with their parts

No participant reads or writes elements of another's part, so a step has no barrier and no
intermediate copy. The caller has barriers around it: all participants start after all arrays are
written, and continue after all have ended. The copies of an exchange are not divided: participant r
of W makes those to rank r.

Parts end where a cache line of the first target begins, so that no two participants write to one
line. Processes map arrays at different addresses, but mappings begin on pages, so the offset in a
line is the same in all of them.

Sums and averages of complex numbers are computed on their real and imaginary parts. Dtypes that
Numba does not have on a CPU (float16, long double, non-native byte order) and unaligned arrays are
combined by NumPy's ufuncs. NumPy's product of complex numbers may differ in the last bit: it rounds
differently in the middle of an array and at its end.

A step over arrays of one dtype is one call of a compiled function with one integer, the address of
a table of int64:

    pieces, sources, targets, elements of the scratch buffer (of a copy: whether it goes past the
    caches), its address,
    and for each piece: elements, address in each source, address in each target
"""  # noqa: E501

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numba
import numpy as np
from llvmlite import ir
from numba.extending import register_jitable

from synknumba._comm.base import Communicator, Exchange, Step, combining, consecutive
from synknumba._host.signals import held_signals
from synknumba._ops.reduction import UFUNCS
from synknumba._types import Array, CollectiveOp
from synknumba._wire.compiled import compiled
from synknumba._wire.doorbell import memcpy
from synknumba._wire.native import Native, NativeStep, call_of
from synknumba.simt.internals import emitted

CACHE_LINE = 64  # bytes; a line written by two cores moves back and forth between them
# of a result; as many bytes of each of 64 sources fit a second-level cache, from which they are
# overwritten in place
SCRATCH_BYTES = 16384
NUMPY_BYTES = 65536  # scratch for ufuncs, which cost about 1 µs a call; fits a second-level cache
COPY_BYTES = 65536  # chunk copied to one target after another while it is in the second-level cache
# targets that have as many bytes on all ranks do not stay in caches, so they are written past
# them, without being read first
STREAM_BYTES = 32 << 20

_HEAD = 5  # words of a table before its first piece
_WORD = 8  # bytes


class _Piece(NamedTuple):
    """One participant's part of one array: views of equal length."""

    sources: tuple[Array, ...]
    targets: tuple[Array, ...]


# A function, its argument (an address or a list of pieces), and objects to keep alive with them.
_Call: TypeAlias = tuple[Callable[[Any], object], Any, object]


@final
class HostCommunicator(Communicator):
    """One participant's end: part r of W of every array for rank r; a participant that works
    alone is (0, 1).
    """

    def __init__(self, part: int, parts: int) -> None:
        self._part, self._parts = part, parts
        memory = np.empty(SCRATCH_BYTES + CACHE_LINE, np.uint8)
        begin = -_address(memory) % CACHE_LINE
        self._scratch = memory[begin : begin + SCRATCH_BYTES]

    def broadcast(self, exchanges: Sequence[Exchange], root: int) -> Step:
        pieces = (self._piece((e.sources[root],), e.targets) for e in exchanges)
        return _move(pieces, self._parts)

    def all_gather(self, exchanges: Sequence[Exchange]) -> Step:
        pieces = []
        for e in exchanges:
            for source, (begin, end) in zip(e.sources, consecutive(e.source_counts), strict=True):
                pieces.append(self._piece((source,), _cut(e.targets, begin, end)))
        return _move(pieces, self._parts)

    def reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp, root: int) -> Step:
        return self._combine(op, [self._piece(e.sources, (e.targets[root],)) for e in exchanges])

    def all_reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        return self._combine(op, [self._piece(e.sources, e.targets) for e in exchanges])

    def reduce_scatter(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        pieces = []
        for e in exchanges:
            for target, (begin, end) in zip(e.targets, consecutive(e.target_counts), strict=True):
                pieces.append(self._piece(_cut(e.sources, begin, end), (target,)))
        return self._combine(op, pieces)

    def exchange(self, exchanges: Sequence[Exchange], op: Literal["sum"] | None = None) -> Step:
        pieces = []
        for e in exchanges:
            for copy in e.copies:
                if copy.target % self._parts == self._part:
                    source = e.sources[copy.source][copy.source_start :][: copy.count]
                    target = e.targets[copy.target][copy.target_start :][: copy.count]
                    sources = (source,) if op is None else (target, source)
                    pieces.append(_Piece(sources, (target,)))
        if op is not None:
            return self._combine(op, pieces)
        return _move(pieces, self._parts)

    def close(self) -> None:
        pass  # steps own what they use

    def _piece(self, sources: tuple[Array, ...], targets: tuple[Array, ...]) -> _Piece:
        """Returns this participant's part of arrays of equal length.

        Parts are cut by the address of the first target. If a target is the source of another
        piece, these pieces must be cut alike, or participants read what others have written.
        """
        target = targets[0]
        begin, end = share(len(target), target.itemsize, _address(target), self._part, self._parts)
        return _Piece(_cut(sources, begin, end), _cut(targets, begin, end))

    def _combine(self, op: CollectiveOp, pieces: Sequence[_Piece]) -> Step:
        """Returns a step that combines the sources of each piece into its targets."""
        if pieces and len(pieces[0].sources) == 1:
            return _move(pieces, self._parts)  # op over one array is that array
        groups: dict[tuple[np.dtype[Any], bool], list[_Piece]] = {}
        for piece in pieces:
            if len(piece.sources[0]):
                simple = _simplified(op, piece)
                aligned = all(array.flags.aligned for array in (*simple.sources, *simple.targets))
                groups.setdefault((simple.sources[0].dtype, aligned), []).append(simple)
        calls: list[_Call] = []
        for (dtype, aligned), group in groups.items():
            if aligned and _is_compiled(op, dtype):
                table = _table(group, len(self._scratch) // dtype.itemsize, _address(self._scratch))
                calls.append(
                    (_combiner(op, dtype.str), _address(table), (table, group, self._scratch))
                )
            else:
                calls.append((_ufuncs(op, dtype), group, None))
        return _step(calls)


def prepare(op: CollectiveOp | None, dtype: Any) -> None:
    """Compiles the host transport's functions for an op on a dtype, or with None for collectives
    that only copy.

    Called in one process before many need them, so that they load them from Numba's cache.
    """
    # Ctrl-C within Numba may leave its tables broken, and nothing compiles afterwards
    with held_signals():
        _mover()
        if op is None:
            return
        array = np.empty(0, dtype)
        computed = _simplified(op, _Piece((array,), (array,))).sources[0].dtype
        if _is_compiled(op, computed):
            _combiner(op, computed.str)


def share(count: int, itemsize: int, address: int, part: int, parts: int) -> tuple[int, int]:
    """Returns the elements [begin, end) of an array that one participant works on; parts end where
    a cache line begins.

    >>> [share(100, 4, 8, part, 3) for part in range(3)]
    [(0, 30), (30, 62), (62, 100)]
    """

    def edge(index: int) -> int:
        even = index * count // parts
        if index in {0, parts}:
            return even
        into_line = (address + even * itemsize) % CACHE_LINE
        return max(even - into_line // itemsize, 0)

    return edge(part), edge(part + 1)


def _cut(arrays: tuple[Array, ...], begin: int, end: int) -> tuple[Array, ...]:
    return tuple(array[begin:end] for array in arrays)


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _simplified(op: CollectiveOp, piece: _Piece) -> _Piece:
    """Returns the piece viewed as the simplest dtype that gives the same bits, so that fewer
    dtypes are compiled.
    """
    dtype = piece.sources[0].dtype
    if not dtype.isnative:
        return piece
    if dtype.kind == "c" and op in {"sum", "avg"}:
        return _viewed(piece, f"f{dtype.itemsize // 2}")
    if dtype.kind == "i" and op in {"sum", "prod"}:
        return _viewed(piece, f"u{dtype.itemsize}")  # wraps to the same bits
    if dtype.kind == "b" and op in {"min", "max"}:
        return _viewed(piece, "u1")
    return piece


def _viewed(piece: _Piece, dtype: Any) -> _Piece:
    return _Piece(*(tuple(array.view(dtype) for array in arrays) for arrays in piece))


def _is_compiled(op: CollectiveOp, dtype: np.dtype[Any]) -> bool:
    """Whether Numba has the op on a simplified dtype."""
    has_kernel = (
        dtype.char in "fd"
        or (dtype.kind in "iu" and op != "avg")
        or (dtype.char in "FD" and op == "prod")
    )
    return has_kernel and dtype.isnative


@final
class _Step(partial[object], Native):
    """A step of one or more calls; of a single one the call itself, without a Python frame."""

    calls: list[_Call]

    def native(self) -> Sequence[NativeStep] | None:
        if not all(isinstance(argument, int) for _, argument, _ in self.calls):
            return None
        return [call_of(*call) for call in self.calls]


def _step(calls: list[_Call]) -> Step:
    step = _Step(_run_all, calls)
    if len(calls) == 1:
        function, argument, _ = calls[0]
        step = _Step(function, argument)
    step.calls = calls
    return step


def _run_all(calls: list[_Call]) -> None:
    for function, argument, _ in calls:
        function(argument)


def _move(pieces: Iterable[_Piece], parts: int) -> Step:
    """Returns a step of one of `parts` participants that copies the source of each piece to its
    targets.
    """
    as_bytes = [_viewed(piece, np.uint8) for piece in pieces if len(piece.sources[0])]
    if not as_bytes:
        return _step([])
    written = sum(len(piece.sources[0]) * len(piece.targets) for piece in as_bytes)
    table = _table(as_bytes, int(written * parts >= STREAM_BYTES), 0)
    return _step([(_mover(), _address(table), (table, as_bytes))])


def _table(pieces: Sequence[_Piece], scratch: int, scratch_address: int) -> Array:
    """Returns the table for a compiled function; all pieces have the same number of sources and
    of targets.
    """
    first = pieces[0]
    words = [len(pieces), len(first.sources), len(first.targets), scratch, scratch_address]
    for piece in pieces:
        words.append(len(piece.sources[0]))
        words += map(_address, chain(*piece))
    return np.array(words, np.int64)


def _ufuncs(op: CollectiveOp, dtype: np.dtype[Any]) -> Callable[[Sequence[_Piece]], None]:
    """Returns a function like the compiled one that uses NumPy, a chunk of elements at a time."""
    ufunc = UFUNCS[combining(op)]
    scratch = np.empty(NUMPY_BYTES // dtype.itemsize, dtype)

    def combine(pieces: Sequence[_Piece]) -> None:
        with np.errstate(all="ignore"):  # compiled code and other transports do not warn
            for sources, targets in pieces:
                for begin in range(0, len(sources[0]), len(scratch)):
                    at = slice(begin, begin + len(scratch))
                    first, *rest = (source[at] for source in sources)
                    out = scratch[: len(first)]
                    for operand in rest:
                        first = ufunc(first, operand, out=out)
                    if op == "avg":
                        np.true_divide(out, len(sources), out=out)
                    for target in targets:
                        target[at] = out

    return combine


@emitted("voidptr(int64)")
def _pointer(builder: Any, address: Any) -> Any:
    """Converts an address to a pointer for Numba's carray."""
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@emitted("void(int64, int64)")
def _stream_line(builder: Any, target: Any, source: Any) -> None:
    """Copies one cache line past the caches; `target` is aligned to a line."""
    line = ir.VectorType(ir.IntType(64), CACHE_LINE // _WORD).as_pointer()
    loaded = builder.load(builder.inttoptr(source, line), align=1)
    stored = builder.store(loaded, builder.inttoptr(target, line), align=CACHE_LINE)
    stored.set_metadata(
        "nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    )


@emitted("void()")
def _fence(builder: Any) -> None:
    """Orders copies past the caches, which no release covers, before later stores."""
    builder.fence("seq_cst")


@register_jitable
def _stream(target: int, source: int, count: int) -> None:
    """Like memcpy, past the caches.

    glibc's memcpy does that above a length that it computes from the cache sizes, which virtual
    machines misreport.
    """
    first = min(-target % CACHE_LINE, count)
    last = first + (count - first) // CACHE_LINE * CACHE_LINE
    memcpy(target, source, first)
    for begin in range(first, last, CACHE_LINE):
        _stream_line(target + begin, source + begin)
    memcpy(target + last, source + last, count - last)


@register_jitable
def _min(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b  # noqa: PLR0124  # a NaN is not equal to itself


@register_jitable
def _max(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b  # noqa: PLR0124


@register_jitable
def _complex_prod(a: Any, b: Any) -> Any:
    """Multiplies like NumPy.

    Numba compiles its own product once in a process, with the options of its first user. If that is
    a kernel, whose sums and products are contracted, the last bit differs.
    """
    return complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


_ELEMENTS: dict[CollectiveOp, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": _min,
    "max": _max,
    "avg": operator.add,
}


def _folding(element: Any, scalar: Any, itemsize: int) -> Any:
    """Returns a function that combines elements of all sources, from `begin` on, into `out`.

    It reads four sources at the same time: one stream of loads leaves most of a core's memory
    requests unused, and starts slowly in each chunk.
    """

    @register_jitable
    def part(row: Any, array: int, begin: int, count: int) -> Any:
        return numba.carray(_pointer(row[1 + array] + begin * itemsize), count, scalar)

    @register_jitable
    def fold(out: Any, row: Any, sources: int, begin: int) -> None:
        n = len(out)
        w, x = part(row, 0, begin, n), part(row, 1, begin, n)
        done = 2
        if sources >= 4:
            y, z = part(row, 2, begin, n), part(row, 3, begin, n)
            done = 4
            for i in range(n):
                out[i] = element(element(element(w[i], x[i]), y[i]), z[i])
        else:
            for i in range(n):
                out[i] = element(w[i], x[i])
        while done + 4 <= sources:
            w, x = part(row, done, begin, n), part(row, done + 1, begin, n)
            y, z = part(row, done + 2, begin, n), part(row, done + 3, begin, n)
            done += 4
            for i in range(n):
                pair = element(element(out[i], w[i]), x[i])
                out[i] = element(element(pair, y[i]), z[i])
        for source in range(done, sources):
            x = part(row, source, begin, n)
            for i in range(n):
                out[i] = element(out[i], x[i])

    return fold


@cache
def _combiner(op: CollectiveOp, dtype: str) -> Any:
    """Compiles the function of one op and one dtype. The closure's variables are part of the key
    in Numba's cache.
    """
    element = _ELEMENTS[op]
    if op == "prod" and np.dtype(dtype).kind == "c":
        element = _complex_prod
    is_average = op == "avg"
    scalar = np.dtype(dtype).type
    itemsize = np.dtype(dtype).itemsize

    fold = _folding(element, scalar, itemsize)

    def combine(table: int) -> None:
        head = numba.carray(_pointer(table), _HEAD, np.int64)
        pieces, sources, targets, chunk = head[0], head[1], head[2], head[3]
        divisor = scalar(sources)
        width = 1 + sources + targets
        for piece in range(pieces):
            row = numba.carray(_pointer(table + _WORD * (_HEAD + piece * width)), width, np.int64)
            count = row[0]
            if sources == 2 and targets == 2 and row[1] == row[3] and row[2] == row[4]:
                # Two replicas in place. This loop is vectorised after a check that they do not
                # overlap; the general loop would not be, as its sources and targets do.
                x = numba.carray(_pointer(row[1]), count, scalar)
                y = numba.carray(_pointer(row[2]), count, scalar)
                for i in range(count):
                    value = element(x[i], y[i])
                    if is_average:
                        value /= divisor
                    x[i] = value
                    y[i] = value
                continue
            if sources == 2 and targets == 1:  # as above; each element is read before it is written
                x = numba.carray(_pointer(row[1]), count, scalar)
                y = numba.carray(_pointer(row[2]), count, scalar)
                z = numba.carray(_pointer(row[3]), count, scalar)
                for i in range(count):
                    value = element(x[i], y[i])
                    if is_average:
                        value /= divisor
                    z[i] = value
                continue
            for begin in range(0, count, chunk):
                n = min(chunk, count - begin)
                out = numba.carray(_pointer(head[4]), n, scalar)
                fold(out, row, sources, begin)
                if is_average:
                    for i in range(n):
                        out[i] /= divisor
                for target in range(targets):
                    memcpy(row[1 + sources + target] + begin * itemsize, head[4], n * itemsize)

    return compiled("void(int64)")(combine)


@cache
def _mover() -> Any:
    """Compiles the function that copies one source to all targets except those that are the
    source.
    """

    def move(table: int) -> None:
        head = numba.carray(_pointer(table), _HEAD, np.int64)
        pieces, targets, past_caches = head[0], head[2], head[3]
        width = 2 + targets
        for piece in range(pieces):
            row = numba.carray(_pointer(table + _WORD * (_HEAD + piece * width)), width, np.int64)
            count, source = row[0], row[1]
            for begin in range(0, count, COPY_BYTES):
                n = min(COPY_BYTES, count - begin)
                for target in row[2:]:
                    if target == source:
                        continue
                    if past_caches:
                        _stream(target + begin, source + begin, n)
                    else:
                        memcpy(target + begin, source + begin, n)
        if past_caches:
            _fence()

    return compiled("void(int64)")(move)
