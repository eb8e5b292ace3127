"""The relay of a machine other than the coordinator's: rings its ranks, and sends their results."""

import os
import pickle
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from synknumba._host.segment import Segment
from synknumba._machines import between, relay
from synknumba._machines.between import HEAD, ROOM, Between, pickled
from synknumba._machines.messages import Answers, End, Finish, Forward, Scene, Told
from synknumba._machines.relay import Ended, Relay
from synknumba._machines.routes import Present
from synknumba._types import Array
from synknumba._wire import channel, doorbell
from synknumba._wire.control import ControlBlock, Patience

PULSE_SECONDS = 0.5
ALONE_SECONDS = (
    0.1  # how long a relay waits for ranks before it has the agent wait, which sees deaths
)


@final
class OtherRelay:
    """Carries out the orders of the first relay.

    Args:
        job: the machines.
        sock: socket of the agent.
        agent: its process id.
    """

    def __init__(self, job: Between, sock: socket.socket, agent: int) -> None:
        self._job, self._socket, self._agent = job, sock, agent
        self._order = np.zeros(ROOM, np.uint8)
        self._unpack = struct.Struct("4q").unpack_from
        self._receive = job.jobs.Recv_init(self._order, job.parent, between.ORDER)
        self._world: _World | None = None
        self._ended: deque[_World] = deque(maxlen=3)

    def serve(self) -> None:
        """Serves orders until the script has ended."""
        while True:
            kind, number, values, payload = self._next()
            match kind:
                case relay.RUN:
                    self._carry_out(partial(_World.run, number=number, values=values))
                case relay.COMMAND:
                    self._carry_out(partial(_World.command, forward=pickle.loads(payload)))  # noqa: S301  # of the first relay
                case relay.START:
                    self._start(pickle.loads(payload))  # noqa: S301
                case relay.END:
                    self._job.serial = number
                    self._end()
                case relay.QUIT:
                    self._drop_world()
                    return

    def _next(self) -> tuple[int, int, bytes, bytes]:
        """Receives the next order, and passes it on down the tree; returns its kind, number,
        values and payload.
        """
        job = self._job
        self._receive.Start()
        job.wait(self._receive, self._look)
        job.silence = 0.0
        kind, number, nbytes, size = self._unpack(self._order.data)
        end = 8 * HEAD + nbytes
        values = self._order[8 * HEAD : end].tobytes()
        if end + size <= ROOM:
            payload = self._order[end : end + size].tobytes()
            self._pass_on(self._order[: end + size], between.ORDER)
        else:
            received = np.empty(size, np.uint8)
            job.wait(job.jobs.Irecv(received, job.parent, between.BIG), self._watch_order)
            self._pass_on(self._order[:end], between.ORDER)
            self._pass_on(received, between.BIG)
            payload = received.tobytes()
        return kind, number, values, payload

    def _pass_on(self, message: Array, tag: int) -> None:
        """Sends a part of an order down the tree."""
        job = self._job
        if job.children:
            job.wait_all(
                [job.jobs.Isend(message, child, tag) for child in job.children], self._watch_order
            )

    def _watch_order(self) -> None:
        """Looks around while an order is on its way: a long one takes its time, another machine
        may be lost.
        """
        if self._world is not None:
            self._world.pulse()
        self._look()

    def _carry_out(self, do: "Callable[[_World], None]") -> None:
        """Carries out an order of a world; what comes after the end of the world is an order to
        end it.
        """
        if self._world is None:
            return
        try:
            do(self._world)
        except Ended:
            return  # the order that ends the world is read next
        except (OSError, MemoryError) as error:
            self._world.fail(error)

    def watch_parent(self) -> None:
        """Ends this process with the agent's, and where the first machine is not heard of any
        more.
        """
        if os.getppid() != self._agent:
            os._exit(1)
        if not self._job.hears_first():
            (first, *_), index = self._job.hosts, self._job.index
            sys.stderr.write(
                f"synknumba run: machine {index} ({self._job.hosts[index]}) has not heard of "
                f"machine 0 ({first}) for {between.ORPHAN_SECONDS:.0f} s, and ends\n"
            )
            sys.stderr.flush()
            os._exit(1)  # the agent, and the ranks with it, end with their relay

    @property
    def order_waits(self) -> bool:
        """Whether another order has come, while one is carried out."""
        return bool(self._job.jobs.Iprobe(source=self._job.parent, tag=between.ORDER))

    def pass_on_questions(self) -> bool:
        """Passes a question of the first relay on to the agent; returns whether one has come."""
        question = self._job.question()
        if question is not None:
            self.tell(question)
        return question is not None

    def _look(self) -> None:
        """Looks after the agent, and answers questions, between rounds."""
        self.watch_parent()
        if self.pass_on_questions():
            answer, _ = self.hear()
            assert isinstance(answer, Answers)
            self.reply(answer.of[0])

    def tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Sends a message to the agent."""
        channel.send(self._socket, channel.pack(message), descriptors, self.watch_parent)

    def hear(self) -> tuple[Any, list[int]]:
        """Receives a message of the agent, outside rounds."""
        return channel.receive(self._socket, self.watch_parent)

    def reply(self, answer: object) -> None:
        """Answers a question of the first relay."""
        self._job.jobs.Send(pickled((self._job.serial, answer)), 0, between.REPLY)

    def _start(self, scene: Scene) -> None:
        self._drop_world()
        rounds = self._job.jobs.Dup()
        world = self._world = _World(self, self._job, rounds, scene)
        self.tell(scene)
        told, descriptors = channel.receive(self._socket, world.pulse)
        assert isinstance(told, Told)
        if descriptors:
            world.attach(told, descriptors[0])
        world.answer(
            told if told.refused is not None or told.lost is not None or told.warned else None
        )

    def _end(self) -> None:
        self.tell(End())
        while not isinstance(self.hear()[0], End):
            pass  # what was under way
        self._drop_world()
        self.reply(None)

    def _drop_world(self) -> None:
        if self._world is not None:
            self._ended.append(self._world)  # MPI may still write to its buffers
            self._world.close()
            self._world = None


@final
class _World:
    """One world on this machine."""

    def __init__(self, other: OtherRelay, job: Between, rounds: Any, scene: Scene) -> None:
        self._other, self._job, self._scene = other, job, scene
        self._relay = Relay(job, rounds)
        self._first, self._after = scene.firsts[job.index : job.index + 2]
        self._control: ControlBlock | None = None
        self._sequence = 0
        self._present = Present()
        self._pulsed = 0.0
        self._pulse = np.zeros(1, np.uint8)
        self._answer = np.zeros(ROOM, np.uint8)
        self._answer_head = self._answer[:32].view(np.int64)

    def attach(self, told: Told, fd: int) -> None:
        """Maps the control block that the agent has made."""
        lines = self._after - self._first
        segment = Segment.attach(told.memory[0], fd, told.memory[1])
        self._control = ControlBlock(
            self._scene.world_size, Patience(*told.patience), lines=lines, segment=segment
        )

    def close(self) -> None:
        """Frees memory."""
        self._relay.close()
        if self._control is not None:
            self._control.close()

    def pulse(self) -> None:
        """Looks after the agent, and tells the first relay now and then that this one lives."""
        self._other.watch_parent()
        now = time.monotonic()
        if now - self._pulsed > PULSE_SECONDS:
            self._pulsed = now
            self._relay.rounds.Isend(self._pulse, 0, between.PULSE).Free()

    def _watch(self) -> None:
        self.pulse()
        self._other.pass_on_questions()
        if self._other.order_waits:  # nothing else comes in the middle of a round
            raise Ended

    def fail(self, error: Exception) -> None:
        """Tells that this relay cannot go on with the world."""
        host = self._job.hosts[self._job.index]
        lost = relay.failure(
            f"the relay of machine {self._job.index} ({host})", error, self._first, host
        )
        self.answer(Told(lost=lost))

    # ---- orders

    def run(self, number: int, values: bytes) -> None:
        """Runs a program."""
        control, relay_ = self._control, self._relay
        assert control is not None
        route = relay_.routes[number]
        control.values[: len(values)] = np.frombuffer(values, np.uint8)
        ins, outs = route.at(values, self._first, self._after)
        left = self._present.unsent(ins)
        for move in left:
            relay_.memory.reserve(move, self._watch)
            relay_.received(move, 0, between.ROWS, self._watch, self._present)
        for one in route.reduced:
            relay_.reduce(one, self._scene.firsts, self._watch)
        code = self._ring(control, number)
        told, descriptors = (None, []) if code == doorbell.ALL_DONE else self._finished(code)
        if told is not None:
            self._learn(number, told, descriptors)
        failed = told is not None and (
            told.lost is not None or any(item.failed for _, item in told.news)
        )
        if failed:
            self.answer(told)
            return
        if route.small_bytes >= 0:
            specs, used = {}, route.small_bytes
        else:  # a Python function, whose ranks have left the numbers of their results' types
            specs = self._specs(route.small_start)
            used = relay_.small_bytes(number, specs)
        self.answer(told, used, route.small_start)
        requests = [
            request for move in outs for request in relay_.sent(move, 0, between.BACK, Present())
        ]
        for rank, nbytes in relay_.large_results(number, specs):
            requests.append(
                relay_.rounds.Isend(relay_.large_bytes(number, rank, nbytes), 0, between.BACK)
            )
        self._job.wait_all(requests, self._watch)

    def _ring(self, control: ControlBlock, number: int) -> int:
        """Rings the ranks, and waits for a while; returns the code of the wait."""
        self._sequence += 1
        base, lines, spins = (
            control.base,
            control.lines,
            (control.patience.pauses, control.patience.coordinator),
        )
        code: int = doorbell.call(base, lines, self._sequence, number, *spins)
        if code == -1:
            control.wake_ranks()
            code = doorbell.await_all(base, lines, *spins)
        if code == doorbell.NOT_YET and control.sleep_coordinator(ALONE_SECONDS):
            code = doorbell.await_all(base, lines, 1, 1)
        return code

    def _specs(self, start: int) -> dict[int, int]:
        assert self._control is not None
        mine = (
            self._control.results[self._first : self._after, start : start + 8]
            .copy()
            .view(np.int64)[:, 0]
        )
        return {self._first + i: int(spec) for i, spec in enumerate(mine)}

    def _learn(self, number: int, told: Told, descriptors: list[int]) -> None:
        left = list(descriptors)
        for rank, item in told.news:
            self._relay.learn(number, rank, item)
            if item.segment is not None:
                self._relay.keep_large(number, rank, left.pop(0), item.segment[1])

    def command(self, forward: Forward) -> None:
        """Has the ranks carry out a command."""
        fds = [self._relay.memory.mirror(segment, nbytes) for segment, nbytes in forward.attached]
        if forward.route is not None:
            self._relay.routes[forward.route.number] = forward.route
        self._sequence += 1
        self._other.tell(replace(forward, sequence=self._sequence), fds)
        told, _ = self._told()
        self._relay.memory.drop(forward.dropped_segments)
        if forward.dropped_segments:
            self._present.drop(forward.dropped_segments)
        self._relay.forget(forward.dropped_programs)
        self.answer(told if told.news or told.warned or told.lost is not None else None)

    def _finished(self, code: int) -> tuple[Told | None, list[int]]:
        """Has the agent complete a round that does not end within the compiled wait, or has
        news.
        """
        self._other.tell(Finish(self._sequence, code))
        told, descriptors = self._told()
        quiet = not told.news and not told.warned and told.lost is None
        return (None if quiet else told), descriptors

    def _told(self) -> tuple[Told, list[int]]:
        while True:
            told, descriptors = channel.receive(self._other._socket, self._watch)  # noqa: SLF001  # same module
            if isinstance(told, Told):
                return told, descriptors
            self._other.reply(told.of[0])

    def answer(self, told: Told | None, used: int = 0, start: int = 0) -> None:
        """Sends small results, and what the ranks tell."""
        ranks = self._after - self._first
        news: Array | None = None if told is None else pickled(told)
        size = 0 if news is None else len(news)
        self._answer_head[:] = 0, ranks if used else 0, used, size
        block = ranks * used
        body = self._answer[8 * HEAD :]
        big = block + size > len(body)
        if big:
            body = np.empty(block + size, np.uint8)
        if used:
            assert self._control is not None
            body[:block].reshape(ranks, used)[:] = self._control.results[
                self._first : self._after, start : start + used
            ]
        if news is not None:
            body[block : block + size] = news
        rounds = self._relay.rounds
        rounds.Send(self._answer[: 8 * HEAD + (0 if big else block + size)], 0, between.ANSWER)
        if big:
            self._job.wait(rounds.Isend(body, 0, between.BIG), self._watch)
