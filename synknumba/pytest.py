"""A plugin of pytest that runs tests on several numbers of ranks:
`pytest -p synknumba.pytest --synknumba-ranks 1,2,3`.

A test with the fixture `synk_ranks` runs once for each number, which is then that of `fork()` where
the test names none:

    def test_energy(synk_ranks):
        with synk.fork(device="cpu"):
            assert energy(x) == pytest.approx(expected)
"""

from collections.abc import Iterator

import pytest

from synknumba._ops.agreement import rank_numbers
from synknumba._world import machines


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option `--synknumba-ranks`."""
    group = parser.getgroup("synknumba", "the same result on any number of ranks")
    group.addoption(
        "--synknumba-ranks",
        type=rank_numbers,
        default=[1, 2, 3],
        metavar="N,…",
        help="numbers of ranks on which tests with the fixture synk_ranks run; default: 1,2,3",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of each number of ranks."""
    if "synk_ranks" in metafunc.fixturenames:
        metafunc.parametrize(
            "synk_ranks", metafunc.config.getoption("--synknumba-ranks"), indirect=True
        )


@pytest.fixture
def synk_ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """Number of ranks of `fork()` in this test, where it names none."""
    before = list(machines.ranks_alone)
    machines.ranks_alone[:] = [request.param]
    yield request.param
    machines.ranks_alone[:] = before
