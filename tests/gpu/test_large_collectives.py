"""Collectives of up to 2 GiB between GPUs: filled, combined and compared on the ranks, in calls and
in a sequence.

Counts beyond 2**31 bytes and sizes at which NCCL changes its algorithm are where a transport would
lose elements.
"""

import numpy as np
import pytest

import synknumba as synk

pytestmark = [pytest.mark.gpu, pytest.mark.multi_gpu, pytest.mark.slow]

COUNTS = {"64 MiB": 2**24, "1 GiB": 2**28, "2 GiB and an element": 2**29 + 1}  # of float32
REPEATS = 4


@synk.function
def fill(array, number):
    array[...] = number + 1


@synk.function(outputs="sum")
def count_unequal(array, number):
    return (array != number).sum()


@synk.function(outputs="sum")
def count_unequal_parts(array, parts):
    count = len(array) // parts
    return sum(
        (array[part * count : (part + 1) * count] != part + 1).sum() for part in range(parts)
    )


@pytest.fixture(scope="module")
def ranks():
    """All GPUs, with NCCL between them."""
    with synk.fork(transport="nccl") as world:
        yield len(world.devices)


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
class TestLarge:
    def test_all_reduce(self, ranks, count):
        array = synk.variable(np.zeros(count, np.float32))
        for _ in range(REPEATS):
            fill(array, synk.RANK)
            synk.all_reduce(array, "sum")
            assert count_unequal(array, ranks * (ranks + 1) / 2) == 0

    def test_all_reduce_in_a_sequence(self, ranks, count):
        @synk.sequence
        def fill_and_add(array, total):
            fill(array, synk.RANK)
            synk.all_reduce(array, "sum")
            return count_unequal(array, total)

        array = synk.variable(np.zeros(count, np.float32))
        assert (
            list(fill_and_add(array, ranks * (ranks + 1) / 2, times=REPEATS, every=1))
            == [0] * REPEATS
        )

    def test_all_gather(self, ranks, count):
        own = synk.variable(np.zeros(count // ranks, np.float32))
        whole = synk.variable(np.zeros(count // ranks * ranks, np.float32))
        for _ in range(REPEATS):
            fill(own, synk.RANK)
            synk.all_gather(own, dest=whole)
            assert count_unequal_parts(whole, ranks) == 0

    def test_broadcast(self, ranks, count):
        array = synk.variable(np.zeros(count, np.float32))
        for _ in range(REPEATS):
            fill(array, synk.RANK)
            synk.broadcast(array, root=ranks - 1)
            assert count_unequal(array, ranks) == 0
