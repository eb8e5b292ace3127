"""Every place that names the version names the same, and a tag gives its notes."""

import re
import subprocess
import sys
import tomllib

import pytest

import synknumba
from tests.environment import ROOT
from tests.release_notes import notes, version

# Each place, and how the version stands there.
PLACES = {
    "CITATION.cff": r"^version: (.+)$",
    "recipe/meta.yaml": r'^{% set version = "(.+)" %}$',
    "docs/command-line.md": r"synknumba +(\d[\w.]*)",
}
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - not released yet

- Another op.

## [1.1.0] - 2030-01-02

### Added

- An op.

## [1.0.0] - 2029-01-02

The first.
"""


@pytest.mark.parametrize("place", PLACES)
def test_places_agree_on_the_version(place):
    named = re.findall(PLACES[place], (ROOT / place).read_text("utf-8"), re.MULTILINE)
    assert named
    assert set(named) == {synknumba.__version__}


def test_the_package_alone_has_the_version_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "synknumba.__version__"}


def test_the_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "recipe" / "meta.yaml").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.sub(r"\s", "", line) for line in re.findall(r"^ +- (.+)$", recipe, re.MULTILINE)}
    # A recipe for every Python has no condition on one: conda-forge has posix_ipc for each.
    requirements = {requirement.partition(";")[0] for requirement in project["dependencies"]}
    assert len(requirements) > 3
    assert requirements <= needed
    assert f'{{% set python_min = "{project["requires-python"].removeprefix(">=")}" %}}' in recipe


def test_notes_are_the_section_of_the_version():
    assert notes(CHANGELOG, "1.1.0") == "### Added\n\n- An op."
    assert notes(CHANGELOG, "1.0.0") == "The first."
    for missing in ("1.2.0", "1.3.0", "Unreleased"):
        with pytest.raises(ValueError, match=rf"no section \[{missing}\]"):
            notes(CHANGELOG, missing)


def test_another_tag_is_refused():
    command = [sys.executable, str(ROOT / "tests" / "release_notes.py"), "v0.0.9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"the tag v0.0.9 is not that of version {version()}\n"
