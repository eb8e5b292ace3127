"""From the arguments of a call to a `WorkedCall`: one way for calls, sequences, plans and checks.

    arguments ──bind──> Call, with its rows ──work_out──> WorkedCall ──> a plan on the ranks, a report, a check
                                                │
                                                └─ checks, outputs, updates; nothing is sent

Where there is no world, nothing is copied, placed or allocated, and the checks are the same.
"""  # noqa: E501

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn, final

from synknumba._call.bind import Binder, signature_names
from synknumba._call.call import Call, named_leaves
from synknumba._call.launches import check_launches, sized_by
from synknumba._call.options import MOST_PARTS, CallOptions, FunctionOptions, check_names
from synknumba._call.outputs import Built, OutputBuilder
from synknumba._call.rebinding import check_passed, check_rebinding
from synknumba._call.select_rows import RowSelector
from synknumba._call.shared_updates import SharedUpdates
from synknumba._call.undeclared_outputs import UndeclaredOutputs, find_undeclared_outputs
from synknumba._call.unwritten_outputs import check_stores
from synknumba._errors import (
    ArgumentError,
    LaunchError,
    PartitionError,
    ReductionError,
    WorldError,
)
from synknumba._host.segment import Segment
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.rows import Partition
from synknumba._ops.tree import is_nested
from synknumba._source.access import read_parameters, written_parameters
from synknumba._source.grid_limits import Limits, grid_limits
from synknumba._types import Args, Kwargs, shown
from synknumba._wire.control import RESULT_BYTES, VALUE_BYTES, align
from synknumba._wire.program import (
    Broadcast,
    Dynamic,
    Held,
    HeldRows,
    KernelTraits,
    Param,
    PerRank,
    Program,
    ReturnSpec,
    Sharded,
    next_number,
)
from synknumba._wire.results import FIRST_LEAF
from synknumba._world.engine import Engine
from synknumba._world.open_world import open_world
from synknumba.simt.internals import dynamic_shared, keep_text

ROW_VALUES = 3  # at most so many of a call's values select rows
OWN_VALUES = 3  # at most so many for each rank select rows of sliceable variables

# of small results of a Python function in a sequence; larger ones are in a segment of their own
FUNCTION_BYTES = 4096
ROOM_SHARE = 8  # part of the room for small results that one function gets: some 50 fit in


@final
@dataclass(frozen=True, slots=True)
class WorkedCall:
    """A call that is bound, checked, and has its outputs; the ranks know nothing of it.

    Attributes:
        planner: of the function called.
        call: its arguments and rows.
        selector: owner of the memory for row numbers.
        source: argument that gives a kernel's launches their size; None if there is none.
        returned: names of a kernel's outputs that the caller gets, in order.
        built: a kernel's outputs; with memory if the call has a world.
        ops: tree of ops of a Python function's result.
        small: where the results of a Python function in a sequence lie among the ranks' small
            results, and how many bytes they may have; None for all of these.
        updates: variables that the coordinator assigns after a call with shards.
    """

    planner: "Planner"
    call: Call
    selector: RowSelector
    source: str | None
    returned: list[str]
    built: Built
    ops: Any
    small: tuple[int, int] | None
    updates: SharedUpdates | None

    @property
    def options(self) -> FunctionOptions:
        """Options of the decorator."""
        return self.planner.options

    @property
    def is_kernel(self) -> bool:
        """Whether the function is a kernel, rather than a Python function."""
        return self.options.style == "kernel"

    def segments(self) -> list[Segment]:
        """Returns the memory that the ranks need."""
        segments = [*self.call.segments, *self.built.segments.values()]
        if self.updates is not None:
            segments += self.updates.segments
        return segments

    def written(self) -> frozenset[str]:
        """Returns the parameters with variables that a kernel may write; of a Python function,
        none.
        """
        if not self.is_kernel:
            return frozenset()
        return _may_write(self.planner.function, self.call)

    def program(self, function: int) -> Program:
        """Returns the program for the ranks, given the number of the function there."""
        call, built, options = self.call, self.built, self.call.options
        returns, kernel = ReturnSpec(self.ops, options.subset, self.small), KernelTraits()
        if self.is_kernel:
            returns = ReturnSpec()
            kernel = KernelTraits(_only_read(self.planner.function, call), self.source)
        parameters = call.parameters | built.results
        if self.updates is not None:
            parameters |= self.updates.parameters
        values = "".join(call.arguments.scalars.letters) + call.rows.letters
        return Program(
            number=next_number(),
            function=function,
            parameters=tuple((name, parameters[name]) for name in self.planner.parameters),
            rows=call.rows.source,
            partition=call.run_partition,
            own=call.rows.local_source,
            num_slices=options.num_slices,
            values=values + "q" * built.lent,
            solo=options.solo,
            returns=returns,
            kernel=kernel,
            lent=built.lent,
            shards=options.shards,
            is_recorded=self.options.record,
            shows_slices=bool(options.progress),
        )


