"""The same calls on several numbers of ranks, compared, for `synknumba check --ranks 1,2,3`.

    first run      call k: inputs and results ──> a folder: a list for each call, and each array once, by its hash
    another run    call k: inputs  ── do they agree?  no: the call does not count
                           results ── do they agree?  no: a finding, and the run ends
                           else the variables, and what the call returns, get the first run's values

So each call is compared with the inputs of the first run: rounding does not add up, and the script takes the same branches. A
call counts if its inputs are the same on any number of ranks. Inputs that a script computes from the number of ranks are not,
nor are `synk.RANK`, `synk.WORLD_SIZE`, `synk.per_rank`, and replicas that differ between ranks; what such a call returns or
writes makes calls that take it not count either. Of a call that counts, results by rank are left out: lists and arrays with an
entry for each rank, and replicas that differ.
"""

import hashlib
import inspect
import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeAlias

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._call.future import Future
from synknumba._errors import RankDied, SynkError, shortened, where
from synknumba._host import this_process
from synknumba._host.data import Data
from synknumba._ops import agreement
from synknumba._ops.agreement import Bound
from synknumba._ops.tree import flatten as flatten_tree
from synknumba._ops.tree import paths
from synknumba._types import Array, RankConstant
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of

Key: TypeAlias = tuple[str, int]  # thread, and number of the call in it

LARGE_BYTES = 4 << 20  # of an array that is compared in its file
_GATHERS = ("gather", "all_gather")
_NUMBERS = "biufcmMV"  # kinds of dtypes that are compared by elements


class _ByRank(Enum):
    BY_RANK = "a value for each rank"


BY_RANK: Final = _ByRank.BY_RANK


class Differs(SystemExit):
    """Ends a script whose results differ."""


@dataclass(frozen=True, slots=True)
class Content:
    """What an argument, a result or a variable has.

    Attributes:
        value: an array, BY_RANK, or of anything else a text.
        is_result: whether the call returns it.
        assign: sets the elements to those of an array; None if that is not possible.
    """

    value: Any
    is_result: bool = False
    assign: Callable[[Array], None] | None = None


