"""`Vectorized`: a function of numbers becomes a kernel that maps it over elements, and one that reduces rows with it.

f(x, y, 0.5) ── types, shapes ──> kernel (generated once) ──> Function ──> rows gathered, or written to out
f.reduce(x)  ── type ───────────> kernel ──> Function ──> a row for each chunk ──> the same kernel in the coordinator ──> a row
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np

from synknumba._call.arguments import IndexRange, Output
from synknumba._call.bind import RESERVED, Binder, signature_names
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions, check_names
from synknumba._call.report import PlanReport
from synknumba._call.serialize import InnerFunction
from synknumba._errors import ArgumentError, ReductionError
from synknumba._host.data import Data
from synknumba._rowwise.arguments import Given, describe, merged, operand, quick_key, result_row, variable_shape
from synknumba._rowwise.generate import check_own_names, define_kernel, index_types, kernel_name
from synknumba._rowwise.map_kernels import OUT, OWN_NAMES, MapRecipe, element_launch, map_source
from synknumba._rowwise.reduce import Reducer
from synknumba._rowwise.types import Signatures, cast_name, integer_limits, out_of_range, parse
from synknumba._types import DeviceKind, Shape
from synknumba._variables.variable import Variable
from synknumba._world.world import current_world, open_world

_KEPT = 64  # kernels of one function: for argument types, and shapes of rows
_KNOWN = 512  # kinds of calls of one function, by types and rows, and by variables

# Blocks of a launch. A core takes a thread an element. A GPU's threads step on: over a few times the blocks that fit on 132
# multiprocessors at once, and where rows are numbers, of which there are more, over as many waves of these at most.
_BLOCKS: Mapping[DeviceKind, int | None] = {"cpu": None, "cuda": 4224}
_WAVES = 16

# Types of arguments that are what they are, whatever their value.
_PLAIN = frozenset({bool, float, complex, IndexRange, type(None), *(np.dtype(char).type for char in "?bhilBHILfdFD")})


@final
@dataclass(frozen=True, slots=True)
class _ResultPlace:
    """Where a result is written.

    Attributes:
        value: what was given as `out`.
        row: the shape of a row of it.
        parameter: of the kernel; the function's own where it is also an argument.
        aliases: further arguments that are the same; the kernel reads them there.
    """

    value: Any
    row: Shape
    parameter: str
    aliases: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """What the kernel for a call depends on.

    Attributes:
        given: the arguments, by parameter.
        row: the shape of a row of the result, as the kernel sees it.
        place: the parameter that the result is written to; None where it is gathered.
        variables: the parameters that are variables of rows.
        flat: the arrays that the kernel sees with the axes of a row as one.
        aliases: arguments that are the one which the result is written to.
    """

    given: tuple[tuple[str, Given], ...]
    row: Shape
    place: str | None
    variables: frozenset[str]
    flat: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with such arguments have in common.

    Attributes:
        function: that runs.
        row: the shape of a row of the result.
        passed: the arguments that it gets, by position; with the result's place as the last where that is none of them.
        limits: of arguments by position that are Python integers: the least and the greatest that their type holds.
    """

    function: Function
    row: Shape
    passed: tuple[int, ...]
    limits: tuple[tuple[int, float, float], ...]


