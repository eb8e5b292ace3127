"""The decorators: `parallel` (kernels), `function` (array functions), `vectorize` (scalar
functions), `expectation` (means).

Type checkers see the wrapped function's parameters where callers pass all of them. They do not
where the decorator takes some away (`outputs=` of a kernel, `givens=`, `updates=`), nor for
functions of one row or number: their annotations are those of a row, and callers pass arrays.
Numba's own decorators have no types, so what they return has no parameters either.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypedDict, Unpack, overload

from synknumba._call.arguments import Output
from synknumba._call.function import Function
from synknumba._call.method import unbound
from synknumba._call.options import FunctionOptions, check_updates
from synknumba._device.compilers import plain_kernel, refuse_kernel
from synknumba._errors import ArgumentError, ReductionError, shortened
from synknumba._ops import reduction
from synknumba._ops.launch import named_launch
from synknumba._rowwise.expectation import Expectation
from synknumba._rowwise.map import Vectorized, python_function, ufunc_signatures
from synknumba._types import Block, Grid, as_flag, known_options
from synknumba._wire.program import FunctionStyle

_MISSING: Any = object()

P = ParamSpec("P")


class _Roles(TypedDict, total=False):
    """Options of `function` that leave the parameters as they are."""

    broadcast: Iterable[str]
    inout: Iterable[str]
    rows: Iterable[str]
    name: str | None


class _Calls(_Roles, total=False):
    """Options of `function` alone that leave the parameters as they are."""

    record: bool


class _Sizes(_Roles, total=False):
    """Options of `parallel` that leave the parameters as they are."""

    block: Block | None
    grid: Grid
    smem_bytes: int


class _Wrap(Protocol):
    """A decorator of a function that returns nothing, and whose callers pass all parameters."""

    def __call__(self, function: Callable[P, Any], /) -> Function[P, None]: ...


class _WrapWithResult(Protocol):
    """A decorator of a function whose callers pass all parameters."""

    def __call__(self, function: Callable[P, Any], /) -> Function[P, Any]: ...


# some parameters are bound; checkers cannot remove them
_WrapBound = Callable[[Callable[..., Any]], Function[..., Any]]


def _names(value: Iterable[str] | str, what: str) -> frozenset[str]:
    if isinstance(value, str):
        raise ArgumentError(
            f'{what} takes a tuple of names, got the string {value!r}; write {what}=("{value}",)'
        )
    try:
        return frozenset(value)
    except TypeError:
        raise ArgumentError(
            f'{what} takes a tuple of names of parameters, as in {what}=("x",); got {value!r}'
        ) from None


def _by_name(value: Any, what: str, example: str) -> dict[str, Any]:
    """Returns an option that is a dict by parameter; None is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise ArgumentError(
            f"{what} takes a dict by parameter, as in {what}={example}; got {value!r}"
        )
    return dict(value or {})


