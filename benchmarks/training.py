"""What a training step costs, beside torch and JAX, and an optimiser's step beside the memory's
limit.

python benchmarks/training.py
python benchmarks/training.py --device cuda --ranks 1 2 --json
benchmarks/results/h200x2-training.json

Rows: a step of a perceptron of 784-512-512-10 on 4,096 rows that lie on the ranks, with adam, its
loss to the script: the gradient by torch in a recorded function on GPUs, by NumPy on cores; peers
are torch in several forms, of which the fastest counts (DistributedDataParallel, one buffer of
gradients, torch.compile, CUDA graphs with NCCL inside), and JAX. Then a step of
adam alone over many parameters, beside seven times the time in which as many are read or written by
a copy, which is what it reads and writes: gradient, parameters and two states, of which three are
written. On cores, a step of a smaller network on 1 and more ranks, rows by row numbers.

On GPUs also the same network, which takes its rows by random row numbers from a table in the
script's memory, 12.8 MB a step: the bus takes 134 µs for half of them.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import sequences
from _common import arguments, save, time_in_turns
from _training_model import RATE, WHAT, losses_by_numpy, problem, start
from sequences import Result, per_iteration

import synknumba as synk

PEER = Path(__file__).with_name("_training_model.py")
PARAMETERS = {"cuda": 25_000_000, "cpu": 2_500_000}
CALLS, TIMES = 20, 20


def by_torch(x, labels, *params):
    """Loss and slopes of the network, summed over rows."""
    import torch
    from torch.nn import functional

    leaves = [torch.from_dlpack(one).detach().requires_grad_() for one in params]
    x, labels = torch.from_dlpack(x), torch.from_dlpack(labels)
    for w, b in zip(leaves[:-2:2], leaves[1:-2:2], strict=True):
        x = functional.relu(torch.addmm(b, x, w))
    loss = functional.cross_entropy(torch.addmm(leaves[-1], x, leaves[-2]), labels, reduction="sum")
    return loss, torch.autograd.grad(loss, leaves)


def by_numpy(x, labels, *params):
    """The same by NumPy."""
    outputs = [x]
    for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        outputs.append(np.maximum(outputs[-1] @ w + b, 0))
    z = outputs[-1] @ params[-2] + params[-1]
    z -= z.max(1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(z[rows, labels]).sum()
    z[rows, labels] -= 1
    error, slopes = z, []
    for k in reversed(range(len(params) // 2)):
        slopes = [outputs[k].T @ error, error.sum(0), *slopes]
        if k:
            error = (error @ params[2 * k].T) * (outputs[k] > 0)
    return loss, slopes


@synk.function
def copy(a, b):
    b[...] = a


def measure_step(ranks: int, device: Any, seconds: float) -> Iterator[Result]:
    """The perceptron."""
    gradient: Callable[..., Any] = by_torch if device == "cuda" and find_spec("torch") else by_numpy
    with synk.fork(ranks, device=device):
        step = synk.train.step(gradient, start(), synk.optim.adam(RATE))
        x, labels = (synk.scatter(synk.variable(one)) for one in problem())
        assert np.allclose([step(x, labels) for _ in range(4)], losses_by_numpy(4), rtol=2e-3)
        count = CALLS if device == "cuda" else 1
        (timing,) = time_in_turns([lambda: [step(x, labels) for _ in range(count)]], seconds)
        yield Result("synknumba", WHAT, ranks, per_iteration(timing, count))
        if step.not_recorded:
            print(step.not_recorded)


def measure_optimiser(ranks: int, device: Any, seconds: float) -> Iterator[Result]:
    """Adam alone, beside copies of as much memory."""
    count = PARAMETERS[device]
    with synk.fork(ranks, device=device):
        w, g = (synk.vector(np.full(count, 0.5, np.float32)) for _ in range(2))
        update = synk.optim.updater(synk.optim.adam(1e-6), w, g)
        other = synk.variable(np.zeros(count, np.float32))

        @synk.sequence
        def updates(w, g):
            update()

        @synk.sequence
        def copies(a, b):
            copy(a, b)

        ours, limit = time_in_turns(
            [lambda: updates(w, g, times=TIMES), lambda: copies(g, other, times=TIMES)], seconds
        )
        what = f"adam, {count:,} parameters"
        yield Result("synknumba", what, ranks, per_iteration(ours, TIMES))
        yield Result("3.5 copies of as many", what, ranks, per_iteration(limit, TIMES / 3.5))


def measure_host_rows(ranks: int, seconds: float) -> Iterator[Result]:
    """The perceptron, with minibatches of 4,096 rows of a table in the script's memory, by row
    numbers.
    """
    x, labels = problem()
    table = synk.data(np.concatenate([x] * 12)), synk.data(np.concatenate([labels] * 12))
    rng = np.random.default_rng(2)
    order = np.concatenate([rng.permutation(len(table[0])).reshape(12, len(x)) for _ in range(5)])
    with synk.fork(ranks, device="cuda"):
        step = synk.train.step(by_torch, start(), synk.optim.adam(RATE))
        few = len(order)
        first, *rest = (
            step.epoch(*table, order=order, every=every)[-1] for every in (1, 1, few, few)
        )
        assert rest[-1] < first < np.log(10.5)
        timings = time_in_turns(
            [lambda k=k: step.epoch(*table, order=order, every=k) for k in (1, few)], seconds
        )
        for timing, which in zip(timings, ("each loss", f"one of {few} losses"), strict=True):
            what = f"the same, random rows of the script's arrays, {which}"
            yield Result("synknumba", what, ranks, per_iteration(timing, len(order)))


def measure_batches(ranks: int, seconds: float) -> Iterator[Result]:
    """Steps on cores, rows of the script's arrays by row numbers."""
    x, labels = problem()
    with synk.fork(ranks, device="cpu"):
        layers = [one[:64] if one.shape[0] == 784 else one for one in start()]
        step = synk.train.step(by_numpy, layers, synk.optim.adam(RATE))
        rows = synk.data(np.ascontiguousarray(x[:, :64])), synk.data(labels)
        order = np.random.default_rng(2).permutation(len(x))[:4000].reshape(20, 200)
        (timing,) = time_in_turns([lambda: step.epoch(*rows, order=order)], seconds)
        yield Result(
            "synknumba", "MLP 64-512-512-10, 200 rows", ranks, per_iteration(timing, len(order))
        )


def peers(ranks: int, device: str, seconds: float) -> Iterator[Result]:
    """Those that are installed."""
    for module, name in (("torch", "torch"), ("jax", "JAX")):
        if find_spec(module):
            arguments = [module, device]
            yield from sequences.results_of(name, [], PEER, ranks, seconds, arguments, device)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    args = parser.parse_args()
    settings = {
        "seconds": args.seconds,
        "rows": len(problem()[0]),
        "parameters": PARAMETERS[args.device],
    }
    results: list[Result] = []
    for ranks in args.ranks or [1, 2]:
        results += measure_step(ranks, args.device, args.seconds)
        results += measure_optimiser(ranks, args.device, args.seconds)
        if args.device == "cpu":
            results += measure_batches(ranks, args.seconds)
        elif find_spec("torch"):
            results += measure_host_rows(ranks, args.seconds)
        if not args.no_peers:
            results += peers(ranks, args.device, args.seconds)
        save(args.json, "training", results, settings)  # a run of several may be ended
    sequences.show(results, "median", digits=1, base="synknumba")


if __name__ == "__main__":
    main()
