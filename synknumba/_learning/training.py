"""`make_train_function`: the gradient of a loss and an optimiser become a training step on all
ranks, in one round.

    rows ──gradient──> sums over a rank's rows: gradient, loss, count ──all_reduce──> sums over all ──updater──> step

The count is the number of rows, or the sum of their weights. The three sums are one vector, so that
one all_reduce serves them all, and divided by the count they are means, exact for any division of
rows. Every rank then makes the same step, and replicas stay equal.
"""  # noqa: E501

import inspect
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from keyword import iskeyword
from typing import Any, cast, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba import simt
from synknumba._api import function, parallel
from synknumba._call.arguments import IndexRange
from synknumba._call.distribute import Distributed
from synknumba._call.function import Function
from synknumba._call.future import Future
from synknumba._device.compilers import KERNEL_DECORATORS
from synknumba._errors import (
    ArgumentError,
    BatchError,
    DataError,
    NonFiniteError,
    RecordError,
    SynkError,
    VariableLost,
    depth_of_script,
    shortened,
)
from synknumba._host import stopping
from synknumba._host.data import Data
from synknumba._learning.batches import Batches
from synknumba._learning.gradient_check import Inputs, check_gradient, may_be_row_numbers
from synknumba._learning.transform import Optimizer, check_descends, check_optimizer
from synknumba._learning.updater import (
    BAD_NUMBERS,
    HALTED,
    LEFT_OUT,
    MADE,
    NO_WEIGHT,
    SKIPPED,
    STEPS,
    OnNonfinite,
    Updater,
    check_vector,
)
from synknumba._ops.launch import LaunchConfig
from synknumba._ops.rows import Partition, Range, select
from synknumba._ops.tree import count_leaves, describe, parts_like, paths, unflatten
from synknumba._ops.tree import flatten as take_apart
from synknumba._progress import Bar, Progress, wanted
from synknumba._rowwise.generate import define
from synknumba._sequence.sequence import Sequence as CallSequence
from synknumba._sequence.sequence import sequence
from synknumba._source.access import element_uses
from synknumba._tracing import STEP
from synknumba._types import Array, Block, Grid, Span, known_options, shown
from synknumba._variables.collectives import all_reduce, get_lengths
from synknumba._variables.create import flatten
from synknumba._variables.variable import Variable, state_of, vector_of
from synknumba._world.call_in_flight import Flight
from synknumba._world.engine import current_world
from synknumba._world.failure import CallInfo

# Of an epoch that a signal may stop. Other numbers of steps are planned anew, so parts grow fast.
SHORT_PART_SECONDS = 0.5
PART_GROWTH = 8
ORDERS_KEPT = 8  # shapes of row numbers: batches, the last of an epoch, epochs


