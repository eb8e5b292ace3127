"""`sequence`: several calls that the ranks repeat by themselves, in one round.

    s(u, 0.5, times=1000) ──known arguments──> SequencePlan.run ── one round ──> results, stacked
        └── new arguments ──> Installer ──> SequencePlan, sent to the ranks

With `until=`, or with results that are not small, a round ends at each kept result; without, the
ranks keep small results in a segment, and one round does all.
"""

import inspect
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as AnySequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Generic, Never, NoReturn, ParamSpec, TypeVar, final

from synknumba import _tracing as tracing
from synknumba._call.bind import signature_names
from synknumba._call.future import Future
from synknumba._call.kinds import describe, type_told
from synknumba._call.method import Method
from synknumba._call.progress_bars import iterations_shown
from synknumba._call.variable_rows import planned_shape
from synknumba._call.work_out import planned_partition
from synknumba._errors import (
    ArgumentError,
    BatchError,
    DataError,
    PartitionError,
    ReductionError,
    SynkError,
    shorten,
    shortened,
)
from synknumba._host.copying import copy_into
from synknumba._host.data import Data
from synknumba._host.log import log
from synknumba._ops.tree import Structure, flatten, paths, unflatten
from synknumba._progress import Progress, default, refuse_inside, wanted
from synknumba._sequence.arguments import (
    ArgumentBinder,
    Arguments,
    Copied,
    argument_name,
    inner_argument,
    refuse_shared,
)
from synknumba._sequence.body import check_body, differ, watch_draws
from synknumba._sequence.dry_run import DryRun
from synknumba._sequence.install import Installer
from synknumba._sequence.loop_options import ONCE, OPTIONS, checked_loop, count_of
from synknumba._sequence.outer_values import OuterValues, Values
from synknumba._sequence.plan import KEPT_BYTES, SequencePlan
from synknumba._sequence.plan_cache import KeptSequencePlans
from synknumba._sequence.recorder import (
    InnerTimes,
    Recorder,
    ScalarResult,
    SymbolicResult,
)
from synknumba._sequence.report import Schedule, SequenceReport, schedule
from synknumba._tracing import Number, Unknown
from synknumba._types import Array
from synknumba._variables.variable import Variable, state_of
from synknumba._world.call_in_flight import GOES_ON, Flight
from synknumba._world.engine import Engine
from synknumba._world.holdings import refuse
from synknumba._world.open_world import current_world, open_world

_planning = threading.Lock()  # held where a sequence is planned without a world

P = ParamSpec("P")
R = TypeVar("R")


