"""The same calls on several numbers of ranks, compared, for `synknumba check --ranks 1,2,3` and
`f.check(…, ranks=(1, 2, 3))`.

    first run      a call: inputs and results ──> a folder: a record of each call, and each array once, by its hash
    another run    a call: inputs  ── do they agree?  no: the call does not count
                           results ── do they agree?  no: a finding, and the run ends
                           else the variables, and what the call returns, get the first run's values

So each call is compared with the inputs of the first run: rounding does not add up, and the script
takes the same branches. A call counts if its inputs are the same on any number of ranks. Inputs
that a script computes from the number of ranks are not, nor are `synk.RANK`, `synk.WORLD_SIZE`,
`synk.per_rank`, and replicas that differ between ranks; what such a call returns or writes makes
calls that take it not count either. Nor does a sum of equal replicas, which their number changes,
and a call that one of the runs does not make: calls are paired by thread, line, name, and how often
that line has made them. Of a call that counts, results by rank are left out: lists and arrays with
an entry for each rank, and replicas that differ.
"""  # noqa: E501

import hashlib
import os
import pickle
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.arguments import IndexRange
from synknumba._call.contents import (
    BY_RANK,
    RESULT,
    Content,
    Contents,
    contents,
    inputs,
    leaves,
)
from synknumba._call.future import Future
from synknumba._call.options import NO_OPTIONS, FunctionOptions
from synknumba._errors import (
    ArgumentError,
    Finding,
    KernelCheckError,
    RankDied,
    WorldError,
    shortened,
    where,
)
from synknumba._host import this_process
from synknumba._ops import agreement
from synknumba._ops.agreement import Bound
from synknumba._types import Args, Array, Kwargs, count_text
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable
from synknumba._world.fork import fork
from synknumba._world.open_world import open_world
from synknumba.simt.internals import names_in

T = TypeVar("T")
Key: TypeAlias = tuple[str, str, str, int]  # thread, name, place, and how often that was called
Mode: TypeAlias = Literal["first", "compare", "mark"]
Run: TypeAlias = Callable[[int, Mode], T]

_GATHERS = ("gather", "all_gather")
_REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter")
_FOLDS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "min": np.min,
    "max": np.max,
}
_OPS_BUT_SUM = ("mean", "min", "max")
_GROWING = {"sum": "sum", "prod": "product"}  # ops by which equal replicas depend on their number


class Differs(SystemExit):
    """Ends a script whose results differ."""


class Hash(str):
    """The hash of an array, which a record has in its place."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A call of the first run: the hash of each array, or what else there is, by label."""

    inputs: Mapping[str, Any]
    outcome: Mapping[str, Any]
    error: str


@dataclass(slots=True)
class Summary:
    """Outcome of a run.

    Attributes:
        call: name and place of the first call that differs; "" for the script itself.
        problem: what differs; "" without.
        cause: its usual cause; "" if it has none.
        counted: number of calls whose results were compared.
        skipped: number of calls whose inputs differ, or are by rank, or that one run does not make.
        reason: why the first of these does not count.
        calls: number of calls, by thread, name and place.
    """

    call: str = ""
    problem: str = ""
    cause: str = ""
    counted: int = 0
    skipped: int = 0
    reason: str = ""
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def finding(self) -> str:
        """All of the finding as text; "" without."""
        return "\n  ".join(filter(None, (self.call, self.problem, self.advice)))

    @property
    def advice(self) -> str:
        """The usual cause as text; "" without."""
        if not self.cause:
            return ""
        return f"usual cause: {self.cause}"

    def skip(self, calls: int, reason: str) -> None:
        """Counts calls that do not count; keeps the first reason."""
        self.skipped += calls
        if not self.reason:
            self.reason = reason


