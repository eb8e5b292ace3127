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
from synknumba._machines.messages import (
    Answers,
    Ask,
    End,
    Forward,
    Quit,
    Ready,
    Report,
    SharedBlock,
    WorldSpec,
)
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


class _Needs(NamedTuple):
    """What a program cannot run without."""

    segments: frozenset[int]
    variables: frozenset[int]
    function: int

    def meet(self, drop: Drop) -> bool:
        """Returns whether some of it is dropped."""
        return (
            self.function in drop.functions
            or not self.segments.isdisjoint(drop.segments)
            or not self.variables.isdisjoint(drop.variables)
        )


@final
class _Programs:
    """Programs whose routes relays keep, and functions that they call."""

    def __init__(self) -> None:
        self._styles: dict[int, str] = {}  # of functions
        self._needs: dict[int, _Needs] = {}  # by number of the program

    def __len__(self) -> int:
        return len(self._needs)

    def forward(self, command: Command, payload: bytes) -> Forward:
        """Returns a command, also pickled, with what relays must know of it."""
        match command:
            case Attach(segments):
                return Forward(payload, attached=segments)
            case Drop():
                return Forward(
                    payload,
                    dropped_segments=command.segments,
                    dropped_programs=self._dropped(command),
                )
            case Install(function, program):
                if function is not None:
                    self._styles[function.id] = function.style
                return Forward(payload, self._route(program))
            case Stop():
                return Forward(payload, is_stop=True)
        return Forward(payload)

    def _route(self, program: Any) -> Route | None:
        """Returns the route of a program that is new; None of what runs in a round of others."""
        function = -1
        match program:
            case Program():
                function = program.function
                route = Route.of(program, is_kernel=self._styles[function] == "kernel")
            case Transfer():
                route = Route.of(program, is_kernel=True)
            case None:
                return None
            case _:  # a collective between GPUs
                route = Route(program.number)
        if isinstance(program, Program | Transfer | Collective):
            needs = _Needs(program.segments(), program.variables(), function)
            self._needs[program.number] = needs
        return route

    def _dropped(self, drop: Drop) -> tuple[int, ...]:
        """Returns the programs that ranks drop: the named ones, and those that miss something."""
        numbers = {*drop.programs}
        numbers.update(number for number, needs in self._needs.items() if needs.meet(drop))
        for number in numbers:
            self._needs.pop(number, None)
        return tuple(numbers)


