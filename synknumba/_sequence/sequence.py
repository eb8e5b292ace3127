"""`sequence`: several calls that the ranks repeat by themselves, in one round.

    s(u, 0.5, times=1000) ──known arguments──> SequencePlan.run ── one round ──> results, stacked
        └── new arguments ──> Body.record ──> SequencePlan, sent to the ranks

With an `until=` that the script judges, or with results that are not small, a round ends at each
kept result; without, the ranks keep small results in a segment, and one round does all.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AnySequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Generic, Never, NoReturn, ParamSpec, TypeAlias, TypeVar, final, overload

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.bind import signature_names
from synknumba._call.future import Future
from synknumba._call.kinds import describe, type_told
from synknumba._call.method import Method
from synknumba._call.progress_bars import iterations_shown
from synknumba._call.variable_rows import planned_shape
from synknumba._call.work_out import planned_partition
from synknumba._errors import ArgumentError, SynkError, shorten, shortened
from synknumba._host.copying import copy_into
from synknumba._host.data import Data, segment_of
from synknumba._host.log import log
from synknumba._ops.tree import flatten, paths
from synknumba._progress import Progress, default, refuse_inside, wanted
from synknumba._sequence.arguments import ArgumentBinder, Arguments, argument_name, refuse_shared
from synknumba._sequence.body import Body
from synknumba._sequence.body_source import check_body
from synknumba._sequence.dry_run import DryRun
from synknumba._sequence.outer_values import OuterValues
from synknumba._sequence.plan import CallRounds, SequencePlan
from synknumba._sequence.plan_cache import KeptSequencePlans
from synknumba._sequence.report import SequenceReport
from synknumba._sequence.schedule import (
    ONCE,
    OPTIONS,
    RANKS,
    SCRIPT,
    Round,
    checked_loop,
    schedule,
)
from synknumba._sequence.symbolic_results import handle_of
from synknumba._sequence.until import Until
from synknumba._tracing import Number
from synknumba._types import Args, Array, Kwargs, as_name, class_text, nearest
from synknumba._variables.variable import Variable, state_of
from synknumba._world.call_in_flight import GOES_ON, Flight
from synknumba._world.engine import Engine
from synknumba._world.holdings import refuse
from synknumba._world.open_world import current_frame, current_world, open_world

_planning = threading.Lock()  # held where a sequence is planned without a world

P = ParamSpec("P")
R = TypeVar("R")
_Copies: TypeAlias = AnySequence[tuple[Array, Data]]
"""NumPy arrays that get what ranks write, with the copies to which they write."""


@final
class Sequence(Generic[P, R]):
    """Several calls that the ranks repeat by themselves. Created by `sequence`.

    Attributes:
        name: name in messages.
        py_func: the function that was decorated, the body.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="max")
        ... def halve(v):
        ...     v /= 2
        ...     return v.max()
        >>> @synk.sequence
        ... def halvings(v):
        ...     return halve(v)
        >>> with synk.fork(2, device="cpu"):
        ...     halvings(synk.variable(np.ones(3)), times=4, every=1)
        array([0.5   , 0.25  , 0.125 , 0.0625])
    """

    def __init__(self, function: Callable[P, R], name: str | None = None) -> None:
        self.py_func = function
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        self.name = as_name(name) or self.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        signature_names(function, "the sequence", OPTIONS)
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"{self.name} is a generator or a coroutine, whose body would not "
                f"run; write a plain function"
            )
        check_body(self.name, function)
        self._plans = KeptSequencePlans()
        self._binder = ArgumentBinder(self.name, inspect.signature(function))
        self._world: Engine | None = None
        self._traced = 0  # how often the body was recorded
        self._forget_values()

    # For type checkers and editors: the body's parameters; then the options, which cannot be added
    # to a ParamSpec.
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(
        self,
        *args: Any,
        times: Any = ...,
        every: int | None = ...,
        until: Any = ...,
        progress: Progress | None = ...,
        **kwargs: Any,
    ) -> Any: ...

    def __call__(  # type: ignore[misc]  # as for `Function.__call__`
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
            until: function of the results of a kept iteration (of each, if every is None): the
                loop ends when it returns true, or after `times` iterations, which must be given.
                It does not change what `every` returns. Where it compares numbers, it is called
                once, and the ranks judge; else it is called in the script (`plan` tells).
            progress: whether to draw a bar over the iterations, as far as the slowest rank; "auto"
                draws it on a terminal and in a notebook, after half a second. None for the default,
                which `synk.options` sets.
            **kwargs: arguments of the body by name.

        Returns:
            What the body returns, with the results of its calls; variables as they are.

        Raises:
            ArgumentError: an argument is invalid, or the body does what ranks cannot repeat.
            RankError: an exception on a rank, with iteration and call; the world remains usable,
                and variables that the sequence writes are undefined.
            RankDied, CallTimeout: all ranks have been terminated; `fork()` works again.
        """
        if tracing.current is not None and tracing.current.is_here:
            refuse_inside(progress, tracing.where(), self.name)
            return self._body.inside(args, kwargs, times, every, until)
        try:
            times, every = checked_loop(self.name, times, every, until)
            shows: Progress = False
            if progress is not None or (times > 1 and default()):
                shows = wanted(progress, self.name)
            world = current_world()
            world.begin()
        except SynkError as error:
            shorten(error)
            raise
        try:
            condition = Until.of(until)
            plan, scalars, copies = self._prepared(world, args, kwargs, times, condition)
            if not times:
                return self._nothing(plan, every, until)
            result = self._repeat(plan, scalars, times, every, until, shows)
            for array, copy in copies:
                copy_into(array, copy.data)
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

        Arguments are those of a call, with an `until=` that the ranks judge (`plan` tells). As for
        `submit` of a function, NumPy arrays have been copied when this returns, the script must not
        change or read what the calls write before the end, and the next use of the world waits for
        it. Where a round ends at each kept result, another begins when `result()`, `done()` or the
        next use of the world finds that the one before has ended.

        Returns:
            The future of the results.

        Raises:
            ArgumentError: the script judges `until=`; or as for a call, of what is found before the
                ranks start.
        """
        times, every = checked_loop(self.name, times, every, until)
        world = current_world()
        world.begin()
        try:
            return self._submit(world, args, kwargs, times, every, until)
        finally:
            world.end()

    def _submit(
        self,
        world: Engine,
        args: Args,
        kwargs: Kwargs,
        times: int,
        every: int | None,
        until: Any,
    ) -> Future[Any]:
        condition = Until.of(until)
        plan, scalars, copies = self._prepared(world, args, kwargs, times, condition)
        if not times:
            nothing = self._nothing(plan, every, until)
            flight = Flight(world, plan.info, plan.learn, lambda: nothing, plan.note_failure)
            future: Future[Any] = Future(flight)
            flight.complete()
            return future
        self._check_call(plan, every, until, times, scalars)
        if condition is not None and not plan.program.ends:
            why = condition.why_script or "plan() says why"
            raise ArgumentError(
                f"{self.name}: the script judges this until=, and submit() returns before the "
                f"first result: {why}; compare numbers, which ranks judge, or call {self.name}(...)"
            )
        kept_at = plan.schedule(times, every, is_judged=until is not None)
        rounds = CallRounds(plan, scalars, times, kept_at)

        def collect(_: object = (args, kwargs)) -> Any:
            result = rounds.land(flight)
            if result is not GOES_ON:
                for array, copy in copies:
                    copy_into(array, copy.data)
            return result

        def give_up(error: BaseException) -> None:
            plan.note_failure(error)
            self._plans.drop(plan)

        flight = Flight(world, plan.info, plan.learn, collect, give_up)
        future = Future(flight)
        try:
            rounds.launch(flight)
        except BaseException as error:
            give_up(error)
            raise
        return future

    # ---- calls

    def _prepared(
        self,
        world: Engine,
        args: Args,
        kwargs: Kwargs,
        times: int,
        until: Until | None = None,
    ) -> tuple[SequencePlan, AnySequence[Any], _Copies]:
        """Returns the plan of a call, its scalars, and the copies of arrays that ranks write."""
        if not kwargs and times and until is None and world is self._world:
            plan, scalars = self._plans.known(self._outer.now().version, args)
            if plan is not None and not plan.forgotten and plan.is_current:
                return plan, scalars, plan.renew_arrays() if plan.installed.arrays.changing else ()
        if world is not self._world:
            self._leave()
            self._world = world
            world.at_close(self)
        arguments = self._binder.classify(args, kwargs, self._outer)
        if until is not None:
            until.join(arguments)
        plan = self._plan(world, arguments, until)
        if not times:
            return plan, arguments.scalars, ()
        copies = [*_written_back(plan, arguments), *plan.renew_arrays()]
        if until is None and len(args) == len(arguments.leaves) == len(
            self._binder.signature.parameters
        ):
            self._plans.remember(self._outer.now().version, args, plan)
        return plan, arguments.scalars, copies

    def _plan(self, world: Engine, arguments: Arguments, until: Until | None) -> SequencePlan:
        key = (self._outer.now().version, *arguments.key)
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        self._plans.forget_lost()
        self._traced += 1
        plan = self._body.record(world, arguments, until)
        log.debug(
            "the body of %s was run to record its calls: %s",
            self.name,
            "the first time" if self._traced == 1 else "again",
        )
        self._plans.keep(key, plan)
        return plan

    def _check_kept(self, every: int | None, until: Any, *, returns: bool) -> None:
        """Raises `ArgumentError` for options about results, unless the body returns any."""
        if returns:
            return
        for option, value in (("until= judges", until), ("every= keeps", every)):
            if value is not None:
                raise ArgumentError(
                    f"{self.name}: {option} what {self.name} returns, and it returns nothing; "
                    "return the result of a call in its body"
                )

    def _check_call(
        self,
        plan: SequencePlan,
        every: int | None,
        until: Any,
        times: int,
        scalars: AnySequence[Any],
    ) -> None:
        """Raises `ArgumentError` or `BatchError` for what a call may not have, or what may have
        changed since the plan was made.
        """
        if every is not None or until is not None:
            self._check_kept(every, until, returns=not plan.results.are_none)
        for function, code in plan.installed.uses:
            if function.__code__ is not code:
                refuse(function, self.name)
        for check in plan.installed.checks:
            check.check(self.name, times, scalars)

    def _repeat(
        self,
        plan: SequencePlan,
        scalars: AnySequence[Any],
        times: int,
        every: int | None,
        until: Any,
        shows: Progress,
    ) -> Any:
        self._check_call(plan, every, until, times, scalars)
        try:
            if every is None and until is None and not shows:
                plan.run(Round(0, times, times), scalars)
                return plan.results.collect(times - 1)
            kept_at = plan.schedule(times, every, is_judged=until is not None)
            judge = None
            if until is not None and not plan.program.ends:
                judge = partial(self._holds, plan.world, until)
            rounds = CallRounds(plan, scalars, times, kept_at, judge)
            if not shows:
                return rounds.run(_show_nothing)
            board = plan.board
            board.begin()
            with iterations_shown(plan.world, board.done, times, self.name, shows) as show:
                return rounds.run(show)
        except BaseException:
            self._plans.drop(plan)  # ranks may have stopped at different places
            raise

    def _holds(self, world: Engine, until: Any, results: Any) -> bool:
        """Returns whether the loop ends, by what `until=` returns for results."""
        world.judged = self.name
        try:
            answer = until(results)
        except TypeError as error:
            if isinstance(results, tuple | list | dict):
                error.add_note(
                    f"until= of {self.name} gets all that its body returns as one argument, as in "
                    "until=lambda pair: pair[0] < 1e-6"
                )
            raise
        finally:
            world.judged = ""
        if answer is None:
            raise ArgumentError(
                f"{self.name}: until= must return True or False, got None; a function without a "
                f"return statement returns None"
            )
        if np.size(answer) != 1:
            raise ArgumentError(
                f"{self.name}: until= must return True or False, got {answer!r}; with several "
                f"values, ask for all of them, as in (r < 1e-6).all()"
            )
        if np.asarray(answer).dtype != bool:
            raise ArgumentError(
                f"{self.name}: until= must return True or False, got {answer!r}; compare numbers, "
                "as in r != 0, and write not flag for a bool of Python, of which ~flag is an int"
            )
        return bool(answer)

    def _nothing(self, plan: SequencePlan, every: int | None, until: Any) -> Any:
        """Returns the results of no iterations."""
        self._check_kept(every, until, returns=not plan.results.are_none)
        if plan.results.are_none:
            return None
        if every is None:
            raise ArgumentError(
                f"{self.name}: times=0 has no last iteration; pass every=, which "
                f"then gives empty results"
            )
        return plan.results.empty()

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
        with _planning if world is None else _held(world, current_frame()):
            arguments = self._binder.classify(args, kwargs, self._outer)
            names = [argument_name(path) for path in paths(arguments.structure)]
            passed = list(zip(names, arguments.leaves, strict=True))
            labels = {
                _memory_of(value): name
                for name, value in (*self._outer.now().labels(), *passed)
                if isinstance(value, Variable | Data)
            }
            dry_run = DryRun(self.name, partition, labels)
            condition = Until.of(until)
            if condition is not None:
                condition.join(arguments)
            results = self._body.dry_run(dry_run, arguments, condition)
        for check in dry_run.checks:
            check.check(self.name, times, arguments.scalars)
        shape_of = partial(planned_shape, partition)
        texts = []
        for name, leaf in passed:
            text = type_told(leaf) if isinstance(leaf, Number) else describe(leaf, shape_of)
            texts.append(f"{name}: {text}")
        returned = list(map(handle_of, flatten(results)[0]))
        self._check_kept(every, until, returns=bool(returned))
        parts, nbytes = dry_run.report(returned), dry_run.used * partition.parts
        large, judge, judged_by = dry_run.first_large(returned), "", ""
        if condition is not None and condition.why_script:
            judge, judged_by = SCRIPT, f"the script, as {condition.why_script}"
        elif condition is not None:
            judge = judged_by = RANKS
        rounds = schedule(times, every, judge=judge, large=large, nbytes=nbytes)
        return SequenceReport(
            sequence=self.name,
            arguments=tuple(texts),
            world_size=partition.parts,
            parts=parts,
            turns=len(dry_run.innermost.starts),
            times=times,
            rounds=rounds.rounds(times),
            round_ends=rounds.round_ends,
            judged_by=judged_by,
            kept_bytes=nbytes,
            carries=any(dry_run.innermost.carried),
        )

    def _scalars(self, args: Args, kwargs: Kwargs) -> list[Any]:
        """Returns the numbers among the arguments of a call, in the order in which formulas
        count them.
        """
        return self._binder.classify(args, kwargs, self._outer).scalars

    def _leave(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._world = None
        self._plans.clear()
        self._forget_values()

    def _forget_values(self) -> None:
        """Forgets what the body has read from outside."""
        self._outer = OuterValues(self.py_func, _body_of)
        self._body = Body(self.name, self.py_func, self._binder, self._outer)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds a decorated method to its instance."""
        return self if instance is None else Method(self, instance)

    def __repr__(self) -> str:
        """Shows name and parameters."""
        return f"<synknumba sequence {self.name}{self._binder.signature}>"

    def __reduce__(self) -> NoReturn:
        """Raises `ArgumentError`: only the script runs sequences."""
        raise ArgumentError(
            f"{self.name} is a sequence, which only the script can run; it cannot be "
            f"pickled or sent to ranks"
        )


