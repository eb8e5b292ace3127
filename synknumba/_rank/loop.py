"""The main loop of a rank, from the fork to its end.

    wait for the doorbell → number of a program: run its routine
                          → MESSAGE: receive a command from the socket and execute it
                          → a call recorded on the device: compiled code repeats it
                          (`_wire/relaunch.py`)
    arrive (flagged, if there is news or a warning) → send the news → wait again

A Python exception, of the user's code or of this package, is sent as news, and the loop continues.
A rank ends on the command `Stop`, or when the coordinator has died: the kernel then kills it at
once, whatever it executes, by the parent-death signal or by SIGIO from the lifeline.
"""

import errno
import os
import pickle
import traceback
from contextlib import suppress
from dataclasses import replace
from mmap import mmap
from typing import NoReturn, assert_never

from synknumba._comm import DRIVERS, Communicator
from synknumba._device import Device, open_device
from synknumba._errors import GENERATED, SANDBOX, WorldError
from synknumba._host.inherited import flush
from synknumba._host.segment import Segment
from synknumba._host.this_process import end_child
from synknumba._rank import spans
from synknumba._rank.collective_routine import CollectiveRoutine, StagedRoutine, TransferRoutine
from synknumba._rank.combination_routine import CombinationRoutine, JoinRoutine
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._rank.kernel_routine import KernelRoutine
from synknumba._rank.loaded_functions import LoadedFunctions
from synknumba._rank.routine import Place, Repeated
from synknumba._rank.sequence_routine import SequenceRoutine
from synknumba._rank.startup import RankConfig, settle
from synknumba._rank.variable_memory import Holding
from synknumba._types import Transport
from synknumba._wire import channel, messages
from synknumba._wire import doorbell as doorbell_module
from synknumba._wire.control import MESSAGE
from synknumba._wire.program import (
    Collective,
    Combination,
    FunctionSpec,
    Joined,
    Program,
    Staged,
    Transfer,
)
from synknumba._wire.rank_warnings import Collector
from synknumba._wire.relaunch import Again, Table
from synknumba._wire.sequence import SequenceProgram
from synknumba.simt.internals import with_frame_space

# memory that a rank gives up to report that it has no more: Python takes it by the MiB
RESERVE_BYTES = 4 << 20

_FILES = (
    " The limit of open files is reached: raise it by `ulimit -n`, close files before "
    "fork(), or fork fewer ranks."
)
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class EndOfRank(Exception):  # noqa: N818  # nothing is wrong
    """Raised by the command `Stop`, and when the coordinator's process has ended."""