class Store:
    """Calls of the first run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, values: Contents) -> dict[str, Any]:
        """Stores the arrays that are not there yet; returns what to record."""
        recorded = {}
        for label, content in values.items():
            recorded[label] = content.value
            if isinstance(content.value, np.ndarray):
                recorded[label] = hashed = hash_of(content.value)
                path = self._folder / f"{hashed}.npy"
                if not path.exists():
                    np.save(path, content.value)
        return recorded

    def pair(self, recorded: Any, content: Content) -> tuple[Any, Any] | None:
        """Returns what the first run and this one have; None if they are equal."""
        value = compared = content.value
        if isinstance(value, np.ndarray):
            compared = hash_of(value)
        if recorded == compared:
            return None
        if not isinstance(recorded, Hash):
            return recorded, value
        return np.load(self._folder / f"{recorded}.npy"), value

    def write(self, name: str, value: Any) -> None:
        """Stores a record."""
        (self._folder / f"{name}.pickle").write_bytes(pickle.dumps(value))

    def read(self, name: str, default: Any = None) -> Any:
        """Returns a record, or the default if there is none."""
        try:
            return pickle.loads((self._folder / f"{name}.pickle").read_bytes())  # noqa: S301  # written by this command
        except FileNotFoundError:
            return default


class Comparison:
    """One run of a script, recorded or compared with the first.

    Args:
        store: calls of the first run.
        ranks: number of ranks of the first run and of this one.
        mode: whether this run is the first, is compared with it, or, on as many ranks as the first,
            marks what differs without a finding: results that no two runs have in common, as times.
    """

    def __init__(self, store: Store, ranks: tuple[int, int], mode: Mode) -> None:
        self.summary = Summary()
        self._store, self._ranks, self._mode = store, ranks, mode
        self._unrepeatable: set[tuple[Key, str]] = store.read("unrepeatable", set())
        self._pid = os.getpid()
        self._inside = threading.local()

    def call(self, function: Any, args: Args, kwargs: Kwargs, run: Callable[[], T]) -> T:
        """Makes a call by `run`, and records or compares it; calls inside of it belong to it."""
        is_inside = getattr(self._inside, "flag", False) or tracing.current is not None
        is_elsewhere = os.getpid() != self._pid or this_process.current_rank() is not None
        if is_inside or is_elsewhere or self.summary.problem or not _counts(function, args, kwargs):
            return run()
        self._inside.flag = True
        try:
            return self._call(function, args, kwargs, run)
        finally:
            self._inside.flag = False

    def _call(
        self,
        function: Any,
        args: Args,
        kwargs: Kwargs,
        run: Callable[[], Any],
    ) -> Any:
        site = (threading.current_thread().name, _name_of(function), where())
        self.summary.calls[site] += 1
        key = (*site, self.summary.calls[site])
        record = None
        if self._mode != "first":
            record = self._store.read(_file_of(key))
            if record is None:
                self._skip(key, f"{count_text(self._ranks[0], 'rank')} made no such call")
                return run()
        before = contents(inputs(function, args, kwargs))
        if record is None:
            stored, drift = self._store.keep(before), 0.0
        else:
            drift = self._drift(key, record, before, _growing(function, args, kwargs))
        bound = _bound(before, args, kwargs, drift)
        returned, result, error = None, None, None
        try:
            returned = result = run()
            if isinstance(returned, Future):
                result, error = None, returned.exception()  # which the script's `result()` raises
                if error is None:
                    result = returned.result()
        except Exception as raised:  # noqa: BLE001  # raised below, when it is recorded
            error = raised
        outcome: Contents = {}
        if error is None:
            ranks = self._ranks[1] if kwargs.get("shards") is None else None
            after = inputs(function, args, kwargs)
            outcome = contents(chain(after, leaves(RESULT, result, ranks)))
        if record is None:
            recorded = Record(stored, self._store.keep(outcome), _type_name(error))
            self._store.write(_file_of(key), recorded)
        elif drift < np.inf:
            self._compare_errors(key, record, error)
            rows = _row_count(function, before, args, kwargs)
            result = self._compare(key, record, outcome, result, bound, function, rows)
        if isinstance(returned, Future):
            return returned
        if error is not None:
            raise error
        return result

    def _drift(self, key: Key, record: Record, before: Contents, growing: str) -> float:
        """Returns the relative difference of a call's inputs, infinite if it does not count.

        Inputs that agree are set to the first run's, where they can be written.
        """
        largest = 0.0
        for label, content in before.items():
            recorded = record.inputs.get(label)
            if content.value is BY_RANK or recorded is BY_RANK:
                return self._skip(key, f"{label} has a value for each rank")
            if growing and content.is_replica:
                return self._skip(
                    key,
                    f"{label} is the same on all ranks, so its {growing} depends on their number",
                )
            pair = self._store.pair(recorded, content)
            if pair is None:
                continue
            drift = agreement.drift(*pair)
            difference = agreement.difference(*pair, Bound())
            if drift == np.inf and difference is not None:
                first, second = map(_shown, difference.values)
                return self._skip(key, f"{label} has {first} in the first run, and {second}")
            if not content.set_to(pair[0]):
                largest = max(largest, drift)
        return largest

    def _skip(self, key: Key, reason: str) -> float:
        _, name, place, _ = key
        self.summary.skip(1, f"{name}, called at {place}: {reason}")
        return np.inf

    def _compare_errors(self, key: Key, record: Record, error: BaseException | None) -> None:
        self.summary.counted += 1
        if record.error == _type_name(error):
            return
        first, second, cause = "returns", "returns", ""
        if record.error:
            first = f"raises {record.error}"
        if error is not None:
            message, _, _ = str(error).partition("\n")
            second = f"raises {type(error).__name__}: {message}"
            if _is_of_indices(error):
                cause = agreement.BEYOND
            elif "broadcast together" in message:
                cause = agreement.DIVIDED
        self._find(key, "", f"it {first} on {self._on(0)}; on {self._on(1)} it {second}", cause)

    def _compare(
        self,
        key: Key,
        record: Record,
        outcome: Contents,
        result: Any,
        bound: Bound,
        function: Any,
        rows: int,
    ) -> Any:
        """Compares what a call has returned and written with the first run; returns its result.

        What agrees, or differs between any two runs, is set to the first run's.
        """
        by_rank = [label for label, content in outcome.items() if content.value is BY_RANK]
        by_rank += [label for label, recorded in record.outcome.items() if recorded is BY_RANK]
        for label in dict.fromkeys((*record.outcome, *outcome)):
            if any(_is_part(label, name) for name in by_rank):
                continue
            if label not in record.outcome or label not in outcome:
                self._find(key, label, f"{label} is there on {self._on(label in outcome)} only")
                continue
            content = outcome[label]
            pair = self._store.pair(record.outcome[label], content)
            if pair is None:
                continue
            difference = agreement.difference(*pair, bound, is_result=content.is_result)
            if difference is not None and not difference.what:
                difference = _unless_of_blocks(difference, function, label, pair, bound)
            if difference is not None:
                if agreement.is_by_rank(difference, self._ranks):
                    continue
                cause = agreement.cause(
                    difference,
                    self._ranks,
                    has_few_threads=_has_few_threads(function, rows),
                    summed_by=_op_of_sums(function, label),
                )
                self._find(key, label, f"{label}: {self._values(difference)}", cause)
                if difference.what:
                    continue
            if label == RESULT and isinstance(result, np.generic | float | complex):
                result = type(result)(pair[0][()])
            else:
                content.set_to(pair[0])
        return result

    def _values(self, difference: agreement.Difference) -> str:
        first, second = map(_shown, difference.values)
        values = f"{first} on {self._on(0)}, {second} on {self._on(1)}"
        if not difference.count:
            return values
        index = ", ".join(map(str, difference.index))
        rows = f"{len(difference.rows):,} of {difference.count:,} rows differ"
        return f"{rows}; [{index}] is {values}"

    def _find(self, key: Key, label: str, problem: str, cause: str = "") -> None:
        """Ends the run with a finding, unless what differs is, or now becomes, unrepeatable."""
        if self._mode == "mark":
            self._unrepeatable.add((key, label))
        if (key, label) in self._unrepeatable:
            return
        _, name, place, _ = key
        self.summary.call = f"{name}, called at {place}"
        self.summary.problem, self.summary.cause = problem, cause
        self.finish()
        raise Differs(1)

    def _on(self, run: int) -> str:
        return count_text(self._ranks[run], "rank")

    def finish(self) -> None:
        """Stores the summary of the run."""
        self._store.write(f"summary {self._ranks[1]}", self.summary)
        if self._mode == "mark":
            self._store.write("unrepeatable", self._unrepeatable)


def summaries(store: Store, sizes: Sequence[int], run: Run[T]) -> Iterator[tuple[Summary, T]]:
    """Runs a program on each number of ranks; yields the outcome of each run but the first.

    Args:
        store: an empty one.
        sizes: numbers of ranks.
        run: runs the program on a number of ranks; what it returns is yielded, too.
    """
    first, *further = sizes
    run(first, "first")
    calls = store.read(f"summary {first}", Summary()).calls
    for size in further:
        value = run(size, "compare")
        summary = store.read(f"summary {size}", Summary())
        if summary.problem and not store.read("unrepeatable"):
            run(first, "mark")
            if store.read("unrepeatable"):
                value = run(size, "compare")
                summary = store.read(f"summary {size}", Summary())
        missing = calls - summary.calls
        if missing and not summary.problem:
            _, name, place = next(iter(missing))
            reason = f"{name}, called at {place}: {count_text(size, 'rank')} made no such call"
            summary.skip(missing.total(), reason)
        yield summary, value


def check_ranks(
    function: Any, sizes: Iterable[int], world_size: int | None, args: Args, kwargs: Kwargs
) -> None:
    """Makes a call in a world of each size, on cores; see `Function.check`."""
    numbers, name = list[int](), _name_of(function)
    if world_size is not None:
        raise ArgumentError(
            f"check of {name}: pass world_size= for one number of ranks, or ranks= for several"
        )
    if isinstance(sizes, Iterable):
        numbers += sizes
    if len(numbers) < 2 or not agreement.are_sizes(numbers):
        raise ArgumentError(
            f"check of {name}: ranks must be two or more different numbers of ranks, as (1, 2, 3), "
            f"got {sizes!r}; one number is world_size="
        )
    if open_world() is not None:
        raise WorldError(
            f"check of {name} with ranks= opens worlds of its own, and one is open; call it before "
            "fork(), or after the `with` block of that world"
        )
    with tempfile.TemporaryDirectory(prefix="synknumba-check-") as folder:
        store = Store(Path(folder))

        def run(size: int, mode: Mode) -> None:
            comparison = Comparison(store, (numbers[0], size), mode)
            with _restored(inputs(function, args, kwargs)), suppress(Differs):
                with fork(size, device="cpu"):
                    comparison.call(function, args, kwargs, lambda: function(*args, **kwargs))
                comparison.finish()

        for (summary, _), size in zip(summaries(store, numbers, run), numbers[1:], strict=True):
            if summary.problem:
                both = f"{count_text(numbers[0], 'rank')} and {count_text(size, 'rank')}"
                label = f"{both} differ: {summary.problem}"
                finding = Finding(KernelCheckError, label, (), summary.advice)
                raise KernelCheckError(name, (finding,))
            if not summary.counted:
                raise ArgumentError(f"check with ranks= cannot compare {summary.reason}")
        if any(label == RESULT for _, label in store.read("unrepeatable", set())):
            raise ArgumentError(
                f"check with ranks= cannot compare {RESULT} of {name}, which differs between two "
                f"runs on {count_text(numbers[0], 'rank')}: seed its random numbers, or leave out "
                "what is no result of the arguments"
            )


@contextmanager
def _restored(values: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Context after which arrays and variables are what they were before."""
    states, copies = list[tuple[VariableState, Any]](), list[tuple[Content, Array]]()
    for label, leaf in values:
        if isinstance(leaf, VariableState):
            states.append((leaf, leaf.noted()))
            continue
        for content in contents([(label, leaf)]).values():
            if content.assign is not None:
                copies.append((content, content.value.copy()))
    try:
        yield
    finally:
        for state, before in states:
            state.put_back(before)
        for content, array in copies:
            content.set_to(array)


