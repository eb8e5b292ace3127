"""The NCCL transport between GPUs, by the bindings of `_host/nccl_bindings.py`; no other module
uses these.

    exchange ──plan──> rounds ──merge──> step: group, local work, group, local work, …

A round is an exchange's calls of NCCL, and its work on its own GPU afterwards. The first rounds of
all exchanges go to NCCL in one group, then their second rounds, and so on. Nearly every exchange
needs one round. Addresses, counts and bound methods are computed when the step is made, so running
it is one call of NCCL, and two more if there is a group.

Copies are sent as bytes. NCCL reduces the dtypes and ops for which it meets the contract
(`_wire_dtype`). The others are combined here: every rank receives its part of all arrays, piece by
piece, combines it, and in all_reduce gathers the results:

    rank 0   a₀ b₀          a₀ a₁ ──op──> a          a b
                    ──>                      ──>
    rank 1   a₁ b₁          b₀ b₁ ──op──> b          a b

which moves as few bytes as NCCL's own all_reduce.

Steps put all work on one stream, wait for nothing and allocate nothing, so they can be captured
into CUDA graphs; but not at their first run, when CuPy compiles its kernels.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias, final

import cupy
import numpy as np
from cupy.cuda import runtime

from synknumba._comm.base import (
    Communicator,
    Exchange,
    Step,
    combining,
    consecutive,
    on_rank,
    stay_on_this_machine,
)
from synknumba._comm.gpu_mail import GpuMail, open_mail
from synknumba._comm.letters import MOST_LETTERS, fit, letters_of
from synknumba._host import nccl_bindings
from synknumba._host.interrupts import leave_interrupted_cores
from synknumba._host.nccl_bindings import DTYPES, OPS, Function, NcclBindings, as_nccl_error
from synknumba._types import Array, CollectiveOp

_Call: TypeAlias = Callable[[], object]
_Part: TypeAlias = tuple[int, int]  # start, stop

# per step, for other ranks' pieces; a quarter of it made 256 MiB a fifth slower on four H200
_STAGING_BYTES = 64 << 20
# up to this size one round with whole arrays is faster than two rounds with parts
_WHOLE_BYTES = 256 << 10
_ALIGNED = 64  # elements; pieces at unaligned addresses are copied more slowly

# Combines in rank order on every rank, which gives the same bits. This rank's own piece is read in
# place and may be the target: passed as an address, so that CuPy does not copy it.
_COMBINE = """
T result = own_rank == 0 ? own[i] : pieces[i];
for (int rank = 1; rank < world_size; rank++) {{
    const T next = rank == own_rank ? own[i] : pieces[rank * stride + i];
    result = {op};
}}
target = result;
"""
_OPS = {  # a NaN is not equal to itself
    "sum": "result + next",
    "prod": "result * next",
    "min": "result != result ? result : next != next || next < result ? next : result",
    "max": "result != result ? result : next != next || next > result ? next : result",
}
_KERNELS = {
    name: cupy.ElementwiseKernel(
        "raw T pieces, int64 stride, uint64 own_address, int32 own_rank, int32 world_size",
        "T target",
        _COMBINE.format(op=op),
        f"synknumba_{name}",
        loop_prep="const T* own = reinterpret_cast<const T*>(own_address);",
    )
    for name, op in _OPS.items()
}

# elements per thread: with several loads in flight float32 takes half the time of CuPy's own
# division
_EACH = 8
_DIVIDE = cupy.ElementwiseKernel(
    "T divisor, int64 count",
    "raw T x",
    f"""
