"""An optimiser on the ranks: its rules in one kernel over a vector of all parameters.

    gradient ──norms──> numbers ──update──> parameters and state, in place
        norms: of parts that clip by the norm; summed in an order that does not depend on the rank,
            so that replicas stay equal
        numbers: by one thread: are all finite, which step this is, learning rate and corrections

Every rank does the same with the same numbers; nothing is sent. State is replicated variables, flat
like the parameters.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Literal, TypeAlias, final

import numpy as np

from synknumba._api import parallel
from synknumba._call.arguments import output
from synknumba._errors import ArgumentError, DataError
from synknumba._learning.transform import (
    Numbers,
    Optimizer,
    Transform,
    check_descends,
    check_optimizer,
)
from synknumba._ops.tree import describe
from synknumba._ops.tree import flatten as take_apart
from synknumba._rowwise.generate import define, indented, kernel_text, numbered
from synknumba._source.reached import walk
from synknumba._tracing import STEP
from synknumba._types import DeviceKind, known_options
from synknumba._variables.create import variable, vector
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of, vector_of
from synknumba._world.open_world import current_world
from synknumba._world.read_values import with_values
from synknumba.simt.internals import cuda_module, values_read

OnNonfinite: TypeAlias = Literal["raise", "skip"] | None

_THREADS = 256  # of a block that sums
_PER_THREAD = 8  # elements that a thread sums at least
_MOST_BLOCKS = 512
_SUMS = 8  # partial sums of a core
# Positions in `count`, and the numbers before those of transforms.
STEPS, WAITING, HALTED, SKIPPED = range(4)
# What `begin_step` says of a step.
MADE, BAD_GRADIENT, BAD_NUMBERS, LEFT_OUT, NO_WEIGHT = 1.0, 0.0, -1.0, -2.0, -3.0
_SQUARE = "float64(step) * float64(step)"
_GO, _FACTOR, _WEIGHT, _OPEN, _FIRST = range(5)


@final
class Updater:
    """Makes the steps of an optimiser, on every rank. Created by `updater`; called without
    arguments, also in sequences.

    Attributes:
        state: its variables, a tree for `synk.save` and `synk.load`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        params: Variable,
        gradient: Variable,
        *,
        on_nonfinite: OnNonfinite,
        has_sums: bool = False,
    ) -> None:
        value = params.get_value()
        start = optimizer.init(value)
        dtype = state_of(params).dtypes()[0]
        plan = _plan(optimizer, dtype, params.size, on_nonfinite, has_sums=has_sums)
        self._params, self._gradient, self._plan = params, gradient, plan
        self._count = variable(np.zeros(4, np.int64), name="count")
        self._sums = variable(np.zeros(plan.blocks), name="sums of squares")
        self._numbers = variable(np.zeros(plan.count, dtype), name="numbers")
        # not part of a checkpoint, with the numbers that fill it
        self._renewed: list[tuple[VariableState, list[float]]] = [
            (state_of(self._sums), [0.0]),
            (state_of(self._numbers), [0.0]),
        ]
        self._slots: list[Variable] = []  # and gathered gradients
        parts: list[dict[str, Variable]] = []
        self.state: dict[str, Any] = {"count": self._count, "parts": parts}
        for number, (transform, arrays) in enumerate(
            zip(optimizer.transforms, start.parts, strict=True)
        ):
            parts.append({})
            for slot in transform.slots:
                held = vector(arrays[slot.name], name=f"{slot.name} of part {number}")
                self._slots.append(held)
                if slot.is_constant:  # a mask is the script's, not a file's
                    self._renewed.append((state_of(held), take_apart(slot.init(value))[0]))
                else:
                    parts[-1][slot.name] = held
        if optimizer.every > 1:
            self.state["gathered"] = vector(start.gathered, name="gathered gradients")
            self._slots.append(self.state["gathered"])
        self._kernels: dict[DeviceKind, _Kernels] = {}
        states = map(state_of, (params, gradient, *self._slots, self._count))
        self._shapes = [(state, state.root_shapes()) for state in states]

    def __call__(self) -> Any:
        """Makes a step, or gathers a gradient. Returns the mean loss and what was done, if there
        are sums of losses.
        """
        for state, shapes in self._shapes:
            if state.root_shapes() != shapes:
                raise DataError(
                    f"{state.label} had the shapes {shapes} when the optimiser was made for it, "
                    f"and has {state.root_shapes()} now; make another optimiser's updater or "
                    "training step for it"
                )
        for renewed, filled in self._renewed:
            renewed.renew_if_lost(filled)
        params, gradient = vector_of(self._params), vector_of(self._gradient)
        numbers, slots = self._numbers, [vector_of(slot) for slot in self._slots]
        device = current_world().device
        if device not in self._kernels:
            self._kernels[device] = _Kernels(self._plan, device)
        kernels = self._kernels[device]
        if kernels.norm_at_start is not None:
            kernels.norm_at_start(params, gradient, numbers, *slots, self._sums)
        begun = [gradient, self._count, numbers, self._sums]
        if self._plan.halts:
            begun.append(STEP)
        result = kernels.begin(*begun)
        for norm, note in kernels.norms:
            norm(params, gradient, numbers, *slots, self._sums)
            note(numbers, self._sums)
        kernels.update(params, gradient, numbers, *slots)
        return result

    @property
    def halts(self) -> bool:
        """Whether a step that is not finite is refused, and those after it in a round."""
        return self._plan.halts

    def counts(self) -> Sequence[int]:
        """Returns the number of steps, of gradients since the last, whether it has halted, and
        of gradients left out.
        """
        return [int(count) for count in self._count.get_value()]