Contents: TypeAlias = dict[str, Content]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call of the first run: the hash of each array, or what else there is, by label."""

    name: str
    place: str
    inputs: Mapping[str, Any]
    outcome: Mapping[str, Any]
    error: str


@dataclass(slots=True)
class Summary:
    """What a run has found.

    Attributes:
        finding: the first call that differs, as text; "" without.
        counted: number of calls whose results were compared.
        skipped: number of calls whose inputs differ, or are by rank.
        reason: why the first of these does not count.
        calls: number of calls, by thread.
    """

    finding: str = ""
    counted: int = 0
    skipped: int = 0
    reason: str = ""
    calls: dict[str, int] = field(default_factory=dict)


class Store:
    """Calls of the first run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, contents: Contents) -> dict[str, Any]:
        """Stores the arrays that are not there yet; returns what to record."""
        recorded = {}
        for label, content in contents.items():
            recorded[label] = content.value
            if isinstance(content.value, np.ndarray):
                recorded[label] = hashed = hash_of(content.value)
                path = self._folder / f"{hashed}.npy"
                if not path.exists():
                    np.save(path, content.value)
        return recorded

    def array(self, hashed: str) -> Array:
        """Returns an array of the first run; a large one stays in its file."""
        path = self._folder / f"{hashed}.npy"
        is_large = path.stat().st_size > LARGE_BYTES
        array: Array = np.load(path, mmap_mode="r" if is_large else None)
        return array

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
        is_first: whether this run is the first.
        marks: whether this run, on as many ranks as the first, marks what differs without a finding: results that no two runs
            have in common, such as times.
    """

    def __init__(self, store: Store, ranks: tuple[int, int], *, is_first: bool, marks: bool = False) -> None:
        self.summary = Summary()
        self._store, self._ranks, self._is_first, self._marks = store, ranks, is_first, marks
        self._unrepeatable: set[tuple[Key, str]] = store.read("unrepeatable", set())
        self._pid = os.getpid()
        self._inside = threading.local()

    def call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """Makes a call of the script, by `run`, and records or compares it; those inside of it belong to it."""
        is_inside = getattr(self._inside, "flag", False) or tracing.current is not None
        if is_inside or self.summary.finding or os.getpid() != self._pid or this_process.current_rank() is not None:
            return run()
        self._inside.flag = True
        try:
            return self._call(function, args, kwargs, run)
        finally:
            self._inside.flag = False

    def _call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        thread = threading.current_thread().name
        number = self.summary.calls[thread] = self.summary.calls.get(thread, 0) + 1
        key, name, place = (thread, number), _name_of(function), where()
        recorded = None if self._is_first else self._store.read(_file_of(key))
        if not self._is_first and (recorded is None or (recorded.name, recorded.place) != (name, place)):
            self._part(recorded, name, place)
            return run()
        read = partial(self._read, function, args, kwargs)
        inputs = read()
        kept = self._store.keep(inputs) if self._is_first else {}
        drift = 0.0 if recorded is None else self._drift(recorded, inputs)
        bound = _bound(inputs, args, kwargs, drift)
        returned, error, text = None, None, ""
        try:
            returned = result = run()
            if isinstance(returned, Future):
                error = returned.exception()  # raised by the script's own `result()`
                result = returned.result() if error is None else None
        except Exception as raised:  # noqa: BLE001  # raised below, when it is recorded
            error, result = raised, None
        outcome: Contents = {}
        if error is None:
            outcome = {**self._returned(result, kwargs), **read()}
        else:
            text = type(error).__name__
        if self._is_first:
            self._store.write(_file_of(key), Recorded(name, place, kept, self._store.keep(outcome), text))
        elif recorded is not None and drift < np.inf:
            self._compare(key, recorded, outcome, error, bound, function)
            result = self._as_in_first_run(recorded, result, outcome)
        if error is not None and returned is None:
            raise error
        return returned if isinstance(returned, Future) else result

    # ---- contents

    def _read(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Contents:
        """Returns what the arguments have, and the variables that the call may use."""
        contents: Contents = {}
        states: dict[int, str] = {}
        named = zip(_parameters(function, len(args)), args, strict=False)
        for name, value in itertools.chain(named, kwargs.items()):
            leaves, structure = flatten_tree(value)
            for leaf, path in zip(leaves, paths(structure), strict=True):
                self._add(contents, states, f"{name}{path}", leaf)
        for name, value in _own_variables(function):
            if id(value) not in states:
                self._add_variable(contents, states, name, value)
        return contents

    def _add(self, contents: Contents, states: dict[int, str], label: str, value: Any) -> None:
        if isinstance(value, Variable):
            self._add_variable(contents, states, label, state_of(value))
        elif isinstance(value, Data):
            contents[label] = Content(np.asarray(value.data), assign=_into(np.asarray(value.data)))
        elif isinstance(value, PerRankValues) or (
            isinstance(value, RankConstant) and value in {RankConstant.RANK, RankConstant.WORLD_SIZE}
        ):
            contents[label] = Content(BY_RANK)
        else:
            contents[label] = _content(value)

    def _add_variable(self, contents: Contents, states: dict[int, str], label: str, state: VariableState) -> None:
        states[id(state)] = label
        try:
            kept = state._present()  # noqa: SLF001  # shared with this package
            wholes = kept.whole(state.label)
            if not kept.sharded:
                kept.check_equal(state.label)
        except SynkError:
            contents[label] = Content(BY_RANK)
            return
        many = len(wholes) > 1
        for leaf, (whole, path) in enumerate(zip(wholes, state.leaf_paths(), strict=True)):
            assign = partial(_set_leaf, state, leaf)
            contents[f"{label}{path}" if many else label] = Content(whole, assign=assign)

    def _returned(self, result: Any, kwargs: Mapping[str, Any]) -> Contents:
        """Returns what a call returns; lists with a value for each rank are one content."""
        contents: Contents = {}
        has_shards = kwargs.get("shards") is not None

        def add(label: str, value: Any) -> None:
            if isinstance(value, list) and len(value) == self._ranks[1] and not has_shards:
                contents[label] = Content(BY_RANK, is_result=True)
            elif isinstance(value, dict):
                for key, child in value.items():
                    add(f"{label}[{key!r}]", child)
            elif isinstance(value, list | tuple):
                names = getattr(value, "_fields", None)
                for index, child in enumerate(value):
                    add(f"{label}.{names[index]}" if names else f"{label}[{index}]", child)
            elif hasattr(value, "stderr") and hasattr(value, "mean"):
                for name in ("mean", "stderr"):
                    contents[f"{label}.{name}"] = Content(np.asarray(getattr(value, name)), is_result=True)
            elif not isinstance(value, Variable | Data):
                contents[label] = _content(value, is_result=True)

        add("the result", result)
        return contents

    # ---- comparison

    def _drift(self, recorded: Recorded, inputs: Contents) -> float:
        """Returns the relative difference of a call's inputs, infinite if it does not count.

        Inputs that agree are set to the first run's, where they can be written.
        """
        largest = 0.0
        for label, content in inputs.items():
            first: Any = recorded.inputs.get(label)
            if content.value is BY_RANK or first is BY_RANK:
                return self._skip(recorded, f"{label} has a value for each rank")
            if not isinstance(content.value, np.ndarray):
                if content.value != first:
                    return self._skip(recorded, f"{label} is {_shown(first)} in the first run, and {_shown(content.value)}")
                continue
            if hash_of(content.value) == first:
                continue
            array = self._store.array(first) if _is_hash(first) else np.empty(0)
            found = agreement.drift(array, content.value)
            if found == np.inf:
                different = agreement.difference(array, content.value, Bound())
                values = different.values if different is not None else ("?", "?")
                return self._skip(recorded, f"{label} has {_shown(values[0])} in the first run, and {_shown(values[1])}")
            if not _is_set(content, array):
                largest = max(largest, found)
        return largest

    def _skip(self, recorded: Recorded, reason: str) -> float:
        self.summary.skipped += 1
        self.summary.reason = self.summary.reason or f"{recorded.name}, called at {recorded.place}: {reason}"
        return np.inf

    def _compare(
        self, key: Key, recorded: Recorded, outcome: Contents, error: BaseException | None, bound: Bound, function: Any
    ) -> None:
        self.summary.counted += 1
        if recorded.error != (type(error).__name__ if error is not None else ""):
            first = f"raises {recorded.error}" if recorded.error else "returns"
            second, why = "returns", ""
            if error is not None:
                message, _, _ = str(error).partition("\n")
                second = f"raises {type(error).__name__}: {message}"
                why = f"\n  usual cause: {agreement.BEYOND}" if _is_of_indices(error) else ""
            self._find(recorded.name, recorded.place, f"it {first} on {self._on(0)}; on {self._on(1)} it {second}{why}")
        for label in dict.fromkeys((*recorded.outcome, *outcome)):
            problem = self._problem(label, recorded.outcome, outcome, bound, function)
            if not problem or (key, label) in self._unrepeatable:
                continue
            if self._marks:
                self._unrepeatable.add((key, label))
            else:
                self._find(recorded.name, recorded.place, problem)

    def _problem(self, label: str, recorded: Mapping[str, Any], outcome: Contents, bound: Bound, function: Any) -> str:
        """Returns how what a call has returned or written differs from the first run; "" if it agrees, or is by rank."""
        by_rank = [name for values in (recorded, outcome) for name, one in values.items() if _value(one) is BY_RANK]
        if any(label.startswith(name) for name in by_rank):
            return ""
        if label not in recorded or label not in outcome:
            return f"{label} is there on {self._on(label in outcome)} only"
        first: Any = recorded[label]
        content = outcome[label]
        if not isinstance(content.value, np.ndarray) or not _is_hash(first):
            same = content.value == first
            return "" if same else f"{label}: {_shown(first)} on {self._on(0)}, {_shown(content.value)} on {self._on(1)}"
        if hash_of(content.value) == first:
            return ""
        array = self._store.array(first)
        found = agreement.difference(array, content.value, bound, is_result=content.is_result)
        if found is None or agreement.is_by_rank(array.shape, content.value.shape, self._ranks):
            return ""
        values = f"{_shown(found.values[0])} on {self._on(0)}, {_shown(found.values[1])} on {self._on(1)}"
        if found.what:
            return f"{label}: {values}"
        rows = ""
        if found.count:
            rows = f"{len(found.rows):,} of {found.count:,} rows differ; [{', '.join(map(str, found.index))}] is "
        draws, has_grid = _draws(function), _has_grid(function, bound.elements)
        why = agreement.cause(found, self._ranks, draws=draws, has_grid=has_grid)
        return f"{label}: {rows}{values}\n  usual cause: {why}"

    def _as_in_first_run(self, recorded: Recorded, result: Any, outcome: Contents) -> Any:
        """Sets what a call has returned and written, and differs by rounding, to the first run's; returns the result."""
        for label, content in outcome.items():
            first: Any = recorded.outcome.get(label)
            if not isinstance(content.value, np.ndarray) or not _is_hash(first) or hash_of(content.value) == first:
                continue
            array = self._store.array(first)
            if array.shape != content.value.shape or array.dtype != content.value.dtype:
                continue
            if label == "the result" and isinstance(result, np.generic | float | complex):
                result = array[()] if isinstance(result, np.generic) else type(result)(array[()])
            else:
                _is_set(content, array)
        return result

    def _part(self, recorded: Recorded | None, name: str, place: str) -> None:
        if self._marks:
            return
        expected = "makes no further call" if recorded is None else f"calls {recorded.name} at {recorded.place}"
        self._find(name, place, f"the script calls it on {self._on(1)}, where it {expected} on {self._on(0)}")

    def _find(self, name: str, place: str, problem: str) -> None:
        if self._marks:
            return
        self.summary.finding = f"{name}, called at {place}\n  {problem}"
        self.finish()
        raise Differs(1)

    def _on(self, run: int) -> str:
        return counted(self._ranks[run])

    def finish(self) -> None:
        """Stores the summary of the run."""
        self._store.write(f"summary {self._ranks[1]}", self.summary)
        if self._marks:
            self._store.write("unrepeatable", self._unrepeatable)


