"""Watch of a checked launch: looks at accesses to arrays, and collects the findings."""

import ast
import functools
import linecache
import warnings
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from synknumba._errors import (
    Access,
    Finding,
    KernelCheckError,
    KernelCheckWarning,
    RaceError,
    UninitializedError,
)
from synknumba.simt._checker.races import Cells, Past, Shadow, present
from synknumba.simt._library.words import WARP_SIZE
from synknumba.simt._python.arrays import (
    STAND_IN,
    Array,
    StandIn,
    TrackedMemory,
    Watch,
    index_parts,
    leaves,
    overlapping,
)
from synknumba.simt._python.findings import (
    access,
    described,
    fault_advice,
    outside_finding,
    user_frame,
)
from synknumba.simt._python.run import Launch, Thread

# Later findings are mostly consequences of earlier ones.
MOST_FINDINGS: Final = 20

_UNWRITTEN: Final = (
    "write to every element before any thread reads it, with a barrier between; "
    "new memory is not initialised"
)


_ABSENT: Final = (
    "let all lanes that others shuffle from call it, with 0 for those without data, "
    "and name them in the mask"
)
_WHOLE: Final = "make the array float64, as by np.zeros(n), or write int(x) where this is meant"
# Kinds of findings of undefined values, which are no errors if the values do not matter.
UNDEFINED: Final = frozenset({"unassigned", "absent", "unwritten"})


@dataclass(frozen=True, slots=True)
class Checks:
    """What a check looks for, as for `check`."""

    races: bool = True
    uninitialized: bool = True
    early_returns: bool = True