def hash_of(array: Array) -> Hash:
    """Returns a hash of dtype, shape and bits."""
    layout = f"{array.dtype.str}{array.dtype.descr}{array.shape}"
    hashed = hashlib.blake2b(layout.encode() + array.tobytes(), digest_size=20)
    return Hash(hashed.hexdigest())


def _counts(function: Any, args: Args, kwargs: Kwargs) -> bool:
    """Returns whether a call is compared as a whole.

    The calls that `during` makes count each by itself, and gather and all_gather join replicas.
    """
    if not isinstance(function, FunctionType):
        return True
    if function.__name__ not in _GATHERS:
        return "during" not in kwargs
    for _, leaf in leaves("", args[:1]):
        if not isinstance(leaf, VariableState) or not leaf.sharded:
            return False
    return True


def _growing(function: Any, args: Args, kwargs: Kwargs) -> str:
    """Returns what a collective makes of equal replicas that depends on their number; else ""."""
    if not isinstance(function, FunctionType) or function.__name__ not in _REDUCTIONS:
        return ""
    op = kwargs.get("op", *args[1:2])
    return _GROWING.get(str(op), "")


def _is_of_indices(error: BaseException) -> bool:
    """Returns whether a call ended by an index out of bounds, or by an access to memory that is
    not mapped.
    """
    if isinstance(error, RankDied):
        return error.exitcode in {-signal.SIGSEGV, -signal.SIGBUS}
    return isinstance(error, IndexError) or isinstance(error.__cause__, IndexError)


