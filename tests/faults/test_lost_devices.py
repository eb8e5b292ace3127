"""A device that an error has made useless ends the world; what does it on GPUs is in tests/gpu/test_cuda.py."""

import numpy as np
import pytest

import synknumba as synk
from synknumba._device import Device


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
    with pytest.raises(synk.RankDied, match=r"the GPU of rank 0 failed \(ValueError: gone\) during total"):
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
