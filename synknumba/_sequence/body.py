"""The body of a sequence, run to record its calls.

    call of other arguments ──> record: its calls are sent to the ranks ──> SequencePlan
                        plan ──> dry_run: its calls are planned           ──> DryRun
    call in another body     ──> inside: its calls become an inner loop of that one's

What it reads from outside is looked at before and after: a body that changes that, or draws random
numbers, would do so once, and is refused.
"""

import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import (
    ArgumentError,
    BatchError,
    DataError,
    PartitionError,
    ReductionError,
)
from synknumba._formulas import Formula
from synknumba._host.data import Data, segment_of
from synknumba._ops.rows import Partition
from synknumba._ops.tree import flatten, paths, unflatten
from synknumba._sequence.arguments import (
    ArgumentBinder,
    Arguments,
    argument_name,
    inner_argument,
    is_number,
    refuse_shared,
)
from synknumba._sequence.call_checks import InnerTimes
from synknumba._sequence.dry_run import DryRun
from synknumba._sequence.install import Installer
from synknumba._sequence.outer_values import OuterValues, Values
from synknumba._sequence.plan import SequencePlan
from synknumba._sequence.recorder import RecordedBody, Recorder, as_number
from synknumba._sequence.results import SequenceResults
from synknumba._sequence.schedule import ONCE, checked_loop, count_of
from synknumba._sequence.symbolic_results import ScalarResult, SymbolicResult
from synknumba._sequence.until import Until
from synknumba._tracing import Number, Unknown
from synknumba._types import Args, Kwargs
from synknumba._wire.sequence import Ending
from synknumba._world.engine import Engine

_GENERATORS = np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
_ARGUMENT_ERRORS = (ArgumentError, BatchError, DataError, PartitionError, ReductionError)