@known_options
def updater(
    optimizer: Optimizer,
    params: Variable,
    gradient: Variable,
    *,
    on_nonfinite: Literal["skip"] | None = None,
) -> Updater:
    """Makes an optimiser's steps on the ranks, for a loop of one's own; `train.step` has
    one inside.

    Each call launches one kernel over all parameters, or two to four more with clipping by the norm
    and checks. It takes what `gradient` has on each rank: combine it before, as by
    `synk.all_reduce(gradient, "mean")`, so that replicas stay equal.

    Args:
        optimizer: of `synk.optim`.
        params: made by `synk.vector`, of float32 or float64.
        gradient: the same, with the structure and shapes of `params`.
        on_nonfinite: "skip" leaves out steps whose gradient has a NaN or an infinity; None takes
            them.

    Returns:
        An object that is called without arguments, also in sequences, and whose `state` can be
        saved.

    Raises:
        ArgumentError: an argument is of another kind.
        DataError: structures, shapes or dtypes differ, or are no floats.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def slope(w, g):
        ...     g[...] = 2 * w
        >>> with synk.fork(2, device="cpu"):
        ...     w, g = synk.vector(np.ones(3)), synk.vector(np.zeros(3))
        ...     step = synk.optim.updater(synk.optim.momentum(0.1), w, g)
        ...     @synk.sequence
        ...     def descend(w, g):
        ...         slope(w, g)
        ...         step()
        ...     descend(w, g, times=200)
        ...     w.get_value().round(3) + 0
        array([0., 0., 0.])
    """
    check_optimizer("updater", optimizer)
    check_descends("updater", optimizer)
    check_vector("updater", "params", params)
    check_vector("updater", "gradient", gradient)
    if state_of(params) is state_of(gradient):
        raise ArgumentError(
            "updater got the same variable as params and gradient; make another, "
            "as by synk.vector(zeros)"
        )
    kinds, texts = [], []
    for value in (params, gradient):
        state = state_of(value)
        structure, dtype = state.structure(), state.dtypes()[0]
        kinds.append((structure, state.root_shapes(), dtype))
        texts.append(f"{describe(structure)} with shapes {value.shape} of {dtype}")
    if kinds[0] != kinds[1]:
        raise DataError(f"gradient is {texts[1]}, but params are {texts[0]}")
    if on_nonfinite not in {None, "skip"}:
        raise ArgumentError(f'updater needs on_nonfinite as None or "skip", got {on_nonfinite!r}')
    return Updater(optimizer, params, gradient, on_nonfinite=on_nonfinite)


def check_vector(what: str, name: str, value: Any) -> None:
    """Raises unless a value is a flat variable of floats, of which every rank has a replica."""
    if not isinstance(value, Variable) or not state_of(value).is_flat:
        raise ArgumentError(f"{what} needs {name} as a variable made by synk.vector, got {value!r}")
    state = state_of(value)
    dtype = state.dtypes()[0]
    if dtype not in {np.dtype(np.float32), np.dtype(np.float64)}:
        raise DataError(f"{what} needs {name} of float32 or float64, got {dtype}")
    state.check_whole("update", "use replicas, which have the same shape on every rank")


