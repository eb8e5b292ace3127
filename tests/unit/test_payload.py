"""Functions as bytes: what comes out is what went in, once for each that it calls, and Numba
knows it.
"""

import pickle
import threading
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numba import cuda, njit, types
from numba.experimental import jitclass
from numba.extending import overload

from synknumba import simt
from synknumba._wire import function_pickling as pickling
from synknumba.simt._source import pickling as simt_pickling

# the numba.cuda that comes with Numba has no link=
LINKED = getattr(cuda, "implementation", None) == "NVIDIA"


def again(function: Any, sent: dict[int, Any] | None = None) -> Any:
    sent = sent or {}
    return pickling.load(pickling.dump(function, sent), sent.__getitem__)


def named(function: Any, name: str) -> Any:
    """What a name stands for inside a function, which may be a compiled one."""
    plain: FunctionType = getattr(function, "py_func", function)
    assert plain.__closure__ is not None
    return plain.__closure__[plain.__code__.co_freevars.index(name)].cell_contents


def test_a_declared_function_is_declared_again_with_all_that_was_given() -> None:
    options: dict[str, Any] = {}
    if LINKED:
        options = {
            "link": [cuda.CUSource("int number;", name="numbers.cu"), "/elsewhere/file.cu"],
            "use_cooperative": True,
            "abi": "c",
        }
    declared = cuda.declare_device("foreign", "int32(int32, float64)", **options)
    loaded = again(declared)
    assert simt_pickling.is_foreign(loaded)
    assert (loaded.name, loaded.sig) == ("foreign", types.int32(types.int32, types.float64))
    told = simt_pickling._options(loaded)
    assert told.keys() == options.keys()
    if LINKED:
        files = {getattr(one, "name", one) for one in map(pickle.loads, told.pop("link"))}
        assert files == {"numbers.cu", "/elsewhere/file.cu"}
        assert told == {"use_cooperative": True, "abi": "c"}


def test_one_that_several_functions_call_is_one() -> None:
    """The linker refuses two of one name."""
    declared = cuda.declare_device("shared_by_several", "float64(float64)")

    @cuda.jit(device=True)
    def device(x: float) -> float:
        return declared(x)

    def kernel(x: Any) -> None:
        x[0] = declared(x[0]) + device(x[0])

    loaded, device_again = again(kernel), again(device)
    assert named(loaded, "declared") is named(named(loaded, "device"), "declared")
    assert named(loaded, "declared") is named(device_again, "declared")
    assert named(loaded, "declared") is not declared


@pytest.mark.skipif(
    not LINKED, reason="numba-cuda is not installed; make ptx installs it beside the other packages"
)
def test_what_several_functions_are_in_is_linked_once() -> None:
    source = cuda.CUSource("two functions")
    first = cuda.declare_device("first_of_two", "float64(float64)", link=source)
    second = cuda.declare_device("second_of_two", "float64(float64)", link=source)
    from numba.cuda.descriptor import cuda_target

    files = [
        next(iter(cuda_target.target_context.get_function(one, one.sig).libs[0]._linking_files))
        for one in map(again, (first, second))
    ]
    assert files[0] is files[1] is not source


@pytest.mark.parametrize(
    "decorator", [cuda.jit(device=True), simt.jit(device=True)], ids=["cuda.jit", "simt.jit"]
)
def test_an_overloaded_function_is_one_wherever_it_is_called(decorator: Any) -> None:
    """Numba pickles what it compiles by a pickler of its own; and it keeps each overloaded
    function for ever.
    """

    def capped(x: float) -> float:
        raise NotImplementedError

    overload(capped)(lambda x: lambda x: min(x, 3.0))

    @decorator
    def compiled(x: float) -> float:
        return capped(x)

    def function(x: Any) -> Any:
        return compiled(x) + capped(x)

    loaded = again(function)
    assert named(loaded, "capped") is named(named(loaded, "compiled"), "capped")
    assert named(loaded, "capped") is named(again(function), "capped")
    assert named(loaded, "capped") is not capped


def test_what_cannot_be_pickled_of_an_overload_is_not_sent() -> None:
    """The function may be for Python only."""
    lock = threading.Lock()

    def halved(x: float) -> float:
        return x / 2

    overload(halved)(lambda x: (lambda x: x / 2) if lock else None)
    assert again(halved)(3.0) == 1.5


def test_numbas_refusals_hold() -> None:
    @jitclass([("x", types.float64)])  # type: ignore[misc]
    class Cell:
        def __init__(self) -> None:
            self.x = 1.0

    @njit
    def make() -> Any:
        return Cell()

    with pytest.raises(pickle.PicklingError, match="unsupported"):
        pickling.dump(make, {})


def test_a_pickle_in_a_pickle_is_of_its_own() -> None:
    """Somebody's __reduce__ may make one of a kernel."""

    @simt.jit
    def kernel(x: Any) -> None:
        x[0] = 1

    class Holder:
        def __reduce__(self) -> Any:
            return pickle.loads, (pickle.dumps(kernel),)

    x = np.zeros(1)
    again(Holder())[1, 1](x)
    assert x[0] == 1


def test_a_class_may_be_called_as_one_of_numbas() -> None:
    kind = type("_CustomPickled", (), {"x": 1})
    assert again(kind()).x == 1


def test_overloads_of_a_function_that_is_pickled_twice_are_as_they_were() -> None:
    def kind(x: Any) -> float:
        raise NotImplementedError

    overload(kind)(lambda x: (lambda x: 1.0) if isinstance(x, types.Float) else None)
    overload(kind, inline="always")(
        lambda x: (lambda x: 2.0) if isinstance(x, types.Integer) else None
    )

    def function(x: Any) -> Any:
        return kind(x)

    compiled = njit(again(again(function)))
    assert (compiled(1.0), compiled(1)) == (1.0, 2.0)
    assert compiled(np.float32(1)) == 1.0
