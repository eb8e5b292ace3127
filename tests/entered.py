"""Which tests enter which modules: records it, and writes the table of tests/README.md from it.

    python -m pytest -p tests.entered --quick ...     records, in the folder of SYNKNUMBA_ENTERED
    python -m tests.entered FOLDER                    writes the table

A record is a line "test file, module, function" for the first time that code of the package runs
during a test file, in whichever process (`sys.monitoring`, so Python 3.12 or newer; ranks inherit
it with the fork). Scripts that tests start with an interpreter of their own are not seen.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "synknumba"
README = ROOT / "tests" / "README.md"
START = "<!-- written by `python -m tests.entered FOLDER` -->\n"
FOLDER = "SYNKNUMBA_ENTERED"
MOST_TESTS = 4  # of a feature, in the table

# What a user does: the page that says how, and the modules that exist for it. A package stands for
# its modules, but for those that another feature names.
FEATURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Open and close a world", "concepts.md", ("_world", "_rank/startup.py")),
    ("Data, files and foreign arrays", "data.md", ("_host",)),
    ("Call a kernel on rows", "calls.md", ("_call", "_rank/kernel_routine.py")),
    ("Functions of arrays", "calls.md", ("_rank/function_routine.py",)),
    ("Reductions and results", "reductions.md", ("_ops", "_wire/results.py")),
    ("Variables and collectives", "variables.md", ("_variables", "_comm")),
    ("Sequences", "sequences.md", ("_sequence", "_formulas.py")),
    ("Functions of one row, vectorize", "vectorize.md", ("_rowwise",)),
    ("Expectation values", "expectation.md", ("_rowwise/expectation.py", "_ops/estimate.py")),
    ("Training", "training.md", ("_learning", "optim.py", "train.py")),
    ("Checkpoints", "checkpoints.md", ("_learning/checkpoint.py", "_learning/replaced_file.py")),
    ("Random numbers", "random.md", ("random.py",)),
    ("Several machines", "cluster.md", ("_machines",)),
    ("GPUs", "gpus.md", ("_device",)),
    ("Traces", "traces.md", ("_timeline", "_world/events.py")),
    ("Command line", "command-line.md", ("_commands", "_cli.py")),
    ("Kernels on cores", "simt.md", ("simt",)),
    ("debug and check", "simt-debugging.md", ("simt/_python", "simt/_checker")),
    ("Without a GPU in CI", "simt-ci.md", ("simt/_standins", "simt/pytest.py")),
    ("What both sides agree on", "architecture.md", ("_wire",)),
    ("Reading kernels", "architecture.md", ("_source",)),
    ("Rounds on a rank", "architecture.md", ("_rank",)),
)
# Tests that start scripts, which are not seen.
FOLDERS = {
    "Several machines": ["tests/machines"],
    "Open and close a world": ["tests/faults"],
    "Command line": ["tests/unit/test_check_command.py"],
}


# ---- recording


class Recorder:
    """Writes a line for each function that a test file enters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.test_file = ""
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.PROFILER_ID, "tests.entered")
        start = monitoring.events.PY_START
        monitoring.register_callback(monitoring.PROFILER_ID, start, self.entered)
        monitoring.set_events(monitoring.PROFILER_ID, start)
        self._monitoring = monitoring

    def entered(self, code: CodeType, _offset: int) -> object:
        """Called the first time that a function runs."""
        if code.co_filename.startswith(str(PACKAGE)) and self.test_file:
            module = os.path.relpath(code.co_filename, PACKAGE)
            line = f"{self.test_file}\t{module}\t{code.co_qualname}\n"
            # by name: descriptors that are inherited may be closed, and their numbers used again
            with open(self.folder / f"{os.getpid()}.txt", "a", encoding="utf-8") as records:
                records.write(line)
        return self._monitoring.DISABLE

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        if location[0] != self.test_file:
            self.test_file = location[0]
            self._monitoring.restart_events()


def pytest_configure(config: pytest.Config) -> None:
    """Records, in the process that runs tests."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(exist_ok=True)
    config.pluginmanager.register(Recorder(folder))


# ---- the table


def modules_of(paths: Iterable[str], every: Mapping[str, str]) -> set[str]:
    """The modules that paths of a feature stand for; `every` has the path that owns each."""
    return {module for module, owner in every.items() if owner in set(paths)}


def owners() -> dict[str, str]:
    """For each module the path of a feature that names it most closely; "" for none."""
    paths = sorted({path for _, _, paths in FEATURES for path in paths}, key=len, reverse=True)
    modules = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return {
        module: next((p for p in paths if module == p or module.startswith(f"{p}/")), "")
        for module in modules
    }


def tests_of(modules: set[str], functions: Mapping[tuple[str, str], set[str]]) -> list[str]:
    """The test files that enter the most functions of modules, those that few others enter first.

    A function counts as 1 divided by the number of test files that enter it.
    """
    scores: Counter[str] = Counter()
    for (module, _), test_files in functions.items():
        if module in modules:
            for test_file in test_files:
                scores[test_file] += 1 / len(test_files)
    return [test_file for test_file, _ in scores.most_common(MOST_TESTS)]


def table(folder: Path) -> str:
    """The table, in Markdown."""
    functions: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            test_file, module, function = line.split("\t")
            functions[module, function].add(test_file)
    every = owners()
    rows = ["| feature | modules | tests | page |", "|---|---|---|---|"]
    for feature, page, paths in FEATURES:
        tests = [*FOLDERS.get(feature, ()), *tests_of(modules_of(paths, every), functions)]
        cells = (
            feature,
            ", ".join(f"`{path}`" for path in paths),
            ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests),
            f"[{page}](../docs/{page})",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    before, _, _ = README.read_text().partition(START)
    README.write_text(before + START + "\n" + table(Path(sys.argv[1])))
