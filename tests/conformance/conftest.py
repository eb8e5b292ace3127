"""One suite, every device: a driver joins by adding rows to `ROWS`.

Worlds are costly to start (a GPU's takes seconds, and kernels are compiled anew on its ranks), so
the tests of one row run one after the other in one world. A test that ends its world, or makes
worlds of its own, asks for `fork_row` instead of `world`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import synknumba as synk
from synknumba._call import distribute
from synknumba._types import WeakTable
from synknumba._world import machines
from tests.conformance.private_memory import fork_private
from tests.conformance.replayed_device import fork_replayed

_multi = [pytest.mark.gpu, pytest.mark.multi_gpu]
ROWS = (
    pytest.param({"world_size": 1, "device": "cpu"}, id="cpu1"),
    pytest.param({"world_size": 2, "device": "cpu"}, id="cpu2"),
    pytest.param({"world_size": 3, "device": "cpu"}, id="cpu3"),
    pytest.param({"world_size": 5, "device": "cpu"}, id="cpu5"),
    pytest.param({"devices": [0], "device": "cuda"}, id="cuda1", marks=pytest.mark.gpu),
    pytest.param({"devices": [0, 0, 0], "device": "cuda"}, id="cuda3on1", marks=pytest.mark.gpu),
    pytest.param({"devices": [0, 1], "device": "cuda"}, id="cuda2", marks=_multi),
)
FOUR = pytest.param({"world_size": 4, "device": "cpu"}, id="cpu4")
# Memory of the ranks' own, as on GPUs, without and with what NCCL is there.
PRIVATE = pytest.param({"world_size": 3, "device": "private"}, id="private3")
LINKED = pytest.param({"world_size": 3, "device": "private", "transport": "nccl"}, id="linked3")
# What is repeated is recorded, as on GPUs, and served by compiled code.
REPLAYED = pytest.param({"world_size": 2, "device": "replayed"}, id="replayed2")
REPLAYED_LINKED = pytest.param(
    {"world_size": 2, "device": "replayed", "transport": "nccl"}, id="replayed2linked"
)
# What carries the collectives is a driver of its own.
COLLECTIVE_ROWS = (
    *(row for row in ROWS if row.id != "cpu5"),
    PRIVATE,
    pytest.param(
        {"devices": [0, 1], "device": "cuda", "transport": "host"}, id="cuda2host", marks=_multi
    ),
    pytest.param({"devices": [0, 1, 2, 3], "device": "cuda"}, id="cuda4", marks=_multi),
)
_ORDER = [
    row.values[0] for row in (*ROWS, FOUR, *COLLECTIVE_ROWS, LINKED, REPLAYED, REPLAYED_LINKED)
]


def spans_machines() -> bool:
    """Whether this process was started by `synknumba run` on several machines (tests/machines)."""
    return bool(machines.current)


def start(row: dict[str, Any]) -> synk.World:
    """A world of a row."""
    if row["device"] in {"replayed", "private"}:
        fork = fork_replayed if row["device"] == "replayed" else fork_private
        world, weights = fork(row["world_size"], row.get("transport", "host")), row.get("weights")
        if weights is not None:
            world._engine.weigh(() if weights == "measured" else weights)
        return world
    if spans_machines() and "devices" in row:  # each machine has its own
        row = {**row, "world_size": len(row["devices"])}
        del row["devices"]
    return synk.fork(**row)


class Keeper:
    """The world of one row, kept open from test to test."""

    def __init__(self) -> None:
        self.row: dict[str, Any] | None = None
        self.world: synk.World | None = None

    def open(self, row: dict[str, Any]) -> synk.World:
        if self.world is None or self.world.closed or self.row != row:
            synk.close()
            self.row, self.world = row, start(row)
        return self.world

    def close(self) -> None:
        synk.close()
        self.world = None


_keeper = Keeper()


@pytest.hookimpl(trylast=True)  # after the last test's fixtures, which may use the world
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends the kept world before a test that does not use it, which may start one of its own."""
    if nextitem is None or "row" not in getattr(getattr(nextitem, "callspec", None), "params", {}):
        _keeper.close()


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of `fork()`."""
    return request.param


@pytest.fixture
def world(row: dict[str, Any]) -> synk.World:
    """The open world of this row."""
    return _keeper.open(row)


@pytest.fixture
def fork_row(row: dict[str, Any]) -> Iterator[Callable[..., synk.World]]:
    """Starts a world of this row, or with other arguments; the one kept for other tests is
    closed before.
    """
    _keeper.close()
    yield lambda **other: start({**row, **other})
    synk.close()


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have made is not there for `distribute`, which would send thousands of
    functions for half a minute.
    """
    monkeypatch.setattr(distribute, "_alive", WeakTable())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of one row beside each other, wherever other tests are."""
    if spans_machines():
        told = pytest.mark.skip(
            reason="needs memory that all ranks share, or the script's own memory on them"
        )
        for item in items:
            if item.get_closest_marker("one_machine"):
                item.add_marker(told)
    places = [
        i
        for i, item in enumerate(items)
        if "row" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    chosen = sorted((items[i] for i in places), key=_place)
    for i, item in zip(places, chosen, strict=True):
        items[i] = item


def _place(item: Any) -> tuple[int, bool]:
    # Tests that start worlds of their own come last in their row.
    return _ORDER.index(item.callspec.params["row"]), "fork_row" in item.fixturenames
