"""Handwritten digits, recognised by a perceptron or a convolutional network, with the data in one
of three places.

    python examples/digits.py
    python examples/digits.py --model cnn --where ranks --picture digits.png
    python examples/digits.py --data FOLDER_OF_MNIST --epochs 5

The digits are scikit-learn's, 1,797 images of 8 × 8 pixels (E. Alpaydin and C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998), a fifth of them for
validation; or MNIST's, from a folder with its four files. Synkhronos had three demos on MNIST,
which differed in where the data were; here it is an option:

--where host     in shared memory of the host; each rank reads its rows of a minibatch, on GPUs by a copy
--where ranks    divided over the ranks, in the memory of the GPUs where there are some. Each rank gets the numbers of those of
                 its rows that are in a minibatch; nothing else is sent. Which rows come together
                 depends on the number of ranks
--where serial   in this process, without ranks: the same gradient, and the same optimiser as pure functions

The gradient is written once, for the rows that a rank has, with NumPy's functions, which are CuPy's
for arrays of CuPy. `synk.train.step` adds up the gradients of all ranks and makes the
optimiser's step. An epoch is one round, for which `step.epoch` gets the row numbers of all
minibatches. The first losses are compared with serial ones, of the same minibatches.

Needs scikit-learn for its digits, safetensors for --save and --resume, and matplotlib for the
picture: pip install 'synknumba[examples,train]'.
"""  # noqa: E501

import argparse
import gzip
import math
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import synknumba as synk

CLASSES = 10
HIDDEN = 128  # units of the perceptron's hidden layer
FILTERS = 16, 32  # of the two convolutions
STRIDES = 1, 2  # pixels from one window to the next
SIDE = 3  # pixels of a window
COMPARED = 20  # steps
TOLERANCE = 1e-5  # of these losses, relative; numbers are float32


# ---- the data


class Digits(NamedTuple):
    """Images and their classes.

    Attributes:
        x: float32 from 0 to 1, shape (n, height, width).
        labels: int64 from 0 to CLASSES − 1, shape (n,).
    """

    x: np.ndarray
    labels: np.ndarray

    @property
    def onehot(self) -> np.ndarray:
        """1 in the column of an image's class, 0 elsewhere; float32, shape (n, CLASSES)."""
        return np.eye(CLASSES, dtype=np.float32)[self.labels]


IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX_BYTES = 4  # of the beginning (0, 0, dtype, number of axes), and of the length of each axis


