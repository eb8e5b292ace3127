"""Steps recorded as a CUDA graph: one launch in place of one for every copy and kernel.

    steps ──capture──> graph ──instantiate──> executable ──launch──> wait for the mailbox, or for the stream

Small results are written to page-locked memory by one kernel, since a copy takes the copy engine 7
µs; the host spins on the mailbox. The smallest results are written to the mailbox itself, others to
their targets. After that, when the host no longer waits, private outputs are filled for the next
run, if nothing else runs these steps.

Changed scalars are written into the nodes of kernels. Where that is not possible, the steps are run
one by one.

Steps of many iterations are recorded the same way, and their launches queued without a wait between
them:

    graph of 64 iterations ──launch──launch──launch──> event
                                └── scalars are rewritten before a launch; those that are queued keep theirs
"""  # noqa: E501

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, final

from cupy.cuda import runtime

from synknumba._device.base import Recording, Step
from synknumba._device.cuda_code import MAILED_WORDS, Copy, Mailbox, mail, publish
from synknumba._device.cuda_nodes import (
    Captured,
    KernelNode,
    ScalarPlace,
    UnknownNodeError,
    capture,
    find_scalars,
    free_graph,
    launcher,
    rewriter,
)
from synknumba._device.cuda_steps import (
    NOT_READY,
    CopyOut,
    CudaLaunch,
    Fill,
    Join,
    Meeting,
    OnStream,
    StoreToHost,
    all_on_stream,
)
from synknumba._errors import DeviceError
from synknumba._wire import doorbell
from synknumba._wire.relaunch import Relaunch, Scalars

MOST_STEPS = 5000  # beyond, launches are a small part of the time
PUBLISHED_BYTES = 64 << 10  # copied by one block; larger results go through the copy engine

Wait: TypeAlias = Callable[[Callable[[], bool]], None]
"""Waits until a function returns true, unless that will never be."""


def spin(is_done: Callable[[], bool]) -> None:
    """Waits until a function returns true."""
    while not is_done():
        pass


def record(
    steps: Sequence[Step], stream: Any, box: Mailbox, wait: Wait = spin, *, alone: bool = True
) -> Recording | None:
    """Records steps that were run before; None if they do more than put work on this stream and on
    streams that join it.

    `wait` waits for work that meets other ranks, which would never end after one of them has
    failed.
    """
    if not steps or len(steps) > MOST_STEPS or not all_on_stream(steps):
        return None
    try:
        return _record(
            steps,
            stream,
            box,
            wait if any(isinstance(step, Meeting) for step in steps) else spin,
            alone=alone,
        )
    except Exception:  # noqa: BLE001  # of CUDA, CuPy, the compiler, NCCL: a step cannot be recorded, or memory is short
        return None


def _prints(step: Step) -> bool:
    """Returns whether a step launches a kernel that prints."""
    return isinstance(step, CudaLaunch) and step.kernel is not None and step.kernel.prints()


def _record(
    steps: Sequence[Step], stream: Any, box: Mailbox, wait: Wait, *, alone: bool
) -> Recording:
    rest, copies = list(steps), None
    if not any(map(_prints, steps)):
        rest, copies = _split(steps)
    fills: list[Step] = []
    targets: list[int] = []
    joins = [step for step in rest if isinstance(step, Join)]
    rest = [step for step in rest if not isinstance(step, Join)]
    if copies is not None:
        # no earlier step uses their arrays
        fills = [step for step in rest if alone and _is_private(step)]
        end, targets = _tell(copies, box, stream)
        rest = [*(step for step in rest if not (alone and _is_private(step))), end, *fills]
    rest += joins
    captured = capture(rest, stream)
    recording = GraphRecording(captured, stream, keeps=steps, wait=wait, box=box, targets=targets)
    try:
        for fill in fills:
            fill()
    except BaseException:
        recording.close()
        raise
    return recording


def record_queued(steps: Iterable[Step], stream: Any) -> Recording | None:
    """Records steps, each with the arguments that it has when it is taken, for launches that are
    queued; None if one cannot be recorded.
    """
    try:
        return GraphRecording(capture(steps, stream), stream)
    except Exception:  # noqa: BLE001  # as above
        return None


def _split(steps: Sequence[Step]) -> tuple[list[Step], list[Copy] | None]:
    """Splits off the copies of small results at the end of the steps; None if anything else is
    written to the host.
    """
    head, copies = list(steps), []
    while head and isinstance(last := head[-1], CopyOut):
        copies.append(Copy(*last.args[:3]))
        head.pop()
    if (
        any(isinstance(step, StoreToHost) for step in head)
        or sum(copy.nbytes for copy in copies) > PUBLISHED_BYTES
    ):
        return list(steps), None
    return head, copies[::-1]


