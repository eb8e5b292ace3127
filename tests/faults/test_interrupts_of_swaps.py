"""An exception from outside at every moment of a swap: the two variables have each other's
memory, or their own.
"""

import itertools
import sys
from contextlib import suppress

import numpy as np
import pytest

import synknumba as synk
from synknumba._sequence.body import Body
from synknumba._sequence.install import Installer
from synknumba._sequence.used_memory import UsedVariables
from synknumba._variables.state import VariableState


class Struck(BaseException):
    pass


@synk.function
def nothing(u, v):
    pass


@synk.sequence
def twice(u, v):
    synk.swap(u, v)
    nothing(u, v)
    synk.swap(u, v)
    nothing(u, v)


# what is called, in which functions it is struck, and the values that the variables may have then
CALLS = {
    "swap": (synk.swap, (VariableState.trade,), ([1, 2], [2, 1])),
    "sequence": (
        twice,
        (
            VariableState.trade,
            UsedVariables.swap,
            UsedVariables.undo_swaps,
            Installer._swap,
            Installer.swap,
            Body.record,
        ),
        ([1, 2],),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_struck_at_every_moment(name):
    call, functions, expected = CALLS[name]
    watched = {function.__code__ for function in functions}
    synk.close()
    with synk.fork(1, device="cpu"):
        for moment in itertools.count():
            left = itertools.count(-moment)

            def strike(frame, event, _, left=left):
                if frame.f_code in watched and next(left) == 0:
                    raise Struck

            u, v = synk.variable(np.ones(1)), synk.variable(np.full(1, 2.0))
            call(u, v)
            before = [one.get_value()[0] for one in (u, v)]
            if call is twice:
                call._leave()  # to record it again
            sys.setprofile(strike)
            with suppress(Struck):
                call(u, v)
            sys.setprofile(None)
            found = [one.get_value()[0] for one in (u, v)]
            assert found in expected, f"moment {moment}: {before} became {found}"
            if next(left) <= 0:
                break
    assert moment > 1