@final
class Body:
    """The body of a sequence.

    Args:
        name: the sequence's.
        function: the body.
        binder: of its arguments.
        outer: what it reads from outside.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], binder: ArgumentBinder, outer: OuterValues
    ) -> None:
        self.name = name
        self._function, self._binder, self._outer = function, binder, outer

    def record(
        self, world: Engine, arguments: Arguments, until: Until | None = None
    ) -> SequencePlan:
        """Runs the body to record its calls, and sends them to the ranks, with the condition
        `until`, if they can judge it.

        Raises:
            ArgumentError: the body changes a value from outside, or draws random numbers.
        """
        installer = Installer(world, self.name, arguments.letters)
        passed: Sequence[tuple[Any, ...]] = ()
        values = self._values(arguments)
        drew = watch_draws([*arguments.leaves, *itertools.chain(*map(Values.alive, values))])
        tracing.current = installer
        try:
            judged, returned = self._run_turns(installer, arguments)
            if drew():
                passed = installer.passed
            installer.passed = []
            ends: tuple[Ending, ...] = ()
            if until is not None:
                ends = until.endings(installer, judged, len(arguments.scalars))
            installer.variables.undo_swaps()
            self._check_arrays(installer, arguments)
            if passed or any(map(Values.changed, values)):
                self._check_again(world.partition, passed, arguments)
            return SequencePlan(world, installer.finish(ends), SequenceResults(returned))
        except BaseException:
            installer.variables.undo_swaps()
            for plan in installer.plans:
                plan.forget()
            raise
        finally:
            tracing.current = None

    def dry_run(self, dry_run: DryRun, arguments: Arguments, until: Until | None) -> Any:
        """Runs the body to plan its calls, and the condition; returns what the body returns in the
        first turn.
        """
        tracing.current = dry_run
        try:
            judged, returned = self._run_turns(dry_run, arguments)
            if until is not None:
                until.endings(dry_run, judged, len(arguments.scalars))
            return returned[0]
        finally:
            tracing.current = None

    # ---- checks

    def _check_again(
        self,
        partition: Partition,
        passed: Sequence[tuple[Any, ...]],
        arguments: Arguments,
    ) -> None:
        """Refuses a body that changes values from outside whenever it runs, or draws random numbers
        for its calls.

        A cache that it has filled stays as it is. Generators do not tell who has drawn, a thread
        that loads data or the body; what the body passes to its calls does.

        Args:
            partition: of rows into ranks, which do not know of the second run.
            passed: arguments of the calls of the first run, if generators have drawn meanwhile.
            arguments: those of the sequence.

        Raises:
            ArgumentError: a value has changed in the second run, or its calls get other numbers.
        """
        values, dry_run = self._values(arguments), DryRun(self.name, partition, {})
        tracing.current = dry_run
        try:
            self._run_turns(dry_run, arguments)
        except Exception:  # noqa: BLE001  # the first run was good
            return
        code = self._function.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        if passed and _numbers(passed) != _numbers(dry_run.passed):
            raise ArgumentError(
                f"{self.name} ({place}) draws random numbers in its body, which runs once, so that "
                "all iterations and later calls would get the same ones: run again, it passes "
                "others to its calls. Draw in kernels with synk.random, which takes synk.STEP as "
                "an index; or draw before the call, and pass the numbers as an argument"
            )
        for name in filter(None, map(Values.changed, values)):
            raise ArgumentError(
                f"{self.name} ({place}) changes {name}, itself or in a function that it calls. "
                "That would be done once, while the body is recorded, and not in each iteration. "
                "For a number of each iteration write synk.carry; return results, which every=1 "
                "gives of each iteration, and change other things after the call"
            )

    def _values(self, arguments: Arguments) -> list[Values]:
        """Returns what the body reads from outside and of its arguments, as it is now."""
        values = [self._outer.now()]
        if arguments.objects:
            values.append(self._outer.of(arguments.objects))
        return values

    def _check_arrays(self, installer: Installer, arguments: Arguments) -> None:
        """Refuses NumPy arrays from outside that calls cannot write to, or over the same memory
        as others.
        """
        written, arrays = installer.written.keys(), installer.arrays.labelled()
        for name, array, copy in arrays:
            if not array.flags.writeable and segment_of(copy).id in written:
                raise ArgumentError(f"{name} is read-only, and calls write to it. Pass a copy.")
        shared = {
            id(value): (name, value.data, value)
            for name, value in (*self._outer.now().labels(), *arguments.data)
            if isinstance(value, Data)
        }
        refuse_shared(written, [*arrays, *arguments.write_back], [*arrays, *shared.values()])

    # ---- runs

    def _run_turns(self, recorder: Recorder, arguments: Arguments) -> tuple[list[Any], list[Any]]:
        """Runs the body until swapped variables have their memory again. Returns what it returns
        each time, and the same as the script gets it.
        """
        names = map(argument_name, paths(arguments.structure))
        passed = zip(names, arguments.leaves, strict=True)
        recorder.names = {id(value): name for name, value in (*self._outer.now().labels(), *passed)}
        numbers = {leaf.formula for leaf in arguments.leaves if isinstance(leaf, Number)}
        recorder.stack.append(RecordedBody(self, numbers))
        judged, returned = list[Any](), list[Any]()
        is_complete = False
        while not is_complete:
            try:
                judged.append(self._function(**unflatten(arguments.structure, arguments.leaves)))
            except _ARGUMENT_ERRORS as error:  # others have a place
                tracing.add_line(error)
                raise
            returned.append(self._for_script(recorder, judged[-1]))
            is_complete = recorder.end_of_turn()
        recorder.check_written()
        return judged, returned

    def _for_script(self, recorder: Recorder, results: Any) -> Any:
        """Returns results of calls in place of numbers that only the ranks compute."""
        leaves, structure = flatten(results)
        for place, leaf in enumerate(leaves):
            match leaf:
                case ScalarResult() | SymbolicResult():
                    continue
                case Number():
                    leaves[place] = recorder.returned(leaf)
                case Unknown():
                    raise ArgumentError(
                        f"{self.name} returns {leaf.label}, which no call makes, so that the "
                        "script cannot get it; return results of calls, and numbers"
                    )
        return unflatten(structure, leaves)

    def inside(
        self,
        args: Args,
        kwargs: Kwargs,
        times: Any,
        every: Any,
        until: Any,
    ) -> Any:
        """Records a call inside another sequence."""
        where, recorder = tracing.where(), tracing.current
        assert isinstance(recorder, Recorder)  # there is no other recorder
        running = [recorded.body for recorded in recorder.stack]
        if self in running:
            cycle = [*running[running.index(self) :], self]
            path = " → ".join(body.name for body in cycle)
            raise ArgumentError(f"{where}: {self.name} calls itself ({path}); loop with times=")
        if until is not None:
            checked_loop(self.name, ONCE if times is ONCE else 1, None, until)
        if every is not None:
            raise ArgumentError(
                f"{where}: an inner sequence keeps the results of its last iteration; leave "
                "every= out"
            )
        times = inner_argument(times)  # before: the step is that of the loop outside
        if not isinstance(times, Number):
            times = count_of(self.name, "times", times, 1)
        elif not times.is_int:
            raise ArgumentError(
                f"{where}: times of {self.name} must be an int, and {times.label} is a float; "
                "divide ints with //, or let a kernel have it as an int64 output"
            )
        leaves, structure = self._binder.bind(args, kwargs)
        values = list(map(inner_argument, leaves))
        begins: dict[Formula, Formula] = {}
        code = getattr(self._function, "__code__", None)
        if "carry" in getattr(code, "co_names", ()):
            for place, path in enumerate(paths(structure)):
                # the leaf, since a static number stays one
                if isinstance(values[place], Number) or is_number(leaves[place]):
                    number = as_number(values[place])
                    cell = recorder.cell(number, f"{argument_name(path)} of {self.name}")
                    begins[cell.formula] = number.formula
                    values[place] = cell
        condition = Until.of(until)
        with recorder.inside(self, times, begins) as inner:
            is_complete = False
            while not is_complete:
                results = self._function(**unflatten(structure, values))
                if condition is not None:
                    inner.ends.append(self._inner_ending(recorder, condition, results, where))
                results = self._of_last_turn(recorder, results, where)
                is_complete = recorder.end_of_turn()
            inner.returns = any(isinstance(leaf, Unknown) for leaf in flatten(results)[0])
        if isinstance(times, Number) and (inner.returns or times.formula_of_argument):
            recorder.checks.append(InnerTimes(times, self.name, where, inner.returns))
        return results

    def _inner_ending(
        self, recorder: Recorder, condition: Until, results: Any, where: str
    ) -> Formula:
        """Returns the condition that ends an inner loop, behind the turn that has these results."""
        endings = condition.endings(recorder, [results], None)
        if not endings:
            raise ArgumentError(
                f"{where}: the ranks judge until= of {self.name}, an inner sequence, and "
                f"this one is the script's: {condition.why_script}; "
                f"{condition.way_out()}"
            )
        return endings[0].formula

    def _of_last_turn(self, recorder: Recorder, results: Any, where: str) -> Any:
        """Returns what an inner body returns, as results of the loop: with its own numbers, and
        those that each turn has, as they are behind the last iteration.
        """
        leaves, structure = flatten(results)
        swaps = recorder.innermost.period() > 1
        for place, leaf in enumerate(leaves):
            match leaf:
                case ScalarResult() if not swaps:
                    continue
                case Number():
                    leaves[place] = recorder.keep(place, leaf)
                case Unknown() if swaps:
                    raise ArgumentError(
                        f"{where}: {self.name} swaps variables and returns {leaf.label}, of which "
                        "each of its turns has another; return numbers, or write it to a variable"
                    )
        return unflatten(structure, leaves)


# ---- random numbers ------------------------------------------------------------------------------


def watch_draws(values: Iterable[Any]) -> Callable[[], bool]:
    """Returns what then tells whether Python's or NumPy's generator, or one among values, has
    drawn, in any thread.
    """
    values = [*values, random.random, np.random.random]  # bound methods of the modules' generators
    methods = BuiltinMethodType | MethodType
    values += [value.__self__ for value in values if isinstance(value, methods)]
    generators = [value for value in values if isinstance(value, _GENERATORS)]
    before = list(map(_state, generators))
    return lambda: before != list(map(_state, generators))


def _numbers(passed: Any) -> list[Any]:
    """Returns the numbers that a body passes to calls, also those in arrays, containers and
    formulas, and texts.
    """
    numbers: list[Any] = []
    for leaf in flatten(passed)[0]:
        if isinstance(leaf, Number):
            numbers += _numbers(leaf.formula)
        elif isinstance(leaf, np.ndarray | np.generic):
            numbers.append((leaf.shape, leaf.dtype, leaf.tobytes()))
        elif isinstance(leaf, bool | int | float | complex | str | bytes):
            numbers.append(repr(leaf))
    return numbers


def _state(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return None  # it has none
    if isinstance(generator, random.Random):
        return generator.getstate()
    return pickle.dumps(generator)
