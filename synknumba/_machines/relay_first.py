"""The relay of machine 0: answers rounds like a rank, on behalf of the ranks of other machines."""

import os
import select
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any, final

from synknumba._errors import SharedMemoryError
from synknumba._host import this_process
from synknumba._host.segment import Segment
from synknumba._machines import machine_comm, relay
from synknumba._machines.machine_comm import Envelope, MachineComm, Watch, pickled, unpickled
from synknumba._machines.messages import QUIET, Answers, Ask, End, Forward, Quit, Report, WorldSpec
from synknumba._machines.relay import Ended, LostError, Order, Relay
from synknumba._machines.relay_world import Peer, RelayWorld
from synknumba._machines.routes import Route
from synknumba._types import Array
from synknumba._wire import channel, doorbell
from synknumba._wire.control import MESSAGE, ControlBlock
from synknumba._world.failure import Death
from synknumba._world.machines import Lost

SILENCE_SECONDS = 5.0  # after which a machine whose relay sends pulses as it works counts as lost
ASK_SECONDS = 5.0
LOST_SECONDS = 0.5  # for which others are waited for once a machine is lost; they answer at once

_FAILED = -1  # kind of an order that could not be received: its content is the error


@final
class FirstRelay(Relay):
    """The end of the loop at the script."""

    # Those of the world.
    _memory: Segment  # of the control block
    _line: int  # in it
    _spins: tuple[int, int]  # before this process sleeps
    _answers: "_MachineAnswers"

    def __init__(self, comm: MachineComm, sock: socket.socket, parent: int) -> None:
        super().__init__(comm, sock, parent)
        self._pending: Order | None = None  # that has come before its round was seen
        self._sequence = 0  # number of the round; 0 until the ranks have started
        self._number = doorbell.NO_COMMAND  # that the doorbell has rung for
        self._descriptors: list[int] = []  # to send with a report

    # ---- above: the script

    def next_order(self) -> Order:
        """Waits for the doorbell; outside worlds, for a message of the script."""
        world = self.world
        if world is None:
            return self._await_message()
        number = self._await_command(world.control)
        self._sequence += 1
        if number == MESSAGE:
            return self._await_message()
        values = world.control.values[: world.routes[number].size]
        return Order(relay.RUN, number, values.tobytes())

    def _await_message(self) -> Order:
        while self._pending is None:
            channel.wait_for(self.socket, self.watch_parent)
            self._look()
        order, self._pending = self._pending, None
        return order

    def _await_command(self, control: ControlBlock) -> int:
        number, self._number = self._number, doorbell.NO_COMMAND
        while number == doorbell.NO_COMMAND:
            number = doorbell.await_command(control.base, self._sequence, *self._spins)
            if number == doorbell.NO_COMMAND:
                self._look()
                if not control.sleep_line(self._line, self._sequence, self._lives):
                    raise Ended
        return number

    def _look(self) -> None:
        """Reads what the script sends outside rounds, or while one is under way."""
        self.watch_parent()
        while self._pending is None and select.select([self.socket], [], [], 0)[0]:
            self._read()

    def _read(self) -> None:
        try:
            message, descriptors = channel.receive(self.socket, self.watch_parent)
            if isinstance(message, WorldSpec):
                self._memory = message.block.map(descriptors[0])
        except ConnectionError:
            raise
        except (OSError, MemoryError) as error:
            if self.world is None:
                reason = self.failure(error).reason
                self.tell(Report(refused=SharedMemoryError(reason)))
            else:
                self._pending = Order(_FAILED, content=error)
            return
        match message:
            case WorldSpec():
                self._pending = Order(relay.START, content=message)
            case Forward():  # perhaps of a round that has begun meanwhile
                self._pending = Order(relay.COMMAND, 0, message, descriptors)
            case Ask(what, serial):
                self.comm.ask(Ask(what))
                replies = self.comm.replies(time.monotonic() + ASK_SECONDS)
                self.tell(Answers(replies, serial))
            case Quit():
                self._pending = Order(relay.QUIT)
                if self.world is not None:
                    raise Ended
            case End():
                if self.world is not None:
                    raise Ended
                self.tell(End())  # of a world that has ended by itself

    def answer(self, report: Report, route: Route | None = None) -> None:
        """Arrives in the control block like a rank, then sends a report if there is one."""
        world = self.world
        if world is None or self._sequence == 0:
            self.tell(report)
            if report.lost is not None or report.refused is not None:
                self.pass_on(Order(relay.END, self.comm.next_serial()))
                self.drop_world()
            return
        control = world.control
        control.note_moved(world.moved)
        has_news = not report.is_quiet
        if has_news and report.has_losses:
            control.note_loss(self._sequence, self._line)
        spins = (0, 0) if has_news else self._spins
        line = control.base, control.lines, self._line
        self._number = doorbell.arrive(*line, self._sequence, int(has_news), *spins)
        if self._number == doorbell.MUST_POST:
            control.done.post()
            self._number = doorbell.NO_COMMAND
        if has_news:
            self.tell(report, self._descriptors)
        channel.close_all(self._descriptors)
        self._descriptors = []

    def leave_world(self) -> None:
        """Ends the world on all machines: the script has ended it, or has died."""
        self.carry_out(Order(relay.END, self.comm.next_serial()))

    def watch_parent(self) -> None:
        """Raises `Ended` if the script has died."""
        if not self._lives():
            raise Ended

    def _lives(self) -> bool:
        """Tells the other machines that this one lives; returns whether the script does."""
        self.comm.send_sign()
        return os.getppid() == self.parent

    def watch(self) -> None:
        """Looks after the script and the other machines; raises `LostError` for a silent one."""
        self._look()
        self._answers.check()

    # ---- below: the relays of all other machines

    def pass_on(self, order: Order) -> None:
        """Sends an order down the tree, to the end of a world or the job for a limited time."""
        if order.kind == _FAILED:
            raise order.content
        body: Any = b""
        if order.kind == relay.RUN:
            body = order.content
        elif order.content is not None:
            body = pickled(order.content)
        if self.passing:  # with the buffer, by an order that was left
            self.envelope = Envelope()
        self.envelope.fill(order.kind, order.number, len(body)).data[:] = body
        self.comm.note_order()
        if order.kind in {relay.END, relay.QUIT}:
            self._pass_last(order.kind)
        elif order.kind == relay.START:
            self.send_down(self.watch_parent)
        else:
            self._answers.expect()
            self.send_down(self.watch)

    def _pass_last(self, kind: int) -> None:
        seconds = LOST_SECONDS if self.comm.is_lost else ASK_SECONDS
        until = time.monotonic() + seconds

        def watch() -> None:
            if time.monotonic() > until:
                raise TimeoutError

        with suppress(TimeoutError):
            self.send_down(watch)
        if kind == relay.END:
            self.comm.replies(until)

    def start(self, spec: WorldSpec) -> None:
        """Waits until the ranks of other machines have started, and reports to the script."""
        this_process.end_with_parent()  # a machine that is lost takes part in no Dup
        rounds = self.comm.jobs.Dup()
        this_process.end_with_parent(wanted=not self.ends_job)
        self._sequence, self._number = 0, doorbell.NO_COMMAND
        self.world = world = RelayWorld(self.comm, rounds, spec)
        self._line = spec.firsts[1]
        patience = spec.block.patience
        world.attach(self._memory, patience, self._line + 1)
        self._spins = patience.pauses, patience.rank
        self._answers = _MachineAnswers(self.comm, world)
        world.under_way.append(self._answers)
        self._answers.expect()
        self.answer(self._answers.gather(self.watch))

    def run_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Waits for the answers of all machines, whose ranks run a program."""
        report = self._answers.gather(self.watch, world.routes[order.number].small_start)
        world.await_sends(self.watch)
        if report.lost is None:
            self._make_room(world, order.number, report)
        return report

    def _make_room(self, world: RelayWorld, number: int, report: Report) -> None:
        """Makes memory for large results that ranks report."""
        for rank, parcel in report.news:
            nbytes = world.results.learn(number, rank, parcel)
            if nbytes:
                fd = world.results.segments.mirror((number, rank), nbytes)
                self._descriptors.append(os.dup(fd))

    def command_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Maps new segments, and waits for the answers of all machines to a command."""
        segments = zip(order.content.attached, order.descriptors, strict=True)
        for (segment, nbytes), fd in segments:
            world.segments.add(segment, fd, nbytes)
        if order.content.is_stop:  # no other command comes
            self._spins = 0, 0
        return self._answers.gather(self.watch)

    def stop_world(self) -> None:
        """Frees a world whose ranks were stopped, and tells the script."""
        self.drop_world()
        self.tell(End())

    def end_world(self, serial: int) -> None:
        """Tells the script that the ranks of all machines have ended."""
        self.stop_world()


