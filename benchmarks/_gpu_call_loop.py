"""A hand-made loop, the floor: W forked workers that spin on shared memory, replay a CUDA graph,
and answer.

    script   puts a round's number ──> … adds up the answers
    worker       sees it, replays memset + kernel + 8-byte copy into shared memory, waits, answers with the number

Started by `_gpu_call_peers`. On a CPU, NumPy's sum takes the place of the graph.
"""  # noqa: E501

import mmap
import multiprocessing
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from _gpu_call_peers import (
    PAGE_BYTES,
    Page,
    Row,
    Settings,
    Step,
    check,
    print_rows,
    rows_of,
    time_steps,
)

SUM = r"""
extern "C" __global__ void add_up(const double* x, long long rows, double* total) {
    double own = 0;
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += gridDim.x * blockDim.x) own += x[i];
    atomicAdd(total, own);
}
"""  # noqa: E501
LOOP_STEPS = {
    "cpu": ("NumPy's sum into shared memory",),
    "cuda": (
        "graph of memset, kernel, 8-byte copy; stream waited for",
        "graph of memset, kernel, 8-byte copy; number watched",
    ),
}
STOP = -1


def loop_rows(settings: Settings) -> Iterator[Row]:
    """The floor: nothing but the spinning, the graph, and the sum of the sums."""
    for ranks in settings.ranks:
        for rows in settings.rows:
            memory = mmap.mmap(-1, PAGE_BYTES)
            page = Page(memory, 0, ranks)
            work = partial(serve, memory, ranks, rows, settings.device)
            processes = [
                multiprocessing.get_context("fork").Process(target=work, args=(rank,))
                for rank in range(ranks)
            ]
            for process in processes:
                process.start()
            yield from measure_loop(page, processes, rows, settings)
            for process in processes:
                process.join()


def measure_loop(page: Page, processes: list[Any], rows: int, settings: Settings) -> Iterator[Row]:
    """The script's side: it puts a number, and takes every worker's answer to it."""
    number = 1
    while not all(page.is_done(rank, number) for rank in range(page.ranks)):  # until all are ready
        assert all(process.exitcode is None for process in processes), (
            "a worker of the hand-made loop has failed"
        )
        time.sleep(1e-3)

    def step() -> float:
        nonlocal number
        number += 1
        page.put(page.leader, number)
        return sum([page.take(rank, number) for rank in range(page.ranks)])

    for index, what in enumerate(LOOP_STEPS[settings.device]):
        page.say(page.leader, index)
        check(what, step(), rows * (rows - 1) / 2, settings)
        yield Row("hand-made loop", what, page.ranks, rows, time_steps(step, settings))
    page.say(page.leader, STOP)
    page.put(page.leader, number + 1)


def serve(memory: mmap.mmap, ranks: int, rows: int, device: str, rank: int) -> None:
    """A worker's side."""
    page = Page(memory, rank, ranks)
    x = np.arange(float(rows))[rows_of(rank, ranks, rows)]
    place = page.word(rank) + 1
    steps = (
        cpu_steps(x, page.values, place)
        if device == "cpu"
        else cuda_steps(x, page.values, place, rank)
    )
    number = 1
    while True:
        page.put(rank, number)
        number += 1
        page.take(page.leader, number)
        chosen = page.said(page.leader)
        if chosen == STOP:
            return
        steps[chosen]()


def cpu_steps(x: Any, values: memoryview, place: int) -> list[Step]:
    """NumPy."""

    def step() -> None:
        values[place] = x.sum()

    return [step]


def cuda_steps(x: Any, values: memoryview, place: int, rank: int) -> list[Step]:
    """One graph, and two ways to know that it has run."""
    import cupy
    from cupy.cuda import runtime

    cupy.cuda.Device(rank).use()
    runtime.hostRegister(np.frombuffer(values, np.float64).ctypes.data, PAGE_BYTES, 0)
    target = np.frombuffer(values, np.float64)[place:].ctypes.data
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        on_gpu, total = cupy.asarray(x), cupy.zeros(1)
        kernel = cupy.RawKernel(SUM, "add_up")
        launch = partial(kernel, (1,), (128,), (on_gpu, np.int64(len(x)), total))
        launch()  # compiles, which cannot be captured
        stream.synchronize()
        stream.begin_capture()
        runtime.memsetAsync(total.data.ptr, 0, 8, stream.ptr)
        launch()
        runtime.memcpyAsync(target, total.data.ptr, 8, runtime.memcpyDeviceToHost, stream.ptr)
        graph = stream.end_capture()

    def waited() -> None:
        graph.launch(stream)
        stream.synchronize()

    def watched() -> None:
        values[place] = np.nan
        graph.launch(stream)
        while values[place] != values[place]:  # only a NaN differs from itself
            pass

    return [waited, watched]


if __name__ == "__main__":
    print_rows(loop_rows)