def _is_part(label: str, name: str) -> bool:
    return label == name or label.startswith((f"{name}[", f"{name}."))


def _file_of(key: Key) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()


def _names(function: Any) -> frozenset[str]:
    """Returns names of globals and attributes in the source of a function."""
    code = getattr(getattr(function, "py_func", None), "__code__", None)
    if code is None:
        return frozenset()
    return frozenset(names_in(code))


def _row_count(function: Any, before: Contents, args: Args, kwargs: Kwargs) -> int:
    """Returns the number of rows that a call divides among ranks; 0 if it has none."""
    broadcast, lengths = _options_of(function).broadcast, _index_ranges(args, kwargs)
    for label, content in before.items():
        if content.is_replica or label in broadcast:
            continue
        if isinstance(content.value, np.ndarray) and content.value.shape:
            lengths.append(len(content.value))
    return max(lengths, default=0)


def _index_ranges(args: Args, kwargs: Kwargs) -> list[int]:
    """Returns the lengths of index ranges among the arguments of a call."""
    return [len(value) for value in (*args, *kwargs.values()) if isinstance(value, IndexRange)]


def _has_few_threads(function: Any, rows: int) -> bool:
    """Returns whether a kernel has a grid of its own, shorter than the rows, and no stride loop."""
    launch = _options_of(function).launch
    if launch is None or launch.is_derived or "gridsize" in _names(function):
        return False
    return bool(np.max(np.multiply(*launch.resolve(rows))) < rows)


