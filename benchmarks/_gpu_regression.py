"""The softmax regression of gpu_sequences.py, and what its peers run in processes of their own.
Prints JSON.

python benchmarks/_gpu_regression.py RANKS SECONDS torch|graph|jax

"torch" launches step by step, "graph" a CUDA graph of a step with NCCL inside; "jax" is jit with
psum. The loss of each step goes to the script.
"""

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from _common import Timing, summarise

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


def torch_rank(rank: int, ranks: int, seconds: float, how: str, meeting: str) -> None:
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", f"file://{meeting}", rank=rank, world_size=ranks)
    mine = slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)
    x, onehot = (torch.from_numpy(one[mine].copy()).cuda() for one in problem())
    w = torch.zeros((FEATURES, CLASSES), device="cuda")
    loss = torch.zeros((), device="cuda")

    def launch() -> None:
        p = torch.log_softmax(x @ w, 1)
        loss.copy_(-(p * onehot).sum() / ROWS)
        distributed.all_reduce(loss)
        slope = x.T @ (p.exp() - onehot)
        distributed.all_reduce(slope)
        w.sub_(RATE * slope)

    run = launch
    if how == "graph":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        w.zero_()
        run = graph.replay

    def step() -> float:
        run()
        return loss.item()

    timing = timed(step, max(4, int(seconds * 20)))
    if rank == 0:
        print(json.dumps({WHAT: dataclasses.asdict(timing)}), flush=True)
    os._exit(0)  # a captured graph may keep NCCL from ending


def by_torch(ranks: int, seconds: float, how: str) -> None:
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            torch_rank, (ranks, seconds, how, os.path.join(folder, "meeting")), ranks
        )


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

    print(json.dumps({WHAT: dataclasses.asdict(timed(step, max(4, int(seconds * 20))))}))


def main() -> None:
    ranks, seconds, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    if how == "jax":
        by_jax(ranks, seconds)
    else:
        by_torch(ranks, seconds, how)


if __name__ == "__main__":
    main()
