"""The relay of the coordinator's machine: takes part in rounds like a rank, on behalf of the
ranks of all other machines.
"""

import os
import pickle
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np

from synknumba._errors import SharedMemoryError
from synknumba._host import this_process
from synknumba._host.segment import Segment
from synknumba._machines import between, relay
from synknumba._machines.between import HEAD, ROOM, Between, pickled
from synknumba._machines.messages import Answers, Ask, End, Forward, Quit, Scene, Told
from synknumba._machines.relay import Ended, Relay
from synknumba._machines.routes import Move, Present
from synknumba._types import Array
from synknumba._wire import channel, doorbell
from synknumba._wire.control import MESSAGE, ControlBlock, Patience
from synknumba._wire.messages import Parcel
from synknumba._world.failure import Death
from synknumba._world.machines import Lost

SILENCE_SECONDS = (
    5.0  # after which a machine that works, and whose relay sends pulses meanwhile, counts as lost
)
ASK_SECONDS = 5.0
_OF_MPIEXEC = {"OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"}  # variables that srun does not set
LOST_SECONDS = (
    0.5  # for which answers are awaited once a machine is lost; those that are left answer at once
)


@final
class FirstRelay:
    """Serves the coordinator until the script has ended.

    Args:
        job: the machines.
        sock: socket of the coordinator.
        coordinator: its process id.
    """

    def __init__(self, job: Between, sock: socket.socket, coordinator: int) -> None:
        self._job, self._socket, self.coordinator = job, sock, coordinator
        self._order = np.zeros(ROOM, np.uint8)
        self._head = self._order[: 8 * HEAD].view(np.int64)
        self._unsent: list[tuple[Any, Array]] = []  # requests of orders, with what they send
        self.quits = False  # whether the script has ended in the middle of a world
        self._abandoned: list[Any] = []  # worlds that were ended, with requests under way
        self.ends_job = "SLURM_STEP_ID" in os.environ and not _OF_MPIEXEC & os.environ.keys()

    def serve(self) -> None:
        """Serves the script until it ends. Under srun, ends the job where the script dies;
        mpiexec does so itself.
        """
        this_process.end_with_parent(wanted=not self.ends_job)
        try:
            self._serve()
        except (Ended, EOFError, ConnectionError):
            if not self.ends_job:
                raise
            self._job.lose()

    def _serve(self) -> None:
        """Serves messages outside worlds."""
        while True:
            try:
                message, descriptors = channel.receive(self._socket, self._watch_parent)
            except ConnectionError:
                raise
            except OSError as error:  # only a scene comes with descriptors
                self._refuse(error)
                continue
            match message:
                case Scene():
                    self._world(message, descriptors)
                    if self.quits:
                        self.quit()
                        return
                case Ask(what, serial):
                    self._tell(Answers(self._asked(what), serial))
                case Quit():
                    self.quit()
                    return
                case End():  # of a world that has ended by itself
                    self._tell(End())

    def lives(self) -> bool:
        """Tells the other machines that this one lives; returns whether the coordinator does."""
        self._job.tell_lives()
        return os.getppid() == self.coordinator

    def _watch_parent(self) -> None:
        if not self.lives():
            raise Ended

    def _tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        channel.send(self._socket, channel.pack(message), descriptors, self._watch_parent)

    def order(
        self,
        kind: int,
        number: int = 0,
        values: bytes | memoryview = b"",
        payload: Array | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        """Sends an order to all machines, down the tree; calls `watch` meanwhile, by default on
        the parent, which may raise.
        """
        self._unsent = [one for one in self._unsent if not one[0].Test()]
        if self._unsent:  # with the buffer, by an order that was left
            self._order = np.zeros(ROOM, np.uint8)
            self._head = self._order[: 8 * HEAD].view(np.int64)
        buffer, size = self._order, 0 if payload is None else len(payload)
        self._head[:4] = kind, number, len(values), size
        end = 8 * HEAD + len(values)
        buffer[8 * HEAD : end] = np.frombuffer(values, np.uint8)
        fits = end + size <= ROOM
        if payload is not None and fits:
            buffer[end : end + size] = payload
            end += size
        parts = [(buffer[:end], between.ORDER)]
        if payload is not None and not fits:
            parts.append((payload, between.BIG))
        jobs = self._job.jobs
        self._job.spoke = time.monotonic()
        sends = [
            (jobs.Isend(part, child, tag), part)
            for child in self._job.children
            for part, tag in parts
        ]
        self._unsent += sends  # kept, with the buffers, if the wait is left
        self._job.wait_all([request for request, _ in sends], watch or self._watch_parent)

    def _asked(self, what: str) -> dict[int, Any]:
        """Returns what the machines answer to a question; without those that do not in time."""
        self._job.ask(Ask(what))  # with a serial
        return {
            machine: answer for machine, answer in self._replies().items() if answer is not None
        }

    def _replies(self, until: float | None = None) -> dict[int, Any]:
        jobs, mpi = self._job.jobs, self._job.mpi
        until = until or time.monotonic() + ASK_SECONDS
        found: dict[int, Any] = {}
        status = mpi.Status()
        while len(found) < self._job.count - 1 and time.monotonic() < until:
            if not jobs.Iprobe(source=mpi.ANY_SOURCE, tag=between.REPLY, status=status):
                time.sleep(0.0005)
                continue
            buffer = np.empty(status.Get_count(mpi.BYTE), np.uint8)
            jobs.Recv(buffer, status.source, between.REPLY)
            serial, answer = pickle.loads(buffer.tobytes())  # noqa: S301  # of a relay of this job
            if serial == self._job.serial:  # others are late
                found[status.source] = answer
        return found

    def _refuse(self, error: Exception) -> None:
        host = self._job.hosts[0]
        reason = relay.failure(f"the relay of machine 0 ({host})", error, 0, host).reason
        self._tell(Told(refused=SharedMemoryError(reason)))

    def _world(self, scene: Scene, descriptors: Sequence[int]) -> None:
        try:
            memory = Segment.attach(scene.memory[0], descriptors[0], scene.memory[1])
        except (OSError, MemoryError) as error:
            self._refuse(error)
            return
        world = _World(self, self._job, self._socket, scene, memory)
        try:
            if world.start():
                world.serve()
                self._tell(End())
            else:
                self._end_others()
        except Ended:
            self._abandoned.append(world)  # MPI may still write to its buffers
            self._end_others()
            self._tell(End())
        except _Silent as silent:
            self._job.lose()
            self._abandoned.append(world)
            self._tell(Told(lost=silent.lost))
        finally:
            world.close()

    def _end_others(self) -> None:
        """Has all other machines end the ranks of the world, and waits for that, but not for
        ever.
        """
        until = time.monotonic() + (LOST_SECONDS if self._job.is_lost else ASK_SECONDS)
        self._order_last(relay.END, self._job.next_serial(), until)
        self._replies(until)

    def quit(self) -> None:
        """Has all other relays end, but does not wait for ever for one that is lost."""
        self._order_last(relay.QUIT, 0, time.monotonic() + ASK_SECONDS)

    def _order_last(self, kind: int, number: int, until: float) -> None:
        def watch() -> None:
            if time.monotonic() > until:
                raise TimeoutError

        with suppress(TimeoutError):
            self.order(kind, number, watch=watch)


@final
class _World:
    """The rounds of one world."""

    def __init__(
        self, first: FirstRelay, job: Between, sock: socket.socket, scene: Scene, memory: Segment
    ) -> None:
        self._first, self._job, self._socket, self._scene = first, job, sock, scene
        firsts = scene.firsts
        self._line = firsts[1]
        self._control = ControlBlock(
            scene.world_size, Patience(*scene.patience), lines=firsts[1] + 1, segment=memory
        )
        first.order(relay.START, payload=pickled(scene))
        this_process.end_with_parent()  # a machine that is lost takes part in no Dup
        self._relay = Relay(job, job.jobs.Dup())
        this_process.end_with_parent(wanted=not first.ends_job)
        self._others = range(1, job.count)
        self._ranks = {machine: (firsts[machine], firsts[machine + 1]) for machine in self._others}
        self._machine_of = {
            rank: machine
            for machine, (low, high) in self._ranks.items()
            for rank in range(low, high)
        }
        self._answers = {machine: np.zeros(ROOM, np.uint8) for machine in self._others}
        self._receives = {
            machine: self._relay.rounds.Recv_init(buffer, machine, between.ANSWER)
            for machine, buffer in self._answers.items()
        }
        self._present = {machine: Present() for machine in self._others}
        self._last_heard = dict.fromkeys(self._others, 0.0)  # when machines were heard of last
        self._waits_since = self._watched = 0.0
        self.requests: list[Any] = []  # under way
        # A command that has come before its round was seen, or why it could not be received.
        self._came: tuple[Forward, list[int]] | OSError | None = None

    def close(self) -> None:
        """Frees memory."""
        self._relay.close()
        self._control.close()

    def start(self) -> bool:
        """Tells the coordinator whether the ranks of other machines have started."""
        told = self._hear_all()
        self._first._tell(told)  # noqa: SLF001  # same module
        return told.refused is None and told.lost is None

    # ---- rounds

    def serve(self) -> None:
        """Answers rounds until the world ends."""
        control, line = self._control, self._line
        base, lines = control.base, control.lines
        pauses, yields = control.patience.pauses, control.patience.rank
        sequence, number = 0, self._await_command(0)
        while True:
            sequence += 1
            told: Told | None = None
            descriptors: list[int] = []
            try:
                if number == MESSAGE:
                    told = self._command()
                else:
                    told, descriptors = self._run(number)
            except (OSError, MemoryError) as error:
                host = self._job.hosts[0]
                told = Told(lost=relay.failure(f"the relay of machine 0 ({host})", error, 0, host))
            except _Silent as silent:
                self._job.lose()
                told = Told(lost=silent.lost)
            is_stop = told is not None and told.is_stop
            if told is not None and (
                told.lost is not None or any(item.lost for _, item in told.news)
            ):
                control.note_loss(sequence, line)
            news = 1 if told is not None and not is_stop else 0
            spins = (0, 0) if news or is_stop else (pauses, yields)
            number = doorbell.arrive(base, lines, line, sequence, news, *spins)
            if number == doorbell.MUST_POST:
                control.done.post()
                number = doorbell.NO_COMMAND
            if is_stop:
                return
            if news:
                self._first._tell(told, descriptors)  # noqa: SLF001
                channel.close_all(descriptors)
            if number == doorbell.NO_COMMAND:
                number = self._await_command(sequence)

    def _await_command(self, sequence: int) -> int:
        control, patience = self._control, self._control.patience
        while True:
            number: int = doorbell.await_command(
                control.base, sequence, patience.pauses, patience.rank
            )
            if number != doorbell.NO_COMMAND:
                return number
            self._look()
            if not control.sleep_line(self._line, sequence, self._first.lives):
                raise Ended

    def _look(self) -> None:
        """Reads what the coordinator sends outside rounds, or while one is under way."""
        self._first._watch_parent()  # noqa: SLF001
        while self._came is None and select.select([self._socket], [], [], 0)[0]:
            try:
                message, descriptors = channel.receive(self._socket, self._first._watch_parent)  # noqa: SLF001
            except ConnectionError:
                raise
            except OSError as error:  # commands only come with descriptors
                self._came = error
                return
            if isinstance(message, Ask):
                self._first._tell(Answers(self._first._asked(message.what), message.serial))  # noqa: SLF001
            elif isinstance(message, Quit):
                self._first.quits = True
                raise Ended
            elif isinstance(message, Forward):  # of a round that has begun meanwhile
                self._came = message, descriptors
            else:
                raise Ended

    def _watch(self) -> None:
        """Looks after the coordinator and the other machines while ranks work."""
        self._look()
        rounds, status, byte, now = (
            self._relay.rounds,
            self._job.mpi.Status(),
            np.zeros(1, np.uint8),
            time.monotonic(),
        )
        while rounds.Iprobe(source=self._job.mpi.ANY_SOURCE, tag=between.PULSE, status=status):
            rounds.Recv(byte, status.source, between.PULSE)
            self._last_heard[status.source] = now
        # this process was stopped, and maybe the whole job
        if now - self._watched > between.LONGEST_LOOK:
            self._waits_since = now
        self._watched = now
        for machine, heard in self._last_heard.items():
            is_late = now - max(heard, self._waits_since) > SILENCE_SECONDS
            # it may have answered while another is waited for
            if is_late and not self._receives[machine].Test():
                host, (first, after) = self._job.hosts[machine], self._ranks[machine]
                which = f"rank {first}" if after == first + 1 else f"ranks {first} to {after - 1}"
                reason = (
                    f"machine {machine} ({host}), of {which}, has not been heard of "
                    f"for {SILENCE_SECONDS:.0f} s"
                )
                raise _Silent(Lost(reason, Death(first, 0, None, host, with_machine=True)))

    def _command(self) -> Told | None:
        while self._came is None:
            channel.wait_for(self._socket, self._first._watch_parent)  # noqa: SLF001
            self._look()
        came, self._came = self._came, None
        if isinstance(came, OSError):
            raise came
        message, descriptors = came
        for (segment, nbytes), fd in zip(message.attached, descriptors, strict=True):
            self._relay.memory.add(segment, fd, nbytes)
        if message.route is not None:
            self._relay.routes[message.route.number] = message.route
        self._relay.memory.drop(message.dropped_segments)
        self._relay.forget(message.dropped_programs)
        if message.dropped_segments:
            for present in self._present.values():
                present.drop(message.dropped_segments)
        self._start_receives()
        try:
            self._first.order(relay.COMMAND, payload=pickled(message), watch=self._watch)
            told = self._hear_all(started=True)
        except _Silent:
            if not message.is_stop:
                raise
            self._job.lose()
        if message.is_stop:
            return Told(is_stop=True)
        return told if told.news or told.warned or told.lost is not None else None

    def _run(self, number: int) -> tuple[Told | None, list[int]]:
        route = self._relay.routes[number]
        packed = bytes(self._control.values[: route.size])
        self._start_receives()
        self._first.order(relay.RUN, number, packed, watch=self._watch)
        backs: dict[int, tuple[Move, ...]] = {}
        for machine, (first, after) in self._ranks.items():
            ins, backs[machine] = route.at(packed, first, after)
            present = self._present[machine]
            for move in present.unsent(ins):
                self.requests += self._relay.sent(move, machine, between.ROWS, present)
        for one in route.reduced:
            self._relay.reduce(one, self._scene.firsts, self._watch)
        told = self._hear_all(number, started=True)
        self._job.wait_all(self.requests, self._watch)
        self.requests.clear()
        return self._heard(number, told, backs)

    def _heard(
        self, number: int, told: Told, backs: Mapping[int, Sequence[Move]]
    ) -> tuple[Told | None, list[int]]:
        """Receives the rows that a round has written, and large results; returns what ranks
        tell, with descriptors.
        """
        if told.lost is not None:
            return told, []
        # they send nothing more
        failed = {self._machine_of[rank] for rank, item in told.news if item.failed}
        descriptors = self._learn(number, told.news) if told.news else []
        for machine, moves in backs.items():
            for move in moves if machine not in failed else ():
                self._relay.received(move, machine, between.BACK, self._watch, Present())
        self._control.network[0] = self._relay.moved
        route = self._relay.routes[number]
        if route.small_bytes < 0:
            self._receive_large(number, route.small_start, failed)
        return (told if told.news or told.warned else None), descriptors

    def _learn(self, number: int, news: Sequence[tuple[int, Parcel]]) -> list[int]:
        """Makes memory for large results of functions; returns descriptors of it, in the order
        of the news.
        """
        descriptors = []
        for rank, item in news:
            self._relay.learn(number, rank, item)
            if item.segment is not None:
                nbytes = item.segment[1]
                known = self._relay.large.get((number, rank))
                if known is None or len(known[1]) != nbytes:
                    # The same file, longer: earlier specs are read in it, too, as on the rank.
                    fd = (
                        os.memfd_create(f"synk-results-{rank}", os.MFD_CLOEXEC)
                        if known is None
                        else os.dup(known[0])
                    )
                    os.ftruncate(fd, nbytes)
                    self._relay.keep_large(number, rank, fd, nbytes)
                descriptors.append(os.dup(self._relay.large[number, rank][0]))
        return descriptors

    def _receive_large(self, number: int, start: int, failed: Collection[int]) -> None:
        specs = self._control.results[:, start : start + 8].copy().view(np.int64)[:, 0]
        ranks = [rank for rank, machine in self._machine_of.items() if machine not in failed]
        for rank, nbytes in self._relay.large_results(
            number, {rank: int(specs[rank]) for rank in ranks}
        ):
            view = self._relay.large_bytes(number, rank, nbytes)
            self._relay.moved += nbytes
            self._job.wait(
                self._relay.rounds.Irecv(view, self._machine_of[rank], between.BACK), self._watch
            )

    # ---- answers

    def _start_receives(self) -> None:
        self._waits_since = time.monotonic()
        for request in self._receives.values():
            request.Start()

    def _hear_all(self, number: int | None = None, *, started: bool = False) -> Told:
        """Waits for the answers of all machines, and returns what they tell together."""
        if not started:
            self._start_receives()
        news: list[tuple[int, Parcel]] = []
        warned: list[Any] = []
        lost = refused = None
        for machine, receive in self._receives.items():
            self._job.wait(receive, self._watch)
            told = self._read(machine, number)
            if told is not None:
                news += told.news
                warned += told.warned
                lost, refused = lost or told.lost, refused or told.refused
                # the others may wait for its ranks
                if lost is not None or any(item.lost for _, item in told.news):
                    break
        return Told(tuple(news), tuple(warned), lost, refused=refused)

    def _read(self, machine: int, number: int | None) -> Told | None:
        """Reads an answer: copies small results to where ranks of this machine write theirs, and
        returns the rest.
        """
        buffer = self._answers[machine]
        _, ranks, used, size = buffer[:32].view(np.int64).tolist()
        body = buffer[8 * HEAD :]
        total = ranks * used + size
        if total > len(body):
            body = np.empty(total, np.uint8)
            self._job.wait(self._relay.rounds.Irecv(body, machine, between.BIG), self._watch)
        if used:
            first, after = self._ranks[machine]
            start = 0 if number is None else max(self._relay.routes[number].small_start, 0)
            self._control.results[first:after, start : start + used] = body[: ranks * used].reshape(
                ranks, used
            )
        return pickle.loads(body[ranks * used : total].tobytes()) if size else None  # noqa: S301  # of a relay of this job


class _Silent(Exception):  # noqa: N818
    """Raised while a round waits for a machine that is not heard of any more."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.reason)
        self.lost = lost
