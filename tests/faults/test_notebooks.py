"""In a notebook's kernel: a cell that forks, an interrupt, the same cell again, a restart.

Left out, with a line that says so, where Jupyter is not installed.
"""

import os
import queue
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.environment import ROOT, environment

jupyter_client = pytest.importorskip(
    "jupyter_client", reason="jupyter_client is not installed; ipykernel brings it"
)
pytest.importorskip("ipykernel", reason="ipykernel is not installed; it is in the extra dev")

SECONDS = 60.0

FORKS = """
import os, time, numpy as np, synknumba as synk

synk.close()
world = synk.fork(2, device="cpu")

@synk.function(outputs="sum")
def total(x, seconds):
    time.sleep(seconds)
    return x.sum()

rows = synk.data(np.arange(1001.0))
print("pids", *world.pids, total(rows, 0.0))
"""
SUM = "500500.0"


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self) -> None:
        self.manager: Any = jupyter_client.KernelManager()
        # Under pytest a kernel does not read its descriptors, which is how it shows what other
        # processes write.
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
        }
        self.manager.start_kernel(cwd=str(ROOT), env=environment)
        self.connect()

    def connect(self) -> None:
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(SECONDS)

    def start(self, cell: str) -> str:
        """Begins a cell; returns its number."""
        sent: str = self.client.execute(cell)
        return sent

    def finish(self, sent: str) -> str:
        """What the cell has printed, and the error that it ended with."""
        told = []
        end = time.monotonic() + SECONDS
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=end - time.monotonic())
            except queue.Empty:
                pytest.fail(f"the cell did not end; it printed {''.join(told)!r}")
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    told.append(content["text"])
                case "error":
                    told.append(f"{content['ename']}: {content['evalue']}\n")
                case "status" if content["execution_state"] == "idle":
                    return "".join(told)

    def run(self, cell: str) -> str:
        return self.finish(self.start(cell))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    yield made
    made.close()


def pids(told: str) -> list[int]:
    found = re.search(rf"pids (\d+) (\d+) {SUM}", told)
    assert found, told
    return [int(found[1]), int(found[2])]


def assert_gone(ranks: list[int]) -> None:
    """None of them is a process any more, or at most one that its parent has not waited for."""
    end = time.monotonic() + 5.0
    while alive := [pid for pid in ranks if is_running(pid)]:
        assert time.monotonic() < end, alive
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_cell_that_forks_is_run_again(notebook):
    first = pids(notebook.run(FORKS))
    second = pids(notebook.run(FORKS))
    assert not set(first) & set(second)
    assert_gone(first)
    assert notebook.run("print(total(rows, 0.0))").strip() == SUM


def test_interrupt(notebook):
    """The stop button in the middle of a call: the cell ends, and the next ones work, with the
    same world or another one.
    """
    ranks = pids(notebook.run(FORKS))
    sent = notebook.start("total(rows, 30.0)")
    time.sleep(1.0)
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in notebook.finish(sent)
    assert time.monotonic() - began < 2.0
    assert_gone(ranks)
    assert "WorldError" in notebook.run("total(rows, 0.0)")
    pids(notebook.run(FORKS))
    assert notebook.run("print(total(rows, 0.0))").strip() == SUM


def test_cells_are_run_again_in_any_order(notebook):
    """Cells that make an array or define a kernel, edited and run again; the ranks stay, and
    what nothing names is freed.
    """
    ranks = pids(notebook.run(FORKS))
    kernel = """
from numba import cuda

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def scaled(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, FACTOR * x[i])
"""
    array = (
        "big = synk.data(np.full(100_000, VALUE), name='<big>'); before = "
        "world.statistics().memory.shared"
    )
    assert notebook.run(kernel.replace("FACTOR", "2.0") + array.replace("VALUE", "1.0")) == ""
    assert notebook.run("print(scaled(big), scaled(rows))").strip() == f"200000.0 {2 * float(SUM)}"
    for value in ("3.0", "4.0"):
        assert notebook.run(array.replace("VALUE", value)) == ""
    # the old kernel, and the new array
    assert notebook.run("print(scaled(big))").strip() == "800000.0"
    assert notebook.run(kernel.replace("FACTOR", "10.0")) == ""
    assert notebook.run("print(scaled(big))").strip() == "4000000.0"
    told = notebook.run("print(world.statistics().memory.shared - before < big.nbytes, world.pids)")
    assert told.strip() == f"True ({ranks[0]}, {ranks[1]})"


def test_interrupt_and_going_on(notebook):
    """With `respawn=True` no cell has to be run again: the next call starts the ranks, and
    arrays and variables are there.
    """
    told = notebook.run(FORKS.replace('device="cpu"', 'device="cpu", respawn=True'))
    ranks = pids(told)
    assert (
        notebook.run("""
w = synk.variable(np.zeros(2), name="w")

@synk.function
def add(amount, w):
    w += amount

add(1.0, w)
""")
        == ""
    )
    sent = notebook.start("total(rows, 30.0)")
    time.sleep(0.5)
    notebook.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in notebook.finish(sent)
    assert_gone(ranks)
    assert (
        notebook.run("add(1.0, w); print(w.get_value(), total(rows, 0.0))").strip()
        == f"[2. 2.] {SUM}"
    )


@pytest.mark.whole
def test_restart(notebook):
    """Ranks do not outlive the kernel, also when it is killed in the middle of a call."""
    ranks = pids(notebook.run(FORKS))
    notebook.start("total(rows, 30.0)")
    time.sleep(0.5)
    notebook.client.stop_channels()
    notebook.manager.restart_kernel(now=True)
    assert_gone(ranks)
    notebook.connect()
    pids(notebook.run(FORKS))


def test_fork_does_not_warn_of_the_threads_of_a_kernel(notebook):
    told = notebook.run("import warnings; warnings.simplefilter('error')\n" + FORKS)
    pids(told)
    assert "Warning" not in told


@pytest.mark.whole
def test_what_ranks_print_is_shown(notebook):
    pids(notebook.run(FORKS))
    # it reads in turns
    told = notebook.run(
        "synk.function(lambda x: print('hello from rank', len(x)))(rows); time.sleep(2.0)"
    )
    assert "hello from rank 501\n" in told
    assert "hello from rank 500\n" in told


@pytest.mark.whole
def test_last_words_of_a_rank_are_told(notebook):
    pids(notebook.run(FORKS))
    told = notebook.run("""
import sys

@synk.function()
def crash(x):
    print("last words", file=sys.stderr)
    os.kill(os.getpid(), 11)

crash(rows)
""")
    assert re.search(
        r"(?s)RankDied: rank \d .*SIGSEGV.*last stderr output of rank \d.*last words", told
    ), told


def test_terminal():
    """IPython's own threads, as of its history, are no reason for a warning; the same cell again
    has the same world.
    """
    cells = """
import synknumba as synk
world = synk.fork(1, device="cpu")
print("same", synk.fork(1, device="cpu") is world)
synk.close()
exit()
"""
    command = [
        sys.executable,
        "-W",
        "error::RuntimeWarning",
        "-m",
        "IPython",
        "--quick",
        "--simple-prompt",
        "--no-banner",
    ]
    done = subprocess.run(
        command,
        env=environment(),
        input=cells,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "same True" in done.stdout, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
