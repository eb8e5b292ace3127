"""`train.step`: the gradient of a loss and an optimiser become a training step on all ranks, in
one round.

    rows ──gradient──> sums over a rank's rows: gradient, loss, count ──all_reduce──> sums over all ──updater──> step

The count is the number of rows, or the sum of their weights. The three sums are one vector, so that
one all_reduce serves them all, and divided by the count they are means, exact for any division of
rows. Every rank then makes the same step, and replicas stay equal.
"""  # noqa: E501

import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._call.future import Future
from synknumba._errors import (
    ArgumentError,
    NonFiniteError,
    RecordError,
    SynkError,
    VariableLost,
    depth_of_script,
    shortened,
)
from synknumba._host import stopping
from synknumba._host.casting import as_index
from synknumba._host.data import Data
from synknumba._learning.gradient import Gradient, check_is_function
from synknumba._learning.orders import RowNumbers, check_order, read_order
from synknumba._learning.step_inputs import StepInputs, bind
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
from synknumba._ops.tree import flatten as take_apart
from synknumba._ops.tree import unflatten
from synknumba._progress import Bar, Progress, wanted
from synknumba._rowwise.generate import define, kernel_text
from synknumba._sequence.sequence import Sequence as CallSequence
from synknumba._sequence.sequence import sequence
from synknumba._tracing import STEP
from synknumba._types import Array, Block, Grid, class_text, known_options
from synknumba._variables.collectives import all_reduce
from synknumba._variables.create import vector
from synknumba._variables.variable import Variable, state_of
from synknumba._world.call_in_flight import Flight
from synknumba._world.failure import CallInfo
from synknumba._world.open_world import current_world

# Of an epoch that a signal may stop. Other numbers of steps are planned anew, so parts grow fast.
SHORT_PART_SECONDS = 0.5
PART_GROWTH = 8


@final
@dataclass(frozen=True, slots=True)
class _Epoch:
    """The steps of an epoch.

    Attributes:
        order: row numbers, shape (steps, size).
        every: of as many steps one loss is returned.
    """

    inputs: StepInputs
    order: Any
    num_slices: int
    every: int


