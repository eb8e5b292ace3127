"""`vectorize`, `guvectorize` and `reduce` for the target "cuda", on a CPU core.

Types, broadcasting and the choice of a signature are those of `numba.cuda.deviceufunc`, whose
classes leave to their subclasses how a kernel is compiled and launched and what a device array is.
Here a kernel is one of `simt`, and a device array an array of NumPy with `copy_to_host`.
"""

import inspect
import itertools
import linecache
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba.core import sigutils, types

from synknumba._errors import ArgumentError, KernelError
from synknumba.simt._jit import jit
from synknumba.simt._kernel import Kernel
from synknumba.simt._source.numba_cuda import cuda_module, from_numba_cuda
from synknumba.simt._source.pickling import reduce_object
from synknumba.simt._source.source_text import keep_text

_numbers = itertools.count()

_STAGER = """
def {name}({args}, out):
    i = __grid(1)
    if i < out.shape[0]:
        out[i] = __core({items})
"""

_TYPED = """
def typed({args}):
    result = __core({args})
"""

_GUFUNC_STAGER = """
def __gufunc_{name}({args}):
    __tid__ = __cuda__.grid(1)
    if __tid__ < {checkedarg}:
        __core__({argitems})
"""


class HostArray(np.ndarray[Any, Any]):
    """A NumPy array with the method of device arrays that `numba.cuda.deviceufunc` calls."""

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """Returns the elements as a plain array, or copies them to `ary`."""
        del stream
        if ary is None:
            return self.view(np.ndarray)
        np.copyto(ary, self)
        return ary


def _launch(kernel: Kernel, count: int, stream: Any, args: Any) -> None:
    kernel.forall(count, stream=stream)(*args)


def _spread(array: Any, shape: Any) -> Any:
    """Returns a view of an array of one element, or of fewer axes, as one of the shape."""
    return np.broadcast_to(array, shape, subok=True)


def _written(text: str, name: str, scope: dict[str, Any]) -> FunctionType:
    """Returns the function of this name in a text, whose source Python finds."""
    filename = f"<synknumba ufunc {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)  # noqa: S102  # written here
    function: FunctionType = scope[name]
    return function


class _OnHost:
    """Device arrays of `numba.cuda.deviceufunc`, which are arrays in the host's memory."""

    __slots__ = ()

    @staticmethod
    def is_device_array(value: Any) -> bool:
        """Returns whether this is an array that stands for one of numba.cuda's."""
        return isinstance(value, np.ndarray) and hasattr(value, "copy_to_host")

    @staticmethod
    def to_device(array: Any, stream: Any = 0) -> Any:
        """Returns the array: a kernel of a core works on the host's memory."""
        del stream
        return array

    as_device_array = to_device

    @staticmethod
    def allocate_device_array(shape: Any, dtype: Any, stream: Any = 0) -> HostArray:
        """Returns a new array, whose content is undefined."""
        del stream
        return np.empty(shape, dtype).view(HostArray)


def _deviceufunc() -> Any:
    """Returns numba.cuda's module of ufuncs; the import takes 0.3 s."""
    return from_numba_cuda("deviceufunc", "simt.vectorize or guvectorize")


@cache
def _vectorizer() -> type:
    """Returns the builder of ufuncs."""
    deviceufunc: Any = _deviceufunc()

    class Mechanism(_OnHost, deviceufunc.UFuncMechanism):  # type: ignore[misc]  # Numba has no types
        """One call of a ufunc."""

        DEFAULT_STREAM = 0
        launch = staticmethod(_launch)

        def _broadcast(self, arys: list[Any]) -> list[Any]:
            # numba.cuda's own aligns the axes of arrays with fewer dimensions at the first axis, in
            # place of the last.
            return [*np.broadcast_arrays(*arys, subok=True)]

        def to_host(self, array: Any, stream: Any) -> Any:
            return array.copy_to_host(stream=stream)

    class Vectorize(deviceufunc.DeviceVectorize):  # type: ignore[misc]
        """Builder of a ufunc."""

        def add(self, sig: Any = None) -> None:
            args, result = sigutils.normalize_signature(sig)
            signature = args
            if result is not None:
                signature = result(*args)
            core = jit(signature, device=True)(self.pyfunc)
            names = [f"a{number}" for number in range(len(args))]
            fields = {"args": ", ".join(names), "items": ", ".join(f"{name}[i]" for name in names)}
            text = _STAGER.format(name=_name(self.pyfunc), **fields)
            scope = {
                "__grid": cuda_module().grid,
                "__core": core,
                "__name__": self.pyfunc.__module__,
            }
            kernel = jit(_written(text, _name(self.pyfunc), scope))
            if result is None:
                result = jit(_written(_TYPED.format(**fields), "typed", scope)).type_of(
                    "result", *args
                )
            if result is None or result == types.none:
                raise KernelError(
                    f"{self.pyfunc.__qualname__} of a ufunc must return a value "
                    f"for {tuple(map(str, args))}"
                )
            self.kernelmap[tuple(map(deviceufunc.to_dtype, args))] = (
                deviceufunc.to_dtype(result),
                kernel,
            )

        def build_ufunc(self) -> "UFunc":
            return UFunc(self.pyfunc, self.kernelmap, Mechanism, self.made_by)

    return Vectorize


