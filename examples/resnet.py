"""ResNet-50 by torch in a training step on all ranks; images per second, beside torch's own
DistributedDataParallel.

    python examples/resnet.py                              # on GPUs, random images of 224 × 224
    python examples/resnet.py --compare                    # and DistributedDataParallel in the same run
    python examples/resnet.py --device cpu --depth 14 --size 32 --batch 8 --steps 4
    python examples/resnet.py --images FILE.npz            # with arrays x, uint8 (n, size, size, 3), and y, int64 (n,)

torch computes loss and gradient of each rank's images, in bfloat16 on GPUs; synknumba adds up the
gradients of all ranks and makes the steps of Nesterov's momentum. It adds next to nothing to what
torch takes. The network is that of He et al., arXiv:1512.03385, with the stride in the 3 × 3
convolutions.

The losses must fall: the images are few, and the network learns them by heart.
"""  # noqa: E501

import argparse
import os
import tempfile
import time

import numpy as np

import synknumba as synk

BLOCKS = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
RATE, CLASSES = 0.02, 1000
models = {}  # on a rank: the network, made at the first call


def build(depth, classes):
    """Returns the network."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.inner = nn.Sequential(
                *(
                    nn.Conv2d(inputs, width, 1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ),
                *(
                    nn.Conv2d(width, width, 3, stride, 1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ),
                *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
            )
            straight = stride == 1 and inputs == 4 * width
            around = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            self.around = nn.Identity() if straight else nn.Sequential(*around)
            self.last = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.last(self.inner(x) + self.around(x))

    layers, inputs = (
        [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)],
        64,
    )
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, count in enumerate(BLOCKS[depth]):
        for number in range(count):
            layers.append(Block(inputs, 64 << stage, 2 if number == 0 and stage else 1))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def start(depth, classes):
    """Returns names and first values of the parameters: He's, without computing with torch in
    the script.
    """
    import torch

    with torch.device("meta"):
        model = build(depth, classes)
    rng, found = np.random.default_rng(0), {}
    for name, one in model.named_parameters():
        shape = tuple(one.shape)
        if len(shape) > 1:
            found[name] = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
        else:
            found[name] = np.full(shape, float(name.endswith("weight")), np.float32)
    return found


def loss_of(network, x, y):
    """Returns the sum of the losses of some images."""
    import torch

    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        return torch.nn.functional.cross_entropy(network(x), y, reduction="sum")


def gradient(x, y, params):
    """Loss and slopes of a rank's images, by torch."""
    import torch

    x, y = tensor(x), tensor(y)
    names = list(params)
    leaves = [tensor(params[name]).requires_grad_() for name in names]
    if not models:
        models["model"] = build(DEPTH, CLASSES).to(x.device)
    given = dict(zip(names, leaves, strict=True))
    loss = loss_of(lambda x: torch.func.functional_call(models["model"], given, (x,)), x, y)
    return loss, dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))


def tensor(array):
    """Returns a tensor of the same memory on GPUs; on cores, where inputs and parameters cannot
    be written, a copy.
    """
    import torch

    return torch.tensor(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def images(count, size, file):
    """Returns images, float32 (n, 3, size, size), and their classes."""
    if file:
        with np.load(file) as given:
            x, y = given["x"][:count], given["y"][:count].astype(np.int64)
        return np.ascontiguousarray(np.moveaxis(x, 3, 1), np.float32) / 127.5 - 1, y
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 3, size, size)).astype(np.float32), rng.integers(
        0, CLASSES, count
    )


def ddp(rank, ranks, args, meeting):
    """One process of torch's own."""
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    distributed.init_process_group(
        "nccl", f"file://{meeting}", rank=rank, world_size=ranks, device_id=device
    )
    x, y = images(ranks * args.batch, args.size, args.images)
    mine = slice(rank * args.batch, (rank + 1) * args.batch)
    x, y = torch.from_numpy(x[mine]).cuda(), torch.from_numpy(y[mine]).cuda()
    model = build(args.depth, CLASSES)
    with torch.no_grad():
        for (_, one), value in zip(
            model.named_parameters(), start(args.depth, CLASSES).values(), strict=True
        ):
            one.copy_(torch.from_numpy(value))
    model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, fused=True)

    def step():
        optimizer.zero_grad()
        loss = loss_of(model, x, y) / len(x)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        distributed.all_reduce(total, distributed.ReduceOp.AVG)
        return total.item()

    taken = timed(step, args.steps)
    if rank == 0:
        told("DistributedDataParallel", taken, ranks * args.batch)
    distributed.destroy_process_group()


def compare(ranks, args):
    """Runs the same by torch's DistributedDataParallel."""
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(ddp, (ranks, args, os.path.join(folder, "meeting")), ranks)


def timed(step, steps):
    """Returns seconds for a step: the median, after three that do not count."""
    taken = []
    for number in range(steps + 3):
        began = time.perf_counter()
        step()
        if number >= 3:
            taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def told(what, seconds, count):
    """Prints what a step took."""
    print(
        f"{what}: {1e3 * seconds:.1f} ms a step of {count} images, "
        f"{count / seconds:,.0f} images per second"
    )
    return count / seconds


def train(ranks, args):
    """Trains on so many ranks; returns images per second."""
    with synk.fork(ranks, device=args.device) as world:
        count = world.world_size * args.batch
        x, y = images(count, args.size, args.images)
        step = synk.train.step(
            gradient, start(args.depth, CLASSES), synk.optim.nesterov_momentum(RATE)
        )
        there = [synk.scatter(synk.variable(one)) for one in (x, y)]
        losses = []
        seconds = timed(lambda: losses.append(step(*there)), args.steps)
        speed = told(f"synknumba, {world.world_size} {world.device} ranks", seconds, count)
        if step.not_recorded:
            print(f"  not recorded: {step.not_recorded.splitlines()[0]}")
        assert all(map(np.isfinite, losses)), losses
        assert losses[-1] < losses[0], losses
        print(f"  loss {losses[0]:.3f} → {losses[-1]:.3f}")
    return speed


def main():
    """Trains, compares and scales."""
    global DEPTH  # noqa: PLW0603  # sent to the ranks with the gradient
    parser = argparse.ArgumentParser(description="ResNet by torch on all ranks.")
    parser.add_argument("--ranks", type=int, help="number of ranks (default: one per GPU, or core)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--depth", type=int, choices=sorted(BLOCKS), default=50)
    parser.add_argument("--size", type=int, default=224, help="pixels along a side")
    parser.add_argument("--batch", type=int, default=128, help="images of a rank in a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--images", metavar="FILE", help="npz file with images and classes; default: random ones"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="one rank, too, and the efficiency of all"
    )
    parser.add_argument(
        "--compare", action="store_true", help="torch's DistributedDataParallel, too"
    )
    args = parser.parse_args()
    DEPTH = args.depth
    single = train(1, args) if args.scaling else None
    speed = train(args.ranks, args)
    ranks = args.ranks or synk_ranks(args.device)
    if single is not None:
        print(f"efficiency of {ranks} ranks: {speed / (ranks * single):.0%}")
    if args.compare:
        compare(ranks, args)


def synk_ranks(device):
    """Returns the number of ranks that fork() would start."""
    with synk.fork(device=device) as world:
        return world.world_size


DEPTH = 50

if __name__ == "__main__":
    main()