def _tell(copies: Sequence[Copy], box: Mailbox, stream: Any) -> tuple[OnStream, list[int]]:
    """Returns the step that sends results to the host, and the target address of each word of
    the mailbox.
    """
    words = sum(copy.nbytes for copy in copies) // 4
    if 0 < words <= MAILED_WORDS and not any(
        (copy.target | copy.source | copy.nbytes) % 4 for copy in copies
    ):
        places = [(copy, at) for copy in copies for at in range(0, copy.nbytes, 4)]
        return mail([copy.source + at for copy, at in places], box, stream), [
            copy.target + at for copy, at in places
        ]
    return publish(copies, box, stream), [box.nowhere]


def _is_private(step: Step) -> bool:
    return isinstance(step, Fill) and step.private


@final
class GraphRecording(Recording):
    """A captured graph, and what launches it.

    Args:
        captured: the graph, which the recording owns, also if it cannot be instantiated.
        stream: on which it is launched.
        keeps: what else the graph addresses.
        wait: waits for work that meets other ranks.
        box: mailbox to which it sends its results.
        targets: where the words of the mailbox belong; none if results are copied otherwise.
    """

    def __init__(
        self,
        captured: Captured,
        stream: Any,
        *,
        keeps: Sequence[Step] = (),
        wait: Wait = spin,
        box: Mailbox | None = None,
        targets: Sequence[int] = (),
    ) -> None:
        self._captured, self._keeps = captured, keeps
        self._stream, self._pointer, self._await = stream, stream.ptr, wait
        try:
            self._executable = runtime.graphInstantiate(captured.graph)
        except BaseException:
            runtime.graphDestroy(captured.graph)
            raise
        self._relaunch: Relaunch | None = None
        if targets:
            assert box is not None  # the targets are those of its words
            self._relaunch = Relaunch(
                launcher(), self._executable, self._pointer, box.address, targets
            )
            self.relaunch = self._relaunch.address
        # positions of launches with scalars that change
        self._changing = [
            position
            for position, step in enumerate(captured.steps)
            if isinstance(step, CudaLaunch) and step.changing
        ]
        self._kernels: dict[int, tuple[KernelNode, list[Any]]] = {}  # with their arguments
        self._places: dict[Any, list[ScalarPlace]] = {}  # by layout

    def launch(self) -> None:
        if not self.relaunch or doorbell.launch(self.relaunch) != 0:
            self.queue()  # raises the error of the first launch
        self.wait()

    def queue(self) -> None:
        runtime.graphLaunch(self._executable, self._pointer)

    def wait(self) -> None:
        if self.relaunch:
            self._await(self._has_mail)
            return
        if self._await is not spin:
            self._await(self._is_idle)
        runtime.streamSynchronize(self._pointer)

    def _has_mail(self) -> bool:
        if doorbell.take(self.relaunch):
            return True
        if not self._is_idle():
            return False
        runtime.streamSynchronize(self._pointer)  # raises an error, after which no mail arrives
        if not doorbell.take(self.relaunch):
            raise DeviceError(
                "a recorded CUDA graph ended without results; please report this, with the kernel"
            )
        return True

    def _is_idle(self) -> bool:
        return bool(runtime.streamQuery(self._pointer) != NOT_READY)

    def renew(self, first: int = 0, after: int | None = None) -> bool:
        try:
            for kernel, arguments in self._launches(first, after):
                kernel.renew(self._executable, arguments)
        except Exception:  # noqa: BLE001  # a scalar that does not fit, a driver that refuses: the steps are run one by one
            return False
        return True

    def scalars(self, first: int = 0, after: int | None = None) -> Scalars | None:
        try:
            kernels = [kernel for kernel, _ in self._launches(first, after)]
        except Exception:  # noqa: BLE001  # as above
            return None
        places = [place for kernel in kernels for place in kernel.scalars]
        calls = [(self._executable, *kernel.node_and_params) for kernel in kernels]
        return Scalars(places, rewriter(), calls)

    def _launches(self, first: int, after: int | None) -> list[tuple[KernelNode, list[Any]]]:
        """Returns the nodes of launches whose scalars change, with the launches' arguments."""
        begin = bisect_left(self._changing, first)
        end = None if after is None else bisect_left(self._changing, after)
        return [self._launch_at(position) for position in self._changing[begin:end]]

    def _launch_at(self, position: int) -> tuple[KernelNode, list[Any]]:
        launch = self._kernels.get(position)
        if launch is None:
            step = self._captured.steps[position]
            assert isinstance(step, CudaLaunch)  # others have no scalars
            if position not in self._captured.nodes:
                raise UnknownNodeError("node", position)
            kernel = KernelNode(self._captured.nodes[position], self._places_of(step))
            launch = self._kernels[position] = kernel, step.arguments
        return launch

    def _places_of(self, launch: CudaLaunch) -> list[ScalarPlace]:
        places = self._places.get(launch.layout)
        if places is None:
            places = self._places[launch.layout] = find_scalars(launch, self._stream)
        return places

    def close(self) -> None:
        if self._executable:
            free_graph(self._captured.graph, self._executable, self._stream)
            self._executable = self.relaunch = 0
            self._captured, self._keeps = Captured(0, (), {}), ()