@cache
def _guvectorizer() -> type:
    """Returns the builder of generalised ufuncs."""
    deviceufunc: Any = _deviceufunc()

    class CallSteps(_OnHost, deviceufunc.GUFuncCallSteps):  # type: ignore[misc]
        """One call of a generalised ufunc."""

        __slots__ = ()

        def to_host(self, array: Any, host: Any) -> Any:
            return array.copy_to_host(host)

        def launch_kernel(self, kernel: Kernel, nelem: int, args: Any) -> None:
            _launch(kernel, nelem, 0, args)

    class GUFunc(deviceufunc.GeneralizedUFunc):  # type: ignore[misc]
        """A generalised ufunc."""

        _call_steps = CallSteps

        def __init__(self, function: FunctionType, kernels: Any, engine: Any, made_by: Any) -> None:
            super().__init__(kernels, engine)
            self.__name__ = function.__name__
            self._made_by = made_by

        def __reduce__(self) -> tuple[Any, ...]:
            return reduce_object(_built, self._made_by)

        _broadcast_scalar_input = staticmethod(_spread)
        _broadcast_add_axis = staticmethod(_spread)

    class GUVectorize(deviceufunc.DeviceGUFuncVectorize):  # type: ignore[misc]
        """Builder of a generalised ufunc."""

        def add(self, sig: Any = None) -> None:
            args, result = sigutils.normalize_signature(sig)
            if result not in {types.none, None}:
                # numba-cuda's message
                raise TypeError(
                    f"guvectorized functions cannot return values: signature {sig} "
                    f"specifies {result} return type"
                )
            dims = [len(part) for part in (*self.inputsig, *self.outputsig)]
            inputs, name = len(self.inputsig), _name(self.py_func)
            text = deviceufunc.expand_gufunc_template(
                _GUFUNC_STAGER, dims[:inputs], dims[inputs:], name, args
            )
            core = jit(tuple(args), device=True)(self.py_func)
            scope = {"__cuda__": cuda_module(), "__core__": core}
            scope["__name__"] = self.py_func.__module__
            kernel = jit(_written(text, f"__gufunc_{name}", scope))
            dtypes = [deviceufunc.to_dtype(getattr(kind, "dtype", kind)) for kind in args]
            self.kernelmap[tuple(dtypes[:inputs])] = tuple(dtypes[inputs:]), kernel

        def build_ufunc(self) -> Any:
            engine = deviceufunc.GUFuncEngine(self.inputsig, self.outputsig)
            return GUFunc(self.py_func, self.kernelmap, engine, self.made_by)

    return GUVectorize


_BUILDERS: Final = {"vectorize": _vectorizer, "guvectorize": _guvectorizer}


def _name(function: FunctionType) -> str:
    if function.__name__.isidentifier():
        return function.__name__
    return "function"  # a lambda


class UFunc:
    """A ufunc made by `vectorize`; like one of `numba.vectorize(..., target="cuda")`, it takes
    arrays of the declared types.

    Args:
        function: function of numbers.
        kernels: dtype of the result and kernel, by the dtypes of the arguments.
        mechanism: a subclass of `numba.cuda.deviceufunc.UFuncMechanism`.
        made_by: arguments of `_built`, for pickles.
    """

    def __init__(
        self, function: FunctionType, kernels: Any, mechanism: Any, made_by: tuple[Any, ...]
    ) -> None:
        self.functions, self._mechanism, self._made_by = kernels, mechanism, made_by
        self.__name__ = function.__name__
        self.py_func = function

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the plain function and the signatures; the receiver makes the ufunc again."""
        return reduce_object(_built, self._made_by)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns the results for the elements of the arguments, which are broadcast; `out` may
        take them.
        """
        return self._mechanism.call(self.functions, args, options)

    def reduce(self, arg: Any, stream: Any = 0) -> Any:
        """Returns the reduction of a 1d array by a ufunc of two arguments, by halves, as on a
        GPU.
        """
        if len(next(iter(self.functions))) != 2:
            raise ArgumentError(f"{self.__name__}.reduce needs a ufunc of 2 arguments")
        if arg.ndim != 1:
            raise ArgumentError(
                f"{self.__name__}.reduce needs an array of 1 dimension, got {arg.ndim}"
            )
        if arg.size == 0:
            raise TypeError("Reduction on an empty array.")  # numba-cuda's message
        values = np.array(arg, copy=True, subok=False)
        while values.size > 1:
            half = values.size // 2
            rest = values[2 * half :]
            values = np.asarray(self(values[:half], values[half : 2 * half], stream=stream)).astype(
                arg.dtype, copy=False
            )
            if rest.size:
                values[:1] = self(values[:1], rest, stream=stream)
        return values[0]


