"""Runs the tests that ship with numba-cuda, with `simt.jit` in place of `cuda.jit`, without a GPU.

    python -m tests.peers.numba_cuda_suite --env DIR [--json FILE] [doc_examples cudapy/test_sm ...]

`--env` is a virtual environment with numba-cuda in it; it is made where there is none (about 360 MB
from PyPI; `--wheel` takes numba-cuda from a file). No test is copied: they are imported from the
package. Each file runs in a process of its own.

A test passed, failed, was refused (a `KernelError` says that the CPU cannot run the kernel), or is
not applicable: it makes no kernel, or looks at what exists on a GPU only. That is never read off a
failure. Either the suite skips the test itself, or the test asks for such a thing (`cuda_on_cpu`
lists them and stops the test there), or `not_applicable` lists it with the reason.
"""

import argparse
import importlib
import inspect
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from benchmarks import _common
from tests.peers import report_markdown
from tests.peers.not_applicable import reason_to_leave_out

ROOT = Path(__file__).absolute().parents[2]
NUMBA_CUDA = "numba-cuda==0.30.4"
# What the tests import, and the libraries without which parts of numba-cuda cannot be imported.
NEEDED = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc",
    "numba==0.68.1",
    "numpy<2.5",
    "pytest",
    "filecheck",
    "cffi",
    "psutil",
    "ml_dtypes",
    "scipy",
)
OURS = ("posix_ipc", "cloudpickle")
FOLDERS = ("doc_examples", "cudapy")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test."""

    file: str
    test: str
    status: str
    reason: str = ""
    seconds: float = 0.0


# ---- in the process of one file


class Recorder(unittest.TestResult):
    """Writes a line when a test starts and when it ends, so that a crash shows which test it
    was.
    """

    def __init__(self, file: str, stream: Any, seen: Any, elsewhere: Path) -> None:
        super().__init__()
        self._file, self._stream, self._seen, self._elsewhere = file, stream, seen, elsewhere
        self._status, self._reason, self._began = "passed", "", 0.0

    def _write(self, **line: Any) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  # unittest's name
        super().startTest(test)
        self._status, self._reason, self._began = "passed", "", time.perf_counter()
        self._seen.clear()
        self._elsewhere.unlink(missing_ok=True)
        self._write(started=_short(test))

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        if self._status == "passed" and not self._seen.any and not self._elsewhere.exists():
            self._status, self._reason = "not applicable", "makes no kernel"
        seconds = round(time.perf_counter() - self._began, 3)
        self._write(
            **asdict(Outcome(self._file, _short(test), self._status, self._reason, seconds))
        )

    def _note(self, status: str, reason: str) -> None:
        # the first failure counts, and a skipped part is no failure
        if self._status in {
            "passed",
            "not applicable",
        }:
            self._status, self._reason = status, reason

    def _failed(self, error: Any) -> None:
        self._note(*_verdict(error[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._failed(err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._failed(err)

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._failed(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        if self._status == "passed":
            self._status, self._reason = "not applicable", reason

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self._note("not applicable", "the suite expects it to fail on a GPU")


def _verdict(error: BaseException | None) -> tuple[str, str]:
    """Not applicable for what only a GPU has, refused for a `KernelError` in the chain, else
    failed; with the first line.
    """
    from synknumba import DeviceError, KernelError

    # the latter is pytest's
    if isinstance(error, unittest.SkipTest) or type(error).__name__ == "Skipped":
        return "not applicable", str(error)
    seen: list[BaseException] = []
    cause = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, DeviceError) and isinstance(cause, AttributeError):
            return "not applicable", str(cause).partition(",")[0]
        if isinstance(cause, KernelError):
            return "refused", re.sub(r"/\S*/site-packages/", "", str(cause).splitlines()[0])
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "failed", f"{type(error).__name__}: {' | '.join(lines[:4])}"[:400]


def _short(test: Any) -> str:
    """Class and method."""
    return ".".join(test.id().split(".")[-2:])


def _tests_of(module: ModuleType) -> Iterator[unittest.TestCase]:
    """Those of its classes, and the functions that pytest would call without arguments."""
    yield from _each_test(unittest.defaultTestLoader.loadTestsFromModule(module))
    for name, value in vars(module).items():
        if (
            name.startswith("test_")
            and isinstance(value, FunctionType)
            and not inspect.signature(value).parameters
        ):
            yield unittest.FunctionTestCase(value)


def _each_test(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _each_test(test)
        else:
            yield test


def run_file(file: str, done: set[str]) -> None:
    """Runs the tests of one file that are not done yet, and writes the outcomes to the standard
    output.
    """
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # kernels print, and so do tests
    from tests.peers import cuda_on_cpu

    warnings.simplefilter("ignore")
    package = cuda_on_cpu.install().__name__
    elsewhere = Path(tempfile.mkdtemp(), "seen")
    os.environ[cuda_on_cpu.SEEN_ELSEWHERE] = str(elsewhere)
    recorder = Recorder(file, stream, cuda_on_cpu.seen, elsewhere)
    try:
        module = importlib.import_module(f"{package}.tests.{file.replace('/', '.')}")
    except BaseException as error:  # anything, pytest's Skipped too: the outcome says what
        stream.write(json.dumps(asdict(Outcome(file, "(the file)", *_verdict(error)))) + "\n")
        stream.flush()
        return
    for test in _tests_of(module):
        if _short(test) in done:
            continue
        reason = reason_to_leave_out(file, _short(test))
        if reason:
            stream.write(
                json.dumps(asdict(Outcome(file, _short(test), "not applicable", reason))) + "\n"
            )
        else:
            unittest.TestSuite([test]).run(recorder)
    stream.flush()


# ---- in the process that was started


def outcomes_of(
    python: Path, file: str, seconds: float, environment: dict[str, str]
) -> list[Outcome]:
    """Runs one file in processes: a new one after each test that crashes or takes too long."""
    outcomes: list[Outcome] = []
    while True:
        done = [outcome.test for outcome in outcomes]
        command = [
            str(python),
            "-m",
            "tests.peers.numba_cuda_suite",
            "--one-file",
            file,
            "--done",
            json.dumps(done),
        ]
        running, ended, said = _watch(command, outcomes, seconds, environment)
        if running is None:
            if ended != "exit status 0":
                outcomes.append(Outcome(file, "(the file)", "failed", f"{ended}: {said}"))
            return outcomes
        outcomes.append(Outcome(file, running, "failed", f"{ended}: {said}"))


def _watch(
    command: list[str], outcomes: list[Outcome], seconds: float, environment: dict[str, str]
) -> tuple[str | None, str, str]:
    """Collects the outcomes that a process writes. Returns the test that it died in, how it
    ended, and its last words.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment
        ) as process,
    ):
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
        running, timed_out = None, False
        while True:
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                process.kill()
                timed_out = True
                break
            if line is None:
                break
            fields = json.loads(line)
            if "started" in fields:
                running = fields["started"]
            else:
                outcomes.append(Outcome(**fields))
                running = None
        status = process.wait()
        errors.seek(0)
        said = " | ".join(errors.read().strip().splitlines()[-3:])[-300:]
        return (
            running,
            f"longer than {seconds:.0f} s" if timed_out else f"exit status {status}",
            said,
        )


