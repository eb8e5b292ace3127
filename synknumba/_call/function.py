"""`Function`: a kernel or a Python function that runs on every rank when it is called.

f(x, y, 0.5) ──known call──> Plan.execute                       hot path: look up a key, ring the doorbell, combine
    └──────── new call ────> Binder → rows → Plan (sent to the ranks) → execute
"""  # noqa: E501

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.bind import Binder, same_variable, signature_names
from synknumba._call.call import Call
from synknumba._call.checked_call import check_call
from synknumba._call.collect import Count
from synknumba._call.distribute import Decorated, Distributed, InnerFunction, make_spec, next_id
from synknumba._call.future import Future
from synknumba._call.launches import check_launches, sized_by
from synknumba._call.method import Method
from synknumba._call.options import MOST_PARTS, CallOptions, FunctionOptions, check_names
from synknumba._call.outputs import Built, OutputBuilder
from synknumba._call.parameter_roles import Roles, find_roles
from synknumba._call.plan import FunctionPlan, KernelPlan, Plan
from synknumba._call.plan_cache import KeptPlans
from synknumba._call.progress_bars import slices_shown
from synknumba._call.rebinding import check_passed, check_rebinding
from synknumba._call.report import PlanReport, make_report
from synknumba._call.row_warnings import warn_of_all_rows, warn_of_means
from synknumba._call.select_rows import RowSelector
from synknumba._call.shared_updates import SharedUpdates
from synknumba._call.unwritten_outputs import check_stores
from synknumba._device import fold_kernel
from synknumba._errors import (
    ArgumentError,
    LaunchError,
    MemberError,
    PartitionError,
    ReductionError,
    SharedMemoryError,
    SynkError,
    WorldError,
    depth_of_script,
    shorten,
    shortened,
)
from synknumba._host.copying import copy_into
from synknumba._host.data import Data
from synknumba._host.log import log
from synknumba._ops.launch import LaunchConfig, named_launch
from synknumba._ops.rows import Partition
from synknumba._ops.tree import is_nested
from synknumba._progress import Progress, refuse_inside, wanted
from synknumba._source.access import read_parameters, written_parameters
from synknumba._source.grid_limits import Limits, grid_limits
from synknumba._types import Array, Batch, Cache, shown
from synknumba._variables.state import VariableState, note_failure, writing
from synknumba._wire.control import RESULT_BYTES
from synknumba._wire.messages import Install
from synknumba._wire.program import (
    Broadcast,
    Dynamic,
    Held,
    HeldRows,
    Program,
    Result,
    Sharded,
    next_number,
)
from synknumba._wire.results import FIRST_LEAF
from synknumba._world.call_in_flight import Flight
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.holdings import Uses, refuse
from synknumba._world.open_world import current_world, open_world
from synknumba._world.read_values import MISSING, ReadValues
from synknumba.simt.internals import check_kernel, dynamic_shared, keep_text

ROW_VALUES = 3  # at most so many of a call's values select rows
LAUNCHES_KEPT = 16  # launch configurations of one kernel, each with its plans
EDITIONS_KEPT = 8  # of a function with other values from outside, which may come again
MANY_EDITIONS = 8  # after so many, a warning says what to pass as an argument
OWN_VALUES = 3  # at most so many for each rank select rows of sliceable variables


# of small results of a Python function in a sequence; larger ones are in a segment of their own
FUNCTION_BYTES = 4096
ROOM_SHARE = 8  # part of the room for small results that one function gets: some 50 fit in

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WorkedCall:
    """A call of a sequence, worked out."""

    plan: Plan
    call: Call
    used: int  # bytes of the ranks' small results up to the end of its own
    written: frozenset[str]  # parameters with variables that a kernel may write
    selector: RowSelector  # owns the memory for row numbers
    uses: Uses  # functions that the ranks run, with their code
    numbers: dict[Distributed, int]  # of the function, and of the one inside a generated kernel


