"""`Vectorized`: a function of numbers becomes a kernel that maps it over elements, and one that
reduces rows with it.

f(x, y, 0.5)   types, shapes → kernel, generated once → Function → rows gathered, or written to out
f.reduce(x)    type → kernel → Function → a row for each chunk → the same kernel in the coordinator → a row
"""  # noqa: E501

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numba.np.numpy_support import as_dtype

from synknumba._call.arguments import IndexRange, Output
from synknumba._call.function import Function
from synknumba._call.future import Future
from synknumba._call.options import CallOptions, FunctionOptions
from synknumba._call.report import PlanReport
from synknumba._errors import ArgumentError, shortened
from synknumba._host.data import Data
from synknumba._progress import Progress
from synknumba._rowwise.arguments import (
    ARRAYS,
    Description,
    describe,
    merged,
    ndim_of,
    operand,
    quick_key,
    result_row,
    rows_hint,
    variable_shape,
)
from synknumba._rowwise.base import split_selection
from synknumba._rowwise.generate import INDEX_TYPES, define_kernel, kernel_name
from synknumba._rowwise.map_kernels import OUT, MapRecipe, element_launch, map_source
from synknumba._rowwise.reduce import Reducible
from synknumba._rowwise.types import Loop, cast_name, integer_limits, out_of_range
from synknumba._types import DeviceKind, Shape, class_text
from synknumba._variables.variable import Variable, state_of
from synknumba._world.engine import Engine
from synknumba._world.open_world import current_world, open_world

# Blocks of a launch. A core runs one thread per element. On a GPU threads loop over rows: about as
# many blocks as fit on 132 multiprocessors at once a few times over; where rows are numbers, of
# which there are more, up to 16 such waves.
_BLOCKS: Mapping[DeviceKind, int | None] = {"cpu": None, "cuda": 4224}
_WAVES = 16

# Argument types that decide on the kernel whatever the value.
_PLAIN = frozenset(
    {
        bool,
        float,
        complex,
        IndexRange,
        type(None),
        *(np.dtype(char).type for char in "?bhilBHILfdFD"),
    }
)


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """Everything that the kernel for a call depends on."""

    given: tuple[tuple[str, Description], ...]  # the arguments by parameter
    loop: Loop  # the types that the function is compiled for
    row: Shape  # shape of a row of the result, as the kernel sees it
    place: str | None  # the parameter that the result is written to; None where it is gathered
    # arguments that are the same array as `place`; the kernel reads them there
    aliases: tuple[str, ...]
    variables: frozenset[str]  # parameters that are variables of rows
    flat: frozenset[str] = frozenset()  # arrays whose axes of a row the kernel sees as one


