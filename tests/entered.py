"""Which tests run which lines and branches of the package: records it, and writes two files.

    SYNKNUMBA_ENTERED=FOLDER python -m pytest -p tests.entered --quick --durations=0 ... | tee LOG
    python -m tests.entered FOLDER            writes the table of tests/README.md
    python -m tests.entered FOLDER LOG        writes tests/left_out.txt (see tests/quick.py)

A record is a line "module, first line of the function, what ran" in a file for each test function
and process: the first time that a line runs in it, and each way that a branch goes
(`sys.monitoring`, so Python 3.12 or newer). Ranks and scripts record, too: which test runs is in
memory that all processes map, and interpreters that tests start import this by
`quick_ends/sitecustomize.py`.
"""

import mmap
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from zlib import crc32

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "synknumba"
README = ROOT / "tests" / "README.md"
LEFT_OUT = ROOT / "tests" / "left_out.txt"
START = "<!-- written by `python -m tests.entered FOLDER` -->\n"
FOLDER = "SYNKNUMBA_ENTERED"
CURRENT = "SYNKNUMBA_ENTERED_CURRENT"  # the file that says which test of a process runs
MOST_TESTS = 4  # of a feature, in the table
TOOL = 4  # of `sys.monitoring`: cProfile, which tests use, is 2
KEY_BYTES = 8  # of a test function, in names of files and in the memory that processes share

