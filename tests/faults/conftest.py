"""The `start` fixture: real scripts, and nothing of them left after a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.scripts import Script

# For processes of their own: what is made there cannot all be sent, and here `distribute()` would send it.
collect_ignore = ["matrix"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """Starts scripts, and ends what they leave."""
    scripts: list[Script] = []

    def start_script(text: str) -> Script:
        scripts.append(Script(text, tmp_path / f"script{len(scripts)}.py"))
        return scripts[-1]

    yield start_script
    for script in scripts:
        script.clean_up()