@final
class TrainFunction:
    """A training step. Made by `train.step`; call it as
    `step(*batch, batch=None, num_slices=1)`.

    Attributes:
        not_recorded: why the gradient is not recorded on GPUs; None if it is, or if nothing was
            tried.
    """

    def __init__(
        self,
        gradient: Gradient,
        params: Variable,
        optimizer: Optimizer,
        record: bool | None,
        on_nonfinite: OnNonfinite,
    ) -> None:
        self._params = params
        self.not_recorded: str | None = None
        self._gradient, self._record = gradient, record
        leaves, structure = take_apart(params.get_value())
        zeros = unflatten(structure, [np.zeros_like(leaf) for leaf in leaves])
        dtype = state_of(params).dtypes()[0]
        sums = {"gradient": zeros, "loss": np.zeros((), dtype), "count": np.zeros((), dtype)}
        self._sums = vector(sums, name=f"sums of {gradient.name}")
        self._updater = Updater(
            optimizer, params, self._sums, on_nonfinite=on_nonfinite, has_sums=True
        )
        self._sequences: dict[tuple[bool, bool, bool, int], CallSequence[..., Any]] = {}
        self._numbers = RowNumbers()
        self._part_steps = 1  # in a round of an epoch that a signal may stop
        # of the last submitted step
        self._unasked: tuple[weakref.ref[Future[float]], Flight] | None = None
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
        inputs, order = self._minibatch(batch, named)
        return self._loss(self._run(inputs, order, num_slices))

    @shortened
    def submit(self, *batch: Any, num_slices: int = 1, **named: Any) -> Future[float]:
        """Starts a step, and returns while the ranks work: the script can make the next minibatch.

        One step is in flight at a time, and the next one waits for it. Arguments are those of a
        step. A step on GPUs that may find out that the gradient cannot be recorded has ended when
        this returns.

        Returns:
            The future of the mean loss.
        """
        inputs, order = self._minibatch(batch, named)
        if self._tries and current_world().device == "cuda":
            results = self._run(inputs, order, num_slices)
            name = CallInfo(self._gradient.name)
            flight = Flight(current_world(), name, lambda _: None, lambda: results, lambda _: None)
            flight.complete()
            return Future(flight, self._loss)
        arguments = self._arguments(inputs, order)
        numbers, before = self._numbers, self._numbers.in_flight
        numbers.in_flight = (*before, *order)  # Ctrl-C leaves open which step is in flight

        def start() -> Future[Any]:
            return self._sequence(inputs, order, num_slices).submit(*arguments)

        try:
            future = self._with_scratch(start)
        except SynkError:
            numbers.in_flight = before
            raise
        numbers.in_flight = order
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
        _check_count("every", every)
        inputs = bind(self._gradient.roles, batch, named)
        rows = inputs.selectable_rows("order")
        lines = read_order(order)
        if every > len(lines):
            raise ArgumentError(
                f"every={every} returns no loss of {len(lines)} steps; pass "
                f"at most every={len(lines)}"
            )
        check_order(lines, rows)
        epoch = _Epoch(inputs, lines, num_slices, every)
        if stopping.is_asked_for():
            return self._stoppable(epoch, progress)
        return self._steps(epoch, range(len(lines)), progress)

    def _stoppable(self, epoch: _Epoch, progress: Progress | None) -> Array:
        """Makes the steps of an epoch in rounds of some seconds at most, until a signal stops
        it; returns losses.
        """
        total = len(epoch.order)
        losses = [np.empty(0)]
        with Bar(wanted(progress, "epoch"), self._gradient.name, "it", total) as bar:
            first = 0
            while first < total and not stopping.stopping():
                after = self._end_of_part(first, total, epoch.every)
                began = time.monotonic()
                losses.append(self._steps(epoch, range(first, after), progress=False))
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

    def _steps(self, epoch: _Epoch, part: range, progress: Progress | None) -> Array:
        """Makes some steps of an epoch in one round; returns losses."""
        lines, every, total = epoch.order, epoch.every, len(epoch.order)
        if len(part) < total:
            lines = lines[part.start : part.stop]
        if not isinstance(lines, Data) or lines.dtype != np.int64:
            lines = self._numbers.fill(np.asarray(lines))
        loss, done = self._run(
            epoch.inputs,
            (lines,),
            epoch.num_slices,
            times=len(part),
            every=every,
            progress=progress,
        )
        refused = np.flatnonzero(done != MADE)
        if len(refused):
            index = int(refused[0])
            self._refuse(_which(part, index, every, total), float(done[index]))
        elif self._updater.halts and len(part) % every and self._updater.counts()[HALTED]:
            # one of the steps behind the last loss
            self._refuse(_which(part, len(done), every, total), LEFT_OUT)
        return np.asarray(loss)

    def plan(self, *batch: Any, num_slices: int = 1, **named: Any) -> Any:
        """Returns the plan of a step: its calls, what they read and write, and what ranks wait
        for.
        """
        inputs, order = self._minibatch(batch, named)
        return self._sequence(inputs, order, num_slices).plan(*self._arguments(inputs, order))

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
        inputs = bind(self._gradient.roles, batch, named)
        self._gradient.check(inputs, rows, self.params.get_value())

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
    ) -> tuple[StepInputs, tuple[Data, ...]]:
        """Returns the inputs of a step, and the numbers of its rows if it selects some."""
        _refuse_in_sequences()
        rows = named.pop("batch", None)
        inputs = bind(self._gradient.roles, batch, named)
        if rows is None:
            return inputs, ()
        return inputs, (self._numbers.fill(inputs.selected(rows)[None]),)

    def _asked(self, flight: Flight, results: tuple[Any, Any]) -> float:
        """Returns the loss of a submitted step, from what its sequence has returned."""
        if self._unasked is not None and self._unasked[1] is flight:
            self._unasked = None
        return self._loss(results)

    def _warn_of_dropped(self) -> None:
        """Warns if the submitted step before this one was not made, and its future has been
        deleted, so that the error cannot be retrieved.
        """
        last, self._unasked = self._unasked, None
        if last is None or last[0]() is not None or last[1].result is None:
            return
        try:
            self._loss(last[1].result)
        except NonFiniteError as error:
            message = f"a submitted step was not made, and nobody asked for its result(): {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())

    def _loss(self, results: tuple[Any, Any]) -> float:
        """Returns the loss of a step, from what its sequence has returned."""
        loss, done = results
        if done != MADE:
            self._refuse("", float(done))
        return float(loss)

    def _refuse(self, which: str, why: float) -> None:
        """Raises `NonFiniteError`, unless steps are left out without a word."""
        if self._updater.halts:
            raise NonFiniteError(self._why_refused(which, why))

    def _why_refused(self, which: str, why: float) -> str:
        """Returns why a step was not made, and what to do.

        Args:
            which: the step, " of step …"; "" for the only one.
            why: what `begin_step` says.
        """
        if why == BAD_NUMBERS:
            return (
                f"a schedule of the optimiser gives a NaN or an infinity after {self.steps} steps, "
                f"or has no value there, as a table behind its end, so the step{which} was not "
                "made, and the parameters are as before"
            )
        name = self._gradient.name
        if why == NO_WEIGHT:
            return (
                f"the weights{which} by {name} do not add up to a number above 0, so there is no "
                "mean, the step was not made, and the parameters are as before. Leave out batches "
                "whose rows all have the weight 0, or pass "
                'on_nonfinite="skip" to train.step'
            )
        problem = f"the gradient{which} by {name} has a NaN or an infinity"
        if not self._has_finite_params():
            return (
                f"{problem}, and so have the parameters themselves, so no step can be made. Write "
                "step.params.set_value(…), or synk.load a checkpoint from before"
            )
        unchanged = "the parameters are as before"
        if which:
            unchanged += f", after {self.steps} steps"
        return (
            f"{problem}, so this step was not made, and {unchanged}. If "
            "the inputs have no NaN or infinity, lower the learning rate, put "
            "clip_by_global_norm before the optimiser, or "
            'pass on_nonfinite="skip" to train.step to leave out such steps'
        )

    def _has_finite_params(self) -> bool:
        try:
            leaves = take_apart(self.params.get_value())[0]
        except SynkError:  # the values are lost, which is not what the error is about
            return True
        return all(np.isfinite(leaf).all() for leaf in leaves)

    def _arguments(self, inputs: StepInputs, order: tuple[Data, ...]) -> list[Any]:
        return [*inputs.values.values(), self.params, self._sums, *order]

    def _run(
        self, inputs: StepInputs, order: tuple[Data, ...], num_slices: int, **options: Any
    ) -> Any:
        arguments = self._arguments(inputs, order)

        def make() -> Any:
            return self._sequence(inputs, order, num_slices)(*arguments, **options)

        try:
            results = self._with_scratch(make)
        except RecordError as error:
            if self._record is not None:
                raise
            self._record, self.not_recorded = False, str(error)
            results = make()
        self._tries = False
        self._warn_of_dropped()
        return results

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
        self, inputs: StepInputs, order: tuple[Data, ...], num_slices: int
    ) -> CallSequence[..., Any]:
        """Returns the sequence that makes a step."""
        _check_count("num_slices", num_slices)
        world, has_order, selected = current_world(), bool(order), None
        if order:
            selected = order[0].shape[1]
        clears = num_slices > 1 or inputs.leaves_out_ranks(selected, world.partition)
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
    gradient: Gradient, train: Callable[..., Any], *, has_order: bool
) -> CallSequence[..., Any]:
    names = ", ".join(gradient.roles.inputs)
    params, sums, order = gradient.roles.free("params", "sums", "order")
    name, parameters, rows = f"train_{gradient.name}", [names, params, sums], "None"
    if has_order:
        parameters.append(order)
        rows = f"{order}[synk_step]"
    text = kernel_text(
        name, parameters, [f"return synk_train(({names},), {params}, {sums}, {rows})"]
    )
    return sequence(
        define(text, name, name, {"__name__": __name__, "synk_train": train, "synk_step": STEP})
    )


