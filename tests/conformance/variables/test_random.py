"""Calls in random order, with random rows, selections and slices: what one call leaves behind
must not reach another.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.variables import functions, model
from tests.conformance.variables.ranks import held, shards

pytestmark = pytest.mark.usefixtures("usable")
CALLS = 60


class Player:
    """A variable, an input and a minibatch input, and calls of the functions that take them."""

    def __init__(self, world, seed):
        self.world = world
        self.rng = np.random.default_rng(seed)
        self.v = synk.variable(np.zeros(1))
        self.x = synk.data(np.zeros(4))
        self.m = synk.data(np.zeros(300), minibatch=True)
        self.change(1.0)

    def numbers(self, most):
        return self.rng.integers(0, 100, self.rng.integers(1, most + 1)).astype(float)

    def change(self, chance):
        """Other values, of other lengths."""
        if self.rng.random() < chance:
            (synk.scatter if self.rng.random() < 0.8 else synk.broadcast)(self.v, self.numbers(30))
        if self.rng.random() < chance:
            self.x.set_value(self.numbers(40))
        self.m.set_value(self.rng.integers(0, 9, 300).astype(float))

    def batch(self, n):
        low, high = sorted(self.rng.integers(0, n, 2).tolist())
        some = self.rng.integers(-n, n, self.rng.integers(1, 100))
        return [None, high + 1, slice(low, high + 1), slice(None, None, -1), some.tolist(), some][
            self.rng.integers(6)
        ]

    def local_batch(self, sizes, lengths):
        """So many rows of each rank."""
        if self.rng.random() < 0.3 and all(
            size <= length for size, length in zip(sizes, lengths, strict=True)
        ):
            return [
                slice(length - size, length) for size, length in zip(sizes, lengths, strict=True)
            ]
        pairs = zip(sizes, lengths, strict=True)
        return [self.rng.integers(-length, length, size) if size else [] for size, length in pairs]

    def alone(self, num_slices):
        own = held(self.v, self.world)
        sizes = [self.rng.integers(1, 6) if len(one) else 0 for one in own]
        local_batch = self.local_batch(sizes, [len(one) for one in own])
        parts = [model.select(chosen, one) for chosen, one in zip(local_batch, own, strict=True)]
        call = [functions.of_own_rows, functions.python_of_own_rows][self.rng.integers(2)]
        self.check(call(self.v, local_batch=local_batch, num_slices=num_slices), parts)

    def beside_inputs(self, num_slices):
        own, x = held(self.v, self.world), self.x.data.copy()
        batch = self.batch(len(x))
        rows = shards(model.select(batch, x), self.world)
        if any(len(mine) and not len(one) for mine, one in zip(rows, own, strict=True)):
            return  # nothing to go beside them
        local_batch = self.local_batch([len(one) for one in rows], [len(one) for one in own])
        minibatch = shards(self.m.data[: sum(map(len, rows))], self.world)
        columns = zip(rows, minibatch, local_batch, own, strict=True)
        parts = [mine * m + 3 * model.select(chosen, one) for mine, m, chosen, one in columns]
        call = [functions.of_rows_and_own_rows, functions.python_of_rows_and_own_rows][
            self.rng.integers(2)
        ]
        argument = self.x if self.rng.random() < 0.5 else x
        options = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices}
        self.check(call(argument, self.m, np.array([3.0]), self.v, **options), parts)

    def known(self, num_slices):
        """The plainest calls, between the others."""
        own = held(self.v, self.world)
        assert_array_equal(functions.total_of_own(self.v), [one.sum() for one in own])
        assert_array_equal(functions.lengths_of(self.x, self.v)[2], np.concatenate(own))
        assert functions.of_own_rows(self.v).total == sum(one.sum() for one in own)

    @staticmethod
    def check(got, parts):
        total, mean, rows, *_ = got.values() if isinstance(got, dict) else got
        whole = np.concatenate(parts)
        assert total == whole.sum()
        assert_allclose(mean, whole.mean())
        assert_array_equal(rows, whole)


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(world, seed):
    player = Player(world, seed)
    for _ in range(CALLS):
        player.change(0.2)
        [player.alone, player.beside_inputs, player.known][player.rng.integers(3)](
            int(player.rng.integers(1, 5))
        )