@final
class Sequence(Generic[P, R]):
    """Several calls that the ranks repeat by themselves. Created by `sequence`.

    Attributes:
        name: name in messages.
        py_func: the function that was decorated, the body.
    """

    def __init__(self, function: Callable[P, R], name: str | None = None) -> None:
        self.py_func = function
        self._body: Callable[..., Any] = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        signature_names(function, "the sequence", OPTIONS)
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"{self.name} is a generator or a coroutine, whose body would not "
                f"run; write a plain function"
            )
        check_body(self.name, function)
        self._signature = inspect.signature(function)
        self._outer = OuterValues(function, _body_of)
        self._plans = KeptSequencePlans()
        self._binder = ArgumentBinder(self.name, self._signature)
        self._world: Engine | None = None
        self._traced = 0  # how often the body was recorded

    def __call__(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the calls of the body on all ranks, over and over, without the script.

        Args:
            *args: arguments of the body. Variables, `Data` and NumPy arrays go to its calls; ints
                and floats may change from call to call, and the body cannot look at them; anything
                else, and `synk.static(n)`, is part of the sequence.
            times: number of iterations, 1 if it is left out; 0 runs nothing.
            every: period of kept results: those of iterations every − 1, 2·every − 1, … are stacked
                along a new first axis. None returns the results of the last iteration.
            until: function of the results of a kept iteration (of each, if every is None), called
                in the script: the loop ends when it returns true, or after `times` iterations,
                which must be given. It does not change what `every` returns.
            progress: whether to draw a bar over the iterations, as far as the slowest rank; "auto"
                draws it on a terminal and in a notebook, after half a second. None for the default,
                which `synk.options` sets.
            **kwargs: arguments of the body by name.

        Returns:
            What the body returns, with the results of its calls; variables as they are.

        Raises:
            ArgumentError: an argument is invalid, or the body does what cannot be repeated on the
                ranks.
            RankError: an exception on a rank, with iteration and call; the world remains usable,
                and variables that the sequence writes are undefined.
            RankDied, CallTimeout: all ranks have been terminated; `fork()` works again.
        """
        recorder = tracing.current
        if recorder is not None and recorder.is_here:
            assert isinstance(recorder, Recorder)  # there is no other recorder
            refuse_inside(progress, tracing.where(), self.name)
            return self._inside(recorder, args, kwargs, times, every, until)
        try:
            times, every = checked_loop(self.name, times, every, until)
            shows = (
                wanted(progress, self.name)
                if progress is not None or (times > 1 and default())
                else False
            )
            world = current_world()
            world.begin()
        except SynkError as error:
            shorten(error)
            raise
        try:
            plan, scalars, back = self._prepared(world, args, kwargs, times)
            if not times:
                self._check_kept(every, until, returns=plan.returns_something)
                return self._nothing(plan, every)
            result = self._repeat(plan, scalars, times, every, until, shows)
            for array, staged in back:
                copy_into(array, staged.data)
        except Exception as error:
            shorten(error)
            raise
        else:
            return result
        finally:
            world.end()

    @shortened
    def submit(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Starts a call, and returns while the ranks work.

        Arguments are those of a call, without `until=`. As for `submit` of a function, NumPy arrays
        have been copied when this returns, the script must not change or read what the calls write
        before the end, and the next use of the world waits for it. Where a round ends at each kept
        result (`plan` tells), another begins when `result()`, `done()` or the next use of the world
        finds that the one before has ended.

        Returns:
            The future of the results.

        Raises:
            ArgumentError: `until=` is given; or as for a call, of what is found before the ranks
                start.
        """
        if until is not None:
            raise ArgumentError(
                f"{self.name}: until= is judged in the script at each kept result, and submit() "
                f"returns before the first; call {self.name}(...), or submit it with times= and "
                "every="
            )
        times, every = checked_loop(self.name, times, every, None)
        world = current_world()
        world.begin()
        try:
            return self._submit(world, args, kwargs, times, every)
        finally:
            world.end()

    def _submit(
        self,
        world: Engine,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        times: int,
        every: int | None,
    ) -> Future[Any]:
        plan, scalars, back = self._prepared(world, args, kwargs, times)
        self._check_kept(every, None, returns=plan.returns_something)
        self._check_before(plan, times, scalars)
        found = plan.schedule(times, every, is_judged=False)
        kept: deque[Any] = deque()
        spans = (
            self._spans(plan, times, found.period, None, kept)
            if found.round_ends
            else iter([(0, times)])
        )
        period, span = 0 if found.round_ends else found.period, next(spans, (0, 0))

        def launch() -> None:
            flight.has_more = sum(span) < times
            plan.launch(flight, *span, times, scalars, period)

        def collect(_: object = (args, kwargs)) -> Any:
            nonlocal span
            read = plan.finish(*span, times, scalars, period)
            following = next(spans, None)
            if following is not None:
                span = following
                launch()
                return GOES_ON
            result = (
                plan.stacked(kept)
                if found.round_ends
                else plan.unflatten(read)
                if period
                else plan.collect()
            )
            for array, staged in back:
                copy_into(array, staged.data)
            return result

        def give_up(error: BaseException) -> None:
            plan.note_failure(error)
            self._plans.drop(plan)

        nothing = None if times else self._nothing(plan, every)
        flight = Flight(
            world, plan.info, plan.learn, collect if times else lambda: nothing, give_up
        )
        future: Future[Any] = Future(flight)
        if not times:
            flight.complete()
            return future
        try:
            launch()
        except BaseException as error:
            give_up(error)
            raise
        return future

    # ---- calls

    def _prepared(
        self, world: Engine, args: tuple[Any, ...], kwargs: Mapping[str, Any], times: int
    ) -> tuple[SequencePlan, AnySequence[Any], AnySequence[tuple[Array, Data]]]:
        """Returns the plan of a call, its scalars, and the NumPy arrays that get what ranks
        write, with the staged copies.
        """
        if not kwargs and times and world is self._world:
            plan, scalars = self._plans.known(self._outer.now().version, args)
            if plan is not None and not plan.forgotten and plan.is_current:
                return plan, scalars, plan.renew_outside() if plan.outside else ()
        if world is not self._world:
            self._leave()
            self._world = world
            world.at_close(self)
        leaves, structure = self._binder.bind(args, kwargs)
        arguments = self._binder.classify(leaves, structure, self._outer)
        plan = self._plan(world, structure, arguments)
        back = [*self._written_back(plan, arguments), *plan.renew_outside()] if times else []
        are_leaves = len(args) == len(leaves) == len(self._signature.parameters)
        if times and are_leaves:
            self._plans.remember(self._outer.now().version, args, plan)
        return plan, arguments.scalars, back

    def _written_back(self, plan: SequencePlan, arguments: Arguments) -> list[tuple[Array, Data]]:
        """Returns the NumPy arrays that get what ranks write; raises `ArgumentError` if another
        is over the same memory.
        """
        shared = ((name, data.data, data) for name, data in arguments.data)
        refuse_shared(
            plan.recorder.written,
            arguments.write_back,
            [*arguments.write_back, *self._outside(plan.recorder), *shared],
        )
        return [
            (array, staged)
            for _, array, staged in arguments.write_back
            if staged._segment.id in plan.recorder.written  # noqa: SLF001  # shared with this package
        ]

    def _check_kept(self, every: int | None, until: Any, *, returns: bool) -> None:
        """Raises `ArgumentError` for options about results, unless the body returns any."""
        if returns or (every is None and until is None):
            return
        what = "every= keeps" if until is None else "until= judges"
        raise ArgumentError(
            f"{self.name}: {what} what {self.name} returns, and it returns nothing; return the "
            f"result of a call in its body"
        )

    def _holds(self, world: Engine, until: Any, results: Any) -> bool:
        """Returns whether the loop ends, by what `until=` returns for results."""
        world.judged = self.name
        try:
            answer = until(results)
        finally:
            world.judged = ""
        if answer is None:
            raise ArgumentError(
                f"{self.name}: until= must return True or False, got None; a function without a "
                f"return statement returns None"
            )
        return bool(answer)

    def _repeat(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        every: int | None,
        until: Any,
        shows: Progress,
    ) -> Any:
        if every is not None or until is not None:
            self._check_kept(every, until, returns=plan.returns_something)
        self._check_before(plan, times, scalars)
        try:
            found = plan.schedule(times, every, is_judged=until is not None)
            if not shows:
                return self._rounds(plan, scalars, times, found, until)
            plan.positions.begin()
            with iterations_shown(plan.world, plan.positions.done, times, self.name, shows) as show:
                return self._rounds(plan, scalars, times, found, until, show)
        except BaseException:
            self._plans.drop(plan)  # ranks may have stopped at different places
            raise

    def _check_before(self, plan: SequencePlan, times: int, scalars: AnySequence[Any]) -> None:
        """Raises `ArgumentError` or `BatchError` for what may have changed since the plan was
        made.
        """
        for one, code in plan.recorder.uses:
            if one.__code__ is not code:
                refuse(one, self.name)
        for check in plan.recorder.checks:
            check.check(self.name, times, scalars)

    def _rounds(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        found: Schedule,
        until: Any,
        show: Callable[[], None] | None = None,
    ) -> Any:
        """Makes the rounds of a call, and returns the results; calls `show` after each."""
        step = found.period
        if not step:
            plan.run(0, times, times, scalars)
            if show is not None:
                show()
            return plan.collect()
        if not found.round_ends:
            kept_here = plan.run(0, times, times, scalars, step)
            if show is not None:
                show()
            return plan.unflatten(kept_here)
        kept: deque[Any] = deque(maxlen=None if found.is_stacked else 1)
        for first, count in self._spans(plan, times, step, until, kept):
            plan.run(first, count, times, scalars)
            if show is not None:
                show()
        return plan.stacked(kept) if found.is_stacked else kept[-1]

    def _spans(
        self, plan: SequencePlan, times: int, step: int, until: Any, kept: deque[Any]
    ) -> Iterator[tuple[int, int]]:
        """Yields first iteration and number of iterations of each round, to be run before the
        next; keeps the results.
        """
        for first in range(0, times - step + 1, step):
            yield first, step
            kept.append(plan.collect())
            if until is not None and self._holds(plan.world, until, kept[-1]):
                return
        if times % step:
            yield times - times % step, times % step

    def _nothing(self, plan: SequencePlan, every: int | None) -> Any:
        """Returns the results of no iterations."""
        if not plan.returns_something:
            return None
        if every is None:
            raise ArgumentError(
                f"{self.name}: times=0 has no last iteration; pass every=, which "
                f"then gives empty results"
            )
        return plan.unflatten(plan.empty())

    def _plan(self, world: Engine, structure: Structure, arguments: Arguments) -> SequencePlan:
        key = (self._outer.now().version, structure, *arguments.key)
        known = self._plans.get(key)
        if known is not None:
            return known
        self._plans.forget_lost()
        plan = self._trace(world, structure, arguments)
        log.debug(
            "the body of %s was run to record its calls: %s",
            self.name,
            "the first time" if self._traced == 1 else "again",
        )
        self._plans.keep(key, plan)
        return plan

    def _trace(self, world: Engine, structure: Structure, arguments: Arguments) -> SequencePlan:
        """Runs the body to record its calls, and sends them to the ranks."""
        recorder = Installer(world, self.name, arguments.letters)
        self._traced += 1
        values = self._values(arguments)
        drew = watch_draws(
            [*arguments.leaves, *itertools.chain.from_iterable(map(Values.alive, values))]
        )
        tracing.current = recorder
        try:
            results = self._run_turns(recorder, structure, arguments.leaves)
            passed, recorder.passed = recorder.passed if drew() else [], []
            recorder.undo()
            self._check_outside(recorder, arguments)
            if passed or any(map(Values.changed, values)):
                dry_run = DryRun(self.name, world.partition, {})
                self._check_again(dry_run, passed, structure, arguments)
            return SequencePlan(world, self.name, recorder, results)
        except BaseException:
            recorder.undo()
            for plan in recorder.plans:
                plan.forget()
            raise
        finally:
            tracing.current = None

    def _check_again(
        self,
        dry_run: DryRun,
        passed: AnySequence[tuple[Any, ...]],
        structure: Structure,
        arguments: Arguments,
    ) -> None:
        """Refuses a body that changes values from outside whenever it runs, or draws random numbers
        for its calls.

        A cache that it has filled stays as it is. Generators do not tell who has drawn, a thread
        that loads data or the body; what the body passes to its calls does.

        Args:
            dry_run: of a second run, of which the ranks do not know.
            passed: arguments of the calls of the first run, if generators have drawn meanwhile.
            structure: of the sequence's arguments.
            arguments: these.

        Raises:
            ArgumentError: a value has changed in the second run, or its calls get other numbers.
        """
        values = self._values(arguments)
        tracing.current = dry_run
        try:
            self._run_turns(dry_run, structure, arguments.leaves)
        except Exception:  # noqa: BLE001  # the first run was good
            return
        name, code = next(filter(None, map(Values.changed, values)), None), self.py_func.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        if passed and differ(passed, dry_run.passed):
            raise ArgumentError(
                f"{self.name} ({place}) draws random numbers in its body, which runs once, so that "
                "all iterations and later calls would get the same ones: run again, it passes "
                "others to its calls. Draw in kernels with synk.random, which takes synk.STEP as "
                "an index; or draw before the call, and pass the numbers as an argument"
            )
        if name is not None:
            raise ArgumentError(
                f"{self.name} ({place}) changes {name}, itself or in a function that it calls. "
                "That would be done once, while the body is recorded, and not in each iteration. "
                "For a number of each iteration write synk.carry; return results, which every=1 "
                "gives of each iteration, and change other things after the call"
            )

    def _values(self, arguments: Arguments) -> list[Values]:
        """Returns what the body reads from outside and of its arguments, as it is now."""
        return [self._outer.now(), self._outer.of(arguments.objects)]

    def _check_outside(self, recorder: Installer, arguments: Arguments) -> None:
        """Refuses NumPy arrays from outside that calls cannot write to, or over the same memory
        as others.
        """
        arrays = self._outside(recorder)
        for name, array, copy in arrays:
            if not array.flags.writeable and copy._segment.id in recorder.written:  # noqa: SLF001  # shared with this package
                raise ArgumentError(f"{name} is read-only, and calls write to it. Pass a copy.")
        labels = [
            (name, value) for name, value in self._outer.now().labels() if isinstance(value, Data)
        ]
        shared = {id(data): (name, data.data, data) for name, data in (*labels, *arguments.data)}
        refuse_shared(
            recorder.written, [*arrays, *arguments.write_back], [*arrays, *shared.values()]
        )

    def _outside(self, recorder: Installer) -> list[Copied]:
        """Returns the arrays that calls take and that are no arguments, with their copies."""
        return [
            (f"an array that {self.name} has from outside", *pair)
            for pair in recorder.outside.values()
        ]

    def _run_turns(
        self, recorder: Recorder, structure: Structure, leaves: AnySequence[Any]
    ) -> list[Any]:
        """Runs the body until swapped variables have their memory again; returns what it returns
        each time.
        """
        recorder.running.append(self)
        results = [self._run_body(structure, leaves)]
        while not recorder.end_of_turn():
            results.append(self._run_body(structure, leaves))
        recorder.check_looked()
        return results

    def _run_body(self, structure: Structure, leaves: AnySequence[Any]) -> Any:
        """Runs the body to record its calls, and returns what it returns.

        Raises:
            ArgumentError: that has a number which only the ranks compute.
        """
        try:
            results = self._body(**unflatten(structure, leaves))
        # others have a place
        except (
            ArgumentError,
            BatchError,
            DataError,
            PartitionError,
            ReductionError,
        ) as error:
            tracing.add_line(error)
            raise
        for leaf in flatten(results)[0]:
            if isinstance(leaf, Unknown) and not isinstance(leaf, ScalarResult | SymbolicResult):
                raise ArgumentError(
                    f"{self.name} returns {leaf.label}, which no call makes, so that the script "
                    "cannot get it; return the results of calls, and compute with them after the "
                    "call"
                )
        return results

    def _inside(
        self,
        recorder: Recorder,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        times: Any,
        every: Any,
        until: Any,
    ) -> Any:
        """Records a call inside another sequence."""
        if self in recorder.running:
            path = " → ".join(
                one.name for one in (*recorder.running[recorder.running.index(self) :], self)
            )
            raise ArgumentError(
                f"{tracing.where()}: {self.name} calls itself ({path}); loop with times="
            )
        if until is not None:
            raise ArgumentError(
                f"{tracing.where()}: until= is judged in the script; an inner "
                f"sequence cannot wait for it"
            )
        if every is not None:
            raise ArgumentError(
                f"{tracing.where()}: an inner sequence keeps the results of its last "
                f"iteration; leave every= out"
            )
        if not isinstance(times, Number):
            times = count_of(self.name, "times", times, 1)
        elif not times.is_int:
            raise ArgumentError(
                f"{tracing.where()}: times of {self.name} must be an int, and {times.label} is a "
                f"float; divide ints with //"
            )
        elif times.formula_of_argument:
            recorder.checks.append(InnerTimes(times, self.name, tracing.where()))
        leaves, structure = self._binder.bind(args, kwargs)
        values = [inner_argument(leaf) for leaf in leaves]
        with recorder.inside(self, times):
            return self._body(**unflatten(structure, values))

    # ---- inspection

    @shortened
    def plan(
        self,
        *args: Any,
        times: Any = ONCE,
        every: int | None = None,
        until: Any = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> SequenceReport:
        """Plans a call without making it: parts, what they read and write, waits, bytes moved, and
        what ends a round.

        Needs no GPU and no world. Arguments are those of a call, and `world_size`, the number of
        ranks to plan for; default: that of the open world. Waits are those of ranks on cores: on
        GPUs linked by NCCL, their streams wait instead.

        Raises:
            WorldError: no world is open, and `world_size` is not given.
            ArgumentError, PartitionError, BatchError, LaunchError: as for a call.
        """
        tracing.refuse(f"{self.name}.plan()")
        times, every = checked_loop(self.name, times, every, until)
        partition, world = planned_partition("plan", world_size), open_world()
        with _planning if world is None else _held(world, sys._getframe()):  # noqa: SLF001  # the call that has the world
            leaves, structure = self._binder.bind(args, kwargs)
            arguments = self._binder.classify(leaves, structure, self._outer)
            names = [argument_name(path) for path in paths(structure)]
            passed = list(zip(names, arguments.leaves, strict=True))
            labels = {
                _memory_of(value): name
                for name, value in (*self._outer.now().labels(), *passed)
                if isinstance(value, Variable | Data)
            }
            dry_run = DryRun(self.name, partition, labels)
            tracing.current = dry_run
            try:
                results = self._run_turns(dry_run, structure, arguments.leaves)[0]
            finally:
                tracing.current = None
        for check in dry_run.checks:
            check.check(self.name, times, arguments.scalars)
        shape_of = partial(planned_shape, partition)
        returned, _ = flatten(results)
        planned = [leaf.unseen if isinstance(leaf, ScalarResult) else leaf for leaf in returned]
        parts = dry_run.report(planned)
        self._check_kept(every, until, returns=bool(returned))
        found = schedule(
            times,
            every,
            is_judged=until is not None,
            large=dry_run.first_large(planned),
            nbytes=dry_run.used * partition.parts,
            room=KEPT_BYTES,
        )
        return SequenceReport(
            self.name,
            tuple(
                f"{name}: "
                f"{type_told(leaf) if isinstance(leaf, Number) else describe(leaf, shape_of)}"
                for name, leaf in passed
            ),
            partition.parts,
            parts,
            len(dry_run.starts),
            times,
            found.rounds(times),
            found.round_ends,
            dry_run.used * partition.parts,
            any(dry_run.carried),
        )

    def _scalars(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the numbers among the arguments of a call, in the order in which formulas
        count them.
        """
        return self._binder.classify(*self._binder.bind(args, kwargs), self._outer).scalars

    def _leave(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._world = None
        self._plans.clear()
        self._outer = OuterValues(self.py_func, _body_of)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds a decorated method to its instance."""
        return self if instance is None else Method(self, instance)

    def __repr__(self) -> str:
        """Shows name and parameters."""
        return f"<synknumba sequence {self.name}{self._signature}>"

    def __reduce__(self) -> NoReturn:
        """Raises `ArgumentError`: only the script runs sequences."""
        raise ArgumentError(
            f"{self.name} is a sequence, which only the script can run; it cannot be "
            f"pickled or sent to ranks"
        )


@contextmanager
def _held(world: Engine, call: FrameType) -> Iterator[None]:
    """Context in which this thread has the world, so that neither another nor the body of a
    sequence uses it.
    """
    world.begin(call)
    try:
        yield
    finally:
        world.end()


def _memory_of(value: Variable | Data) -> int:
    return id(state_of(value)) if isinstance(value, Variable) else value._segment.id  # noqa: SLF001  # shared with this package


def _body_of(value: Any) -> Any:
    """Returns the body of a sequence; None for any other object."""
    return value.py_func if isinstance(value, Sequence) else None


_NOTHING: Any = object()


@shortened
def sequence(function: Callable[P, R] = _NOTHING, /, **options: Never) -> Sequence[P, R]:
    """Makes a function that calls others into a sequence: the ranks run its calls by themselves, as
    often as asked.

    The function, the body, runs once for each kind of arguments, to record its calls, and must not
    depend on what these return: they run later, on the ranks. It may call functions decorated with
    `parallel` and `function`, `all_reduce`, `reduce` and `broadcast` of variables, and other
    sequences. `synk.STEP` in an argument is the number of the iteration.

    Args:
        function: the body.
        **options: none; those of a call, such as `times=`, are refused here.

    Returns:
        The `Sequence`, called with the body's arguments and `times=`, `every=` and `until=`.

    Raises:
        ArgumentError: the function has variadic parameters, or one named like an option, or assigns
            to a parameter at its end; or the decorator got options, which belong to the call.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def double(v, by):
        ...     v *= by
        >>> @synk.sequence
        ... def grow(v, by):
        ...     double(v, by)
        ...     synk.all_reduce(v, "mean")
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.ones(3))
        ...     grow(v, 2.0, times=5)
        ...     v.get_value()
        array([32., 32., 32.])
    """
    if options or function is _NOTHING or not callable(function):
        told = ", ".join(f"{name}={value!r}" for name, value in dict[str, Any](options).items())
        call = f", and pass {told} to the call, as in step(u, v, {told})" if options else ""
        got = (
            ""
            if function is _NOTHING or callable(function)
            else f"; got a {type(function).__name__}"
        )
        raise ArgumentError(
            f"write @synk.sequence without parentheses above the function{call}{got}"
        )
    return Sequence(function)
