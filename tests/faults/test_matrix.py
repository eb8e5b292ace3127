"""The fault matrix: every fault at every phase raises within a second, leaves nothing behind, and
the next call is right.

Of the cases that differ in the ranks alone one is always run, the others are marked slow:
`pytest -m slow tests/faults`.
"""

import sys

import pytest

from tests.faults.matrix.client import run_wanted
from tests.faults.matrix.table import CASES, Outcome, problems, quick, representative

# the first test waits for all cases, which are run beside each other
pytestmark = pytest.mark.timeout(1800)
ALWAYS = representative()
QUICK = quick()


def _mark(name):
    if name not in ALWAYS:
        return pytest.mark.slow
    return () if name in QUICK else pytest.mark.whole


PARAMS = {name: pytest.param(name, marks=_mark(name)) for name in CASES}


@pytest.fixture(scope="module")
def seen(request) -> dict[str, Outcome]:
    """What was seen of each case that is wanted."""
    of_faults = [
        item
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    return run_wanted([item.callspec.params["name"] for item in of_faults])


@pytest.mark.parametrize("name", PARAMS.values())
def test_fault(seen, name):
    if name not in seen:
        pytest.skip("this user may not mount a small /dev/shm of their own")
    assert problems(CASES[name], seen[name]) == []


def test_enough_is_always_run():
    assert len(ALWAYS) >= 200
    assert len(set(CASES)) >= 600


def test_functions_of_the_cases_are_not_of_this_process():
    """Some of them cannot be sent, and `distribute()` in other tests of this process sends
    whatever there is.
    """
    assert not {"tests.faults.matrix.phases", "tests.faults.matrix.acts"} & set(sys.modules)
