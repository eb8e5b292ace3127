"""Prints, as constraints for pip, the lowest version that pyproject.toml allows of each dependency
and of those of some extras.

python tests/lowest.py dev
make test-lowest            runs the quick suite with these versions
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirement: str) -> str | None:
    """Returns "name==version" of a requirement with a lower bound; None if an exact version is
    required.

    Raises:
        ValueError: the requirement has no bound below.
    """
    told = requirement.split(";", maxsplit=1)[0]
    name = re.match(r"[\w.-]+", told)
    bound = re.search(r">=\s*([\w.]+)", told)
    if name and bound:
        return f"{name[0]}=={bound[1]}"
    if "==" in told:
        return None
    raise ValueError(
        f"{requirement!r} in pyproject.toml has no lower bound; write the lowest version "
        f"with which the tests pass"
    )


def constraints(extras: list[str]) -> list[str]:
    """Returns the constraints of the dependencies and of the extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = [
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in extras),
    ]
    return [
        one
        for one in map(lowest, (requirement for group in wanted for requirement in group))
        if one is not None
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(sys.argv[1:])) + "\n")