# ---- kernels


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    """A transform in kernels.

    Attributes:
        number: position among the transforms.
        first: position of its first number.
        count: of its numbers, without the norm, which is behind them.
    """

    transform: Transform
    number: int
    first: int
    count: int

    @property
    def norm(self) -> int:
        """Position of the norm that it needs."""
        return self.first + self.count

    @property
    def values(self) -> list[str]:
        """What its numbers are before they are stored."""
        return numbered(self.count, f"values{self.number}[#]")

    @property
    def slots(self) -> list[str]:
        """Names of the vectors of its state."""
        return [f"s{self.number}_{slot.name}" for slot in self.transform.slots]

    @property
    def changing(self) -> list[str]:
        """Names of the vectors that its rule changes."""
        return [f"s{self.number}_{slot.name}" for slot in self.transform.changing]


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """What kernels of all devices have in common.

    Attributes:
        every: gradients for one step.
        count: how many numbers there are.
        has_sums: whether the gradient is a sum, with the loss and the count behind it.
        checks: whether steps that are not finite are left out.
        halts: whether those after one in a round are, too.
        norm_is_first: whether the norm of the gradient is the first that is needed.
        blocks: that sum, on a GPU; as many on all ranks, so that all sum in the same order.
    """

    stages: tuple[_Stage, ...]
    every: int
    dtype: Any
    size: int
    count: int
    has_sums: bool
    checks: bool
    halts: bool
    norm_is_first: bool
    blocks: int


