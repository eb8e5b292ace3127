"""Rounds in compiled code, with a function of Python in place of the driver's launch, and a
thread in place of a rank.
"""

import ctypes
import os
import signal
import threading
import time

import numba
import numpy as np
import pytest

from synknumba._wire import doorbell
from synknumba._wire.control import ROOMY, ControlBlock
from synknumba._wire.relaunch import MOST_KNOWN, Again, Relaunch, ScalarPacking, Table

PROGRAM, OTHER, STOP = 5, 6, 7
MARK = 1 << 32
EXECUTABLE, STREAM = 1234, 5678


@numba.cfunc("int32(int64, int64)")
def mail_at_once(box, stream):
    """A launch that takes no time, in compiled code."""
    doorbell.store_release(box, 0, MARK)
    return 0


class Launched:
    """What a rank launches: 4 bytes for each word of the results, scattered over memory.

    Args:
        words: of the results.
    """

    def __init__(self, words: int = 2) -> None:
        self.box = np.zeros(words, np.int64)
        self.memory = np.zeros(3 * words, np.uint32)
        self.calls: list[tuple[int, int]] = []
        self.mail = self.mail_all
        self.error = 0
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(
            self._launch
        )
        self._places = (
            [(7 * k) % (3 * words) for k in range(words)] if words < 7 else list(range(words))
        )
        targets = [self.memory.ctypes.data + 4 * place for place in self._places]
        address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.relaunch = Relaunch(address, EXECUTABLE, STREAM, self.box.ctypes.data, targets)

    def _launch(self, executable: int, stream: int) -> int:
        assert not self.box.any()  # what was there before has been taken away
        self.calls.append((executable, stream))
        if self.error:
            return self.error
        self.mail(len(self.calls))
        return 0

    def value(self, call: int, word: int) -> int:
        """What a word holds after a call: all 32 bits of it are used."""
        return (call * 0x9E3779B1 + word) & 0xFFFFFFFF

    def mail_all(self, call: int) -> None:
        for word in range(len(self.box)):
            self.box[word] = MARK | self.value(call, word)

    def result(self) -> list[int]:
        return [int(self.memory[place]) for place in self._places]

    def expected(self, call: int) -> list[int]:
        return [self.value(call, word) for word in range(len(self.box))]


def known(control: ControlBlock, launched: Launched, values: bytes) -> Again:
    """A call that launches it."""
    address = launched.relaunch.address

    def finish() -> None:
        while not doorbell.take(address):
            pass

    return Again(PROGRAM, control.values, values, ScalarPacking(), address, finish, pytest.fail)


class Served(threading.Thread):
    """A rank of one, which hands its waits over to compiled code.

    Attributes:
        python: the commands that came back to Python, and how many rounds had been served before
            each.
    """

    def __init__(self, control: ControlBlock, launched: Launched, values: bytes) -> None:
        super().__init__(daemon=True)
        self.table = Table()
        self.table.add(known(control, launched, values))
        self.python: list[tuple[int, int]] = []
        self._control = control

    def run(self) -> None:
        base, sequence, number = self._control.base, 0, doorbell.NO_COMMAND
        while True:
            while number == doorbell.NO_COMMAND:
                number = doorbell.await_command(base, sequence, 1000, 100_000)
            sequence += 1
            self.python.append((number, self.table.words[doorbell.SERVED]))
            if number == doorbell.UNDER_WAY:
                self.table.late.finish()
            if number == STOP:
                doorbell.arrive(base, 1, 0, sequence, 0, 0, 0)
                return
            number = doorbell.serve(base, 1, 0, sequence, 1000, 100_000, self.table.address)
            sequence += self.table.words[doorbell.SERVED]


class Coordinator:
    """The other side."""

    def __init__(self, control: ControlBlock) -> None:
        self._control, self._sequence = control, 0

    def call(self, number: int, values: bytes = b"") -> None:
        self._control.values.data[: len(values)] = values
        self._sequence += 1
        code = doorbell.call(self._control.base, 1, self._sequence, number, 1000, 1_000_000)
        while code == doorbell.NOT_YET:
            code = doorbell.await_all(self._control.base, 1, 1000, 1_000_000)
        assert code == doorbell.ALL_DONE


@pytest.fixture
def started():
    """Starts a rank and its coordinator; the rank is stopped at the end."""
    made = []

    def start(launched, values=b""):
        control = ControlBlock(1, ROOMY)
        rank, coordinator = Served(control, launched, values), Coordinator(control)
        made.append((control, rank, coordinator))
        rank.start()
        return rank, coordinator

    yield start
    for control, rank, coordinator in made:
        if rank.is_alive():
            coordinator.call(STOP)
            rank.join()
        control.close()


def stop(rank, coordinator):
    """Ends the rank; what came back to Python before."""
    coordinator.call(STOP)
    rank.join()
    return [one for one in rank.python if one[0] != STOP]


