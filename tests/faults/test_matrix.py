"""The fault matrix: every fault at every phase is told within a second, leaves nothing behind, and the next call is right.

Of the cases that differ in the ranks alone one is always run, the others are marked slow: `pytest -m slow tests/faults`.
"""

import pytest

from synknumba import _distribute

others = set(_distribute._made)
from tests.faults.matrix.server import Server, run_all  # noqa: E402
from tests.faults.matrix.table import CASES, Outcome, problems, representative  # noqa: E402

# The functions of the cases are for processes of their own: some of them cannot be sent, and `distribute()` in other tests of
# this process sends whatever there is.
_distribute._made.difference_update(set(_distribute._made) - others)

pytestmark = pytest.mark.timeout(1800)  # the first test waits for all cases, which are run beside each other
ALWAYS = representative()
PARAMS = {name: pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in CASES}


@pytest.fixture(scope="module")
def seen(request) -> dict[str, Outcome]:
    """What was seen of each case that is wanted."""
    of_faults = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = [item.callspec.params["name"] for item in of_faults]
    ordinary = run_all([name for name in wanted if not CASES[name].small_shm])
    cramped = [name for name in wanted if CASES[name].small_shm]
    if not cramped or not Server.can_have_small_shm():
        return ordinary
    return ordinary | run_all(cramped, small_shm=True, servers=1)


@pytest.mark.parametrize("name", PARAMS.values())
def test_fault(seen, name):
    if name not in seen:
        pytest.skip("this user may not mount a small /dev/shm of their own")
    assert problems(CASES[name], seen[name]) == []


def test_enough_is_always_run():
    assert len(ALWAYS) >= 200
    assert len(set(CASES)) >= 600
