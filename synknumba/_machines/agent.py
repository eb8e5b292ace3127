"""The agent of a machine other than the coordinator's: forks the ranks of its machine, and looks
after them for its relay.
"""

import contextlib
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

from synknumba._device import probed, usable_cores
from synknumba._errors import SynkError, WorldError
from synknumba._host.signals import held_signals
from synknumba._machines.messages import (
    Answers,
    Ask,
    End,
    Finish,
    Forward,
    Quit,
    Report,
    SharedBlock,
    WorldSpec,
)
from synknumba._machines.relay import Ended, LostError, failure
from synknumba._wire import channel, doorbell
from synknumba._wire.control import CROWDED, ROOMY, ControlBlock
from synknumba._wire.statistics import Tally
from synknumba._world.failure import CallInfo, Death
from synknumba._world.machines import Lost, MachineDevices, cores_each
from synknumba._world.processes import Processes
from synknumba._world.rounds import Rounds
from synknumba._world.watchdog import Watchdog

_ROUND = CallInfo("a call")


class _AgentWatchdog(Watchdog):
    """A watchdog whose errors are told to the coordinator instead of being raised in a script."""

    def end(
        self, reason: str, death: Death, info: CallInfo, last_words: tuple[str, str] | None = None
    ) -> NoReturn:
        self._processes.kill()
        stack, stderr = self._processes.last_words(death.rank)
        self.kill(reason)
        raise LostError(Lost(reason, death, stack, stderr))


