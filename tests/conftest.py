"""Leaves out the tests that this machine cannot run, and says so."""

import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from synknumba._device import DeviceReport, probe
from synknumba._host import segment
from synknumba._machines import launch
from synknumba._wire.control import Patience
from synknumba._world import life
from synknumba.simt._machine.store import KernelStore
from tests import environment, quick
from tests.faults.nursery import Nursery

GPUS = pytest.StashKey[DeviceReport]()
MISSING = pytest.StashKey[dict[str, str]]()
CACHE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
STDERR = pytest.StashKey[int]()
QUICK_ENDS = Path(__file__).parent / "quick_ends"  # what it has processes import at their start
# of garbage collection: with Python's own it takes 5 to 10 % of the tests' time
QUICK_THRESHOLDS = (
    10_000,
    20,
    20,
)
FEW = 100  # tests that wait to be forgotten together
GRACE = 30.0  # seconds after which a test that outlives its timeout ends the process


# No test depends on how fast the machine is.
hypothesis.settings.register_profile("synknumba", deadline=None)
hypothesis.settings.load_profile("synknumba")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="the quick suite (see tests/quick.py), not the whole matrix",
    )


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts what it runs in the background that way, and nohup all
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[GPUS] = probe()
    config.stash[STDERR] = os.dup(2)  # before it is captured
    quick.asked = config.option.quick
    config.pluginmanager.register(Failures(config))
    # it comes once in a process: which test gets it would depend on the order
    KernelStore._warning_process = 0
    if hasattr(config, "workerinput"):  # several worlds share the cores: who waits gives way
        life.CROWDED = life.ROOMY = Patience(pauses=0, rank=50, coordinator=20)
    else:  # a worker of pytest-xdist shares the directory of the process that started it
        # Worlds compile the same kernels: once is enough. Nothing comes from earlier runs, or stays
        # in the user's cache.
        config.stash[CACHE] = tempfile.TemporaryDirectory(
            prefix="synknumba-tests-", ignore_cleanup_errors=True
        )
        os.environ["SYNKNUMBA_CACHE_DIR"] = config.stash[CACHE].name
        if config.option.quick:
            os.environ["PYTHONPATH"] = os.pathsep.join(
                [*filter(None, [os.environ.get("PYTHONPATH")]), str(QUICK_ENDS)]
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the process if a test hangs beyond its timeout, which is a signal that the test may
    have replaced.
    """
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else float(item.config.option.timeout)
    faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])
    if CACHE in config.stash:
        config.stash[CACHE].cleanup()


@pytest.fixture(params=["memfd"] if segment.posix_ipc is None else ["posix", "memfd"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way in which segments are made."""
    monkeypatch.setenv(segment.SWITCH, request.param)
    return request.param


@pytest.fixture(scope="session")
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery | None]:
    """Forks the scripts of the quick suite; in the whole suite each has an interpreter of its
    own.
    """
    if not request.config.option.quick:
        yield None
        return
    with closing(Nursery()) as nursery:
        yield nursery


@pytest.fixture
def run_program(nursery: Nursery | None) -> Callable[[str, Path], subprocess.CompletedProcess[str]]:
    """Runs a program from a file, with warnings as errors."""
    return environment.run_program if nursery is None else nursery.run


@cache
def mpi_problem() -> str:
    """Why there is no MPI here: it is missing, or two processes of it cannot meet; "" if there
    is one.
    """
    if any(index in os.environ for _, index in launch.LAUNCHERS):
        return "this is a process of a job of MPI"
    own = Path(sys.prefix) / "bin" / "mpiexec"
    mpiexec = str(own) if own.exists() else shutil.which("mpiexec")
    if find_spec("mpi4py") is None or mpiexec is None:
        return "mpi4py or mpiexec not found"
    command = [
        mpiexec,
        "-n",
        "2",
        sys.executable,
        "-c",
        "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2",
    ]
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **variables},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mpiexec does not work here: {error}"
    return (
        ""
        if done.returncode == 0
        else f"mpiexec does not work here: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    )


def missing(config: pytest.Config) -> dict[str, str]:
    """The markers whose tests cannot run here, and why."""
    if MISSING in config.stash:
        return config.stash[MISSING]
    gpus = config.stash[GPUS]
    found = gpus.problem or {0: "no GPU found", 1: "one GPU found"}.get(gpus.count, "")
    reasons = {
        marker: found for marker, needed in (("gpu", 1), ("multi_gpu", 2)) if gpus.count < needed
    }
    if problem := mpi_problem():
        reasons["mpi"] = problem
    if "slow" not in config.option.markexpr:
        reasons["slow"] = "ask for them by -m slow"
    config.stash[MISSING] = reasons
    return reasons


def pytest_report_header(config: pytest.Config) -> list[str]:
    gpus = config.stash[GPUS]
    left_out = [
        f"left out: tests marked {marker} ({reason})" for marker, reason in missing(config).items()
    ]
    return [f"GPUs: {gpus.count}", *left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of the tests that pytest-xdist hands out, those of one group go to one process."""
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return quick.group_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Takes out the test at which a process ended, which pytest-xdist 3.8 would run
            again and again.
            """
            for unit in self.assigned_work[node].values():
                for nodeid, completed in unit.items():
                    if not completed:
                        unit[nodeid] = True
                        super().remove_node(node)
                        return nodeid
            return super().remove_node(node)

    return Grouped(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class) -> Generator[None, Any, Any]:
    """Leaves tests out as soon as those of one function are made.

    The suite makes 30,000, of which the quick one runs a third. All of them at once would be a
    hundred megabytes, which each process that a test forks takes over, page by page.
    """
    made = yield
    if isinstance(made, list):
        config, number = collector.config, len(made)
        reasons = missing(config)
        _leave_out(
            config,
            made,
            [item for item in made if any(item.get_closest_marker(marker) for marker in reasons)],
        )
        if config.option.quick:
            _leave_out(config, made, quick.left_out(made))
        if number - len(made) > FEW:
            gc.collect(0)  # they refer to each other
    return made


@pytest.hookimpl(tryfirst=True)  # before those of one row are put beside each other
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not made from functions, as the tests of state machines."""
    markers = [*missing(config), *(["whole"] if config.option.quick else [])]
    _leave_out(
        config,
        items,
        [item for item in items if any(item.get_closest_marker(marker) for marker in markers)],
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and collects without garbage collection, which was a quarter of that: next to
    nothing of it is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Takes what is there by now out of garbage collection: to walk through 20,000 tests each
    time was 15 % of the suite.
    """
    gc.collect()
    gc.freeze()
    if quick.asked:
        gc.set_threshold(*QUICK_THRESHOLDS)


def _leave_out(config: pytest.Config, items: list[pytest.Item], some: list[pytest.Item]) -> None:
    if some:
        config.hook.pytest_deselected(items=some[:1] * len(some))  # they are only counted, but kept
        gone = set(some)
        items[:] = [item for item in items if item not in gone]


class Failures:
    """Shows each failure when it happens; its details come at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            terminal.ensure_newline()
            terminal.write_line(
                f"FAILED {report.nodeid}: "
                f"{crash.message.splitlines()[0] if crash else report.when}",
                red=True,
            )