class Rank:
    """A rank: its loop, and its state between rounds."""

    def __init__(self, config: RankConfig, device: Device, collector: Collector) -> None:
        self.config = config
        self._collector = collector
        self.segments: dict[int, Segment] = {}  # mapped, by id
        self.functions = LoadedFunctions(device)
        # programs, collectives, combinations and transfers, by number
        self.routines: dict[int, Repeated] = {}
        self.holdings: dict[int, Holding] = {}  # memory of variables, by number
        self.place = Place(
            config.rank,
            config.line,
            config.control.world_size,
            config.control,
            device,
            self.segments,
            self.holdings,
        )
        self._table = Table()
        self._transports: dict[Transport, Communicator] = {}
        self._reserve = _reserve()
        self._sequence = 0  # number of the last round that was served
        device.when_moved = self._forget_buffers
        device.others_failed = lambda: config.control.has_failed(self._sequence)

    # ---- the loop

    def run(self) -> None:
        """Serves rounds until the command `Stop`, or until the coordinator has died."""
        command = self._await_command()
        while command is not None:
            # rounds are consecutive, so the doorbell can only have been rung for this one
            self._sequence += 1
            if self._reserve is None:  # until there is memory for it
                self._reserve = _reserve()
            try:
                news, descriptors, again = self._execute(command)
            except EndOfRank:
                return
            except BaseException as error:  # noqa: BLE001  # also SystemExit: a function must not end its rank silently
                news, descriptors, again = self._failure(command, error), [], None
            if news is None and not self._collector.waiting:
                command = self._arrive(again)
            else:
                command = self._report(news, descriptors)

    def _execute(self, command: int) -> tuple[messages.News | None, list[int], Again | None]:
        """Executes a command; returns news for the coordinator, with their descriptors, and the
        call if compiled code can repeat it.
        """
        if command == doorbell_module.UNDER_WAY:
            late = self._table.late
            late.finish()
            return None, [], late
        if command == MESSAGE:
            return self._obey(), [], None
        routine = self.routines[command]
        if spans.active is None:
            news = routine()
        else:
            news = spans.active.run_round(routine, self.functions.name_of(routine))
        again = routine.again
        if news is None:
            return None, [], again
        return news, routine.descriptors(news), again

    def _arrive(self, again: Again | None) -> int | None:
        """Arrives without news, and waits for the next command; compiled code meanwhile repeats
        calls.
        """
        control, table, sequence = self.config.control, self._table, self._sequence
        base, lines, line = control.base, control.lines, self.config.line
        pauses, yields = control.patience.pauses, control.patience.rank
        if again is not None:
            table.add(again)
        if table.known:
            command: int = doorbell_module.serve(
                base, lines, line, sequence, pauses, yields, table.address
            )
            self._sequence += table.words[doorbell_module.SERVED]
            if table.words[doorbell_module.REWRITTEN]:
                table.catch_up()  # before Python runs one of the calls
        else:
            command = doorbell_module.arrive(base, lines, line, sequence, 0, pauses, yields)
        if command == doorbell_module.MUST_POST:
            control.done.post()
        elif command != doorbell_module.NO_COMMAND:
            return command
        return self._await_command()

    def _report(self, news: messages.News | None, descriptors: list[int]) -> int | None:
        """Arrives flagged, sends news and warnings, and waits for the next command."""
        control, ends = self.config.control, self.config.ends
        payload, descriptors = self._pack(news, descriptors)
        command = doorbell_module.arrive(
            control.base, control.lines, self.config.line, self._sequence, 1, 0, 0
        )
        if command == doorbell_module.MUST_POST:
            control.done.post()
        channel.send(ends.socket, payload, descriptors, self.watch)
        return self._await_command()

    def _failure(self, command: int, error: BaseException) -> messages.Failed:
        """Returns the error of a round as news, once nothing is under way on the device."""
        self._make_room(error)
        end_child(error)
        control, device = self.config.control, self.place.device
        control.note_failure(self._sequence)
        # Wait for copies in progress: they must not write to memory that the script uses next.
        lost = not device.recover()
        if lost:
            control.note_loss(self._sequence, self.config.line)
        routine = self.routines.get(command)
        if isinstance(routine, SequenceRoutine) and routine.running is not None:
            routine = self.routines.get(routine.running.number)
        explained = self.functions.explained(routine, error)
        if lost:
            return replace(describe_failure(explained), lost=True)
        return describe_failure(explained, device.explain(error))

    def _await_command(self) -> int | None:
        """Waits for the next round. Returns its command, or None if the coordinator has died."""
        control, config, sequence = self.config.control, self.config, self._sequence
        pauses, yields = control.patience.pauses, control.patience.rank
        if not sequence:  # spinning before the first call would delay the start of the others
            pauses, yields = 1, 0
        while True:
            command: int = doorbell_module.await_command(control.base, sequence, pauses, yields)
            if command != doorbell_module.NO_COMMAND:
                if spans.active is not None:
                    doorbell_module.see(control.base, config.line)
                return command
            if not control.sleep_line(
                config.line, sequence, lambda: os.getppid() == config.coordinator
            ):
                return None

    def _pack(self, news: messages.News | None, descriptors: list[int]) -> tuple[bytes, list[int]]:
        """Pickles news and warnings, with their descriptors; if the news does not pickle, sends
        that error instead.
        """
        rank, warned = self.config.rank, self._collector.hand_over()
        try:
            parcel = None if news is None else messages.Parcel.of(news)
            return channel.pack(messages.Answer(rank, parcel, warned)), descriptors
        except BaseException as error:  # noqa: BLE001  # a user's class may raise anything when it is pickled, also SystemExit
            self._make_room(error)
            parcel = messages.Parcel.of(describe_failure(error))
            return channel.pack(messages.Answer(rank, parcel, warned)), []

    def _make_room(self, error: BaseException) -> None:
        """Frees the reserve after a `MemoryError`, to describe and send it."""
        # CPython 3.11 raises this one where it has no memory for a frame
        if isinstance(error, MemoryError | SystemError):
            self._reserve = None

    def watch(self) -> None:
        """Raises `EndOfRank` if the coordinator has died."""
        if os.getppid() != self.config.coordinator:
            raise EndOfRank

    # ---- commands

    def _obey(self) -> messages.News | None:
        """Receives a command from the socket and executes it; returns news for the coordinator,
        if any.
        """
        try:
            command, descriptors = channel.receive(self.config.ends.socket, self.watch)
        except EOFError:
            raise EndOfRank from None
        assert isinstance(command, messages.Command)  # the coordinator sends nothing else
        match command:
            case messages.Attach(segments):
                self._attach(segments, descriptors)
            case messages.Install(function, program):
                self._install(function, program)
            case messages.Hold():
                self._hold(command)
            case messages.Invite(transport):
                return self._invite(transport)
            case messages.Join(transport, unique_id):
                self._open(transport, unique_id)
            case messages.Drop():
                self._drop(command)
            case messages.Trace(records):
                return self._trace(records)
            case messages.Measure():
                return messages.Measured(*self.place.device.memory_use())
            case messages.Rate(seconds):
                return messages.Rated(self.place.device.rate(seconds))
            case messages.Stop():
                raise EndOfRank
            case _:
                assert_never(command)
        return None

    def _attach(self, segments: tuple[tuple[int, int], ...], descriptors: list[int]) -> None:
        pending, device = list(descriptors), self.place.device
        try:
            for segment_id, size in segments:
                old = self.segments.pop(segment_id, None)
                if old is not None:
                    device.detach(old)
                    self._forget_buffers(segment_id)
                segment = self.segments[segment_id] = Segment.attach(
                    segment_id, pending.pop(0), size
                )
                device.attach(segment)
        finally:
            channel.close_all(pending)

    def _forget_buffers(self, segment_id: int) -> None:
        for routine in self.routines.values():
            if segment_id in routine.segments or segment_id in routine.written:
                routine.forget_buffers()

    def _install(self, spec: FunctionSpec | None, program: messages.AnyProgram | None) -> None:
        if spec is not None:
            self.functions.load(spec)
        if program is not None:
            self.routines[program.number] = self._routine(program)

    def _routine(self, program: messages.AnyProgram) -> Repeated:
        place = self.place
        match program:
            case Program():
                loaded = self.functions.by_id[program.function]
                if loaded.kernel is None:
                    return FunctionRoutine(program, place, loaded.function)
                assert loaded.launch is not None  # every kernel is sent with a launch configuration
                return KernelRoutine(program, place, loaded.kernel, loaded.launch)
            case Collective():
                return CollectiveRoutine(program, place, self._transport(program.transport))
            case Staged():
                return StagedRoutine(program, place)
            case Joined():
                return JoinRoutine(program, place)
            case Combination():
                source = self.routines[program.program]
                # installed earlier, and a combination follows only a kernel
                assert isinstance(source, KernelRoutine)
                if program.transport is None:
                    return CombinationRoutine(program, place, source, None)
                return CombinationRoutine(
                    program, place, source, self._transport(program.transport)
                )
            case Transfer():
                return TransferRoutine(program, place)
            case SequenceProgram():
                return SequenceRoutine(program, place, self.routines)

    # ---- variables and transports

    def _hold(self, command: messages.Hold) -> None:
        rank, device, shared = self.config.rank, self.place.device, None
        if command.hosts:
            place = command.hosts[rank]
            self.segments[place.segment].populate(place.offset, place.shape[0])
            shared = self.place.host(place)
        new = self.holdings[command.number] = Holding(command.layout, rank, shared, device)
        old = self.holdings.get(command.carry)
        if old is not None:
            for step in new.carry_over(old):
                step()
            device.synchronize()

    def _transport(self, name: Transport) -> Communicator:
        needs_no_other = DRIVERS[name].in_shared_memory or self.place.world_size == 1
        if name not in self._transports and needs_no_other:
            self._open(name, b"")
        return self._transports[name]

    def _invite(self, name: Transport) -> messages.Invitation:
        driver = DRIVERS[name]
        problem = driver.problem()
        unique_id = b""
        if problem is None and self.config.rank == 0:
            unique_id = driver.make_unique_id()
        return messages.Invitation(unique_id, problem)

    def _open(self, name: Transport, unique_id: bytes) -> None:
        place = self.place
        self._transports[name] = DRIVERS[name].open(
            place.rank, place.world_size, unique_id, place.device.stream
        )

    def _trace(self, records: int) -> messages.Traced | None:
        """Begins to record what the rank does, or ends that."""
        traced = spans.stop()
        if records:
            place = self.place
            spans.start(spans.Spans(place.control, place.line, place.device, records))
        for routine in self.routines.values():
            if isinstance(routine, SequenceRoutine):  # their tables have notes, or none
                routine.forget_buffers()
        return None if traced is None else replace(traced, pid=os.getpid())

    # ---- the end

    def _drop(self, drop: messages.Drop) -> None:
        if spans.active is not None:
            spans.active.forget_steps()
        # A program that uses dropped memory is never run again; it would keep the mapping and its
        # own buffers alive.
        orphans = [number for number, routine in self.routines.items() if _uses(routine, drop)]
        for number in (*drop.programs, *orphans):
            routine = self.routines.pop(number, None)
            if routine is not None:
                routine.close()
        self.functions.drop(drop.functions)
        for number in drop.variables:
            self.holdings.pop(number, None)
        for segment_id in drop.segments:
            segment = self.segments.pop(segment_id, None)
            if segment is not None:
                self._forget_buffers(segment_id)
                self.place.device.detach(segment)
                segment.close()

    def close(self) -> None:
        """Frees all resources of the rank."""
        self._drop(
            messages.Drop(
                tuple(self.segments),
                tuple(self.routines),
                tuple(self.functions.by_id),
                tuple(self.holdings),
            )
        )
        for transport in self._transports.values():
            transport.close()
        self.place.device.close()


