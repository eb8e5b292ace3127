"""The section "Further faults" of the reliability page: it is there as generated, and names tests
that exist.
"""

import ast

import pytest

from tests.environment import ROOT
from tests.faults.further import FURTHER, section
from tests.faults.matrix.table import CASES

NAMED = sorted({test for row in FURTHER for test in row.tests})


def test_the_page_has_it():
    assert section() in (ROOT / "docs" / "evidence" / "reliability.md").read_text()


def test_every_row_names_a_test():
    assert len(FURTHER) > 20
    assert all(row.tests for row in FURTHER)


@pytest.mark.parametrize("test", NAMED)
def test_what_is_named_exists(test):
    path, *names = test.partition("[")[0].split("::")
    inside = ast.parse((ROOT / "tests" / path).read_text()).body
    for name in names:
        (found,) = (
            node
            for node in inside
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        )
        inside = found.body
    assert isinstance(found, ast.FunctionDef)
    assert found.name.startswith("test_")
    case = test.partition("[")[2].removesuffix("]")
    assert not case or case in CASES
