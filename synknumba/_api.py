"""The decorators: `parallel` for kernels, `function`, `vectorize` for functions of numbers, `expectation` for means."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from synknumba._call.arguments import Output
from synknumba._call.function import Function
from synknumba._call.options import FunctionOptions, check_updates
from synknumba._errors import ArgumentError, ReductionError
from synknumba._ops import reduction
from synknumba._ops.launch import LaunchConfig
from synknumba._rowwise.expectation import Expectation, ExpectationOptions
from synknumba._rowwise.map import Vectorized, python_function, ufunc_signatures
from synknumba._types import Block, Grid

_MISSING: Any = object()


def _names(value: Iterable[str] | str, what: str) -> frozenset[str]:
    if isinstance(value, str):
        raise ArgumentError(f'{what} takes a tuple of names, got the string {value!r}; write {what}=("{value}",)')
    return frozenset(value)


_KEPT_OPTIONS = ("fastmath", "debug", "lineinfo", "opt", "max_registers")


def _unwrap(kernel: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The plain function of a kernel, and the options it was compiled with."""
    function = getattr(kernel, "py_func", kernel)
    if not callable(function) or not hasattr(function, "__code__"):
        raise ArgumentError(f"parallel wraps a Numba CUDA kernel or a plain function in that dialect, got {kernel!r}")
    told = getattr(kernel, "targetoptions", None) or {}
    return function, {name: told[name] for name in _KEPT_OPTIONS if told.get(name) is not None}


def parallel(
    kernel: Any = None,
    /,
    *,
    outputs: Mapping[str, Output] | None = None,
    broadcast: Iterable[str] = (),
    inout: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    sliceable: Iterable[str] = (),
    block: Block = 256,
    grid: Grid = None,
    smem_bytes: int = 0,
    name: str | None = None,
) -> Any:
    """Runs a Numba CUDA kernel on every rank's rows.

    The kernel may be decorated with `numba.cuda.jit`, or be a plain function in that dialect. It is compiled for the device at
    its first call.

    Args:
        kernel: what is decorated.
        outputs: parameters that are allocated for the call and returned, each declared with `output`.
        broadcast: array parameters that every rank gets whole.
        inout: sharded parameters whose rows the kernel writes; they are written back.
        givens: values or variables bound to parameters, which callers then leave out. Arrays are read at each call.
        updates: {parameter: (variable, op)}: parameters that callers leave out too. Each is an array of the variable's shape,
            set to the identity of `op` ("sum", "prod", "min" or "max") before the function runs, for it to accumulate into;
            slices are put together with `op`, and each rank's variable is assigned once, at the end. To read the old value,
            bind the variable to another parameter with givens=. After an error on a rank its values are undefined.
        sliceable: parameters that are variables of rows: each rank gets rows of its own array, those that `local_batch`
            selects, in `num_slices` parts. They are inputs, unless they are in inout= too. On each rank there must be as many
            as of the sharded arguments.
        block: CUDA threads per block, an int or a tuple of up to three.
        grid: blocks, an int or a tuple; a function of the row count of the launch; None for one thread per row.
        smem_bytes: dynamic shared memory of a block, in bytes.
        name: for messages; default: the kernel's.

    Returns:
        A `Function`; used with arguments, a decorator that makes one.

    Raises:
        ArgumentError: a name is not a parameter of the kernel, or has two roles.
        LaunchError: the block, grid or smem size is not possible.
    """

    def decorate(target: Any) -> Function:
        function, compile_options = _unwrap(target)
        declared = dict(outputs or {})
        for key, value in declared.items():
            if not isinstance(value, Output):
                raise ReductionError(
                    f"outputs[{key!r}] of a kernel needs synknumba.output(op, shape=…, dtype=…), got {value!r}"
                )
        options = FunctionOptions(
            style="kernel",
            outputs=declared,
            ops=None,
            has_ops=True,
            broadcast=_names(broadcast, "broadcast"),
            inout=_names(inout, "inout"),
            givens=dict(givens or {}),
            sliceable=_names(sliceable, "sliceable"),
            updates=check_updates(name or str(function.__name__), updates or {}),
            launch=LaunchConfig(block, grid, smem_bytes),
            compile_options=compile_options,
        )
        return Function(function, options, name)

    return decorate if kernel is None else decorate(kernel)


def function(
    func: Callable[..., Any] | None = None,
    /,
    *,
    outputs: Any = _MISSING,
    broadcast: Iterable[str] = (),
    inout: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    sliceable: Iterable[str] = (),
    name: str | None = None,
) -> Any:
    """Runs a Python function of device arrays on every rank's rows: NumPy arrays on the CPU, CuPy arrays on GPUs.

    Arguments and results may be nested dicts, lists and tuples of arrays and numbers.

    Args:
        func: what is decorated.
        outputs: how results are put together: one op for all that is returned, or a tree of ops of its shape. Needed where the
            function returns something. An op may be a function of two numbers, as for `output`; it needs no identity here.
        broadcast: parameters that every rank gets whole.
        inout: sharded parameters whose rows the function writes; they are written back.
        givens: values or variables bound to parameters, which callers then leave out. Arrays are read at each call.
        updates: {parameter: (variable, op)}: parameters that callers leave out too. Each is an array of the variable's shape,
            set to the identity of `op` ("sum", "prod", "min" or "max") before the function runs, for it to accumulate into;
            slices are put together with `op`, and each rank's variable is assigned once, at the end. To read the old value,
            bind the variable to another parameter with givens=. After an error on a rank its values are undefined.
        sliceable: parameters that are variables of rows: each rank gets rows of its own array, those that `local_batch`
            selects, in `num_slices` parts. They are inputs, unless they are in inout= too. Sharded arguments may have other
            numbers of rows: each is cut by the same rule, a slice runs where either has rows, and "mean" is weighted by the
            rows of the sharded arguments.
        name: for messages; default: the function's.

    Returns:
        A `Function`; used with arguments, a decorator that makes one.
    """

    def decorate(target: Callable[..., Any]) -> Function:
        has_ops = outputs is not _MISSING
        ops = _plain_ops(outputs) if has_ops else None
        options = FunctionOptions(
            style="function",
            outputs={},
            ops=ops,
            has_ops=has_ops,
            broadcast=_names(broadcast, "broadcast"),
            inout=_names(inout, "inout"),
            givens=dict(givens or {}),
            sliceable=_names(sliceable, "sliceable"),
            updates=check_updates(name or str(getattr(target, "__name__", "the function")), updates or {}),
            launch=None,
            compile_options={},
        )
        return Function(getattr(target, "py_func", target) if isinstance(target, Function) else target, options, name)

    return decorate if func is None else decorate(func)


