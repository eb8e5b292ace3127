"""Steps to be recorded, and what they work on."""

from typing import Any

import numpy as np

from synknumba._device.compilers.numba_cuda import NumbaKernel
from tests.unit.cuda import stand_in


class Bench:
    """A stream with a mailbox, arrays on both sides, and steps.

    Args:
        machine: the model that all is on.
        gpu: the device's modules.
    """

    def __init__(self, machine: Any, gpu: Any) -> None:
        self.machine, self.gpu = machine, gpu
        self.stream = stand_in.Stream(non_blocking=True)
        self.box = gpu.code.Mailbox()

    def record(self, steps: Any, *, alone: bool = True) -> Any:
        return self.gpu.graph.record(steps, self.stream, self.box, alone=alone)

    def host(self, values: Any) -> np.ndarray:
        """A page-locked array."""
        values = np.asarray(values, np.float64)
        memory = np.frombuffer(stand_in.alloc_pinned_memory(max(values.nbytes, 1)), np.uint8)[
            : values.nbytes
        ]
        made = memory.view(np.float64).reshape(values.shape)
        made[...] = values
        return made

    def array(self, count: int) -> Any:
        """An array of the device, full of garbage."""
        return self.gpu.memory.typed(stand_in.alloc(8 * count), "float64", (count,))

    def bring(self, array: Any, host: np.ndarray) -> Any:
        return self.gpu.steps.copy_in(array, host.ctypes.data, self.stream)

    def out(self, host: np.ndarray, array: Any, *, reached: bool = True) -> Any:
        return self.gpu.steps.copy_out(host.ctypes.data, array, self.stream, reached=reached)

    def work(self, function: Any) -> Any:
        """A step that has the function run when the stream comes to it."""
        return self.gpu.steps.OnStream(self.machine.put, self.stream.ptr, function)

    def kernel(self, dispatcher: Any, *, debug: bool = False) -> Any:
        """The device's kernel of what `cuda.jit` made."""
        return self.gpu.steps.CudaKernel(NumbaKernel(dispatcher, self.stream, debug=debug))

    def fill(self, array: Any, *, private: bool) -> Any:
        """A step that fills with zeros."""
        step = self.gpu.steps.Fill(
            self.gpu.runtime.memsetAsync, array.data.ptr, 0, array.nbytes, self.stream.ptr
        )
        step.private = private
        return step

    def recorded(self) -> list[Any]:
        """The work of the nodes of the one graph that there is, in the order in which it was
        put.
        """
        (graph,) = self.machine.graphs.values()
        return graph.nodes

    def run(self, steps: Any) -> None:
        """One by one."""
        for step in steps:
            step()
        self.stream.synchronize()
