"""torch in lockstep: W processes, each with its rows on a device of its own, which put their
numbers together in every step.

Started by `_gpu_call_peers`; they find each other by RANK, WORLD_SIZE, MEETING_FILE and
MEETING_PAGE.
"""

import contextlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from _common import Timing, summarise
from _gpu_call_peers import (
    AT_LEAST,
    AT_MOST,
    BLOCK,
    LEFT_OUT,
    PAGE_BYTES,
    Page,
    Row,
    Settings,
    Step,
    check,
    pairs,
    print_rows,
    rows_of,
    sum_of_pairs,
)

COMPILE_SECONDS = 40.0  # that torch.compile may take for one shape


class Torch:
    """One process of torch.distributed among those that take part in a measurement."""

    def __init__(self, settings: Settings, page: Page, group: Any, device: Any) -> None:
        self._settings, self._page, self._group, self._device = settings, page, group, device
        self._compiles = True

    def measure(self) -> Iterator[Row]:
        """Everybody runs this at the same time; rows are the first's."""
        for rows in self._settings.rows:
            steps, expected = (
                self._sums(rows) if self._settings.work == "sum" else self._means(rows)
            )
            for what, step in steps:
                self._check(what, step, expected)
                yield Row("torch", what, self._page.ranks, rows, self._time(step))

    def measure_graphs(self) -> Iterator[Row]:
        """A sum and its all_reduce in one CUDA graph, where everybody can capture it."""
        for rows in self._settings.rows:
            x, expected = self._numbers(rows)
            what = "sum and all_reduce in a CUDA graph, item on every rank"
            problem = None
            try:
                step = self._graph(x)
            except Exception as error:  # noqa: BLE001  # of many kinds, in NCCL, torch or the driver
                problem = (
                    f"{LEFT_OUT}{what}: {type(error).__name__}: "
                    f"{str(error).strip().splitlines()[:1]}"
                )
                print(problem, file=sys.stderr)
            if self._page.agree(problem is None):
                self._check(what, step, expected)
                yield Row("torch", what, self._page.ranks, rows, self._time(step))

    def _sums(self, rows: int) -> tuple[Iterator[tuple[str, Step]], float]:
        x, expected = self._numbers(rows)
        return self._sum_steps(x), expected

    def _numbers(self, rows: int) -> tuple[Any, float]:
        values = np.arange(float(rows))
        own = values[rows_of(self._page.rank, self._page.ranks, rows)]
        return torch.from_numpy(own).to(self._device), float(values.sum())

    def _sum_steps(self, x: Any) -> Iterator[tuple[str, Step]]:
        first = self._page.rank == 0

        def everywhere() -> Any:
            total = x.sum()
            torch.distributed.all_reduce(total, group=self._group)
            return total.item()

        def at_first() -> Any:
            total = x.sum()
            torch.distributed.all_reduce(total, group=self._group)
            return total.item() if first else None

        yield "sum, all_reduce, item on rank 0", at_first
        yield "sum, all_reduce, item on every rank", everywhere
        yield "sum, item on every rank, put together in shared memory", self._through_page(x)

    def _through_page(self, x: Any) -> Step:
        """Rank 0 says when to begin, and adds up what the others have put into the page."""
        page = self._page
        others = range(1, page.ranks)
        number = 0

        def step() -> float | None:
            nonlocal number
            number += 1
            if page.rank == 0:
                page.put(page.leader, number)
                return x.sum().item() + sum(page.take(rank, number) for rank in others)
            page.take(page.leader, number)
            page.put(page.rank, number, x.sum().item())
            return None

        return step

    def _graph(self, x: Any) -> Step:
        cuda = torch.cuda
        side = cuda.Stream()
        with cuda.stream(side):
            torch.distributed.all_reduce(x.sum(), group=self._group)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            total = x.sum()
            torch.distributed.all_reduce(total, group=self._group)

        def step() -> Any:
            graph.replay()
            return total.item()

        return step

    def _means(self, rows: int) -> tuple[Iterator[tuple[str, Step]], float]:
        counts = [
            len(range(rows)[rows_of(rank, self._page.ranks, rows)])
            for rank in range(self._page.ranks)
        ]
        own = counts[self._page.rank]
        x, y = (
            torch.from_numpy(b).to(self._device).repeat(-(-own // BLOCK))[:own] for b in pairs()
        )
        return self._mean_steps(x, y, rows), sum(sum_of_pairs(count) for count in counts) / rows

    def _mean_steps(self, x: Any, y: Any, rows: int) -> Iterator[tuple[str, Step]]:
        def own_sum(x: Any, y: Any) -> Any:
            return (y * torch.exp(-x * x)).sum()

        def step(sum_up: Callable[[Any, Any], Any]) -> float:
            total = sum_up(x, y)
            torch.distributed.all_reduce(total, group=self._group)
            return total.item() / rows

        yield "eager, all_reduce, item", partial(step, own_sum)
        compiled = self._compiled(own_sum, x, y)
        if compiled is not None:
            yield "torch.compile, all_reduce, item", partial(step, compiled)

    def _compiled(self, function: Callable[..., Any], x: Any, y: Any) -> Callable[..., Any] | None:
        """For these shapes, which is faster than one for all; None where it does not work for
        everybody in time.
        """
        if not self._compiles:
            return None
        problem = None
        try:
            with limited(COMPILE_SECONDS):
                torch.compiler.reset()
                compiled = torch.compile(function, dynamic=False, fullgraph=True)
                compiled(x, y)
        except Exception as error:  # noqa: BLE001  # of many kinds: no compiler, no Triton, too slow
            problem = (
                f"{LEFT_OUT}torch.compile: {type(error).__name__}: "
                f"{str(error).strip().splitlines()[:1]}"
            )
        self._compiles = bool(self._page.agree(problem is None))
        if problem is not None:
            print(problem, file=sys.stderr)
        return compiled if self._compiles else None

    def _check(self, what: str, step: Step, expected: float) -> None:
        got = step()
        self._drain()
        if self._page.rank == 0:
            check(what, got, expected, self._settings)

    def _time(self, step: Step) -> Timing:
        """As `time_calls`, but everybody makes the same number of steps."""
        probe = self._time_fixed(step, AT_LEAST)
        wanted = min(
            max(AT_LEAST, int(self._settings.seconds * 1e6 / probe.median)),
            AT_MOST[self._settings.work],
        )
        self._time_fixed(step, self._page.agree(max(AT_LEAST, wanted // 10)))
        return self._time_fixed(step, self._page.agree(wanted))

    def _time_fixed(self, step: Step, steps: int) -> Timing:
        clock = time.perf_counter_ns
        self._page.meet()
        step()
        times = []
        for _ in range(steps):
            start = clock()
            step()
            times.append(clock() - start)
        self._drain()
        return summarise(times)

    def _drain(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread when the time is over."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def torch_rows(settings: Settings) -> Iterator[Row]:
    """With fewer ranks than there are processes the others sit out."""
    rank, most = int(os.environ["RANK"]), max(settings.ranks)
    device = torch.device("cuda", rank) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // most))
    with Path(os.environ["MEETING_PAGE"]).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), PAGE_BYTES)
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = "file://" + os.environ["MEETING_FILE"]
    torch.distributed.init_process_group(backend, meeting, rank=rank, world_size=most)
    groups = [torch.distributed.new_group(list(range(ranks))) for ranks in settings.ranks]
    everybody = Page(memory, rank, most)
    worlds = [
        Torch(settings, Page(memory, rank, ranks, place * (most + 1)), group, device)
        if rank < ranks
        else None
        for place, (ranks, group) in enumerate(zip(settings.ranks, groups, strict=True), 1)
    ]
    for world in worlds:
        everybody.meet()
        if world is not None:
            yield from world.measure()
    # last, since a capture that fails may leave NCCL unusable
    if device.type == "cuda" and settings.work == "sum":
        for world in worlds:
            everybody.meet()
            if world is not None:
                yield from world.measure_graphs()
    everybody.meet()


def main() -> None:
    """One of the processes; what the first prints counts."""
    print_rows(torch_rows)


if __name__ == "__main__":
    main()