def expectation(
    func: Callable[..., Any] | None = None,
    /,
    *,
    broadcast: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    sliceable: Iterable[str] = (),
    weights: str | bool | None = None,
    covariance: bool = False,
    size: int | None = None,
    dtype: Any = "float64",
    name: str | None = None,
) -> Any:
    """Takes the mean of a function over all rows, with its standard error.

    The function gets one row and returns a number, or a tuple of numbers. It becomes part of a kernel, so it is written as a
    device function of Numba's; what it calls must be decorated with `numba.njit` or `numba.cuda.jit(device=True)`.

    Args:
        func: what is decorated.
        broadcast: array parameters that the function gets whole.
        givens: values or variables bound to parameters, which callers then leave out. Arrays are read at each call.
        sliceable: parameters that are variables of rows, as for `parallel`.
        weights: the parameter that is the row's weight, or True where the last of the numbers returned is. The mean is then the
            self-normalised one, Σ w v / Σ w. Weights are at least 0; a negative one makes everything NaN.
        covariance: whether to keep the covariance of the values returned.
        size: how many numbers the function returns in a tuple, 0 for a number alone; needed where its source does not show it.
        dtype: of the sums that each CUDA thread makes, float64 or float32. Beyond, all is float64.
        name: for messages; default: the function's.

    Returns:
        An `Expectation`, which is called like a `Function` and gives an `Estimate`; used with arguments, a decorator.

    Raises:
        ArgumentError: a name is not a parameter of the function, or it does not return what it should.
    """

    def decorate(target: Callable[..., Any]) -> Expectation:
        kernel = _kernel_options(broadcast, givens, sliceable)
        return Expectation(target, ExpectationOptions(kernel, weights, covariance, size, dtype), name)

    return decorate if func is None else decorate(func)


def vectorize(
    func: Any = None,
    /,
    *,
    signatures: Any = (),
    broadcast: Iterable[str] = (),
    givens: Mapping[str, Any] | None = None,
    sliceable: Iterable[str] = (),
    name: str | None = None,
) -> Any:
    """Applies a function of numbers to each element of the rows, on all ranks.

    The function becomes part of a kernel, so it is written as a device function of Numba's; what it calls must be decorated
    with `numba.njit` or `numba.cuda.jit(device=True)`.

    Args:
        func: what is decorated: a function that returns one number, or a ufunc that `numba.vectorize` made of one. Or, as for
            `numba.vectorize`, the signatures.
        signatures: one or a list, as "float32(float32, float32)": the first that all arguments cast to safely is taken, and
            they are converted to its types. Without, the types are the arguments', and the result's is what Numba finds.
        broadcast: array parameters whose axis 0 is not rows: every rank gets them whole, and they broadcast as in NumPy.
        givens: values or variables bound to parameters, which callers then leave out. Arrays are read at each call.
        sliceable: parameters whose variables are rows, as for `parallel`; other arguments are what they are elsewhere.
        name: for messages; default: the function's.

    Returns:
        A `Vectorized`, which is called like a `Function`; used with arguments, a decorator that makes one.

    Raises:
        ArgumentError: a name is not a parameter of the function, or has two roles; a signature is none.
    """
    declared = func if isinstance(func, str | list | tuple) else signatures

    def decorate(target: Any) -> Vectorized:
        options = _kernel_options(broadcast, givens, sliceable)
        return Vectorized(python_function(target), options, declared or ufunc_signatures(target), name)

    return decorate if func is None or declared is func else decorate(func)


def _kernel_options(broadcast: Iterable[str], givens: Mapping[str, Any] | None, sliceable: Iterable[str]) -> FunctionOptions:
    """Those of generated kernels, as far as the decorator tells them."""
    return FunctionOptions(
        style="kernel",
        outputs={},
        ops=None,
        has_ops=True,
        broadcast=_names(broadcast, "broadcast"),
        inout=frozenset(),
        givens=dict(givens or {}),
        sliceable=_names(sliceable, "sliceable"),
        updates={},
        launch=None,
        compile_options={},
    )


def _plain_ops(ops: Any) -> Any:
    """A tree of ops, checked."""
    if isinstance(ops, dict):
        return {key: _plain_ops(value) for key, value in ops.items()}
    if isinstance(ops, list | tuple):
        return tuple(_plain_ops(value) for value in ops)
    op = ops.op if isinstance(ops, Output) else reduction.as_op(ops, "outputs")
    if op in reduction.LOCATING:
        raise ReductionError(
            f'outputs: op {op!r} is for outputs of kernels; return the values of all rows, with "gather", or use None'
        )
    return op