@overload
def parallel(kernel: Callable[P, Any], /, **options: Unpack[_Sizes]) -> Function[P, None]: ...
@overload
def parallel(**options: Unpack[_Sizes]) -> _Wrap: ...
@overload
def parallel(
    kernel: Callable[..., Any],
    /,
    *,
    outputs: Mapping[str, Output] | None,
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    **options: Unpack[_Sizes],
) -> Function[..., Any]: ...
@overload
def parallel(
    kernel: Callable[..., Any],
    /,
    *,
    givens: Mapping[str, Any] | None,
    updates: Mapping[str, Any] | None = None,
    **options: Unpack[_Sizes],
) -> Function[..., Any]: ...
@overload
def parallel(
    kernel: Callable[..., Any],
    /,
    *,
    updates: Mapping[str, Any] | None,
    **options: Unpack[_Sizes],
) -> Function[..., Any]: ...
@overload
def parallel(
    *,
    outputs: Mapping[str, Output] | None = None,
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    **options: Unpack[_Sizes],
) -> _WrapBound: ...
@known_options
def parallel(
    kernel: Any = None,
    /,
    *,
    outputs: Mapping[str, Output] | None = None,
    broadcast: Iterable[str] = (),
    inout: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    rows: Iterable[str] = (),
    block: Block | None = None,
    grid: Grid = None,
    smem_bytes: int = 0,
    name: str | None = None,
) -> Any:
    """Runs a Numba CUDA kernel on all ranks, each on its own rows of the arguments.

    The kernel may be decorated with `cuda.jit`, of Numba or numba-cuda-mlir, or be a plain function
    in that dialect. It is compiled for the device at its first call.

    Args:
        kernel: the kernel to decorate.
        outputs: {parameter: `output(...)`}: parameters that are allocated for the call and
            returned.
        broadcast: names of array parameters that are passed whole to every rank, instead of sharded
            along axis 0.
        inout: names of sharded parameters that the kernel writes; their rows are written back to
            the arguments.
        givens: {parameter: value or variable}: bound arguments, which callers omit. Arrays are read
            at each call.
        updates: {parameter: (variable, op)}: bound accumulators, which callers omit too. The
            parameter is an array of the variable's shape, set to the identity of `op` ("sum",
            "prod", "min" or "max") before the function runs, for the function to accumulate into.
            Slices are combined with `op`, and each rank's variable is assigned once, at the end of
            the call. To read the old value, bind the variable to another parameter with givens=.
            After an error on a rank, the variable's values are undefined.
        rows: names of parameters that take variables as rows: each rank passes the rows of its
            own array that `local_batch` selects, in `num_slices` slices. They are inputs unless
            also named in inout=. On each rank, their number of rows must equal that of the sharded
            arguments.
        block: threads per block, an int or a tuple of up to three; None for 256 or, with
            grid="elements", (32, 8) in two axes and (32, 4, 2) in three.
        grid: blocks per grid, an int or a tuple of up to three; None for one thread per row;
            "elements" for one thread per element, the last axis along x, so that
            `j, i = cuda.grid(2)` is the position of `u[i, j]`; or a function of the number of rows
            in the launch. A function with a parameter named `shapes` gets the shapes of the
            launch's array arguments by name: `lambda shapes: …`, or `lambda rows, shapes: …`. The
            rows and elements are those of the largest array with whose lengths the kernel compares
            its positions, as in `if i < x.shape[0]:`; else of the first sharded one. Without one,
            they are what each rank holds of the first variable in rows=, the first scattered
            one, or the first replica that is not 0-d; a rank that holds no rows of it launches
            nothing.
        smem_bytes: dynamic shared memory of a block, in bytes.
        name: name in messages; default: the kernel's.

    Returns:
        A `Function`; without `kernel`, a decorator that returns one.

    Raises:
        ArgumentError: a name is not a parameter of the kernel, or has two roles; or the kernel
            assigns to the bare name of a parameter that it is to write.
        LaunchError: CUDA does not allow the block, grid or shared memory size; or the kernel
            indexes an array by its position along y or z, but neither block nor grid has a size
            there. Calls raise it where a grid cannot be derived.

    Example:
        >>> import numpy as np
        >>> from numba import cuda
        >>> import synknumba as synk
        >>> @synk.parallel(outputs={"total": synk.output("sum", shape=())})
        ... @cuda.jit
        ... def weighted_sum(x, w, total):
        ...     i = cuda.grid(1)
        ...     if i < x.shape[0]:
        ...         cuda.atomic.add(total, 0, w * x[i])
        >>> with synk.fork(2, device="cpu"):
        ...     weighted_sum(np.arange(5.0), 0.5)
        np.float64(5.0)
    """

    @shortened
    def decorate(target: Any) -> Function[..., Any]:
        plain = plain_kernel(target)
        if plain is None:
            raise ArgumentError(
                f"parallel needs a Numba CUDA kernel, or a plain function "
                f"written as one, got {target!r}"
            )
        function, compile_options = plain
        declared = _by_name(outputs, "outputs", '{"total": synk.output("sum", shape=())}')
        for key, value in declared.items():
            if not isinstance(value, Output):
                op = value if isinstance(value, str) else "sum"
                raise ReductionError(
                    f"outputs[{key!r}] of a kernel needs an output, which tells what is "
                    f"allocated, got {value!r}; write "
                    f'outputs={{{key!r}: synk.output({op!r}, shape=(), dtype="float64")}} with the '
                    f"shape and dtype of yours"
                )
        called = name or function.__name__
        options = replace(
            _options("kernel", called, broadcast, givens, rows, inout, updates),
            outputs=declared,
            launch=named_launch(called, block, grid, smem_bytes),
            compile_options=compile_options,
        )
        return Function(function, options, name)

    return decorate if kernel is None else decorate(kernel)


