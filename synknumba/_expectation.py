"""`Expectation`: a function of one row becomes a kernel, runs on all ranks, and its partial results become an `Estimate`.

f(x, 0.5) ── kinds of arguments ──> kernel (generated once) ──> Function ──> lines (rank, slice, block) ──> Estimate
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba import _estimate
from synknumba._arguments import IndexRange, Output
from synknumba._data import Data
from synknumba._errors import ArgumentError
from synknumba._estimate import Estimate
from synknumba._expectation_source import MOST_ROOMS, OWN_NAMES, THREADS, Kind, Recipe, kernel_source
from synknumba._function import Function
from synknumba._generated import check_own_names, define_kernel, kernel_name
from synknumba._launch import LaunchConfig
from synknumba._moments import Moments
from synknumba._options import FunctionOptions
from synknumba._report import PlanReport
from synknumba._types import Array, DeviceKind, RankConstant
from synknumba._variable import Variable
from synknumba._world import current_world, open_world

# Lines of partial results that a rank makes for a slice, at most. A core runs block after block, and one is the fastest. A GPU
# has about 4 blocks of 256 threads, half of what fits, on each of the 132 multiprocessors of an H100; not measured yet.
_BLOCKS: Mapping[DeviceKind, int] = {"cpu": 1, "cuda": 512}


@final
@dataclass(frozen=True, slots=True)
class ExpectationOptions:
    """What the decorator was given.

    Attributes:
        broadcast, givens, sliceable: as for `parallel`.
        weights: the parameter that is the row's weight; True where it is the last of the values returned; None without weights.
        covariance: whether to keep the products of each two values.
        size: how many numbers the function returns in a tuple, 0 for a number alone; None to see it from the source.
        dtype: of a thread's sums.
    """

    broadcast: frozenset[str]
    givens: Mapping[str, Any]
    sliceable: frozenset[str]
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
@dataclass(frozen=True, slots=True)
class _Blocks:
    """The grid of a launch: a thread for each row, up to a number of blocks."""

    most: int

    def __call__(self, rows: int) -> int:
        return max(1, min(self.most, -(-rows // THREADS)))


@final
class Expectation:
    """The expectation value of a function of one row. Made by `expectation`; called like a `Function`, it gives an `Estimate`.

    Call it as `f(*args, batch=None, local_batch=None, num_slices=1, **kwargs)`. For each row, the function gets

    - of `Data`, NumPy arrays and variables in `sliceable=`: the row, a number or an array of one dimension less;
    - of `synknumba.arange(n)`: the global index of the row;
    - of numbers, of arrays in `broadcast=`, of other variables: the whole.
    """

    def __init__(self, function: Callable[..., Any], options: ExpectationOptions, name: str | None) -> None:
        self.py_func: Callable[..., Any] = getattr(function, "py_func", function)
        if not inspect.isfunction(self.py_func):
            message = f"expectation wraps a function of one row, got {function!r}"
            raise ArgumentError(message)
        self.name: str = name or self.py_func.__name__
        self.__name__ = self.name
        self.__doc__ = self.py_func.__doc__
        self.__wrapped__ = self.py_func
        self._options = options
        self._defaults = {key: value.default for key, value in inspect.signature(self.py_func).parameters.items()}
        self._passed = [key for key in self._defaults if key not in options.givens]
        self._size = _size(self.name, self.py_func, options)
        self._real = _real(options.dtype)
        _check(self.name, self._defaults, options, self._size)
        self._functions: dict[Any, tuple[Function, Recipe]] = {}

    # ---- calls

    def __call__(self, *args: Any, num_slices: int = 1, **kwargs: Any) -> Estimate:
        """Takes the mean over the rows of all ranks.

        Raises:
            As a `Function`; ReductionError where there are no rows.
        """
        function, recipe = self._prepared(current_world().device, num_slices, args, kwargs)
        return _estimated(function(*args, num_slices=num_slices, **kwargs), recipe)

    def as_serial(self, *args: Any, num_slices: int = 1, **kwargs: Any) -> Estimate:
        """Takes the mean on the root alone, of all the rows."""
        function, recipe = self._prepared(current_world().device, num_slices, args, kwargs)
        return _estimated(function.as_serial(*args, num_slices=num_slices, **kwargs), recipe)

    def plan(self, *args: Any, num_slices: int = 1, **kwargs: Any) -> PlanReport:
        """Works a call out without making it, as `Function.plan` does."""
        world = open_world()
        function, _ = self._prepared("cpu" if world is None else world.device, num_slices, args, kwargs)
        return function.plan(*args, num_slices=num_slices, **kwargs)

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<synknumba expectation {self.name}({', '.join(self._defaults)})>"

    # ---- kernels

    def _prepared(
        self, device: DeviceKind, num_slices: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Function, Recipe]:
        """The function for arguments of these kinds."""
        given = dict(zip(self._passed, args, strict=False)) | dict(kwargs) | dict(self._options.givens)
        kinds = tuple(self._kind(name, given.get(name, default)) for name, default in self._defaults.items())
        key = (device, num_slices, kinds)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._make(device, num_slices, kinds)
        return found

    def _kind(self, name: str, value: Any) -> Kind:
        if isinstance(value, IndexRange):
            return "indices"
        if isinstance(value, Variable):
            return "rows" if name in self._options.sliceable else "whole"
        if not (isinstance(value, Data | np.ndarray) or hasattr(value, "__array__")) or isinstance(value, np.generic):
            return "whole"
        if np.ndim(value) == 0:
            return "number" if isinstance(value, Data) else "whole"  # NumPy's are passed as numbers
        return "whole" if name in self._options.broadcast else "rows"

    def _make(self, device: DeviceKind, num_slices: int, kinds: tuple[Kind, ...]) -> tuple[Function, Recipe]:
        options = self._options
        parameters = dict(zip(self._defaults, kinds, strict=True))
        if not {"rows", "indices"} & {*kinds}:
            message = (
                f"{self.name} is an expectation over rows, and none of its arguments has any; pass Data, an array, or "
                "synknumba.arange(n) for the indices 0 … n − 1"
            )
            raise ArgumentError(message)
        weight = options.weight
        if weight and parameters[weight] != "rows":
            message = f"weights={weight!r} of {self.name} must be an array with a number for each row"
            raise ArgumentError(message)
        blocks = _BLOCKS[device]
        recipe = Recipe(
            kernel_name("mean_of", self.py_func.__name__),
            parameters,
            self._size,
            weight,
            options.covariance,
            self._real,
            blocks == 1,
        )
        if recipe.rooms > MOST_ROOMS:
            message = (
                f"{self.name} needs {recipe.rooms} sums of a thread in smem at once, which holds {MOST_ROOMS}; return fewer "
                "values at a time" + (", or leave covariance=True out" if options.covariance else "")
            )
            raise ArgumentError(message)
        outputs = {"synk_partials": Output(None, (_slices(num_slices), recipe.columns), np.dtype(np.float64))}
        if not recipe.one_block:
            outputs["synk_lines"] = Output(None, (blocks + 1, recipe.columns), np.dtype(np.float64), scratch=True)
        function_options = FunctionOptions(
            style="kernel",
            outputs=outputs,
            ops=None,
            has_ops=True,
            broadcast=options.broadcast,
            inout=frozenset(),
            givens={**options.givens, "synk_slice": RankConstant.SLICE},
            sliceable=options.sliceable,
            updates={},
            launch=LaunchConfig(THREADS, _Blocks(blocks)),
            compile_options={},
        )
        return Function(_compiled(recipe, self.py_func), function_options, self.name), recipe


def _slices(num_slices: Any) -> int:
    """Slices to make room for; what is wrong with their number is told by the call."""
    return max(1, int(num_slices)) if hasattr(num_slices, "__index__") else 1


def _compiled(recipe: Recipe, function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as a Python function."""
    from numba.core.types import float32, float64, int32  # noqa: PLC0415

    scope = {"float32": float32, "float64": float64, "int32": int32, "nan": math.nan}
    kernel: Any = define_kernel(kernel_source(recipe), recipe.name, "expectation", function, scope)
    defaults = [parameter.default for parameter in inspect.signature(function).parameters.values()]
    kernel.__defaults__ = tuple(value for value in defaults if value is not inspect.Parameter.empty) or None
    return kernel  # type: ignore[no-any-return]


