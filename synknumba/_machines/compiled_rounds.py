"""Compiled rounds of relays: calls that send nothing but values, and get nothing but small results, without Python.

Processes that share a core take turns of some 2 µs, and Python takes longer after each than in a loop of its own; so this is
what a small call over machines consists of. MPI's functions are called by address, on mpi4py's persistent requests.

Whatever is not as expected is left to Python: a message that takes its time, one with another head, ranks that sleep, work long
or have news. docs/design/2026-11-25-machines.md has a trace.

Words are int64 at `address + 8 * index`, as in `doorbell.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from synknumba._machines.between import Between
from synknumba._types import Array
from synknumba._wire.compiled import compiled
from synknumba._wire.control import ControlBlock
from synknumba._wire.doorbell import (
    ALL_DONE,
    ARRIVED,
    UNDER_WAY,
    arrive,
    call,
    call_with_one,
    call_with_three,
    clock,
    load_acquire,
    memcmp,
    memcpy,
    now,
    rest,
    store_release,
)

HEAD_BYTES = 32  # the four words of a head that say all of it
KEEP_NS = 30_000  # how long a wait keeps its core if the others on it wait for it: two small calls or so
YIELDS = 2000  # of a wait, which is then left to Python
SERVE_MS = 50  # compiled loops then return to Python, which handles signals and looks around

# Words for waits: addresses of MPI's functions; KEEP_NS, or 0; buffer of clock_gettime; where MPI writes a flag, and a status
# of up to 40 bytes.
MPI_START, MPI_TEST, KEEP, CLOCK, FLAG, STATUS, MPI_WORDS = 0, 1, 2, 3, 5, 6, 22

# Words of an exchange. They are followed by the addresses of the requests that send, and then by its messages.
NUMBER, SOURCE, TARGET, VALUE_BYTES, SENDS, MESSAGES, SERVED, FIRST = range(8)

# Words of a message: its request; the head that comes, and that is expected; rows of results, whence and whereto.
REQUEST, HEAD, EXPECTED, ROWS, ROW_BYTES, FROM, FROM_STRIDE, TO, TO_STRIDE, MESSAGE_WORDS = range(10)

# Results of `obey`: the receive of an order is under way; an order for Python has come; there are answers to wait for.
# Others are codes of the wait for the ranks.
NO_ORDER, ORDER, UNSENT = 100, 101, 102


@compiled("int64(int64, int64)")
def start(mpi: int, request: int) -> int:
    """Starts a persistent request."""
    return call_with_one(load_acquire(mpi, MPI_START), request)


@compiled("int64(int64, int64)")
def has_ended(mpi: int, request: int) -> int:
    """Returns whether a request has ended. Errors are left to Python, which asks again."""
    store_release(mpi, FLAG, 0)
    call_with_three(load_acquire(mpi, MPI_TEST), request, mpi + 8 * FLAG, mpi + 8 * STATUS)
    return load_acquire(mpi, FLAG)


@compiled("int64(int64, int64, int64, int64)")
def await_end(mpi: int, request: int, base: int, lines: int) -> int:
    """Waits for a request; keeps the core for a while once `lines` lines have answered. Returns whether it has ended.

    From then on the processes of this machine wait for this one. If they share its core, each turn that one takes to see that
    it has nothing to do costs 2 µs. Where other machines' processes share it, KEEP is 0: they may have work.
    """
    since, until = 0, 0
    for spin in range(YIELDS):
        if has_ended(mpi, request) != 0:
            return 1
        if until == 0 and load_acquire(base, ARRIVED) >= lines:
            until = now(mpi, CLOCK) + load_acquire(mpi, KEEP)
            while now(mpi, CLOCK) < until:
                if has_ended(mpi, request) != 0:
                    return 1
        since = rest(spin, 0, since)
        if since < 0:
            break
    return 0


@compiled("int64(int64)")
def copy_values(exchange: int) -> int:
    """Copies the values of a call."""
    memcpy(load_acquire(exchange, TARGET), load_acquire(exchange, SOURCE), load_acquire(exchange, VALUE_BYTES))
    return 0


@compiled("int64(int64)")
def copy_rows(message: int) -> int:
    """Copies small results."""
    source, target = load_acquire(message, FROM), load_acquire(message, TO)
    for _ in range(load_acquire(message, ROWS)):
        memcpy(target, source, load_acquire(message, ROW_BYTES))
        source += load_acquire(message, FROM_STRIDE)
        target += load_acquire(message, TO_STRIDE)
    return 0


@compiled("int64(int64)")
def is_expected(message: int) -> int:
    """Returns whether a message that has come is the one that is expected."""
    return 1 if memcmp(load_acquire(message, HEAD), load_acquire(message, EXPECTED), HEAD_BYTES) == 0 else 0


@compiled("int64(int64, int64)")
def order(mpi: int, exchange: int) -> int:
    """Sends an order, and starts to receive the answers."""
    sends, messages = load_acquire(exchange, SENDS), load_acquire(exchange, MESSAGES)
    copy_values(exchange)
    for i in range(sends):
        start(mpi, load_acquire(exchange, FIRST + i))
    for i in range(messages):
        start(mpi, load_acquire(exchange, FIRST + sends + i * MESSAGE_WORDS + REQUEST))
    return 0


@compiled("int64(int64, int64, int64, int64)")
def hear(mpi: int, exchange: int, base: int, lines: int) -> int:
    """Waits for the answers to an order. Returns 0 to leave that, from its beginning, to Python."""
    sends, messages = load_acquire(exchange, SENDS), load_acquire(exchange, MESSAGES)
    for i in range(messages):
        message = exchange + 8 * (FIRST + sends + i * MESSAGE_WORDS)
        if await_end(mpi, load_acquire(message, REQUEST), base, lines) == 0 or is_expected(message) == 0:
            return 0
    for i in range(sends):
        if await_end(mpi, load_acquire(exchange, FIRST + i), base, lines) == 0:
            return 0
    for i in range(messages):
        copy_rows(exchange + 8 * (FIRST + sends + i * MESSAGE_WORDS))
    return 1


@compiled("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def serve(base: int, lines: int, line: int, sequence: int, pauses: int, yields: int, mpi: int, exchange: int) -> int:
    """Arrives, then carries rounds of one program to other machines for up to SERVE_MS; counts them in the word SERVED.

    Returns:
        The result of `arrive` for the first round not served, or UNDER_WAY if its order was sent, and Python must hear.
    """
    served, began = 0, clock()
    number = arrive(base, lines, line, sequence, 0, pauses, yields)
    while number == load_acquire(exchange, NUMBER) and clock() - began < SERVE_MS:
        order(mpi, exchange)
        if hear(mpi, exchange, base, lines - 1) == 0:
            number = UNDER_WAY
            break
        served += 1
        number = arrive(base, lines, line, sequence + served, 0, pauses, yields)
    store_release(exchange, SERVED, served)
    return number


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)")
def obey(base: int, lines: int, sequence: int, pauses: int, yields: int, mpi: int, exchange: int) -> int:
    """Waits for orders, and carries out those to run one program, for up to SERVE_MS; counts them in the word SERVED.

    The receive of the first order has been started. Orders are passed on before, all answers sent after the ranks' work.
    """
    served, began = 0, clock()
    number, answer = load_acquire(exchange, NUMBER), load_acquire(exchange, SENDS) - 1
    message = exchange + 8 * (FIRST + answer + 1)
    while True:
        if await_end(mpi, load_acquire(message, REQUEST), base, lines) == 0:
            code = NO_ORDER
            break
        if is_expected(message) == 0 or clock() - began > SERVE_MS:
            code = ORDER
            break
        for i in range(answer):
            start(mpi, load_acquire(exchange, FIRST + i))
        copy_values(exchange)
        served += 1
        code = call(base, lines, sequence + served, number, pauses, yields)
        if code != ALL_DONE:
            break
        copy_rows(message)
        start(mpi, load_acquire(exchange, FIRST + answer))
        late = 0
        for i in range(answer + 1):
            late += 1 - await_end(mpi, load_acquire(exchange, FIRST + i), base, lines)
        if late != 0:
            code = UNSENT
            break
        start(mpi, load_acquire(message, REQUEST))
    store_release(exchange, SERVED, served)
    return code


class Expected(NamedTuple):
    """A message that is expected, and small results that are copied once it has come.

    Attributes:
        request: receives it.
        head: its first words.
        expected: bytes of these if it is as expected; none if it never is.
        source: small results, if there are any: uint8, shape (ranks, bytes).
        target: where they go.
    """

    request: Any
    head: memoryview
    expected: bytes
    source: Array | None
    target: Array | None


@final
class Exchange:
    """What is sent and received for a program, by address.

    Args:
        job: the machines; its `functions` are known.
        control: the control block.
        number: of the program.
        source: values of a call, where they come.
        target: values of a call, where they go.
        sends: persistent requests.
        messages: those that are expected.
    """

    def __init__(
        self,
        job: Between,
        control: ControlBlock,
        number: int,
        source: Array,
        target: Array,
        sends: Sequence[Any],
        messages: Sequence[Expected],
    ) -> None:
        self._control, self._kept = control, (source, target, sends, messages)
        self._mpi = np.zeros(MPI_WORDS, np.int64)
        self._mpi[KEEP] = KEEP_NS if job.has_own_cores else 0
        self._mpi[[MPI_START, MPI_TEST]] = job.functions
        address_of = job.mpi._addressof  # noqa: SLF001  # documented
        words = [number, _address(source), _address(target), len(source), len(sends), len(messages), 0]
        words += map(address_of, sends)
        for request, head, expected, rows, to in messages:
            words += address_of(request), _address(head), _address(expected)
            if rows is None or to is None:
                words += [0] * (MESSAGE_WORDS - ROWS)
            else:
                words += *rows.shape, _address(rows), rows.strides[0], _address(to), to.strides[0]
        self._words = np.array(words, np.int64)
        self._addresses = self._mpi.ctypes.data, self._words.ctypes.data

    @property
    def served(self) -> int:
        """Number of rounds that the last `serve` or `obey` has begun and, but for one that it tells of, completed."""
        return int(self._words[SERVED])

    def serve(self, line: int, sequence: int) -> int:
        """Answers a round, and serves others; returns as the compiled `serve`."""
        control = self._control
        spins = control.patience.pauses, control.patience.rank
        number: int = serve(control.base, control.lines, line, sequence, *spins, *self._addresses)
        return number

    def obey(self, sequence: int) -> int:
        """Carries out orders; returns as the compiled `obey`."""
        control = self._control
        spins = control.patience.pauses, control.patience.coordinator
        code: int = obey(control.base, control.lines, sequence, *spins, *self._addresses)
        return code


def _address(memory: Array | memoryview | bytes) -> int:
    """Returns the address of memory, which its owner keeps."""
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
    return int(array.ctypes.data)