def vectorize(signatures: Any = (), **options: Any) -> Any:
    """Makes a ufunc of a function of numbers, in place of
    `numba.vectorize(signatures, target="cuda")`.

    Args:
        signatures: a signature or a list of them, as in numba; the arguments of a call must have
            one of these types.
        options: those of numba.vectorize.

    Returns:
        A decorator.
    """
    if inspect.isfunction(signatures) or not signatures:
        raise ArgumentError(
            "vectorize for the target 'cuda' needs signatures, such as "
            "@vectorize(['float32(float32)'], …)"
        )
    return _builder("vectorize", signatures, (), options)


def guvectorize(signatures: Any, layout: str, **options: Any) -> Any:
    """Makes a generalised ufunc, in place of
    `numba.guvectorize(signatures, layout, target="cuda")`.

    Args:
        signatures: a signature or a list of them, of inputs and outputs.
        layout: the dimensions of the arguments, such as "(m,n),(n,p)->(m,p)".
        options: those of numba.guvectorize.

    Returns:
        A decorator.
    """
    return _builder("guvectorize", signatures, (layout,), options)


def _builder(
    kind: str, signatures: Any, more: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[Any], Any]:
    if not isinstance(signatures, (list, tuple)) or _is_one(signatures):
        signatures = [signatures]
    options = {name: value for name, value in options.items() if name != "target"}

    def decorate(function: Any) -> Any:
        plain = getattr(function, "py_func", function)
        keep_text(plain)
        return _built(kind, plain, [*signatures], more, options)

    return decorate


def _built(
    kind: str,
    function: FunctionType,
    signatures: list[Any],
    more: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    of_builder, of_target = dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        if name in {"identity", "cache", "writable_args"}:
            of_builder[name] = value
        else:
            of_target[name] = value
    builder: Any = _BUILDERS[kind]()(function, *more, **of_builder, targetoptions=of_target)
    builder.made_by = kind, function, signatures, more, options
    for signature in signatures:
        builder.add(signature)
    return builder.build_ufunc()


def _is_one(signatures: Any) -> bool:
    """Returns whether a tuple is one signature, the types of the arguments."""
    return isinstance(signatures, tuple) and all(
        isinstance(part, types.Type) for part in signatures
    )


class Reduce:
    """A reduction of 1d arrays by a function of two numbers, in place of `cuda.reduce` and
    `cuda.Reduce`.

    The elements are combined from the first to the last; a GPU combines them in another order.

    Args:
        functor: function of two numbers, associative and commutative.
    """

    def __init__(self, functor: Any) -> None:
        combine = jit(functor, device=True)
        cuda = cuda_module()  # not when synknumba is imported

        @jit
        def kernel(values: Any, init: Any, out: Any) -> None:
            # as on a GPU, each partial result has the elements' type
            total = cuda.local.array(1, values.dtype)
            total[0] = init[0]
            for i in range(values.size):
                total[0] = combine(total[0], values[i])
            out[0] = total[0]

        self._kernel = kernel

    def __call__(
        self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0
    ) -> Any:
        """Returns the reduction of an array, or of its first `size` elements; `res` takes it as
        its first element.
        """
        del stream
        if arr.ndim != 1:
            raise TypeError("only support 1D array")  # numba-cuda's message
        values = arr[:size]
        first = np.array([init]).astype(values.dtype)
        if values.size == 0:
            return first[0]
        if res is not None:
            self._kernel[1, 1](values, first, res)
            return None
        self._kernel[1, 1](values, first.copy(), first)
        return first[0]


def reduce(functor: Any) -> Reduce:
    """Returns `Reduce(functor)`; to be used as a decorator, in place of `cuda.reduce`."""
    return Reduce(functor)