# of what the quick suite runs, and how long a test function that is left out takes at least
COVERED = 0.997
SECONDS = 0.5
# What these are for is seen in no line: values, what is left over, signals, the first page.
KEPT = (
    "tests/conformance/collectives/test_any_sequence.py::test_any_sequence",
    "tests/conformance/simt/test_corpus.py::test_agrees_with_numpy",
    "tests/conformance/test_expectation.py::test_mean_and_variance_are_numpys",
    "tests/conformance/test_kernels.py::test_a_kernel_gives_what_its_reference_gives",
    "tests/faults/test_deaths.py::test_rank_killed_at_work",
    "tests/faults/test_endings.py::test_script_ends_with_an_open_world",
    "tests/faults/test_interrupts.py::test_interrupted_call",
    "tests/faults/test_leaks.py::test_dropped_data_frees_its_memory_everywhere",
    "tests/faults/test_matrix.py::test_fault",
    "tests/test_architecture.py::test_a_first_call_passes_few_files",
    "tests/test_readme.py::test_program",
)
# By these, faults of `seeded.py` are found: lines are not what they show either.
FINDING = (
    "tests/conformance/collectives/test_moves.py::test_broadcast_some_from_values_and_others_from_the_root",
    "tests/conformance/collectives/test_moves.py::test_broadcast_the_shape_too",
    "tests/conformance/collectives/test_moves.py::test_broadcast_what_the_root_has",
    "tests/conformance/test_arguments.py::test_a_scalar_arrives_with_its_type_and_value",
    "tests/conformance/test_arguments.py::test_as_serial_equals_the_call",
    "tests/conformance/test_correlated_rows.py::test_blocks_are_those_of_numpy",
    "tests/conformance/test_expectation.py::test_several_values_with_covariance",
    "tests/conformance/test_large_reductions.py::test_every_op",
    "tests/conformance/test_served.py::test_python_goes_on_with_the_scalars_that_compiled_code_had",
    "tests/conformance/test_shards.py::test_every_op_has_the_bits_of_its_shards",
    "tests/conformance/test_shards.py::test_slices_of_shards_are_put_together_in_order",
    "tests/conformance/test_vectorize.py::test_rows_are_put_together_in_their_order",
    "tests/conformance/test_worlds.py::test_functions_and_data_in_two_successive_worlds",
    "tests/conformance/variables/test_checkpoints.py::test_on_another_number_of_ranks",
    "tests/conformance/variables/test_halo.py::test_a_variable_that_becomes_divided_where_it_is",
    "tests/conformance/variables/test_sliceable.py::test_selected_rows",
    "tests/conformance/variables/test_updates.py::test_updates",
    "tests/faults/test_hygiene.py::test_random_states_differ_between_ranks_and_follow_from_the_script",
    "tests/faults/test_hygiene.py::test_what_ranks_print_is_neither_lost_nor_printed_twice",
    "tests/faults/test_interrupts.py::test_interrupt_right_after_a_process_was_made",
    "tests/unit/random_streams/test_values.py::test_a_number_is_what_the_layout_says",
    "tests/unit/simt/test_as_cuda.py::TestBlocks::test_launches_are_checked_while_a_block_asks_for_it",
    "tests/unit/simt/test_cache.py::TestKey::test_layouts_of_arrays",
    "tests/unit/simt/test_check.py::test_right_kernels_have_no_finding",
    "tests/unit/simt/test_collectives.py::test_shuffles",
    "tests/unit/simt/test_language.py::test_a_thread_does_what_python_does",
    "tests/unit/test_comm_host.py::test_known_values",
    "tests/unit/test_halo.py::test_an_exchange_renews_every_halo_and_nothing_else",
)

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
    ("Expectation values", "expectation.md", ("_rowwise/expectation.py", "_rowwise/estimate.py")),
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
    """Writes what the test that runs makes this process, and those that it forks, run.

    Args:
        folder: of the records.
        current: a file whose first bytes are the key of the test function that runs.
    """

    def __init__(self, folder: str, current: str) -> None:
        self.folder = folder
        self._test = b""  # of what has been recorded last
        self._ways: dict[tuple[CodeType, int], int] = {}  # that branches have gone, if only one
        self._package = f"{PACKAGE}/"
        self.follow(current)
        # at the end of a process modules are gone while functions still run
        self._restart, self._done = sys.monitoring.restart_events, sys.monitoring.DISABLE
        events, tool = sys.monitoring.events, TOOL
        sys.monitoring.use_tool_id(tool, "tests.entered")
        sys.monitoring.register_callback(tool, events.PY_START, self._start)
        sys.monitoring.register_callback(tool, events.LINE, self._line)
        sys.monitoring.register_callback(tool, events.BRANCH, self._branch)
        sys.monitoring.set_events(tool, events.PY_START | events.LINE | events.BRANCH)

    def follow(self, current: str) -> None:
        """Makes a file say which test runs; it is made if it does not exist."""
        descriptor = os.open(current, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self.current = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)

    def _start(self, code: CodeType, _offset: int) -> object:
        if not code.co_filename.startswith(self._package):
            return self._done
        test = self.current[:KEY_BYTES]
        if test != self._test:
            self._test = test
            self._ways.clear()
            self._restart()
        return None

    def _line(self, code: CodeType, line: int) -> object:
        self._write(code, str(line))
        return self._done

    def _branch(self, code: CodeType, offset: int, target: int) -> object:
        if not code.co_filename.startswith(self._package):
            return self._done
        way = self._ways.get((code, offset))
        if way == target:
            return None
        self._write(code, f"{offset}>{target}")
        if way is not None:
            return self._done  # both ways
        self._ways[code, offset] = target
        return None

    def _write(self, code: CodeType, what: str) -> None:
        if not code.co_filename.startswith(self._package) or not self._test.strip(b"\0"):
            return
        module = code.co_filename.removeprefix(self._package)
        # by name: descriptors that are inherited may be closed, and their numbers used again
        path = f"{self.folder}/{self._test.decode()}.{os.getpid()}"
        try:
            record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:  # a test that takes rights or descriptors away
            return
        os.write(record, f"{module}\t{code.co_firstlineno}\t{what}\n".encode())
        os.close(record)


