r"""Chooses the cases of the quick suite: so few that they take every branch of the compiler that
all cases take.

python -m coverage run --branch --source synknumba/simt -m pytest -p
tests.conformance.simt.choose_cases \
        tests/conformance/simt/test_corpus.py -k agrees_with_numpy
python -m tests.conformance.simt.choose_cases > tests/conformance/simt/quick_cases.txt
"""

import re
import sqlite3
from collections import defaultdict

import pytest

from tests.quick import each_value_once


class Contexts:
    """Has coverage.py note which test takes a branch."""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import coverage

        measured = coverage.Coverage.current()
        if measured is not None:
            measured.switch_context(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Contexts())


def main() -> None:
    taken: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    with sqlite3.connect(".coverage") as found:
        names = dict(found.execute("select id, context from context"))
        for file, context, start, stop in found.execute(
            "select file_id, context_id, fromno, tono from arc"
        ):
            case = re.search(r"\[(.*)\]", names[context])
            if case:
                taken[case[1]].add((file, start, stop))
    print("\n".join(sorted(each_value_once(taken))))


if __name__ == "__main__":
    main()