@final
class FunctionText:
    """What the text of a function shows of its calls.

    Attributes:
        limits: those of a kernel's positions.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: FunctionOptions,
        *,
        is_generated: bool,
    ) -> None:
        self._name, self._function, self._options = name, function, options
        self._is_generated = is_generated
        self.limits = Limits()
        self._undeclared: UndeclaredOutputs | None = None
        self._dynamic_shared: str | None = None  # where a kernel uses it
        # Lines of the parameters that the source writes. The analysis of a generated kernel is
        # put off to its first call.
        self._written: Mapping[str, int] | None = None
        if not is_generated:
            self._analyse()

    def _analyse(self) -> None:
        """Reads the source of the user's function, and refuses what is wrong in every call."""
        name, function, options = self._name, self._function, self._options
        keep_text(function)
        for op_function in options.op_functions():
            keep_text(op_function)
        check_rebinding(name, function, options)
        self._written = written_parameters(function)
        if options.launch is not None:
            self.limits = grid_limits(function)
        if options.style == "kernel":
            check_stores(name, function, options.outputs)
            self._undeclared = find_undeclared_outputs(name, function, options)
            if isinstance(function, FunctionType):
                self._dynamic_shared = dynamic_shared(function)

    def sized_by(self, call: Call) -> str | None:
        """Returns the argument that gives a kernel's launches their size; None for generated
        kernels, which take rows only.
        """
        launch = self._options.launch
        if launch is None or self._is_generated:
            return None
        return sized_by(call, launch, self.limits)

    def check_outputs(self, passed: Sequence[str], args: Sequence[Any], kwargs: Kwargs) -> None:
        """Raises `ArgumentError` if an output is not declared; arguments are those of
        `UndeclaredOutputs.check`.
        """
        if self._undeclared is not None:
            self._undeclared.check(passed, args, kwargs)

    def check_writes(self, call: Call) -> None:
        """Raises `ArgumentError` for a write whose values would be lost: to an input, to the name
        of a variable, or to the old value of an updated one.
        """
        if call.variables and not self._is_generated:
            check_passed(self._name, self._function, self._options, call.arguments.passed)
        if self._written is None:
            self._written = written_parameters(self._function)
        for path, line in self._written.items():
            match call.parameters.get(path):
                case Held(read_only=True) as param:
                    self._refuse_alias(path, line, call)
                    self._refuse_write(path, line, param)
                case (Broadcast() | Sharded(writable=False) | HeldRows(writable=False)) as param:
                    self._refuse_write(path, line, param)

    def _refuse_alias(self, path: str, line: int, call: Call) -> None:
        arguments = call.arguments
        alias = arguments.alias(arguments.variables[path], arguments.arrays_of(path), path)
        if alias is not None:
            raise ArgumentError(
                f"{self._place(line)} writes to {path}, and {alias} is the same "
                "variable; pass a copy of it as another variable"
            )

    def _refuse_write(self, path: str, line: int, param: Param) -> NoReturn:
        target, way_out = _lost_write(path, param)
        raise ArgumentError(
            f"{self._place(line)} writes to {path}, which is {target}. "
            f"{way_out}, or write to a copy."
        )

    def _place(self, line: int) -> str:
        return f"{self._name} ({self._function.__code__.co_filename}:{line})"

    def check_shared_memory(self, launch: LaunchConfig) -> None:
        """Raises `LaunchError` for a kernel with dynamic shared memory that is launched without
        any.
        """
        if self._dynamic_shared is not None and not launch.smem_bytes:
            raise LaunchError(
                f"{self._name} uses dynamic shared memory ({self._dynamic_shared}), but smem_bytes "
                "is 0; pass smem_bytes= to the decorator, or the bytes of a block as the 4th "
                f"launch argument: {self._name}[grid, block, 0, bytes](...)"
            )


