"""Prints, as an npz file to stdout, the points that optax's optimisers visit: the oracle of
test_optimisers.py.

In a process of its own: JAX starts threads, and processes with threads should not be forked.
"""

import io
import sys

import jax
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

# By test: optax's optimiser. Adam's and AdaMax's ε have other places there: both are tested
# without.
OPTIMISERS = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.01, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda: optax.adagrad(0.5, initial_accumulator_value=0.0, eps=1e-6),
    "rmsprop": lambda: optax.rmsprop(0.01, decay=0.9, eps=1e-6),
    "adadelta": lambda: optax.adadelta(1.0, rho=0.95, eps=1e-6),
    "adam": lambda: optax.adam(0.1, eps=0.0),
    "adamax": lambda: optax.adamax(0.1, eps=0.0),
    "adamw": lambda: optax.adamw(0.1, eps=1e-4, weight_decay=0.01),
    "adamw, masked": lambda: optax.adamw(
        0.1, weight_decay=0.5, mask={"a": True, "b": (False, True)}
    ),
    "lion": lambda: optax.lion(0.01, b1=0.9, b2=0.99, weight_decay=0.01),
    "clipped": lambda: optax.chain(optax.clip(0.5), optax.sgd(0.05)),
    "clipped by norm": lambda: optax.chain(
        optax.clip_by_global_norm(0.7), optax.adam(0.1, eps=0.0)
    ),
    "norm in the middle": lambda: optax.chain(
        optax.trace(0.9), optax.clip_by_global_norm(0.7), optax.scale(-0.05)
    ),
    "cosine": lambda: optax.sgd(optax.cosine_decay_schedule(0.05, 9, alpha=0.2)),
    "exponential": lambda: optax.sgd(optax.exponential_decay(0.05, 7, 0.5)),
    "staircase": lambda: optax.sgd(optax.exponential_decay(0.05, 7, 0.5, staircase=True)),
    "linear": lambda: optax.sgd(optax.linear_schedule(0.05, 0.01, 9)),
    "warm-up": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 4, 12), eps=0.0),
    "accumulated": lambda: optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(0.7), optax.sgd(0.05)), 3
    ),
}
STEPS = 14


def parabola(params):
    return sum((k + 1) * (leaf**2).sum() for k, leaf in enumerate(jax.tree.leaves(params))) / 2


def rosenbrock(params):
    x = jax.numpy.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])
    return ((1 - x[:-1]) ** 2 + 10 * (x[1:] - x[:-1] ** 2) ** 2).sum() / 10


FUNCTIONS = {"parabola": parabola, "rosenbrock": rosenbrock}
START = {"a": np.array([[0.5, -0.3], [0.2, 0.7]]), "b": (np.array([-0.4]), np.array(0.6))}


def main() -> None:
    found = {}
    for what, function in FUNCTIONS.items():
        slope = jax.jit(jax.grad(function))
        for name, make in OPTIMISERS.items():
            optimiser, params = make(), jax.tree.map(jax.numpy.asarray, START)
            state = optimiser.init(params)
            points, slopes = [], []
            for _ in range(STEPS):
                gradient = slope(params)
                step, state = optimiser.update(gradient, state, params)
                params = optax.apply_updates(params, step)
                slopes.append(
                    np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
                )
                points.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]))
            found[f"{what}: {name}"] = np.array([slopes, points])
    buffer = io.BytesIO()
    np.savez(buffer, **found)
    sys.stdout.buffer.write(buffer.getvalue())


if __name__ == "__main__":
    main()