def read_idx(path: Path) -> np.ndarray:
    """Returns the array of an IDX file, packed by gzip or not.

    Source of the format: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten
    digits".
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None
    if len(content) < IDX_BYTES or content[:2] != b"\0\0" or content[2] not in IDX_DTYPES:
        raise ValueError(
            f"{path} is no IDX file: it begins with the bytes {content[:4].hex(' ')}, "
            f"MNIST's images with 00 00 08 03"
        )
    dtype, axes = np.dtype(IDX_DTYPES[content[2]]), content[3]
    first = IDX_BYTES * (1 + axes)
    if len(content) < first:
        raise ValueError(f"{path} ends in its header: {len(content)} bytes of {first}")
    shape = tuple(np.frombuffer(content, ">u4", axes, IDX_BYTES).tolist())
    nbytes = first + math.prod(shape) * dtype.itemsize
    if len(content) != nbytes:
        raise ValueError(
            f"{path} has {len(content):,} bytes, and its array of shape {shape} needs {nbytes:,}"
        )
    return (
        np.frombuffer(content, dtype, offset=first).reshape(shape).astype(dtype.newbyteorder("="))
    )


def read_mnist(folder: Path, name: str) -> Digits:
    """Returns the images and classes of the files "train-…" or "t10k-…" in a folder."""
    arrays = []
    for what in ("images{}idx3", "labels{}idx1"):
        paths = [
            folder / f"{name}-{what.format(mark)}-ubyte{end}"
            for mark in "-."
            for end in ("", ".gz")
        ]
        there = [path for path in paths if path.is_file()]
        if not there:
            raise FileNotFoundError(
                f"{folder} has no file named {', '.join(path.name for path in paths[:-1])} or "
                f"{paths[-1].name}"
            )
        arrays.append(read_idx(there[0]))
    images, labels = arrays
    if images.ndim != 3 or images.dtype != np.uint8 or not images.size:
        raise ValueError(
            f"{folder}: the images of {name} are {images.dtype} {images.shape}, not "
            f"uint8 (n, height, width)"
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {name} has {len(images)} images, and labels of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise ValueError(
            f"{folder}: {name} has labels from {labels.min()} to {labels.max()}, "
            f"not from 0 to {CLASSES - 1}"
        )
    return Digits((images / 255).astype(np.float32), labels.astype(np.int64))


def digits_of_scikit_learn() -> tuple[Digits, Digits]:
    """Returns the digits for training, and those for validation."""
    from sklearn.datasets import load_digits

    found = load_digits()
    whole = Digits((found.images / 16).astype(np.float32), found.target.astype(np.int64))
    order = np.random.default_rng(0).permutation(len(whole.x))
    training, validation = order[len(order) // 5 :], order[: len(order) // 5]
    return Digits(*(one[training] for one in whole)), Digits(*(one[validation] for one in whole))


# ---- the networks. Arrays are NumPy's or CuPy's, float32; x has shape (rows, height, width)


def cross_entropy(z: Any, onehot: Any) -> tuple[Any, Any]:
    """Returns the cross entropy of softmax, summed over rows, and its slope.

    Args:
        z: scores, shape (rows, CLASSES).
        onehot: the same shape.
    """
    z = z - z.max(1, keepdims=True)
    p = np.exp(z)
    total = p.sum(1, keepdims=True)
    return np.log(total).sum() - (z * onehot).sum(), p / total - onehot


def start_mlp(height: int, width: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns weights and biases of the perceptron."""
    return [*layer(height * width, HIDDEN, rng), *layer(HIDDEN, CLASSES, rng)]


