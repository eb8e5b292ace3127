"""Steps recorded as a CUDA graph: one launch in place of one for every copy and kernel.

    steps ──capture──> graph ──instantiate──> executable ──launch──> wait for the mailbox, or for the stream

Small results are written to page-locked memory by one kernel, since a copy takes the copy engine 7
µs; the host spins on the mailbox. The smallest results are written to the mailbox itself, others to
their targets. After that, when the host no longer waits, private outputs are filled for the next
run, if nothing else runs these steps.

Changed scalars are written into the nodes of kernels. Where that is not possible, the steps are run
one by one.
"""  # noqa: E501

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from cupy.cuda import runtime

from synknumba._device.base import Replay, Step
from synknumba._device.cuda_code import MAILED_WORDS, Copy, Mailbox, mail, publish
from synknumba._device.cuda_nodes import (
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
) -> Replay | None:
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


def _record(steps: Sequence[Step], stream: Any, box: Mailbox, wait: Wait, *, alone: bool) -> Replay:
    prints = any(
        step.kernel is not None and step.kernel.prints()
        for step in steps
        if isinstance(step, CudaLaunch)
    )
    rest, copies = (list(steps), None) if prints else _split(steps)
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
    graph, nodes = capture(rest, stream)
    try:
        executable = runtime.graphInstantiate(graph)
    except BaseException:
        runtime.graphDestroy(graph)
        raise
    relaunch = (
        Relaunch(launcher(), executable, stream.ptr, box.address, targets) if targets else None
    )
    replay = _GraphReplay(graph, executable, stream, relaunch, [*rest, *steps], nodes, wait)
    try:
        for fill in fills:
            fill()
    except BaseException:
        replay.close()
        raise
    return replay


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
class _GraphReplay(Replay):
    def __init__(
        self,
        graph: int,
        executable: int,
        stream: Any,
        relaunch: Relaunch | None,
        steps: Sequence[Step],
        nodes: dict[int, int],
        wait: Wait,
    ) -> None:
        self._graph, self._executable = graph, executable
        self._stream, self._pointer, self._await = stream, stream.ptr, wait
        self._relaunch = relaunch
        self.relaunch = 0 if relaunch is None else relaunch.address
        self._steps = steps  # keeps alive what the graph addresses; the recorded steps come first
        self._nodes = nodes
        self._changing = len(
            {id(step) for step in steps if isinstance(step, CudaLaunch) and step.changing}
        )
        self._kernels: list[tuple[KernelNode, list[Any]]] | None = (
            None  # with the arguments of their launches
        )

    def __call__(self) -> None:
        if not self.relaunch or doorbell.launch(self.relaunch) != 0:
            # raises the error of the first launch
            runtime.graphLaunch(self._executable, self._pointer)
        self.wait()

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

    def renew(self) -> bool:
        try:
            if self._kernels is None:
                self._kernels = self._find_kernels()
                places = [place for kernel, _ in self._kernels for place in kernel.scalars]
                calls = [(self._executable, *kernel.node_and_params) for kernel, _ in self._kernels]
                self.scalars = Scalars(places, rewriter(), calls)
            for kernel, arguments in self._kernels:
                kernel.renew(self._executable, arguments)
        except Exception:  # noqa: BLE001  # a scalar that does not fit, a driver that refuses: the steps are run one by one
            return False
        return True

    def _find_kernels(self) -> list[tuple[KernelNode, list[Any]]]:
        launches = {
            i: step
            for i, step in enumerate(self._steps)
            if isinstance(step, CudaLaunch) and i in self._nodes
        }
        if len(launches) != self._changing:
            raise UnknownNodeError("nodes")
        places: dict[Any, list[ScalarPlace]] = {}
        for step in launches.values():
            if step.layout not in places:
                places[step.layout] = find_scalars(step, self._stream)
        return [
            (KernelNode(self._nodes[i], places[step.layout]), step.arguments)
            for i, step in launches.items()
        ]

    def close(self) -> None:
        if self._executable:
            free_graph(self._graph, self._executable, self._stream)
            self._executable = self.relaunch = 0
            self.scalars = None
            self._steps = ()
