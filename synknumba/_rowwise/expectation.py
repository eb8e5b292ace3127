"""`Expectation`: a function of one row becomes a kernel, runs on all ranks, and its partial results become an `Estimate`.

f(x, 0.5) ── kinds of arguments ──> kernel (generated once) ──> Function ──> lines (rank, slice, block) ──> Estimate
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from synknumba._call.arguments import IndexRange, Output
from synknumba._call.bind import Binder, signature_names
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions, check_names
from synknumba._call.report import PlanReport
from synknumba._call.serialize import InnerFunction
from synknumba._errors import ArgumentError, KernelError
from synknumba._host.data import Data
from synknumba._ops import estimate
from synknumba._ops.estimate import Estimate
from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._rowwise.generate import check_own_names, define_kernel, index_types, is_light, kernel_name
from synknumba._rowwise.moment_kernels import (
    ARRAYS_OF_ROWS,
    DIVIDED,
    MOST_ROOMS,
    OWN_NAMES,
    THREADS,
    Kind,
    Recipe,
    kernel_source,
)
from synknumba._rowwise.partials import LineReader
from synknumba._rowwise.types import check_types, type_key
from synknumba._types import DeviceKind, RankConstant
from synknumba._variables.variable import Variable
from synknumba._world.world import current_world, open_world

_KEPT = 64  # functions of one expectation: for kinds of arguments, and numbers of slices

# Blocks of a launch, at most. A core runs block after block, and one is the fastest. 1056 are the 8 blocks of 256 threads that
# fit on each of the 132 multiprocessors of an H100: 6 % faster than half of them for random numbers.
_BLOCKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 1056}

# Rows of which a thread of a GPU reads the numbers before it uses any, where the function is light; all numbers together; and
# blocks, of which fewer do then, and whose results are sooner put together.
_TOGETHER = 8
_NUMBERS = 16
_LIGHT_BLOCKS = 528


@final
@dataclass(frozen=True, slots=True)
class ExpectationOptions:
    """What the decorator was given.

    Attributes:
        kernel: broadcast, givens and sliceable, as for `parallel`.
        weights: the parameter that is the row's weight; True where it is the last of the values returned; None without weights.
        covariance: whether to keep the products of each two values.
        size: how many numbers the function returns in a tuple, 0 for a number alone; None to see it from the source.
        dtype: of a thread's sums.
    """

    kernel: FunctionOptions
    weights: str | bool | None
    covariance: bool
    size: int | None
    dtype: Any

    @property
    def weight(self) -> str | None:
        """The parameter that is the weight; "" if the last of the values returned is."""
        if isinstance(self.weights, str):
            return self.weights
        return "" if self.weights else None


@final
class Expectation:
    """The expectation value of a function of one row. Made by `expectation`; called like a `Function`, it gives an `Estimate`.

    Call it as `f(*args, batch=None, local_batch=None, num_slices=1, shards=None, **kwargs)`. For each row, the function gets

    - of `Data`, NumPy arrays and variables in `sliceable=`: the row, a number or an array of one dimension less;
    - of `synknumba.arange(n)`: the global index of the row;
    - of numbers, of arrays in `broadcast=`, of other variables: the whole.
    """

    def __init__(self, function: Callable[..., Any], options: ExpectationOptions, name: str | None) -> None:
        self.py_func: Callable[..., Any] = getattr(function, "py_func", function)
        if not inspect.isfunction(self.py_func):
            raise ArgumentError(f"expectation wraps a function of one row, got {function!r}")
        self.name: str = name or self.py_func.__name__
        self.__name__ = self.name
        self.__doc__ = self.py_func.__doc__
        self.__wrapped__ = self.py_func
        self._options = options
        self._parameters = signature_names(self.py_func, "the function")
        self._size = _size(self.name, self.py_func, options)
        self._real = _real(options.dtype)
        _check(self.name, self._parameters, options, self._size)
        self._binder = Binder(self.name, self._parameters, options.kernel)
        self._inner = InnerFunction(self.name, self.py_func)
        self._functions: dict[Any, tuple[Function, LineReader]] = {}
        self._known: dict[Any, tuple[Function, LineReader]] = {}  # by types of arguments; the same functions

    # ---- calls

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Estimate:
        """Takes the mean over the rows of all ranks.

        Raises:
            As a `Function`; ReductionError where there are no rows.
        """
        selecting = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices, "shards": shards}
        return self._estimate(Function.__call__, selecting, args, kwargs)

    def as_serial(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Estimate:
        """Takes the mean on the root alone, of all the rows."""
        selecting = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices, "shards": shards}
        return self._estimate(Function.as_serial, selecting, args, kwargs)

    def plan(
        self,
        *args: Any,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> PlanReport:
        """Works a call out without making it, as `Function.plan` does."""
        world = open_world()
        function, _, passed = self._prepared("cpu" if world is None else world.device, num_slices, args, kwargs)
        selecting = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices, "shards": shards}
        report = function.plan(*passed, **selecting, world_size=world_size)
        return replace(report, outputs=(("estimate", "mean"),))

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<synknumba expectation {self.name}({', '.join(self._parameters)})>"

    # ---- kernels

    def _estimate(
        self, run: Callable[..., Any], selecting: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Estimate:
        """Runs the kernel, and once more with weights, or values, in other units where its sums overflow."""
        device, num_slices = current_world().device, selecting["num_slices"]
        function, reader, passed = self._prepared(device, num_slices, args, kwargs)
        lines, units = reader.read(run(function, *passed, **selecting)), None
        while (others := reader.units(lines, units)) is not None:  # at most twice
            function, reader, passed = self._prepared(device, num_slices, args, kwargs, scaled=True)
            units, scales = others, [2.0**-power for power in others.values.tolist()]
            scales += [] if self._options.weight is None else [2.0**-others.weight]
            lines = reader.read(run(function, *passed, *scales, **selecting))
        return reader.estimate(lines, units)

    def _prepared(
        self,
        device: DeviceKind,
        num_slices: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        scaled: bool = False,
    ) -> tuple[Function, LineReader, tuple[Any, ...]]:
        """The function for arguments of these types, and what it is called with, by position."""
        if kwargs or len(args) != len(self._binder.passed):
            values = self._binder.match(args, kwargs)
            args = tuple(values[name] for name in self._binder.passed)
        slices = _slices(num_slices)
        key = (device, slices, scaled, *map(type_key, args))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[key] = self._find(device, slices, self._binder.match(args, {}), scaled=scaled)
        return *found, args

    def _find(
        self, device: DeviceKind, num_slices: int, values: Mapping[str, Any], *, scaled: bool
    ) -> tuple[Function, LineReader]:
        """The function for arguments of these kinds."""
        kinds = tuple(self._kind(name, value) for name, value in values.items())
        self._check_types(device, dict(zip(values, kinds, strict=True)), values)
        key = (device, num_slices, kinds, scaled)
        found = self._functions.get(key)
        if found is None:
            while len(self._functions) >= _KEPT:
                self._functions.pop(next(iter(self._functions)))  # the oldest; its ranks forget it with it
                self._known.clear()
            found = self._functions[key] = self._make(*key)
        return found

    def _check_types(self, device: DeviceKind, parameters: Mapping[str, Kind], values: Mapping[str, Any]) -> None:
        if DIVIDED.isdisjoint(parameters.values()):
            raise ArgumentError(
                f"{self.name} is an expectation over rows, and none of its arguments has any; pass Data, an array, or "
                "synknumba.arange(n) for the indices 0 … n − 1"
            )
        weight = self._options.weight
        if weight and parameters[weight] not in ARRAYS_OF_ROWS:
            raise ArgumentError(f"weights={weight!r} of {self.name} must be an array with a number for each row")
        check_types(self._inner, parameters, values, size=self._size, weight=weight, device=device)

    def _kind(self, name: str, value: Any) -> Kind:
        if isinstance(value, IndexRange):
            return "indices"
        if isinstance(value, Variable):
            if name not in self._options.kernel.sliceable:
                return "whole"
            return "numbers" if not value.is_tree and len(next(iter(value.root_shapes()))) == 1 else "rows"
        if not (isinstance(value, Data | np.ndarray) or hasattr(value, "__array__")) or isinstance(value, np.generic):
            return "whole"
        ndim = np.ndim(value)
        if ndim == 0:
            return "number" if isinstance(value, Data) else "whole"  # NumPy's are passed as numbers
        if name in self._options.kernel.broadcast:
            return "whole"
        return "numbers" if ndim == 1 else "rows"

    def _together(self, kinds: Sequence[Kind]) -> int:
        """Of how many rows a thread of a GPU reads the numbers at once."""
        numbers = kinds.count("numbers")
        return max(1, min(_TOGETHER, _NUMBERS // numbers)) if numbers and is_light(self.py_func) else 1

    def _make(
        self,
        device: DeviceKind,
        num_slices: int,
        kinds: tuple[Kind, ...],
        scaled: bool,  # of a key
    ) -> tuple[Function, LineReader]:
        options = self._options
        parameters = dict(zip(self._parameters, kinds, strict=True))
        weight = options.weight
        blocks = _BLOCKS[device]
        together = 1 if blocks == 1 else self._together(kinds)
        if together > 1:
            blocks = min(blocks, _LIGHT_BLOCKS)
        recipe = Recipe(
            kernel_name("mean_of", self.py_func.__name__),
            parameters,
            self._size,
            weight,
            options.covariance,
            self._real,
            blocks == 1,
            scaled,
            together,
        )
        if recipe.rooms > MOST_ROOMS:
            raise ArgumentError(
                f"{self.name} needs {recipe.rooms} sums of a thread in smem at once, which holds {MOST_ROOMS}; return fewer "
                "values at a time" + (", or leave covariance=True out" if options.covariance else "")
            )
        outputs = {"synk_partials": Output(None, (num_slices, recipe.columns), np.dtype(np.float64))}
        if not recipe.one_block:
            outputs["synk_lines"] = Output(None, (blocks + 1, recipe.columns), np.dtype(np.float64), scratch=True)
        kernel_options = replace(
            options.kernel,
            outputs=outputs,
            givens={**options.kernel.givens, "synk_slice": RankConstant.SLICE},
            launch=LaunchConfig(THREADS, RowGrid(THREADS * together, blocks)),
        )
        return Function(_compiled(recipe, self._inner), kernel_options, self.name, self._inner), LineReader(recipe)


def _slices(num_slices: Any) -> int:
    """Slices to make room for; what is wrong with their number is told by the call."""
    return max(1, int(num_slices)) if hasattr(num_slices, "__index__") else 1


def _compiled(recipe: Recipe, function: InnerFunction) -> Callable[..., Any]:
    """The kernel as a Python function."""
    from numba.core import types

    scope = {"float32": types.float32, "float64": types.float64, "int32": types.int32, "nan": math.nan, **index_types()}
    return define_kernel(kernel_source(recipe), recipe.name, "expectation", function.device_function, scope)


# ---- what the decorator was given


def _check(name: str, parameters: Mapping[str, Any], options: ExpectationOptions, size: int | None) -> None:
    """Refuses what no call can have."""
    if isinstance(options.weights, str) and options.weights not in parameters:
        raise ArgumentError(
            f"weights={options.weights!r} is not a parameter of {name}; it has {', '.join(parameters) or 'none'}"
        )
    if options.weights is True and (size or 0) < 2:
        raise ArgumentError(
            f"weights=True of {name} means that its last value is the row's weight, but it does not return a tuple"
        )
    estimate.check_covariance(covariance=options.covariance, weighted=options.weight is not None)
    check_own_names(name, parameters, OWN_NAMES)
    check_names(name, parameters, options.kernel)


def _real(dtype: Any) -> str:
    try:
        told = np.dtype(dtype).name
    except TypeError:
        told = ""
    if told not in {"float32", "float64"}:
        raise ArgumentError(f"dtype of an expectation is that of a thread's sums, float64 or float32; got {dtype!r}")
    return told


def _size(name: str, function: Callable[..., Any], options: ExpectationOptions) -> int | None:
    """How many numbers the function returns in a tuple; None for a number alone."""
    if options.size is not None:
        return _told_size(name, function, options.size)
    returns = _read_returns(function)
    sizes = {len(node.value.elts) if isinstance(node.value, ast.Tuple) else None for node in returns}
    if len(sizes) != 1 or any(node.value is None for node in returns):
        raise ArgumentError(
            f"{name} must return a number, or tuples of one length; where its source does not show which, give size=: the "
            "length of the tuple, or 0 for a number"
        )
    return sizes.pop()


def _told_size(name: str, function: Callable[..., Any], size: Any) -> int | None:
    """What size= says, unless the source shows that it is wrong."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise ArgumentError(
            f"size= of {name} is the length of the tuple that it returns, an integer, or 0 for a number; got {size!r}"
        )
    try:
        returns = _read_returns(function)
    except KernelError:  # there is no source to be seen
        returns = []
    for node in returns:
        if isinstance(node.value, ast.Tuple) and _is_plain(node.value) and len(node.value.elts) != size:
            raise ArgumentError(
                f"size={size} of {name}, but line {node.lineno} of its file returns a tuple of {len(node.value.elts)}"
            )
    return int(size) or None


def _is_plain(node: ast.Tuple) -> bool:
    return not any(isinstance(element, ast.Starred) for element in node.elts)


def _read_returns(function: Callable[..., Any]) -> list[ast.Return]:
    from synknumba.simt.internals import read_definition

    return list(_returns(read_definition(function).tree))  # type: ignore[arg-type]


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """The return statements of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from _returns(child)
