"""Calls, collectives and faults in any order, against a model in NumPy; the long version is
`python -m tests.faults.soak`.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.environment import ROOT
from tests.faults.soak_model import COMMON, RARE, Model


class Script(RuleBasedStateMachine):
    """A script that Hypothesis writes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @invariant()
    def data_and_results_are_as_they_were(self) -> None:
        self.model.check_data()

    def teardown(self) -> None:
        self.model.close()


def _rule(step: str) -> Callable[..., None]:
    def make(self: Script, choices: Any) -> None:
        getattr(self.model, step)(lambda n: choices.draw(st.integers(0, n - 1)))

    make.__name__ = step
    return rule(choices=st.data())(make)


for _step in (*COMMON, *RARE):
    setattr(Script, _step, _rule(_step))

TestScript = pytest.mark.whole(pytest.mark.timeout(300)(Script.TestCase))
TestScript.settings = settings(
    max_examples=8,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,  # the long version draws others
    suppress_health_check=list(HealthCheck),
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it sets alarms, as pytest does for its timeouts."""
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.whole
def test_nothing_piles_up():
    done = run("-m", "tests.faults.soak", "--calls", "5000", "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worlds, seed 3" in done.stdout


@pytest.mark.whole
def test_the_check_sees_what_piles_up():
    done = run("-c", FORGETFUL)
    assert "AssertionError: ('segments'," in done.stderr, done.stdout + done.stderr


FORGETFUL = """
from tests.faults import soak, soak_model

kept, drop = [], soak_model.Model.drop_array

def forget_to_drop(self, pick):
    kept.extend(self.arrays)
    drop(self, pick)

soak_model.Model.drop_array = forget_to_drop
soak.soak(calls=2000, seed=3, every=60.0)
"""