T values[{_EACH}];
const ptrdiff_t step = _ind.size();
#pragma unroll
for (int k = 0; k < {_EACH}; k++) {{
    if (k * step + i < count) values[k] = x[k * step + i];
}}
#pragma unroll
for (int k = 0; k < {_EACH}; k++) {{
    if (k * step + i < count) x[k * step + i] = values[k] / divisor;
}}
""",
    "synknumba_divide",
)


class _Round(NamedTuple):
    exchange: Sequence[_Call]  # calls of NCCL
    after: Sequence[_Call]  # work on this GPU


_NOTHING = _Round([], [])


def available() -> str | None:
    """Why NCCL cannot be used, in one line; None if it can."""
    nccl = nccl_bindings.find()
    if nccl.bindings is None:
        return nccl.problem
    return None


def make_unique_id() -> bytes:
    """Returns the id that the ranks of one communicator share. It starts a thread: called in
    rank 0 only, after the fork.
    """
    stay_on_this_machine()
    return _bindings().make_unique_id()


def _bindings() -> NcclBindings:
    nccl = nccl_bindings.find()
    assert nccl.bindings is not None, nccl.problem  # `available` was asked before
    return nccl.bindings


def _connect(bindings: NcclBindings, world_size: int, rank: int, unique_id: bytes) -> Any:
    """Returns the communicator of the current device. Called by all ranks; each waits for all
    others.

    It is never destroyed: `ncclCommDestroy` and `ncclCommAbort` may wait for ever for a peer that
    has died, or for a captured graph. The end of the process frees it. CuPy destroys a communicator
    with its last reference, hence an extra reference that Python does not count.
    """
    stay_on_this_machine()
    communicator = bindings.connect(world_size, unique_id, rank)
    leave_interrupted_cores()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
    return communicator


@final
class NcclCommunicator(Communicator):
    """One rank's end of an NCCL communicator. With one rank it only copies, without NCCL.

    Made by all ranks, with one id from `make_unique_id`; each waits for all others. Each is on a
    GPU of its own, the current device of its process. All steps go to CuPy's `stream`.
    """

    on_stream = True

    def __init__(self, world_size: int, rank: int, unique_id: bytes, stream: Any) -> None:
        self._world_size, self._rank, self._stream = world_size, rank, stream
        self._bindings: NcclBindings | None = None
        self._errors: tuple[type[Exception], ...] = ()
        self._nccl: Any = None
        self.mail: GpuMail | None = None
        if world_size > 1:
            self._bindings = _bindings()
            self._errors = (self._bindings.error,)
            self._nccl = _connect(self._bindings, world_size, rank, unique_id)
            self.mail = open_mail(rank, world_size, self._gathered, stream)

    def broadcast(self, exchanges: Sequence[Exchange], root: int) -> Step:
        return self._step(
            exchanges, lambda exchange: self._broadcast(_viewed(exchange, np.uint8), root)
        )

    def all_gather(self, exchanges: Sequence[Exchange]) -> Step:
        return self._step(exchanges, lambda exchange: self._all_gather(_viewed(exchange, np.uint8)))

    def reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp, root: int) -> Step:
        def plan(exchange: Exchange) -> list[_Round]:
            parts = [(0, 0)] * self._world_size
            parts[root] = 0, exchange.source_counts[root]
            if _wire_dtype(exchange.dtype, op) is None:
                return self._combine(exchange, op, parts, _STAGING_BYTES // len(exchanges))
            return self._reduce_parts(exchange, op, parts)

        return self._step(exchanges, plan)

    def all_reduce(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        if self._goes_by_mail(exchanges, op):
            return partial(self._run, self._mailed(exchanges, op), tuple(exchanges))

        def plan(exchange: Exchange) -> list[_Round]:
            if _wire_dtype(exchange.dtype, op) is None:
                return self._combine_everywhere(exchange, op, _STAGING_BYTES // len(exchanges))
            return self._reduce_whole(exchange, op, "all_reduce", exchange.source_counts)

        return self._step(exchanges, plan)

    def reduce_scatter(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> Step:
        def plan(exchange: Exchange) -> list[_Round]:
            parts = consecutive(exchange.target_counts)
            if _wire_dtype(exchange.dtype, op) is None:
                return self._combine(exchange, op, parts, _STAGING_BYTES // len(exchanges))
            if len(set(exchange.target_counts)) > 1:
                return self._reduce_parts(exchange, op, parts)
            return self._reduce_whole(exchange, op, "reduce_scatter", exchange.target_counts)

        return self._step(exchanges, plan)

    def exchange(self, exchanges: Sequence[Exchange], op: Literal["sum"] | None = None) -> Step:
        additions: list[_Call] = []
        if op is not None:
            exchanges = [self._set_aside(exchange, additions) for exchange in exchanges]
        viewed = [_viewed(exchange, np.uint8) for exchange in exchanges]
        copies = [exchange.copies for exchange in viewed]
        if self.mail is None or not fit(copies, self._world_size):
            calls = list(self._merged(map(self._exchange, viewed)))
        else:
            places = list(map(self._addresses, viewed))
            letters = letters_of(self._rank, self._world_size, copies, places)
            calls = [*chain.from_iterable(map(self._copies_here, viewed))]
            calls += self.mail.exchange(letters)
        return partial(self._run, [*calls, *additions], tuple(exchanges))

    def close(self) -> None:
        self._nccl = None  # drops this end's reference only; see _connect

    def _step(
        self, exchanges: Sequence[Exchange], plan: Callable[[Exchange], list[_Round]]
    ) -> Step:
        if self._world_size == 1:
            calls = list(chain.from_iterable(map(self._copy, exchanges)))
        else:
            calls = list(self._merged(map(plan, exchanges)))
        return partial(self._run, calls, tuple(exchanges))

    def _run(self, calls: Sequence[_Call], exchanges: Sequence[Exchange]) -> None:
        """Runs a step; `exchanges` keeps the arrays alive whose addresses its calls use."""
        try:
            for call in calls:
                call()
        except self._errors as error:
            raise as_nccl_error(error) from error

    def _merged(self, plans: Iterable[list[_Round]]) -> Iterator[_Call]:
        """Yields the calls of all exchanges' rounds, with one NCCL call or group per round."""
        for rounds in zip_longest(*plans, fillvalue=_NOTHING):
            exchange = list(chain.from_iterable(plan_round.exchange for plan_round in rounds))
            if len(exchange) == 1:
                yield exchange[0]
            elif exchange:
                assert self._bindings is not None  # one rank only copies
                yield partial(_group, self._bindings, exchange)
            for plan_round in rounds:
                yield from plan_round.after

    def _call(self, function: Function, *args: int) -> _Call:
        """Returns the call of a function of NCCL, on this rank's communicator and stream."""
        assert self._bindings is not None  # one rank only copies
        return self._bindings.bind(self._nccl, function, self._stream.ptr, *args)

    def _copy(self, exchange: Exchange) -> list[_Call]:
        """Returns the copy that a collective of one rank amounts to."""
        (source,), (target,) = exchange.sources, exchange.targets
        if _address(source) == _address(target) or not source.nbytes:
            return []
        return [self._memcpy(_address(target), _address(source), source.nbytes)]

    def _memcpy(self, target: int, source: int, nbytes: int) -> _Call:
        kind, stream = runtime.memcpyDeviceToDevice, self._stream.ptr
        return partial(runtime.memcpyAsync, target, source, nbytes, kind, stream)

    def _broadcast(self, exchange: Exchange, root: int) -> list[_Round]:
        count = exchange.source_counts[root]
        if not count:
            return []
        source, target = self._addresses(exchange)
        return [_Round([self._call("broadcast", source, target, count, DTYPES["uint8"], root)], [])]

    def _all_gather(self, exchange: Exchange) -> list[_Round]:
        counts = exchange.source_counts
        if not sum(counts):
            return []
        source, target = self._addresses(exchange)
        if len(set(counts)) == 1:
            call = self._call("all_gather", source, target, counts[0], DTYPES["uint8"])
            return [_Round([call], [])]
        starts = [start for start, _ in consecutive(counts)]
        peers = [*range(self._world_size)]
        if source == target + starts[self._rank]:  # it is in its place
            peers.remove(self._rank)
        calls = []
        if counts[self._rank]:
            calls += [self._send(source, counts[self._rank], rank) for rank in peers]
        for rank in peers:
            if counts[rank]:
                calls.append(self._receive(target + starts[rank], counts[rank], rank))
        return [_Round(calls, [])]

    def _exchange(self, exchange: Exchange) -> list[_Round]:
        """Sends and receives in the order of the copies, by which NCCL matches those between two
        ranks.
        """
        source, target = self._addresses(exchange)
        calls: list[_Call] = []
        for copy in exchange.copies:
            if copy.source == copy.target:
                continue
            if copy.source == self._rank:
                calls.append(self._send(source + copy.source_start, copy.count, copy.target))
            elif copy.target == self._rank:
                calls.append(self._receive(target + copy.target_start, copy.count, copy.source))
        here = self._copies_here(exchange)
        if not calls and not here:
            return []
        return [_Round(calls, here)]

    def _copies_here(self, exchange: Exchange) -> list[_Call]:
        """Returns the copies of an exchange that stay on this rank; it is of bytes."""
        source, target = self._addresses(exchange)
        return [
            self._memcpy(target + copy.target_start, source + copy.source_start, copy.count)
            for copy in exchange.copies
            if copy.source == copy.target == self._rank
        ]

    def _set_aside(self, exchange: Exchange, additions: list[_Call]) -> Exchange:
        """Returns an exchange into memory of its own, and appends the calls that add what comes
        there to this rank's target.
        """
        target, copies, places = exchange.targets[self._rank], [], []
        counts = [0] * self._world_size
        for copy in exchange.copies:
            start = counts[copy.target]
            copies.append(replace(copy, target_start=start))
            counts[copy.target] += copy.count
            if copy.target == self._rank:
                places.append((copy.target_start, start, copy.count))
        with self._stream:  # CuPy's pool reuses memory on the stream that it was allocated on
            received = cupy.empty(counts[self._rank], target.dtype)
        for into, start, count in places:
            pair = target[into : into + count], received[start : start + count]
            additions.append(partial(self._add, *pair))
        return replace(
            exchange,
            targets=self._only(received),
            target_counts=tuple(counts),
            copies=tuple(copies),
        )

    def _add(self, target: Any, source: Any) -> None:
        with self._stream:
            cupy.add(target, source, out=target)

    def _goes_by_mail(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> bool:
        """Whether an all_reduce goes by mail, which all ranks decide alike."""
        dtypes = {_real_dtype(exchange.dtype, op) for exchange in exchanges}
        if self.mail is None or len(dtypes) != 1 or len(exchanges) > MOST_LETTERS // 4:
            return False
        return self.mail.reduces(dtypes.pop(), combining(op), sum(map(_source_bytes, exchanges)))

    def _mailed(self, exchanges: Sequence[Exchange], op: CollectiveOp) -> list[_Call]:
        """Returns the calls of an all_reduce by mail."""
        assert self.mail is not None  # `_goes_by_mail`
        dtype = _real_dtype(exchanges[0].dtype, op)
        arrays = [(*self._addresses(exchange), _source_bytes(exchange)) for exchange in exchanges]
        calls = self.mail.reduce(dtype, combining(op), arrays)
        for exchange in exchanges:
            if exchange.source_counts[0]:
                calls += self._average(_viewed(exchange, dtype), op)
        return calls

    def _gathered(self, row: Array) -> Array:
        """Returns the uint8 arrays of all ranks, as lines."""
        with self._stream:
            sent, received = cupy.asarray(row), cupy.empty((self._world_size, len(row)), np.uint8)
            addresses = sent.data.ptr, received.data.ptr
            self._run([self._call("all_gather", *addresses, len(row), DTYPES["uint8"])], ())
            return cupy.asnumpy(received)

    def _reduce_whole(
        self, exchange: Exchange, op: CollectiveOp, function: Function, counts: Sequence[int]
    ) -> list[_Round]:
        """Reduces with one call of "all_reduce" or "reduce_scatter"; counts are in elements of
        the exchange.
        """
        wire = _wire_dtype(exchange.dtype, op)
        count = counts[self._rank] * (np.dtype(exchange.dtype).itemsize // wire.itemsize)
        if not count:
            return []
        exchange = _viewed(exchange, wire)
        call = self._call(function, *self._addresses(exchange), count, *_codes(wire, op))
        return [_Round([call], self._average(exchange, op))]

    def _reduce_parts(
        self, exchange: Exchange, op: CollectiveOp, parts: Sequence[_Part]
    ) -> list[_Round]:
        """Reduces each rank's part of the arrays to that rank, by one NCCL call each; parts are
        in elements of the exchange.
        """
        wire = _wire_dtype(exchange.dtype, op)
        scale = np.dtype(exchange.dtype).itemsize // wire.itemsize
        exchange = _viewed(exchange, wire)
        source, target = self._addresses(exchange)
        codes = _codes(wire, op)
        calls: list[_Call] = []
        for rank, (start, stop) in enumerate(parts):
            count, here = (stop - start) * scale, source + start * scale * wire.itemsize
            if count:
                own_target = target if rank == self._rank else 0  # ignored on other ranks
                calls.append(self._call("reduce", here, own_target, count, *codes, rank))
        if not calls:
            return []
        own_start, own_stop = parts[self._rank]
        after: list[_Call] = []
        if own_stop > own_start:
            after = self._average(exchange, op)
        return [_Round(calls, after)]

    def _average(self, exchange: Exchange, op: CollectiveOp) -> list[_Call]:
        """Returns the division of the sum by W: NCCL's own average multiplies by 1/W, which
        differs for some W.
        """
        if op != "avg":
            return []
        target, stream = exchange.targets[self._rank], self._stream
        world_size = target.dtype.type(self._world_size)

        def divide() -> None:
            with stream:
                _DIVIDE(world_size, target.size, target, size=-(-target.size // _EACH))

        return [divide]

    def _combine_everywhere(
        self, exchange: Exchange, op: CollectiveOp, staging_bytes: int
    ) -> list[_Round]:
        count = exchange.source_counts[self._rank]
        if count * np.dtype(exchange.dtype).itemsize <= _WHOLE_BYTES:
            return self._combine(exchange, op, [(0, count)] * self._world_size, staging_bytes)
        parts = _even_parts(count, self._world_size)
        target = exchange.targets[self._rank][slice(*parts[self._rank])]
        counts = tuple(stop - start for start, stop in parts)
        part = replace(exchange, targets=self._only(target), target_counts=counts)
        spread = replace(exchange, sources=self._only(target), source_counts=counts)
        return self._combine(part, op, parts, staging_bytes) + self._all_gather(
            _viewed(spread, np.uint8)
        )

    def _combine(
        self, exchange: Exchange, op: CollectiveOp, parts: Sequence[_Part], staging_bytes: int
    ) -> list[_Round]:
        """Combines each rank's part of the arrays on that rank, from pieces that all ranks send."""
        source, target = exchange.sources[self._rank], exchange.targets[self._rank]
        address, itemsize = _address(source), source.itemsize
        size = max(staging_bytes // (self._world_size * itemsize) // _ALIGNED, 1) * _ALIGNED
        own_start, own_stop = parts[self._rank]
        with self._stream:  # CuPy's pool reuses memory on the stream that it was allocated on
            pieces = cupy.empty(self._world_size * min(size, own_stop - own_start), source.dtype)
        stride = pieces.size // self._world_size
        peers = [rank for rank in range(self._world_size) if rank != self._rank]
        rounds = []
        for at in range(0, max(stop - start for start, stop in parts), size):
            counts = [min(size, max(stop - start - at, 0)) for start, stop in parts]
            own_count, own_address = counts[self._rank], address + (own_start + at) * itemsize
            calls = []
            for rank in peers:
                if counts[rank]:
                    start = address + (parts[rank][0] + at) * itemsize
                    calls.append(self._send(start, counts[rank] * itemsize, rank))
            if not own_count:
                rounds.append(_Round(calls, []))
                continue
            for rank in peers:
                place = _address(pieces) + rank * stride * itemsize
                calls.append(self._receive(place, own_count * itemsize, rank))
            combine = partial(
                self._launch, _KERNELS[op], pieces, stride, own_address, target[at : at + own_count]
            )
            rounds.append(_Round(calls, [combine]))
        return rounds

    def _launch(self, kernel: Any, pieces: Any, stride: int, own_address: int, target: Any) -> None:
        with self._stream:
            kernel(pieces, stride, own_address, self._rank, self._world_size, target)

    def _send(self, address: int, nbytes: int, rank: int) -> _Call:
        return self._call("send", address, nbytes, DTYPES["uint8"], rank)

    def _receive(self, address: int, nbytes: int, rank: int) -> _Call:
        return self._call("recv", address, nbytes, DTYPES["uint8"], rank)

    def _only(self, array: Any) -> tuple[Any, ...]:
        return on_rank(self._rank, array, self._world_size)

    def _addresses(self, exchange: Exchange) -> tuple[int, int]:
        return _address(exchange.sources[self._rank]), _address(exchange.targets[self._rank])


def _group(bindings: NcclBindings, calls: Sequence[_Call]) -> None:
    bindings.group_start()
    try:
        for call in calls:
            call()
    finally:
        bindings.group_end()  # an open group would hold back the calls of later steps too


def _wire_dtype(dtype: Any, op: CollectiveOp) -> Any:
    """Returns the dtype to pass to NCCL, or None if NCCL's reduction does not meet the contract.

    NCCL's minimum and maximum of floating-point numbers ignore NaN (seen with 2.28.9), and it has
    neither complex numbers nor 16-bit integers.
    """
    dtype = np.dtype(dtype)
    match dtype.kind, op:
        case "c", "sum" | "avg":
            return np.dtype(f"f{dtype.itemsize // 2}")
        case "f", "min" | "max":
            return None
        case "b", "min" | "max":
            return np.dtype(np.uint8)
    return dtype if dtype.name in DTYPES else None


def _real_dtype(dtype: Any, op: CollectiveOp) -> Any:
    """Returns the dtype in which an op combines elements: complex numbers are added by parts."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c" and op in {"sum", "avg"}:
        return np.dtype(f"f{dtype.itemsize // 2}")
    return dtype


def _codes(dtype: Any, op: CollectiveOp) -> tuple[int, int]:
    return DTYPES[dtype.name], OPS[combining(op)]


def _viewed(exchange: Exchange, dtype: Any) -> Exchange:
    """Returns the exchange's memory as another dtype, whose item size divides the old one."""
    dtype = np.dtype(dtype)
    scale = np.dtype(exchange.dtype).itemsize // dtype.itemsize

    def views(arrays: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(None if array is None else array.view(dtype) for array in arrays)

    return Exchange(
        dtype,
        views(exchange.sources),
        views(exchange.targets),
        tuple(count * scale for count in exchange.source_counts),
        tuple(count * scale for count in exchange.target_counts),
        tuple(copy.scaled(scale) for copy in exchange.copies),
    )


def _source_bytes(exchange: Exchange) -> int:
    """Returns the bytes of rank 0's source; of all sources, in a reduction."""
    return exchange.source_counts[0] * int(np.dtype(exchange.dtype).itemsize)


def _even_parts(count: int, world_size: int) -> list[_Part]:
    size = -(-count // (world_size * _ALIGNED)) * _ALIGNED
    return [(min(rank * size, count), min((rank + 1) * size, count)) for rank in range(world_size)]


def _address(array: Any) -> int:
    if array is None:
        return 0
    return array.data.ptr  # type: ignore[no-any-return]