# A rank that had to wait for long, on a busy machine, is in Python for the next round: the tests
# allow for it.


@pytest.mark.parametrize("words", [1, 2, 5, 128])
def test_results_of_every_round_are_where_they_belong(started, words):
    launched = Launched(words)
    rank, coordinator = started(launched)
    coordinator.call(PROGRAM)
    for _ in range(100):
        coordinator.call(PROGRAM)
        assert launched.result() == launched.expected(len(launched.calls))
    assert len(launched.calls) > 20
    assert set(launched.calls) == {(EXECUTABLE, STREAM)}
    assert {number for number, _ in stop(rank, coordinator)} == {PROGRAM}


def test_another_program_goes_back_to_python(started):
    launched = Launched()
    rank, coordinator = started(launched)
    for _ in range(51):
        coordinator.call(PROGRAM)
    launches = len(launched.calls)
    coordinator.call(OTHER)
    assert len(launched.calls) == launches > 5
    coordinator.call(PROGRAM)  # which the rank knows still
    assert OTHER in {number for number, _ in stop(rank, coordinator)}


@pytest.mark.parametrize("at", [0, 7, 99])
def test_other_values_go_back_to_python(started, at):
    usual = bytes(range(100))
    other = usual[:at] + b"\xff" + usual[at + 1 :]
    launched = Launched()
    rank, coordinator = started(launched, usual)
    for _ in range(20):
        coordinator.call(PROGRAM, usual)
    launches = len(launched.calls)
    coordinator.call(PROGRAM, other)
    assert len(launched.calls) == launches > 3
    coordinator.call(PROGRAM, other)
    assert len(launched.calls) == launches
    stop(rank, coordinator)


def test_python_is_asked_now_and_then(started):
    launched = Launched()
    rank, coordinator = started(launched)
    coordinator.call(PROGRAM)
    end = time.monotonic() + 10 * doorbell.SERVE_MS / 1e3
    while time.monotonic() < end:
        coordinator.call(PROGRAM)
    served = [count for _, count in stop(rank, coordinator)]
    assert len(served) > 5
    assert max(served) > 2  # many more where the two have a core each


def test_handlers_of_signals_do_not_wait_for_long():
    """In a loop that calls now and then, all of which is served: the launch is not Python's, and
    lets no other thread in.
    """
    control = ControlBlock(1, ROOMY)
    box = np.zeros(2, np.int64)
    relaunch = Relaunch(
        mail_at_once.address, box.ctypes.data, 0, box.ctypes.data, [box.ctypes.data + 8]
    )
    table = Table()
    table.add(
        Again(
            PROGRAM,
            control.values,
            b"",
            ScalarPacking(),
            relaunch.address,
            pytest.fail,
            pytest.fail,
        )
    )
    pid = os.fork()
    if pid == 0:
        coordinator = Coordinator(control)
        for _ in range(60):
            coordinator.call(PROGRAM)
            time.sleep(0.01)
        coordinator.call(STOP)
        os._exit(0)
    handled: list[int] = []
    usual = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    served, sequence, number = 0, 0, doorbell.NO_COMMAND
    try:
        while number != STOP:
            while number == doorbell.NO_COMMAND:
                number = doorbell.await_command(control.base, sequence, 1000, 100_000)
            sequence += 1
            if number == PROGRAM:
                number = doorbell.serve(control.base, 1, 0, sequence, 1000, 100_000, table.address)
                sequence += table.words[doorbell.SERVED]
                served += table.words[doorbell.SERVED]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        doorbell.arrive(control.base, 1, 0, sequence, 0, 0, 0)
        assert os.waitpid(pid, 0)[1] == 0
        control.close()
    assert served > 20
    assert len(handled) > 4


def test_a_launch_that_fails_is_left_to_python(started):
    launched = Launched()
    rank, coordinator = started(launched)
    launched.error = 700
    for _ in range(20):
        coordinator.call(PROGRAM)
    python = stop(rank, coordinator)
    assert python == [(PROGRAM, 0)] * 20
    assert len(launched.calls) > 3


@pytest.mark.parametrize("words", [2, 5])
def test_mail_that_comes_late_and_in_parts(started, words):
    """What was taken in an earlier round is not taken for that of this one."""
    launched = Launched(words)
    rank, coordinator = started(launched)
    for _ in range(20):
        coordinator.call(PROGRAM)

    def mail_in_parts(call: int) -> None:
        launched.box[1] = MARK | launched.value(call, 1)
        threading.Timer(0.1, launched.mail_all, [call]).start()

    launched.mail = mail_in_parts
    for _ in range(8):
        coordinator.call(PROGRAM)
        assert launched.result() == launched.expected(len(launched.calls))
    launched.mail = launched.mail_all
    for _ in range(3):
        coordinator.call(PROGRAM)
        assert launched.result() == launched.expected(len(launched.calls))
    assert doorbell.UNDER_WAY in {number for number, _ in stop(rank, coordinator)}


