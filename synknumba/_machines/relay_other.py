"""The relay of another machine than the script's: rings its ranks, and sends their results."""

import os
import socket
import sys
import time
from dataclasses import replace
from typing import Any, final

import numpy as np

from synknumba._machines import machine_comm, relay
from synknumba._machines.machine_comm import BYTE, Envelope, MachineComm, pickled, unpickled
from synknumba._machines.messages import QUIET, Answers, End, Finish, Report, WorldSpec
from synknumba._machines.relay import Ended, Order, Relay
from synknumba._machines.relay_world import RelayWorld
from synknumba._machines.routes import Route
from synknumba._types import Array
from synknumba._wire import channel, doorbell
from synknumba._wire.control import ControlBlock

PULSE_SECONDS = 0.5
ALONE_SECONDS = 0.1  # for which a relay waits for ranks; then the agent waits, which sees deaths


@final
class OtherRelay(Relay):
    """The end of the loop at a parent relay."""

    def __init__(self, comm: MachineComm, sock: socket.socket, parent: int) -> None:
        super().__init__(comm, sock, parent)
        self._receive = comm.jobs.Recv_init(self.envelope.buffer, comm.parent, machine_comm.ORDER)
        self._reply = Envelope()
        self._sequence = 0  # number of the round on this machine
        self._pulsed = 0.0

    # ---- above: the parent relay, and the first one

    def next_order(self) -> Order:
        """Receives an order of the parent relay."""
        self._receive.Start()
        self.comm.wait(self._receive, self._look)
        self.comm.note_order()
        kind, number, body = self.envelope.open(self._receive_body)
        content: Any = None
        if kind == relay.RUN:
            content = body.tobytes()
        elif len(body):
            content = unpickled(body)
        return Order(kind, number, content)

    def _receive_body(self, body: Array) -> None:
        request = self.comm.jobs.Irecv(body, self.comm.parent, machine_comm.BODY)
        self.comm.wait(request, self._watch_order)

    def answer(self, report: Report, route: Route | None = None) -> None:
        """Sends small results and a report to the first relay."""
        world = self.world
        assert world is not None  # what has none is not carried out
        (peer,) = world.peers
        used = start = 0
        if route is not None:
            used, start = route.small_bytes, route.small_start
            if used < 0:  # a Python function
                specs = world.specs(peer, start)
                used = world.results.small_bytes(route.number, specs)
        ranks = peer.after - peer.first
        block = ranks * used
        packed = b"" if report.is_quiet else pickled(report)
        body = self._reply.fill(used, 0, block + len(packed))
        if block:
            results = world.control.results[peer.first : peer.after, start : start + used]
            body[:block].reshape(ranks, used)[:] = results
        if len(packed):
            body[block:] = packed
        for message, tag in self._reply.messages(machine_comm.ANSWER):
            world.sends.append(world.rounds.Isend(message, 0, tag))
        world.await_sends(self.watch)

    def leave_world(self) -> None:
        """The order that ends the world is read next."""

    def watch_parent(self) -> None:
        """Ends this process with the agent's, or where the first machine is not heard of."""
        if os.getppid() != self.parent:
            os._exit(1)
        if not self.comm.hears_first():
            hosts, index = self.comm.hosts, self.comm.index
            sys.stderr.write(
                f"synknumba run: machine {index} ({hosts[index]}) has not heard of machine 0 "
                f"({hosts[0]}) for {machine_comm.ORPHAN_SECONDS:.0f} s, and ends\n"
            )
            sys.stderr.flush()
            os._exit(1)  # the agent, and the ranks with it, end with their relay

    def watch(self) -> None:
        """Looks after the agent during a round; raises `Ended` where another order has come."""
        self._pulse()
        self._ask_agent()
        jobs, parent = self.comm.jobs, self.comm.parent
        if jobs.Iprobe(source=parent, tag=machine_comm.ORDER):  # only that of the end comes now
            raise Ended

    def _watch_order(self) -> None:
        """Looks after the agent while an order is on its way; a long one takes its time."""
        self._pulse()
        self._look()

    def _look(self) -> None:
        """Looks after the agent, and answers questions, between rounds."""
        self.watch_parent()
        if self._ask_agent():
            answers = self._hear()[0]
            assert isinstance(answers, Answers)
            self.comm.reply(answers.of[0])

    def _pulse(self) -> None:
        """Looks after the agent, and tells the first relay now and then that this one lives."""
        self.watch_parent()
        now = time.monotonic()
        if self.world is not None and now - self._pulsed > PULSE_SECONDS:
            self._pulsed = now
            self.world.rounds.Isend(BYTE, 0, machine_comm.PULSE).Free()

    # ---- below: the agent and the ranks of this machine

    def pass_on(self, order: Order) -> None:
        """Sends the order as it has come."""
        self.send_down(self._watch_order)

    def start(self, spec: WorldSpec) -> None:
        """Has the agent fork the ranks, and answers."""
        self._sequence, self._reply = 0, Envelope()
        self.world = world = RelayWorld(self.comm, self.comm.jobs.Dup(), spec)
        self.tell(spec)
        report, descriptors = channel.receive(self.socket, self._pulse)
        assert isinstance(report, Report)
        if report.block is not None:
            (peer,) = world.peers
            memory = report.block.map(descriptors[0])
            world.attach(memory, report.block.patience, peer.after - peer.first)
        self.answer(report)

    def run_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Rings the ranks and waits for them, for long or for news by the agent."""
        control = world.control
        control.values[: len(order.content)] = np.frombuffer(order.content, np.uint8)
        code = self._ring(control, order.number)
        if code == doorbell.ALL_DONE:
            return QUIET
        self.tell(Finish(self._sequence, code))
        report, descriptors = self._hear_report()
        for rank, parcel in report.news:
            nbytes = world.results.learn(order.number, rank, parcel)
            if nbytes:
                segments = world.results.segments
                segments.add((order.number, rank), descriptors.pop(0), nbytes)
        return report

    def _ring(self, control: ControlBlock, number: int) -> int:
        """Rings the ranks, and waits for a while; returns the code of the wait."""
        self._sequence += 1
        base, lines = control.base, control.lines
        spins = control.patience.pauses, control.patience.coordinator
        code: int = doorbell.call(base, lines, self._sequence, number, *spins)
        if code == -1:
            control.wake_ranks()
            code = doorbell.await_all(base, lines, *spins)
        if code == doorbell.NOT_YET and control.sleep_coordinator(ALONE_SECONDS):
            code = doorbell.await_all(base, lines, 1, 1)
        return code

    def command_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Makes mirrors of new segments, and has the agent carry out a command."""
        forward = order.content
        fds = [world.segments.mirror(segment, nbytes) for segment, nbytes in forward.attached]
        self._sequence += 1
        self.tell(replace(forward, sequence=self._sequence), fds)
        return self._hear_report()[0]

    def stop_world(self) -> None:
        """Frees a world whose ranks were stopped by the agent."""
        self.drop_world()

    def end_world(self, serial: int) -> None:
        """Has the agent end the ranks at once, and replies to the first relay."""
        self.comm.serial = serial
        self.tell(End())
        while not isinstance(self._hear()[0], End):
            pass  # what was under way
        self.drop_world()
        self.comm.reply(None)

    def _hear(self) -> tuple[Any, list[int]]:
        """Receives a message of the agent, outside rounds."""
        return channel.receive(self.socket, self.watch_parent)

    def _hear_report(self) -> tuple[Report, list[int]]:
        """Receives the report of a round; answers questions meanwhile."""
        while True:
            message, descriptors = channel.receive(self.socket, self.watch)
            if isinstance(message, Report):
                return message, descriptors
            self.comm.reply(message.of[0])

    def _ask_agent(self) -> bool:
        """Passes a question of the first relay on to the agent; returns whether one has come."""
        question = self.comm.question()
        if question is not None:
            self.tell(question)
        return question is not None
