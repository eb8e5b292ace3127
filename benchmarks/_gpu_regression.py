"""The softmax regression of gpu_sequences.py, and what its peers run in processes of their own.
Prints JSON.

python benchmarks/_gpu_regression.py RANKS SECONDS torch|jax

torch has several forms, of which the fastest is the peer: with an all_reduce for the gradient and
one for the loss, or one for both in a buffer; launched by Python or in a CUDA graph with NCCL
inside; with torch.compile. "jax" is jit with psum. The loss of each step goes to the script.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _common import Timing, print_forms_of_torch, print_timing, summarise

ROWS, FEATURES, CLASSES, RATE = 4096, 784, 10, 1e-5
WHAT = f"softmax regression {ROWS} × {FEATURES}"
STEPS = 100


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Rows, and their classes as lines of the unit matrix."""
    rng = np.random.default_rng(0)
    rows, labels = rng.random((ROWS, FEATURES), np.float32), rng.integers(0, CLASSES, ROWS)
    return rows, np.eye(CLASSES, dtype=np.float32)[labels]


def losses_by_numpy(count: int) -> list[float]:
    """The mean losses of the first steps."""
    x, onehot = (one.astype(np.float64) for one in problem())
    w, found = np.zeros((FEATURES, CLASSES)), []
    for _ in range(count):
        z = x @ w
        e = np.exp(z - z.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
        found.append(float(-np.log((p * onehot).sum(1)).mean()))
        w -= RATE * (x.T @ (p - onehot))
    return found


def timed(step: Callable[[], float], runs: int) -> Timing:
    """Times of a step, `STEPS` at a time."""
    assert np.allclose([step() for _ in range(5)], losses_by_numpy(5), rtol=1e-4)
    times = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        for _ in range(STEPS):
            step()
        times.append((time.perf_counter_ns() - began) // STEPS)
    return summarise(times)


class Regression:
    """One process's rows in torch, and steps of regression on them."""

    def __init__(self, rank: int, ranks: int) -> None:
        import torch

        own = slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)
        self.x, self.onehot = (torch.from_numpy(one[own].copy()).cuda() for one in problem())
        self.w = torch.zeros((FEATURES, CLASSES), device="cuda")

    def gradient(self) -> tuple[Any, Any]:
        """This process's part of the loss and of the slope."""
        import torch

        p = torch.log_softmax(self.x @ self.w, 1)
        return -(p * self.onehot).sum() / ROWS, self.x.T @ (p.exp() - self.onehot)

    def two(self) -> tuple[Callable[[], None], Any]:
        """Two all_reduces; what launches a step, and where its loss is."""
        import torch
        from torch import distributed

        total = torch.zeros((), device="cuda")

        def launch() -> None:
            loss, slope = self.gradient()
            total.copy_(loss)
            distributed.all_reduce(total)
            distributed.all_reduce(slope)
            self.w.sub_(slope, alpha=RATE)

        return launch, total

    def flat(self, compiled: bool = False) -> tuple[Callable[[], None], Any]:
        """One all_reduce of a buffer with the slope and the loss."""
        import torch
        from torch import distributed

        buffer = torch.zeros(self.w.numel() + 1, device="cuda")
        slope = buffer[:-1].view_as(self.w)
        gradient = self.gradient
        if compiled:
            gradient = torch.compile(gradient, dynamic=False, fullgraph=True)

        def launch() -> None:
            loss, own = gradient()
            torch.cat([own.reshape(-1), loss.reshape(1)], out=buffer)
            distributed.all_reduce(buffer)
            self.w.sub_(slope, alpha=RATE)

        return launch, buffer[-1]

    def captured(self, launch: Callable[[], None], total: Any) -> tuple[Callable[[], None], Any]:
        """The step in a CUDA graph, and the weights as they were."""
        import torch

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        self.w.zero_()
        return graph.replay, total


# those with graphs last: a capture that fails may leave NCCL unusable
FORMS: dict[str, Callable[[Regression], tuple[Callable[[], None], Any]]] = {
    "": Regression.two,
    "one all_reduce": Regression.flat,
    "one all_reduce, CUDA graph": lambda problem: problem.captured(*problem.flat()),
    "CUDA graph": lambda problem: problem.captured(*problem.two()),
    "one all_reduce, torch.compile, CUDA graph": lambda problem: problem.captured(
        *problem.flat(compiled=True)
    ),
}


def torch_rank(rank: int, ranks: int, seconds: float, meeting: str) -> None:
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", f"file://{meeting}", rank=rank, world_size=ranks)

    def measure(form: str) -> Timing:
        launch, total = FORMS[form](Regression(rank, ranks))

        def step() -> float:
            launch()
            return float(total.item())

        return timed(step, max(4, int(seconds * 20)))

    print_forms_of_torch(WHAT, {form: partial(measure, form) for form in FORMS}, rank)


def by_torch(ranks: int, seconds: float) -> None:
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(torch_rank, (ranks, seconds, os.path.join(folder, "meeting")), ranks)


def by_jax(ranks: int, seconds: float) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((ranks,), ("ranks",))
    x, onehot = (
        jax.device_put(one, NamedSharding(mesh, PartitionSpec("ranks"))) for one in problem()
    )
    w = jax.device_put(
        np.zeros((FEATURES, CLASSES), np.float32), NamedSharding(mesh, PartitionSpec())
    )

    def on_device(x: jax.Array, onehot: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        p = jax.nn.log_softmax(jnp.matmul(x, w, precision="highest"))
        loss = jax.lax.psum(-(p * onehot).sum() / ROWS, "ranks")
        slope = jax.lax.psum(jnp.matmul(x.T, jnp.exp(p) - onehot, precision="highest"), "ranks")
        return w - RATE * slope, loss

    rows, whole = PartitionSpec("ranks"), PartitionSpec()
    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(rows, rows, whole),
        out_specs=(whole, whole),
        check_vma=False,
    )
    compiled = jax.jit(mapped, donate_argnums=2)

    def step() -> float:
        nonlocal w
        w, loss = compiled(x, onehot, w)
        return float(loss)

    print_timing("", WHAT, timed(step, max(4, int(seconds * 20))))


def main() -> None:
    ranks, seconds, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    if how == "jax":
        by_jax(ranks, seconds)
    else:
        by_torch(ranks, seconds)


if __name__ == "__main__":
    main()