def _plan(
    optimizer: Optimizer, dtype: Any, size: int, on_nonfinite: OnNonfinite, *, has_sums: bool
) -> _Plan:
    stages, first = [], _FIRST
    for number, transform in enumerate(optimizer.transforms):
        stage = _Stage(transform, number, first, len(transform.numbers(0.0)))
        stages.append(stage)
        first += stage.count + transform.needs_norm
    return _Plan(
        stages=tuple(stages),
        every=optimizer.every,
        dtype=dtype,
        size=size,
        count=first,
        has_sums=has_sums,
        checks=on_nonfinite is not None,
        halts=on_nonfinite == "raise",
        norm_is_first=optimizer.every == 1 and optimizer.transforms[0].needs_norm,
        blocks=min(max(size // (_THREADS * _PER_THREAD), 1), _MOST_BLOCKS),
    )


@final
class _Kernels:
    """The kernels of one optimiser, generated from its transforms.

    On GPUs a thread has one element, and blocks sum. On cores one thread goes through all elements,
    since a loop is compiled to vector instructions, with the numbers in registers.
    """

    def __init__(self, plan: _Plan, device: DeviceKind) -> None:
        self._plan, self._on_cores = plan, device == "cpu"
        self._block = _THREADS
        if self._on_cores:
            self._block = 1
        self._slots = [name for stage in plan.stages for name in stage.slots]
        if plan.every > 1:
            self._slots.append("gathered")
        real = plan.dtype.type
        self._scope: dict[str, Any] = {
            "real": real,
            "THREADS": _THREADS,
            "float64": np.float64,
            "isfinite": math.isfinite,
            "nan": math.nan,
        }
        for stage in plan.stages:
            transform = stage.transform
            self._scope[f"rule{stage.number}"] = device_function(transform.rule, real)
            self._scope[f"numbers{stage.number}"] = device_function(transform.numbers, real)
        self.norm_at_start = None
        if plan.checks or plan.norm_is_first:
            # Zeros add up to NaN if the gradient has a NaN or an infinity; squares overflow beyond
            # 1e154.
            term = "float64(step) * 0.0"
            if plan.norm_is_first:
                term = _SQUARE
            self.norm_at_start = self._norm_kernel(
                "norm_of_gradient", lambda i: [f"step = gradient[{i}]"], term
            )
        self.begin = self._begin()
        self.norms = self._norms()
        self.update = self._update()

    def _begin(self) -> Any:
        """Returns the kernel that computes the numbers of a step."""
        lines = ["t = cuda.threadIdx.x", "total = 0.0"]
        if self.norm_at_start is not None:
            lines = [*self._summed()]
        lines += ["if t == 0:", *indented(self._numbers())]
        parameters = ["gradient", "count", "numbers", "sums"]
        if self._plan.halts:
            parameters.append("iteration")
        outputs = {}
        if self._plan.has_sums:
            outputs = {name: output("max", shape=(), dtype="float64") for name in ("loss", "done")}
        return self._kernel("begin_step", [*parameters, *outputs], lines, grid=1, outputs=outputs)

    def _numbers(self) -> Iterator[str]:
        plan, weight = self._plan, "1.0"
        if plan.has_sums:
            weight = f"float64(gradient[{plan.size + 1}])"
        yield f"weight = {weight}"
        yield "factor = 1.0 / weight"
        yield f"steps = float64(count[{STEPS}])"
        # behind it a kernel would read on
        ends = [end_of_table(stage.transform.numbers) for stage in plan.stages]
        for number, end in enumerate(ends):
            steps = "steps" if end is None else f"min(steps, {end - 1}.0)"
            yield f"values{number} = numbers{number}({steps})"
        yield f"go = {MADE}"
        if plan.checks:
            yield from self._decided(ends)
        yield f"numbers[{_GO}] = real(1.0 if go == {MADE} else 0.0)"
        yield f"numbers[{_FACTOR}] = real(factor)"
        if plan.every > 1:
            yield f"is_last = count[{WAITING}] + 1 == {plan.every}"
            yield f"numbers[{_WEIGHT}] = real(1.0 / (count[{WAITING}] + 1))"
            yield f"numbers[{_OPEN}] = real(1.0 if is_last else 0.0)"
        for stage, end in zip(plan.stages, ends, strict=True):
            inside = "" if end is None else f" if steps < {end} else nan"
            for position, value in enumerate(stage.values, stage.first):
                yield f"numbers[{position}] = real({value}{inside})"
        if plan.norm_is_first:
            yield f"numbers[{plan.stages[0].norm}] = real(sqrt(total) * abs(factor))"
        yield from self._counts()
        if plan.has_sums:
            yield f"loss[0] = float64(gradient[{plan.size}]) * factor"
            yield "done[0] = go"

    def _decided(self, ends: Sequence[int | None]) -> Iterator[str]:
        """Yields lines that find out whether a step is made, and why not; `ends` are those of
        the tables of transforms.
        """
        if self._plan.halts:  # steps after a refused one are left out in the same round
            yield "if iteration == 0:"
            yield f"    count[{HALTED}] = 0"
        for stage, end in zip(self._plan.stages, ends, strict=True):
            conditions = [f"not isfinite({value})" for value in stage.values]
            if end is not None:
                conditions.append(f"steps >= {end}")
            for condition in conditions:
                yield f"if {condition}:"
                yield f"    go = {BAD_NUMBERS}"
        yield "if not (weight > 0.0 and isfinite(weight)):"
        yield f"    go = {NO_WEIGHT}"
        yield "if not isfinite(total):"
        yield f"    go = {BAD_GRADIENT}"
        if self._plan.halts:
            yield f"if count[{HALTED}] != 0:"
            yield f"    go = {LEFT_OUT}"

    def _counts(self) -> Iterator[str]:
        lines = [f"count[{STEPS}] += 1"]
        if self._plan.every > 1:
            lines = [
                "if is_last:",
                f"    count[{STEPS}] += 1",
                f"    count[{WAITING}] = 0",
                "else:",
                f"    count[{WAITING}] += 1",
            ]
        if not self._plan.checks:
            yield from lines
            return
        yield f"if go == {MADE}:"
        yield from indented(lines)
        yield f"elif go != {LEFT_OUT}:"
        yield f"    count[{SKIPPED}] += 1"
        if self._plan.halts:
            yield f"    count[{HALTED}] = 1"

    def _norms(self) -> list[tuple[Any, Any]]:
        """Returns, for each norm of a step in the middle, the kernel that sums its squares, and
        the one that notes it.
        """
        norms = []
        for stage in self._plan.stages:
            is_at_start = stage.number == 0 and self._plan.norm_is_first
            if not stage.transform.needs_norm or is_at_start:
                continue
            result = f"numbers[{stage.norm}] = real(sqrt(total))"
            lines = [*self._summed(), "if t == 0:", f"    {result}"]
            step = partial(self._step_before, stage.number)
            note = self._kernel(f"note_norm{stage.number}", ["numbers", "sums"], lines, grid=1)
            norms.append((self._norm_kernel(f"norm{stage.number}", step, _SQUARE), note))
        return norms

    def _step_before(self, number: int, index: str) -> list[str]:
        """Lines that compute the step of one element up to a transform."""
        return [*self._gradient(index), *self._rules(number, index, stores=False)]

    def _update(self) -> Any:
        """Returns the kernel that makes the step of all parameters."""
        inner = [*self._rules(len(self._plan.stages), "i", stores=True), "params[i] = p + step"]
        if self._plan.every > 1:
            inner = [
                f"if n{_OPEN} != 0:",
                *indented([*inner, "gathered[i] = real(0)"]),
                "else:",
                "    gathered[i] = step",
            ]
        loop, grid = ["i = cuda.grid(1)", "if i < params.shape[0]:"], None
        if self._on_cores:
            loop, grid = ["for i in range(params.shape[0]):"], 1
        lines = [*loop, *indented([*self._gradient("i"), *inner])]
        return self._kernel(
            "make_step",
            ["params", "gradient", "numbers", *self._slots],
            [*self._loaded(), f"if n{_GO} != 0:", *indented(lines)],
            grid,
        )

    def _loaded(self) -> list[str]:
        """Lines that read the numbers."""
        return numbered(self._plan.count, "n# = numbers[#]")

    def _gradient(self, index: str) -> Iterator[str]:
        """Yields lines that read the gradient of one element."""
        step = f"gradient[{index}]"
        if self._plan.has_sums:
            step += f" * n{_FACTOR}"
        yield f"step = {step}"
        yield f"p = params[{index}]"
        if self._plan.every > 1:
            yield f"step = gathered[{index}] + (step - gathered[{index}]) * n{_WEIGHT}"

    def _rules(self, stop: int, index: str, *, stores: bool) -> Iterator[str]:
        """Yields the lines of the transforms before `stop`."""
        for stage in self._plan.stages[:stop]:
            end = stage.norm + stage.transform.needs_norm
            passed = ["step", "p", *(f"{slot}[{index}]" for slot in stage.slots)]
            passed += [f"n{position}" for position in range(stage.first, end)]
            results, stored = ["step"], []
            for slot in stage.changing:
                results.append(f"new_{slot}")
                stored.append(f"{slot}[{index}] = new_{slot}")
            yield f"{', '.join(results)} = rule{stage.number}({', '.join(passed)})"
            if stores:
                yield from stored

    def _norm_kernel(self, name: str, lines: Callable[[str], Sequence[str]], term: str) -> Any:
        """Returns a kernel that sums a term of each element of a step, on GPUs a part in each
        block.

        Args:
            name: of the kernel.
            lines: those that compute the step of an element, for its index.
            term: of the step.
        """
        if self._on_cores:
            text, grid = [*_summed_by_core(lines, term)], 1
        else:
            grid = self._plan.blocks
            text = [
                "t = cuda.threadIdx.x",
                "parts = cuda.shared.array(THREADS, float64)",
                "total = 0.0",
                "for i in range(cuda.grid(1), params.shape[0], cuda.gridsize(1)):",
                *indented([*lines("i"), f"total += {term}"]),
                "parts[t] = total",
                *_halved(),
                "if t == 0:",
                "    sums[cuda.blockIdx.x] = parts[0]",
            ]
        parameters = ["params", "gradient", "numbers", *self._slots, "sums"]
        return self._kernel(name, parameters, [*self._loaded(), *text], grid=grid)

    def _summed(self) -> Iterator[str]:
        """Yields lines by which a block adds up the sums of all blocks."""
        yield "t = cuda.threadIdx.x"
        if self._on_cores:
            yield "total = sums[0]"
            return
        yield "parts = cuda.shared.array(THREADS, float64)"
        yield "total = 0.0"
        yield f"for k in range(t, {self._plan.blocks}, THREADS):"
        yield "    total += sums[k]"
        yield "parts[t] = total"
        yield from _halved()
        yield "total = parts[0]"

    def _kernel(
        self,
        name: str,
        parameters: Sequence[str],
        lines: Sequence[str],
        grid: int | None,
        outputs: Any = None,
    ) -> Any:
        """Compiles a kernel's source, which `inspect` finds, on the ranks too."""
        scope = {"cuda": cuda_module(), "sqrt": math.sqrt, "__name__": __name__, **self._scope}
        kernel = define(kernel_text(name, parameters, lines), name, "optim", scope)
        return parallel(kernel, block=self._block, grid=grid, outputs=outputs or None)


def _summed_by_core(lines: Callable[[str], Sequence[str]], term: str) -> Iterator[str]:
    """Yields lines with several sums side by side: each addition waits for the one before."""
    totals = numbered(_SUMS, "total#")
    for total in totals:
        yield f"{total} = 0.0"
    yield f"whole = params.shape[0] // {_SUMS} * {_SUMS}"
    yield f"for i in range(0, whole, {_SUMS}):"
    for k, total in enumerate(totals):
        yield from indented([*lines(f"i + {k}"), f"{total} += {term}"])
    yield "for i in range(whole, params.shape[0]):"
    yield from indented([*lines("i"), f"total0 += {term}"])
    yield f"sums[0] = {' + '.join(totals)}"


def _halved() -> list[str]:
    """Lines that add up `parts` by halves."""
    return [
        "cuda.syncthreads()",
        "half = THREADS // 2",
        "while half > 0:",
        "    if t < half:",
        "        parts[t] += parts[t + half]",
        "    cuda.syncthreads()",
        "    half //= 2",
    ]


# ---- functions of elements and of numbers, in kernels


def _larger(a: Any, b: Any) -> Any:
    """Of two numbers the larger; NaN if one is, as NumPy's `maximum`."""
    return a if a > b or a != a else b  # noqa: PLR0124


def _smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b  # noqa: PLR0124


def _sign_of(real: Any) -> Callable[[Any], Any]:
    unit, zero = real(1), real(0)

    def sign(a: Any) -> Any:
        if a > zero:
            return unit
        if a < zero:
            return -unit
        return zero + a * a  # NaN of NaN

    return sign


def end_of_table(numbers: Numbers) -> int | None:
    """Returns the number of steps after which the numbers of a rule are behind the end of a table;
    None if they never are.

    Python raises `IndexError` there, and a kernel does not. Looked for is up to 2¹⁶ times as many
    steps as a table has entries.
    """
    length = _longest_table(numbers)
    if not length:
        return None

    def is_behind(count: int) -> bool:
        try:
            numbers(float(count))
        except Exception as error:  # noqa: BLE001  # others, as by an overflow, are infinities in kernels
            return isinstance(error, IndexError)
        return False

    with np.errstate(all="ignore"):
        for bound in (length << k for k in range(17)):
            if is_behind(bound):
                return bisect_left(range(bound), True, key=is_behind)
    return None


def _longest_table(function: Any) -> int:
    """Returns the length of the longest sequence that a function, and those that it calls, read
    from outside; 0 without any.
    """

    def parts(value: Any) -> list[Any]:
        if not isinstance(value, FunctionType):
            return []
        return [*values_read(value), *(value.__defaults__ or ())]

    longest = 0
    for value in walk([function], parts):
        if isinstance(value, np.ndarray | tuple | list) and np.ndim(value):
            longest = max(longest, len(value))
    return longest


def device_function(function: Callable[..., Any], real: Any) -> Any:
    """Returns a function as kernels call it, with the Python functions that it calls, and scalar
    ones in place of NumPy's.

    Args:
        function: a rule, or the numbers of one.
        real: dtype of the parameters, as NumPy's type.
    """
    scalar = {
        np.sqrt: math.sqrt,
        np.absolute: abs,
        np.maximum: _larger,
        np.minimum: _smaller,
        np.sign: _sign_of(real),
    }
    functions: dict[Any, Any] = {}

    def in_kernel(value: Any) -> Any:
        if isinstance(value, np.ufunc):  # others may not be hashable
            value = scalar.get(value, value)
        if not isinstance(value, FunctionType):
            return value
        if value not in functions:
            copied = with_values(value, in_kernel)
            functions[value] = cuda_module().jit(device=True)(copied)
        return functions[value]

    return in_kernel(function)
