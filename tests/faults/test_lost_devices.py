"""A device that an error has made useless ends the world; what does it on GPUs is in
tests/gpu/test_cuda.py.
"""

import sys
import time

import numpy as np
import pytest

import synknumba as synk
from synknumba._device import Device, StrandedError


@synk.function(outputs="sum")
def total(x, bad):
    if bad:
        raise ValueError("gone")
    return x.sum()


def test_the_world_ends_and_the_next_one_works():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "recover", lambda self: False)
        world = synk.fork(2, device="cpu")
    x = synk.data(np.arange(10.0))
    assert total(x, False) == 45
    with pytest.raises(
        synk.RankDied, match=r"the GPU of rank 0 failed \(ValueError: gone\) during total"
    ):
        total(x, True)
    assert world.closed
    with pytest.raises(synk.WorldError):
        total(x, False)
    with synk.fork(2, device="cpu"):
        assert total(x, False) == 45
        with pytest.raises(synk.RankError, match="gone"):
            total(x, True)
        assert total(x, False) == 45
    assert x.data.sum() == 45


@synk.function
def fail_or_hang(rank):
    if rank == 0:
        raise ValueError("gone")
    time.sleep(600)  # as in a collective, for the rank that has failed


def test_others_that_hang_are_not_waited_for():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "recover", lambda self: False)
        world = synk.fork(2, device="cpu")
    with pytest.raises(
        synk.RankDied, match=r"the GPU of rank 0 failed \(ValueError: gone\) during fail_or_hang"
    ):
        fail_or_hang(synk.RANK)
    assert world.closed


@synk.function
def fail_or_strand(rank):
    raise ValueError("gone") if rank == 1 else StrandedError("waits")


def test_the_first_cause_is_told():
    """Of a rank that has failed, and others whose GPUs wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Device, "recover", lambda self: not isinstance(sys.exception(), StrandedError)
        )
        world = synk.fork(3, device="cpu")
    with pytest.raises(
        synk.RankDied,
        match=r"rank 1 failed \(ValueError: gone\), for which the GPU of rank \d.* waits during",
    ) as caught:
        fail_or_strand(synk.RANK)
    assert caught.value.rank == 1
    assert world.closed