@final
class Vectorized:
    """A function of numbers, applied to each element. Made by `vectorize`; called like a `Function`.

    Call it as `f(*args, out=None, batch=None, local_batch=None, num_slices=1, shards=None, **kwargs)`. Arrays broadcast against
    each other as in NumPy, but for axis 0 of `Data`, NumPy arrays and variables in `sliceable=`, which is rows. The result has
    as many rows. It is gathered, or written to `out`, which is then returned.
    """

    def __init__(self, function: Callable[..., Any], options: FunctionOptions, signatures: Any, name: str | None) -> None:
        self.py_func = function
        self.name: str = name or function.__name__
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._options = options
        parameters = signature_names(function, "the function")
        check_own_names(self.name, parameters, OWN_NAMES)
        check_names(self.name, parameters, options)
        self._parameters = parameters
        self._binder = Binder(self.name, parameters, options)
        self._inner = InnerFunction(self.name, function)
        self._loops = Signatures(self._inner, parse(self.name, signatures, len(parameters)) if signatures else ())
        self._functions: dict[Any, Function] = {}
        self._known: dict[Any, _Call] = {}  # calls that are quick to recognise take 15 µs instead of 35
        self._firsts = [0 if name in options.broadcast else 1 for name in self._binder.passed]  # axes that are not rows
        self._reducer: Reducer | None = None

    # ---- calls

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Applies the function to every element of the rows of all ranks.

        Raises:
            As a `Function`; DataError where shapes do not broadcast; ArgumentError where Numba cannot compile the function for
            the types given, or the result does not cast to `out`.
        """
        function, passed, row = self._prepared(current_world().device, out, args, kwargs)
        result = function(*passed, batch=batch, local_batch=local_batch, num_slices=num_slices, shards=shards)
        return result.reshape(len(result), *row) if out is None else out

    def as_serial(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Applies it on the root alone, to all the rows."""
        options, kwargs = _call_options(kwargs)
        function, passed, row = self._prepared(current_world().device, out, args, kwargs)
        result = function.as_serial(*passed, **options)
        return result.reshape(len(result), *row) if out is None else out

    def plan(self, *args: Any, out: Any = None, world_size: int | None = None, **kwargs: Any) -> PlanReport:
        """Works a call out without making it, as `Function.plan` does."""
        options, kwargs = _call_options(kwargs)
        world = open_world()
        function, passed, _ = self._prepared("cpu" if world is None else world.device, out, args, kwargs)
        return function.plan(*passed, **options, world_size=world_size)

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<synknumba vectorized {self.name}({', '.join(self._parameters)})>"

    # ---- reductions

    def reduce(
        self,
        array: Any,
        axis: int = 0,
        dtype: Any = None,
        *,
        initial: Any = None,
        keepdims: bool = False,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
    ) -> Any:
        """Reduces rows to one: f(… f(f(row 0, row 1), row 2) …, last row), element by element.

        Rows are put together in their order, but in groups, so the function must be associative. It need not be commutative.

        Args:
            array: the rows: `Data`, an array, a variable, or `arange(n)`.
            axis: 0, the axis that is divided over the ranks.
            dtype: in which it is computed, and of the result. By default that of f(x, x).
            initial: a number to start from; by default the first row.
            keepdims: whether the result has an axis of length 1 in the place of the rows.
            batch: as for a call.
            local_batch: as for a call.
            num_slices: as for a call.
            shards: as for a call: the same bits for every number of ranks.

        Returns:
            An array of one row's shape; a NumPy scalar where rows are numbers.

        Raises:
            As a `Function`; ArgumentError where the function is not one of two numbers, or does not return the type that it
            takes; ReductionError where there are no rows and no `initial`.
        """
        if self._reducer is None:
            if len(self._parameters) != 2 or self._options.givens:
                told = ", ".join(self._parameters)
                raise ArgumentError(
                    f"{self.name}.reduce needs a function of two numbers, none of them in givens=; it has ({told})"
                )
            name = next(iter(self._parameters))
            self._reducer = Reducer(self._inner, self._loops, name)
        if isinstance(axis, bool) or axis != 0:
            raise ArgumentError(f"{self.name}.reduce goes over axis 0, the rows, which the ranks divide; got axis={axis!r}")
        options = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices, "shards": shards}
        reduced = self._reducer.reduce(array, dtype, initial, options)
        return reduced[np.newaxis] if keepdims else reduced[()]

    def accumulate(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuses, and says why."""
        raise ReductionError(
            f"{self.name}.accumulate is not there: each row of its result needs all rows before it, so the ranks would wait "
            "for one another instead of working at once. Use reduce for the last row, or NumPy's accumulate in the script"
        )

    # ---- kernels that map

    def _describe(self, name: str, value: Any) -> Given:
        return describe(self.name, name, value, broadcast=self._options.broadcast, sliceable=self._options.sliceable)

    def _prepared(
        self, device: DeviceKind, out: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Function, tuple[Any, ...], Shape]:
        """The function for such arguments, what it is called with, by position, and the shape of a row of the result."""
        if out is not None:
            self._check_writeable(out)
        seen = None if kwargs else self._seen(device, args, out)
        call = self._known.get(seen)
        if call is None:
            values = self._binder.match(args, kwargs)
            call = self._call(device, out, values)
            args = tuple(values[name] for name in self._binder.passed)
            if seen is not None:
                if len(self._known) >= _KNOWN:  # of variables that are no more, mostly
                    self._known.clear()
                self._known[seen] = call
        for position, least, most in call.limits:
            if not least <= args[position] <= most:
                raise out_of_range(self.name, self._binder.passed[position], args[position], least, most)
        given = args if out is None else (*args, out)
        return call.function, tuple([given[position] for position in call.passed]), call.row

    def _call(self, device: DeviceKind, out: Any, values: Mapping[str, Any]) -> _Call:
        """What there is to know of a call with such arguments."""
        given = {name: self._describe(name, value) for name, value in values.items()}
        place = None if out is None else self._place(out, values)
        row = result_row(self.name, given, None if place is None else place.row)
        layout = self._layout(given, values, row, place)
        function = self._functions.get((device, layout))
        if function is None:
            function = self._make(device, layout)
            self._keep((device, layout), function)
        if place is not None:
            self._check_cast(given, place)
        names = self._binder.passed
        passed = [position for position, name in enumerate(names) if name not in layout.aliases]
        if place is not None and place.parameter == OUT:
            passed.append(len(names))
        kinds = dict(zip(given, self._loops.choose([*given.values()]).args, strict=True))
        limits = {name: integer_limits(kinds[name]) for name, one in given.items() if one.python is int}
        for name, (least, most) in limits.items():
            if not least <= values[name] <= most:
                raise out_of_range(self.name, name, values[name], least, most)
        changing = tuple((position, *limits[name]) for position, name in enumerate(names) if name in limits)
        return _Call(function, row, tuple(passed), changing)

    def _check_writeable(self, out: Any) -> None:
        if isinstance(out, Data) and out.frozen:
            raise ArgumentError(
                f"out of {self.name} is frozen, so its rows cannot be written; call thaw() before, or pass another out"
            )
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ArgumentError(
                f"out of {self.name} is a read-only array, so its rows cannot be written; pass another, or a copy"
            )

    def _seen(self, device: DeviceKind, args: tuple[Any, ...], out: Any) -> Any:
        """What of a call decides on its function, where it is quick to tell; None otherwise."""
        if len(args) != len(self._firsts):
            return None
        parts: list[Any] = [device]
        for value, first in zip((*args, out), (*self._firsts, 1), strict=True):
            kind = type(value)
            if kind in _PLAIN or (kind is int and -(1 << 63) <= value < 1 << 63):
                parts.append(kind)
            elif (key := quick_key(value, first)) is not None:
                parts.append((key, value is out))
            else:
                return None
        return tuple(parts)

    def _place(self, out: Any, values: Mapping[str, Any]) -> _ResultPlace:
        """Where to write, which may be one of the arguments."""
        if isinstance(out, Variable):
            row = () if out.is_tree else variable_shape(self.name, OUT, out, rows=True)
            has_rows = not out.is_tree and bool(out.root_shapes()[0])
        elif isinstance(out, Data | np.ndarray):
            row, has_rows = out.shape[1:], out.ndim > 0
        else:
            raise ArgumentError(f"out of {self.name} must be Data, a Variable or a NumPy array, got a {type(out).__name__}")
        if not has_rows:
            raise ArgumentError(f"out of {self.name} must be an array with rows, got {out!r}")
        # NumPy arrays are copied, and so need not be the same one.
        names = [name for name, value in values.items() if value is out and not isinstance(out, np.ndarray)]
        options = self._options
        for name in names:
            if name in options.broadcast or (isinstance(out, Variable) and name not in options.sliceable):
                where = "sliceable=" if isinstance(out, Variable) else "rows, and not in broadcast="
                raise ArgumentError(
                    f"{name} and out of {self.name} are the same {type(out).__name__}; that takes it in {where}"
                )
        return _ResultPlace(out, row, names[0], tuple(names[1:])) if names else _ResultPlace(out, row, OUT)

    def _layout(self, given: dict[str, Given], values: Mapping[str, Any], row: Shape, place: _ResultPlace | None) -> _Layout:
        """What a kernel depends on."""
        arrays = {name: value for name, value in values.items() if given[name].kind in {"rows", "whole"}}
        if place is not None:
            arrays[place.parameter] = place.value
        variables = frozenset(
            name
            for name, value in arrays.items()
            if isinstance(value, Variable) and (name == OUT or given[name].kind == "rows")
        )
        # A core runs loops over two axes at its best; variables are their ranks' own, and stay as they are.
        aliases = () if place is None else place.aliases
        variables -= {*aliases}
        is_mergeable = len(row) > 1 and not any(isinstance(value, Variable) for value in arrays.values())
        one_axis = merged(given, row) if is_mergeable else None
        if one_axis is None:
            return _Layout(tuple(given.items()), row, place and place.parameter, variables, aliases=aliases)
        flat = frozenset(arrays) - {*aliases}
        return _Layout(tuple(one_axis.items()), (math.prod(row),), place and place.parameter, variables, flat, aliases)

    def _make(self, device: DeviceKind, layout: _Layout) -> Function:
        """The function for arguments of these types and shapes."""
        loop = self._loops.choose([one for _, one in layout.given])
        operands = {
            name: operand(one, layout.row, None if one.element == kind else cast_name(kind))
            for (name, one), kind in zip(layout.given, loop.args, strict=True)
        }
        name = kernel_name("map_of", self.py_func.__name__)
        cast, place = cast_name(loop.result), layout.place or OUT
        recipe = MapRecipe(name, operands, len(layout.row), cast, place, layout.aliases, counted=_BLOCKS[device] is None)
        scope = loop.scope() | ({} if recipe.counted else index_types())
        kernel = define_kernel(map_source(recipe), name, "vectorize", self._inner.device_function, scope)
        options = replace(
            self._options,
            outputs={OUT: Output("gather", layout.row, loop.dtype, filled=False)} if layout.place is None else {},
            inout=frozenset() if layout.place is None else frozenset({layout.place}),
            sliceable=layout.variables,
            launch=element_launch(layout.row, _BLOCKS[device], _WAVES),
            flat=layout.flat,
        )
        return Function(kernel, options, self.name, self._inner)

    def _check_cast(self, given: Mapping[str, Given], place: _ResultPlace) -> None:
        result = self._loops.choose([*given.values()]).dtype
        if not np.can_cast(result, place.value.dtype, "same_kind"):
            raise ArgumentError(
                f"the result of {self.name} has dtype {result}, which does not cast to out of dtype {place.value.dtype} as "
                '"same_kind"; pass an out of another dtype, or convert in the function'
            )

    def _keep(self, key: Any, function: Function) -> None:
        while len(self._functions) >= _KEPT:
            self._functions.pop(next(iter(self._functions)))  # the oldest; its ranks forget it with it
            self._known.clear()
        self._functions[key] = function


def _call_options(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a call, and its arguments."""
    return {name: kwargs[name] for name in kwargs if name in RESERVED}, {
        name: kwargs[name] for name in kwargs if name not in RESERVED
    }


def python_function(target: Any) -> Callable[..., Any]:
    """The Python function of a function, of one that Numba has decorated, or of a ufunc that `numba.vectorize` has made."""
    for found in (getattr(target, "py_func", None), getattr(getattr(target, "_dispatcher", None), "py_func", None), target):
        if inspect.isfunction(found):
            return found
    wrapped = getattr(target, "__wrapped__", None)
    if inspect.isfunction(wrapped):
        return wrapped
    hint = (
        "; a ufunc does not tell the Python function that it was made of, so pass that" if isinstance(target, np.ufunc) else ""
    )
    raise ArgumentError(f"vectorize wraps a function of numbers, got {target!r}{hint}")


def ufunc_signatures(target: Any) -> list[str]:
    """The signatures that a ufunc of `numba.vectorize` was declared with."""
    if not getattr(target, "_frozen", False):  # Numba has no public name for it
        return []
    return [_signature(one) for one in target.types]


def _signature(told: str) -> str:
    """NumPy's "dd->d" as Numba's text."""
    args, result = ([np.dtype(char).name for char in part] for part in told.split("->"))
    return f"{result[0]}({', '.join(args)})"