@final
class CheckWatch(Watch):
    """Collects findings and raises them when the launch ends.

    Args:
        launch: what it watches.
        checks: what it looks for.
        progress: called at each access to an array.
        stand_in: what the launch has in the place of undefined values.
    """

    def __init__(
        self,
        launch: Launch,
        checks: Checks,
        progress: Callable[[Launch], None] | None = None,
        stand_in: StandIn = STAND_IN,
    ) -> None:
        super().__init__(launch)
        self._progress, self.stand_in = progress, stand_in
        self._undefined: set[Any] = set()  # keys of findings
        self._checks = checks
        self._shadow = Shadow(blocks_order_themselves=launch.program.fences)
        self._found: dict[Any, Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

    def finish(self) -> None:
        name = self.launch.program.name
        errors = tuple(finding for finding in self.findings if not finding.is_warning)
        warned = tuple(finding for finding in self.findings if finding.is_warning)
        if errors:
            raise errors[0].error(name, errors + warned)
        if warned:
            warnings.warn(KernelCheckWarning(name, warned), stacklevel=3)

    def ended_early(self, finding: Finding) -> None:
        if self._checks.early_returns:
            self.add(finding)

    def fault(self, finding: Finding) -> bool:
        if self.launch.program.may_spin:  # other threads may wait for this one
            raise self.fail(finding) from None
        self.add(finding, finding.summary.partition(":")[0])
        return True

    def outside(self, array: Array, index: Any, what: str) -> None:
        self.add(outside_finding(self.launch.current, array, index, what))

    def add(self, finding: Finding, kind: str = "") -> None:
        """Adds a finding, or adds to the count of an earlier one of this kind on the same lines
        and array.
        """
        lines = sorted((access.what, access.filename, access.line) for access in finding.accesses)
        key = (finding.error, kind, finding.array, *lines)
        if key in self._found:
            self._found[key] = replace(
                self._found[key], times=self._found[key].times + finding.times
            )
        elif len(self._found) < MOST_FINDINGS:
            self._found[key] = finding
            if kind in UNDEFINED:
                self._undefined.add(key)

    # ---- undefined values

    def unassigned(self, name: str) -> int:
        thread, frame = self.launch.current, user_frame()
        self.add(
            self.unassigned_finding(name, access("read", thread, frame.f_code, frame.f_lineno)),
            "unassigned",
        )
        return self.stand_in.value

    @staticmethod
    def unassigned_finding(name: str, place: Access) -> Finding:
        """Returns the finding for a read of a variable that the thread has not assigned."""
        summary = (
            f"UnboundLocalError: the variable {name} is read, and this thread has not assigned it"
        )
        return Finding(KernelCheckError, summary, (place,), fault_advice("UnboundLocalError"))

    def undefined(self, thread: Thread, source: int, answer: Any) -> Any:
        if not self._checks.uninitialized:
            return answer
        self.add(
            self.absent_finding(thread.lane, source, replace(thread.waiting(), what="read")),
            "absent",
        )
        if self.stand_in is STAND_IN:
            return answer
        if isinstance(answer, tuple):
            value, inside = answer
            return _all_bits(value), inside
        return _all_bits(answer)

    @staticmethod
    def absent_finding(lane: int, source: int, place: Access) -> Finding:
        """Returns the finding for a shuffle from a lane that does not take part."""
        summary = (
            f"lane {lane} shuffles from lane {source}, which does not take "
            f"part: the value is undefined"
        )
        return Finding(UninitializedError, summary, (place,), _ABSENT)

    @property
    def errors(self) -> Set[Any]:
        """Kinds of findings but for undefined values, as keys for comparison."""
        return self._found.keys() - self._undefined

    @property
    def has_undefined(self) -> bool:
        """Whether an undefined value was read."""
        return bool(self._undefined)

    def excuse_undefined(self) -> None:
        """Makes findings of variables without a value warnings, and drops all others, as their
        values do not matter.
        """
        for key in self._undefined:
            finding = self._found.pop(key)
            if key[1] == "unassigned":
                self._found[key] = replace(finding, is_warning=True)

    def join(self, further: "CheckWatch", *, only_warnings: bool = False) -> None:
        """Adds the findings of another launch that are not among these."""
        for key, finding in further._found.items():  # noqa: SLF001  # of this class
            if only_warnings and not finding.is_warning:
                continue
            if key not in self._undefined and len(self._found) < MOST_FINDINGS:
                self._found.setdefault(key, finding)

    # ---- accesses

    def access(self, what: str, array: Array, index: Any, value: Any = None) -> None:
        memory = array.memory
        if self._progress is not None:
            self._progress(self.launch)
        if memory.space == "constant":
            return
        numbers = _numbers(array, index)
        if memory.space != "global":
            if what != "write" and self._checks.uninitialized:
                self._must_be_written(memory, numbers)
            if what != "read":
                # per byte: memory may be read as another type, as is common for dynamic shared
                # memory
                for address, nbytes in numbers:
                    memory.written.update(range(address, address + nbytes))
        if what == "atomic":
            self.launch.current.atomics += 1
        if what != "read" and isinstance(value, float | np.floating) and array.dtype.kind in "iu":
            self._must_be_whole(array, value, what)
        if memory.space != "local" and self._checks.races:
            if memory.cells is None:
                self._shadow_of(memory)
            self._shadow.access(
                memory.cells,
                numbers,
                present(self.launch, what),
                functools.partial(self._race, memory),
                functools.partial(_holds, array, index, value),
            )

    def _shadow_of(self, memory: TrackedMemory) -> None:
        """Sets the shadow of an array, and of all arguments if it is one."""
        if memory.space == "shared":
            memory.cells = memory.owner.cells.setdefault(memory.low, Cells())
            return
        for group in overlapping(self.memories):
            cells = Cells()
            for member in group:
                member.cells = cells

    def _must_be_written(self, memory: TrackedMemory, numbers: Iterable[tuple[int, int]]) -> None:
        for address, nbytes in numbers:
            if not memory.written.issuperset(range(address, address + nbytes)):
                now = present(self.launch, "read")
                self.add(
                    self.unwritten_finding(memory, memory.index_of(address), _access_of(now)),
                    "unwritten",
                )

    def _must_be_whole(self, array: Array, value: Any, what: str) -> None:
        """Adds a warning for a float that loses its fraction in an array of ints, as on a GPU."""
        if np.isfinite(value) and value != np.trunc(value):
            summary = (
                f"{value:g} is stored in {described(array.memory)}, which keeps its whole part"
            )
            place = _access_of(present(self.launch, what))
            finding = Finding(KernelCheckError, summary, (place,), _WHOLE, array.memory.name)
            self.add(replace(finding, is_warning=True), "truncated")

    def _race(self, memory: TrackedMemory, address: int, before: Past, now: Past) -> None:
        places = (_access_of(before), _access_of(now))
        self.add(self.race_finding(memory, memory.index_of(address), places, (before, now)))

    # ---- findings

    @staticmethod
    def unwritten_finding(memory: TrackedMemory, index: tuple[int, ...], place: Access) -> Finding:
        """Returns the finding for an element that is read before anything is written to it."""
        summary = (
            f"index {list(index)} of {described(memory)} is read before anything is written to it"
        )
        return Finding(UninitializedError, summary, (place,), _UNWRITTEN, memory.name, index)

    @staticmethod
    def race_finding(
        memory: TrackedMemory, index: tuple[int, ...], places: tuple[Access, Access], sides: Any
    ) -> Finding:
        """Returns the finding for two accesses that race; `sides` have the attributes `thread`,
        `line` and `what`.
        """
        summary = (
            f"race at index {list(index)} of {described(memory)}: these two "
            f"accesses are not synchronised"
        )
        return Finding(
            RaceError,
            summary,
            places,
            _atomic_advice(places) or _advice(*sides),
            memory.name,
            index,
        )


def _access_of(past: Past) -> Access:
    return access(past.what, past.thread, past.code, past.line)


_ATOMICS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"
}  # fmt: skip


