"""The coordinator's end of its relay: what `Rounds` and `Engine` need of the ranks of other
machines.
"""

import bisect
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

from synknumba._device import DeviceReport, usable_cores
from synknumba._errors import WorldError
from synknumba._host.children import lives
from synknumba._machines.link import Link
from synknumba._machines.messages import Answers, Ask, End, Forward, Quit, Ready, Scene, Told
from synknumba._machines.routes import Route
from synknumba._machines.state import ScriptState
from synknumba._types import CompilerName, DeviceKind
from synknumba._wire import channel
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import Attach, Command, Drop, Install, Parcel, Stop, Warned
from synknumba._wire.program import Collective, Program, Transfer
from synknumba._world.machines import Lost, MachineDevices

END_SECONDS = 10.0  # for the ranks of other machines to end
# launchers kill all processes when one fails, and report that instead of the script's exit code
EXIT_SECONDS = 0.2


class _Needed(NamedTuple):
    """What a program cannot run without."""

    segments: frozenset[int]
    variables: frozenset[int]
    function: int

    def is_touched(self, gone: Drop) -> bool:
        """Returns whether some of it is dropped."""
        kept = self.segments.isdisjoint(gone.segments) and self.variables.isdisjoint(gone.variables)
        return not kept or self.function in gone.functions