@overload
def function(func: Callable[P, Any], /, **options: Unpack[_Calls]) -> Function[P, None]: ...
@overload
def function(
    func: Callable[P, Any], /, *, outputs: Any, **options: Unpack[_Calls]
) -> Function[P, Any]: ...
@overload
def function(**options: Unpack[_Calls]) -> _Wrap: ...
@overload
def function(*, outputs: Any, **options: Unpack[_Calls]) -> _WrapWithResult: ...
@overload
def function(
    func: Callable[..., Any],
    /,
    *,
    outputs: Any = ...,
    givens: Mapping[str, Any] | None,
    updates: Mapping[str, Any] | None = None,
    **options: Unpack[_Calls],
) -> Function[..., Any]: ...
@overload
def function(
    func: Callable[..., Any],
    /,
    *,
    outputs: Any = ...,
    updates: Mapping[str, Any] | None,
    **options: Unpack[_Calls],
) -> Function[..., Any]: ...
@overload
def function(
    *,
    outputs: Any = ...,
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    **options: Unpack[_Calls],
) -> _WrapBound: ...
@known_options
def function(
    func: Callable[..., Any] | None = None,
    /,
    *,
    outputs: Any = _MISSING,
    broadcast: Iterable[str] = (),
    inout: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    rows: Iterable[str] = (),
    record: bool = False,
    name: str | None = None,
) -> Any:
    """Runs a Python function on all ranks, each on its own rows: of NumPy arrays on the CPU, of
    CuPy arrays on GPUs.

    Arguments and results may be nested dicts, lists and tuples of arrays and numbers.

    Args:
        func: the function to decorate.
        outputs: how the ranks' results are combined: one op for the whole result, or a tree of ops
            that matches its structure. Required if the function returns anything. An op may be a
            function of two numbers, as for `output`; no identity is needed here. The op None gives
            a list with one entry per rank, which is None for a rank without rows.
        broadcast: names of parameters that are passed whole to every rank, instead of sharded along
            axis 0.
        inout: names of sharded parameters that the function writes; their rows are written back to
            the arguments.
        givens: {parameter: value or variable}: bound arguments, which callers omit. Arrays are read
            at each call.
        updates: {parameter: (variable, op)}: bound accumulators, which callers omit too. The
            parameter is an array of the variable's shape, set to the identity of `op` ("sum",
            "prod", "min" or "max") before the function runs, for the function to accumulate into.
            Slices are combined with `op`, and each rank's variable is assigned once, at the end of
            the call. To read the old value, bind the variable to another parameter with givens=.
            After an error on a rank, the variable's values are undefined.
        rows: names of parameters that take variables as rows: each rank passes the rows of its
            own array that `local_batch` selects, in `num_slices` slices. They are inputs unless
            also named in inout=. Sharded arguments may have a different number of rows: both are
            sliced by the same rule, a slice runs if either has rows, and "mean" is weighted by the
            rows of the sharded arguments.
        record: whether a GPU repeats what the function has put on it without running Python, which
            takes a call from some hundred microseconds to some ten. The function runs twice for
            each kind of arguments, which differ by shapes, dtypes and numbers, and must depend on
            nothing else; it must not look at numbers of the GPU. Matrices are multiplied by
            `matmul`. On cores it has no effect.
        name: name in messages; default: the function's.

    Returns:
        A `Function`; without `func`, a decorator that returns one. Of a method of an object, or an
        object with `__call__`, it passes the object at each call, as decorated methods do.

    Raises:
        ArgumentError: a name is not a parameter of the function, or has two roles; or the function
            assigns to the bare name of a parameter that it is to write, as in `new = x.sum(0)`
            instead of `new += x.sum(0)`; or to that of a variable in givens=, and never reads it
            again.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs={"sum": "sum", "largest": "max"})
        ... def statistics(x):
        ...     return {"sum": x.sum(), "largest": x.max()}
        >>> with synk.fork(2, device="cpu"):
        ...     statistics(np.arange(5.0))
        {'sum': np.float64(10.0), 'largest': np.float64(4.0)}
    """

    @shortened
    def decorate(target: Callable[..., Any]) -> Function[..., Any]:
        refuse_kernel("function", target)
        has_ops = outputs is not _MISSING
        ops = _plain_ops(outputs) if has_ops else None
        called = name or str(getattr(target, "__name__", "the function"))
        options = replace(
            _options("function", called, broadcast, givens, rows, inout, updates),
            ops=ops,
            has_ops=has_ops,
            record=as_flag(record, "record"),
        )
        if isinstance(target, Function):
            return Function(target.py_func, options, name)
        plain, instance, own_name = unbound(target)
        decorated = Function[..., Any](plain, options, name or own_name)
        return decorated if instance is None else decorated.__get__(instance)

    return decorate if func is None else decorate(func)


