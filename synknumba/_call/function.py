"""`Function`: a kernel or a Python function that runs on every rank when it is called.

f(x, y, 0.5) ──known call──> Plan.execute                       hot path: look up a key, ring the doorbell, combine
    └──────── new call ────> Binder → rows → Plan (sent to the ranks) → execute
"""  # noqa: E501

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, final, overload

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.call import Call
from synknumba._call.checked_call import check_call
from synknumba._call.collect import Count
from synknumba._call.distribute import Distributed, InnerFunction, SentFunction
from synknumba._call.future import Future
from synknumba._call.method import Method
from synknumba._call.options import CallOptions, FunctionOptions
from synknumba._call.plan import FunctionPlan, KernelPlan, Plan
from synknumba._call.plan_cache import KeptPlans
from synknumba._call.progress_bars import slices_shown
from synknumba._call.report import PlanReport, make_report
from synknumba._call.row_warnings import warn_of_all_rows, warn_of_means
from synknumba._call.work_out import Planner, WorkedCall, planned_partition
from synknumba._errors import (
    ArgumentError,
    LaunchError,
    MemberError,
    SharedMemoryError,
    SynkError,
    shorten,
    shortened,
)
from synknumba._host.copying import copy_into
from synknumba._host.data import Data
from synknumba._ops.launch import named_launch
from synknumba._progress import Progress, refuse_inside, wanted
from synknumba._source.reached import MISSING
from synknumba._types import Args, Array, Batch, CallValues, Kwargs
from synknumba._variables.failed_writes import note_failure, writing
from synknumba._variables.state import VariableState
from synknumba._world.call_in_flight import Flight
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.holdings import Uses, refuse
from synknumba._world.open_world import current_world

LAUNCHES_KEPT = 16  # launch configurations of one kernel, each with its plans

P = ParamSpec("P")
R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True)
class InstalledCall:
    """A call in the body of a sequence, whose program the ranks have.

    Attributes:
        plan: of the call.
        uses: functions that the ranks run, with their code.
        numbers: of the functions that are called.
    """

    plan: Plan
    uses: Uses
    numbers: Mapping[Distributed, int]