@final
class Coordinator:
    """The other machines of a job, in the script's process.

    Args:
        sock: socket of the relay.
        pid: its process id.
        ready: its first message.
        ranks_each: number of ranks of each machine; None for one for each device.
    """

    def __init__(self, sock: socket.socket, pid: int, ready: Ready, ranks_each: int | None) -> None:
        self.hosts, self.ranks_each = ready.hosts, ranks_each
        self._link, self._pid = Link(sock), pid
        # that launchers have given to all machines, or to each its own
        self._environment = dict(os.environ)
        self.line = -1
        self._firsts: tuple[int, ...] = ()  # rank of each machine, and the number of ranks
        self._control: ControlBlock | None = None
        self._styles: dict[int, str] = {}
        self._programs: dict[int, _Needed] = {}  # whose routes relays keep, by number
        self._is_open = self._is_stopping = False
        # of questions: an answer may come after its question was given up
        self._serials = itertools.count(1)
        self._owner = os.getpid()
        self.exit_code = 0  # of the script

    @property
    def is_mine(self) -> bool:
        """Whether this is the script's process, and not a child of it."""
        return os.getpid() == self._owner

    @property
    def relay(self) -> str:
        """The process through which other machines are reached, in words."""
        return (
            f"the relay of machine 0 (pid {self._pid} on {self.hosts[0]}), which "
            f"serves the other machines,"
        )

    @property
    def is_dead(self) -> bool:
        """Whether the relay has ended."""
        return not lives(self._pid)

    # ---- a world

    def whereabouts(self, ranks: Iterable[int]) -> str:
        """Tells on which machines ranks are, as `machine 1 (node07): rank 2, 3`."""
        on: dict[int, list[str]] = {}
        for rank in ranks:
            on.setdefault(bisect.bisect(self._firsts, rank) - 1, []).append(str(rank))
        return "; ".join(
            f"machine {one} ({self.hosts[one]}): rank {', '.join(told)}"
            for one, told in sorted(on.items())
        )

    def devices(self) -> list[MachineDevices]:
        """Returns what each machine has, this one first.

        Raises:
            WorldError: a machine does not answer.
        """
        self._link.drop_messages()  # of a world that has ended
        found = self._ask("devices")
        if self.is_dead:
            raise self._ended()
        silent = [
            f"machine {one} ({self.hosts[one]})"
            for one in range(1, len(self.hosts))
            if one not in found
        ]
        if silent:
            raise WorldError(
                f"{', '.join(silent)} did not answer; see what the launcher says of it"
            )
        return [
            MachineDevices.of(usable_cores(), DeviceReport(0)),
            *(found[one] for one in range(1, len(self.hosts))),
        ]

    def start(
        self,
        control: ControlBlock,
        firsts: tuple[int, ...],
        device: DeviceKind,
        devices: tuple[int, ...],
        *,
        compiler: CompilerName | None,
        profile: bool,
        prefix_output: bool,
    ) -> None:
        """Starts the ranks of a world; see `OtherMachines`."""
        self._control, self._firsts, self.line = control, firsts, firsts[1]
        self._styles.clear()
        self._programs.clear()
        self._link.drop_messages()  # of a world that has ended
        segment, patience = control.segment, control.patience
        changed = {name: os.environ.get(name) for name in {*os.environ, *self._environment}}
        scene = Scene(
            firsts=firsts,
            device=device,
            devices=devices,
            compiler=compiler,
            profile=profile,
            prefix_output=prefix_output,
            directory=_working_directory(),
            # imports skip all others
            path=tuple(str.__str__(entry) for entry in sys.path if isinstance(entry, str)),
            environment={
                name: value
                for name, value in changed.items()
                if value != self._environment.get(name)
            },
            state=ScriptState.now(),
            memory=(segment.id, segment.size),
            patience=(patience.pauses, patience.rank, patience.coordinator),
        )
        self._is_open = True
        self._send(scene, [segment.fd], _no_limit)

    def await_start(self, watch: Callable[[], None]) -> Sequence[Warned]:
        """Waits until the ranks of other machines have started; raises the error of those that
        could not.
        """
        told, _ = self._receive(Told, watch)
        if told.lost is not None or told.refused is not None:
            self._is_open = False
        if told.refused is not None:
            raise told.refused
        if told.lost is not None:
            raise WorldError(f"{told.lost.reason} while starting\n{told.lost.stderr}".rstrip())
        return told.warned

    def send(
        self,
        command: Command,
        payload: bytes,
        descriptors: Sequence[int],
        watch: Callable[[], None],
    ) -> None:
        """Sends a command for the ranks of other machines; part of a round."""
        forward = Forward(payload)
        match command:
            case Attach(segments):
                forward = Forward(payload, attached=segments)
            case Drop():
                forward = Forward(
                    payload,
                    dropped_segments=command.segments,
                    dropped_programs=self._dropped(command),
                )
            case Install(function, program):
                if function is not None:
                    self._styles[function.id] = function.style
                if isinstance(program, Program):
                    is_kernel = self._styles[program.function] == "kernel"
                    forward = Forward(payload, Route.of(program, is_kernel=is_kernel))
                elif isinstance(program, Transfer):
                    forward = Forward(payload, Route.of(program, is_kernel=True))
                elif program is not None:  # a collective between GPUs
                    forward = Forward(payload, Route.nothing(program.number))
                if isinstance(program, Program | Transfer | Collective):
                    called = program.function if isinstance(program, Program) else -1
                    self._programs[program.number] = _Needed(
                        program.segments(), program.variables(), called
                    )
            case Stop():
                forward = Forward(payload, is_stop=True)
        self._send(forward, descriptors if isinstance(command, Attach) else (), watch)
        self._is_stopping = self._is_stopping or forward.is_stop

    def _dropped(self, gone: Drop) -> tuple[int, ...]:
        """Returns the programs that ranks drop: those that are named, and those that need what
        is dropped.
        """
        orphans = [number for number, needed in self._programs.items() if needed.is_touched(gone)]
        numbers = tuple({*gone.programs, *orphans})
        for number in numbers:
            self._programs.pop(number, None)
        return numbers

    def read(
        self, watch: Callable[[], None]
    ) -> tuple[list[tuple[int, Parcel, list[int]]], Sequence[Warned], Lost | None]:
        """Receives the news of a round: of ranks, with descriptors, warnings, and what has died."""
        told, descriptors = self._receive(Told, watch)
        if told.lost is not None:  # news of others come without descriptors
            channel.close_all(descriptors)
            return [], told.warned, told.lost
        left, news = list(descriptors), []
        for rank, item in told.news:
            news.append((rank, item, [left.pop(0)] if item.segment is not None else []))
        return news, told.warned, told.lost

    def where(self) -> dict[int, str]:
        """Returns the stacks of the ranks of other machines."""
        return {rank: text for told in self._ask("where").values() for rank, text in told.items()}

    def end(self) -> None:
        """Ends the ranks of other machines, if they have not been ended; waits until they have."""
        if not self._is_open or not self.is_mine:
            return
        watch = self._limit()
        try:
            if not self._is_stopping:
                self._send(End(), (), watch)
                self._wake()
            self._is_open = self._is_stopping = False
            self._receive(End, watch)
        except (OSError, WorldError):
            self._end_relay()

    def close(self) -> None:
        """Ends the job: the script has ended."""
        if not self.is_mine:
            return
        watch = self._limit()
        try:
            self._send(Quit(), (), watch)
            self._receive(Quit, watch)
        except (OSError, WorldError):
            return
        finally:
            self._link.close()
        if self.exit_code:
            time.sleep(EXIT_SECONDS)

    def _limit(self) -> Callable[[], None]:
        """Returns a check that raises `TimeoutError` in END_SECONDS, or when the relay has
        ended.
        """
        deadline = time.monotonic() + END_SECONDS

        def watch() -> None:
            if time.monotonic() > deadline or self.is_dead:
                raise TimeoutError

        return watch

    def _end_relay(self) -> None:
        if not self.is_dead:
            os.kill(self._pid, signal.SIGKILL)

    def _ask(self, what: str) -> dict[int, Any]:
        watch, serial = self._limit(), next(self._serials)
        try:
            self._send(Ask(what, serial), (), watch)
            self._wake()
            answers, _ = self._receive(Answers, watch, serial)
        except (OSError, WorldError):
            return {}
        found: dict[int, Any] = answers.of
        return found

    def _wake(self) -> None:
        """Wakes the relay where it sleeps between rounds."""
        if self._control is not None and self._is_open:
            self._control.doorbells[self.line].post()

    def _send(self, message: object, descriptors: Sequence[int], watch: Callable[[], None]) -> None:
        try:
            self._link.send(message, descriptors, watch)
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def _receive(
        self, kind: type, watch: Callable[[], None], serial: int = 0
    ) -> tuple[Any, list[int]]:
        """Receives the next message of a kind; of answers, those to the question with a serial
        number.
        """

        def is_wanted(message: Any) -> bool:
            return isinstance(message, kind) and getattr(message, "serial", 0) == serial

        try:
            return self._link.receive(is_wanted, watch)
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def _ended(self) -> WorldError:
        """Returns the error for a relay that has ended."""
        return WorldError(f"{self.relay} has ended; see what it has printed. Start the job again")


def _working_directory() -> str:
    """Returns the working directory of the script; the root if it was deleted, where ranks of
    this machine go, too.
    """
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _no_limit() -> None:
    """Waits on."""
