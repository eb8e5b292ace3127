"""A large result that the script cannot map, for want of a descriptor: the next call has it."""

import numpy as np
import pytest

import synknumba as synk
from synknumba._errors import SharedMemoryError
from synknumba._host.segment import Segment


@synk.function(outputs="gather")
def double(x):
    return 2 * x


@pytest.mark.parametrize("repeated", [False, True])
def test_the_next_call_is_right(monkeypatch: pytest.MonkeyPatch, repeated: bool) -> None:
    def refuse(*_: object) -> None:
        raise SharedMemoryError("no descriptor")

    small, large = np.arange(3.0), np.arange(200_000.0)
    with synk.fork(2, device="cpu"):
        data = synk.data(large)
        if repeated:  # a known call, whose results then grow
            data.set_value(small)
            assert np.array_equal(double(data), 2 * small)
            data.set_value(large)
        with monkeypatch.context() as patched:
            patched.setattr(Segment, "attach", refuse)
            with pytest.raises(SharedMemoryError, match="no descriptor"):
                double(data)
        assert np.array_equal(double(data), 2 * large)
