"""Softmax regression whose gradient is one Numba CUDA kernel, compared with scikit-learn's logistic
regression.

    python examples/softmax_regression.py
    python examples/softmax_regression.py --decay 0.001 --steps 1000 --picture weights.png

The probability that the image x, 8 × 8 pixels of scikit-learn's digits less their mean, is of class
c is p_c = exp(z_c) / Σ_k exp(z_k), with z = x W + b. Weights W and biases b minimise

    F(W, b) = −1/n Σ_i log p_{label i}(x_i) + λ/2 ‖W‖²,  ∂F/∂W = 1/n Σ_i x_iᵀ e_i + λ W,  e_ic =
    p_c(x_i) − 1 if c is the label

which is the objective of scikit-learn's LogisticRegression with C = 1/(λ n), divided by C n.
Source: C. Bishop, "Pattern Recognition and Machine Learning" (Springer, 2006), section 4.3.4. F's
second derivatives are between λ and L + λ (for b, from 0), with half the largest eigenvalue of the
mean of (x, 1)ᵀ(x, 1) as L (D. Böhning, Annals of the Institute of Statistical Mathematics 44 (1992)
197), from which rate and momentum of Nesterov's method follow: Y. Nesterov, "Introductory Lectures
on Convex Optimization" (Kluwer, 2004), section 2.2.

The kernel adds one number per feature and class to the gradient of its rank. If each row did so,
there were 650 additions for each of 1,797 rows, of which those to one element wait for each other.
Here a block adds up the rows of a tile first: its threads compute a score each, then a row's
probabilities each, and then a slope each, over the tile's rows, which lie in shared memory.
`synk.train.step` adds up the ranks' gradients; all rows are in each step, and stay on the
ranks.

Needs scikit-learn, and matplotlib for the picture: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda, float64
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import synknumba as synk

CLASSES = 10
ROWS = 32  # of a tile
COLUMNS = CLASSES + 1  # of a tile: e, and the losses
THREADS = ROWS * CLASSES  # of a block: one for each score of a tile


@cuda.jit
def gradient(x, labels, w, b, loss, w_slope, b_slope):
    """Adds loss and slopes over a tile of rows, one block per tile.

    Args:
        x: float64, shape (rows, features).
        labels: int64, shape (rows,).
        w: float64, shape (features, CLASSES).
        b: float64, shape (CLASSES,).
        loss: float64, shape (1,).
        w_slope: as w.
        b_slope: as b.
    """
    # scores, then e; in the last column each row's loss
    tile = cuda.shared.array((ROWS, COLUMNS), float64)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * ROWS
    rows = min(ROWS, x.shape[0] - first)
    row, c = t // CLASSES, t % CLASSES
    if row < rows:
        z = b[c]
        for j in range(x.shape[1]):
            z += x[first + row, j] * w[j, c]
        tile[row, c] = z
    cuda.syncthreads()
    if t < rows:
        largest = tile[t, 0]
        for k in range(1, CLASSES):
            largest = max(largest, tile[t, k])
        total = 0.0
        for k in range(CLASSES):
            total += math.exp(tile[t, k] - largest)
        label = labels[first + t]
        tile[t, CLASSES] = math.log(total) + largest - tile[t, label]
        for k in range(CLASSES):
            tile[t, k] = math.exp(tile[t, k] - largest) / total
        tile[t, label] -= 1.0
    cuda.syncthreads()
    for k in range(t, x.shape[1] * CLASSES, THREADS):
        j, c = k // CLASSES, k % CLASSES
        slope = 0.0
        for i in range(rows):
            slope += x[first + i, j] * tile[i, c]
        cuda.atomic.add(w_slope, (j, c), slope)
    if t <= CLASSES:
        total = 0.0
        for i in range(rows):
            total += tile[i, t]
        if t < CLASSES:
            cuda.atomic.add(b_slope, t, total)
        else:
            cuda.atomic.add(loss, 0, total)


def objective(
    x: np.ndarray, labels: np.ndarray, w: np.ndarray, b: np.ndarray, decay: float
) -> float:
    """Returns F by NumPy."""
    z = x @ w + b
    largest = z.max(1)
    losses = np.log(np.exp(z - largest[:, None]).sum(1)) + largest - z[np.arange(len(x)), labels]
    return losses.mean() + decay / 2 * (w**2).sum()


def steepness(x: np.ndarray) -> float:
    """Returns L."""
    inputs = np.hstack([x, np.ones((len(x), 1))])
    return np.linalg.eigvalsh(inputs.T @ inputs / len(x))[-1] / 2


def draw(w: np.ndarray, file: str) -> None:
    """Draws the weights of each class."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
    for c, axes in enumerate(panels.ravel()):
        image = axes.imshow(
            w[:, c].reshape(8, 8), cmap="RdBu_r", vmin=-abs(w).max(), vmax=abs(w).max()
        )
        axes.set(title=f"weights of {c}", xticks=[], yticks=[])
    figure.colorbar(image, ax=panels)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Minimises, and compares with scikit-learn."""
    parser = argparse.ArgumentParser(description="Softmax regression, its gradient by a kernel.")
    parser.add_argument("--decay", type=float, default=0.01, help="λ (default: 0.01)")
    parser.add_argument(
        "--steps", type=int, default=400, help="steps of Nesterov's method (default: 400)"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as weights.png"
    )
    args = parser.parse_args()
    if args.decay <= 0 or args.steps < 2:
        parser.error("--decay must be positive, and --steps at least 2")

    pixels, labels = load_digits(return_X_y=True)
    x, features = (pixels - pixels.mean(0)) / 16, pixels.shape[1]
    most = steepness(x) + args.decay
    ratio = (args.decay / most) ** 0.5
    with synk.fork(args.ranks, device=args.device) as world:
        decay = synk.optim.decay_weights(args.decay, mask=(True, False))  # of W, not of b
        step = synk.train.step(
            gradient,
            (np.zeros((features, CLASSES)), np.zeros(CLASSES)),
            synk.optim.chain(
                decay, synk.optim.nesterov_momentum(1 / most, (1 - ratio) / (1 + ratio))
            ),
            block=THREADS,
            grid=lambda rows: -(-rows // ROWS),
        )
        data = [synk.scatter(synk.variable(one)) for one in (x, labels)]
        losses = [step(*data)]  # compiles
        began = time.perf_counter()
        losses += [step(*data) for _ in range(args.steps - 1)]
        seconds = (time.perf_counter() - began) / (args.steps - 1)
        w, b = step.params.get_value()
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    print(
        f"{len(x):,} digits on {where}: {args.steps} steps, {seconds * 1e6:.0f} µs each; "
        f"mean loss {losses[-1]:.6f}"
    )
    theirs = LogisticRegression(C=1 / (args.decay * len(x)), tol=1e-8, max_iter=10_000).fit(
        x, labels
    )
    found, wanted = (
        objective(x, labels, *one, args.decay)
        for one in ((w, b), (theirs.coef_.T, theirs.intercept_))
    )
    error = abs(w - theirs.coef_.T).max() / abs(w).max()
    print(
        f"F = {found:.9f}, by scikit-learn {wanted:.9f}; largest difference of weights, relative "
        f"to the largest: {error:.1e}"
    )
    print(
        f"accuracy {(np.argmax(x @ w + b, 1) == labels).mean():.4f}, by scikit-learn "
        f"{theirs.score(x, labels):.4f}"
    )
    assert abs(losses[0] - math.log(CLASSES)) < 1e-12, (
        "the first loss is not that of equal probabilities"
    )
    assert found - wanted < 1e-9, "the minimum was not found; take more --steps"
    assert error < 1e-5, "the weights are not those of scikit-learn"
    print("the minimum is that of scikit-learn")
    if args.picture:
        draw(w, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