def counted(ranks: int) -> str:
    """Returns a number of ranks as text."""
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def hash_of(array: Array) -> str:
    """Returns a hash of dtype, shape and bits."""
    hashed = hashlib.blake2b(f"{array.dtype.str}{array.dtype.descr}{array.shape}".encode(), digest_size=20)
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
    return f"#{hashed.hexdigest()}"


def _is_of_indices(error: BaseException) -> bool:
    """Returns whether a call ended by an index out of bounds, or by an access to memory that is not mapped."""
    if isinstance(error, RankDied):
        return error.exitcode in {-signal.SIGSEGV, -signal.SIGBUS}
    return isinstance(error, IndexError) or isinstance(error.__cause__, IndexError)


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("#")


def _value(content: Any) -> Any:
    return content.value if isinstance(content, Content) else content


def _file_of(key: Key) -> str:
    return f"{hashlib.blake2b(key[0].encode(), digest_size=8).hexdigest()} {key[1]}"


def _content(value: Any, *, is_result: bool = False) -> Content:
    """Returns the content of anything but a variable or a `Data`."""
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001  # of other libraries
        array = np.empty(0, object)
    if array.dtype.kind in _NUMBERS and not array.dtype.hasobject:
        assign = _into(value) if isinstance(value, np.ndarray) else None
        return Content(array, is_result, assign)
    text = repr(value)
    return Content(type(value).__name__ if " at 0x" in text or _is_hash(text) else text, is_result)


