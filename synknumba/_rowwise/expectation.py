"""`Expectation`: a function of one row becomes a kernel, runs on all ranks, and its partial results
become an `Estimate`.

f(x, 0.5)   kinds of arguments → kernel, generated once → Function → lines (rank, slice) → Estimate
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, final

import numpy as np
from numba.core import types

from synknumba._call.arguments import Output
from synknumba._call.bind import RESERVED
from synknumba._call.function import Function
from synknumba._call.future import Future
from synknumba._call.options import CallOptions, FunctionOptions
from synknumba._call.report import PlanReport
from synknumba._errors import ArgumentError, KernelError, shortened
from synknumba._host.data import Data
from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._progress import Bar, Progress, wanted
from synknumba._rowwise import estimate, replication
from synknumba._rowwise.arguments import kind_of, ndim_of, rows_hint, type_key
from synknumba._rowwise.base import RowFunction, split_selection
from synknumba._rowwise.derivative import differentiated
from synknumba._rowwise.estimate import Estimate
from synknumba._rowwise.generate import (
    ARRAYS_OF_ROWS,
    DIVIDED,
    INDEX_TYPES,
    THREADS,
    Kind,
    define_kernel,
    is_light,
    kernel_name,
)
from synknumba._rowwise.moment_kernels import MAX_VALUES, OWN_NAMES, Recipe, kernel_source
from synknumba._rowwise.partials import LineReader, Units
from synknumba._rowwise.stopping import MIN_ROWS, RowSource
from synknumba._rowwise.types import check_types
from synknumba._types import DeviceKind, RankConstant, as_flag
from synknumba._variables.variable import Variable, state_of
from synknumba._world.engine import Engine
from synknumba._world.open_world import current_world, open_world

# Most blocks of a launch. A core runs block after block, and one is the fastest. 1056 are the 8
# blocks of 256 threads that fit on each of the 132 multiprocessors of an H100: 6 % faster than half
# of them for random numbers.
_BLOCKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 1056}

# For light functions on a GPU: rows whose numbers a thread reads before it uses any; most numbers
# read so; and most blocks, which are fewer, so that their results are sooner combined.
_TOGETHER = 8
_NUMBERS = 16
_LIGHT_BLOCKS = 528

# Values of the global names in the kernel.
_SCOPE = {
    "float32": types.float32,
    "float64": types.float64,
    "int32": types.int32,
    "nan": math.nan,
    **INDEX_TYPES,
}


@final
class Expectation(RowFunction):
    """The expectation value of a function of one row. Made by `expectation`; called like a
    `Function`, it gives an `Estimate`.

    Call it as `f(*args, batch=None, local_batch=None, num_slices=1, shards=None, block=1,
    until=None, min_rows=10_000, max_rows=None, progress=None, **kwargs)`. For each row, the
    function gets

    - of `Data`, NumPy arrays and variables in `rows=`: the row, a number or an array of one
      dimension less;
    - of `synknumba.arange(n)`: the global index of the row;
    - of numbers, of arrays in `broadcast=`, of other variables: the whole.

    Example:
        >>> import synknumba as synk
        >>> @synk.expectation
        ... def pi(i, seed):
        ...     x, y = synk.random.uniform2(seed, i, 0)
        ...     return 4.0 if x * x + y * y < 1.0 else 0.0
        >>> with synk.fork(2, device="cpu"):
        ...     print(pi(synk.arange(100_000), 7))
        3.1450(52)
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        name: str | None,
        *,
        weights: str | bool | None,
        covariance: bool,
        size: int | None,
        dtype: Any,
        by: tuple[str, ...] = (),
    ) -> None:
        plain = getattr(function, "py_func", function)
        if not inspect.isfunction(plain):
            raise ArgumentError(f"expectation wraps a function of one row, got {function!r}")
        super().__init__(
            plain,
            options,
            name,
            OWN_NAMES,
            (*RESERVED, "block", "until", "min_rows", "max_rows"),
        )
        self._covariance = as_flag(covariance, f"covariance of {self.name}")
        self._size = _size(self.name, plain, size)
        self._real = _real(dtype)
        self._by = by  # parameters that this is a derivative by
        self._derivatives: dict[Any, Expectation] = {}
        self._weight = self._read_weight(weights)
        estimate.check_covariance(covariance=covariance, weighted=self._weight is not None)

    def _read_weight(self, weights: Any) -> str | None:
        """The parameter that is the row's weight; "" where the last of the values returned is;
        None without weights.
        """
        match weights:
            case None | False:
                return None
            case True:
                if self._size is None or self._size < 2:
                    raise ArgumentError(
                        f"weights=True of {self.name} means that its last value is the row's "
                        "weight, but it does not return a tuple"
                    )
                return ""
            case str():
                if weights not in self._parameters:
                    raise ArgumentError(
                        f"weights={weights!r} is not a parameter of {self.name}; it has "
                        f"{', '.join(self._parameters) or 'none'}"
                    )
                return weights
        raise ArgumentError(
            f"weights= of {self.name} must be the name of a parameter, True or None; got "
            f"{weights!r}"
        )

    # ---- calls

    @shortened
    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        block: SupportsIndex = 1,
        until: Callable[[Estimate], Any] | None = None,
        min_rows: int = MIN_ROWS,
        max_rows: int | None = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Estimate:
        """Takes the mean over the rows of all ranks.

        Args:
            *args: arguments by position. With `until`, an argument may be a function that makes
                rows: it gets a number n, and returns the next n rows.
            batch: rows to select, as for a `Function`.
            local_batch: rows to select of sliceable variables, as for a `Function`.
            num_slices: number of slices of each rank's rows, as for a `Function`.
            shards: number of parts into which the rows are cut, as for a `Function`.
            block: rows of a block, for correlated rows, such as those of a Markov chain: the error
                bar is that of the means of blocks of consecutive rows, in their order over all
                slices and ranks. Rows after the last whole block are in the mean, but not in the
                error bar.
            until: a condition, as `synk.tolerance(relative=1e-3)` or `lambda e: e.stderr < 1e-3`.
                Rows are taken in order, `min_rows` at first, then a quarter more at a time, until
                the condition holds for the estimate of all rows so far, or there are no more.
            min_rows: number of rows before the condition is asked for the first time, rounded up to
                whole blocks.
            max_rows: most rows to take with `until`, rounded down to whole blocks; None for all.
                Required if rows are made by functions.
            progress: as for a `Function`; with `until`, one bar over the rows, which shows the
                estimate so far.
            **kwargs: arguments by name.

        Raises:
            SynkError: as for a `Function`.
            ReductionError: there are no rows, or fewer than those of a block.
        """
        selecting = {
            "batch": batch,
            "local_batch": local_batch,
            "num_slices": num_slices,
            "shards": shards,
            "progress": progress,
        }
        values = self._bound(args, kwargs)
        return self._taken(Function.__call__, selecting, values, block, until, min_rows, max_rows)

    @shortened
    def submit(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        block: SupportsIndex = 1,
        until: None = None,
        **kwargs: Any,
    ) -> Future[Estimate]:
        """Starts a call, and returns while the ranks work; see `Function.submit`.

        An estimate whose sums overflow is computed again, by `result()`.

        Raises:
            ArgumentError: `until` is given, whose condition decides after each part whether there
                is another; or as for a call.
        """
        refused = [option for option in ("min_rows", "max_rows") if option in kwargs]
        if until is not None:
            refused.insert(0, "until")
        if refused:
            raise ArgumentError(
                f"{self.name}.submit takes no {refused[0]}=, since until= decides between parts of "
                f"a call; write {self.name}(..., until=...), or submit parts, as in "
                f"{self.name}.submit(..., batch=slice(0, 1000)), and add the estimates"
            )
        size = estimate.block_size(block)
        values, last = self._bound(args, kwargs), _last(size)
        device = self._device(current_world())
        options = CallOptions(batch, num_slices, local_batch=local_batch, shards=shards)
        function, reader = self._prepared(device, num_slices, values, size)

        def finished(world: Engine, results: Any) -> Estimate:
            def run(scales: Sequence[float]) -> tuple[LineReader, Any]:
                scaled, reader = self._prepared(device, num_slices, values, size, scaled=True)
                passed = *values, *scales, *last
                return reader, scaled._call_held(world, passed, options)  # noqa: SLF001

            return self._completed(run, reader, results, size)

        return function._submit_then(finished, (*values, *last), {}, options)  # noqa: SLF001

    @shortened
    def as_serial(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        block: SupportsIndex = 1,
        until: Callable[[Estimate], Any] | None = None,
        min_rows: int = MIN_ROWS,
        max_rows: int | None = None,
        **kwargs: Any,
    ) -> Estimate:
        """Takes the mean on the root alone, of all the rows. Arguments are those of a call."""
        selecting = {
            "batch": batch,
            "local_batch": local_batch,
            "num_slices": num_slices,
            "shards": shards,
        }
        values = self._bound(args, kwargs)
        return self._taken(Function.as_serial, selecting, values, block, until, min_rows, max_rows)

    @shortened
    def replicated(
        self,
        *args: Any,
        repeats: int = 16,
        num_slices: int = 1,
        shards: int | None = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Estimate:
        """Calls the function with several seeds, for rows that are not independent of each other,
        such as points of `synknumba.random.sobol`.

        The function must have a parameter named `seed`, and an argument must be
        `synknumba.arange(n)`, with n a power of two for Sobol points. The seeds are random numbers
        made of the one that is passed: independent ones for another seed, and the first of more
        repeats are those of fewer.

        Args:
            *args: arguments by position, as of a call; among them `seed`, an integer.
            repeats: number of calls, R, at least 4.
            num_slices: as for a call.
            shards: as for a call.
            progress: as for a call; each repeat has its own bar.
            **kwargs: arguments by name.

        Returns:
            The estimate of the R means as rows: `count` is R, and `stderr` the standard error of
            their average. An interval of 95 % is mean ± t stderr, with Student's t of R - 1 degrees
            of freedom: 2.13 for 16 repeats. Several values have their covariance, too.

        Raises:
            ArgumentError: the function has no such parameter, the seed is no integer, there are
                no indices, fewer than 4 repeats, or options that do not apply.
            SynkError: as for a call.

        Example:
            >>> import synknumba as synk
            >>> @synk.expectation
            ... def pi(i, seed):
            ...     x, y = synk.random.sobol(seed, i, 0), synk.random.sobol(seed, i, 1)
            ...     return 4.0 if x * x + y * y < 1.0 else 0.0
            >>> with synk.fork(2, device="cpu"):
            ...     print(pi.replicated(synk.arange(65536), seed=7))
            3.14154(13)
        """
        replication.check_call(self.name, self._binder.passed, kwargs, repeats)
        values = self._binder.match(args, kwargs)
        means = []
        for seed in replication.repeated_seeds(self.name, values, repeats):
            values[replication.SEED] = seed
            passed = [values[name] for name in self._binder.passed]
            part = self(*passed, num_slices=num_slices, shards=shards, progress=progress)
            means.append(part.mean)
        estimate_of_means = Estimate.from_values(means, covariance=np.ndim(means) > 1)
        return replace(estimate_of_means, _block=part.count)

    @shortened
    def plan(
        self,
        *args: Any,
        num_slices: int = 1,
        block: SupportsIndex = 1,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> PlanReport:
        """Plans a call without making it, as `Function.plan` does; without `until`, which takes
        several parts.
        """
        size = estimate.block_size(block)
        options = [f"{option}=" for option in ("until", "min_rows", "max_rows") if option in kwargs]
        if options:
            raise ArgumentError(
                f"plan() of {self.name} got {', '.join(options)}, but how many rows a call with "
                "until= takes shows only when it runs; plan a part of them: without these options, "
                f"and with batch=slice(0, {MIN_ROWS}) for the first part"
            )
        selection = split_selection(kwargs)
        values = self._bound(args, kwargs)
        function, _ = self._prepared(self._device(open_world()), num_slices, values, size)
        report = function.plan(
            *values, *_last(size), num_slices=num_slices, **selection, world_size=world_size
        )
        return replace(report, outputs=(("estimate", "mean"),))

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments by position."""
        if not kwargs and len(args) == len(self._binder.passed):
            return args
        values = self._binder.match(args, kwargs)
        return tuple(values[name] for name in self._binder.passed)

    def _taken(
        self,
        run: Callable[..., Any],
        selecting: Mapping[str, Any],
        args: tuple[Any, ...],
        block: SupportsIndex,
        until: Callable[[Estimate], Any] | None,
        min_rows: int,
        max_rows: int | None,
    ) -> Estimate:
        """Takes all rows, or with `until` enough of them."""
        size = estimate.block_size(block)
        if until is None:
            if (min_rows, max_rows) != (MIN_ROWS, None):
                raise ArgumentError(
                    f"{self.name} got min_rows= or max_rows= without until=; to "
                    f"take fewer rows, pass batch="
                )
            return self._estimate(run, selecting, args, size)
        values = self._binder.match(args, {})
        source = RowSource(self.name, self._rows_of(selecting, values))
        source.check_condition(until)
        ends = source.ends(min_rows, max_rows, size)
        bar_mode: Progress = False
        if "progress" in selecting:
            bar_mode = wanted(selecting["progress"], self.name)
            selecting = {**selecting, "progress": False}
        total: Estimate | None = None
        start = 0
        with Bar(bar_mode, self.name, " rows", ends[-1]) as bar:
            for stop in ends:
                passed, selection = source.take(values, start, stop)
                part_args = tuple(passed[name] for name in self._binder.passed)
                part = self._estimate(run, {**selecting, **selection}, part_args, size)
                if total is None:
                    total = part
                else:
                    total += part
                if bar_mode:
                    bar.show(stop, str(total))
                if source.holds(until(total)):
                    break
                start = stop
            bar.finish()
        assert total is not None  # there is always a first part
        return total

    # ---- derivatives

    @shortened
    def derivative(
        self, parameter: str, *, score: Callable[..., Any] | None = None
    ) -> "Expectation":
        """Returns the expectation of the derivative by a parameter, which takes the same arguments.

        The pathwise derivative, of each row by forward mode: ∂f/∂p. Branches are those of the
        value, so it is wrong where f jumps as p changes. With `score`, the likelihood ratio: it is
        ∂f/∂p + f ∂ln q/∂p, for rows of a density q that depends on p; f may jump.

        Args:
            parameter: its name; calls must pass a float.
            score: ln q, normalised, a function of parameters of this one by their names.

        Returns:
            An expectation of one number, or of as many as this one has.

        Raises:
            ArgumentError: there is no such parameter, nothing depends on it, or the function
                computes its own weights.
            KernelError: the source is not available, or something in it has no derivative.

        Example:
            >>> import numpy as np
            >>> import synknumba as synk
            >>> @synk.expectation
            ... def energy(x, beta):
            ...     return beta * x**2
            >>> with synk.fork(2, device="cpu"):
            ...     print(energy.derivative("beta")(np.arange(10.0), 0.5))
            28.5(9.0)
        """
        return self._differentiated((parameter,), score, with_values=False)

    @shortened
    def gradient(self, *parameters: str, score: Callable[..., Any] | None = None) -> "Expectation":
        """Returns the expectation of the value and of its derivatives by parameters.

        Its estimates have the values first, then their derivatives by the first parameter, and so
        on, with their covariance unless there are weights. Otherwise as `derivative`.

        Args:
            *parameters: their names.
            score: as for `derivative`.
        """
        return self._differentiated(parameters, score, with_values=True)

    def _differentiated(
        self, names: tuple[str, ...], score: Any, *, with_values: bool
    ) -> "Expectation":
        """Returns a derivative, made once."""
        key = names, score, with_values
        if key in self._derivatives:
            return self._derivatives[key]
        method = "gradient" if with_values else "derivative"
        what = f"{self.name}.{method}({', '.join(map(repr, names))})"
        for name in names:
            if name not in self._parameters or names.count(name) > 1:
                raise ArgumentError(
                    f"{what}: {name!r} is not a parameter of {self.name}, or not a new one; it has "
                    f"{', '.join(self._parameters)}"
                )
        if self._weight is not None and self._weight in {"", *names}:
            raise ArgumentError(
                f"{what}: its weights may depend on the parameter; return the products of weight "
                "and value as values, and propagate the quotient of the means"
            )
        derivative = self._derivatives[key] = Expectation(
            differentiated(what, self.py_func, self._size, names, score, with_values=with_values),
            self._options,
            what,
            weights=self._weight,
            covariance=with_values and self._weight is None,
            size=None,  # its source shows it
            dtype=self._real,
            by=names,
        )
        return derivative

    # ---- kernels

    def _estimate(
        self,
        run: Callable[..., Any],
        selecting: Mapping[str, Any],
        args: tuple[Any, ...],
        block: int,
    ) -> Estimate:
        """Runs the kernel, and makes an estimate of its results."""
        device, num_slices = self._device(current_world()), selecting["num_slices"]
        function, reader = self._prepared(device, num_slices, args, block)
        last = _last(block)
        result = run(function, *args, *last, **selecting)
        if isinstance(result, Estimate):
            return result

        def run_scaled(scales: Sequence[float]) -> tuple[LineReader, Any]:
            function, reader = self._prepared(device, num_slices, args, block, scaled=True)
            return reader, run(function, *args, *scales, *last, **selecting)

        return self._completed(run_scaled, reader, result, block)

    def _completed(
        self,
        run: Callable[[Sequence[float]], tuple[LineReader, Any]],
        reader: LineReader,
        result: Any,
        block: int,
    ) -> Estimate:
        """Returns the estimate, or that of lines; runs the kernel again with weights, or values,
        in other units where its sums overflow.
        """
        units: Units | None = None
        while not isinstance(result, Estimate):  # at most three times
            repeated_in = reader.units(result, units)
            if repeated_in is None:
                return reader.estimate(result, units, block)
            units = repeated_in
            powers = units.values.tolist()
            if self._weight is not None:
                powers.append(units.weight)
            reader, result = run([2.0**-power for power in powers])
        return result

    def _rows_of(self, selecting: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that have rows, by name; refuses those of which no consecutive
        parts can be taken.
        """
        for option in ("batch", "local_batch"):
            if selecting[option] is not None:
                raise ArgumentError(
                    f"{self.name} got {option}= and until=, which takes all rows in "
                    f"order; pass only one of them"
                )
        rows = {}
        for name, value in values.items():
            if self._makes_rows(name, value):
                rows[name] = value
            elif self._kind(name, value) in DIVIDED:
                self._check_parts(name, value)
                rows[name] = value
        return rows

    def _check_parts(self, name: str, value: Any) -> None:
        """Raises `ArgumentError` for rows of which a call cannot take consecutive parts."""
        if isinstance(value, Variable):
            what = state_of(value).label
        elif isinstance(value, Data) and value.minibatch:
            what = "a minibatch input"
        elif name in self._options.givens:
            what = "bound by givens="
        else:
            return
        raise ArgumentError(
            f"until= of {self.name} takes parts of its rows, but {name} is {what}; "
            "pass Data, an array, synknumba.arange(n), or a function that makes rows"
        )

    def _makes_rows(self, name: str, value: Any) -> bool:
        """Returns whether an argument is a function that makes rows."""
        if name in self._options.broadcast:
            return False
        return callable(value) and not hasattr(value, "__array__")

    def _prepared(
        self,
        device: DeviceKind,
        num_slices: int,
        args: tuple[Any, ...],
        block: int,
        *,
        scaled: bool = False,
    ) -> tuple[Function[..., Any], LineReader]:
        """The function for arguments of these types, and the reader of its lines."""
        # the call raises for a wrong number
        slices = 1
        if hasattr(num_slices, "__index__"):
            slices = max(1, int(num_slices))
        blocked = block > 1
        key = (device, slices, scaled, blocked, *map(type_key, args))
        prepared = self._known.get(key)
        if prepared is None:
            values = self._binder.match(args, {})
            kinds = {}
            for name, value in values.items():
                kinds[name] = self._kind(name, value)
            self._check_types(kinds, values)
            prepared = self._kernel(
                (device, slices, tuple(kinds.values()), scaled, blocked), self._make
            )
            self._known[key] = prepared
        return prepared  # type: ignore[no-any-return]

    def _check_types(self, parameters: Mapping[str, Kind], values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if callable(value) and parameters[name] == "scalar":
                raise ArgumentError(
                    f"{name} of {self.name} is a function; if it makes rows, pass until= and "
                    "max_rows=, as in until=lambda e: e.stderr < 1e-3, max_rows=1_000_000; else "
                    "pass what it returns"
                )
        if DIVIDED.isdisjoint(parameters.values()):
            raise ArgumentError(
                f"{self.name} is an expectation over rows, but none of its arguments has any; pass "
                "Data, an array, or synknumba.arange(n) for the indices 0 … n − "
                f"1{rows_hint(values, self._options.sliceable)}"
            )
        weight = self._weight
        if weight and parameters[weight] not in ARRAYS_OF_ROWS:
            raise ArgumentError(
                f"weights={weight!r} of {self.name} must be an array with a number for each row"
            )
        check_types(self._inner, parameters, values, size=self._size, weight=weight, by=self._by)

    def _kind(self, name: str, value: Any) -> Kind:
        is_broadcast = name in self._options.broadcast
        kind = kind_of(value, is_broadcast, is_sliceable=name in self._options.sliceable)
        return "numbers" if kind == "rows" and ndim_of(value) == 1 else kind

    def _make(
        self,
        device: DeviceKind,
        num_slices: int,
        kinds: tuple[Kind, ...],
        scaled: bool,
        blocked: bool,
    ) -> tuple[Function[..., Any], LineReader]:
        blocks, numbers, together = _BLOCKS[device], kinds.count("numbers"), 1
        if blocks > 1 and numbers and not blocked and is_light(self.py_func):
            together = max(1, min(_TOGETHER, _NUMBERS // numbers))
            if together > 1:
                blocks = min(blocks, _LIGHT_BLOCKS)
        name = kernel_name("mean_of", self.py_func.__name__)
        recipe = Recipe(
            name,
            dict(zip(self._parameters, kinds, strict=True)),
            self._size,
            self._weight,
            self._covariance,
            self._real,
            one_block=blocks == 1,
            scaled=scaled,
            together=together,
            blocked=blocked,
        )
        if recipe.values > MAX_VALUES:
            raise ArgumentError(
                f"{self.name} returns {recipe.values} values, but a GPU's shared memory holds the "
                f"sums of at most {MAX_VALUES}; return fewer values at a time"
            )
        float64, lines = np.dtype(np.float64), (blocks, recipe.columns.count)
        outputs = {"synk_partials": Output(None, (num_slices, recipe.width), float64)}
        if not recipe.one_block:
            outputs["synk_lines"] = Output(None, lines, float64, scratch=True, filled=False)
        givens = {**self._options.givens, "synk_slice": RankConstant.SLICE}
        if blocked:
            givens["synk_position"] = RankConstant.POSITION
        reader = LineReader(recipe)
        options = replace(
            self._options,
            outputs=outputs,
            merge=reader.merge,
            givens=givens,
            unfit=(
                f"{self.name} is an expectation, which a sequence cannot call, since the script "
                f"makes the estimate of the "
                'ranks\' sums; call a kernel with an output of op "sum", and divide after the call'
            ),
            launch=LaunchConfig(THREADS, RowGrid(THREADS * together, blocks)),
        )
        source = kernel_source(recipe)
        kernel = define_kernel(source, name, "expectation", self._inner.device_function, _SCOPE)
        return Function(kernel, options, self.name, self._inner), reader


# ---- what the decorator was given


def _real(dtype: Any) -> str:
    """The type of a thread's sums in a kernel."""
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in {"float32", "float64"}:
        raise ArgumentError(
            f"dtype of an expectation, used for each thread's sums, must be float64 "
            f"or float32; got {dtype!r}"
        )
    return name


def _size(name: str, function: Callable[..., Any], size: Any) -> int | None:
    """Length of the tuple that the function returns, None for a number: its source shows it, or
    must not contradict `size`.
    """
    if size is None:
        returns = _read_returns(function)
        sizes = {_length_of(node) for node in returns}
        if len(sizes) != 1 or any(node.value is None for node in returns):
            raise ArgumentError(
                f"{name} must return a number, or tuples of one length; if its source does not "
                "show which, pass size=: the length of the tuple, or 0 for a number"
            )
        return sizes.pop()
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise ArgumentError(
            f"size= of {name} must be an integer, the length of the returned tuple, or 0 "
            f"for a number; got {size!r}"
        )
    try:
        returns = _read_returns(function)
    except KernelError:  # the source is not available
        returns = []
    for node in returns:
        if not isinstance(node.value, ast.Tuple):
            continue
        parts = node.value.elts
        is_open = any(isinstance(part, ast.Starred) for part in parts)
        if len(parts) != size and not is_open:
            raise ArgumentError(
                f"size={size} of {name}, but line {node.lineno} of its file "
                f"returns a tuple of {len(parts)}"
            )
    return int(size) or None


def _length_of(node: ast.Return) -> int | None:
    """Length of the tuple that a statement returns; None for anything else."""
    return len(node.value.elts) if isinstance(node.value, ast.Tuple) else None


def _last(block: int) -> tuple[int, ...]:
    """What a call passes behind the arguments: the rows of a block, if they are several."""
    return (block,) if block > 1 else ()


def _read_returns(function: Callable[..., Any]) -> list[ast.Return]:
    from synknumba.simt.internals import read_definition

    return list(_returns(read_definition(function).tree))  # type: ignore[arg-type]


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """The return statements of a function, without those of inner functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from _returns(child)
