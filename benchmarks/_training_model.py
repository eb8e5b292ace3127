"""The network of training.py, and what its peers run in processes of their own. Prints JSON.

python benchmarks/_training_model.py RANKS SECONDS ddp|graph|jax

A perceptron with two hidden layers of 512, 784 inputs and 10 classes, on 4,096 rows, with adam; the
loss of each step goes to the script. "ddp" is torch's DistributedDataParallel, "graph" a CUDA graph
of a step with NCCL inside, "jax" jit with psum and optax.
"""

import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Timing, summarise

ROWS, LAYERS, RATE = 4096, (784, 512, 512, 10), 1e-3
WHAT = "MLP " + "-".join(map(str, LAYERS)) + ", adam"
STEPS = 50


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Rows, and their classes."""
    rng = np.random.default_rng(0)
    return rng.random((ROWS, LAYERS[0]), np.float32), rng.integers(0, LAYERS[-1], ROWS)


def start() -> list[np.ndarray]:
    """Weights and biases of the layers, in turns."""
    rng = np.random.default_rng(1)
    pairs = [
        (
            rng.normal(0, (2 / rows) ** 0.5, (rows, columns)).astype(np.float32),
            np.zeros(columns, np.float32),
        )
        for rows, columns in itertools.pairwise(LAYERS)
    ]
    return [one for pair in pairs for one in pair]


def losses_by_numpy(count: int) -> list[float]:
    """The mean losses of the first steps."""
    x, labels = problem()
    x, params = x.astype(np.float64), [one.astype(np.float64) for one in start()]
    m, v = ([np.zeros_like(one) for one in params] for _ in range(2))
    found = []
    for step in range(1, count + 1):
        outputs = [x]
        for w, b in zip(params[::2], params[1::2], strict=True):
            outputs.append(outputs[-1] @ w + b)
            if len(outputs) <= len(LAYERS) - 1:
                outputs[-1] = np.maximum(outputs[-1], 0)
        z = outputs[-1] - outputs[-1].max(1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        rows = np.arange(ROWS)
        found.append(float(-np.log(p[rows, labels]).mean()))
        p[rows, labels] -= 1
        error, slopes = p / ROWS, []
        for k in reversed(range(len(LAYERS) - 1)):
            slopes = [outputs[k].T @ error, error.sum(0), *slopes]
            error = (error @ params[2 * k].T) * (outputs[k] > 0)
        for k, g in enumerate(slopes):
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.999 * v[k] + 0.001 * g * g
            params[k] = params[k] - RATE * (m[k] / (1 - 0.9**step)) / (
                np.sqrt(v[k] / (1 - 0.999**step)) + 1e-8
            )
    return found


def timed(step: Callable[[], float], runs: int) -> Timing:
    """Times of a step, `STEPS` at a time; the first steps are checked."""
    assert np.allclose([step() for _ in range(4)], losses_by_numpy(4), rtol=2e-3)
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
    from torch.nn import functional

    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl",
        f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    mine = slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)
    x, labels = (torch.from_numpy(one[mine].copy()).cuda() for one in problem())
    layers: list[Any] = []
    for w, b in zip(start()[::2], start()[1::2], strict=True):
        layers += [torch.nn.Linear(*w.shape), torch.nn.ReLU()]
        layers[-2].weight.data.copy_(torch.from_numpy(w.T))
        layers[-2].bias.data.copy_(torch.from_numpy(b))
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    total = torch.zeros((), device="cuda")
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True, capturable=how == "graph")

    def launch() -> None:
        optimizer.zero_grad(set_to_none=how == "ddp")
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        if how == "graph":
            for one in model.parameters():
                distributed.all_reduce(one.grad, distributed.ReduceOp.AVG)
        optimizer.step()
        total.copy_(loss.detach())
        distributed.all_reduce(total, distributed.ReduceOp.AVG)

    run = launch
    if how == "graph":
        kept = [one.detach().clone() for one in model.parameters()]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        for one, old in zip(model.parameters(), kept, strict=True):
            one.data.copy_(old)
        for state in optimizer.state.values():
            for one in state.values():
                one.zero_()
        run = graph.replay

    def step() -> float:
        run()
        return total.item()

    timing = timed(step, max(4, int(seconds * 10)))
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
    rows, whole = PartitionSpec("ranks"), PartitionSpec()
    x, labels = (jax.device_put(one, NamedSharding(mesh, rows)) for one in problem())
    params = jax.device_put(start(), NamedSharding(mesh, whole))
    state = (
        params,
        *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)),
        jnp.zeros((), jnp.float32),
    )

    def mean_loss(params: list[jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
        for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
            x = jax.nn.relu(jnp.matmul(x, w, precision="highest") + b)
        logits = jnp.matmul(x, params[-2], precision="highest") + params[-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    def on_device(state: Any, x: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        params, m, v, count = state
        loss, slopes = jax.value_and_grad(mean_loss)(params, x, labels)
        loss, slopes = jax.lax.pmean((loss, slopes), "ranks")
        count = count + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, slopes)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, slopes)
        one, two = 1 - 0.9**count, 1 - 0.999**count
        params = jax.tree.map(
            lambda p, m, v: p - RATE * (m / one) / (jnp.sqrt(v / two) + 1e-8), params, m, v
        )
        return (params, m, v, count), loss

    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(whole, rows, rows),
        out_specs=(whole, whole),
        check_vma=False,
    )
    compiled = jax.jit(mapped, donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, loss = compiled(state, x, labels)
        return float(loss)

    print(json.dumps({WHAT: dataclasses.asdict(timed(step, max(4, int(seconds * 10))))}))


def main() -> None:
    ranks, seconds, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    if how == "jax":
        by_jax(ranks, seconds)
    else:
        by_torch(ranks, seconds, how)


if __name__ == "__main__":
    main()