@known_options
def step(
    gradient: Callable[..., Any],
    params: Any,
    optimizer: Optimizer,
    *,
    inputs: Iterable[str] | None = None,
    broadcast: Iterable[str] = (),
    rows: Iterable[str] = (),
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
            of float32 or float64; or a variable made by `synk.vector`. A list or tuple is passed
            as several arguments, anything else as one.
        optimizer: of `synk.optim`.
        inputs: names of the arguments before the parameters; default: those of `gradient`.
        broadcast: names of inputs that every rank gets whole.
        rows: names of inputs that are variables of rows; those with a halo must be named.
        weights: name of an input, an array of numbers of at least 0, with any number of axes, by
            whose sum a step divides; nothing checks them but that the sum is above 0. The gradient
            multiplies loss and slopes by them.
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
        ...     step = synk.train.step(gradient, np.zeros(3), synk.optim.nesterov_momentum(0.05))
        ...     losses = [step(x, x @ np.arange(3.0)) for _ in range(200)]
        ...     step.params.get_value().round(3) + 0
        array([0., 1., 2.])
    """
    check_is_function(gradient)
    check_optimizer("train.step", optimizer)
    check_descends("train.step", optimizer)
    if on_nonfinite not in {"raise", "skip", None}:
        raise ArgumentError(
            f'train.step needs on_nonfinite as "raise", "skip" or None, got {on_nonfinite!r}'
        )
    variable = _vector(params)
    for option, value in (("inputs", inputs), ("broadcast", broadcast), ("rows", rows)):
        if isinstance(value, str):
            raise ArgumentError(
                f"{option} takes a tuple of names, got the string {value!r}; "
                f'write {option}=("{value}",)'
            )
    names = None if inputs is None else tuple(inputs)
    work = Gradient(gradient, variable, names, tuple(broadcast), tuple(rows), weights, block, grid)
    return TrainFunction(work, variable, optimizer, record, on_nonfinite)


def _vector(params: Any) -> Variable:
    """Returns the parameters as the variable that a script gives, or a new one."""
    if not isinstance(params, Variable):
        _refuse_numbers(params)
        params = vector(params, name="params")
    check_vector("train.step", "params", params)
    variable: Variable = params
    return variable


def _refuse_in_sequences() -> None:
    """Raises `ArgumentError` in the body of a sequence, where a step, which is one itself,
    cannot be made.
    """
    recorder = tracing.current
    if recorder is not None and recorder.is_here:
        raise ArgumentError(
            f"{tracing.where()}: a step of train.step is a sequence of its own, whose "
            f"loss the script looks at, so it cannot be part of {recorder.name}. step.epoch(…, "
            "order=…) makes many steps in one round; in a loop of your own, call what "
            "synk.optim.updater(optimizer, params, gradient) returns"
        )


def _refuse_numbers(params: Any) -> None:
    """Raises `ArgumentError` for parameters that may be one array, or as many as there are
    numbers.
    """
    if not isinstance(params, list | tuple) or not params:
        return
    if not all(isinstance(param, int | float | np.number) for param in params):
        return
    arrays = [f"np.array({float(param)})" for param in params[:2]]
    if len(params) > 2:
        arrays.append("…")
    raise ArgumentError(
        f"params are {class_text(params)} of numbers, one array or "
        f"{len(params)}; pass "
        f"[{', '.join(arrays)}] for {len(params)}, each an argument of the gradient, or "
        "np.asarray(…) of it for one"
    )


def _check_count(option: str, value: Any) -> None:
    """Raises `ArgumentError` unless an option is a positive int."""
    count = value
    if type(value) is not int:
        count = as_index(value)
    if count < 1:
        raise ArgumentError(f"{option} must be a positive int, got {value!r}")


def _which(part: range, index: int, every: int, total: int) -> str:
    """Returns, for errors, the steps that end with a loss of an epoch's part."""
    first = part.start + index * every + 1
    last = part.start + min((index + 1) * every, len(part))
    steps = str(first)
    if last > first:
        steps = f"{first} to {last}"
    return f" of step {steps} of {total}"