def _op_of(function: Any, label: str) -> Any:
    """Returns the op of a kernel's output; None for what is no output of a kernel."""
    ops = _ops_by_name(function)
    if label == RESULT:
        return next(iter(ops.values()), None)
    _, _, name = label.partition(f"{RESULT}.")
    return ops.get(name)


def _op_of_sums(function: Any, label: str) -> str:
    """Returns the op of an output to which atomics may add, if it does not add too; else ""."""
    op = _op_of(function, label)
    if op not in _OPS_BUT_SUM or "sum" in _ops_by_name(function).values():
        return ""
    if not {"atomic", "add"} <= _names(function):
        return ""
    return str(op)


def _ops_by_name(function: Any) -> dict[str, Any]:
    """Returns the op of each output of a kernel; nothing for what is no kernel."""
    return {name: output.op for name, output in _options_of(function).outputs.items()}


def _options_of(function: Any) -> FunctionOptions:
    """Returns the options of a decorated function; for what has none, the defaults."""
    options = getattr(function, "_options", None)
    return options if isinstance(options, FunctionOptions) else NO_OPTIONS


def _fold_of_blocks(function: Any, label: str) -> Callable[..., Any] | None:
    """Returns what combines entries of an output that may have one for each block of a rank.

    None if the kernel does not ask for its block, or its output is not combined by a named op.
    """
    if "blockIdx" not in _names(function):
        return None
    op = _op_of(function, label)
    return _FOLDS.get(op) if isinstance(op, str) else None


def _unless_of_blocks(
    difference: agreement.Difference,
    function: Any,
    label: str,
    pair: tuple[Any, Any],
    bound: Bound,
) -> agreement.Difference | None:
    """Returns a difference; None if the entries of blocks agree once they are combined."""
    fold = _fold_of_blocks(function, label)
    if fold is None:
        return difference
    first, second = (np.asarray(fold(array, axis=0)) for array in pair)
    if agreement.difference(first, second, bound, is_result=True) is None:
        return None
    return difference


def _bound(before: Contents, args: Args, kwargs: Kwargs, drift: float) -> Bound:
    """Returns what another order of sums explains in a call."""
    arrays = [content.value for content in before.values() if isinstance(content.value, np.ndarray)]
    times = kwargs.get("times")
    if not isinstance(times, int) or times < 1:
        times = 1
    return Bound(
        elements=max([1, *_index_ranges(args, kwargs), *(array.size for array in arrays)]),
        times=times,
        epsilon=agreement.coarsest(arrays),
        magnitude=max(map(agreement.greatest, arrays), default=0.0),
        drift=drift,
        exact=kwargs.get("shards") is not None,
    )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return repr(value)


def _type_name(error: BaseException | None) -> str:
    """Returns the name of an error's class; "" without an error."""
    if error is None:
        return ""
    return type(error).__name__


def _name_of(function: Any) -> str:
    return str(getattr(function, "name", getattr(function, "__name__", type(function).__name__)))


@contextmanager
def compared(comparison: Comparison, calls: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Context in which calls of the script are recorded or compared.

    Args:
        comparison: the run.
        calls: methods of decorated functions, by class and name, and functions by module and name.
    """
    plain = [(owner, name, getattr(owner, name)) for owner, name in calls]
    for owner, name, function in plain:
        setattr(owner, name, shortened(_recorded(comparison, owner, function)))
    try:
        yield
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


def _recorded(comparison: Comparison, owner: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    has_function = isinstance(owner, type) and owner is not Variable

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = partial(plain, *args, **kwargs)
        if has_function:
            return comparison.call(args[0], args[1:], kwargs, run)
        return comparison.call(plain, args, kwargs, run)

    return call