def test_zero_is_a_result():
    """A word of the mailbox is empty, or holds a result, whatever that is."""
    launched = Launched(2)
    launched.memory[:] = 99
    address = launched.relaunch.address
    assert doorbell.launch(address) == 0
    launched.box[:] = 0
    assert doorbell.take(address) == 0
    launched.box[0] = MARK
    assert doorbell.take(address) == 0
    launched.box[1] = MARK | 0xFFFFFFFF
    assert doorbell.take(address) == 1
    assert launched.result() == [0, 0xFFFFFFFF]
    assert sorted(launched.memory.tolist()) == [0, 99, 99, 99, 99, 0xFFFFFFFF]


class Values:
    """Where a round's values are; they are kept up to date as one call's."""

    def __init__(self) -> None:
        self.array = np.zeros(64, np.uint8)

    def put(self, packed: bytes) -> None:
        self.array[: len(packed)] = list(packed)


def call_of(
    values: Values, packed: bytes, number: int = PROGRAM, scalars: int = 0
) -> tuple[Launched, Again]:
    """A call that writes down that it was launched."""
    launched = Launched()
    packing = ScalarPacking(nbytes=scalars)
    return launched, Again(
        number, values.array, packed, packing, launched.relaunch.address, pytest.fail, pytest.fail
    )


def test_a_table_finds_a_call_by_its_number_and_its_rows():
    values, table = Values(), Table()
    keys = [
        (number, rows)
        for number in (PROGRAM, OTHER)
        for rows in (b"abcdefgh", b"abcdefgi", b"Abcdefgh")
    ] + [(STOP, b"")]
    calls = [(key, *call_of(values, key[1], key[0])) for key in keys]
    for _, _, again in calls:
        table.add(again)
        table.add(again)  # changes nothing
    assert len(table.known) == len(calls)
    for (number, rows), launched, _ in calls:
        values.put(rows)
        assert doorbell.repeat(table.address, number) == 1
        assert len(launched.calls) == 1
    assert sum(len(launched.calls) for _, launched, _ in calls) == len(calls)
    values.put(b"zbcdefgh")
    assert doorbell.repeat(table.address, PROGRAM) == 0


@pytest.mark.parametrize(
    "number", [doorbell.NO_COMMAND, doorbell.MUST_POST, doorbell.UNDER_WAY, -1]
)
def test_what_is_no_program_is_found_nowhere(number):
    """Also where a call is known no more for the moment."""
    values, table = Values(), Table()
    launched, again = call_of(values, b"")
    table.add(again)
    again.forget()
    assert doorbell.repeat(table.address, number) == 0
    assert doorbell.repeat(table.address, PROGRAM) == 0
    assert not launched.calls
    again.know(b"", None)
    assert doorbell.repeat(table.address, PROGRAM) == 1


def test_a_table_that_is_full_knows_some_of_the_calls():
    """Where they come in turns, those that come again soonest must not always be those that have
    just made room.
    """
    values, table = Values(), Table()
    calls = [call_of(values, bytes([k])) for k in range(MOST_KNOWN + 16)]
    found = 0
    for _ in range(10):
        for k, (launched, again) in enumerate(calls):
            values.put(bytes([k]))
            before = len(launched.calls)
            is_known = again.table is table
            assert doorbell.repeat(table.address, PROGRAM) == is_known == (again in table.known)
            assert len(launched.calls) == before + is_known
            found += is_known
            table.add(again)
            assert again.table is table
            assert doorbell.repeat(table.address, PROGRAM) == 1
            assert len(table.known) <= MOST_KNOWN
    assert found > 300
    for k, (_, again) in enumerate(calls):
        again.close()
        values.put(bytes([k]))
        assert doorbell.repeat(table.address, PROGRAM) == 0
    assert not table.known


def test_a_call_that_is_closed_is_in_no_table():
    values, table = Values(), Table()
    calls = [call_of(values, bytes([k])) for k in range(3)]
    for _, again in calls:
        table.add(again)
    calls[1][1].close()
    calls[1][1].close()
    assert len(table.known) == 2
    for k in range(3):
        values.put(bytes([k]))
        assert doorbell.repeat(table.address, PROGRAM) == (k != 1)
    call_of(values, b"")[1].close()  # which was in none


def test_other_scalars_are_left_to_python_where_it_is_not_known_how_to_rewrite_them():
    values, table = Values(), Table()
    launched, again = call_of(values, b"sssssssrow", scalars=7)
    table.add(again)
    values.put(b"sssssssrow")
    assert doorbell.repeat(table.address, PROGRAM) == 1
    values.put(b"ssssssSrow")
    assert doorbell.repeat(table.address, PROGRAM) == 0
    again.know(b"ssssssSrow", None)
    assert doorbell.repeat(table.address, PROGRAM) == 1
    values.put(b"ssssssSroW")
    assert doorbell.repeat(table.address, PROGRAM) == 0
    table.catch_up()
    assert len(launched.calls) == 2