def _into(array: Array) -> Callable[[Array], None]:
    def assign(values: Array) -> None:
        array[...] = values

    return assign


def _set_leaf(state: VariableState, leaf: int, whole: Array) -> None:
    """Sets an array of a variable: a replica on all ranks, or each rank's own rows."""
    kept = state._present()  # noqa: SLF001  # shared with this package
    if not kept.sharded:
        arrays = kept.whole(state.label)
        arrays[leaf] = np.array(whole)
        state.set_value(arrays, None)
        return
    start = 0
    for rank, arrays in enumerate(kept.own()):
        own = [np.array(one) for one in arrays]
        own[leaf][...] = whole[start : start + len(own[leaf])]
        start += len(own[leaf])
        state.set_value(own, rank)


def _parameters(function: Any, count: int) -> Iterator[str]:
    """Yields the names of the arguments that a call passes by position."""
    binder = getattr(function, "_binder", None)
    signature = getattr(function, "_signature", None)
    if isinstance(function, FunctionType):
        signature = inspect.signature(function)
    names = binder.passed if binder is not None else list(signature.parameters) if signature is not None else []
    yield from names
    yield from (f"argument {index + 1}" for index in range(len(names), count))


def _own_variables(function: Any) -> Iterator[tuple[str, VariableState]]:
    """Yields variables that a function has beside its arguments: in updates=, givens=, and those of a training step."""
    options = getattr(function, "_options", None)
    if options is not None:
        for name, (state, _) in options.updates.items():
            yield name, state
        for name, value in options.givens.items():
            if isinstance(value, Variable):
                yield name, state_of(value)
    params = getattr(function, "params", None)
    if isinstance(params, Variable):
        yield "params", state_of(params)
    for name, value in _outer_values(getattr(function, "py_func", None)):
        if isinstance(value, Variable):
            yield name, state_of(value)