def _show_nothing() -> None:
    """Follows each round of a call without a progress bar."""


def _written_back(plan: SequencePlan, arguments: Arguments) -> list[tuple[Array, Data]]:
    """Returns the NumPy arrays that get what ranks write; raises `ArgumentError` if another
    is over the same memory.
    """
    written, copied = plan.installed.written, arguments.write_back
    shared = [(name, data.data, data) for name, data in arguments.data]
    refuse_shared(written, copied, [*copied, *plan.installed.arrays.labelled(), *shared])
    return [(array, copy) for _, array, copy in copied if segment_of(copy).id in written]


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
    if isinstance(value, Variable):
        return id(state_of(value))
    return segment_of(value).id


def _body_of(value: Any) -> Any:
    """Returns the body of a sequence; None for any other object."""
    if isinstance(value, Sequence):
        return value.py_func
    return None


_NOTHING: Any = object()


@overload
def sequence(function: Callable[P, R], /, *, name: str | None = None) -> Sequence[P, R]: ...
@overload
def sequence(*, name: str) -> Callable[[Callable[P, R]], Sequence[P, R]]: ...
@shortened
def sequence(function: Any = _NOTHING, /, *, name: str | None = None, **options: Never) -> Any:
    """Makes a function that calls others into a sequence: the ranks run its calls by themselves, as
    often as asked.

    The function, the body, runs once for each kind of arguments, to record its calls, and must not
    depend on what these return: they run later, on the ranks. It may call functions decorated with
    `parallel` and `function`, maps of `vectorize` with `out=`, `all_reduce`, `reduce`, `broadcast`
    and `exchange` of variables, `swap` and `carry`, and other sequences. `synk.STEP` in an argument
    is the number of the iteration.

    Args:
        function: the body.
        name: name in messages; default: the body's.
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
        if name is not None and function is _NOTHING and not options:
            return partial(sequence, name=name)
        for option in options:
            if option not in OPTIONS:
                raise ArgumentError(
                    f"sequence has no option {option}=; it has name{nearest(option, ['name'], '=')}"
                )
        message = "write @synk.sequence without parentheses above the function"
        if options:
            text = ", ".join(f"{name}={value!r}" for name, value in dict[str, Any](options).items())
            message += f", and pass {text} to the call, as in step(u, v, {text})"
        if function is not _NOTHING and not callable(function):
            message += f"; got {class_text(function)}"
        raise ArgumentError(message)
    return Sequence(function, name)