def layer(inputs: int, outputs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights of a layer, normal with the variance 2/inputs, and its biases, 0.

    Source: K. He et al., "Delving Deep into Rectifiers", arXiv:1502.01852, equation 10.
    """
    return rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype(np.float32), np.zeros(
        outputs, np.float32
    )


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, Any, Any]:
    """Returns the inputs as rows of pixels, the hidden layer and the scores."""
    x = x.reshape(len(x), -1)
    hidden = np.maximum(synk.matmul(x, w1) + b1, 0)
    return x, hidden, synk.matmul(hidden, w2) + b2


def mlp_gradient(x: Any, onehot: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, list[Any]]:
    """Returns loss and slopes of the perceptron, summed over rows."""
    x, hidden, z = mlp(x, w1, b1, w2, b2)
    loss, error = cross_entropy(z, onehot)
    inner = synk.matmul(error, w2.T) * (hidden > 0)
    return loss, [synk.matmul(x.T, inner), inner.sum(0), synk.matmul(hidden.T, error), error.sum(0)]


def start_cnn(height: int, width: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns weights and biases of two convolutions and a layer behind them."""
    for stride in STRIDES:
        height, width = windows(height, stride), windows(width, stride)
    if height < 1 or width < 1:
        raise ValueError("the images are too small for two convolutions")
    convolutions = [*layer(SIDE**2, FILTERS[0], rng), *layer(SIDE**2 * FILTERS[0], FILTERS[1], rng)]
    return [*convolutions, *layer(height * width * FILTERS[1], CLASSES, rng)]


def windows(length: int, stride: int) -> int:
    """Returns the number of windows along an axis."""
    return (length - SIDE) // stride + 1


def each_pixel(x: Any, stride: int) -> list[tuple[int, int, Any]]:
    """Returns, for each pixel (i, j) of a window, a view of `x` at this pixel of all windows.

    Args:
        x: shape (rows, height, width, channels).
        stride: pixels from one window to the next.

    Returns:
        Tuples of i, j and the view, shape (rows, windows down, windows across, channels).
    """
    down, across = (windows(length, stride) for length in x.shape[1:3])
    ends = stride * (down - 1) + 1, stride * (across - 1) + 1
    return [
        (i, j, x[:, i : i + ends[0] : stride, j : j + ends[1] : stride])
        for i in range(SIDE)
        for j in range(SIDE)
    ]


def patches(x: Any, stride: int) -> Any:
    """Returns the windows of images as rows of a matrix ("im2col"), so that a convolution is a
    product of matrices.

    Source: K. Chellapilla et al., "High Performance Convolutional Neural Networks for Document
        Processing" (2006).

    Args:
        x: shape (rows, height, width, channels).
        stride: as for `each_pixel`.

    Returns:
        Matrix of shape (rows · windows down · windows across, SIDE² · channels).
    """
    views = each_pixel(x, stride)
    rows, down, across, channels = views[0][2].shape
    out = np.empty_like(x, shape=(rows, down, across, SIDE, SIDE, channels))
    for i, j, view in views:
        out[:, :, :, i, j] = view
    return out.reshape(-1, SIDE**2 * channels)


def add_patches(slopes: Any, shape: tuple[int, ...], stride: int) -> Any:
    """Returns the slope of images of this shape from that of their windows: the transpose of
    `patches`.
    """
    out = np.zeros_like(slopes, shape=shape)
    views = each_pixel(out, stride)
    slopes = slopes.reshape(*views[0][2].shape[:3], SIDE, SIDE, shape[3])
    for i, j, view in views:
        np.add(view, slopes[:, :, :, i, j], out=view)
    return out


def convolve(x: Any, w: Any, b: Any, stride: int) -> tuple[Any, Any]:
    """Returns the windows of images, and the filtered images, cut off below 0."""
    cut = patches(x, stride)
    shape = len(x), windows(x.shape[1], stride), windows(x.shape[2], stride), len(b)
    return cut, np.maximum(synk.matmul(cut, w) + b, 0).reshape(shape)


def cnn(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> tuple[Any, ...]:
    """Returns windows and result of either convolution, and the scores."""
    cut1, y1 = convolve(x[..., None], w1, b1, STRIDES[0])
    cut2, y2 = convolve(y1, w2, b2, STRIDES[1])
    return cut1, y1, cut2, y2, synk.matmul(y2.reshape(len(x), -1), w3) + b3


def cnn_gradient(
    x: Any, onehot: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any
) -> tuple[Any, list[Any]]:
    """Returns loss and slopes of the convolutional network, summed over rows."""
    cut1, y1, cut2, y2, z = cnn(x, w1, b1, w2, b2, w3, b3)
    loss, error = cross_entropy(z, onehot)
    inner2 = synk.matmul(error, w3.T).reshape(-1, FILTERS[1]) * (y2.reshape(-1, FILTERS[1]) > 0)
    inner1 = add_patches(synk.matmul(inner2, w2.T), y1.shape, STRIDES[1]).reshape(-1, FILTERS[0])
    inner1 *= y1.reshape(-1, FILTERS[0]) > 0
    slopes = [
        synk.matmul(cut1.T, inner1),
        inner1.sum(0),
        synk.matmul(cut2.T, inner2),
        inner2.sum(0),
    ]
    return loss, [*slopes, synk.matmul(y2.reshape(len(x), -1).T, error), error.sum(0)]


class Network(NamedTuple):
    """What training needs of a network.

    Attributes:
        start: from height, width and a generator to the parameters.
        gradient: from x, onehot and the parameters to loss and slopes, summed over rows.
        forward: from x and the parameters to a tuple that ends with the scores.
    """

    start: Callable[..., list[np.ndarray]]
    gradient: Callable[..., tuple[Any, list[Any]]]
    forward: Callable[..., tuple[Any, ...]]


NETWORKS = {
    "mlp": Network(start_mlp, mlp_gradient, mlp),
    "cnn": Network(start_cnn, cnn_gradient, cnn),
}


# ---- training


class Serial:
    """Training in this process.

    Args:
        network: the network.
        digits: those for training.
        args: of the command line.
    """

    def __init__(self, network: Network, digits: Digits, args: argparse.Namespace) -> None:
        self.network, self.x, self.onehot = network, digits.x, digits.onehot
        self.batches = synk.batches(digits.x, args.batch, seed=args.seed, drop_last=True)
        self.optimizer = synk.optim.adam(args.rate)
        self.params = network.start(*digits.x.shape[1:], np.random.default_rng(args.seed))
        self.moments = self.optimizer.init(self.params)

    def train(self, epoch: int) -> np.ndarray:
        """Goes through an epoch; returns the mean loss of each minibatch."""
        return np.array([self.step(rows) for rows in self.batches.order(epoch)])

    def step(self, rows: np.ndarray) -> float:
        """Makes one step; returns the mean loss before it."""
        loss, slopes = self.network.gradient(self.x[rows], self.onehot[rows], *self.params)
        mean = [slope / len(rows) for slope in slopes]
        change, self.moments = self.optimizer.update(mean, self.moments, self.params)
        self.params = synk.optim.apply_updates(self.params, change)
        return float(loss) / len(rows)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Returns the classes of images."""
        return self.network.forward(x, *self.params)[-1].argmax(1)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"params": self.params, "moments": self.moments}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the state of a checkpoint."""
        self.params, self.moments = state["params"], state["moments"]


class Place(NamedTuple):
    """Where the ranks get their rows from.

    Attributes:
        gradient: of the inputs and the parameters, for the rows of a rank.
        inputs: arguments of a training step.
        order: from an epoch to `order=` of `step.epoch`.
        rows: from an epoch to the rows of its minibatches, numbered in the whole, shape (steps,
            rows).
    """

    gradient: Callable[..., tuple[Any, list[Any]]]
    inputs: Sequence[Any]
    order: Callable[[int], np.ndarray]
    rows: Callable[[int], np.ndarray]


def on_host(network: Network, digits: Digits, args: argparse.Namespace) -> Place:
    """Puts the data into shared memory."""
    batches = synk.batches(digits.x, args.batch, seed=args.seed, drop_last=True)
    data = synk.data(digits.x), synk.data(digits.onehot)
    return Place(network.gradient, data, batches.order, batches.order)


def on_ranks(network: Network, digits: Digits, args: argparse.Namespace) -> Place:
    """Divides the data over the ranks. A minibatch has a part on each rank: numbers of rows that
    the rank has.
    """
    data = [synk.scatter(synk.variable(one)) for one in (digits.x, digits.onehot)]
    lengths = synk.get_lengths(data[0])
    # rows of an array of args.batch on each rank
    sizes = np.diff(args.batch * np.arange(len(lengths) + 1) // len(lengths))
    parts = [
        synk.batches(length, int(size), seed=args.seed + rank, drop_last=True)
        for rank, (length, size) in enumerate(zip(lengths, sizes, strict=True))
    ]
    steps = min(part.steps_per_epoch for part in parts)
    numbers = synk.data(np.zeros(steps * args.batch, np.int64))
    lines = np.arange(numbers.size).reshape(steps, args.batch)
    # the first row of the rank, in the whole
    begins = np.repeat(np.cumsum([0, *lengths[:-1]]), sizes)

    def gradient(numbers: Any, x: Any, onehot: Any, *params: Any) -> tuple[Any, list[Any]]:
        return network.gradient(x[numbers], onehot[numbers], *params)

    def on_each(epoch: int) -> np.ndarray:
        return np.hstack([part.order(epoch)[:steps] for part in parts])

    def order(epoch: int) -> np.ndarray:
        numbers[:] = on_each(epoch).ravel()
        return lines

    return Place(gradient, [numbers, *data], order, lambda epoch: begins + on_each(epoch))


class OnRanks:
    """Training on the ranks of the open world; arguments as for `Serial`."""

    def __init__(self, network: Network, digits: Digits, args: argparse.Namespace) -> None:
        self.place = {"host": on_host, "ranks": on_ranks}[args.where](network, digits, args)
        start = network.start(*digits.x.shape[1:], np.random.default_rng(args.seed))
        self.step = synk.train.step(self.place.gradient, start, synk.optim.adam(args.rate))
        self.classes = synk.function(
            lambda x, params: network.forward(x, *params)[-1].argmax(1), outputs="gather"
        )
        self.rows = self.place.rows

    def train(self, epoch: int) -> np.ndarray:
        """Goes through an epoch in one round; returns the mean loss of each minibatch."""
        return self.step.epoch(*self.place.inputs, order=self.place.order(epoch))

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Returns the classes of images."""
        return self.classes(x, self.step.params)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: variables, into which `synk.load` puts their values."""
        return self.step.state

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the state of a checkpoint, which the variables have already."""


class History(NamedTuple):
    """What was seen in training.

    Attributes:
        losses: mean loss of each step.
        accuracies: of the validation after each epoch.
        seconds: of a step, in each epoch.
    """

    losses: list[float]
    accuracies: list[float]
    seconds: list[float]


def learn(
    trainer: Serial | OnRanks, first: int, validation: Digits, args: argparse.Namespace
) -> History:
    """Trains from an epoch on, and prints and saves what comes of it after each."""
    history = History([], [], [])
    for epoch in range(first, args.epochs):
        began = time.perf_counter()
        losses = trainer.train(epoch)
        history.seconds.append((time.perf_counter() - began) / len(losses))
        history.losses.extend(losses)
        history.accuracies.append(
            float((trainer.predict(validation.x) == validation.labels).mean())
        )
        print(
            f"{epoch + 1:5} {losses.mean():11.6f} {history.accuracies[-1]:9.4f} "
            f"{history.seconds[-1] * 1e6:12.0f}"
        )
        if args.save:
            synk.save(args.save, {"training": trainer.state, "epochs": epoch + 1})
    return history


def resume(trainer: Serial | OnRanks, path: str | None) -> int:
    """Goes back to a checkpoint; returns the number of epochs made."""
    if path is None:
        return 0
    saved = synk.load(path, like={"training": trainer.state, "epochs": 0})
    trainer.restore(saved["training"])
    return saved["epochs"]


def compare(trainer: OnRanks, losses: list[float], twin: Serial) -> None:
    """Compares the first losses with those of serial training with the same minibatches."""
    wanted = [twin.step(rows) for rows in trainer.rows(0)[:COMPARED]]
    error = np.abs(losses[: len(wanted)] / np.array(wanted) - 1).max()
    print(
        f"largest relative difference of the first {len(wanted)} losses from the "
        f"serial ones: {error:.1e}"
    )
    assert error < TOLERANCE, "the losses are not those of serial training"


def print_scaling(network: Network, digits: Digits, args: argparse.Namespace, ranks: int) -> None:
    """Prints what a step takes on one rank and on all."""
    seconds = []
    for count in (1, ranks):
        with synk.fork(count, device=args.device):
            trainer = OnRanks(network, digits, args)
            steps = len(trainer.train(0))  # compiles
            took = []
            for epoch in range(1, 6):
                began = time.perf_counter()
                trainer.train(epoch)
                took.append((time.perf_counter() - began) / steps)
            seconds.append(float(np.median(took)))
    told = f"{seconds[0] * 1e6:.0f} µs a step on 1 rank, {seconds[1] * 1e6:.0f} µs on {ranks}"
    print(f"{told}: {seconds[0] / seconds[1]:.2f} times as fast")


def draw(history: History, first: int, validation: Digits, found: np.ndarray, file: str) -> None:
    """Draws losses and accuracies, and digits whose class was not found."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    below = left.subplots()
    epochs = first + np.arange(1, len(history.accuracies) + 1)
    steps = first + np.arange(1, len(history.losses) + 1) * len(epochs) / len(history.losses)
    below.semilogy(steps, history.losses, color="tab:blue", lw=0.8)
    below.set(xlabel="epochs", title="training")
    below.set_ylabel("mean loss of a minibatch", color="tab:blue")
    above = below.twinx()
    above.plot(epochs, history.accuracies, color="tab:orange", marker=".")
    above.set_ylabel("accuracy of the validation", color="tab:orange")
    wrong = np.flatnonzero(found != validation.labels)
    right.suptitle(f"{len(wrong)} of {len(found)} not recognised: found, true")
    panels = right.subplots(3, 4).ravel()
    for axes in panels:
        axes.axis("off")
    for axes, k in zip(panels, wrong, strict=False):
        axes.imshow(validation.x[k], cmap="gray_r")
        axes.set_title(f"{found[k]}, {validation.labels[k]}", fontsize="small")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Trains, compares with serial training, and asks for an accuracy."""
    parser = argparse.ArgumentParser(
        description="Handwritten digits, by two networks, with the data in three places."
    )
    parser.add_argument("--model", choices=NETWORKS, default="mlp")
    parser.add_argument(
        "--where",
        choices=("host", "ranks", "serial"),
        default="host",
        help="where the data are (default: host)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="of MNIST's four files (default: scikit-learn's digits)",
    )
    parser.add_argument("--epochs", type=int, default=12, help="in all (default: 12)")
    parser.add_argument("--batch", type=int, default=64, help="rows of a minibatch (default: 64)")
    parser.add_argument(
        "--rate", type=float, default=3e-3, help="learning rate of adam (default: 0.003)"
    )
    parser.add_argument(
        "--accuracy", type=float, default=0.95, help="asked for in the end (default: 0.95)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--save", metavar="FILE", help="where to keep the training after each epoch"
    )
    parser.add_argument(
        "--resume", metavar="FILE", help="go on from this file; give the other options as before"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="compare the time of a step on one rank and on all"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as digits.png"
    )
    args = parser.parse_args()
    try:
        if args.data is None:
            training, validation = digits_of_scikit_learn()
        else:
            training, validation = (read_mnist(args.data, name) for name in ("train", "t10k"))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not 1 <= args.batch <= len(training.x) or args.epochs < 1:
        parser.error(
            f"--epochs must be at least 1, and --batch from 1 to "
            f"{len(training.x)}, the rows for training"
        )

    network = NETWORKS[args.model]
    with (
        nullcontext()
        if args.where == "serial"
        else synk.fork(args.ranks, device=args.device) as world
    ):
        ranks = 0 if world is None else world.world_size
        where = (
            "no ranks"
            if world is None
            else f"{ranks} {world.device} rank{'' if ranks == 1 else 's'}"
        )
        trainer = (OnRanks if ranks else Serial)(network, training, args)
        first = resume(trainer, args.resume)
        if first >= args.epochs:
            parser.error(f"{args.resume} has {first} epochs already; ask for more --epochs")
        height, width = training.x.shape[1:]
        print(
            f"{len(training.x):,} digits of {height} × {width} pixels, {args.model}, "
            f"data: {args.where}, {where}"
        )
        print("epoch   mean loss  accuracy   µs a step (the first epoch compiles)")
        history = learn(trainer, first, validation, args)
        found = trainer.predict(validation.x)
        if isinstance(trainer, OnRanks) and trainer.step.not_recorded:
            print(f"the gradient is not recorded: {trainer.step.not_recorded.splitlines()[0]}")
        if isinstance(trainer, OnRanks) and not first:
            compare(trainer, history.losses, Serial(network, training, args))
    accuracy = (found == validation.labels).mean()
    print(f"accuracy {accuracy:.4f} after {args.epochs} epochs, ", end="")
    print(f"{np.median(history.seconds[1:] or history.seconds) * 1e6:.0f} µs a step")
    assert accuracy >= args.accuracy, f"the accuracy is below {args.accuracy}"
    if args.scaling and ranks > 1:
        print_scaling(network, training, args, ranks)
    if args.picture:
        draw(history, first, validation, found, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