class Plugin:
    """Says which test runs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._names: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        name = nodeid.partition("[")[0]
        key = f"{crc32(name.encode()):08x}"
        if name not in self._names:
            self._names.add(name)
            path = f"{self._recorder.folder}/names.{os.getpid()}"
            with open(path, "a", encoding="utf-8") as names:
                names.write(f"{key}\t{name}\n")
        self._recorder.current[:KEY_BYTES] = key.encode()


_recorder: Recorder | None = None


def record() -> Recorder:
    """Records in this process, which the tests or one of them have started."""
    global _recorder  # noqa: PLW0603  # a process has one
    current = os.environ[CURRENT]
    if _recorder is None:
        _recorder = Recorder(os.environ[FOLDER], current)
    else:
        _recorder.follow(current)
    return _recorder


def pytest_configure(config: pytest.Config) -> None:
    """Records, in a process that runs tests: not in one that has workers of pytest-xdist do so."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # its workers would import this, by the environment, before pytest does
    folder = Path(os.environ[FOLDER])
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # for tests that run as somebody else
    os.environ[CURRENT] = str(folder / f"current.{os.getpid()}")
    config.pluginmanager.register(Plugin(record()))


def read_records(folder: Path) -> dict[str, set[str]]:
    """What each test function has run."""
    names = {
        key: name
        for path in folder.glob("names.*")
        for key, name in (line.split("\t") for line in path.read_text().splitlines())
    }
    ran: defaultdict[str, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        if name := names.get(path.name.partition(".")[0]):
            lines = path.read_text(errors="replace").splitlines()
            ran[name].update(map(sys.intern, lines))
    return ran


# ---- tests that the quick suite leaves out

_DURATION = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(\S[^\[\s]*)")


def read_seconds(log: str) -> Counter[str]:
    """Seconds of each test function, from the durations that pytest prints."""
    seconds: Counter[str] = Counter()
    for duration, name in _DURATION.findall(log):
        seconds[name] += float(duration)
    return seconds


def to_leave_out(ran: Mapping[str, set[str]], seconds: Mapping[str, float]) -> list[str]:
    """The test functions without which the quick suite runs `COVERED` of what it runs with all.

    Short ones stay, what is in `KEPT` and `FINDING`, and doctests; then, again and again, the one
    that adds most in a second.
    """
    stay = {
        name
        for name in ran
        if seconds.get(name, 0.0) < SECONDS
        or name in {*KEPT, *FINDING}
        or not name.startswith("tests/")
    }
    everything = set().union(*ran.values())
    missing = everything.difference(*(ran[name] for name in stay))
    candidates = {name: ran[name] & missing for name in ran.keys() - stay}
    while len(missing) > (1 - COVERED) * len(everything):
        best = max(candidates, key=lambda name: len(candidates[name] & missing) / seconds[name])
        missing -= candidates.pop(best)
    return sorted(candidates)


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


def table(ran: Mapping[str, set[str]]) -> str:
    """The table, in Markdown."""
    functions: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for name, records in ran.items():
        if not name.startswith("tests/"):  # a doctest
            continue
        for module, function, _ in (line.split("\t") for line in records):
            functions[module, function].add(name.partition("::")[0])
    every = owners()
    rows = ["| feature | modules | tests | page |", "|---|---|---|---|"]
    for feature, page, paths in FEATURES:
        tests = [*FOLDERS.get(feature, ()), *tests_of(modules_of(paths, every), functions)]
        cells = (
            feature,
            ", ".join(f"`{path}`" for path in paths),
            ", ".join(f"`{test.removeprefix('tests/')}`" for test in dict.fromkeys(tests)),
            f"[{page}](../docs/{page})",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main(folder: Path, *logs: Path) -> None:
    """Writes the table, or, with what pytest has printed, the list."""
    ran = read_records(folder)
    if logs:
        seconds = sum((read_seconds(log.read_text()) for log in logs), Counter[str]())
        LEFT_OUT.write_text("\n".join([*to_leave_out(ran, seconds), ""]))
    else:
        before, _, _ = README.read_text().partition(START)
        README.write_text(before + START + "\n" + table(ran))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