# ---- results


def _estimated(parts: Sequence[Array], recipe: Recipe) -> Estimate:
    """The ranks' lines, by rank, slice and block, as one estimate."""
    lines = np.concatenate([part.reshape(-1, recipe.columns) for part in parts])
    k, pairs = recipe.values, recipe.pairs
    cuts = np.cumsum([1, 1, k, k, len(pairs), *([] if recipe.weight is None else [1, k])])
    rows, weight, mean, rest, products, *squares = np.split(lines, cuts, axis=1)[: len(cuts) + (recipe.weight is not None)]
    if recipe.covariance:
        products = _matrices(products, pairs, k)
    stacked = np.stack([np.broadcast_to(one, mean.shape) for one in squares], axis=1) if squares else None
    return _estimate.merged(Moments(rows, weight, mean, rest, products, stacked), scalar=recipe.size is None or _alone(recipe))


def _alone(recipe: Recipe) -> bool:
    """Whether a value stands alone beside its weight."""
    return recipe.weight == "" and recipe.size == 2


def _matrices(products: Array, pairs: Sequence[tuple[int, int]], k: int) -> Array:
    matrices = np.empty((len(products), k, k))
    for column, (i, j) in enumerate(pairs):
        matrices[:, i, j] = matrices[:, j, i] = products[:, column]
    return matrices


# ---- what the decorator was given


def _check(name: str, parameters: Mapping[str, Any], options: ExpectationOptions, size: int | None) -> None:
    """Refuses what no call can have."""
    if isinstance(options.weights, str) and options.weights not in parameters:
        message = f"weights={options.weights!r} is not a parameter of {name}; it has {', '.join(parameters) or 'none'}"
        raise ArgumentError(message)
    if options.weights is True and (size or 0) < 2:
        message = f"weights=True of {name} means that its last value is the row's weight, but it does not return a tuple"
        raise ArgumentError(message)
    _estimate.check_covariance(covariance=options.covariance, weighted=options.weight is not None)
    check_own_names(name, parameters, OWN_NAMES)


def _real(dtype: Any) -> str:
    try:
        told = np.dtype(dtype).name
    except TypeError:
        told = ""
    if told not in {"float32", "float64"}:
        message = f"dtype of an expectation is that of a thread's sums, float64 or float32; got {dtype!r}"
        raise ArgumentError(message)
    return told


def _size(name: str, function: Callable[..., Any], options: ExpectationOptions) -> int | None:
    """How many numbers the function returns in a tuple; None for a number alone."""
    if options.size is not None:
        return options.size or None
    from synknumba.simt._source import read_definition  # noqa: PLC0415

    returns = list(_returns(read_definition(function).tree))  # type: ignore[arg-type]
    sizes = {len(node.value.elts) if isinstance(node.value, ast.Tuple) else None for node in returns}
    if len(sizes) != 1 or any(node.value is None for node in returns):
        message = (
            f"{name} must return a number, or tuples of one length; where its source does not show which, give size=: the "
            "length of the tuple, or 0 for a number"
        )
        raise ArgumentError(message)
    return sizes.pop()


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """The return statements of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from _returns(child)
