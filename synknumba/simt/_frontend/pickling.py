"""Pickles of kernels that no module holds under their name: functions inside others, and those of a script.

`pickle` cannot do these, `cloudpickle` can. So a kernel's pickle holds one of cloudpickle's, in which everything else is plain:
a function may lead back to its kernel.

Functions in CUDA C or PTX that kernels call, as `cuda.declare_device` makes them known to Numba: to this process alone.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import cloudpickle


def is_foreign(value: object) -> bool:
    """Whether the value is what `cuda.declare_device` returns."""
    kind = type(value)
    return kind.__name__ == "ExternFunction" and kind.__module__.startswith("numba.")


def reduce_foreign(function: Any) -> tuple[Any, ...]:
    """What a pickle holds of one: how it is declared.

    Args:
        function: one that is declared in this process.
    """
    return _declared, (cloudpickle.dumps((function.name, function.sig, _options(function))),)


@cache  # two of one name are two functions to the linker, which then refuses the second
def _declared(packed: bytes) -> Any:
    from numba import cuda

    name, signature, options = pickle.loads(packed)  # noqa: S301  # a part of the pickle that is being read
    if "link" in options:
        options["link"] = [_linked(code) for code in options["link"]]
    return cuda.declare_device(name, signature, **options)


@cache  # as one that several functions are in
def _linked(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301  # as above


def _options(function: Any) -> dict[str, Any]:
    """The arguments of `cuda.declare_device` beside name and signature, as Numba has them; what is linked as pickles."""
    from numba.cuda.descriptor import cuda_target

    ((_, lowering),) = cuda_target.target_context._defns[function].versions  # noqa: SLF001  # there is no other way
    if not lowering.libs:  # the numba.cuda that comes with Numba has no other arguments
        return {}
    (library,), (descriptor,) = lowering.libs, lowering.__defaults__
    abi = "c" if type(descriptor.call_conv).__name__ == "CUDACABICallConv" else "numba"
    linked = [cloudpickle.dumps(code) for code in library._linking_files]  # noqa: SLF001
    return {"link": linked, "use_cooperative": library.use_cooperative, "abi": abi}


_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def by_one_pickler() -> Iterator[None]:
    """Kernels that are pickled meanwhile, by a pickler that does functions, are not put into pickles of their own."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def reduce_object(make: Callable[..., Any], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` returns of an object that `make(*parts)` makes again."""
    if _inside.get():
        return make, parts
    with by_one_pickler():
        packed = cloudpickle.dumps((make, parts))
    return _made, (packed,)


def _made(packed: bytes) -> Any:
    make, parts = pickle.loads(packed)  # noqa: S301  # a part of the pickle that is being read
    return make(*parts)
