"""The network of training.py, and what its peers run in processes of their own. Prints JSON.

python benchmarks/_training_model.py RANKS SECONDS torch|jax DEVICE

A perceptron with two hidden layers of 512, 784 inputs and 10 classes, on 4,096 rows, with adam; the
loss of each step goes to the script. torch has several forms, of which the fastest is the peer:
DistributedDataParallel; an all_reduce for each gradient, in a CUDA graph; and all gradients with
the loss in one buffer, for which a step has one all_reduce: launched by Python, in a CUDA graph,
and the same with the network by torch.compile. "jax" is jit with pmean.
"""

import dataclasses
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _common import Timing, print_forms_of_torch, print_timing, summarise

ROWS, LAYERS, RATE = 4096, (784, 512, 512, 10), 1e-3
WHAT = "MLP " + "-".join(map(str, LAYERS)) + ", adam"
STEPS = {"cuda": 50, "cpu": 2}  # of one measurement


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


def timed(step: Callable[[], float], seconds: float, device: str) -> Timing:
    """Times of a step, several at a time; the first steps are checked."""
    assert np.allclose([step() for _ in range(4)], losses_by_numpy(4), rtol=2e-3)
    times, steps = [], STEPS[device]
    for _ in range(max(4, int(seconds * 10))):
        began = time.perf_counter_ns()
        for _ in range(steps):
            step()
        times.append((time.perf_counter_ns() - began) // steps)
    return summarise(times)


class Network:
    """One process's network in torch, and its rows.

    Args:
        rank: of this process.
        ranks: how many processes have rows.
        device: of torch.
    """

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        import torch

        own = slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)
        self.x, self.labels = (torch.from_numpy(one[own].copy()).to(device) for one in problem())
        layers: list[Any] = []
        for w, b in zip(start()[::2], start()[1::2], strict=True):
            layers += [torch.nn.Linear(*w.shape), torch.nn.ReLU()]
            layers[-2].weight.data.copy_(torch.from_numpy(w.T))
            layers[-2].bias.data.copy_(torch.from_numpy(b))
        self.model = torch.nn.Sequential(*layers[:-1]).to(device)
        self.params = list(self.model.parameters())
        self.ranks, self.device = ranks, device
        self.optimizer = torch.optim.Adam(
            self.params, RATE, fused=True, capturable=device.type == "cuda"
        )

    def loss_of(self, x: Any, labels: Any) -> Any:
        """This process's share of the mean over all rows."""
        from torch.nn import functional

        return functional.cross_entropy(self.model(x), labels) / self.ranks

    def ddp(self) -> "Step":
        """DistributedDataParallel, which sums gradients in buckets while it computes others."""
        import torch
        from torch import distributed

        self.model = torch.nn.parallel.DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, static_graph=True
        )
        total = torch.zeros((), device=self.device)

        def launch() -> None:
            self.optimizer.zero_grad()
            loss = self.loss_of(self.x, self.labels)
            (loss * self.ranks).backward()
            self.optimizer.step()
            total.copy_(loss.detach())
            distributed.all_reduce(total)

        return Step(launch, total)

    def each(self) -> "Step":
        """An all_reduce for each gradient, and one for the loss."""
        import torch
        from torch import distributed

        total = torch.zeros((), device=self.device)

        def launch() -> None:
            self.optimizer.zero_grad(set_to_none=False)
            loss = self.loss_of(self.x, self.labels)
            loss.backward()
            for param in self.params:
                distributed.all_reduce(param.grad)
            self.optimizer.step()
            total.copy_(loss.detach())
            distributed.all_reduce(total)

        return Step(launch, total)

    def flat(self, compiled: bool = False) -> "Step":
        """One buffer, whose parts are the gradients and the loss, and one all_reduce."""
        import torch
        from torch import distributed

        sizes = [param.numel() for param in self.params]
        buffer = torch.zeros(sum(sizes) + 1, device=self.device)
        for param, part in zip(self.params, buffer.split([*sizes, 1]), strict=False):
            param.grad = part.view_as(param)
        loss_of = self.loss_of
        if compiled:
            loss_of = torch.compile(loss_of, dynamic=False, fullgraph=True)

        def launch() -> None:
            loss = loss_of(self.x, self.labels)
            slopes = torch.autograd.grad(loss, self.params)
            parts = [part.reshape(-1) for part in (*slopes, loss.detach())]
            torch.cat(parts, out=buffer)
            distributed.all_reduce(buffer)
            self.optimizer.step()

        return Step(launch, buffer[-1])

    def captured(self, step: "Step") -> "Step":
        """The step in a CUDA graph, and the network as it was."""
        import torch

        kept = [param.detach().clone() for param in self.params]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step.launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.launch()
        for param, old in zip(self.params, kept, strict=True):
            param.data.copy_(old)
        for state in self.optimizer.state.values():
            for one in state.values():
                one.zero_()
        return Step(graph.replay, step.total)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What launches a step, and where its loss is afterwards."""

    launch: Callable[[], None]
    total: Any

    def __call__(self) -> float:
        self.launch()
        return float(self.total.item())


FORMS: dict[str, Callable[[Network], Step]] = {
    "DDP": Network.ddp,
    "flat gradients": Network.flat,
}
# after the others: a capture that fails may leave NCCL unusable, and compiling may take too long
GRAPHS: dict[str, Callable[[Network], Step]] = {
    "flat gradients, CUDA graph": lambda network: network.captured(network.flat()),
    "CUDA graph": lambda network: network.captured(network.each()),
    "flat gradients, torch.compile, CUDA graph": lambda network: network.captured(
        network.flat(compiled=True)
    ),
    "flat gradients, torch.compile": lambda network: network.flat(compiled=True),
}


def torch_rank(rank: int, ranks: int, seconds: float, kind: str, meeting: str) -> None:
    import torch
    from torch import distributed

    cuda = kind == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        device_id=device if cuda else None,
    )
    forms = FORMS | GRAPHS if cuda else FORMS

    def measure(form: str) -> Timing:
        return timed(forms[form](Network(rank, ranks, device)), seconds, kind)

    print_forms_of_torch(WHAT, {form: partial(measure, form) for form in forms}, rank)


def by_torch(ranks: int, seconds: float, kind: str) -> None:
    from torch import multiprocessing

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there is one small network
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            torch_rank, (ranks, seconds, kind, os.path.join(folder, "meeting")), ranks
        )


def by_jax(ranks: int, seconds: float, device: str) -> None:
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

    print_timing("", WHAT, timed(step, seconds, device))


def main() -> None:
    ranks, seconds, library, device = sys.argv[1:]
    if library == "jax":
        by_jax(int(ranks), float(seconds), device)
    else:
        by_torch(int(ranks), float(seconds), device)


if __name__ == "__main__":
    main()