def _uses(routine: Repeated, drop: messages.Drop) -> bool:
    """Returns whether a routine uses any of the memory and functions that are dropped."""
    if routine.function in drop.functions:
        return True
    has_memory = not routine.segments.isdisjoint(drop.segments)
    return has_memory or not routine.variables.isdisjoint(drop.variables)


def _reserve() -> mmap | None:
    """Returns memory without contents, or None if there is none."""
    with suppress(OSError):
        return mmap(-1, RESERVE_BYTES)
    return None


def describe_failure(error: BaseException, more: str = "") -> messages.Failed:
    """Returns an exception as news, with text `more` from the device; the traceback starts at
    the user's code.
    """
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename.startswith((_PACKAGE, GENERATED)):
        start = start.tb_next
    text = "".join(traceback.format_exception(type(error), error, start or error.__traceback__))
    cause = None
    with suppress(BaseException):  # also SystemExit, which would end the rank
        packed = channel.pack(error)
        pickle.loads(packed)  # noqa: S301  # some exceptions pickle but do not unpickle
        cause = packed
    try:
        message = str(error)
    except BaseException as unprintable:  # noqa: BLE001  # the class is the user's
        message = f"(its __str__ raised {type(unprintable).__name__})"
    return messages.Failed(type(error).__qualname__, f"{message} {more}".rstrip(), text, cause)


