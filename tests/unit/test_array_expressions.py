"""Functions that certainly do nothing but compute with arrays."""

import functools
import math

import numpy as np
import pytest

from synknumba._source.array_expressions import is_array_expression

SCALE = 2.0
seen = []


class FakeNumpy:
    exp = print


fake = FakeNumpy()


def total(x):
    """Sum of all."""
    return x.sum()


def tree(x, beta, y):
    z = np.exp(-beta * x[:, 1:-1]) + np.maximum(x.T, y) ** 2
    z = z / z.sum(1, keepdims=True)
    return {"sum": (z > 0.5).sum(axis=0), "pair": (np.mean(z, 0), [z.max(), -(x @ y)])}


def in_place(x):
    x += 1
    return x


def stores(x):
    x[0] = 1
    return x


def says(x):
    print(x.sum())
    return x.sum()


def notes(x):
    seen.append(1)
    return x.sum()


def by_global(x):
    return SCALE * x


def other_module(x):
    return math.sqrt(x)


def not_numpy(x):
    return fake.exp(x)


def into(x, y):
    return np.exp(x, y)


def into_by_name(x, y):
    return np.exp(x, out=y)


def sums_into(x, y):
    return x.sum(0, None, y)


def random(x):
    return x + np.random.random()  # noqa: NPY002


def decides(x):
    return x.sum() if x.size > 3 else x.max()


def loops(x):
    y = 0.0
    for _ in range(3):
        y = y + x
    return y


def sorts(x):
    return x.sort()


def shadows(np, x):
    return np.exp(x)


def parts(x, k):
    return x[k]


def chained(x):
    return 0 < x < 1


def nothing(x):
    y = x + 1  # noqa: F841


def closes_over():
    scale = [1]

    def f(x):
        return x * scale

    return f


@functools.wraps(total)
def wraps(x):
    seen.append(1)
    return total(x)


class Total:
    def __call__(self, x):
        return x.sum()


@pytest.mark.parametrize("function", [total, tree])
def test_those_that_only_compute(function):
    assert is_array_expression(function)


@pytest.mark.parametrize(
    "function",
    [
        in_place,
        stores,
        says,
        notes,
        by_global,
        other_module,
        not_numpy,
        into,
        into_by_name,
        sums_into,
        random,
        decides,
        loops,
        sorts,
        shadows,
        parts,
        chained,
        nothing,
        closes_over(),
        wraps,
        Total(),
        lambda x: x.sum(),
        np.sum,
        len,
    ],
)
def test_others_may_do_more(function):
    assert not is_array_expression(function)


def test_text_that_has_changed_shows_nothing(tmp_path):
    file = tmp_path / "script.py"
    text = "def f(x):\n    print(x)\n    return x.sum()\n"
    file.write_text(text)
    space = {}
    exec(compile(text, str(file), "exec"), space)
    file.write_text("def f(x):\n    return x.sum()\n")
    assert not is_array_expression(space["f"])