def _read_lines(stream: Any, lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def prepare(env: Path, wheel: str) -> Path:
    """The Python of the environment, made if need be."""
    python = env / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", wheel, *NEEDED, *OURS], check=True
        )
    return python


def find_files(python: Path, wanted: list[str]) -> list[str]:
    """The test files that are meant: whole folders, or single files without `.py`."""
    code = "import os, numba.cuda as c; print(os.path.join(os.path.dirname(c.__file__), 'tests'))"
    told = subprocess.run(
        [python, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True
    )
    tests = Path(told.stdout.strip())
    found: list[str] = []
    for name in wanted or FOLDERS:
        if (tests / name).is_dir():
            found += [f"{name}/{path.stem}" for path in sorted((tests / name).glob("test_*.py"))]
        elif (tests / f"{name}.py").is_file():
            found.append(name)
        else:
            sys.exit(f"there is no {name} in {tests}")
    return found


def environment_of_tests(folder: str) -> dict[str, str]:
    """Environment variables under which every Python process, a test's own too, sees `numba.cuda`
    on the CPU.

    What tests leave in the folder of temporary files goes with `folder`.
    """
    Path(folder, "sitecustomize.py").write_text(
        "from tests.peers import cuda_on_cpu\n\ncuda_on_cpu.install()\n"
    )
    path = os.pathsep.join([folder, str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ours = {
        "PYTHONPATH": path.rstrip(os.pathsep),
        "TMPDIR": folder,
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0",
    }
    return os.environ | ours


def show_problems(outcomes: list[Outcome]) -> None:
    """A line for each test of a file that failed or was refused, while the others still run."""
    for outcome in outcomes:
        if outcome.status in {"failed", "refused"}:
            print(f"{outcome.file} {outcome.test}: {outcome.status}: {outcome.reason}", flush=True)


def show(outcomes: list[Outcome]) -> None:
    """A line for each file, and the sums."""
    rows = []
    for file in dict.fromkeys(outcome.file for outcome in outcomes):
        counts = Counter(outcome.status for outcome in outcomes if outcome.file == file)
        rows.append([file, *(str(counts[status] or "") for status in report_markdown.STATUSES)])
    counts = Counter(outcome.status for outcome in outcomes)
    rows.append(["all", *(str(counts[status]) for status in report_markdown.STATUSES)])
    _common.print_table(["file", *report_markdown.STATUSES], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "files",
        nargs="*",
        help="folders or files below numba-cuda's tests (default: all with kernels)",
    )
    parser.add_argument(
        "--env", type=Path, help="a virtual environment with numba-cuda; made if it does not exist"
    )
    parser.add_argument("--wheel", default=NUMBA_CUDA, help="what to install numba-cuda from")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one test may take")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the outcomes there, with the machine and the versions",
    )
    parser.add_argument(
        "--earlier",
        type=Path,
        metavar="FILE",
        help="an earlier --json, for the files that are not run now",
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write a page about the outcomes there"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many files run at the same time")
    parser.add_argument("--one-file", help=argparse.SUPPRESS)
    parser.add_argument("--done", default="[]", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_file:
        return run_file(options.one_file, set(json.loads(options.done)))
    python = prepare(options.env.absolute(), options.wheel) if options.env else Path(sys.executable)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of_tests(folder)
        files = find_files(python, options.files)
        with ThreadPoolExecutor(options.jobs) as pool:
            for found in pool.map(
                lambda file: outcomes_of(python, file, options.seconds, environment), files
            ):
                outcomes += found
                show_problems(found)
    if options.earlier:
        run_now = {outcome.file for outcome in outcomes}
        earlier = (
            Outcome(**fields) for fields in json.loads(options.earlier.read_text())["results"]
        )
        outcomes = sorted(
            [*outcomes, *(outcome for outcome in earlier if outcome.file not in run_now)],
            key=lambda o: o.file,
        )
    show(outcomes)
    _common.save(options.json, "numba_cuda_suite", outcomes, {"numba_cuda": options.wheel})
    if options.markdown:
        options.markdown.write_text(report_markdown.page(outcomes, options.wheel))
    return None


if __name__ == "__main__":
    main()