class _Estimating(TypedDict, total=False):
    """Options of `expectation`."""

    broadcast: Iterable[str]
    givens: Mapping[str, Any] | None
    rows: Iterable[str]
    weights: str | bool | None
    covariance: bool
    size: int | None
    dtype: Any
    name: str | None


@overload
def expectation(func: Callable[..., Any], /, **options: Unpack[_Estimating]) -> Expectation: ...
@overload
def expectation(**options: Unpack[_Estimating]) -> Callable[[Callable[..., Any]], Expectation]: ...
@known_options
def expectation(
    func: Callable[..., Any] | None = None,
    /,
    *,
    broadcast: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    rows: Iterable[str] = (),
    weights: str | bool | None = None,
    covariance: bool = False,
    size: int | None = None,
    dtype: Any = "float64",
    name: str | None = None,
) -> Any:
    """Estimates the mean of a function over all rows, with its standard error.

    The function takes one row and returns a number or a tuple of numbers. It is compiled into a
    kernel, so it must be written like a Numba device function; functions that it calls must be
    decorated with `numba.njit` or `numba.cuda.jit(device=True)`.

    Calls take the options `block=`, for the error bar of correlated rows, and `until=` with
    `min_rows=` and `max_rows=`, to take rows until the estimate is good enough; see
    `Expectation.__call__`. `Expectation.derivative` and `gradient` make expectations of
    derivatives by parameters.

    Args:
        func: the function to decorate.
        broadcast: names of array parameters that are passed whole instead of row by row.
        givens: {parameter: value or variable}: bound arguments, which callers omit. Arrays are read
            at each call.
        rows: names of parameters that take variables as rows, as for `parallel`.
        weights: name of the parameter that holds the row's weight, or True if the last number
            returned is the weight. The mean is then the self-normalised mean Σ w v / Σ w. Weights
            must be non-negative; a negative one makes all results NaN.
        covariance: whether to compute the covariance of the values returned.
        size: length of the tuple that the function returns, 0 for a single number; required if its
            source does not show it.
        dtype: dtype in which each CUDA thread sums, float64 or float32; all further arithmetic is
            in float64.
        name: name in messages; default: the function's.

    Returns:
        An `Expectation`, which is called like a `Function` and returns an `Estimate`; without
        `func`, a decorator.

    Raises:
        ArgumentError: a name is not a parameter of the function, or the function's result is not as
            required.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.expectation
        ... def square(x):
        ...     return x * x
        >>> with synk.fork(2, device="cpu"):
        ...     print(square(np.arange(10.0)))
        28.5(9.0)
    """

    @shortened
    def decorate(target: Callable[..., Any]) -> Expectation:
        refuse_kernel("expectation", target)
        options = _options("kernel", "", broadcast, givens, rows)
        return Expectation(
            target, options, name, weights=weights, covariance=covariance, size=size, dtype=dtype
        )

    return decorate if func is None else decorate(func)


