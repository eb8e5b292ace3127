"""Steps of many iterations recorded as one CUDA graph, whose launches are queued without a wait
between them.

graph of 64 iterations ──launch──launch──launch──> event
                            └── scalars of kernels are rewritten before a launch; those that are queued keep theirs
"""  # noqa: E501

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from cupy.cuda import runtime

from synknumba._device.base import Chain, Step
from synknumba._device.cuda_nodes import (
    KernelNode,
    ScalarPlace,
    capture,
    find_scalars,
    free_graph,
    rewriter,
)
from synknumba._device.cuda_steps import CudaLaunch
from synknumba._wire.relaunch import Scalars


def record_chain(steps: Iterable[Step], stream: Any) -> Chain | None:
    """Records steps, each with the arguments that it has when it is taken; None if one cannot be
    recorded.
    """
    noted: list[Step] = []

    def taken() -> Iterator[Step]:
        for step in steps:
            noted.append(step)
            yield step

    try:
        graph, nodes = capture(taken(), stream)
    except Exception:  # noqa: BLE001  # of CUDA, CuPy, the compiler, NCCL: a step cannot be recorded, or memory is short
        return None
    try:
        return _GraphChain(graph, runtime.graphInstantiate(graph), stream, noted, nodes)
    except Exception:  # noqa: BLE001  # memory is short
        runtime.graphDestroy(graph)
        return None


@final
class _GraphChain(Chain):
    def __init__(
        self, graph: int, executable: int, stream: Any, steps: Sequence[Step], nodes: dict[int, int]
    ) -> None:
        self._graph, self._executable, self._stream = graph, executable, stream
        self._steps = steps  # keeps alive what the graph addresses
        self._nodes = nodes
        self._kernels: dict[int, KernelNode] = {}
        self._places: dict[Any, list[ScalarPlace]] = {}  # by layout

    def __call__(self) -> None:
        runtime.graphLaunch(self._executable, self._stream.ptr)

    def renew(self, first: int, after: int) -> None:
        for kernel, launch in self._kernels_of(first, after):
            kernel.renew(self._executable, launch.arguments)

    def scalars(self, first: int, after: int) -> Scalars:
        kernels = [kernel for kernel, _ in self._kernels_of(first, after)]
        places = [place for kernel in kernels for place in kernel.scalars]
        return Scalars(
            places, rewriter(), [(self._executable, *kernel.node_and_params) for kernel in kernels]
        )

    def _kernels_of(self, first: int, after: int) -> Iterator[tuple[KernelNode, CudaLaunch]]:
        for position in range(first, after):
            if position not in self._nodes:
                continue
            step = self._steps[position]
            assert isinstance(step, CudaLaunch)  # others have no nodes here
            if position not in self._kernels:
                self._kernels[position] = KernelNode(self._nodes[position], self._places_of(step))
            yield self._kernels[position], step

    def _places_of(self, launch: CudaLaunch) -> list[ScalarPlace]:
        places = self._places.get(launch.layout)
        if places is None:
            places = self._places[launch.layout] = find_scalars(launch, self._stream)
        return places

    def close(self) -> None:
        if self._executable:
            free_graph(self._graph, self._executable, self._stream)
            self._executable = 0
            self._steps = ()
