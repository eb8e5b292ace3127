"""NCCL's functions by either package, on stand-ins that note what NCCL would be called with; and
which package is chosen.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version as version_of_package
from types import ModuleType
from typing import Any

import pytest

from synknumba._comm import DRIVERS
from synknumba._device import find_libraries, gpu_libraries
from synknumba._host import gpu_packages, nccl_bindings
from synknumba._host.nccl_bindings import DTYPES, OPS, NcclBindings, NcclError

COMMUNICATOR, STREAM = 0x1234, 0x40
ID = bytes(range(128))
RESULT = (1, "unhandled cuda error (run with NCCL_DEBUG=INFO for details)")

# Arguments of a function in Python, and what NCCL's function in C gets, by nccl.h.
CALLS = {
    "all_gather": (16, 32, 5, DTYPES["uint8"]),
    "all_reduce": (16, 32, 5, DTYPES["float32"], OPS["max"]),
    "broadcast": (16, 32, 5, DTYPES["uint8"], 1),
    "reduce": (16, 0, 5, DTYPES["int64"], OPS["prod"], 1),
    "reduce_scatter": (16, 32, 5, DTYPES["float16"], OPS["min"]),
    "send": (16, 5, DTYPES["uint8"], 1),
    "recv": (32, 5, DTYPES["uint8"], 1),
}


class Library:
    """What is called of libnccl.so.2, and what its functions return."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.result = 0

    def call(self, name: str, *args: Any) -> None:
        self.calls.append((name, *args))


def cupys(library: Library) -> dict[str, ModuleType]:
    """cupy.cuda.nccl of CuPy 14."""
    cupy, cuda, nccl = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.nccl")

    class Error(RuntimeError):
        def __init__(self, status: int) -> None:
            self.status = status
            super().__init__(f"NCCL_ERROR_UNHANDLED_CUDA_ERROR: {RESULT[1]}")

    def check(name: str, *args: Any) -> None:
        library.call(name, *args)
        if library.result:
            raise Error(library.result)

    class NcclCommunicator:
        def __init__(self, count: int, unique_id: bytes, rank: int) -> None:
            check("ncclCommInitRank", count, bytes(unique_id), rank)

    def member(function: str) -> Callable[..., None]:
        return lambda self, *args: check(function, *args[:-1], COMMUNICATOR, args[-1])

    for method in (
        "allGather",
        "allReduce",
        "broadcast",
        "reduce",
        "reduceScatter",
        "send",
        "recv",
    ):
        setattr(NcclCommunicator, method, member("nccl" + method[0].upper() + method[1:]))

    def get_unique_id() -> bytes:
        check("ncclGetUniqueId")
        return ID

    vars(nccl).update(
        available=True,
        NcclError=Error,
        NcclCommunicator=NcclCommunicator,
        get_version=lambda: 22809,
        get_unique_id=get_unique_id,
        groupStart=lambda: check("ncclGroupStart"),
        groupEnd=lambda: check("ncclGroupEnd"),
    )
    vars(cuda)["nccl"] = nccl
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}


def nccl4pys(library: Library) -> dict[str, ModuleType]:
    """nccl.bindings.nccl of nccl4py 0.6."""
    package, bindings, nccl = (
        ModuleType("nccl"),
        ModuleType("nccl.bindings"),
        ModuleType("nccl.bindings.nccl"),
    )

    class Error(Exception):
        def __init__(self, status: int) -> None:
            self.status = status
            super().__init__(f"UnhandledCudaError ({status}): {RESULT[1]}")

    def check(name: str, *args: Any) -> None:
        library.call(name, *args)
        if library.result:
            raise Error(library.result)

    class UniqueId:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def __bytes__(self) -> bytes:
            return self.data

        @staticmethod
        def from_buffer(data: bytes) -> "UniqueId":
            return UniqueId(data)

    class Comm:
        pass

    def get_unique_id() -> UniqueId:
        check("ncclGetUniqueId")
        return UniqueId(ID)

    def comm_init_rank(count: int, unique_id: UniqueId, rank: int) -> Comm:
        assert isinstance(unique_id, UniqueId)
        check("ncclCommInitRank", count, bytes(unique_id), rank)
        return Comm()

    def function(name: str) -> Callable[..., None]:
        def called(*args: Any) -> None:
            assert isinstance(args[-2], Comm)
            check(name, *args[:-2], COMMUNICATOR, args[-1])

        return called

    for name in CALLS:
        vars(nccl)[name] = function("nccl" + "".join(part.capitalize() for part in name.split("_")))
    vars(nccl).update(
        NCCLError=Error,
        UniqueId=UniqueId,
        get_version=lambda: 22809,
        get_unique_id=get_unique_id,
        comm_init_rank=comm_init_rank,
        group_start=lambda: check("ncclGroupStart"),
        group_end=lambda: check("ncclGroupEnd"),
    )
    vars(bindings)["nccl"] = nccl
    return {"nccl": package, "nccl.bindings": bindings, "nccl.bindings.nccl": nccl}