@final
class _RelayProcess:
    """The relay of the script's machine, as its process reaches it.

    Args:
        link: socket of the relay.
        pid: its process id.
        host: name of the machine.

    Attributes:
        name: the process in words.
    """

    def __init__(self, link: Link, pid: int, host: str) -> None:
        self.link = link
        self.name = (
            f"the relay of machine 0 (pid {pid} on {host}), which serves the other machines,"
        )
        self._pid = pid
        # of questions: an answer may come after its question was given up
        self._serials = itertools.count(1)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return not lives(self._pid)

    def kill(self) -> None:
        """Ends the process at once."""
        if not self.is_dead:
            os.kill(self._pid, signal.SIGKILL)

    def limit(self) -> Callable[[], None]:
        """Returns a check that raises `TimeoutError` in END_SECONDS, or when the relay has
        ended.
        """
        deadline = time.monotonic() + END_SECONDS

        def watch() -> None:
            if time.monotonic() > deadline or self.is_dead:
                raise TimeoutError

        return watch

    def send(self, message: object, descriptors: Sequence[int], watch: Callable[[], None]) -> None:
        """Sends a message."""
        try:
            self.link.send(message, descriptors, watch)
        except (EOFError, ConnectionError) as error:
            raise self.ended() from error

    def receive(
        self, kind: type, watch: Callable[[], None], serial: int = 0
    ) -> tuple[Any, list[int]]:
        """Receives the next message of a kind; of answers, those to the question with a serial
        number.
        """

        def is_wanted(message: Any) -> bool:
            return isinstance(message, kind) and getattr(message, "serial", 0) == serial

        try:
            return self.link.receive(is_wanted, watch)
        except (EOFError, ConnectionError) as error:
            raise self.ended() from error

    def ask(self, what: str, wake: Callable[[], None]) -> dict[int, Any]:
        """Asks the machines something, and returns what each has answered; calls `wake` once the
        question is on its way.
        """
        watch, serial = self.limit(), next(self._serials)
        try:
            self.send(Ask(what, serial), (), watch)
            wake()
            answers, _ = self.receive(Answers, watch, serial)
        except (OSError, WorldError):
            return {}
        content: dict[int, Any] = answers.of
        return content

    def ended(self) -> WorldError:
        """Returns the error for a relay that has ended."""
        return WorldError(f"{self.name} has ended; see what it has printed. Start the job again")


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
        self._relay = _RelayProcess(Link(sock), pid, ready.hosts[0])
        # that launchers have given to all machines, or to each its own
        self._environment = dict(os.environ)
        self._firsts: tuple[int, ...] = ()  # rank of each machine, and the number of ranks
        self._control: ControlBlock | None = None  # of the world that is open
        self._programs = _Programs()
        self._is_stopping = False
        self._owner = os.getpid()
        self.exit_code = 0  # of the script

    @property
    def is_mine(self) -> bool:
        """Whether this is the script's process, and not a child of it."""
        return os.getpid() == self._owner

    @property
    def line(self) -> int:
        """Line of the control block with which the ranks of other machines answer rounds."""
        return self._firsts[1]

    @property
    def relay(self) -> str:
        """The process through which other machines are reached, in words."""
        return self._relay.name

    @property
    def is_dead(self) -> bool:
        """Whether the relay has ended."""
        return self._relay.is_dead

    # ---- a world

    def whereabouts(self, ranks: Iterable[int]) -> str:
        """Tells on which machines ranks are, as `machine 1 (node07): rank 2, 3`."""
        by_machine: dict[int, list[str]] = {}
        for rank in ranks:
            machine = bisect.bisect(self._firsts, rank) - 1
            by_machine.setdefault(machine, []).append(str(rank))
        places = sorted(by_machine.items())
        return "; ".join(f"{self._name(machine)}: rank {', '.join(on)}" for machine, on in places)

    def _name(self, machine: int) -> str:
        return f"machine {machine} ({self.hosts[machine]})"

    def devices(self) -> list[MachineDevices]:
        """Returns what each machine has, this one first.

        Raises:
            WorldError: a machine does not answer.
        """
        self._relay.link.drop_messages()  # of a world that has ended
        answers = self._relay.ask("devices", self._wake)
        if self.is_dead:
            raise self._relay.ended()
        machines = range(1, len(self.hosts))
        silent = [self._name(machine) for machine in machines if machine not in answers]
        if silent:
            names = ", ".join(silent)
            raise WorldError(f"{names} did not answer; see what the launcher says of it")
        first = MachineDevices.of(usable_cores(), DeviceReport(0))
        return [first, *(answers[machine] for machine in machines)]

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
        self._firsts, self._programs = firsts, _Programs()
        self._relay.link.drop_messages()  # of a world that has ended
        spec = WorldSpec(
            firsts=firsts,
            device=device,
            devices=devices,
            compiler=compiler,
            profile=profile,
            prefix_output=prefix_output,
            directory=_working_directory(),
            path=tuple(
                str.__str__(entry) for entry in sys.path if isinstance(entry, str)
            ),  # imports skip all others
            environment=_changes(self._environment),
            state=ScriptState.now(),
            block=SharedBlock.of(control),
        )
        self._control = control
        self._relay.send(spec, [control.segment.fd], channel.wait_on)

    def await_start(self, watch: Callable[[], None]) -> Sequence[Warned]:
        """Waits until other ranks have started; raises the error of those that could not."""
        report, _ = self._relay.receive(Report, watch)
        if report.lost is not None or report.refused is not None:
            self._control = None
        if report.refused is not None:
            raise report.refused
        if report.lost is not None:
            reason, stderr = report.lost.reason, report.lost.stderr
            raise WorldError(f"{reason} while starting\n{stderr}".rstrip())
        return report.warned

    def send(
        self,
        command: Command,
        payload: bytes,
        descriptors: Sequence[int],
        watch: Callable[[], None],
    ) -> None:
        """Sends a command for the ranks of other machines; part of a round."""
        forward = self._programs.forward(command, payload)
        if not forward.attached:
            descriptors = ()
        self._relay.send(forward, descriptors, watch)
        self._is_stopping = self._is_stopping or forward.is_stop

    def read(
        self, watch: Callable[[], None]
    ) -> tuple[list[tuple[int, Parcel, list[int]]], Sequence[Warned], Lost | None]:
        """Receives the news of a round: of ranks, with descriptors, warnings, and what has died."""
        report, descriptors = self._relay.receive(Report, watch)
        if report.lost is not None:  # news of others come without descriptors
            channel.close_all(descriptors)
            return [], report.warned, report.lost
        remaining, news = iter(descriptors), []
        for rank, parcel in report.news:
            passed = [] if parcel.segment is None else [next(remaining)]
            news.append((rank, parcel, passed))
        return news, report.warned, None

    def where(self) -> dict[int, str]:
        """Returns the stacks of the ranks of other machines."""
        stacks: dict[int, str] = {}
        for answer in self._relay.ask("where", self._wake).values():
            stacks |= answer
        return stacks

    def end(self) -> None:
        """Ends the ranks of other machines, if they have not been ended; waits until they have."""
        if self._control is None or not self.is_mine:
            return
        watch = self._relay.limit()
        try:
            if not self._is_stopping:
                self._relay.send(End(), (), watch)
                self._wake()
            self._control, self._is_stopping = None, False
            self._relay.receive(End, watch)
        except (OSError, WorldError):
            self._relay.kill()

    def close(self) -> None:
        """Ends the job: the script has ended."""
        if not self.is_mine:
            return
        watch = self._relay.limit()
        try:
            self._relay.send(Quit(), (), watch)
            self._relay.receive(Quit, watch)
        except (OSError, WorldError):
            return
        finally:
            self._relay.link.close()
        if self.exit_code:
            time.sleep(EXIT_SECONDS)

    def _wake(self) -> None:
        """Wakes the relay where it sleeps between rounds."""
        if self._control is not None:
            self._control.doorbells[self.line].post()


def _changes(environment: dict[str, str]) -> dict[str, str | None]:
    """Returns the variables that differ in this process; None for those that it lacks."""
    names = {*os.environ, *environment}
    values = {name: os.environ.get(name) for name in names}
    return {name: value for name, value in values.items() if value != environment.get(name)}


def _working_directory() -> str:
    """Returns the working directory of the script; the root if it was deleted, where ranks of
    this machine go, too.
    """
    try:
        return os.getcwd()
    except OSError:
        return "/"
