"""Options of decorators and calls, checked as far as possible without the arguments."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synknumba._call.arguments import Output
from synknumba._errors import ArgumentError, BatchError, PartitionError, ReductionError
from synknumba._ops import reduction
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.rows import Partition
from synknumba._ops.tree import flatten
from synknumba._progress import Progress
from synknumba._types import Array, Batch, Op, UserOp
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of
from synknumba._wire.program import FunctionStyle

MOST_PARTS = 10**6  # slices or shards of a call


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """The options of a decorator."""

    style: FunctionStyle
    # declared outputs of a kernel, by parameter
    outputs: Mapping[str, Output] = field(default_factory=dict)
    ops: Any = None  # tree of ops for the result of a Python function
    has_ops: bool = True  # whether `ops` were given
    broadcast: frozenset[str] = frozenset()  # parameters that are passed whole to every rank
    # sharded parameters, or sliceable ones, whose rows are written
    inout: frozenset[str] = frozenset()
    givens: Mapping[str, Any] = field(default_factory=dict)  # bound arguments, by parameter
    sliceable: frozenset[str] = frozenset()  # parameters that take variables as rows
    # accumulators, by parameter
    updates: Mapping[str, tuple[VariableState, Op]] = field(default_factory=dict)
    launch: LaunchConfig | None = None  # of a kernel
    compile_options: Mapping[str, Any] = field(default_factory=dict)  # of a kernel
    record: bool = False  # whether GPUs repeat a Python function's work without Python
    # whose arrays a generated kernel sees with all axes but that of the rows merged
    flat: frozenset[str] = frozenset()
    # of a generated kernel: makes the result of the parts of all ranks, in memory that they write
    # again; in place of the op None
    merge: Callable[[Array], Any] | None = None
    unfit: str = (
        ""  # of a generated kernel: why the body of a sequence cannot call it, and the way out
    )

    def all_ops(self) -> list[Op]:
        """Returns the ops of outputs, or of the result of a Python function."""
        if self.style == "kernel":
            return [output.op for output in self.outputs.values()]
        return flatten(self.ops)[0]

    def user_ops(self) -> list[UserOp]:
        """Returns the ops that are user-defined functions."""
        return [op for op in self.all_ops() if isinstance(op, UserOp)]

    def op_functions(self) -> list[Callable[..., Any]]:
        """Returns these functions."""
        return [op.function for op in self.user_ops()]


NO_OPTIONS = FunctionOptions("function")  # of what has no decorator, as a device function


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of one call, as for `Function.__call__`; `solo`: only the root runs."""

    batch: Batch
    num_slices: int = 1
    output_subset: Any = None
    local_batch: Any = None
    shards: int | None = None
    solo: bool = False
    progress: Progress = False

    @property
    def is_whole(self) -> bool:
        """Whether each rank runs the function once, and all of its result is returned."""
        return self.num_slices == 1 and self.output_subset is None and self.shards is None

    @property
    def subset(self) -> tuple[str | int, ...] | None:
        """Outputs to return; None for all."""
        if self.output_subset is None:
            return None
        if isinstance(self.output_subset, np.integer):
            return (int(self.output_subset),)
        if isinstance(self.output_subset, str | int):
            return (self.output_subset,)
        return tuple(self.output_subset)

    @property
    def is_plain(self) -> bool:
        """Whether every option except `shards` has its default, and `batch` may be an array."""
        is_whole = self.local_batch is None and self.output_subset is None
        if not (self.batch is None or type(self.batch) is np.ndarray):
            return False
        return is_whole and self.num_slices == 1 and not self.solo and not self.progress

    def run_partition(self, partition: Partition) -> Partition:
        """Returns the partition of rows into the ranks that run."""
        if self.solo:
            return Partition.even(1)
        return partition

    def key(self) -> tuple[Any, ...]:
        """Returns the options' part of the plan key."""
        return (self.num_slices, self.subset, self.solo, self.shards, bool(self.progress))

    def check(self, function: str) -> None:
        """Raises `PartitionError` or `ReductionError` for options that are invalid in every
        call.
        """
        for option, value in (("batch", self.batch), ("local_batch", self.local_batch)):
            if isinstance(value, Variable):
                raise BatchError(
                    f"{option} of {function} is {state_of(value).label}, but rows are selected in "
                    "the script, and a variable's values are on the ranks; read them first, as in "
                    f"{option}=v.get_value()"
                )
        _check_parts("num_slices", "an integer of at least 1", self.num_slices)
        if self.shards is not None:
            required = "an integer of at least 1, or None for one per rank"
            _check_parts("shards", required, self.shards)
        if not isinstance(self.output_subset, str | int | np.integer | Iterable | None):
            raise ReductionError(
                f"output_subset must list outputs of {function}, got {self.output_subset!r}"
            )
        subset = self.subset or ()
        for position, output in enumerate(subset):
            if isinstance(output, bool):
                raise ReductionError(
                    f"output_subset must list outputs of {function} by name "
                    f"or position, got {output!r}"
                )
            if output in subset[:position]:
                raise ReductionError(f"output_subset names {output!r} twice")