def rank_main(config: RankConfig) -> NoReturn:
    """Runs a rank in the child, right after the fork, to the end of its process."""
    code = 1
    try:
        if _settled(config):
            code = _live(config)
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001  # no exception may propagate into the copy of the script
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _settled(config: RankConfig) -> bool:
    """Settles the rank; if that fails, sends an error that names the refused call."""
    try:
        settle(config)
    except Exception as error:  # noqa: BLE001  # any error is sent to the coordinator
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = WorldError(
            f"rank {config.rank} could not start, since {where.line or where.name} failed: "
            f"{type(error).__name__}: {error}.{_way_out(error)}"
        )
        _answer(config, describe_failure(failure))
        return False
    return True


def _answer(
    config: RankConfig, failed: messages.Failed | None, warned: tuple[messages.Warned, ...] = ()
) -> None:
    """Tells the coordinator that the rank is ready, or has failed to start."""
    parcel = None if failed is None else messages.Parcel.of(failed)
    answer = messages.Answer(config.rank, parcel, warned)
    channel.send(config.ends.socket, channel.pack(answer), [], lambda: None)


def _way_out(error: Exception) -> str:
    code = getattr(error, "errno", None)
    if code in {errno.EMFILE, errno.ENFILE}:
        return _FILES
    if isinstance(error, PermissionError) or code == errno.ENOSYS:
        return f" {SANDBOX}"
    return ""


@with_frame_space
def _live(config: RankConfig) -> int:
    collector = Collector()
    try:
        chosen = config.device
        device = open_device(chosen.kind, chosen.index, chosen.compiler)
    except BaseException as error:  # noqa: BLE001  # any error is sent to the coordinator
        _answer(config, describe_failure(error), collector.hand_over())
        return 1
    _answer(config, None, collector.hand_over())
    device.attach(config.control.segment)
    rank = Rank(config, device, collector)
    try:
        if config.profile:
            _profiled(rank)
        else:
            rank.run()
    finally:
        rank.close()
        collector.print_rest()
    return 0


def _profiled(rank: Rank) -> None:
    import cProfile  # rarely needed

    profile = cProfile.Profile()
    try:
        profile.runcall(rank.run)
    finally:
        profile.dump_stats(f"synknumba-rank{rank.config.rank}.prof")