@dataclass(frozen=True, slots=True)
class DryCall:
    """A call of a sequence that is only planned.

    Attributes:
        call: its arguments and rows.
        report: the report on it.
        results: those of a kernel.
        ops: tree of ops of a Python function.
        returns: whether the Python function has ops, and so a result.
        used: bytes of the ranks' small results up to the end of its own.
        written: parameters with variables that a kernel may write.
        is_kernel: whether it is a kernel.
        is_recorded: whether it is a Python function that GPUs repeat without Python.
    """

    call: Call
    report: PlanReport
    results: tuple[Result, ...]
    ops: Any
    returns: bool
    used: int
    written: frozenset[str]
    is_kernel: bool
    is_recorded: bool


class Function(Decorated, Distributed, Generic[P, R]):
    """A function that runs on all ranks when it is called. Created by the decorators.

    Arguments are passed by position or name, in the order of the wrapped function's parameters,
    without its outputs:

    - `Data` and NumPy arrays are sharded along axis 0, unless their name is in `broadcast=`; 0-d
      arrays are broadcast.
    - Python and NumPy scalars go to every rank by value.
    - `synknumba.arange(n)`, `RANK`, `WORLD_SIZE`, `OFFSET`, `ROWS`, `OWN` and `per_rank([...])` are
      filled in on each rank.
    - A `Variable` is each rank's own array, written in place. If its name is in `sliceable=`, its
      rows are passed.

    Calls take the options `batch`, `local_batch`, `num_slices`, `output_subset` and `shards`
    besides; see `__call__`.

    Only the coordinator calls, one call at a time. A call returns when all ranks are done; `submit`
    returns while they work.

    Attributes:
        name: name in messages.
        py_func: the wrapped function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        name: str | None,
        inner: InnerFunction | None = None,
    ) -> None:
        super().__init__()
        self.py_func = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._options = options
        self._inner = inner  # the function that `function`, a generated kernel, calls; else None
        parameters = signature_names(
            function, "the function" if options.style == "function" else "the kernel"
        )
        check_names(self.name, parameters, options)
        limits = Limits()
        if inner is None:  # not a generated kernel
            keep_text(function)
            for op in options.user_ops():
                keep_text(op.function)
            check_rebinding(self.name, function, options)
            if options.style == "kernel":
                check_stores(self.name, function, options.outputs)
            if options.launch is not None:
                limits = grid_limits(function)
        self._limits = limits  # of the positions of a kernel
        self._parameters = parameters
        self._binder = Binder(self.name, parameters, options)
        self._selector = RowSelector(self.name, options.style)
        self._builder = OutputBuilder(self.name, options.outputs)
        self._world: Engine | None = None
        self._plans = KeptPlans(self._binder)
        # its number and plans with other values
        self._others = OrderedDict[Any, tuple[int, KeptPlans]]()
        self._of_ops: ReadValues | None = None
        self._sent_anew = 0  # how often in this world
        self._uses: Uses = ()  # functions that the ranks of this world have, with their code
        self._code = getattr(function, "__code__", None)  # that the analyses here have read
        self._is_new = True  # before the first call on several ranks
        # Parameters that the source stores to. The analysis of a generated kernel, which has no
        # line of the user's, is put off.
        self._written = None if inner is not None else written_parameters(function)
        self._roles: Roles | None = None  # of what the kernel writes without a role, if anything
        self._dynamic_shared: str | None = None  # where the kernel uses it
        if inner is None and options.style == "kernel":
            self._roles = find_roles(self.name, function, options)
            self._dynamic_shared = (
                dynamic_shared(function) if isinstance(function, FunctionType) else None
            )
        # with other launch configurations, by these
        self._launched: Cache[Any, Function[P, R]] = Cache(LAUNCHES_KEPT)

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
            options = CallOptions(
                batch, num_slices, output_subset, local_batch=local_batch, shards=shards
            )
            return tracing.current.call(self, args, kwargs, options)
        try:
            world = current_world()
            world.begin()
        except SynkError as error:
            shorten(error)
            raise
        try:
            for one, code in self._uses:
                if one.__code__ is not code:
                    refuse(one, self.name)
            if looks := self._reads.looks:  # hot path: `_number_now` without a call
                for look, place, value in looks:
                    if look(place, MISSING) is not value:
                        self._read_again(world)
                        break
            plain = (
                batch is None
                and local_batch is None
                and num_slices == 1
                and output_subset is None
                and not kwargs
            )
            plain = plain and progress is None
            if (
                plain
                and world is self._world
                and (shards is None or (type(shards) is int and not wanted(None, self.name)))
            ):
                known, values = self._plans.known(args, shards)
                if known is not None:
                    plan, count, changed = known
                    for variable in changed:
                        self._mark(world, variable())
                    try:
                        return plan.execute(values, count)
                    except BaseException as error:
                        note_failure(world, [variable() for variable in changed], error)
                        raise
            is_cut = progress is not None or shards is not None or num_slices != 1
            shows = wanted(progress, self.name) if is_cut else False
            options = CallOptions(
                batch,
                num_slices,
                output_subset,
                local_batch=local_batch,
                shards=shards,
                progress=shows,
            )
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
        options = CallOptions(
            batch, num_slices, output_subset, local_batch=local_batch, shards=shards
        )
        return self._submit_then(None, args, kwargs, options)

    def _submit_then(
        self,
        then: Callable[[Engine, Any], Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
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
                known, values = self._plans.known(args, shards)
                if known is not None:
                    plan, count, references = known
                    changed = [variable for one in references if (variable := one()) is not None]
                    return self._launch(world, plan, values, count, changed, then, keep=args)
            start = partial(self._launch_bound, world, then)
            return self._call(world, args, kwargs, options, start)
        finally:
            world.end()

    def _call_held(self, world: Engine, args: tuple[Any, ...], options: CallOptions) -> Any:
        """Makes a call where the world is held already, as in the `then` of a submitted call."""
        return self._call(world, args, {}, options)

    def _launch_bound(
        self, world: Engine, then: Callable[[Engine, Any], Any] | None, call: Call, plan: Plan
    ) -> Future[Any]:
        values = (*call.values, *call.row_values)
        return self._launch(
            world, plan, values, call.count, call.changed, then, call.write_back, keep=call
        )

    def _launch(
        self,
        world: Engine,
        plan: Plan,
        values: tuple[Any, ...],
        count: Count,
        changed: Sequence[VariableState],
        then: Callable[[Engine, Any], Any] | None,
        write_back: Sequence[tuple[str, Array, Data]] = (),
        *,
        keep: object,
    ) -> Future[Any]:
        """Starts a call that is to be in flight; `keep` stays alive until its end."""

        def collect(_: object = keep) -> Any:
            result = plan.finish(count)
            self._succeeded(world, write_back)
            return result if then is None else then(world, result)

        def give_up(error: BaseException) -> None:
            note_failure(world, changed, error)
            if self._number not in world.holdings.proven:
                self._take_back(world)

        future: Future[Any] = Future(
            flight := Flight(world, plan.info, plan.learn, collect, give_up)
        )
        for variable in changed:
            self._mark(world, variable)
        try:
            plan.launch(values, flight)
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
        grid, block, stream, smem_bytes = (
            (*config, 0, 0)[:4] if len(config) == 2 else (*config, 0)[:4]
        )
        if stream is not None and not (isinstance(stream, int) and stream == 0):
            raise LaunchError(
                f"{self.name}: each rank launches on a stream of its own; pass 0 as "
                f"the stream, got {stream!r}"
            )
        key = (_hashable(grid), _hashable(block), smem_bytes)
        found = self._launched.get(key)
        if found is None:
            options = replace(
                self._options, launch=named_launch(self.name, key[1], key[0], smem_bytes)
            )
            found = self._launched[key] = Function(self.py_func, options, self.name, self._inner)
        return found

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
        return self if instance is None else Method(self, instance)

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
            options = CallOptions(
                batch, num_slices, output_subset, solo=True, local_batch=local_batch, shards=shards
            )
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
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
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
        for one, code in self._uses:
            if one.__code__ is not code:
                refuse(one, self.name)
        options.check(self.name)
        self._check_roles(args, kwargs)
        try:
            call, plan = self._planned_for(world, args, kwargs, options)
            return self._run(world, call, plan) if start is None else start(call, plan)
        except BaseException:
            if self._number not in world.holdings.proven:
                self._take_back(world)
            raise

    def _planned_for(
        self, world: Engine, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: CallOptions
    ) -> tuple[Call, Plan]:
        """Returns the bound call and its plan, which the ranks have."""
        call = self._binder.bind(Call(options, world.partition, world), args, kwargs)
        self._selector.select(call)
        self._selector.encode(call)
        self._builder.check_rows(call)
        key = (*call.key, options.key(), self._builder.capacity(call), self._builder.shapes(call))
        plan = self._plans.get(key)
        if plan is None:
            plan, _ = self._make_plan(world, call)
            self._plans.keep(key, plan)
            if options.is_plain and not kwargs and not self._builder.rules:
                self._plans.remember(args, call, plan)
        else:
            world.attach(call.segments, plan.info)
            world.tally.scattered_bytes += plan.scattered_by(call.count) - plan.scattered_bytes
        return call, plan

    def _run(self, world: Engine, call: Call, plan: Plan) -> Any:
        for variable in call.changed:
            self._mark(world, variable)
        shows = call.options.progress
        with (
            slices_shown(world, plan.program, self.name, shows) if shows else nullcontext(),
            writing(world, call.changed) if call.changed else nullcontext(),
        ):
            result = plan.execute((*call.values, *call.row_values), call.count)
        self._succeeded(world, call.write_back)
        return result

    def _succeeded(self, world: Engine, write_back: Sequence[tuple[str, Array, Data]]) -> None:
        """Notes that the function has run to its end, and writes rows back to NumPy arrays."""
        if self._number not in world.holdings.proven:
            world.holdings.proven.update(
                (self._number,) if self._inner is None else (self._number, self._inner.number)
            )
        for _, array, staged in write_back:
            copy_into(array, staged.data)

    # ---- plans

    def _check_shared_memory(self, launch: LaunchConfig) -> None:
        """Raises `LaunchError` for a kernel with dynamic shared memory that is launched without
        any.
        """
        if self._dynamic_shared is not None and not launch.smem_bytes:
            raise LaunchError(
                f"{self.name} uses dynamic shared memory ({self._dynamic_shared}), but smem_bytes "
                "is 0; pass smem_bytes= to the decorator, or the bytes of a block as the 4th "
                f"launch argument: {self.name}[grid, block, 0, bytes](...)"
            )

    def _sized_by(self, call: Call) -> str | None:
        """Returns the argument that gives a kernel's launches their size; None for generated
        kernels, which take rows only.
        """
        launch = self._options.launch
        return (
            None
            if launch is None or self._inner is not None
            else sized_by(call, launch, self._limits)
        )

    def _leave(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._world = None
        self._uses = ()
        self._plans.clear()
        self._others.clear()
        self._sent_anew = 0

    def _roots(self) -> list[Any]:
        """Returns what the ranks run in calls: the function, that inside a generated kernel, and
        ops.
        """
        inner = [] if self._inner is None else [self._inner.py_func]
        return [self.py_func, *inner, *(op.function for op in self._options.user_ops())]

    def _renumber(self, world: Engine, reads: ReadValues) -> None:
        """Goes on with other values: with what the ranks got when it had these last, if they
        have it still.
        """
        self._check_ops()
        self._uses = world.holdings.code.uses(self._roots(), self.name)
        names, before = ", ".join(reads.differing(self._reads)), self._reads.key
        self._others[before] = self._number, self._plans
        known = self._others.pop(reads.key, None)
        if known is not None:
            self._number, self._plans = known
            return
        self._number, self._plans = next_id(), KeptPlans(self._binder)
        while len(self._others) > EDITIONS_KEPT:
            _, (number, plans) = self._others.popitem(last=False)
            plans.clear()
            world.forget("function", number)
        self._sent_anew += 1
        if self._sent_anew == MANY_EDITIONS:
            warnings.warn(
                f"{self.name} reads {names}, and has been sent to the ranks and compiled for each "
                f"of {MANY_EDITIONS + 1} values so far; pass what changes often as an argument",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )

    def _check_ops(self) -> None:
        """Raises `ArgumentError` if a value has changed that a user-defined op reads, which is
        compiled once.
        """
        now = ReadValues(op.function for op in self._options.user_ops())
        if self._of_ops is None:
            self._of_ops = now
        elif now.key != self._of_ops.key:
            raise ArgumentError(
                f"an op of {self.name} reads {', '.join(now.differing(self._of_ops))}, which has "
                "changed since the op was compiled; write the value into the op's function, or "
                "make another function with another op"
            )

    def _take_back(self, world: Engine) -> None:
        """Makes the next call send the function again, which has never run to its end: its
        globals may have changed by then.
        """
        self._plans.forget_all()
        world.holdings.shipped.discard(self._number)
        if self._inner is not None and self._inner.number not in world.holdings.proven:
            world.holdings.shipped.discard(self._inner.number)

    def _prepare(
        self,
        world: Engine,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        used: int,
    ) -> "WorkedCall":
        """Works out a call of a sequence, of which the ranks get the program; called between the
        world's `begin` and `end`.

        The first `used` bytes of the ranks' small results belong to other calls of the sequence.
        """
        options.check(self.name)
        self._number_now(world)
        self._check_roles(args, kwargs)
        call = self._binder.bind(Call(options, world.partition, world), args, kwargs)
        # with memory of its own for row numbers
        selector = RowSelector(self.name, self._options.style)
        selector.select(call)
        selector.encode(call)
        self._builder.check_rows(call)
        small = None
        if self._options.style == "function":
            small = self._small_of_function(used, world.ranks.results.shape[1])
        plan, used = self._make_plan(world, call, used, small, lends=False)
        uses = world.holdings.code.uses(self._roots(), self.name)
        inner = [] if self._inner is None else [self._inner]
        numbers = {function: function._number for function in (self, *inner)}  # noqa: SLF001  # of one class
        return WorkedCall(
            plan,
            call,
            used if small is None else sum(small),
            self._may_write(call),
            selector,
            uses,
            numbers,
        )

    def _small_of_function(self, used: int, room: int) -> tuple[int, int]:
        """Returns where the results of a Python function lie in `room` bytes, and how many they may
        have.

        One that returns nothing takes its number only. Others share the room, of which each leaves
        the rest most.
        """
        first = -(-used // 64) * 64
        left = (room - first) // 64 * 64
        if left < FIRST_LEAF:
            of_others = (
                "" if self._options.has_ops else ", or fewer functions that return something"
            )
            raise ArgumentError(
                f"{self.name}: the {room:,} bytes for the results of all calls of a body are full; "
                f"make two sequences of it{of_others}"
            )
        fair = left // ROOM_SHARE // 64 * 64 if self._options.has_ops else 0
        return first, max(FIRST_LEAF, min(FUNCTION_BYTES, fair))

    def _make_plan(
        self,
        world: Engine,
        call: Call,
        used: int = 0,
        small: tuple[int, int] | None = None,
        *,
        lends: bool = True,
    ) -> tuple[Plan, int]:
        """Returns a new plan, and the bytes used of the ranks' small results; `small` is where
        those of a function are.

        With `lends`, a single rank's large results may be returned without a copy; other calls of a
        sequence may read them.
        """
        for path, values in call.per_rank.items():
            if values != world.world_size:
                raise ArgumentError(
                    f"{path}=per_rank(...) has {values} values for {world.world_size} "
                    f"ranks; pass one per rank"
                )
        self._check_writes(call)
        if self._is_new and call.run_partition.parts > 1:
            self._is_new = False
            warn_of_means(self.name, self._options, call)
        room = (
            world.ranks.values.nbytes // 8
            - ROW_VALUES
            - OWN_VALUES * world.world_size
            - len(self._options.outputs)
        )
        if len(call.values) > room:
            raise ArgumentError(
                f"{self.name} got {len(call.values)} numbers, but a call takes at most "
                f"{room}; pass them as an array"
            )
        info, options, launch = (
            CallInfo(self.name, call.texts(lasting=True)),
            call.options,
            self._options.launch,
        )
        built, wanted, source = Built(), [], self._sized_by(call)
        if launch is not None:
            check_launches(self.name, launch, call, source)
            self._check_shared_memory(launch)
            wanted = self._builder.wanted(options.subset)
            built = self._builder.build(call, world, wanted, used, lends=lends)
            if call.run_partition.parts > 1:
                warn_of_all_rows(self.name, launch, self._limits, call, source)
            self._builder.check_count(call.total, wanted)
        updates = (
            SharedUpdates(call, self._options.updates)
            if options.shards is not None and self._options.updates
            else None
        )
        parameters = (
            call.parameters | built.results | ({} if updates is None else updates.parameters)
        )
        program = Program(
            number=next_number(),
            function=self._number,
            parameters=tuple((name, parameters[name]) for name in self._parameters),
            rows=call.source,
            partition=call.run_partition,
            own=call.own_source,
            num_slices=options.num_slices,
            values=call.format
            + call.source.values
            + (call.own_source.values if call.own_source else "")
            + "q" * built.lent,
            solo=options.solo,
            ops=self._subset_ops(options),
            subset=options.subset if launch is None else None,
            lent=built.lent,
            only_read=frozenset() if launch is None else self._only_read(call),
            shards=options.shards,
            small=small,
            is_recorded=self._options.record,
            shows_slices=bool(options.progress),
            sized_by=source,
        )
        world.attach(
            [
                *call.segments,
                *built.segments.values(),
                *(() if updates is None else updates.segments),
            ],
            info,
        )
        self._ship(world, program, info)
        plan: Plan
        if launch is not None:
            plan = KernelPlan(world, program, info, call, wanted, built, self.name)
        else:
            plan = FunctionPlan(world, program, info, call, has_ops=self._options.has_ops)
        plan.updates = updates
        return plan, built.used

    def _check_roles(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises `ArgumentError` if a kernel writes to a parameter that its decorator does not
        declare as written.
        """
        if self._roles is not None:
            self._roles.check(self._binder.passed, args, kwargs)

    def _check_writes(self, call: Call) -> None:
        """Raises `ArgumentError` for a write to an input, or to the name of a variable, in the
        source: it would be lost.
        """
        if call.variables and self._inner is None:  # not a generated kernel
            check_passed(self.name, self.py_func, self._options, call.whole)
        if self._written is None:
            self._written = written_parameters(self.py_func)
        for name, line in self._written.items():
            param = call.parameters.get(name)
            is_input = isinstance(param, Broadcast) or (
                isinstance(param, Sharded | HeldRows) and not param.writable
            )
            is_old = isinstance(param, Held) and param.read_only
            if is_input or is_old:
                where = f"{self.py_func.__code__.co_filename}:{line}"
                other = (
                    same_variable(call, call.variables[name], call.branches.get(name), name)
                    if is_old
                    else None
                )
                if other is not None:
                    raise ArgumentError(
                        f"{self.name} ({where}) writes to {name}, and {other} is the same "
                        "variable; pass a copy of it as another variable"
                    )
                what, way_out = (
                    "an input",
                    f'Pass it in inout=("{name}",) to have its rows written back',
                )
                if is_old:
                    what = "the old value of a variable that is updated"
                    way_out = "Accumulate into the parameter that updates= names"
                elif isinstance(param, HeldRows):
                    what = "an input: rows of a sliceable variable"
                    way_out = (
                        f'Name it in inout=("{name}",) to write them, leave sliceable= out '
                        f"to write to the whole variable"
                    )
                elif isinstance(param, Broadcast):
                    way_out = (
                        "Pass a synk.variable, whose arrays stay on the "
                        "ranks, to keep what is written"
                    )
                else:
                    way_out += ", pass a synk.variable to keep them on the ranks"
                raise ArgumentError(
                    f"{self.name} ({where}) writes to {name}, which is {what}. "
                    f"{way_out}, or write to a copy."
                )

    def _only_read(self, call: Call) -> frozenset[str]:
        """Returns the frozen inputs that the kernel certainly does not write to: on a GPU, a
        call needs no copies of these.
        """
        arrays = {
            name: param.array
            for name, param in call.parameters.items()
            if isinstance(param, Sharded | Broadcast)
        }
        frozen = {
            name for name, array in arrays.items() if array.version and array.dtype.names is None
        }
        return self._certainly_read(call) & frozen if frozen else frozenset()

    def _may_write(self, call: Call) -> frozenset[str]:
        """Returns the parameters with variables that a kernel may write, itself or in a function
        that it calls.
        """
        held = {
            name for name, param in call.parameters.items() if isinstance(param, Held | HeldRows)
        }
        return (
            frozenset(held - self._certainly_read(call))
            if held and self._options.style == "kernel"
            else frozenset()
        )

    def _certainly_read(self, call: Call) -> frozenset[str]:
        """Returns the array parameters to which a kernel certainly does not write."""
        dimensions: dict[str, int] = {}
        for name, param in call.parameters.items():
            match param:
                case Sharded(array) | Broadcast(array):
                    dimensions[name] = max(len(array.shape), 1)
                case Held(_, leaf) | HeldRows(_, leaf):
                    dimensions[name] = max(len(call.variables[name].root_shape(leaf)), 1)
                case Dynamic():
                    dimensions[name] = 0
        return read_parameters(self.py_func, dimensions)

    def _ship(self, world: Engine, program: Program | None, info: CallInfo) -> None:
        """Installs a program on the ranks, and the function before its first program."""
        spec = None
        if self._number not in world.holdings.shipped:
            if self._inner is None:
                self._check_ops()
                self._reads = world.holdings.values.read(self._roots())
            if world.traits.compiled_by_simt and self._options.style == "kernel":
                # raises here, with name and line, instead of on every rank
                check_kernel(self.py_func)
            for op in self._options.user_ops():
                fold_kernel.check(op)
                if self._options.style == "function":  # of results whose dtype is not known yet
                    fold_kernel.check_any(op, f"outputs of {self.name}")
            sent = {}
            if self._inner is not None:
                self._inner._send(world)  # noqa: SLF001
                sent[self._inner.number] = self._inner.device_function
            spec = make_spec(world, self, self.py_func, self._options, sent)
        if program is not None:
            log.debug(
                "%s is planned as program %d, and compiled for its types at "
                "this call if they are new",
                info,
                program.number,
            )
        world.command(Install(spec, program), info=info)
        if spec is not None:
            self._note_sent(world, spec)
            log.debug("%s has been sent to the ranks, %d bytes", self.name, len(spec.payload))

    def _send(self, world: Engine) -> None:
        """Sends the function, unless the ranks have it."""
        if self._number not in world.holdings.shipped:
            self._ship(world, None, CallInfo(self.name))

    def _subset_ops(self, options: CallOptions) -> Any:
        ops = self._options.ops  # None without ops
        if options.subset is None or not is_nested(ops):
            return ops
        try:
            wanted = tuple(ops[key] for key in options.subset)
            return wanted[0] if len(wanted) == 1 else wanted
        except (KeyError, IndexError, TypeError):
            raise ReductionError(
                f"output_subset={list(options.subset)} names an output that outputs={ops!r} of "
                f"{self.name} does not have"
            ) from None

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
        inputs = {
            name: value
            for name, value in self._binder.match(values, named).items()
            if name in self._binder.passed
        }
        casts = self._flags("force_cast", force_cast, inputs)
        minibatches = self._flags("minibatch", minibatch, inputs)
        made = tuple(
            Data(value, name=name, force_cast=cast, oversize=oversize, minibatch=by_position)
            for (name, value), cast, by_position in zip(
                inputs.items(), casts, minibatches, strict=True
            )
        )
        return made[0] if len(made) == 1 else made

    def _flags(self, option: str, value: Any, inputs: Collection[str]) -> list[bool]:
        """Returns an option of `build_inputs` as one flag per input."""
        flags = value if isinstance(value, list | tuple) else [value] * len(inputs)
        if len(flags) != len(inputs) or not all(
            isinstance(flag, bool | np.bool_) for flag in flags
        ):
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
        options = CallOptions(
            batch, num_slices, output_subset, local_batch=local_batch, shards=shards
        )
        return self._report(self._planned("plan", options, world_size, args, kwargs))

    def _report(self, call: Call) -> PlanReport:
        launch, source = self._options.launch, self._sized_by(call)
        if launch is not None:
            check_launches(self.name, launch, call, source)
        return make_report(self.name, self._options, self.update_modes, call, source)

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
            # deferred: no other call needs it
            from synknumba._call.compared_ranks import check_ranks

            if world_size is not None:
                raise ArgumentError(
                    f"check of {self.name}: pass world_size= for one number of "
                    f"ranks, or ranks= for several"
                )
            rows = {"batch": batch, "local_batch": local_batch}
            kwargs |= {name: value for name, value in rows.items() if value is not None}
            check_ranks(self, ranks, args, kwargs)
            return
        launch = self._options.launch
        if launch is None or not self._is_checkable:
            raise ArgumentError(
                f"check() is for kernels, and {self.name} is none; call it, test it as a plain "
                "function, or compare its results on several numbers of ranks, as by ranks=(1, 2, "
                "3)"
            )
        call = self._planned(
            "check", CallOptions(batch, local_batch=local_batch), world_size, args, kwargs
        )
        self._check_shared_memory(launch)
        source = self._sized_by(call)
        check_launches(self.name, launch, call, source)
        signatures = self._options.compile_options.get("signatures")
        outputs, builder = self._options.outputs, self._builder
        check_call(
            self.name,
            self.py_func,
            self._parameters,
            outputs,
            builder,
            launch,
            self._limits,
            call,
            source,
            signatures,
        )

    @property
    def _is_checkable(self) -> bool:
        """Whether this is a kernel of the user's, which `check` runs."""
        return self._options.launch is not None and self._inner is None

    def _planned(
        self,
        what: str,
        options: CallOptions,
        world_size: int | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Call:
        """Returns a call with its arguments bound and its rows selected, of which nothing is
        sent.
        """
        return self._bound(planned_partition(what, world_size), options, args, kwargs)

    def _bound(
        self,
        partition: Partition,
        options: CallOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Call:
        """Returns a call with its arguments bound and its rows selected, of which nothing is
        sent.
        """
        options.check(self.name)
        self._check_roles(args, kwargs)
        call = self._binder.bind(Call(options, partition), args, kwargs)
        self._selector.select(call)
        self._check_writes(call)
        return call

    def _dry_call(
        self,
        partition: Partition,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        used: int,
    ) -> DryCall:
        """Works out a call of a sequence, of which nothing is sent.

        The first `used` bytes of the ranks' small results belong to other calls of the sequence.
        """
        call, built = self._bound(partition, options, args, kwargs), Built(used=used)
        self._builder.check_rows(call)
        report, is_kernel = self._report(call), self._options.style == "kernel"
        if is_kernel:
            wanted = self._builder.wanted(options.subset)
            built = self._builder.planned(call, wanted, used)
            self._builder.check_count(call.total, wanted)
        else:
            built.used = sum(self._small_of_function(used, RESULT_BYTES))
        ops, returns = (
            (None, False) if is_kernel else (self._subset_ops(options), self._options.has_ops)
        )
        results = tuple(built.results.values())
        written, is_recorded = self._may_write(call), self._options.record
        return DryCall(
            call, report, results, ops, returns, built.used, written, is_kernel, is_recorded
        )

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
        return f"<synknumba {self._options.style} {self.name}({', '.join(self._parameters)})>"


def planned_partition(what: str, world_size: int | None) -> Partition:
    """Returns the partition of rows of a planned call, by default that of the open world; `what`
    is the method, for errors.
    """
    if world_size is not None:
        if isinstance(world_size, int) and world_size > MOST_PARTS:
            raise PartitionError(
                f"{what}() got world_size={shown(world_size)}; plan for at "
                f"most {MOST_PARTS:,} ranks"
            )
        return Partition.even(world_size)
    world = open_world()
    if world is None:
        raise WorldError(f"{what}() needs world_size=… when no world is open")
    return world.partition


def _hashable(size: Any) -> Any:
    """Returns a grid or block size as a tuple if it is a list."""
    return tuple(size) if isinstance(size, list) else size