@final
class Agent:
    """Serves its relay until the script has ended.

    Args:
        sock: socket of the relay.
        index: number of the machine.
        hosts: names of all machines.
    """

    def __init__(self, sock: socket.socket, index: int, hosts: tuple[str, ...]) -> None:
        self._socket, self._index, self.hosts = sock, index, hosts
        self._host = hosts[index]
        self._world: _World | None = None
        self.environment = dict(os.environ)

    def serve(self) -> None:
        """Carries out what the relay asks for."""
        while True:
            try:
                message, descriptors = channel.receive(self._socket)
            except ConnectionError:
                raise
            except OSError as error:  # commands only come with descriptors
                self.tell(self._failed(error))
                continue
            match message:
                case WorldSpec():
                    self._start(message)
                case Forward() | Finish():
                    self._carry_out(message, descriptors)
                case Ask():
                    self.answer(message)
                case End():
                    self._end()
                    self.tell(End())
                case Quit():
                    self._end()
                    return

    def tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Sends a message to the relay."""
        channel.send(self._socket, channel.pack(message), descriptors)

    def answer(self, ask: Ask) -> None:
        """Answers a question of the coordinator."""
        content: Any = {}
        if ask.what == "devices":
            with probed() as report:
                content = MachineDevices.of(usable_cores(), report)
        elif self._world is not None:
            content = self._world.where()
        self.tell(Answers({0: content}))

    def watch(self) -> None:
        """Reads what the relay sends in the middle of a round: a question, or the order to end
        the world.
        """
        while select.select([self._socket], [], [], 0)[0]:
            message, _ = channel.receive(self._socket)
            if not isinstance(message, Ask):
                raise Ended
            self.answer(message)

    def _start(self, spec: WorldSpec) -> None:
        self._end()
        try:
            world = self._world = _World(self, spec, self._index, self._host)
            warned = world.start()
        except LostError as error:
            self._end()
            self.tell(Report(lost=error.lost))
        except Exception as error:  # noqa: BLE001  # the coordinator raises it
            self._end()
            error.add_note(f"raised on machine {self._index} ({self._host})")
            self.tell(Report(refused=_picklable(error)))
        else:
            report = Report(warned=tuple(warned), block=SharedBlock.of(world.control))
            self.tell(report, [world.control.segment.fd])

    def _carry_out(self, message: Forward | Finish, descriptors: list[int]) -> None:
        world = self._world
        if world is None:
            channel.close_all(descriptors)
            return
        results: list[int] = []  # descriptors of large ones
        try:
            if isinstance(message, Forward):
                report, results = world.command(message, descriptors)
            else:
                report, results = world.finish(message)
        except LostError as error:
            report = Report(lost=error.lost)
        except Ended:
            self._end()
            self.tell(End())
            return
        except OSError as error:
            report = self._failed(error)
        finally:
            channel.close_all(descriptors)
        self.tell(report, results)
        channel.close_all(results)
        if isinstance(message, Forward) and message.is_stop:
            self._end()

    def _failed(self, error: OSError) -> Report:
        first = 0 if self._world is None else self._world.first
        return Report(
            lost=failure(
                f"the agent of machine {self._index} ({self._host})", error, first, self._host
            )
        )

    def _end(self) -> None:
        if self._world is not None:
            self._world.end()
            self._world = None


@final
class _World:
    """The ranks of one world on this machine."""

    def __init__(self, agent: Agent, spec: WorldSpec, index: int, host: str) -> None:
        self._agent, self._spec = agent, spec
        self.first, self._after = spec.firsts[index : index + 2]
        count = self._after - self.first
        self._ended = False
        try:
            os.chdir(spec.directory)
        except OSError as error:
            raise WorldError(
                f"the script's working directory, {spec.directory!r}, in which all ranks start, "
                f"cannot be entered here: {error.strerror}. Start the job in a folder that all "
                "machines have, or os.chdir() to one before fork()"
            ) from None
        sys.path[:] = spec.path
        os.environ.clear()
        os.environ.update(agent.environment)  # as it was, without the changes of an earlier world
        for name, value in spec.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        spec.state.take_over()
        patience = CROWDED if count + 1 > cores_each(agent.hosts, host) else ROOMY
        self.control = ControlBlock(spec.world_size, patience, lines=count)
        self._processes = Processes(prefix_output=spec.prefix_output, first=self.first, host=host)
        watchdog = _AgentWatchdog(self._processes, lambda: None)
        self._rounds = Rounds(self.control, self._processes, Tally(opened=0), watchdog)

    def start(self) -> Sequence[Any]:
        """Forks the ranks, and waits until they are ready; returns their warnings."""
        spec, count = self._spec, self._after - self.first
        devices = spec.devices[self.first : self._after]
        self._processes.start(
            self.control,
            count,
            spec.device,
            devices,
            compiler=spec.compiler,
            profile=spec.profile,
            random_state=spec.state.python_random,
        )
        self._rounds.await_ranks(spec.device)
        return self._rounds.news.take_warnings()

    def command(self, forward: Forward, descriptors: Sequence[int]) -> tuple[Report, list[int]]:
        """Has the ranks carry out a command."""
        self._rounds.sequence = forward.sequence - 1
        if forward.is_stop:
            with contextlib.suppress(OSError, TimeoutError):
                self._rounds.send(forward.payload, (), _ROUND, channel.wait_on)
                self._processes.join(2.0)
            return Report(), []
        watch = self._watch()
        self._rounds.send(forward.payload, descriptors, _ROUND, watch)
        return self._heard(doorbell.NOT_YET, watch)

    def finish(self, finish: Finish) -> tuple[Report, list[int]]:
        """Completes a round that the relay has rung."""
        self._rounds.sequence = finish.sequence
        return self._heard(finish.code, self._watch())

    def _heard(self, code: int, watch: Callable[[], None]) -> tuple[Report, list[int]]:
        self._rounds.arrive(code, watch)
        news, passed = [], []
        lines = self.control.with_news(self._rounds.sequence)
        for rank, parcel, descriptors in self._rounds.news.read_parcels(lines, _ROUND, watch):
            news.append((rank, parcel))
            passed += descriptors
        return Report(tuple(news), tuple(self._rounds.news.take_warnings())), passed

    def _watch(self) -> Callable[[], None]:
        check = self._rounds.watch(_ROUND)

        def watch() -> None:
            check()
            self._agent.watch()

        return watch

    def where(self) -> dict[int, str]:
        """Returns the stacks of the ranks."""
        return self._processes.where(range(self.first, self._after))

    def end(self) -> None:
        """Ends the ranks."""
        if not self._ended:
            self._ended = True
            with held_signals():
                self._rounds.kill()
                self._processes.close()
                self.control.close()


def _picklable(error: Exception) -> BaseException:
    try:
        channel.unpack_known(channel.pack(error))
    except Exception:  # noqa: BLE001  # an error of the user's class
        return SynkError(f"{type(error).__name__}: {error}")
    return error