@final
class _MachineAnswers:
    """The answers of all other machines in a world, and their signs of life meanwhile."""

    def __init__(self, comm: MachineComm, world: RelayWorld) -> None:
        self._comm, self._world = comm, world
        machines = [peer.machine for peer in world.peers]
        self._envelopes = {machine: Envelope() for machine in machines}
        self._requests: dict[int, Any] = {}
        for machine, envelope in self._envelopes.items():
            request = world.rounds.Recv_init(envelope.buffer, machine, machine_comm.ANSWER)
            self._requests[machine] = request
        self._heard = dict.fromkeys(machines, 0.0)  # when machines were heard of last
        self._since = self._checked = 0.0

    def expect(self) -> None:
        """Starts to receive answers, before the order is sent."""
        self._since = time.monotonic()
        for request in self._requests.values():
            request.Start()

    def gather(self, watch: Watch, start: int = 0) -> Report:
        """Waits for the answers of all machines, or for the loss of a rank.

        Others may wait for the lost rank. Small results, from a byte on, are copied to where
        ranks of this machine write theirs.

        Returns:
            The reports of all machines together.
        """
        total = QUIET
        for peer in self._world.peers:
            self._comm.wait(self._requests[peer.machine], watch)
            report = self._read(peer, start, watch)
            if report is not None:
                total = total.with_report(report)
                if report.has_losses:
                    break
        return total

    def _read(self, peer: Peer, start: int, watch: Watch) -> Report | None:
        used, _, body = self._envelopes[peer.machine].open(partial(self._receive, peer, watch))
        ranks = peer.after - peer.first
        block = ranks * used
        if block:
            small = body[:block].reshape(ranks, used)
            self._world.control.results[peer.first : peer.after, start : start + used] = small
        if len(body) == block:
            return None
        report: Report = unpickled(body[block:])
        return report

    def _receive(self, peer: Peer, watch: Watch, body: Array) -> None:
        request = self._world.rounds.Irecv(body, peer.machine, machine_comm.BODY)
        self._comm.wait(request, watch)

    def check(self) -> None:
        """Raises `LostError` for a machine that works, and is not heard of any more."""
        rounds, now = self._world.rounds, time.monotonic()
        for machine in self._heard:
            while rounds.Iprobe(source=machine, tag=machine_comm.PULSE):
                rounds.Recv(machine_comm.BYTE, machine, machine_comm.PULSE)
                self._heard[machine] = now
        if now - self._checked > machine_comm.LONGEST_LOOK:  # this process was stopped
            self._since = now  # and maybe the whole job
        self._checked = now
        for peer in self._world.peers:
            silence = now - max(self._heard[peer.machine], self._since)
            # It may have answered while another is waited for.
            if silence > SILENCE_SECONDS and not self._requests[peer.machine].Test():
                raise LostError(self._loss(peer))

    def _loss(self, peer: Peer) -> Lost:
        host = self._comm.hosts[peer.machine]
        ranks = f"ranks {peer.first} to {peer.after - 1}"
        if peer.after == peer.first + 1:
            ranks = f"rank {peer.first}"
        name = f"machine {peer.machine} ({host}), of {ranks},"
        reason = f"{name} has not been heard of for {SILENCE_SECONDS:.0f} s"
        return Lost(reason, Death(peer.first, 0, None, host, with_machine=True))