@final
@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with such arguments have in common."""

    function: Function[..., Any]  # runs the kernel
    row: Shape  # shape of a row of the result
    # positions of its arguments; the one after the last is `out`, where that is none of them
    passed: tuple[int, ...]
    # (position, least, most) of each Python integer: the range of its type
    limits: tuple[tuple[int, float, float], ...]


@final
class Vectorized(Reducible):
    """A function of numbers, applied to each element. Made by `vectorize`; called like a
    `Function`.

    Call it as `f(*args, out=None, batch=None, local_batch=None, num_slices=1, shards=None,
    progress=None, **kwargs)`. Arrays broadcast against
    each other as in NumPy, but for axis 0 of `Data`, NumPy arrays and variables in `rows=`,
    which is rows. The result has as many rows. It is gathered, or written to `out`, which is then
    returned.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.vectorize
        ... def clipped(x, limit):
        ...     return min(x, limit)
        >>> x = synk.data(np.arange(4.0))
        >>> with synk.fork(2, device="cpu"):
        ...     clipped(x, 2.0, out=x) is x
        True
        >>> x[:]
        array([0., 1., 2., 2.])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        signatures: Any,
        name: str | None,
    ) -> None:
        super().__init__(function, options, signatures, name)
        # first axis that is no axis of rows
        self._firsts = [int(name not in options.broadcast) for name in self._binder.passed]

    # ---- calls

    @shortened
    def __call__(
        self,
        *args: Any,
        out: Any = None,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        progress: Progress | None = None,
        **kwargs: Any,
    ) -> Any:
        """Applies the function to every element of the rows of all ranks.

        Raises:
            SynkError: as for a `Function`.
            DataError: shapes do not broadcast.
            ArgumentError: Numba cannot compile the function for the types given, or the result does
                not cast to `out`.
        """
        function, passed, row = self._prepared(self._device(current_world()), out, args, kwargs)
        selection = {
            "batch": batch,
            "local_batch": local_batch,
            "num_slices": num_slices,
            "shards": shards,
        }
        result = function(*passed, **selection, progress=progress)
        return result.reshape(len(result), *row) if out is None else out

    @shortened
    def submit(
        self,
        *args: Any,
        out: Any = None,
        batch: Any = None,
        local_batch: Any = None,
        num_slices: int = 1,
        shards: int | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Starts a call, and returns while the ranks work; see `Function.submit`. `out` is
        written when the call has ended.
        """
        function, passed, row = self._prepared(self._device(current_world()), out, args, kwargs)
        options = CallOptions(batch, num_slices, local_batch=local_batch, shards=shards)

        def shaped(_: Engine, result: Any) -> Any:
            return result.reshape(len(result), *row) if out is None else out

        return function._submit_then(shaped, passed, {}, options)  # noqa: SLF001

    @shortened
    def as_serial(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Applies the function on the root alone, to all rows."""
        selection = split_selection(kwargs)
        function, passed, row = self._prepared(self._device(current_world()), out, args, kwargs)
        result = function.as_serial(*passed, **selection)
        return result.reshape(len(result), *row) if out is None else out

    @shortened
    def plan(
        self, *args: Any, out: Any = None, world_size: int | None = None, **kwargs: Any
    ) -> PlanReport:
        """Plans a call without making it, as `Function.plan` does."""
        selection = split_selection(kwargs)
        function, passed, _ = self._prepared(self._device(open_world()), out, args, kwargs)
        return function.plan(*passed, **selection, world_size=world_size)

    # ---- kernels that map

    def _prepared(
        self, device: DeviceKind, out: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Function[..., Any], tuple[Any, ...], Shape]:
        """The function for such arguments, what to call it with, by position, and the shape of a
        row of the result.
        """
        if out is not None:
            self._check_writeable(out)
        key = None if kwargs else self._quick_key(device, args, out)
        call = self._known.get(key)
        if call is None:
            values = self._binder.match(args, kwargs)
            call = self._call(device, out, values)
            args = tuple(values[name] for name in self._binder.passed)
            if key is not None:
                self._known[key] = call
        for position, least, most in call.limits:
            if not least <= args[position] <= most:
                name = self._binder.passed[position]
                raise out_of_range(self.name, name, args[position], least, most)
        if out is not None:
            args = (*args, out)
        return call.function, tuple([args[position] for position in call.passed]), call.row

    def _call(self, device: DeviceKind, out: Any, values: Mapping[str, Any]) -> _Call:
        broadcast, sliceable = self._options.broadcast, self._options.sliceable
        descriptions, arrays = {}, {}
        for name, value in values.items():
            description = describe(self.name, name, value, broadcast=broadcast, sliceable=sliceable)
            descriptions[name] = description
            if description.kind in ARRAYS:
                arrays[name] = value
        row_of_out: Shape | None = None
        places: tuple[str, ...] = ()
        if out is not None:
            row_of_out, places = self._written(out, values)
        row = result_row(self.name, descriptions, row_of_out, rows_hint(values, sliceable))
        loop = self._signatures.choose([*descriptions.values()])
        if places:
            arrays[places[0]] = out
        layout = _layout(descriptions, loop, row, arrays, places)
        function = self._kernel((device, layout), self._make)
        result = as_dtype(loop.result)
        if out is not None and not np.can_cast(result, out.dtype, "same_kind"):
            raise ArgumentError(
                f"the result of {self.name} has dtype {result}, which does not cast to out "
                f"of dtype {out.dtype} as "
                '"same_kind"; pass an out of another dtype, or convert in the function'
            )
        names = self._binder.passed
        passed = [position for position, name in enumerate(names) if name not in places[1:]]
        if OUT in places:
            passed.append(len(names))
        limits = []
        for kind, (name, description) in zip(loop.args, descriptions.items(), strict=True):
            if description.python is not int:
                continue
            least, most = integer_limits(kind)
            if not least <= values[name] <= most:
                raise out_of_range(self.name, name, values[name], least, most)
            if name in names:  # others are bound by givens=
                limits.append((names.index(name), least, most))
        return _Call(function, row, tuple(passed), tuple(limits))

    def _check_writeable(self, out: Any) -> None:
        if isinstance(out, Data) and out.frozen:
            raise ArgumentError(
                f"out of {self.name} is frozen, so its rows cannot be written; call thaw() first, "
                "or pass another out"
            )
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ArgumentError(
                f"out of {self.name} is a read-only array, so its rows cannot be written; pass "
                "another, or a copy"
            )

    def _quick_key(self, device: DeviceKind, args: tuple[Any, ...], out: Any) -> Any:
        """The key of calls that share a `_Call`, where it is quick to compute; it makes a call
        take 15 µs instead of 35.
        """
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

    def _written(self, out: Any, values: Mapping[str, Any]) -> tuple[Shape, tuple[str, ...]]:
        """The shape of a row of `out`, and its parameters: the arguments that are the same
        array, or `OUT`.
        """
        if not isinstance(out, Variable | Data | np.ndarray):
            raise ArgumentError(
                f"out of {self.name} must be Data, a Variable or a NumPy array, "
                f"got {class_text(out)}"
            )
        if not ndim_of(out):
            raise ArgumentError(f"out of {self.name} must be an array with rows, got {out!r}")
        if isinstance(out, np.ndarray):  # it is copied, so arguments need not be the same
            return out.shape[1:], (OUT,)
        names = [name for name, value in values.items() if value is out]
        if isinstance(out, Variable):
            row = variable_shape(self.name, OUT, state_of(out), rows=True)
            whole, way_out = (
                {*names}.difference(self._options.sliceable),
                "name it in rows= of the decorator",
            )
        else:
            row = out.shape[1:]
            whole, way_out = {*self._options.broadcast}, "leave it out of broadcast="
        for name in names:
            if name in whole:
                raise ArgumentError(
                    f"{name} and out of {self.name} are the same {type(out).__name__}; {way_out}"
                )
        return row, tuple(names) or (OUT,)

    def _make(self, device: DeviceKind, layout: _Layout) -> Function[..., Any]:
        loop = layout.loop
        operands = {}
        for (name, description), kind in zip(layout.given, loop.args, strict=True):
            cast = None if description.element == kind else cast_name(kind)
            operands[name] = operand(description, layout.row, cast)
        name = kernel_name("map_of", self.py_func.__name__)
        result, place = cast_name(loop.result), layout.place or OUT
        counted, row = _BLOCKS[device] is None, layout.row
        recipe = MapRecipe(name, operands, len(row), result, place, layout.aliases, counted)
        scope = {cast_name(kind): kind for kind in (*loop.args, loop.result)}
        if not counted:
            scope |= INDEX_TYPES
        kernel = define_kernel(
            map_source(recipe), name, "vectorize", self._inner.device_function, scope
        )
        gathered, inout, unfit = {}, frozenset({place}), ""
        if layout.place is None:
            inout = frozenset()
            gathered[OUT] = Output("gather", row, as_dtype(loop.result), filled=False)
            unfit = (
                f"{self.name} gives its result to the script, which waits for the whole sequence; "
                "pass out=, a variable or an array"
            )
        options = replace(
            self._options,
            outputs=gathered,
            inout=inout,
            sliceable=layout.variables,
            launch=element_launch(row, _BLOCKS[device], _WAVES),
            flat=layout.flat,
            unfit=unfit,
        )
        return Function(kernel, options, self.name, self._inner)


def _layout(
    descriptions: Mapping[str, Description],
    loop: Loop,
    row: Shape,
    arrays: Mapping[str, Any],
    places: tuple[str, ...],
) -> _Layout:
    place, aliases = next(iter(places), None), places[1:]
    of_variables = {name for name, value in arrays.items() if isinstance(value, Variable)}
    divided = {OUT, *(name for name in descriptions if descriptions[name].kind == "rows")}
    variables = frozenset(of_variables & divided).difference(aliases)
    flat = None
    # A core is fastest at loops over two axes. The ranks' arrays of a variable keep their shape.
    if len(row) > 1 and not of_variables:
        flat = merged(descriptions, row)
    if flat is None:
        return _Layout(tuple(descriptions.items()), loop, row, place, aliases, variables)
    names, row = frozenset(arrays).difference(aliases), (math.prod(row),)
    return _Layout(tuple(flat.items()), loop, row, place, aliases, variables, names)


def python_function(target: Any) -> Callable[..., Any]:
    """The plain function of a function, a Numba dispatcher, or a ufunc of `numba.vectorize`."""
    dispatcher, wrapped = getattr(target, "_dispatcher", None), getattr(target, "__wrapped__", None)
    plain = getattr(target, "py_func", None), getattr(dispatcher, "py_func", None)
    for candidate in (*plain, target, wrapped):
        if inspect.isfunction(candidate):
            return candidate
    hint = ""
    if isinstance(target, np.ufunc):
        hint = "; a ufunc does not expose its Python function, so pass that"
    raise ArgumentError(f"vectorize wraps a function of numbers, got {target!r}{hint}")


def ufunc_signatures(target: Any) -> list[str]:
    """The signatures that a ufunc of `numba.vectorize` was declared with, as Numba's text:
    NumPy's "dd->d" is one of them.
    """
    if not getattr(target, "_frozen", False):  # Numba has no public name for it
        return []
    signatures = []
    for loop in target.types:
        args, result = ([np.dtype(char).name for char in part] for part in loop.split("->"))
        signatures.append(f"{result[0]}({', '.join(args)})")
    return signatures