Install = Callable[..., Library]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes an environment: CuPy, or not, and nccl4py in a version."""
    monkeypatch.delenv(nccl_bindings.SWITCH, raising=False)
    # nothing is remembered
    monkeypatch.setattr(nccl_bindings, "find", nccl_bindings.find.__wrapped__)

    def make(*, cupy: bool = True, nccl4py: str | None = None) -> Library:
        library = Library()
        there = (
            {"cupy": None, "nccl": None}
            | (cupys(library) if cupy else {})
            | (nccl4pys(library) if nccl4py else {})
        )
        for name, module in there.items():
            monkeypatch.setitem(sys.modules, name, module)
        versions = {"nccl4py": nccl4py, "cupy-cuda13x": "14.2.0" if cupy else None}
        for module in (nccl_bindings, gpu_packages):
            monkeypatch.setattr(module, "version_of", versions.get)
        return library

    return make


@pytest.fixture(params=["cupy", "nccl4py"])
def made(request: pytest.FixtureRequest, install: Install) -> tuple[NcclBindings, Library]:
    """The bindings by each package."""
    library = install(nccl4py="0.6.0" if request.param == "nccl4py" else None)
    bindings, problem = nccl_bindings.find()
    assert bindings is not None
    assert (bindings.name, bindings.version, problem) == (request.param, 22809, None)
    return bindings, library


def test_a_communicator(made: tuple[NcclBindings, Library]) -> None:
    bindings, library = made
    unique_id = bindings.make_unique_id()
    assert type(unique_id) is bytes  # it is sent to the other ranks
    assert unique_id == ID
    bindings.connect(3, unique_id, 2)
    assert library.calls == [("ncclGetUniqueId",), ("ncclCommInitRank", 3, ID, 2)]


@pytest.mark.parametrize("function", CALLS)
def test_a_call(made: tuple[NcclBindings, Library], function: str) -> None:
    bindings, library = made
    communicator = bindings.connect(2, ID, 0)
    call = bindings.bind(communicator, function, STREAM, *CALLS[function])
    library.calls.clear()
    call()
    call()
    named = "nccl" + "".join(part.capitalize() for part in function.split("_"))
    assert library.calls == [(named, *CALLS[function], COMMUNICATOR, STREAM)] * 2


def test_a_group(made: tuple[NcclBindings, Library]) -> None:
    bindings, library = made
    bindings.group_start()
    bindings.group_end()
    assert library.calls == [("ncclGroupStart",), ("ncclGroupEnd",)]


def test_errors_are_the_same(made: tuple[NcclBindings, Library]) -> None:
    bindings, library = made
    communicator = bindings.connect(2, ID, 0)
    library.result = RESULT[0]
    for function in (bindings.make_unique_id, lambda: bindings.connect(2, ID, 0)):
        with pytest.raises(NcclError) as caught:
            function()
        assert str(caught.value) == f"{RESULT[1]}; NCCL's error 1"
    for function in (
        bindings.group_start,
        bindings.bind(communicator, "send", STREAM, *CALLS["send"]),
    ):
        with pytest.raises(bindings.error) as raw:  # a communicator translates them once for a step
            function()
        assert str(nccl_bindings.as_nccl_error(raw.value)) == f"{RESULT[1]}; NCCL's error 1"


def test_nccl4py_is_used_where_it_is_installed(install: Install) -> None:
    install(nccl4py="0.5.0", cupy=False)
    assert nccl_bindings.find().bindings.name == "nccl4py"


@pytest.mark.parametrize("version", ["0.4.1", "0.7.0", "1.5.0", "0.60"])
def test_an_unknown_nccl4py_is_passed_over(install: Install, version: str) -> None:
    install(nccl4py=version)
    bindings, problem = nccl_bindings.find()
    assert bindings.name == "cupy"
    assert problem.startswith(
        f"nccl4py {version} is not one of those that are known (0.5, 0.6); pip install "
    )


def test_a_broken_nccl4py_is_passed_over(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(nccl4py="0.6.0")
    monkeypatch.setitem(sys.modules, "nccl.bindings", None)
    bindings, problem = nccl_bindings.find()
    assert bindings.name == "cupy"
    assert problem.startswith("nccl4py does not work (")


def test_nccl4py_that_finds_no_library(install: Install) -> None:
    install(nccl4py="0.6.0", cupy=False)

    def find_none() -> int:
        raise RuntimeError('Failure finding "libnccl.so.2": No such file\nmore lines')

    sys.modules["nccl.bindings.nccl"].get_version = find_none
    bindings, problem = nccl_bindings.find()
    assert bindings is None
    assert problem.startswith(
        'nccl4py does not work (Failure finding "libnccl.so.2": No such file); CuPy has no NCCL ('
    )
    assert problem.endswith(
        "pip install nvidia-nccl-cu13 (or nvidia-nccl-cu12, to match your CuPy)"
    )


def test_cupy_without_the_library(install: Install) -> None:
    install()
    sys.modules["cupy.cuda.nccl"].available = False
    assert nccl_bindings.find() == (
        None,
        "CuPy finds no library libnccl.so.2; pip install nvidia-nccl-cu13",
    )


def test_one_can_be_chosen(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(nccl4py="0.6.0")
    for name in ("cupy", "nccl4py"):
        monkeypatch.setenv(nccl_bindings.SWITCH, name)
        assert nccl_bindings.find().bindings.name == name
    monkeypatch.setenv(nccl_bindings.SWITCH, "mpi")
    assert nccl_bindings.find() == (None, 'SYNKNUMBA_NCCL must be "nccl4py" or "cupy", got \'mpi\'')
    install()
    monkeypatch.setenv(nccl_bindings.SWITCH, "nccl4py")
    assert nccl_bindings.find() == (
        None,
        "nccl4py is not installed; pip install 'synknumba[nccl4py]'",
    )


@pytest.mark.parametrize("is_error", [False, True])
def test_cupys_own_warning_is_not_given_too(
    install: Install, monkeypatch: pytest.MonkeyPatch, is_error: bool
) -> None:
    install()
    cuda = sys.modules["cupy.cuda"]
    del cuda.nccl
    monkeypatch.delitem(sys.modules, "cupy.cuda.nccl")

    def load(name: str) -> Any:
        warnings.warn("\nnccl library could not be loaded.\n\nReason: …", UserWarning, stacklevel=1)
        raise ImportError("libnccl.so.2")

    cuda.__getattr__ = load
    driver = ModuleType("synknumba._comm.nccl")
    driver.available = lambda: nccl_bindings.find().problem
    monkeypatch.setattr("synknumba._comm._nccl", lambda: driver)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if is_error else "always")
        assert (
            DRIVERS["nccl"].problem()
            == "CuPy has no NCCL (libnccl.so.2); pip install nvidia-nccl-cu13"
        )
    assert not caught


STAND_IN = """
import sys, types
cupy, libraries, package, bindings = (types.ModuleType(one) for one in ("cupy", "cupy.cuda", "nccl", "nccl.bindings"))
libraries.nccl = types.SimpleNamespace(get_version=lambda: 22809)
libraries.runtime = types.SimpleNamespace(runtimeGetVersion=lambda: 13010)
bindings.nccl = types.SimpleNamespace(get_version=lambda: {version})
cuda = types.ModuleType("cuda")
cuda.pathfinder = types.SimpleNamespace(load_nvidia_dynamic_lib=lambda name: types.SimpleNamespace(abs_path=None))
sys.modules.update({{"cupy": cupy, "cupy.cuda": libraries, "cuda": cuda, "nccl": package, "nccl.bindings": bindings}})
"""  # noqa: E501


@pytest.mark.parametrize(
    ("version", "works", "told"),
    [
        (None, True, ("2.28.9", "cupy", None)),
        ("0.6.0", True, ("2.32.3", "nccl4py", None)),
        ("0.6.0", False, ("2.28.9", "cupy", "nccl4py does not import, or finds no NCCL")),
        (
            "0.4.1",
            True,
            ("2.28.9", "cupy", "nccl4py 0.4.1 is not one of those that are known (0.5, 0.6)"),
        ),
    ],
)
def test_what_info_tells(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    works: bool,
    told: tuple[str, str, str | None],
) -> None:
    install(nccl4py=version)
    program = STAND_IN.format(version="23203" if works else "1 // 0") + gpu_libraries._PROGRAM
    monkeypatch.setattr(gpu_libraries, "_PROGRAM", program)
    found = find_libraries()
    assert (found.nccl, found.bindings) == told[:2]
    assert found.no_nccl4py is None if told[2] is None else found.no_nccl4py.startswith(told[2])


def test_numbers_are_those_of_nccl4py() -> None:
    nccl = pytest.importorskip("nccl.bindings.nccl")
    assert version_of_package("nccl4py").startswith(nccl_bindings.KNOWN)
    assert {name: getattr(nccl.DataType, name.capitalize()) for name in DTYPES} == DTYPES
    assert {name: getattr(nccl.RedOp, name.capitalize()) for name in OPS} == OPS


def test_numbers_are_those_of_cupy() -> None:
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy finds no NCCL")
    assert {name: getattr(nccl, f"NCCL_{name.upper()}") for name in DTYPES} == DTYPES
    assert {name: getattr(nccl, f"NCCL_{name.upper()}") for name in OPS} == OPS