@final
class TrainFunction:
    """A training step. Made by `make_train_function`; call it as
    `step(*batch, batch=None, num_slices=1)`.

    Attributes:
        not_recorded: why the gradient is not recorded on GPUs; None if it is, or if nothing was
            tried.
    """

    def __init__(
        self,
        gradient: "_Gradient",
        params: Variable,
        optimizer: Optimizer,
        record: bool | None,
        on_nonfinite: OnNonfinite,
    ) -> None:
        self._params = params
        self.not_recorded: str | None = None
        self._gradient, self._record, self._on_nonfinite = gradient, record, on_nonfinite
        zeros = unflatten(
            state_of(params).structure(),
            [np.zeros_like(leaf) for leaf in take_apart(params.get_value())[0]],
        )
        dtype = state_of(params).dtypes()[0]
        sums = {"gradient": zeros, "loss": np.zeros((), dtype), "count": np.zeros((), dtype)}
        self._sums = flatten(sums, name=f"sums of {gradient.name}")
        self._updater = Updater(
            optimizer, params, self._sums, on_nonfinite=on_nonfinite, has_sums=True
        )
        self._sequences: dict[tuple[bool, bool, bool, int], CallSequence[..., Any]] = {}
        self._orders: dict[tuple[int, ...], Data] = {}
        self._part_steps = 1  # in a round of an epoch that a signal may stop
        # row numbers that ranks may still be reading, of a submitted step
        self._read: tuple[Data, ...] = ()
        self._unasked: tuple[weakref.ref[Future[float]], Flight] | None = (
            None  # of the last submitted step
        )
        # whether a step may find out that the gradient cannot be recorded
        self._tries = record is None

    def __setattr__(self, name: str, value: object) -> None:
        """Raises `AttributeError` for what is not the step's own, as a learning rate: nothing
        would read it.
        """
        if not name.startswith("_") and name not in {"params", "not_recorded"}:
            raise AttributeError(
                f"a training step has no attribute {name} to set: it keeps what it was made of. "
                "For another learning rate, give the optimiser a schedule, as sgd(lambda count: "
                "0.1 / (1 + count)); or make another step, whose state synk.load(file, "
                "like=other.state) takes from synk.save(file, step.state)"
            )
        object.__setattr__(self, name, value)

    @property
    def params(self) -> Variable:
        """The variable with the parameters, one vector on every rank."""
        return self._params

    @params.setter
    def params(self, value: object) -> None:
        """Raises `AttributeError`: the variable stays, and gets other values."""
        raise AttributeError(
            "params of a training step cannot be replaced; write step.params.set_value(…)"
        )

    @shortened
    def __call__(self, *batch: Any, num_slices: int = 1, **named: Any) -> float:
        """Makes a step.

        Args:
            batch: the arguments of the gradient before the parameters, as in any call: arrays,
                `Data`, scattered variables.
            num_slices: number of parts in which each rank goes through its rows.
            named: the same by name; `batch=` selects rows, as in any call.

        Returns:
            The mean loss over the rows, before the step.

        Raises:
            NonFiniteError: the gradient has a NaN or an infinity, or weights add up to 0, and
                `on_nonfinite` is "raise"; nothing has changed.
            DataError: the gradient has other shapes than the parameters.
            BatchError: there are no rows, or `batch` selects none.
            SynkError: as for a call.
        """
        given, order = self._minibatch(batch, named)
        return self._loss(self._run(given, order, num_slices, {}))

    @shortened
    def submit(self, *batch: Any, num_slices: int = 1, **named: Any) -> Future[float]:
        """Starts a step, and returns while the ranks work: the script can make the next minibatch.

        One step is in flight at a time, and the next one waits for it. Arguments are those of a
        step. A step on GPUs that may find out that the gradient cannot be recorded has ended when
        this returns.

        Returns:
            The future of the mean loss.
        """
        given, order = self._minibatch(batch, named)
        if self._tries and current_world().device == "cuda":
            found = self._run(given, order, num_slices, {})
            name = CallInfo(self._gradient.name)
            flight = Flight(current_world(), name, lambda _: None, lambda: found, lambda _: None)
            flight.complete()
            return Future(flight, self._loss)
        arguments, new, before = (
            self._arguments(given, order),
            () if order is None else (order,),
            self._read,
        )
        self._read = (*before, *new)  # Ctrl-C in `submit` leaves open which step is in flight
        try:
            future = self._with_scratch(
                lambda: self._sequence(given, order, num_slices).submit(*arguments)
            )
        except SynkError:
            self._read = before
            raise
        self._read = new
        self._warn_of_dropped()
        flight = future._flight  # noqa: SLF001  # of this package
        future._value = partial(self._asked, flight)  # noqa: SLF001
        self._unasked = weakref.ref(future), flight
        return future

    @shortened
    def epoch(
        self,
        *batch: Any,
        order: Any = None,
        every: int = 1,
        num_slices: int = 1,
        progress: Progress | None = None,
        **named: Any,
    ) -> Array:
        """Makes a step for each line of `order`, all in one round; after `synk.stop_on`, in rounds
        of some seconds at most.

        Where `synk.stopping()` is true, no more steps are made; `steps` says how many were.

        Args:
            batch: as for a step.
            order: int64 array, shape (steps, size): the rows of each minibatch, as from
                `synk.batches(…).order(epoch)`; or a list or a `Data` of it.
            every: the losses of some steps are returned: of steps every, 2 · every, …
            num_slices: as for a step.
            progress: whether to draw a bar over the steps, as for a call of a sequence.
            named: as for a step.

        Returns:
            Mean losses, float64, of the steps made.

        Raises:
            NonFiniteError: as for a step; the steps before are made, and those after it left out.
            BatchError: `order` is not a 2-D array of row numbers.
        """
        _refuse_in_sequences()
        if "batch" in named:
            raise ArgumentError(
                "an epoch takes the rows of each step from order=, and no batch=; leave batch= out"
            )
        if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
            raise ArgumentError(f"every must be a positive int, got {every!r}")
        given = self._gradient.named(batch, named)
        length = self._gradient.rows_to_select(given, "order")
        lines = _lines(order)
        if every > len(lines):
            raise ArgumentError(
                f"every={every} returns no loss of {len(lines)} steps; pass "
                f"at most every={len(lines)}"
            )
        low, high = int(lines.min()), int(lines.max())
        if low < 0 or high >= length:
            raise BatchError(
                f"order has row {low if low < 0 else high}, but there are rows 0 to {length - 1}"
            )
        if not stopping.is_asked_for():
            return self._steps(given, lines, num_slices, every, range(len(lines)), progress)
        losses = [np.empty(0)]
        with Bar(wanted(progress, "epoch"), self._gradient.name, "it", len(lines)) as bar:
            first = 0
            while first < len(lines) and not stopping.stopping():
                after = self._end_of_part(first, len(lines), every)
                began = time.monotonic()
                losses.append(
                    self._steps(
                        given, lines, num_slices, every, range(first, after), progress=False
                    )
                )
                if time.monotonic() - began < SHORT_PART_SECONDS:
                    self._part_steps = max(self._part_steps, PART_GROWTH * (after - first))
                first = after
                bar.show(first)
        return np.concatenate(losses)

    def _end_of_part(self, first: int, total: int, every: int) -> int:
        """Returns where a part of an epoch ends that begins with a step: after a step whose loss
        is returned, or at the end.
        """
        after = first + max(self._part_steps // every, 1) * every
        return after if total - after >= every else total

    def _steps(
        self,
        given: list[Any],
        lines: Any,
        num_slices: int,
        every: int,
        part: range,
        progress: Progress | None,
    ) -> Array:
        """Makes some steps of an epoch in one round; returns losses."""
        total = len(lines)
        if len(part) < total:
            lines = lines[part.start : part.stop]
        if not isinstance(lines, Data) or lines.dtype != np.int64:
            lines = self._order(np.asarray(lines))
        loss, done = self._run(
            given, lines, num_slices, {"times": len(part), "every": every, "progress": progress}
        )
        if (
            self._on_nonfinite == "raise"
            and len(part) % every
            and np.all(done == MADE)
            and self._updater.counts()[HALTED]
        ):
            done = np.append(done, LEFT_OUT)
        if not np.all(done == MADE):
            at = int(np.argmax(done != MADE))
            first, last = part.start + at * every + 1, part.start + min((at + 1) * every, len(part))
            told = f" of step {first}{f' to {last}' if last > first else ''} of {total}"
            self._refuse(told, float(done[at]))
        return np.asarray(loss)

    def plan(self, *batch: Any, num_slices: int = 1, **named: Any) -> Any:
        """Returns the plan of a step: its calls, what they read and write, and what ranks wait
        for.
        """
        given, order = self._minibatch(batch, named)
        return self._sequence(given, order, num_slices).plan(*self._arguments(given, order))

    @shortened
    def check(self, *batch: Any, **named: Any) -> None:
        """Tries the gradient out with few rows, in this process: are its results sums over rows,
        and its slopes right?

        Sums of two halves of the rows must add up to those of all; and the loss must change as the
        slopes say, by central differences along random directions, one in each array of the
        parameters. Functions get NumPy arrays, and kernels run under `simt.check`, which finds
        races and indices out of bounds. Nothing is changed. Bad arguments are refused as by a step,
        and what the gradient raises goes on to the script.

        Args:
            batch: as for a step; on scattered variables, rows of rank 0 are taken.
            named: the same by name; `batch=` selects the rows, by default the first 8. A kernel's
                should be few.

        Raises:
            DataError: a result is no sum over rows, as a mean, or slopes are not those of the loss.
            KernelCheckError: as for `simt.check`.
            ArgumentError: there are fewer than two rows.
        """
        _refuse_in_sequences()
        rows = named.pop("batch", None)
        self._gradient.check(self._gradient.named(batch, named), rows, self.params.get_value())

    @property
    def state(self) -> dict[str, Any]:
        """The variables of the training, a tree for `synk.save` and `synk.load`."""
        return {"params": self.params, "optimizer": self._updater.state}

    @property
    def steps(self) -> int:
        """Number of steps made."""
        return self._updater.counts()[STEPS]

    @property
    def skipped(self) -> int:
        """Number of gradients left out because they were not finite."""
        return self._updater.counts()[SKIPPED]

    def average(self) -> Any:
        """Returns the moving average of the parameters, which `synk.optim.averaged` keeps."""
        for part in self._updater.state["parts"]:
            if "average" in part:
                return part["average"].get_value()
        raise ArgumentError(
            "the optimiser keeps no average; wrap it, as in "
            "synk.optim.averaged(synk.optim.adam(1e-3))"
        )

    def __repr__(self) -> str:
        """Shows the gradient and the parameters."""
        return f"<TrainFunction of {self._gradient.name}, {self.params!r}>"

    def _minibatch(
        self, batch: Sequence[Any], named: dict[str, Any]
    ) -> tuple[list[Any], Data | None]:
        """Returns the inputs of a step, and its rows if it selects some."""
        _refuse_in_sequences()
        rows = named.pop("batch", None)
        given = self._gradient.named(batch, named)
        if rows is None:
            return given, None
        selected = select(rows, self._gradient.rows_to_select(given, "batch"))
        return given, self._order(
            (selected.indices() if isinstance(selected, Range) else selected.indices)[None]
        )

    def _order(self, lines: Array) -> Data:
        """Returns row numbers as `Data`, of which those of a shape are kept: other ones would be
        planned anew.

        It is not the `Data` of a submitted step, which may be in flight: that would get other rows.
        """
        turn = 0
        while any(self._orders.get((*lines.shape, turn)) is one for one in self._read):
            turn += 1
        key = *lines.shape, turn
        kept = self._orders.pop(key, None)
        if kept is None:
            kept = Data(np.zeros(lines.shape, np.int64))
        self._orders[key] = kept
        while len(self._orders) > ORDERS_KEPT:
            del self._orders[next(iter(self._orders))]
        kept.set_value(lines.astype(np.int64))
        return kept

    def _asked(self, flight: Flight, found: tuple[Any, Any]) -> float:
        """Returns the loss of a submitted step, from what its sequence has returned."""
        if self._unasked is not None and self._unasked[1] is flight:
            self._unasked = None
        return self._loss(found)

    def _warn_of_dropped(self) -> None:
        """Warns if the submitted step before this one was not made, and its future is gone, so
        that nobody can ask for it.
        """
        last, self._unasked = self._unasked, None
        if last is None or last[0]() is not None or last[1].result is None:
            return
        try:
            self._loss(last[1].result)
        except NonFiniteError as error:
            message = f"a submitted step was not made, and nobody asked for its result(): {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())

    def _loss(self, found: tuple[Any, Any]) -> float:
        """Returns the loss of a step, from what its sequence has returned."""
        loss, done = found
        if done != MADE:
            self._refuse("", float(done))
        return float(loss)

    def _refuse(self, which: str, why: float) -> None:
        """Raises `NonFiniteError`, unless steps are left out without a word."""
        if self._on_nonfinite != "raise":
            return
        if why == BAD_NUMBERS:
            raise NonFiniteError(
                f"a schedule of the optimiser gives a NaN or an infinity after {self.steps} steps, "
                f"or has no value there, as a table behind its end, so the step{which} was not "
                "made, and the parameters are as before"
            )
        if why == NO_WEIGHT:
            raise NonFiniteError(
                f"the weights{which} by {self._gradient.name} do not add up to a number above 0, "
                f"so there is no mean, the step "
                "was not made, and the parameters are as before. Leave out batches whose rows all "
                "have the weight 0, or pass "
                'on_nonfinite="skip" to make_train_function'
            )
        found = f"the gradient{which} by {self._gradient.name} has a NaN or an infinity"
        try:
            is_finite = all(
                np.isfinite(leaf).all() for leaf in take_apart(self.params.get_value())[0]
            )
        except SynkError:  # the values are lost, which is not what this error is about
            is_finite = True
        if not is_finite:
            raise NonFiniteError(
                f"{found}, and so have the parameters themselves, so no step can be made. Write "
                "step.params.set_value(…), or synk.load a checkpoint from before"
            )
        after = f", after {self.steps} steps" if which else ""
        raise NonFiniteError(
            f"{found}, so this step was not made, and the parameters are as before{after}. If "
            f"the inputs have no NaN or "
            "infinity, lower the learning rate, put clip_by_global_norm before the optimiser, or "
            'pass on_nonfinite="skip" to make_train_function to leave out such steps'
        )

    def _arguments(self, given: Sequence[Any], order: Data | None) -> list[Any]:
        return [*given, self.params, self._sums, *([] if order is None else [order])]

    def _run(
        self, given: Sequence[Any], order: Data | None, num_slices: int, options: dict[str, Any]
    ) -> Any:
        arguments = self._arguments(given, order)

        def make() -> Any:
            return self._sequence(given, order, num_slices)(*arguments, **options)

        try:
            found = self._with_scratch(make)
        except RecordError as error:
            if self._record is not None:
                raise
            self._record, self.not_recorded = False, str(error)
            found = make()
        self._tries = False
        self._warn_of_dropped()
        return found

    def _with_scratch(self, call: Callable[[], Any]) -> Any:
        """Makes a call; again, if variables that do not outlive a step had lost their values
        with the ranks of their world.
        """
        try:
            return call()
        except VariableLost:
            state_of(self._sums).renew_if_lost()
        return call()

    def _sequence(
        self, given: Sequence[Any], order: Data | None, num_slices: int
    ) -> CallSequence[..., Any]:
        """Returns the sequence that makes a step."""
        if (
            isinstance(num_slices, bool)
            or not isinstance(num_slices, int | np.integer)
            or num_slices < 1
        ):
            raise ArgumentError(f"num_slices must be a positive int, got {num_slices!r}")
        world, has_order = current_world(), order is not None
        selected = None if order is None else order.shape[1]
        clears = num_slices > 1 or self._gradient.leaves_out_ranks(given, selected, world.partition)
        record = world.device == "cuda" and self._record is not False and num_slices == 1
        key = record, has_order, clears, num_slices
        if key not in self._sequences:
            step = self._gradient.step(record=record, clears=clears, num_slices=num_slices)
            updater = self._updater

            def train(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> Any:
                step(batch, params, sums, rows)
                all_reduce(sums, "sum")
                return updater()

            self._sequences[key] = _train_sequence(self._gradient, train, has_order=has_order)
        return self._sequences[key]


def _train_sequence(
    gradient: "_Gradient", train: Callable[..., Any], *, has_order: bool
) -> CallSequence[..., Any]:
    names, (params, sums, order) = (
        ", ".join(gradient.inputs),
        gradient.free("params", "sums", "order"),
    )
    more, rows = (f", {order}", f"{order}[synk_step]") if has_order else ("", "None")
    name = f"train_{gradient.name}"
    text = (
        f"def {name}({names}, {params}, {sums}{more}):\n    return synk_train(({names},), "
        f"{params}, {sums}, {rows})\n"
    )
    return sequence(
        define(text, name, name, {"__name__": __name__, "synk_train": train, "synk_step": STEP})
    )


@known_options
def make_train_function(
    gradient: Callable[..., Any],
    params: Any,
    optimizer: Optimizer,
    *,
    inputs: Iterable[str] | None = None,
    broadcast: Iterable[str] = (),
    sliceable: Iterable[str] = (),
    weights: str | None = None,
    record: bool | None = None,
    on_nonfinite: OnNonfinite = "raise",
    block: Block | None = None,
    grid: Grid = None,
) -> TrainFunction:
    """Makes a training step of a gradient and an optimiser.

    Each rank computes the gradient of its own rows; one all_reduce adds up what the ranks have, and
    each makes the same step. The result is that of one rank with all rows, to rounding, for any
    number of ranks and rows. Sums are divided by the number of rows; or, for a loss per token or
    masked rows, by a count that the gradient returns, or by the sum of `weights`.

    Args:
        gradient: a function of the batch and the parameters, `gradient(*batch, *params)`, for the
            rows that a rank has. It returns the *sum* over these rows of the loss, and of the
            gradient, in this order: `return loss, slopes`, with slopes like `params`; or also by
            what to divide, added up over its rows: `return loss, slopes, count`. It gets arrays of
            NumPy, or of CuPy on GPUs, which JAX and torch take by DLPack, and may return theirs. It
            is not called on ranks without rows. Or a kernel, decorated by `cuda.jit`, with the
            parameters `(*batch, *params, loss, *slopes)`, that adds to `loss[0]` and to the slopes,
            which begin as zeros.
        params: what the parameters begin with: an array, or a nested dict, list or tuple of arrays,
            of float32 or float64; or a variable made by `synk.flatten`. A list or tuple is passed
            as several arguments, anything else as one.
        optimizer: of `synk.optim`.
        inputs: names of the arguments before the parameters; default: those of `gradient`.
        broadcast: names of inputs that every rank gets whole.
        sliceable: names of inputs that are variables of rows.
        weights: name of an input, an array of numbers of at least 0, with any number of axes, by
            whose sum a step divides. The gradient multiplies loss and slopes by them.
        record: whether GPUs repeat the gradient without Python (`synk.function`); None to do so
            where it can be recorded.
        on_nonfinite: what happens where the gradient has a NaN or an infinity, or weights add up to
            0: "raise" leaves the step out and raises `NonFiniteError`, "skip" leaves it out, None
                makes it. The check reads the gradient once.
        block: threads per block, of a kernel.
        grid: blocks per grid, of a kernel.

    Returns:
        A `TrainFunction`.

    Raises:
        ArgumentError: an argument is of another kind.
        DataError: the parameters are not floats of one dtype.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> def gradient(x, y, w):
        ...     error = x @ w - y
        ...     return (error**2).sum(), 2 * x.T @ error
        >>> x = np.random.default_rng(0).normal(size=(100, 3))
        >>> with synk.fork(2, device="cpu"):
        ...     step = synk.train.make_train_function(gradient, np.zeros(3), synk.optim.nesterov_momentum(0.05))
        ...     losses = [step(x, x @ np.arange(3.0)) for _ in range(200)]
        ...     step.params.get_value().round(3) + 0
        array([0., 1., 2.])
    """  # noqa: E501
    check_optimizer("make_train_function", optimizer)
    check_descends("make_train_function", optimizer)
    if on_nonfinite not in {"raise", "skip", None}:
        raise ArgumentError(
            f'make_train_function needs on_nonfinite as "raise", "skip" or '
            f"None, got {on_nonfinite!r}"
        )
    if (
        isinstance(params, list | tuple)
        and params
        and all(isinstance(one, int | float | np.number) for one in params)
    ):
        arrays = ", ".join(f"np.array({float(one)})" for one in params[:2])
        more = ", …" if len(params) > 2 else ""
        raise ArgumentError(
            f"params are a {type(params).__name__} of numbers, one array or {len(params)}; pass "
            f"[{arrays}{more}] for {len(params)}, each an argument of the gradient, or "
            "np.asarray(…) of it for one"
        )
    made = params if isinstance(params, Variable) else flatten(params, name="params")
    check_vector("make_train_function", "params", made)
    for what, several in (("inputs", inputs), ("broadcast", broadcast), ("sliceable", sliceable)):
        if isinstance(several, str):
            raise ArgumentError(
                f"{what} takes a tuple of names, got the string {several!r}; "
                f'write {what}=("{several}",)'
            )
    names = None if inputs is None else tuple(inputs)
    given = _Gradient(
        gradient, made, names, tuple(broadcast), tuple(sliceable), weights, block, grid
    )
    return TrainFunction(given, made, optimizer, record, on_nonfinite)


@final
class _Gradient:
    """The gradient that a script gives, and the names of its inputs."""

    def __init__(
        self,
        gradient: Any,
        params: Variable,
        inputs: tuple[str, ...] | None,
        broadcast: tuple[str, ...],
        sliceable: tuple[str, ...],
        weights: str | None,
        block: Block | None,
        grid: Grid,
    ) -> None:
        if isinstance(gradient, Function | Distributed):
            raise ArgumentError(
                "make_train_function takes the gradient undecorated: it decorates it itself"
            )
        self.is_kernel = type(gradient).__name__ in KERNEL_DECORATORS
        if not callable(gradient) and not self.is_kernel:
            raise ArgumentError(
                f"make_train_function needs a gradient, a function or a kernel; got {gradient!r}"
            )
        if not self.is_kernel and (block is not None or grid is not None):
            raise ArgumentError(
                "block= and grid= are those of a kernel, and the gradient is a "
                "function; decorate it by cuda.jit"
            )
        self._function = gradient
        plain = getattr(gradient, "py_func", gradient)
        name = getattr(plain, "__name__", "gradient")
        self.name = name if name.isidentifier() else "gradient"
        structure = state_of(params).structure()
        self._spreads = structure[0] in {"list", "tuple"}  # over several arguments
        self._leaves = count_leaves(structure)
        after = (
            2 * self._leaves + 1 if self.is_kernel else len(structure[1]) if self._spreads else 1
        )
        self.inputs = (
            inputs
            if inputs is not None
            else _inputs(plain, self.name, after, is_kernel=self.is_kernel)
        )
        _check_names(self.inputs)
        count = len(structure[-1]) if self._spreads else 1
        kind = {"leaf": "an array", "named": "a named tuple"}.get(structure[0], f"a {structure[0]}")
        self._told_params = (
            f"{kind} of {count}, each an argument"
            if self._spreads
            else f"{kind}, which is one argument"
        )
        self._after = _names(plain)[len(self.inputs) :]
        if self.is_kernel:
            self._check_order(plain)
        for what, several in (("broadcast", broadcast), ("sliceable", sliceable)):
            for one in several:
                if one not in self.inputs:
                    raise ArgumentError(
                        f"{what}= names {one!r}, but the inputs of {self.name} are "
                        f"{', '.join(self.inputs)}"
                    )
        self._broadcast, self._sliceable = broadcast, sliceable
        self._block, self._grid = block, grid
        self.divided = [index for index, one in enumerate(self.inputs) if one not in broadcast]
        if not self.divided:
            raise ArgumentError(
                f"all inputs of {self.name} are in broadcast=, so that it has no rows to divide"
            )
        divided = [self.inputs[index] for index in self.divided]
        if weights is not None and (not isinstance(weights, str) or weights not in divided):
            raise ArgumentError(
                f"weights= takes the name of an input of {self.name} that is divided, "
                f"{' or '.join(divided)}; got {weights!r}"
            )
        self._weights = None if weights is None else self.inputs.index(weights)

    def _check_order(self, kernel: Callable[..., Any]) -> None:
        """Raises `ArgumentError` for a kernel whose source shows that its parameters stand in
        another order.

        A store to the parameters, which must stay equal on ranks, or to another element of the loss
        than its only one, would be made silently.
        """
        after = [*inspect.signature(kernel).parameters][len(self.inputs) :]
        if len(after) != 2 * self._leaves + 1:
            raise ArgumentError(
                f"{self.name} has {', '.join(after) or 'no parameters'} behind its inputs, but "
                f"needs {self._leaves} for the model's parameters, the loss, and a slope for each "
                "of them: (*batch, *params, loss, *slopes)"
            )
        params, loss, slopes = after[: self._leaves], after[self._leaves], after[self._leaves + 1 :]
        meant = (
            None
            if "loss" in loss.lower()
            else next((one for one in (*params, *slopes) if "loss" in one.lower()), None)
        )
        order = (
            "A kernel has the parameters (*batch, *params, loss, *slopes), in this order, with a "
            f"slope for each of params: of {self.name} the batch is {', '.join(self.inputs)}, "
            f"params {', '.join(params)}, the loss {loss}, and slopes {', '.join(slopes)}"
        )
        if meant is not None:
            order += f"; write {meant} behind the parameters and before the slopes"
        for name, use in element_uses(kernel):
            place = f"{self.name} ({kernel.__code__.co_filename}:{use.line})"
            if name in params and use.is_stored:
                way_out = (
                    ""
                    if name == meant
                    else "; add to its slope, with which the optimiser makes the step"
                )
                raise ArgumentError(
                    f"{place} writes to {name}, a parameter of the model, which ranks with other "
                    f"rows would not do{way_out}. {order}"
                )
            if name == loss and not use.is_first:
                element = name if use.index is None else f"{name}[{use.index}]"
                raise ArgumentError(
                    f"{place} {'writes to' if use.is_stored else 'reads'} {element}, but {name} "
                    f"stands where the loss does, which has one element: {name}[0], or "
                    f"cuda.atomic.add({name}, 0, …). {order}"
                )

    def free(self, *names: str) -> list[str]:
        """Returns names of parameters that are not inputs."""
        return [f"{name}_of_training" if name in self.inputs else name for name in names]

    def named(self, batch: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """Returns the inputs of a call in order."""
        if len(batch) > len(self.inputs):
            raise ArgumentError(
                f"a step takes {', '.join(self.inputs)}, got {len(batch)} "
                f"arguments{self._told_roles()}"
            )
        given = dict(zip(self.inputs, batch, strict=False))
        for name, value in named.items():
            if name not in self.inputs:
                raise ArgumentError(
                    f"a step takes {', '.join(self.inputs)}, batch= and num_slices=; got {name}="
                )
            if name in given:
                raise ArgumentError(f"a step got {name} twice")
            given[name] = value
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise ArgumentError(f"a step is missing {', '.join(missing)}{self._told_roles()}")
        ordered = [given[name] for name in self.inputs]
        self._check_rows(ordered)
        return ordered

    def _told_roles(self) -> str:
        """Returns, for errors, which parameters of the gradient are inputs, and what may be
        wrong if these are others.
        """
        if not self._after:
            return ""
        told = (
            f"; of {self.name}, {', '.join(self.inputs)} are inputs, and {', '.join(self._after)}"
        )
        if self.is_kernel:
            return f"{told} params, the loss, and slopes"
        told += f" for params, {self._told_params}"
        if any(
            word in name.lower()
            for name in (*self.inputs, *self._after)
            for word in ("loss", "slope")
        ):
            told += (
                ". If it is a kernel, which is given the loss and the slopes, "
                "decorate it by @cuda.jit"
            )
        return told

    def _check_rows(self, given: Sequence[Any]) -> None:
        """Raises `BatchError` for inputs without rows, whose mean is NaN, and `ArgumentError` if
        the first is no array.
        """
        name, (first, *_) = (
            self.inputs[self.divided[0]],
            take_apart(given[self.divided[0]])[0] or [None],
        )
        rows = first.size or sum(_lengths(first)) if isinstance(first, Variable) else _length(first)
        if rows is None:
            raise ArgumentError(
                f"{name} is the first input of {self.name} that is divided, and must be an array, "
                f"whose rows are counted; got {shown(first)}. Write np.asarray(…) of a list of "
                "numbers; put numbers behind it, or name them in broadcast="
            )
        if not rows:
            raise BatchError(f"a step of {self.name} needs rows, and {name} has none")
        self._check_lists(given)
        if self._weights is not None:
            self._check_weights(given[self._weights], first)

    def _check_weights(self, weights: Any, first: Any) -> None:
        """Raises `ArgumentError` unless weights are those of the rows of the first input."""
        name = self.inputs[cast("int", self._weights)]
        if not isinstance(weights, Variable) and not getattr(weights, "ndim", 0):
            raise ArgumentError(
                f"{name}, the weights of {self.name}, must be an array, got {shown(weights)}"
            )
        if isinstance(weights, Variable) != isinstance(first, Variable):
            kinds = (
                ("a variable", "an array")
                if isinstance(weights, Variable)
                else ("an array", "a variable")
            )
            raise ArgumentError(
                f"{name}, the weights of {self.name}, is {kinds[0]}, and "
                f"{self.inputs[self.divided[0]]} {kinds[1]}, whose rows may be others; leave out "
                "weights=, and return the sum of the weights: return loss, slopes, count"
            )

    def _check_lists(self, given: Sequence[Any]) -> None:
        """Raises `ArgumentError` for lists of numbers as long as the rows beside them, which
        every rank would get whole.
        """
        lists = [
            (self.inputs[index], one) for index in self.divided for one in _lists(given[index])
        ]
        if not lists:
            return
        leaves = [leaf for index in self.divided for leaf in take_apart(given[index])[0]]
        lengths = {_rows_beside(leaf) for leaf in leaves}
        if isinstance(given[self.divided[0]], range):
            lengths.add(len(given[self.divided[0]]))
        for name, one in lists:
            if len(one) in lengths:
                instead = f"np.asarray({name})"
                if isinstance(one, range):
                    instead = (
                        f"synk.arange({len(one)})"
                        if one == range(len(one))
                        else f"np.arange{str(one)[5:]}"
                    )
                raise ArgumentError(
                    f"{name} is a {type(one).__name__} as long as the rows, {len(one)}, which "
                    f"every rank would get whole; pass "
                    f'{instead} to have its rows divided, or name it in broadcast=("{name}",)'
                )

    def rows_to_select(self, given: Sequence[Any], option: str) -> int:
        """Returns the number of rows among which `batch=` or `order=` selects; raises
        `BatchError` where it cannot.
        """
        for index in self.divided:
            if isinstance(given[index], IndexRange):
                raise BatchError(
                    f"{option}= selects rows by number, but {self.inputs[index]} is an index "
                    f"range; pass the numbers as an array, such as np.arange({len(given[index])})"
                )
        leaves = [
            (self.inputs[index], leaf)
            for index in self.divided
            for leaf in take_apart(given[index])[0]
        ]
        of_batch = (
            one
            for one in leaves
            if not isinstance(one[1], Variable) and not getattr(one[1], "minibatch", False)
        )
        selected, array = next((one for one in of_batch if _length(one[1]) is not None), ("", None))
        if array is None:
            names = [self.inputs[index] for index in self.divided]
            several = (
                f"{', '.join(names)} are variables"
                if len(names) > 1
                else f"{names[0]} is a variable"
            )
            raise BatchError(
                f"{option}= selects rows of arrays, but {several}, whose rows are on the ranks. "
                f"Pass an array of their numbers there: def {self.name}(rows, "
                f"{', '.join(self.inputs)}, …), which takes {names[0]}[rows]"
            )
        scattered = [
            name
            for name, leaf in leaves
            if isinstance(leaf, Variable) and state_of(leaf).sharded and name not in self._sliceable
        ]
        if scattered and (scattered[0] == leaves[0][0] or not may_be_row_numbers(array)):
            first = scattered[0]
            raise BatchError(
                f"{option}= selects rows of arrays, as {selected}, but {first} is a scattered "
                "variable, whose rows are on the ranks, so that its rows would not be those of "
                f"{selected}. Pass an array as {first}, too, such as synk.gather({first}), or "
                "scatter both, and pass an array of row numbers before them: def "
                f"{self.name}(rows, {first}, …), which takes {first}[rows]"
            )
        return len(array)

    def check(self, given: Sequence[Any], rows: Any, params: Any) -> None:
        """Tries the gradient out with rows of the inputs, None for the first; see
        `TrainFunction.check`.
        """
        selected = None if rows is None else select(rows, self.rows_to_select(given, "batch"))
        numbers = (
            selected.indices()
            if isinstance(selected, Range)
            else None
            if selected is None
            else selected.indices
        )
        divided = [self.inputs[index] for index in self.divided]
        named = dict(zip(self.inputs, given, strict=True))
        span = Span if self.is_kernel else range
        inputs = Inputs(named, divided, self._sliceable, numbers, span, current_world().world_size)
        if not inputs.count:
            raise ArgumentError(
                f"step.check compares {self.name} of some rows with that of their "
                f"halves, and needs two rows"
            )
        leaves, structure = take_apart(params)
        run: list[Any] = [simt.check]  # once; without its shadow memory it is faster

        def evaluate(positions: Array, leaves: Sequence[Array]) -> tuple[Array, list[Array]]:
            batch, copies = inputs.rows(positions), [one.copy() for one in leaves]
            if not self.is_kernel:
                value = unflatten(structure, copies)
                found = self._function(*batch, *(value if self._spreads else (value,)))
                count = None if self._weights is None else sum_of_weights(batch[self._weights])
                targets = [*leaves, np.zeros(()), np.zeros(())]
                *slopes, loss, count = map(
                    np.asarray, _checked(found, structure, targets, len(positions), count)
                )
                return loss, [*slopes, count]
            shapes = {
                name: one.shape
                for name, one in zip(self.inputs, batch, strict=True)
                if isinstance(one, np.ndarray)
            }
            source = next((name for name in divided if name in shapes), None)
            grid, block = LaunchConfig(self._block, self._grid).resolve(
                len(positions), shapes, source
            )
            sums = [
                np.zeros(one.shape or (1,), one.dtype)
                for one in (np.zeros((), leaves[0].dtype), *leaves)
            ]
            how = run.pop() if run else simt.debug
            how(self._function)[grid, block](
                *batch, *(one.reshape(one.shape or (1,)) for one in copies), *sums
            )
            slopes = [one.reshape(like.shape) for one, like in zip(sums[1:], leaves, strict=True)]
            return sums[0].reshape(()), [*slopes, np.zeros(())]

        names = [f"params{path}" for path in paths(structure)]
        check_gradient(
            evaluate, inputs.count, [np.asarray(leaf) for leaf in leaves], names, self.name
        )

    def leaves_out_ranks(
        self, given: Sequence[Any], selected: int | None, partition: Partition
    ) -> bool:
        """Returns whether a rank may have no rows, on which a function is not called.

        Args:
            given: inputs.
            selected: number of rows that are selected; None for all.
            partition: of rows into ranks.
        """
        for index in self.divided:
            for leaf in take_apart(given[index])[0]:
                if isinstance(leaf, Variable):
                    if self.inputs[index] in self._sliceable and 0 in _lengths(leaf):
                        return True
                    continue
                rows = _length(leaf)
                if rows is not None and 0 in partition.counts(
                    rows if selected is None else selected
                ):
                    return True
        return False

    def step(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        """Returns what a step does until the sums of a rank's rows are there: a function of
        batch, params, sums and rows.
        """
        if self.is_kernel:
            return self._by_kernel(record=record, num_slices=num_slices)
        return self._by_function(record=record, clears=clears, num_slices=num_slices)

    def _by_function(self, *, record: bool, clears: bool, num_slices: int) -> Callable[..., None]:
        names, (params, sums) = ", ".join(self.inputs), self.free("params", "sums")
        how = f"{self.divided[0]}, {self._weights}, {self._spreads}, {num_slices > 1}"
        text = (
            f"def {self.name}({names}, {params}, {sums}):\n    synk_add(synk_gradient, "
            f"({names},), {params}, {sums}, {how})\n"
        )
        scope = {"__name__": __name__, "synk_add": add_sums, "synk_gradient": self._function}
        defined = define(text, self.name, self.name, scope)
        call = function(
            defined,
            broadcast=self._broadcast,
            sliceable=self._sliceable,
            record=record,
            name=self.name,
        )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            if clears:
                clear()(vector_of(sums))
            call(*batch, params, sums, **_options(rows, num_slices))

        return step

    def _by_kernel(self, *, record: bool, num_slices: int) -> Callable[..., None]:
        kernel: Any = parallel(
            self._function,
            broadcast=self._broadcast,
            sliceable=self._sliceable,
            name=self.name,
            block=self._block,
            grid=self._grid,
        )
        first = self.divided[0] if self._weights is None else self._weights
        is_sliceable = self.inputs[first] in self._sliceable
        count = count_sliceable if is_sliceable else count_rows
        if self._weights is not None:
            names = ("x",) if is_sliceable else ()
            count = function(
                add_weights, sliceable=names, record=record, name=f"weights of {self.name}"
            )

        def step(batch: tuple[Any, ...], params: Any, sums: Any, rows: Any) -> None:
            options = _options(rows, num_slices)
            clear()(vector_of(sums))
            kernel(*batch, *_leaves(params), sums["loss"], *_leaves(sums["gradient"]), **options)
            counts = count_indices if isinstance(batch[first], IndexRange) else count
            counts(batch[first], sums["count"], **options)

        return step


def _refuse_in_sequences() -> None:
    """Raises `ArgumentError` in the body of a sequence, where a step, which is one itself,
    cannot be made.
    """
    recorder = tracing.current
    if recorder is not None and recorder.is_here:
        raise ArgumentError(
            f"{tracing.where()}: a step of make_train_function is a sequence of its own, whose "
            f"loss the script looks at, so it cannot be part of {recorder.name}. step.epoch(…, "
            "order=…) makes many steps in one round; in a loop of your own, call what "
            "synk.optim.updater(optimizer, params, gradient) returns"
        )


def _lines(order: Any) -> Any:
    """Returns the row numbers of an epoch as an array or `Data`; raises `BatchError` for
    anything else.
    """
    what = "order needs row numbers, int64 of shape (steps, size)"
    if order is None:
        raise ArgumentError(
            f"an epoch is missing order=: {what[6:]}, as order=synk.batches(x, 100, "
            "seed=0).order(0)"
        )
    if isinstance(order, Batches | Iterator):
        instead = (
            "batches.order(0), those of one epoch"
            if isinstance(order, Batches)
            else "np.array(list(…)) of it"
        )
        raise BatchError(f"{what}; got a {type(order).__name__}: write {instead}")
    try:
        lines = order if isinstance(order, Data) else np.asarray(order)
    except ValueError:
        raise BatchError(f"{what}; its lines have other lengths") from None
    if not lines.size:
        raise BatchError(f"{what}; got none, in an array of shape {lines.shape}")
    if lines.ndim != 2 or lines.dtype.kind not in "iu":
        is_line = lines.ndim == 1 and lines.dtype.kind in "iu"
        instead = "; write order.reshape(-1, size) for steps of that many rows" if is_line else ""
        raise BatchError(f"{what}; got {lines.dtype} {lines.shape}{instead}")
    return lines


def _length(value: Any) -> int | None:
    """Returns the number of rows of an array; None for what has none."""
    try:
        return len(value)
    except TypeError:
        return None


def _lists(value: Any) -> Iterator[Sequence[Any]]:
    """Yields the ranges in an input, and its lists and tuples of several items without an array
    among them.
    """
    if isinstance(value, range):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _lists(one)
    elif isinstance(value, list | tuple):
        leaves = take_apart(value)[0]
        if len(value) > 1 and not any(
            isinstance(leaf, Variable | range) or getattr(leaf, "ndim", 0) for leaf in leaves
        ):
            yield value
        else:
            for one in value:
                yield from _lists(one)


def _rows_beside(leaf: Any) -> int | None:
    """Returns the number of rows of an array, of an index range, or of a scattered variable;
    None of anything else.
    """
    if isinstance(leaf, Variable):
        state = state_of(leaf)
        return sum(_lengths(leaf)) if state.sharded and not state.is_tree else None
    return _length(leaf) if isinstance(leaf, IndexRange) or getattr(leaf, "ndim", False) else None


def _lengths(variable: Variable) -> list[int]:
    """Returns the number of rows of each rank, and of each array if they are several."""
    return take_apart(get_lengths(variable))[0]


def _options(rows: Any, num_slices: int) -> dict[str, Any]:
    options: dict[str, Any] = {} if rows is None else {"batch": rows}
    return options if num_slices == 1 else {**options, "num_slices": num_slices}


def _names(gradient: Any) -> list[str]:
    """Returns the names of a gradient's parameters that the step passes; none if they cannot be
    read.
    """
    try:
        parameters = inspect.signature(gradient).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        one.name
        for one in parameters
        if one.kind in plain and one.default is inspect.Parameter.empty
    ]


def _inputs(gradient: Any, name: str, after: int, *, is_kernel: bool) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(gradient).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    # As in `gradient(x, y, *params)`:
    if len(parameters) > 1 and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        parameters, after = parameters[:-1], 0
    # settings of the gradient's own
    while parameters and parameters[-1].default is not inspect.Parameter.empty:
        parameters = parameters[:-1]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or any(one.kind not in plain for one in parameters):
        raise ArgumentError(
            f"the parameters of {name} cannot be read by name; name its "
            f'inputs, as in inputs=("x", "y")'
        )
    if len(parameters) <= after and is_kernel:
        raise ArgumentError(
            f"{name} takes {', '.join(one.name for one in parameters)}, of which the last {after} "
            "would be the model's parameters, the loss, and a slope for each of the parameters, so "
            "that none is left for the batch; a kernel has the parameters (*batch, *params, loss, "
            "*slopes)"
        )
    if len(parameters) <= after:
        raise ArgumentError(
            f"{name} takes {', '.join(one.name for one in parameters)}, of which the last {after} "
            "are for the model's parameters, so that none is left for the batch; write it as "
            "gradient(x, y, *params)"
        )
    return tuple(one.name for one in parameters[: len(parameters) - after])


def _check_names(inputs: tuple[str, ...]) -> None:
    """Raises `ArgumentError` for inputs that cannot be the parameters of a function."""
    for one in inputs:
        if (
            not isinstance(one, str)
            or not one.isidentifier()
            or iskeyword(one)
            or one.startswith("synk_")
        ):
            raise ArgumentError(
                f"inputs need names of parameters, which do not begin with synk_; got {one!r}"
            )
    twice = [one for one in inputs if inputs.count(one) > 1]
    if twice:
        raise ArgumentError(f"inputs name {twice[0]!r} twice")


def _leaves(branch: Any) -> list[Any]:
    """Returns the arrays of a variable, or of a part of it, as arguments."""
    structure = state_of(branch).structure() if isinstance(branch, Variable) else branch.structure
    if structure == ("leaf",):
        return [branch]
    match structure:
        case ("dict", keys, *_):
            pass
        case _:
            keys = range(len(structure[-1]))
    return [leaf for key in keys for leaf in _leaves(branch[key])]


@cache
def clear() -> Any:
    """Returns the kernel that sets a vector to zero."""
    from numba import cuda  # not when synknumba is imported

    @parallel
    def clear(v: Any) -> None:
        i = cuda.grid(1)
        if i < v.shape[0]:
            v[i] = 0

    return clear


@parallel(grid=1, block=1)
def count_rows(x: Any, count: Any) -> None:
    """Adds the number of a rank's rows."""
    count[0] += x.shape[0]


@parallel(grid=1, block=1, sliceable=("x",))
def count_sliceable(x: Any, count: Any) -> None:
    """Adds the number of a rank's rows of a variable."""
    count[0] += x.shape[0]


@parallel(grid=1, block=1)
def count_indices(x: Any, count: Any) -> None:
    """Adds the number of a rank's indices."""
    count[0] += x.stop - x.start


# ---- on ranks


def add_sums(
    gradient: Callable[..., Any],
    batch: tuple[Any, ...],
    params: Any,
    sums: Any,
    first: int,
    weights: int | None,
    spreads: bool,
    adds: bool,
) -> None:
    """Calls the gradient with a rank's rows, and puts what it returns into the vector of sums.

    Args:
        gradient: the script's.
        batch: its inputs.
        params: the rank's parameters.
        sums: arrays by name: gradient, loss, count.
        first: position of the input whose rows count.
        weights: position of the input with their weights; None without.
        spreads: whether the parameters are several arguments.
        adds: whether the sums begin as zeros, for several slices.
    """
    targets, structure = take_apart(sums["gradient"])
    targets += [sums["loss"], sums["count"]]
    rows = len(take_apart(batch[first])[0][0])
    if not rows:
        for target in () if adds else targets:
            target[...] = 0
        return
    given = _read_only(params)
    try:
        found = gradient(*batch, *(given if spreads else (given,)))
    except ValueError as error:
        if "read-only" in str(error):
            error.add_note(
                "Inputs and parameters of a gradient are read-only; write to a copy. The "
                "step changes the parameters."
            )
        raise
    count = None if weights is None else sum_of_weights(batch[weights])
    values = _checked(found, structure, targets, rows, count)
    _check_range(values[-2], targets[-2].dtype)
    for target, value in zip(targets, values, strict=True):
        target[...] = target + value if adds else value


def add_weights(x: Any, count: Any) -> None:
    """Adds the sum of a rank's weights."""
    count[...] = count + sum_of_weights(x)


def sum_of_weights(weights: Any) -> Any:
    """Returns the sum of weights of any shape, float64; raises `DataError` if they are no real
    numbers.
    """
    if weights.dtype.kind not in "fiub":
        raise DataError(f"weights must be real numbers, got an array of {weights.dtype}")
    return weights.sum(dtype=np.float64)


def _read_only(params: Any) -> Any:
    """Returns the parameters as arrays that cannot be written, where NumPy can see to that:
    replicas must stay equal.
    """
    leaves, structure = take_apart(params)
    views = [leaf.view() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    for view in views:
        if isinstance(view, np.ndarray):
            view.flags.writeable = False
    return unflatten(structure, views)


def _checked(
    found: Any, structure: Any, targets: Sequence[Any], rows: int, count: Any
) -> list[Any]:
    """Returns the slopes, loss and count of rows; raises `DataError` for another structure or
    shape.

    Args:
        found: what the gradient has returned.
        structure: of the parameters.
        targets: arrays for slopes, loss and count.
        rows: their number, the count where the gradient returns none.
        count: sum of the weights; None without `weights=`.
    """
    if not isinstance(found, tuple) or len(found) not in ((2, 3) if count is None else (2,)):
        told = (
            f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
        )
        instead = (
            " or (loss, slopes, count)" if count is None else ", of which weights= give the count"
        )
        raise DataError(
            f"the gradient must return the sum of the loss and that of its gradient, (loss, "
            f"slopes){instead}; got {told}"
        )
    if count is None:
        count = found[2] if len(found) == 3 else rows
    leaves = parts_like(structure, found[1])
    if (
        leaves is None
        and isinstance(found[1], tuple)
        and len(found[1]) == 1
        and structure == ("leaf",)
    ):
        leaves = list(found[1])
    if leaves is None:
        raise DataError(
            f"the gradient returned slopes {describe(take_apart(found[1])[1])}, but the parameters "
            f"are {describe(structure)}; return the loss first, then one slope for each parameter"
        )
    returned = [*leaves, found[0], count]
    names = [f"the slope of params{path}" for path in paths(structure)]
    names += ["the loss, a sum over rows,", "the count, a sum over rows,"]
    values = [_like(target, value) for target, value in zip(targets, returned, strict=True)]
    for name, target, value, raw in zip(names, targets, values, returned, strict=True):
        kind = np.asarray(value).dtype if not hasattr(value, "dtype") else value.dtype
        if kind.kind in "fiub" and np.shape(value) == target.shape:
            continue
        if kind.kind not in "fiub":
            raise DataError(f"{name} must be of real numbers, got {shown(raw)}")
        way_out = _way_out(found, structure, targets[:-1], np.shape(value), rows)
        raise DataError(f"{name} must have shape {target.shape}, got {np.shape(value)}{way_out}")
    return values


def _way_out(
    found: tuple[Any, ...],
    structure: Any,
    targets: Sequence[Any],
    shape: tuple[int, ...],
    rows: int,
) -> str:
    """Returns what may be the reason for a shape in what a gradient has returned; "" if nothing
    is likely.
    """
    slopes = parts_like(structure, found[0])
    if slopes is not None and [np.shape(one) for one in (*slopes, found[1])] == [
        one.shape for one in targets
    ]:
        return "; return the loss first, then slopes"
    if rows > 1 and shape.count(rows) > 1:
        return (
            f"; arrays of shapes ({rows},) and ({rows}, 1) broadcast to ({rows}, {rows}): "
            f"write y.ravel() of a column"
        )
    return f"; add up the {rows} rows, as by .sum(0)" if shape[:1] == (rows,) else ""


def _check_range(loss: Any, dtype: Any) -> None:
    """Raises `DataError` for a finite loss that is an infinity in the dtype of the sums; on
    cores, where asking is no wait.
    """
    largest = np.finfo(dtype).max
    if isinstance(loss, np.ndarray | np.generic) and largest < np.abs(loss) < np.inf:
        raise DataError(
            f"the loss, a sum over rows, is {loss:.3g}, beyond what {dtype}, the dtype of the "
            "parameters and of sums, can be; pass parameters of float64, or divide loss and slopes "
            "by a number"
        )


def _like(target: Any, value: Any) -> Any:
    """Returns an array of another library as one of the target's; raises `DataError` for masked
    items.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            "the gradient returned a masked array, whose mask would be lost; return one.filled(0)"
        )
    if hasattr(value, "detach"):  # torch's
        value = value.detach()
    if isinstance(target, np.ndarray):
        return np.asarray(value)
    if hasattr(value, "__cuda_array_interface__") or not hasattr(value, "__dlpack__"):
        return (
            value
            if isinstance(value, type(target) | int | float | np.generic)
            else _cupy().asarray(value)
        )
    return _cupy().from_dlpack(value)


def _cupy() -> Any:
    import cupy

    return cupy
