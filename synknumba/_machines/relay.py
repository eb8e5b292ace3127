"""Relays: the loop in which each of them carries orders down and answers up.

                 above                       relay                 below
    machine 0    script                      first relay           relays of the other machines
    machine m    relays nearer to machine 0  relay of machine m    agent and ranks of its machine

    step             first relay (`relay_first.py`)         relay of machine m (`relay_other.py`)
    ------------------------------------------------------------------------------------------------
    receive order    doorbell of the control block,         message of the parent relay
                     socket of the script
    pass on          to the children in the tree            the same
    rows             sends those of each machine            receives those of its ranks
    sums             combines arrays of all machines        the same
    ring, gather     awaits the answers of all machines     rings its ranks, and awaits them; the
                                                            agent, where they take long or have news
    rows back        receives                               sends
    answer           arrives in the control block           sends a report and small results

Whatever ends a world in the middle of a round raises `Ended` in the wait; the loop goes on with
the end of the world. An error of this process is answered as the loss of its machine.
"""

import errno
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from synknumba._host import this_process
from synknumba._machines.machine_comm import BACK, ORDER, ROWS, Envelope, MachineComm, Watch
from synknumba._machines.messages import Forward, Report, WorldSpec
from synknumba._machines.relay_world import Peer, RelayWorld
from synknumba._machines.routes import Move, Route
from synknumba._wire import channel
from synknumba._world.failure import Death
from synknumba._world.machines import Lost

WORLDS_KEPT = 16  # that have ended: MPI may still write to buffers of their last requests
_OF_MPIEXEC = {"OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"}  # variables that srun does not set

START, COMMAND, RUN, END, QUIT = range(5)  # kinds of orders


class Order(NamedTuple):
    """What a relay carries out.

    Attributes:
        kind: one of START to QUIT.
        number: of the program; of END, the serial of the replies.
        content: WorldSpec to START, Forward of COMMAND, values to RUN with.
        descriptors: of the segments that a command attaches.
    """

    kind: int
    number: int = 0
    content: Any = None
    descriptors: Sequence[int] = ()


class Ended(Exception):  # noqa: N818  # nothing is wrong
    """Raised while a relay or an agent waits, when the world is ended."""


