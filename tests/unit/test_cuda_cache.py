"""What is kept of kernels for GPUs, and when: by a dispatcher that compiles to text. Needs no
GPU, and no compiler for one.
"""

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import float32, float64, int64, types

from synknumba._device.compilers import base, numba_cuda_cache
from synknumba._device.compilers.numba_cuda_cache import CudaCache, attach
from synknumba.simt._machine.cache import CacheInfo
from synknumba.simt._machine.store import KernelStore

KINDS = (types.Array(float64, 1, "C"), int64)
OPTIONS = {
    "debug": False,
    "opt": True,
    "fastmath": False,
    "link": (),
    "extensions": [],
    "max_registers": None,
}
HIT, MISS = CacheInfo(hits=1), CacheInfo(misses=1)

# before it is replaced here, and without its memory
TOOLKIT: Any = numba_cuda_cache._toolkit.__wrapped__

SCALE = 2.0


def kernel(x: Any, n: Any) -> None:
    x[n] *= SCALE


class CUDADispatcher:
    """As much of Numba's dispatcher as the cache uses. It has this name too, by which device
    functions are known.
    """

    def __init__(self, function: FunctionType, **options: Any) -> None:
        self.py_func, self.targetoptions = function, {**OPTIONS, **options}
        self.overloads: dict[tuple[Any, ...], Kernel] = {}
        self.before: Callable[[], object] = lambda: None

    def compile(self, kinds: tuple[Any, ...]) -> "Kernel":
        self.before()
        made = Kernel(str(self.py_func.__globals__["SCALE"]))
        self.add_overload(made, kinds)
        return made

    def add_overload(self, made: "Kernel", kinds: tuple[Any, ...]) -> None:
        self.overloads[kinds] = made


class Kernel:
    launch_config_sensitive = False
    refused = False  # by the driver

    def __init__(self, code: str) -> None:
        self.code = code
        self.bound = 0

    def bind(self) -> None:
        if Kernel.refused:
            raise RuntimeError("no kernel image is available for execution on the device")
        self.bound += 1


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache"
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(path))
    monkeypatch.setattr(numba_cuda_cache.cuda, "implementation", "NVIDIA", raising=False)
    set_capability(monkeypatch, (9, 0))
    monkeypatch.setattr(numba_cuda_cache, "_toolkit", lambda: ("toolkit",))
    monkeypatch.setattr(numba_cuda_cache, "_settings", list)
    base._store.cache_clear()
    yield path
    base._store.cache_clear()


def set_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(numba_cuda_cache.cuda, "get_current_device", lambda: device)


def attached(dispatcher: Any) -> CudaCache:
    made = attach(dispatcher)
    assert made is not None
    return made


def compiled(
    function: Any = kernel, kinds: tuple[Any, ...] = KINDS, **options: Any
) -> tuple[Kernel, CacheInfo]:
    """The kernel of a new dispatcher, as another process would have it."""
    dispatcher: Any = CUDADispatcher(function, **options)
    kept = attached(dispatcher)
    made = dispatcher.compile(kinds)
    assert dispatcher.overloads == {kinds: made}
    assert dispatcher.compile(kinds) is made
    return made, kept.info