def _atomic_advice(places: tuple[Access, Access]) -> str | None:
    """Returns the advice for a race of `x[i] += v` with itself; None for any other race."""
    first, second = ((place.filename, place.line) for place in places)
    if first != second:
        return None
    try:
        body = ast.parse(linecache.getline(*first).strip()).body
    except SyntaxError:  # a part of a statement, or the head of one
        return None
    match body:
        case [ast.If(body=body)]:  # on one line
            pass
    match body:
        case [ast.AugAssign(ast.Subscript(array, index), op, value)] if type(op) in _ATOMICS:
            pass
        case [
            ast.Assign(
                [ast.Subscript(array, index) as target],
                ast.BinOp(ast.Subscript() as left, op, value),
            )
        ] if type(op) in _ATOMICS and ast.unparse(left) == ast.unparse(target):
            pass
        case _:
            return None
    name = ast.unparse(array)
    if any(ast.unparse(node) == name for node in ast.walk(value) if isinstance(node, ast.Name)):
        return None  # a thread may read what another one writes, which a barrier orders
    call = f"cuda.atomic.{_ATOMICS[type(op)]}({name}, {ast.unparse(index)}, {ast.unparse(value)})"
    return f"several threads change one element: write {call}"


def _advice(before: Any, now: Any) -> str:
    first, second = before.thread, now.thread
    if first.block != second.block:
        return "blocks run in any order: use cuda.atomic, a grid barrier, or a second launch"
    if before.line == now.line:
        if before.what == now.what == "write":
            return (
                "two threads write different values: give each its own element, or use cuda.atomic"
            )
        return (
            "use cuda.atomic where several threads change one element; what another thread writes, "
            "read on a line before, with cuda.syncthreads() in between"
        )
    same_warp = first.number // WARP_SIZE == second.number // WARP_SIZE
    warp = atomics = ""
    if same_warp:
        warp = " (or cuda.syncwarp(), within a warp)"
    if "atomic" in {before.what, now.what}:
        atomics = "make the other access atomic, too, or "
    return (
        f"{atomics}put cuda.syncthreads() between the two{warp}, where all "
        f"threads of the block reach it"
    )


def _numbers(array: Array, index: Any) -> list[tuple[int, int]]:
    """Returns the addresses and bytes of the numbers in the selected elements, which are
    records' fields or the elements.
    """
    is_plain = array.dtype.names is None
    if is_plain and type(index) is int and array.ndim == 1:
        address = array.address + (index % array.shape[0]) * array.strides[0]
        return _inside(array, [(address, array.dtype.itemsize)])
    parts = index_parts(index)
    if is_plain:
        integers = [int(part) for part in parts if isinstance(part, (int, np.integer))]
        if len(integers) == len(parts) == array.ndim:
            address = array.address
            for place, size, step in zip(integers, array.shape, array.strides, strict=True):
                address += place % size * step
            return _inside(array, [(address, array.dtype.itemsize)])
    if not any(part is Ellipsis for part in parts):
        parts = (*parts, ...)
    view: Any = np.ndarray.__getitem__(array, parts)
    offsets = np.zeros(1, np.int64)
    for size, step in zip(view.shape, view.strides, strict=True):
        offsets = (offsets[:, None] + np.arange(size) * step).ravel()
    starts = (view.address + offsets).tolist()
    return _inside(
        array,
        [(start + offset, nbytes) for start in starts for offset, nbytes in leaves(view.dtype)],
    )


def _inside(array: Array, numbers: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the numbers; none if the array is a temporary of an array expression, which no
    other thread sees.
    """
    memory = array.memory
    if numbers and memory.low <= numbers[0][0] < memory.high:
        return numbers
    return []


def _all_bits(value: Any) -> Any:
    """Returns the number of the same type whose bits are all set."""
    dtype = np.asarray(value).dtype
    if dtype == np.bool_:
        return np.True_
    return np.full(dtype.itemsize, 0xFF, np.uint8).view(dtype)[0]


def _holds(array: Array, index: Any, value: Any) -> bool:
    """Returns whether the elements already equal the value; NaN equals NaN."""
    old = np.asarray(np.ndarray.__getitem__(array, index))
    new = np.asarray(value).astype(array.dtype)
    if array.dtype.kind in "fc":
        return bool(np.all((old == new) | ((old != old) & (new != new))))  # noqa: PLR0124  # matches NaN
    return bool(np.all(old == new))