def _check_parts(option: str, required: str, count: Any) -> None:
    """Raises `PartitionError` for a number of parts that no call can have."""
    is_integer = hasattr(count, "__index__") and not isinstance(count, bool)
    if not is_integer or count < 1:
        raise PartitionError(f"{option} must be {required}, got {count!r}")
    if count > MOST_PARTS:
        raise PartitionError(
            f"{option} must be at most {MOST_PARTS:,}; parts beyond the number of rows have none"
        )


# roles that one parameter may have
_COMPATIBLE = (
    {"givens", "broadcast"},
    {"givens", "rows"},
    {"inout", "rows"},
)


def check_updates(name: str, updates: Mapping[str, Any]) -> dict[str, tuple[VariableState, Op]]:
    """Returns the updates given to a decorator, by parameter, after checking variables, ops and
    dtypes.
    """
    parameters: dict[int, str] = {}  # by id of the variable
    checked: dict[str, tuple[VariableState, Op]] = {}
    for parameter, value in updates.items():
        match value:
            case (Variable() as passed, op):
                variable = state_of(passed)
            case _:
                raise ArgumentError(
                    f"updates[{parameter!r}] of {name} needs (variable, op), got {value!r}"
                )
        if op not in ("sum", "prod", "min", "max"):
            raise ReductionError(
                f'updates[{parameter!r}] of {name}: op must be one of "sum", "prod", '
                f'"min", "max"; got {op!r}'
            )
        for dtype in variable.dtypes():
            reduction.check_dtype(op, dtype, f"updates[{parameter!r}] of {name}")
        if id(variable) in parameters:
            raise ArgumentError(
                f"updates= of {name} names {variable.label} for both {parameters[id(variable)]!r} "
                f"and {parameter!r}; use each variable once"
            )
        parameters[id(variable)] = parameter
        checked[parameter] = variable, op
    return checked


def check_names(name: str, parameters: Collection[str], options: FunctionOptions) -> None:
    """Raises `ArgumentError` if a name given to a decorator is not a parameter, or has roles
    that exclude each other.
    """
    roles = {
        "outputs": options.outputs,
        "broadcast": options.broadcast,
        "inout": options.inout,
        "givens": options.givens,
        "updates": options.updates,
        "rows": options.sliceable,
    }
    roles_of: dict[str, list[str]] = {}
    for role, names in roles.items():
        for parameter in names:
            if role == "outputs" and parameter.startswith("_"):
                raise ArgumentError(
                    f"outputs= names {parameter!r} of {name}, but outputs become fields of a named "
                    "tuple, which cannot start with an underscore; rename it"
                )
            if parameter not in parameters:
                raise ArgumentError(
                    f"{role}= names {parameter!r}, which is not a parameter of {name}; it has "
                    f"{', '.join(parameters) or 'none'}"
                )
            for earlier in roles_of.setdefault(parameter, []):
                if {role, earlier} not in _COMPATIBLE:
                    raise ArgumentError(
                        f"{parameter!r} of {name} is in both {earlier}= and {role}=; "
                        "use only one of them"
                    )
            roles_of[parameter].append(role)
