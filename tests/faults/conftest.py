"""The `start` fixture: real scripts, and nothing of them left after a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synknumba._host.segment import SWITCH
from tests.faults.nursery import Nursery
from tests.faults.scripts import MAKERS, Script

# For processes of their own: what is made there cannot all be sent, and here `distribute()` would
# send it.
collect_ignore = ["attack", "matrix"]


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way in which scripts, and these tests, make segments."""
    monkeypatch.setenv(SWITCH, request.param)
    return request.param


@pytest.fixture
def start(nursery: Nursery | None, tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """Starts scripts, and ends what they leave."""
    scripts: list[Script] = []

    def start_script(text: str) -> Script:
        scripts.append(Script(text, tmp_path / f"script{len(scripts)}.py", nursery))
        return scripts[-1]

    yield start_script
    for script in scripts:
        script.clean_up()