class Function(SentFunction, Generic[P, R]):
    """A function that runs on all ranks when it is called. Created by the decorators.

    Arguments are passed by position or name, in the order of the wrapped function's parameters,
    without its outputs:

    - `Data` and NumPy arrays are sharded along axis 0, unless their name is in `broadcast=`; 0-d
      arrays are broadcast.
    - Python and NumPy scalars go to every rank by value.
    - `synknumba.arange(n)`, `RANK`, `WORLD_SIZE`, `OFFSET`, `ROWS`, `OWN` and `per_rank([...])` are
      filled in on each rank.
    - A `Variable` is each rank's own array, written in place. If its name is in `rows=`, its
      rows are passed.

    Calls take the options `batch`, `local_batch`, `num_slices`, `output_subset` and `shards`
    besides; see `__call__`.

    Only the coordinator calls, one call at a time. A call returns when all ranks are done; `submit`
    returns while they work.

    Attributes:
        name: name in messages.
        py_func: the wrapped function.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def dot(x, y):
        ...     return x @ y
        >>> x = np.arange(6.0)
        >>> with synk.fork(2, device="cpu"):
        ...     dot(x, y=x), dot(x, x, batch=3), dot.as_serial(x, x)
        (np.float64(55.0), np.float64(5.0), np.float64(55.0))
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        name: str | None,
        inner: InnerFunction | None = None,
    ) -> None:
        name = name or str(getattr(function, "__name__", type(function).__name__))
        self._planner = Planner(name, function, options, is_generated=inner is not None)
        self._binder = self._planner.binder
        super().__init__(function, options, name, inner)
        self.__name__ = name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._code = getattr(function, "__code__", None)  # that the planner has read
        self._is_new = True  # before the first call on several ranks
        self._launched: dict[Any, Function[P, R]] = {}  # with other launch configurations, by these

    def _no_plans(self) -> KeptPlans:
        return KeptPlans(self._binder)

    # ---- calls

    # For type checkers: a call without options, checked against the function's parameters; then,
    # for each option, a call with it, whose other arguments are not checked, since keywords cannot
    # be added to a ParamSpec.
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, batch: Batch, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, local_batch: Any, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, num_slices: int, **kwargs: Any) -> R: ...
    @overload
    def __call__(
        self, *args: Any, output_subset: Sequence[str | int] | str | int | None, **kwargs: Any
    ) -> R: ...
    @overload
    def __call__(self, *args: Any, shards: int | None, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, progress: Progress | None, **kwargs: Any) -> R: ...

    def __call__(  # type: ignore[misc]  # a parameter named like an option is refused when the function is decorated
        self,
        *args: Any,
        batch: Batch = None,
        local_batch: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[str | int] | str | int | None = None,
        shards: int | None = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the function on all ranks, and combines the results.

        Args:
            *args: arguments by position.
            batch: rows to select before they are divided among the ranks: an int (the first rows),
                a slice, a list of row numbers, or a boolean mask; None for all.
            local_batch: rows to select from each rank's own rows of sliceable variables: one
                selection for all ranks, or a list with one for each rank; None for all.
            num_slices: number of parts into which each rank's rows, or each of its shards, are cut;
                they run one after the other.
            output_subset: names or positions of the outputs to return, in this order; None for all.
            shards: number of parts into which the rows are cut, independent of the world size; None
                for one part per rank. The results of shards are combined in order, so they have the
                same bits for every number of ranks, provided that the function returns the same for
                the same rows. With the op None, the result is a list with one value per shard.
                Updated variables get the result of all shards, on every rank.
            progress: whether to draw a bar over the slices of all ranks; "auto" draws it on a
                terminal and in a notebook, after half a second. None for the default, which
                `synk.options` sets for calls with `num_slices` or `shards`.
            **kwargs: arguments by name.

        Returns:
            The combined results: of a kernel, the value of its output, or a named tuple of several;
            of a Python function, the tree that it returns.

        Raises:
            ArgumentError, PartitionError, BatchError, DataError: invalid input; nothing was sent.
            ReductionError, LaunchError: invalid input; nothing was sent.
            WorldError: there is no world, or it is busy.
            RankError: an exception on a rank; the world remains usable.
            RankDied, CallTimeout: all ranks have been terminated; `fork()` works again.
        """
        if tracing.current is not None and tracing.current.is_here:
            refuse_inside(progress, tracing.where(), self.name)
            options = CallOptions(batch, num_slices, output_subset, local_batch, shards)
            return tracing.current.call(self, args, kwargs, options)
        try:
            world = current_world()
            world.begin()
        except SynkError as error:
            shorten(error)
            raise
        try:
            for function, code in self._uses:
                if function.__code__ is not code:
                    refuse(function, self.name)
            if looks := self._reads.looks:  # hot path: `_number_now` without a call
                for look, place, value in looks:
                    if look(place, MISSING) is not value:
                        self._read_again(world)
                        break
            if (
                (batch is None or type(batch) is np.ndarray)
                and local_batch is None
                and num_slices == 1
                and output_subset is None
                and progress is None
                and not kwargs
                and world is self._world
                and (shards is None or (type(shards) is int and not wanted(None, self.name)))
            ):
                entry, values = self._plans.known(args, shards, batch)
                if entry is not None:
                    plan, count, changed, _ = entry
                    for variable in changed:
                        self._mark(world, variable())
                    try:
                        return plan.execute(values, count)
                    except BaseException as error:
                        note_failure(world, [variable() for variable in changed], error)
                        raise
            options = CallOptions(batch, num_slices, output_subset, local_batch, shards)
            if progress is not None or shards is not None or num_slices != 1:
                options = replace(options, progress=wanted(progress, self.name))
            return self._call(world, args, kwargs, options)
        except Exception as error:
            if isinstance(error, SharedMemoryError):  # perhaps of results, of which ranks tell once
                self._plans.forget_all()  # plans made anew are told again
            shorten(error)
            raise
        finally:
            world.end()

    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    @overload
    def submit(self, *args: Any, batch: Batch, **kwargs: Any) -> Future[R]: ...
    @overload
    def submit(self, *args: Any, local_batch: Any, **kwargs: Any) -> Future[R]: ...
    @overload
    def submit(self, *args: Any, num_slices: int, **kwargs: Any) -> Future[R]: ...
    @overload
    def submit(
        self, *args: Any, output_subset: Sequence[str | int] | str | int | None, **kwargs: Any
    ) -> Future[R]: ...
    @overload
    def submit(self, *args: Any, shards: int | None, **kwargs: Any) -> Future[R]: ...

    @shortened  # type: ignore[misc]  # as for `__call__`
    def submit(
        self,
        *args: Any,
        batch: Batch = None,
        local_batch: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[str | int] | str | int | None = None,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts a call, and returns while the ranks work.

        Arguments are those of a call. NumPy arrays have been copied when this returns. The script
        must not change the contents of a `Data`, nor read the rows of `inout=` arguments, before
        the call has ended: when `result()` has returned, or another use of the world, which waits
        for it.

        A world has one call in flight: a second `submit`, as every other use of the world, first
        waits for the first. The world's timeout counts from `submit`, and is noticed by `result()`
        or the next use of the world, as is a rank's death.

        Returns:
            The future of the result.

        Raises:
            SynkError: as for a call, of what is found before the ranks start.
        """
        options = CallOptions(batch, num_slices, output_subset, local_batch, shards)
        return self._submit_then(None, args, kwargs, options)

    def _submit_then(
        self,
        then: Callable[[Engine, Any], Any] | None,
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
    ) -> Future[Any]:
        """Starts a call whose result is what `then` makes of the world and the usual result.

        `then` is called when the round has ended, while the world is held; `_call_held` makes
        further calls there.
        """
        world = current_world()
        world.begin()
        try:
            self._number_now(world)
            shards = options.shards
            if (
                options.is_plain
                and not kwargs
                and world is self._world
                and (shards is None or type(shards) is int)
            ):
                entry, values = self._plans.known(args, shards, options.batch)
                if entry is not None:
                    plan, count, references, _ = entry
                    changed = [reference() for reference in references]
                    return self._launch(world, plan, values, count, changed, then, keep=args)

            def start(call: Call, plan: Plan) -> Future[Any]:
                bound = call.arguments
                return self._launch(
                    world,
                    plan,
                    call.values,
                    call.count,
                    bound.changed,
                    then,
                    bound.write_back,
                    keep=call,
                )

            return self._call(world, args, kwargs, options, start)
        finally:
            world.end()

    def _call_held(self, world: Engine, args: Args, options: CallOptions) -> Any:
        """Makes a call where the world is held already, as in the `then` of a submitted call."""
        return self._call(world, args, {}, options)

    def _launch(
        self,
        world: Engine,
        plan: Plan,
        values: CallValues,
        count: Count,
        changed: Sequence[VariableState | None],
        then: Callable[[Engine, Any], Any] | None,
        write_back: Sequence[tuple[str, Array, Data]] = (),
        *,
        keep: object,
    ) -> Future[Any]:
        """Starts a call that is to be in flight; `keep` stays alive until its end."""

        def collect(_: object = keep) -> Any:
            result = plan.finish(count)
            self._succeeded(world, write_back)
            if then is None:
                return result
            return then(world, result)

        def give_up(error: BaseException) -> None:
            note_failure(world, changed, error)
            self._take_back(world)

        future: Future[Any] = Future(
            flight := Flight(world, plan.info, plan.learn, collect, give_up)
        )
        for variable in changed:
            self._mark(world, variable)
        try:
            plan.launch(values, count, flight)
        except BaseException as error:
            note_failure(world, changed, error)
            raise
        return future

    @shortened
    def __getitem__(self, config: Any) -> "Function[P, R]":
        """Returns the kernel with another launch configuration, as in `kernel[grid, block](x)` or
        `[grid, block, 0, smem]`.

        Each rank launches so many blocks on its rows; without a configuration, those of the
        decorator.

        Raises:
            LaunchError: CUDA does not allow the sizes; or a stream is given, since ranks have their
                own.
            ArgumentError: this is a function of arrays, which is not launched.
        """
        if self._options.style != "kernel":
            raise ArgumentError(
                f"{self.name} is a function of arrays, which has no grid; "
                f"call it without [{config!r}]"
            )
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise LaunchError(f"{self.name}: write {self.name}[grid, block](...), got [{config!r}]")
        grid, block, stream, smem_bytes = (*config, 0, 0)[:4]
        if not isinstance(stream, int | None) or stream:
            raise LaunchError(
                f"{self.name}: each rank launches on a stream of its own; pass 0 as "
                f"the stream, got {stream!r}"
            )
        grid, block = _hashable(grid), _hashable(block)
        key = (grid, block, smem_bytes)
        function = self._launched.get(key)
        if function is None:
            launch = named_launch(self.name, block, grid, smem_bytes)
            options = replace(self._options, launch=launch)
            if len(self._launched) >= LAUNCHES_KEPT:
                self._launched.pop(next(iter(self._launched)))
            function = Function(self.py_func, options, self.name, self._inner)
            self._launched[key] = function
        return function

    if not TYPE_CHECKING:  # else a checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raises for what other decorators look for in a plain function, such as `cuda.jit`
            above `synk.parallel`.
            """
            if name in {"__code__", "__defaults__"}:
                raise MemberError(
                    f"{self.__dict__.get('name', 'it')} is decorated by synknumba already, so "
                    "another decorator cannot compile it; write @synk.parallel above @cuda.jit, "
                    "not below"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds a decorated method to its instance, which is sent to the ranks by pickle."""
        if instance is None:
            return self
        return Method(self, instance)

    @shortened
    def as_serial(
        self,
        *args: Any,
        batch: Batch = None,
        local_batch: Any = None,
        num_slices: int = 1,
        output_subset: Any = None,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the function on the root alone, on all rows, as a reference for the result of a
        call.

        Arguments are those of a call. Variables are the root's; they must be replicas, not sharded.
        """
        world = current_world()
        world.begin()
        try:
            options = CallOptions(batch, num_slices, output_subset, local_batch, shards, solo=True)
            return self._call(world, args, kwargs, options)
        finally:
            world.end()

    @staticmethod
    def _mark(world: Engine, variable: VariableState | None) -> None:
        """Records that ranks may have written different values to a variable."""
        if variable is not None:
            variable.mark(differs=world.world_size > 1)

    def _call(
        self,
        world: Engine,
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
        start: Callable[[Call, Plan], Any] | None = None,
    ) -> Any:
        """Binds and plans a call, and runs it, or passes it to `start`."""
        if world is not self._world:  # plans belong to one world
            self._leave()
            # changed in place since the last world
            if getattr(self.py_func, "__code__", None) is not self._code:
                Function.__init__(self, self.py_func, self._options, self.name, self._inner)
            self._uses = world.holdings.code.uses(self._roots(), self.name)
            self._world = world
            world.at_close(self)
        self._number_now(world)
        for function, code in self._uses:
            if function.__code__ is not code:
                refuse(function, self.name)
        try:
            call, plan = self._planned_for(world, args, kwargs, options)
            if start is None:
                return self._run(world, call, plan)
            return start(call, plan)
        except BaseException:
            self._take_back(world)
            raise

    def _planned_for(
        self, world: Engine, args: Args, kwargs: Kwargs, options: CallOptions
    ) -> tuple[Call, Plan]:
        """Returns the bound call and its plan, which the ranks have."""
        planner = self._planner
        call = planner.bind(args, kwargs, options, world.partition, world)
        key = planner.plan_key(call)
        plan = self._plans.get(key)
        if plan is not None:
            world.attach(call.segments, plan.info)
        else:
            plan = self._install(world, planner.work_out(call))
            self._plans.keep(key, plan)
        if options.is_plain and not kwargs and not planner.builder.rules:
            self._plans.remember(args, call, plan)
        return call, plan

    def _install_in_sequence(self, world: Engine, worked: WorkedCall) -> InstalledCall:
        """Sends the program of a call in the body of a sequence to the ranks."""
        self._number_now(world)
        uses = world.holdings.code.uses(self._roots(), self.name)
        return InstalledCall(self._install(world, worked), uses, self._numbers())

    def _install(self, world: Engine, worked: WorkedCall) -> Plan:
        """Sends the program of a call to the ranks, and returns its plan."""
        call = worked.call
        if call.run_partition.parts > 1:
            if self._is_new:
                self._is_new = False
                warn_of_means(worked)
            warn_of_all_rows(worked)
        info = CallInfo(self.name, call.texts(lasting=True))
        program = worked.program(self._number)
        world.attach(worked.segments(), info)
        self._ship(world, program, info)
        plan: Plan
        if worked.is_kernel:
            built, merge = worked.built, self._options.merge
            plan = KernelPlan(world, program, info, call, worked.returned, built, self.name, merge)
        else:
            plan = FunctionPlan(world, program, info, call, has_ops=self._options.has_ops)
        plan.updates = worked.updates
        return plan

    def _run(self, world: Engine, call: Call, plan: Plan) -> Any:
        changed = call.arguments.changed
        for variable in changed:
            self._mark(world, variable)
        shows = call.options.progress
        with ExitStack() as contexts:
            if shows:
                contexts.enter_context(slices_shown(world, plan.program, self.name, shows))
            if changed:
                contexts.enter_context(writing(world, changed))
            result = plan.execute(call.values, call.count)
        self._succeeded(world, call.arguments.write_back)
        return result

    def _succeeded(self, world: Engine, write_back: Sequence[tuple[str, Array, Data]]) -> None:
        """Notes that the function has run to its end, and writes rows back to NumPy arrays."""
        if self._number not in world.holdings.proven:
            self._prove(world)
        for _, array, staged in write_back:
            copy_into(array, staged.data)

    # ---- inspection

    @shortened
    def build_inputs(
        self,
        *values: Any,
        force_cast: bool | Sequence[bool] = False,
        oversize: float = 1.0,
        minibatch: bool | Sequence[bool] = False,
        **named: Any,
    ) -> Any:
        """Creates `Data` for this function's arguments, named after its parameters.

        Values are passed by position or name, as for a call; `force_cast`, `oversize` and
        `minibatch` are those of `data`. `force_cast` and `minibatch` may be a list or tuple with
        one flag per input, in the order of the parameters.

        Returns:
            One `Data`, or a tuple in the order of the parameters.

        Raises:
            ArgumentError: the values do not match the parameters, or the flags do not match the
                inputs.
            DataError: as for `data`.
        """
        matched = self._binder.match(values, named)
        inputs = {name: matched[name] for name in self._binder.passed}
        casts = self._flags("force_cast", force_cast, inputs)
        minibatches = self._flags("minibatch", minibatch, inputs)
        data = []
        for (name, value), cast, by_position in zip(
            inputs.items(), casts, minibatches, strict=True
        ):
            data.append(
                Data(value, name=name, force_cast=cast, oversize=oversize, minibatch=by_position)
            )
        if len(data) == 1:
            return data[0]
        return tuple(data)

    def _flags(self, option: str, value: Any, inputs: Collection[str]) -> list[bool]:
        """Returns an option of `build_inputs` as one flag per input."""
        flags = value
        if not isinstance(value, list | tuple):
            flags = [value] * len(inputs)
        are_flags = all(isinstance(flag, bool | np.bool_) for flag in flags)
        if len(flags) != len(inputs) or not are_flags:
            raise ArgumentError(
                f"{option} of {self.name}.build_inputs must be True or False, or a list with one "
                f"of them for each of {', '.join(inputs)}; got {value!r}"
            )
        return [bool(flag) for flag in flags]

    @shortened
    def plan(
        self,
        *args: Any,
        batch: Batch = None,
        local_batch: Any = None,
        num_slices: int = 1,
        output_subset: Any = None,
        shards: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> PlanReport:
        """Plans a call without making it: each rank's rows, bytes, slices and grids, and how
        results are combined.

        Needs no GPU and no world. Arguments are those of a call, and `world_size`, the number of
        ranks to plan for; default: that of the open world.

        Raises:
            WorldError: no world is open, and `world_size` is not given.
            ArgumentError, PartitionError, BatchError, LaunchError: as for a call.
        """
        options = CallOptions(batch, num_slices, output_subset, local_batch, shards)
        return make_report(self._worked_out("plan", options, world_size, args, kwargs))

    def _worked_out(
        self,
        what: str,
        options: CallOptions,
        world_size: int | None,
        args: Args,
        kwargs: Kwargs,
    ) -> WorkedCall:
        """Works out a call of which nothing is sent; `what` is the method, for errors."""
        planner, partition = self._planner, planned_partition(what, world_size)
        return planner.work_out(planner.bind(args, kwargs, options, partition))

    @shortened
    def check(
        self,
        *args: Any,
        batch: Batch = None,
        local_batch: Any = None,
        world_size: int | None = None,
        ranks: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Runs a call of a kernel under `simt.check`: the rows of each rank in turn, in Python, in
        this process.

        Finds races, divergent barriers, reads of unwritten memory and indices out of bounds, also
        those past the rows of a rank that reach the rows of the next. Arguments are those of a call
        and are not changed; nothing is returned. As the checker makes some 100,000 accesses a
        second, select few rows, as in `energy.check(x, 0.5, batch=1000)`.

        With several numbers in `ranks`, makes the call of a kernel or a function once on each
        number of ranks instead, as it is, on cores and in worlds of its own, and compares what it
        returns and writes. Arguments, and variables that the function uses, are afterwards what
        they were before.

        Args:
            *args: arguments by position.
            batch: rows to select, as for a call.
            local_batch: rows of sliceable variables to select, as for a call.
            world_size: number of ranks among which the rows are divided; default: that of the open
                world.
            ranks: numbers of ranks to compare, as (1, 2, 3); all options of a call may be passed
                with them.
            **kwargs: arguments by name.

        Raises:
            KernelCheckError: the findings, each with the ranks that have it. The class is that of
                the first finding: BoundsError, RaceError, DivergenceError or UninitializedError.
                With `ranks`, what differs, and its usual cause.
            WorldError: no world is open, and `world_size` is not given; with `ranks`, one is open.
            ArgumentError: this is no kernel; with `ranks`, an argument depends on their number; or
                as for a call.
        """
        if ranks is not None:
            if batch is not None:
                kwargs["batch"] = batch
            if local_batch is not None:
                kwargs["local_batch"] = local_batch
            # deferred: no other call needs it
            from synknumba._call.compared_ranks import check_ranks

            check_ranks(self, ranks, world_size, args, kwargs)
            return
        if not self._is_checkable:
            raise ArgumentError(
                f"check() is for kernels, and {self.name} is none; call it, test it as a plain "
                "function, or compare its results on several numbers of ranks, as by ranks=(1, 2, "
                "3)"
            )
        options = CallOptions(batch, local_batch=local_batch)
        check_call(self._worked_out("check", options, world_size, args, kwargs))

    @property
    def _is_checkable(self) -> bool:
        """Whether this is a kernel of the user's, which `check` runs."""
        return self._options.launch is not None and self._inner is None

    @property
    def _unfit(self) -> str:
        """Why the body of a sequence cannot call it, and the way out; "" if it can."""
        return self._options.unfit

    @property
    def update_modes(self) -> dict[str, Any]:
        """Op of each updated variable, by parameter."""
        return {name: op for name, (_, op) in self._options.updates.items()}

    def __repr__(self) -> str:
        """Shows style, name and parameters."""
        return (
            f"<synknumba {self._options.style} {self.name}({', '.join(self._planner.parameters)})>"
        )


def _hashable(size: Any) -> Any:
    if isinstance(size, list):
        return tuple(size)
    return size