@final
class Planner:
    """Works out the calls of one function.

    Args:
        name: name of the function, for messages.
        function: the plain function.
        options: those of the decorator.
        is_generated: whether the function is a generated kernel, which takes rows only and has no
            line of the user's.

    Attributes:
        parameters: names of the function's parameters, with their defaults.
        text: what its source shows.
        binder: of the arguments.
        builder: of a kernel's outputs.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: FunctionOptions,
        *,
        is_generated: bool,
    ) -> None:
        self.name = name
        self.function = function
        self.options = options
        what = "the function" if options.style == "function" else "the kernel"
        self.parameters = signature_names(function, what)
        check_names(name, self.parameters, options)
        self.text = FunctionText(name, function, options, is_generated=is_generated)
        self.binder = Binder(name, self.parameters, options)
        self._selector = RowSelector(name, options.style)
        self.builder = OutputBuilder(name, options.outputs)

    # ---- arguments and rows

    def bind(
        self,
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
        partition: Partition,
        world: Engine | None = None,
        selector: RowSelector | None = None,
    ) -> Call:
        """Returns a call with its arguments bound and its rows selected; without a world, nothing
        is copied or placed.

        With a world, called between its `begin` and `end`. A list of row numbers is in the memory
        of `selector`, by default that of the function.
        """
        options.check(self.name)
        self.text.check_outputs(self.binder.passed, args, kwargs)
        arguments = self.binder.bind(args, kwargs, options, partition, world)
        selector = selector or self._selector
        rows = selector.select(arguments, options, partition, places=world is not None)
        call = Call(options, partition, world, arguments, rows)
        self.builder.check_rows(call)
        return call

    def plan_key(self, call: Call) -> tuple[Any, ...]:
        """Returns what calls have in common that share a plan."""
        options, builder = call.options, self.builder
        key = (*call.arguments.key, *call.rows.key)
        return (*key, options.key(), builder.capacity(call), builder.shapes(call))

    # ---- checks and outputs

    def work_out(self, call: Call) -> WorkedCall:
        """Works out a call that is bound."""
        return self._worked(call, self._selector, Built())

    def work_out_in_sequence(
        self,
        args: Args,
        kwargs: Kwargs,
        options: CallOptions,
        partition: Partition,
        world: Engine | None,
        used: int,
    ) -> WorkedCall:
        """Works out a call of a sequence: its row numbers have memory of their own, and the first
        `used` bytes of the ranks' small results belong to other calls.
        """
        selector = RowSelector(self.name, self.options.style)
        call = self.bind(args, kwargs, options, partition, world, selector)
        # other calls of the sequence may read results, which are then not lent to the script
        return self._worked(call, selector, Built(used=used, lends=False))

    def _worked(self, call: Call, selector: RowSelector, built: Built) -> WorkedCall:
        """Runs all checks, and makes the outputs; `built` has none of them yet."""
        source, launch, name = self.text.sized_by(call), self.options.launch, self.name
        _check_per_rank(call)
        self.text.check_writes(call)
        self._check_values(call)
        if launch is not None:
            check_launches(name, launch, call, source)
            self.text.check_shared_memory(launch)
        returned, small = list[str](), None
        if self.options.style == "kernel":
            returned = self.builder.returned(call.options.subset)
            self.builder.build(built, call, returned)
            self.builder.check_count(call.total, returned)
        elif not built.lends:
            small = self._room(built.used)
            built.used = sum(small)
        updates = None
        if call.world is not None and call.options.shards is not None and self.options.updates:
            updates = SharedUpdates(call, self.options.updates)
        ops = self._subset_ops(call.options)
        return WorkedCall(self, call, selector, source, returned, built, ops, small, updates)

    def _check_values(self, call: Call) -> None:
        """Raises `ArgumentError` for more numbers than the ranks have room for."""
        room = VALUE_BYTES // 8 - ROW_VALUES - len(self.options.outputs)
        if call.rows.local is not None:
            room = max(0, room - OWN_VALUES * call.partition.parts)
        count = len(call.arguments.scalars.values)
        if count > room:
            raise ArgumentError(
                f"{self.name} got {count} numbers, but a call takes at most "
                f"{room}; pass them as an array"
            )

    def _room(self, used: int) -> tuple[int, int]:
        """Returns where the results of a Python function lie among the ranks' small results, and
        how many bytes they may have.

        A function that returns nothing takes its number only. Others share the room, of which
        each leaves the rest most.
        """
        first = align(used)
        free = (RESULT_BYTES - first) // 64 * 64
        nbytes, fewer = FIRST_LEAF, ", or fewer functions that return something"
        if self.options.has_ops:
            fair = free // ROOM_SHARE // 64 * 64
            nbytes, fewer = max(FIRST_LEAF, min(FUNCTION_BYTES, fair)), ""
        if free < FIRST_LEAF:
            raise ArgumentError(
                f"{self.name}: the calls of one body share {RESULT_BYTES:,} bytes for results, and "
                f"this one does not fit; split the body into two sequences{fewer}"
            )
        return first, nbytes

    def _subset_ops(self, options: CallOptions) -> Any:
        """Returns the ops of the results that are returned; None without ops."""
        ops = self.options.ops
        if options.subset is None or not is_nested(ops):
            return ops
        try:
            selected = tuple(ops[key] for key in options.subset)
        except (KeyError, IndexError, TypeError):
            raise ReductionError(
                f"output_subset={list(options.subset)} names an output that outputs={ops!r} of "
                f"{self.name} does not have"
            ) from None
        return selected[0] if len(selected) == 1 else selected


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


def _check_per_rank(call: Call) -> None:
    ranks = call.partition.parts
    for name, param in call.parameters.items():
        for path, leaf in named_leaves(name, param):
            if isinstance(leaf, PerRank) and len(leaf.values) != ranks:
                raise ArgumentError(
                    f"{path}=per_rank(...) has {len(leaf.values)} values for {ranks} ranks; "
                    "pass one per rank"
                )


# ---- writes to the arguments, as the source shows them


def _lost_write(path: str, param: Param) -> tuple[str, str]:
    """Returns what a parameter is whose writes are lost, and what to write instead."""
    match param:
        case Held():
            return (
                "the old value of a variable that is updated",
                "Accumulate into the parameter that updates= names",
            )
        case HeldRows():
            return (
                "an input: rows of a sliceable variable",
                f'Name it in inout=("{path}",) to write them, leave rows= out '
                "to write to the whole variable",
            )
        case Broadcast():
            return (
                "an input",
                "Pass a synk.variable, whose arrays stay on the ranks, to keep what is written",
            )
    return (
        "an input",
        f'Pass it in inout=("{path}",) to have its rows written back, '
        "pass a synk.variable to keep them on the ranks",
    )


def _only_read(function: Callable[..., Any], call: Call) -> frozenset[str]:
    """Returns the frozen inputs that a kernel certainly does not write to: on a GPU, a call
    needs no copies of these.
    """
    frozen = set()
    for name, param in call.parameters.items():
        match param:
            case Sharded(array) | Broadcast(array) if array.version and array.dtype.names is None:
                frozen.add(name)
    if not frozen:
        return frozenset()
    return _certainly_read(function, call) & frozen


def _may_write(function: Callable[..., Any], call: Call) -> frozenset[str]:
    """Returns the parameters with variables that a kernel may write, itself or in a function
    that it calls.
    """
    held = {name for name, param in call.parameters.items() if isinstance(param, Held | HeldRows)}
    if not held:
        return frozenset()
    return frozenset(held - _certainly_read(function, call))


def _certainly_read(function: Callable[..., Any], call: Call) -> frozenset[str]:
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
    return read_parameters(function, dimensions)