class _Mapping(TypedDict, total=False):
    """Options of `vectorize`."""

    signatures: Any
    broadcast: Iterable[str]
    givens: Mapping[str, Any] | None
    rows: Iterable[str]
    name: str | None


@overload
def vectorize(func: Callable[..., Any], /, **options: Unpack[_Mapping]) -> Vectorized: ...
@overload
def vectorize(
    func: str | list[Any] | tuple[Any, ...] | None = None, /, **options: Unpack[_Mapping]
) -> Callable[[Callable[..., Any]], Vectorized]: ...
@known_options
def vectorize(
    func: Any = None,
    /,
    *,
    signatures: Any = (),
    broadcast: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    rows: Iterable[str] = (),
    name: str | None = None,
) -> Any:
    """Applies a scalar function elementwise to sharded arrays, on all ranks.

    The function is compiled into a kernel, so it must be written like a Numba device function;
    functions that it calls must be decorated with `numba.njit` or `numba.cuda.jit(device=True)`.

    Args:
        func: the function to decorate, which takes and returns numbers, or a ufunc made from one by
            `numba.vectorize`. Or the signatures, as for `numba.vectorize`.
        signatures: one or a list of signatures such as "float32(float32, float32)". The first to
            which all arguments cast safely is used, and the arguments are converted to its types.
            Without signatures, the argument types are those of the call, and Numba infers the
            result type.
        broadcast: names of array parameters whose axis 0 is not rows: they are passed whole, and
            broadcast as in NumPy.
        givens: {parameter: value or variable}: bound arguments, which callers omit. Arrays are read
            at each call.
        rows: names of parameters whose variables are rows, as for `parallel`; arguments that
            are not variables are treated as usual.
        name: name in messages; default: the function's.

    Returns:
        A `Vectorized`, which is called like a `Function`; without `func`, a decorator that returns
        one.

    Raises:
        ArgumentError: a name is not a parameter of the function or has two roles, or a signature is
            invalid.

    Example:
        >>> import numpy as np
        >>> import math
        >>> import synknumba as synk
        >>> @synk.vectorize
        ... def hypotenuse(a, b):
        ...     return math.sqrt(a * a + b * b)
        >>> with synk.fork(2, device="cpu"):
        ...     hypotenuse(np.array([3.0, 5.0]), np.array([4.0, 12.0]))
        array([ 5., 13.])
    """
    declared = func if isinstance(func, str | list | tuple) else signatures

    @shortened
    def decorate(target: Any) -> Vectorized:
        refuse_kernel("vectorize", target)
        options = _options("kernel", "", broadcast, givens, rows)
        return Vectorized(
            python_function(target), options, declared or ufunc_signatures(target), name
        )

    return decorate if func is None or declared is func else decorate(func)


def _options(
    style: FunctionStyle,
    called: str,
    broadcast: Iterable[str],
    givens: Mapping[str, Any] | None,
    rows: Iterable[str],
    inout: Iterable[str] = (),
    updates: Mapping[str, Any] | None = None,
) -> FunctionOptions:
    """Returns the options that all decorators have; `called` is the function's name in messages."""
    return FunctionOptions(
        style,
        broadcast=_names(broadcast, "broadcast"),
        inout=_names(inout, "inout"),
        givens=_by_name(givens, "givens", '{"x": data}'),
        sliceable=_names(rows, "rows"),
        updates=check_updates(called, _by_name(updates, "updates", '{"total": (variable, "sum")}')),
    )


def _plain_ops(ops: Any) -> Any:
    """Checks a tree of ops given by the user, and returns it with ops converted."""
    if isinstance(ops, dict):
        return {key: _plain_ops(value) for key, value in ops.items()}
    if isinstance(ops, list | tuple):
        return tuple(_plain_ops(value) for value in ops)
    op = ops.op if isinstance(ops, Output) else reduction.as_op(ops, "outputs")
    if op in reduction.LOCATING:
        raise ReductionError(
            f"outputs: op {op!r} is for kernel outputs only; return the values of all rows "
            f'with "gather", or use None'
        )
    return op
