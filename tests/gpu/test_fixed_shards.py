"""shards=K in worlds of different sizes on GPUs: the same bits, of calls that have the same bits
in one world.
"""

import numpy as np
import pytest

import synknumba as synk
from tests.unit.test_fixed_shards import CALLS

pytestmark = pytest.mark.gpu

# Atomics of floating-point numbers add in another order at each call, so the other kernels there
# are no use here.
ORDERED = ["random numbers", "covariance", "weights", "reduction", "reduction of columns"]


def test_the_same_bits_in_every_world():
    found = {name: set() for name in ORDERED}
    for size in (1, 2, 3):
        with synk.fork(devices=[0] * size):
            for name in ORDERED:
                found[name] |= {CALLS[name](shards=7, num_slices=slices) for slices in (2, 2)}
    assert {name: len(bits) for name, bits in found.items()} == dict.fromkeys(ORDERED, 1)


@pytest.mark.multi_gpu
def test_the_same_bits_on_several_gpus():
    found = {name: set() for name in ORDERED}
    for devices in ([0], [0, 1]):
        with synk.fork(devices=devices):
            for name in ORDERED:
                found[name].add(CALLS[name](shards=5))
    assert {name: len(bits) for name, bits in found.items()} == dict.fromkeys(ORDERED, 1)


def test_results_are_those_of_cores():
    with synk.fork(devices=[0, 0]):
        on_gpus = {name: np.frombuffer(CALLS[name](shards=7)[0]) for name in ORDERED[:3]}
    with synk.fork(2, device="cpu"):
        for name, mean in on_gpus.items():
            np.testing.assert_allclose(mean, np.frombuffer(CALLS[name](shards=7)[0]), rtol=1e-13)