def _outer_values(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields globals and closure values of a plain function, by name."""
    if not isinstance(function, FunctionType):
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # empty
            yield name, cell.cell_contents


def _draws(function: Any) -> bool:
    """Returns whether a kernel, or the functions that it calls, draw random numbers by `synk.random`."""
    functions, seen = [getattr(function, "py_func", None)], set()
    while functions:
        plain = functions.pop()
        if not isinstance(plain, FunctionType) or plain in seen:
            continue
        seen.add(plain)
        for _, value in _outer_values(plain):
            module = getattr(value, "__name__", "") if not callable(value) else getattr(value, "__module__", "")
            if module == "synknumba.random" or (module == "synknumba" and "random" in plain.__code__.co_names):
                return True
            functions.append(getattr(value, "py_func", value))
    return False


def _has_grid(function: Any, elements: int) -> bool:
    """Returns whether a kernel is launched with a number of threads of its own, fewer than elements, and no loop by strides."""
    launch = getattr(getattr(function, "_options", None), "launch", None)
    if launch is None or launch.is_derived or "gridsize" in function.py_func.__code__.co_names:
        return False
    grid, block = launch.resolve(elements)
    return int(np.prod(grid) * np.prod(block)) < elements


def _bound(inputs: Contents, args: tuple[Any, ...], kwargs: Mapping[str, Any], drift: float) -> Bound:
    """Returns what another order of sums explains in a call."""
    arrays = [content.value for content in inputs.values() if isinstance(content.value, np.ndarray)]
    lengths = [len(value) for value in (*args, *kwargs.values()) if isinstance(value, IndexRange)]
    times = kwargs.get("times", 1)
    return Bound(
        elements=max([1, *lengths, *(array.size for array in arrays)]),
        times=times if isinstance(times, int) and times > 0 else 1,
        epsilon=agreement.coarsest(arrays),
        magnitude=max(map(agreement.greatest, arrays), default=0.0),
        drift=drift,
        exact=kwargs.get("shards") is not None,
    )


def _is_set(content: Content, array: Array) -> bool:
    """Returns whether the elements could be set to those of an array."""
    if content.assign is None:
        return False
    try:
        content.assign(array)
    except (SynkError, ValueError):  # read-only
        return False
    return True


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _name_of(function: Any) -> str:
    if isinstance(function, FunctionType):
        return function.__name__
    return str(getattr(function, "name", type(function).__name__))


@contextmanager
def compared(
    comparison: Comparison, methods: Sequence[tuple[type, str]], functions: Sequence[tuple[Any, str]]
) -> Iterator[None]:
    """Context in which calls of the script are recorded or compared.

    Args:
        comparison: the run.
        methods: methods of decorated functions.
        functions: collectives, as functions of the package, and methods of variables.
    """
    hooks = [(owner, name, _recorded(comparison, getattr(owner, name))) for owner, name in methods]
    hooks += [(owner, name, _recorded_collective(comparison, getattr(owner, name))) for owner, name in functions]
    plain = [(owner, name, getattr(owner, name)) for owner, name, _ in hooks]
    for owner, name, hook in hooks:
        setattr(owner, name, shortened(hook))
    try:
        yield
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


def _recorded(comparison: Comparison, plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return comparison.call(self, args, kwargs, lambda: plain(self, *args, **kwargs))

    return call


def _recorded_collective(comparison: Comparison, plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = partial(plain, *args, **kwargs)
        # The calls that `during` makes count each by itself.
        if "during" in kwargs or (plain.__name__ in _GATHERS and not _is_divided(args[0] if args else None)):
            return run()
        return comparison.call(plain, args, kwargs, run)

    return call


def _is_divided(tree: Any) -> bool:
    """Returns whether all of several variables have rows of their own on each rank; else all_gather joins replicas."""
    leaves, _ = flatten_tree(tree)
    return all(isinstance(leaf, Variable) and state_of(leaf)._sharded for leaf in leaves)  # noqa: SLF001  # this package's
