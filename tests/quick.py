"""The quick suite: of a matrix of parameters each value once, not each combination.

`make test` runs it (`pytest --quick`), `make test-all` the whole matrix. The rules, for the folders
in `THINNED`:

- Each value of each parameter of a test stays in at least one combination.
- Of the rows, the worlds that a conformance test runs on, `MAIN_ROW` runs all of these; a stand-in
  for GPUs one combination of
  each test, or all of these where `MAIN_ROW` is not among the rows of a test; `LONE_ROW` one
  combination of each test that is not in `NOT_ALONE`. The other world sizes are left to the whole
  suite.
- Of two stand-ins that differ in the transport alone, a test runs on one, which its name says; half
  of the tests on each.
- What is marked `whole` is left to the whole suite: a further mode of something that the quick
  suite has, which costs seconds.
- So are the test functions of `left_out.txt`: each takes more than half a second, and together they
  run 0.3 % of the lines and branches of the package that the others do not. `tests/entered.py`
  chooses them; a new test is in the quick suite until it is asked again.

The tests, and the processes that they start, look for garbage less often. Processes collect none at
their end: the scripts that `faults/nursery.py` forks, the cases of the fault matrix, and others by
`quick_ends/sitecustomize.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

ROOT = Path(__file__).parent
LEFT_OUT = frozenset((ROOT / "left_out.txt").read_text(encoding="utf-8").splitlines())
ROW_ID = re.compile(r"(cpu|cuda|private|linked|replayed)\d\w*")
THINNED = (ROOT / "conformance", ROOT / "faults", ROOT / "unit" / "simt", ROOT / "unit" / "cuda")
MAIN_ROW = {"world_size": 3, "device": "cpu"}  # rows that do not divide evenly
LONE_ROW = {"world_size": 1, "device": "cpu"}  # nothing to divide, nothing to send
# Each test compiles kernels of its own, or starts worlds, for seconds, and what it sees does not
# depend on the number of ranks.
_NOT_ALONE = (
    *(
        "blocks",
        "correlated_rows",
        "derivative",
        "expectation",
        "expectation_blocks",
        "extensions",
        "kernels",
        "kernels_physics",
    ),
    *(
        "large_reductions",
        "locate",
        "masks_and_texts",
        "random_streams",
        "replayed",
        "until",
        "user_ops",
        "vectorize",
    ),
    *(
        "errors",
        "grids_of_arrays",
        "halo",
        "kept_results",
        "lifetimes",
        "manual",
        "next_world",
        "objects",
        "ops",
    ),
    *(
        "sequence_arrays",
        "sequence_outside",
        "worlds",
        "sequences",
        "shards",
        "sliceable",
        "submit",
        "updates",
    ),
)
NOT_ALONE = {f"test_{name}.py" for name in _NOT_ALONE}
# Files whose tests start worlds of their own, and the tests of them that stand-ins for GPUs run.
STAND_INS = {
    "test_next_world.py": {
        "test_snapshots",
        "test_functions_go_on_in_the_next_world",
        "test_rows_of_each_rank",
    },
    "test_checkpoints.py": {
        "test_on_another_number_of_ranks",
        "test_without_a_world",
        "test_replicas_that_differ",
    },
    "test_locate.py": {"test_the_first_of_equals"},
}


def whole(*values: Any) -> list[Any]:
    """Parameters that the quick suite leaves out."""
    return [pytest.param(value, marks=pytest.mark.whole) for value in values]


asked = False  # whether this run is of the quick suite; known before tests are imported


def examples(number: int, *, quick: int) -> int:
    """How many examples Hypothesis tries: fewer in the quick suite."""
    return quick if asked else number


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that the quick suite does not run."""
    out, groups = [], defaultdict(list)
    for item in items:
        if item.get_closest_marker("whole") or item.nodeid.partition("[")[0] in LEFT_OUT:
            out.append(item)
        elif hasattr(item, "callspec") and any(folder in item.path.parents for folder in THINNED):
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        kept = {item.nodeid for item in _kept(group)}
        out += [item for item in group if item.nodeid not in kept]
    return out


def group_of(nodeid: str) -> str:
    """What runs in one process: the tests of a row, which share a world, and those of a file, which
    share its fixtures.

    >>> group_of("tests/conformance/test_rows.py::test_empty_slices_are_skipped[cpu3]")
    'cpu3'
    >>> group_of("tests/unit/test_launch.py::test_a_rule[3-5]")
    'tests/unit/test_launch.py'
    """
    path, _, name = nodeid.partition("::")
    ids = name.partition("[")[2].rstrip("]").split("-")
    return next((one for one in ids if ROW_ID.fullmatch(one)), path)


def _one_transport(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Without one of each two stand-ins that differ in the transport alone: the same one for a
    test at any time.
    """
    out = []
    for row in rows:
        twin = {key: value for key, value in row.items() if key != "transport"}
        if twin != row and twin.get("device") in {"private", "replayed"} and twin in rows:
            out.append((row, twin)[crc32(name.encode()) % 2])
    return [row for row in rows if row not in out]


def _row(item: pytest.Item) -> dict[str, Any]:
    spec = getattr(item, "callspec", None)
    return spec.params.get("row", {}) if spec else {}


def _kept(group: list[pytest.Item]) -> list[pytest.Item]:
    rows: list[dict[str, Any]] = []
    for row in map(_row, group):
        rows += [] if row in rows else [row]
    kept = []
    for row in _one_transport(rows, group[0].nodeid.partition("[")[0]):
        items = [item for item in group if _row(item) == row]
        if MAIN_ROW not in rows or row == MAIN_ROW:
            kept += each_value_once({item: set(_values(item)) for item in items})
        elif row.get("device") != "cpu":
            name = group[0].nodeid.partition("[")[0].rpartition("::")[2]
            kept += items[:1] if name in STAND_INS.get(group[0].path.name, {name}) else []
        elif row == LONE_ROW and group[0].path.name not in NOT_ALONE:
            kept += items[:1]
    return kept


def _values(item: pytest.Item) -> Iterator[tuple[str, Any]]:
    """The parameters of a test; numbers and strings by their values, which parameters given
    together may share.
    """
    for name, value in item.callspec.params.items():  # type: ignore[attr-defined]
        yield name, value if isinstance(value, str | int | float) else (id(value),)


def each_value_once(values: Mapping[T, Set[Any]]) -> list[T]:
    """A few of the keys, whose sets together hold every value; the key with most new values
    comes first.
    """
    missing = set().union(*values.values())
    kept = []
    while missing:
        kept.append(max(values, key=lambda key: len(values[key] & missing)))
        missing -= values[kept[-1]]
    return kept