class LostError(Exception):
    """Raised where the ranks of a machine, or a whole machine, are lost."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.reason)
        self.lost = lost


def failure(process: str, error: Exception, rank: int, host: str) -> Lost:
    """Returns the loss of a machine of which a process cannot go on.

    Args:
        process: in words, with the machine.
        error: what has been raised there.
        rank: the first of the machine.
        host: its name.
    """
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        reason = channel.NO_DESCRIPTOR
    return Lost(f"{process} failed: {reason}", Death(rank, 0, None, host))


class Relay(ABC):
    """The loop of a relay, whose ends are those of `FirstRelay` and `OtherRelay`.

    Args:
        comm: the machines.
        sock: socket of the process that has forked this one: the script or the agent.
        parent: its process id.
    """

    def __init__(self, comm: MachineComm, sock: socket.socket, parent: int) -> None:
        self.comm, self.socket, self.parent = comm, sock, parent
        is_under_srun = "SLURM_STEP_ID" in os.environ and not _OF_MPIEXEC & os.environ.keys()
        self.ends_job = comm.index == 0 and is_under_srun
        self.world: RelayWorld | None = None
        self.envelope = Envelope()  # of the order
        self.passing: list[Any] = []  # requests of orders
        self._dropped: deque[RelayWorld] = deque(maxlen=WORLDS_KEPT)

    def serve(self) -> None:
        """Carries out orders until the script has ended.

        Under srun, the first relay ends the job where the script dies; mpiexec does so itself.
        """
        this_process.end_with_parent(wanted=not self.ends_job)
        try:
            self._loop()
        except (Ended, EOFError, ConnectionError):
            if not self.ends_job:
                raise
            self.comm.lose()

    def _loop(self) -> None:
        kind = START
        while kind != QUIT:
            try:
                order = self.next_order()
                self.carry_out(order)
                kind = order.kind
            except Ended:
                if self.world is None:
                    raise
                self.leave_world()

    def carry_out(self, order: Order) -> None:
        """Passes an order on, carries it out, and answers it."""
        kind, world = order.kind, self.world
        try:
            self.pass_on(order)
            if kind == START:
                self.drop_world()
                self.start(order.content)
            elif kind == END:
                self.end_world(order.number)
            elif kind == QUIT:
                self.drop_world()
            elif world is not None and kind == RUN:
                self._run(world, order)
            elif world is not None:
                self._command(world, order)
        except LostError as error:
            self.comm.lose()
            self.answer(Report(lost=error.lost))
        except (OSError, MemoryError) as error:
            self.answer(Report(lost=self.failure(error)))
        if kind == COMMAND and order.content.is_stop:
            self.stop_world()

    def _run(self, world: RelayWorld, order: Order) -> None:
        """Runs a program on the ranks below."""
        route = world.routes[order.number]
        moves = [route.at(order.content, peer.first, peer.after) for peer in world.peers]
        for peer, (rows, _) in zip(world.peers, moves, strict=True):
            for move in peer.cache.unsent(rows):
                world.carry(move, peer, ROWS, self.watch)
        for reduced in route.reduced:
            world.reduce(reduced, self.watch)
        report = self.run_ranks(world, order)
        if report.lost is not None:
            self.answer(report)
            return
        failed = report.failed  # machines with such ranks send nothing back
        for peer, (_, rows) in zip(world.peers, moves, strict=True):
            if not failed or failed.isdisjoint(range(peer.first, peer.after)):
                self._return(world, route, peer, rows)
        self.answer(report, None if failed else route)

    def _return(self, world: RelayWorld, route: Route, peer: Peer, moves: Sequence[Move]) -> None:
        """Carries rows that ranks have written, and their large results, to machine 0."""
        for move in moves:
            world.carry(move, peer, BACK, self.watch)
        if route.small_bytes < 0:
            specs = world.specs(peer, route.small_start)
            for view in world.results.large(route.number, specs):
                world.carry_bytes(view, peer, BACK, self.watch)

    def _command(self, world: RelayWorld, order: Order) -> None:
        """Has the ranks below carry out a command."""
        forward: Forward = order.content
        if forward.route is not None:
            world.routes[forward.route.number] = forward.route
        report = self.command_ranks(world, order)
        world.forget(forward)
        self.answer(report)

    def failure(self, error: Exception) -> Lost:
        """Returns the loss of this machine by an error of the relay."""
        index = self.comm.index
        host = self.comm.hosts[index]
        rank = 0 if self.world is None else self.world.spec.firsts[index]
        return failure(f"the relay of machine {index} ({host})", error, rank, host)

    def send_down(self, watch: Watch) -> None:
        """Sends the order in the envelope to the children in the tree of machines."""
        for child in self.comm.children:
            for part, tag in self.envelope.messages(ORDER):
                self.passing.append(self.comm.jobs.Isend(part, child, tag))
        self.comm.wait_all(self.passing, watch)
        self.passing.clear()

    def tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Sends a message to the process that has forked this one."""
        channel.send(self.socket, channel.pack(message), descriptors, self.watch_parent)

    def drop_world(self) -> None:
        """Frees what there is of a world."""
        if self.world is not None:
            self._dropped.append(self.world)
            self.world.close()
            self.world = None

    # ---- above

    @abstractmethod
    def next_order(self) -> Order:
        """Waits for the next order."""

    @abstractmethod
    def answer(self, report: Report, route: Route | None = None) -> None:
        """Answers an order; after a program without failures, with small results."""

    @abstractmethod
    def leave_world(self) -> None:
        """Goes on after the world was ended in the middle of a round."""

    @abstractmethod
    def watch(self) -> None:
        """Looks after all other processes during a round; raises to leave the round."""

    @abstractmethod
    def watch_parent(self) -> None:
        """Looks after the process that has forked this one; does not return if it has ended."""

    # ---- below

    @abstractmethod
    def pass_on(self, order: Order) -> None:
        """Passes an order on to the relays of other machines."""

    @abstractmethod
    def start(self, spec: WorldSpec) -> None:
        """Starts the ranks of a world, and answers."""

    @abstractmethod
    def run_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Waits until the ranks below have run a program."""

    @abstractmethod
    def command_ranks(self, world: RelayWorld, order: Order) -> Report:
        """Waits until the ranks below have carried out a command."""

    @abstractmethod
    def stop_world(self) -> None:
        """Frees a world whose ranks were stopped by a command."""

    @abstractmethod
    def end_world(self, serial: int) -> None:
        """Ends the ranks of a world at once."""