def kernels(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


class TestFound:
    def test_by_another_dispatcher(self, cache_directory: Path) -> None:
        first, outcome = compiled()
        assert outcome == MISS
        second, outcome = compiled()
        assert outcome == HIT
        assert second is not first
        assert second.code == first.code == "2.0"
        assert second.bound == 1  # before it is launched
        assert len(kernels(cache_directory)) == 1

    def test_kernels_of_processors_are_in_the_same_directory_by_other_keys(
        self, cache_directory: Path
    ) -> None:
        key = attached(CUDADispatcher(kernel)).key(KINDS)
        compiled()
        assert [path.name for path in kernels(cache_directory)] == [key]

    def test_once_for_each_list_of_types(self) -> None:
        dispatcher: Any = CUDADispatcher(kernel)
        kept = attached(dispatcher)
        for kinds in ((float32, int64), (float64, int64), (float32, int64)):
            dispatcher.compile(kinds)
        assert kept.info == CacheInfo(misses=2)


@pytest.mark.parametrize(
    "what", ["global", "types", "options", "capability", "toolkit", "settings", "versions"]
)
def test_a_change_makes_another_kernel(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled()[1] == MISS
    with monkeypatch.context() as patch:
        kinds, options = KINDS, {}
        if what == "global":
            patch.setitem(globals(), "SCALE", 3.0)
        elif what == "types":
            kinds = (types.Array(float32, 1, "C"), int64)
        elif what == "options":
            options = {"fastmath": True}
        elif what == "capability":
            set_capability(patch, (8, 0))
        elif what == "settings":
            patch.setattr(numba_cuda_cache, "_settings", lambda: [("OPT", "0")])
        else:
            patch.setattr(
                numba_cuda_cache,
                {"toolkit": "_toolkit", "versions": "versions"}[what],
                lambda: ("another",),
            )
        made, outcome = compiled(kinds=kinds, **options)
        assert outcome == MISS
        assert made.code == ("3.0" if what == "global" else "2.0")
    assert compiled()[1] == HIT


class TestNotKept:
    @pytest.fixture(autouse=True)
    def nothing_is_written(self, cache_directory: Path) -> Iterator[None]:
        yield
        assert not cache_directory.exists() or not kernels(cache_directory)

    @pytest.mark.parametrize("off", ["0", "off"])
    def test_switched_off(self, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SYNKNUMBA_CACHE", off)
        for _ in range(2):
            assert compiled()[1] == CacheInfo(misses=1, not_kept="the cache is switched off")

    def test_a_value_that_cannot_be_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(globals(), "SCALE", object())
        for _ in range(2):
            not_kept = compiled()[1].not_kept
            assert not_kept
            assert "SCALE is an object" in not_kept

    def test_linked_files(self) -> None:
        assert compiled(link=("functions.ptx",))[1] == CacheInfo(
            misses=1, not_kept="it is linked with files, which may change"
        )

    def test_code_that_depends_on_the_launch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Kernel, "launch_config_sensitive", True)
        assert compiled()[1] == CacheInfo(
            misses=1, not_kept="its code depends on the size of the launch"
        )

    def test_a_kernel_that_refuses_to_be_pickled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Any) -> None:
            raise RuntimeError("Cannot pickle CUDACodeLibrary with linking files")

        monkeypatch.setattr(Kernel, "__reduce__", refuse)
        made, outcome = compiled()
        assert made.code == "2.0"
        assert (
            outcome.not_kept == "it cannot be stored (RuntimeError: Cannot pickle "
            "CUDACodeLibrary with linking files)"
        )

    def test_changed_while_it_was_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatcher: Any = CUDADispatcher(kernel)
        kept = attached(dispatcher)
        monkeypatch.setitem(globals(), "SCALE", 2.0)  # put back at the end
        dispatcher.before = lambda: globals().update(SCALE=3.0)
        assert dispatcher.compile(KINDS).code == "3.0"
        assert kept.info.not_kept == "a value that it reads has changed in the meantime"

    def test_no_compilers_where_they_are_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(numba_cuda_cache, "_toolkit", TOOLKIT)
        # asked for before the driver, which no test may initialise
        monkeypatch.setattr(numba_cuda_cache, "_linker", lambda: 1 / 0)
        made, outcome = compiled()
        assert made.code == "2.0"
        assert outcome.not_kept
        assert outcome.not_kept.startswith("CUDA's compilers were not found where expected")


@pytest.mark.parametrize("what", ["implementation", "dispatcher"])
def test_another_numba_cuda_goes_without(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher: Any = CUDADispatcher(kernel)
    if what == "implementation":
        monkeypatch.setattr(numba_cuda_cache.cuda, "implementation", "Built-in")
    else:
        del dispatcher.overloads
    assert attach(dispatcher) is None
    assert dispatcher.compile.__func__ is CUDADispatcher.compile


class TestDeviceFunctions:
    def test_compiled_by_a_kernel_that_could_not_be_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The device function has the old value in it, although no key was ever made with it."""
        space: dict[str, Any] = {"SCALE": 1.0, "BOX": object()}
        exec("def plus(x): return x + SCALE", space)
        plus = space["plus"]
        space["plus"] = CUDADispatcher(plus)
        exec("def one(x, n): x[n] = plus(BOX)\ndef two(x, n): x[n] = plus(n)", space)
        assert "BOX is an object" in str(compiled(space["one"])[1].not_kept)
        space["SCALE"] = 2.0
        assert "plus reads a value that has changed" in str(compiled(space["two"])[1].not_kept)

    def test_compiled_by_somebody_else(self) -> None:
        """A program on a rank may launch kernels of its own, which call the same device
        function, and change a global then.
        """
        space: dict[str, Any] = {"SCALE": 1.0}
        exec("def plus(x): return x + SCALE", space)
        space["plus"] = CUDADispatcher(space["plus"])
        space["plus"].compile(KINDS)
        exec("def one(x, n): x[n] = plus(n)", space)
        assert "plus was compiled before it was inspected" in str(
            compiled(space["one"])[1].not_kept
        )

    def test_recursive(self) -> None:
        space: dict[str, Any] = {"SCALE": 1.0}
        exec("def count(x): return count(x - 1) if x > 0 else SCALE", space)
        space["count"] = CUDADispatcher(space["count"])
        exec("def one(x, n): x[n] = count(n)", space)
        assert compiled(space["one"])[1].not_kept == "count is recursive"


@pytest.mark.parametrize("damage", ["cut", "changed", "another pickle", "not a pickle", "refused"])
def test_what_cannot_be_used_is_compiled_again_and_replaced(
    damage: str, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    (path,) = kernels(cache_directory)
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        if damage == "cut":
            path.write_bytes(content[:-3])
        elif damage == "changed":
            path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        elif damage == "refused":
            patch.setattr(Kernel, "refused", True)
        else:
            payload = pickle.dumps([1, 2]) if damage == "another pickle" else b"no pickle"
            assert KernelStore(cache_directory).write(path.name, payload)
        made, outcome = compiled()
        assert made.code == "2.0"
        assert outcome == MISS
    assert compiled()[1] == HIT


class TestProcesses:
    """Each is a fork of this one, as ranks are forks of the coordinator."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "compilations"

    def outcomes(self, log: Path, *, fails: int = 0) -> list[CacheInfo]:
        """What four processes see that need the kernel at once, the first so many of which
        cannot compile it.
        """
        context = multiprocessing.get_context("fork")
        barrier, queue = context.Barrier(4), context.SimpleQueue()

        def rank() -> None:
            dispatcher: Any = CUDADispatcher(kernel)
            kept = attached(dispatcher)

            def compiling() -> None:
                with log.open("a") as file:
                    file.write("compiled\n")
                time.sleep(0.1)  # for as long as the others would need to compile it too
                if len(log.read_text().splitlines()) <= fails:
                    raise MemoryError

            dispatcher.before = compiling
            barrier.wait()
            try:
                assert dispatcher.compile(KINDS).code == "2.0"
            except MemoryError:
                pass
            finally:
                queue.put(kept.info)

        ranks = [context.Process(target=rank) for _ in range(4)]
        for process in ranks:
            process.start()
        found = [queue.get() for _ in ranks]
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        return found

    def test_one_compiles_for_all(self, log: Path) -> None:
        found = self.outcomes(log)
        assert sorted((one.hits, one.misses) for one in found) == [(0, 1), (1, 0), (1, 0), (1, 0)]
        assert log.read_text() == "compiled\n"

    def test_where_the_first_fails_the_next_compiles(self, log: Path) -> None:
        found = self.outcomes(log, fails=1)
        assert sorted((one.hits, one.misses) for one in found) == [(0, 0), (0, 1), (1, 0), (1, 0)]
        assert log.read_text() == "compiled\n" * 2


def test_arrays_that_a_kernel_reads_count_by_their_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "SCALE", np.arange(3.0))
    assert compiled()[1] == MISS
    globals()["SCALE"][1] = 7
    assert compiled()[1] == MISS
    globals()["SCALE"][1] = 1
    assert compiled()[1] == HIT
