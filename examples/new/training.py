"""Least squares by gradient descent in minibatches, whose rows are divided over the ranks.

    python training.py

Put your own model in the place of `gradient`. It is NumPy, and on GPUs gets CuPy's arrays.
"""

import numpy as np

import synknumba as synk


def gradient(x, y, w, b):
    """Returns the sums over the rows of the loss, and of its slopes by w and b.

    Args:
        x: float64, shape (rows, features): a rank's rows of the minibatch.
        y: float64, shape (rows,).
        w: parameters, shape (features,).
        b: parameter, shape (1,).
    """
    error = x @ w + b - y
    return (error**2).sum(), (2 * x.T @ error, 2 * error.sum(keepdims=True))


def train(x, y, epochs=20, batch=100):
    """Returns w, b and the loss of each step, which is the mean over its rows."""
    x, y = synk.data(x), synk.data(y)  # in memory that all ranks share
    steps = epochs * (len(x) // batch)
    optimizer = synk.optim.adam(synk.optim.cosine(0.05, steps))  # a rate that falls to 0
    start = np.zeros(x.shape[1]), np.zeros(1)
    step = synk.train.step(gradient, start, optimizer)
    step.check(x, y)  # compares the slopes with differences of the loss
    order = synk.batches(len(x), batch, seed=0, epochs=epochs, drop_last=True)
    losses = [step(x, y, batch=rows) for rows in order]
    return *step.params.get_value(), losses


def main():
    """Runs on every GPU or, without one, on every core."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 3))
    y = x @ [1.0, -2.0, 3.0] + 0.5 + rng.normal(scale=0.1, size=len(x))
    with synk.fork():
        w, b, losses = train(x, y, epochs=2)
    print(f"w = {w.round(3)}, b = {b.round(3)}, loss {losses[0]:.2f} … {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
