"""Kernels kept on disk: found again by another process, and by nothing that would compute
something else.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numba
import numpy as np
import pytest

from synknumba import simt
from synknumba._errors import ArgumentError, KernelError
from synknumba.simt import _entries as entries_module
from synknumba.simt._machine import cache as cache_module
from synknumba.simt._machine import store as store_module
from synknumba.simt._machine.fingerprint import Fingerprint, NotComparableError
from synknumba.simt._machine.store import KernelStore
from synknumba.simt._machine.vector_math import vector_library
from tests.environment import environment, share_own_functions

HEAD = """
import enum
from collections import namedtuple
import numpy as np
from numba import cuda, int32, int64, njit
from synknumba import simt
"""

# What a kernel reads, one way and another, with the value it must then write.
KERNEL = """
@simt.jit
def kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = {}
"""
LOCAL = """
@simt.jit
def kernel(out):
    a = cuda.local.array({0}, {1})
    out[cuda.grid(1) % 3] = a.{2}
"""
CHANGES: dict[str, tuple[tuple[str, float], tuple[str, float]]] = {
    "body": ((KERNEL.format("1 + i"), 1), (KERNEL.format("2 + i"), 2)),
    "global": (("C = 1" + KERNEL.format("C"), 1), ("C = 2" + KERNEL.format("C"), 2)),
    "type of a global": (
        ("C = 7" + KERNEL.format("C / 2"), 3.5),
        ("C = np.int8(8)" + KERNEL.format("C / 2"), 4),
    ),
    "sign of zero": (
        ("C = 0.0" + KERNEL.format("1 / C"), np.inf),
        ("C = -0.0" + KERNEL.format("1 / C"), -np.inf),
    ),
    "array": (
        ("A = np.array([1, 2])" + KERNEL.format("A[1]"), 2),
        ("A = np.array([1, 3])" + KERNEL.format("A[1]"), 3),
    ),
    "tuple": (("T = (1, 2)" + KERNEL.format("T[1]"), 2), ("T = (1, 3)" + KERNEL.format("T[1]"), 3)),
    "named tuple": (
        ("P = namedtuple('P', 'a b')(1, 2)" + KERNEL.format("P.a"), 1),
        ("P = namedtuple('P', 'b a')(1, 2)" + KERNEL.format("P.a"), 2),
    ),
    "enum": (
        ("class E(enum.IntEnum):\n    A = 1" + KERNEL.format("E.A.value"), 1),
        ("class E(enum.IntEnum):\n    A = 2" + KERNEL.format("E.A.value"), 2),
    ),
    "type": (
        ("K = int32" + KERNEL.format("K(1 << 40)"), 0),
        ("K = int64" + KERNEL.format("K(1 << 40)"), 1 << 40),
    ),
    "NumPy type": (
        ("K = np.int8" + KERNEL.format("K(257)"), 1),
        ("K = np.int16" + KERNEL.format("K(257)"), 257),
    ),
    "attribute of a class": tuple(  # type: ignore[dict-item]
        (f"class Sizes:\n    N = {n}\n" + LOCAL.format("Sizes.N", "np.float64", "size"), n)
        for n in (1, 2)
    ),
    "dtype": tuple(  # type: ignore[dict-item]
        (f"K = np.dtype('i{n}')\n" + LOCAL.format("1", "K", "itemsize"), n) for n in (1, 2)
    ),
    "device function": tuple(  # type: ignore[dict-item]
        (f"@cuda.jit(device=True)\ndef f(x):\n    return x + {n}\n" + KERNEL.format("f(0)"), n)
        for n in (1, 2)
    ),
    "device function called by another": tuple(  # type: ignore[dict-item]
        (
            f"@simt.jit\ndef g(x):\n    return x + {n}\n@cuda.jit\ndef f(x):\n    return g(x)\n"
            + KERNEL.format("f(0)"),
            n,
        )
        for n in (1, 2)
    ),
    "njit function": tuple(  # type: ignore[dict-item]
        (f"@njit\ndef f(x):\n    return x + {n}\n" + KERNEL.format("f(0)"), n) for n in (1, 2)
    ),
    "global of an njit function": tuple(  # type: ignore[dict-item]
        (f"C = {n}\n@njit\ndef f(x):\n    return x + C\n" + KERNEL.format("f(0)"), n)
        for n in (1, 2)
    ),
    "closure": tuple(  # type: ignore[dict-item]
        (
            "def make(c):\n"
            + KERNEL.format("c").replace("\n", "\n    ")
            + f"\n    return kernel\nkernel = make({n})",
            n,
        )
        for n in (1, 2)
    ),
    "name hidden by a global": (
        (KERNEL.format("abs(-1)"), 1),
        ("abs = njit(lambda x: x)" + KERNEL.format("abs(-1)"), -1),
    ),
}


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache"
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(path))
    yield path
    cache_module._loaded.clear()


def load(tmp_path: Path, text: str) -> ModuleType:
    """Runs the text as a module, always of the same file, as another process would: nothing is
    left of the last time.
    """
    cache_module._loaded.clear()
    path = tmp_path / "written.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location("written", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["written"] = module
    # and not through Python's own cache, which looks at dates
    exec(compile(path.read_text(), path, "exec"), vars(module))
    return module


def launched(kernel: Any, dtype: Any = np.float64) -> float:
    out = np.zeros(3, dtype)
    kernel[1, 4](out)
    return float(out[0])


def outcome(kernel: Any) -> tuple[int, int]:
    return kernel.cache_info.hits, kernel.cache_info.misses


HIT, MISS = (1, 0), (0, 1)


class TestKey:
    @pytest.mark.parametrize("name", CHANGES)
    def test_a_change_makes_another_kernel(self, name: str, tmp_path: Path) -> None:
        (before, first), (after, second) = CHANGES[name]
        for text, expected, came in (
            (before, first, MISS),
            (after, second, MISS),
            (before, first, HIT),
            (after, second, HIT),
        ):
            kernel = load(tmp_path, text).kernel
            assert launched(kernel) == expected
            assert outcome(kernel) == came
            assert kernel.cache_info.not_kept is None

    def test_attribute_of_a_module(self, tmp_path: Path) -> None:
        constants = ModuleType("constants")
        text = "import sys\nconstants = sys.modules['constants']\n" + KERNEL.format("constants.C")
        sys.modules["constants"] = constants
        for value, came in ((1, MISS), (2, MISS), (1, HIT)):
            constants.C = value  # type: ignore[attr-defined]
            kernel = load(tmp_path, text).kernel
            assert launched(kernel) == value
            assert outcome(kernel) == came
        del sys.modules["constants"]

    @pytest.mark.parametrize("other", ["D = 5", "shape = 7", "size = np.arange(3)"])
    def test_what_is_not_read_does_not_count(self, other: str, tmp_path: Path) -> None:
        assert launched(load(tmp_path, KERNEL.format("out.shape[0]") + "D = 4").kernel) == 3
        kernel = load(tmp_path, KERNEL.format("out.shape[0]") + other).kernel
        assert launched(kernel) == 3
        assert outcome(kernel) == HIT

    def test_another_line(self, tmp_path: Path) -> None:
        launched(load(tmp_path, KERNEL.format("1")).kernel)
        kernel = load(tmp_path, "\n" + KERNEL.format("1")).kernel
        launched(kernel)
        assert outcome(kernel) == MISS

    def test_argument_types_and_options(self, tmp_path: Path) -> None:
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        for dtype in (np.float64, np.float32, np.int8):
            launched(kernel, dtype)
        assert outcome(kernel) == (0, 3)
        fast = simt.jit(kernel.py_func, fastmath=True)
        launched(fast)
        assert outcome(fast) == MISS

    def test_layouts_of_arrays(self, tmp_path: Path) -> None:
        """Code for contiguous rows reads other elements of an array with strides."""
        text = "@simt.jit\ndef kernel(x, out):\n    out[0] = x[1, 0]\n"
        base = np.arange(12.0).reshape(3, 4)
        frozen = base.copy()
        frozen.flags.writeable = False
        arrays = (base, np.asfortranarray(base), base[:, ::2], frozen)
        for came in ((0, 1), (1, 0)):
            for array in arrays:
                kernel = load(tmp_path, text).kernel
                out = np.zeros(1)
                kernel[1, 1](array, out)
                assert out[0] == 4
                assert outcome(kernel) == came

    @pytest.mark.parametrize("setting", ["OPT", "BOUNDSCHECK", "SLP_VECTORIZE", "USING_SVML"])
    def test_settings_of_numba(
        self, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        before = kernel._cache._digest()
        monkeypatch.setattr(numba.config, setting, 77)
        assert kernel._cache._digest() != before

    def test_vector_math(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        before, without = kernel._cache._digest(), vector_library() is None
        monkeypatch.setenv("SYNKNUMBA_VECTOR_MATH", "0")
        assert (kernel._cache._digest() == before) == without

    def test_values_that_look_alike(self) -> None:
        alike = [
            1,
            True,
            1.0,
            "1",
            b"1",
            np.int64(1),
            np.int32(1),
            (1,),
            [1],
            np.array(1),
            np.array([1]),
            np.array([[1]]),
            1 + 0j,
        ]
        alike += [
            0.0,
            -0.0,
            ("a", "b"),
            ("ab",),
            (("a",), "b"),
            None,
            "None",
            np.dtype("i4"),
            np.dtype("i8"),
            {1},
            {1: 1},
        ]
        digests = [Fingerprint(value).hexdigest() for value in alike]
        assert len(set(digests)) == len(alike)
        assert digests == [Fingerprint(value).hexdigest() for value in alike]
        assert Fingerprint(float("nan")).hexdigest() == Fingerprint(float("nan")).hexdigest()

    @pytest.mark.parametrize(
        "value",
        [object(), np.array([object()]), os, lambda: 1, os.PathLike],
        ids=["object", "array of objects", "module", "lambda", "class"],
    )
    def test_values_that_cannot_be_compared(self, value: Any) -> None:
        with pytest.raises(NotComparableError):
            Fingerprint(value)


class TestNotKept:
    def test_says_why(self, tmp_path: Path, cache_directory: Path) -> None:
        text = (
            "class Box:\n    n = 4\nBOX = Box()\n@simt.jit\ndef kernel(out):\n    a = "
            "cuda.local.array(BOX.n, np.float64)\n"
        )
        kernel = load(tmp_path, text + "    a[3] = 7\n    out[cuda.grid(1) % 3] = a[3]\n").kernel
        assert launched(kernel) == 7
        assert "BOX is a Box" in kernel.cache_info.not_kept
        assert not cache_directory.exists()

    def test_changed_after_translation(self, tmp_path: Path, cache_directory: Path) -> None:
        module = load(tmp_path, "C = 1" + KERNEL.format("C"))
        module.kernel.check()
        module.C = 2
        launched(module.kernel)
        assert "changed since it was translated" in module.kernel.cache_info.not_kept
        assert KernelStore(cache_directory).usage().kernels == 0

    def test_device_function_compiled_before_a_change(self, tmp_path: Path) -> None:
        """It is compiled once in a process, and has the old value in it."""
        module = load(
            tmp_path,
            "C = 1\n@cuda.jit(device=True)\ndef f(x):\n    return x + C\n" + KERNEL.format("f(0)"),
        )
        assert launched(module.kernel) == 1
        module.C = 2
        again = simt.jit(module.kernel.py_func)
        launched(again)
        assert "f reads a value that has changed" in again.cache_info.not_kept

    def test_recursion(self, tmp_path: Path) -> None:
        text = (
            "@cuda.jit(device=True)\ndef f(x):\n    if x < 1:\n        return "
            "x\n    return f(x - 1) + 2.0\n"
        )
        for _ in range(2):
            kernel = load(tmp_path, text + KERNEL.format("f(3.0)")).kernel
            assert launched(kernel) == 6
        assert kernel.cache_info.not_kept is None or "recursive" in kernel.cache_info.not_kept

    @pytest.mark.parametrize("how", ["option", "variable"])
    def test_switched_off(
        self, how: str, tmp_path: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        if how == "option":
            kernel = simt.jit(cache=False)(kernel.py_func)
            kernel = cloudpickle.loads(cloudpickle.dumps(kernel))
        else:
            monkeypatch.setenv("SYNKNUMBA_CACHE", "0")
        assert launched(kernel) == 1
        assert kernel.cache_info.not_kept == "the cache is switched off"
        assert not cache_directory.exists()

    def test_directory_that_cannot_be_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
        monkeypatch.setattr(KernelStore, "_warning_process", os.getpid())
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        with pytest.warns(RuntimeWarning, match=r"file/cache cannot be used \(Not a directory\)"):
            assert launched(kernel) == 1
        assert "cannot be written to" in kernel.cache_info.not_kept

    def test_a_script_is_warned_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        script = tmp_path / "script.py"
        script.write_text(TWO_KERNELS)
        done = subprocess.run(
            [sys.executable, script],
            env=environment(SYNKNUMBA_CACHE_DIR=str(tmp_path / "file" / "cache")),
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert done.stdout == "6.0 9.0\n"
        assert done.stderr.count("compiled kernels are not kept") == 1


TWO_KERNELS = """
import numpy as np
import synknumba as synk

@synk.vectorize
def twice(x):
    return 2 * x

@synk.vectorize
def thrice(x):
    return 3 * x

with synk.fork(2, device="cpu"):
    x = np.ones(3)
    print(twice(x).sum(), thrice(x).sum())
"""


class TestAccepted:
    """A kernel whose translation has succeeded once is not translated again to be checked."""

    @pytest.fixture
    def translated(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The kernels that are translated, in order."""
        made: list[str] = []
        translate = entries_module.KernelProgram

        def noted(function: Any, options: Any) -> Any:
            made.append(function.__name__)
            return translate(function, options)

        monkeypatch.setattr(entries_module, "KernelProgram", noted)
        return made

    def test_once(self, tmp_path: Path, cache_directory: Path, translated: list[str]) -> None:
        for _ in range(3):
            load(tmp_path, KERNEL.format("1")).kernel.check()
        assert translated == ["kernel"]
        assert KernelStore(cache_directory).usage().kernels == 0  # nothing is compiled
        assert launched(load(tmp_path, KERNEL.format("1")).kernel) == 1

    @pytest.mark.parametrize("other", ["body", "global", "device function", "enum"])
    def test_again_after_a_change(
        self, other: str, tmp_path: Path, cache_directory: Path, translated: list[str]
    ) -> None:
        for source, _ in CHANGES[other]:
            load(tmp_path, source).kernel.check()
        assert len(translated) == 2

    def test_what_was_refused_is_refused_again(self, tmp_path: Path, cache_directory: Path) -> None:
        for _ in range(2):
            with pytest.raises(KernelError, match="global"):
                load(tmp_path, KERNEL.format("1") + "    global C\n    C = 2\n").kernel.check()
        assert not cache_directory.exists()

    def test_changed_while_it_is_translated(
        self, tmp_path: Path, cache_directory: Path, monkeypatch: Any
    ) -> None:
        module = load(tmp_path, "C = 1" + KERNEL.format("C"))
        translate = entries_module.KernelProgram

        def changed(function: Any, options: Any) -> Any:
            module.C = 2
            return translate(function, options)

        monkeypatch.setattr(entries_module, "KernelProgram", changed)
        module.kernel.check()
        assert not cache_directory.exists()

    def test_without_a_store(
        self, tmp_path: Path, cache_directory: Path, translated: list[str], monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("SYNKNUMBA_CACHE", "0")
        for _ in range(2):
            load(tmp_path, KERNEL.format("1")).kernel.check()
        assert len(translated) == 2
        assert not cache_directory.exists()


KEYS = [hashlib.sha256(name.encode()).hexdigest() for name in "abcd"]  # as those of kernels


class TestStore:
    def test_what_was_written(self, cache_directory: Path) -> None:
        store = KernelStore(cache_directory)
        assert store.read(KEYS[0]) is None
        assert store.write(KEYS[0], b"abc")
        assert store.read(KEYS[0]) == b"abc"
        assert store.usage().kernels == 1
        assert stat.S_IMODE(cache_directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((cache_directory / KEYS[0]).stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        "damage",
        [
            "short",
            "empty",
            "flipped",
            "huge",
            "foreign",
            "others write",
            "link",
            "pipe",
            "directory",
            "directory of others",
        ],
    )
    def test_what_is_not_ours_or_not_whole(self, damage: str, cache_directory: Path) -> None:
        store = KernelStore(cache_directory)
        store.write("k", b"abc" * 100)
        path = cache_directory / "k"
        content = path.read_bytes()
        if damage == "others write":
            path.chmod(0o666)
        elif damage == "directory of others":
            cache_directory.chmod(0o777)
        elif damage == "link":
            path.rename(cache_directory / "elsewhere")
            path.symlink_to(cache_directory / "elsewhere")
        elif damage == "huge":
            os.truncate(path, 1 << 40)
        elif damage == "pipe":  # a read waits for a writer
            path.unlink()
            os.mkfifo(path)
        elif damage == "directory":
            path.unlink()
            path.mkdir()
        else:
            flipped = content[:-1] + bytes([content[-1] ^ 1])
            path.write_bytes(
                {
                    "short": content[:-1],
                    "empty": b"",
                    "flipped": flipped,
                    "foreign": b"something else",
                }[damage]
            )
        before = os.listdir("/proc/self/fd")
        assert store.read("k") is None
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def test_damaged_kernel_is_replaced(self, tmp_path: Path, cache_directory: Path) -> None:
        launched(load(tmp_path, KERNEL.format("1")).kernel)
        (path,) = [path for path in cache_directory.iterdir() if not path.name.startswith(".")]
        for content in (path.read_bytes()[:-100], b"", b"not a kernel"):
            path.write_bytes(content)
            kernel = load(tmp_path, KERNEL.format("1")).kernel
            assert launched(kernel) == 1
            assert outcome(kernel) == MISS
        KernelStore(cache_directory).write(path.name, b"a checksum does not help")
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        assert launched(kernel) == 1
        assert outcome(kernel) == MISS
        kernel = load(tmp_path, KERNEL.format("1")).kernel
        launched(kernel)
        assert outcome(kernel) == HIT

    def test_least_recently_used_go_first(self, cache_directory: Path) -> None:
        store = KernelStore(cache_directory)
        for age, key in enumerate(KEYS):
            store.write(key, bytes(1000))
            os.utime(cache_directory / key, (time.time() - 10_000 * (age + 1),) * 2)
        assert store.read(KEYS[3])  # is now the youngest
        store.prune(2500)
        assert [key for key in KEYS if store.read(key)] == [KEYS[0], KEYS[3]]

    def test_files_of_other_programs_do_not_count(self, cache_directory: Path) -> None:
        """Others, too, name files by digests."""
        store = KernelStore(cache_directory)
        for age, key in enumerate(KEYS):
            store.write(key, bytes(1000))
            os.utime(cache_directory / key, (1000 - age,) * 2)
        other = cache_directory / hashlib.sha256(b"another program's").hexdigest()
        other.write_bytes(bytes(100_000))  # the youngest
        store.prune(2500)
        assert other.exists()
        assert [key for key in KEYS if store.read(key)] == KEYS[:2]
        assert store.usage().kernels == 2

    def test_other_files_stay(self, cache_directory: Path) -> None:
        """SYNKNUMBA_CACHE_DIR may be a directory with files of the user's."""
        cache_directory.mkdir(mode=0o700)
        digest = hashlib.sha256(b"another program's").hexdigest()
        others = [
            cache_directory / name
            for name in ("thesis.tex", "abcd", ".profile", ".new-idea", ".new-1-2", digest)
        ]
        for path in others:
            path.write_bytes(bytes(10_000))
            os.utime(path, (0, 0))
        store = KernelStore(cache_directory)
        for key in KEYS:
            store.write(key, bytes(1000))
        assert store.usage().kernels == 4
        removed = store.clear()
        assert removed.kernels == 4
        assert removed.nbytes > 4000
        assert store.usage() == (0, 0)
        assert sorted(
            path for path in cache_directory.iterdir() if not path.name.startswith(".lock")
        ) == sorted(others)

    def test_waits_for_the_holder_of_the_lock_but_not_for_ever(
        self, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = KernelStore(cache_directory)
        with store.lock("ab1"):
            probe = os.open(cache_directory / ".lock-ab", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.05)
            with store.lock("ab2"), store.lock("cd"):
                pass
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(probe)

    def test_locks_that_other_users_may_hold_are_not_waited_for(
        self, cache_directory: Path
    ) -> None:
        store = KernelStore(cache_directory)
        with store.lock("ab"):
            cache_directory.chmod(0o777)
            began = time.monotonic()
            with store.lock("ab"):
                assert time.monotonic() - began < store_module.LOCK_SECONDS / 2

    def test_killed_holder_holds_nothing(self, cache_directory: Path) -> None:
        share_own_functions(cache_directory)
        code = (
            "import sys, signal; from pathlib import Path; from "
            "synknumba.simt._machine.store import KernelStore\n"
            "with KernelStore(Path(sys.argv[1])).lock('ab'):\n    print('held', "
            "flush=True); signal.pause()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(cache_directory)], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            probe = os.open(cache_directory / ".lock-ab", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder.send_signal(signal.SIGKILL)
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(probe)


SCRIPT = (
    HEAD
    + """
import json, sys, time
from pathlib import Path
from synknumba.simt._emit.build import KernelProgram

def make(c):
    @njit
    def plus(x):
        if x < 0:
            raise ValueError(x)
        return x + c

    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            row = x[i]
            out[i] = plus(row[1]) * 10
    return kernel

translated = []
translate = KernelProgram.__init__
KernelProgram.__init__ = lambda self, *args: (translated.append(1), translate(self, *args))[1]
names = sys.argv[2:]
if sys.argv[1] != "-":
    mine, theirs = (Path(name) for name in sys.argv[1].split(","))
    mine.touch()
    while not theirs.exists():
        time.sleep(0.001)
done = {}
for c in map(int, names):
    kernel = make(c)
    out = np.zeros(2)
    kernel[1, 2](np.arange(4.0).reshape(2, 2), out)
    done[c] = [out.tolist(), kernel.cache_info.hits, kernel.cache_info.misses, len(translated), "plus_(" in kernel.source]
print(json.dumps(done))
"""  # noqa: E501
)


def started(script: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    env = {**os.environ, **env}
    share_own_functions(env["SYNKNUMBA_CACHE_DIR"])
    return subprocess.Popen(
        [sys.executable, str(script), *args], stdout=subprocess.PIPE, text=True, env=env
    )


def result(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return json.loads(output)


ONE, TWO = [20.0, 40.0], [30.0, 50.0]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def filled(script: Path) -> str:
    """A cache with two kernels of one name, compiled in processes of their own where both had
    the same number.
    """
    cache = str(script.parent / "cache")
    both = [started(script, "-", name, SYNKNUMBA_CACHE_DIR=cache) for name in ("1", "2")]
    assert [result(process) for process in both] == [
        {"1": [ONE, 0, 1, 1, True]},
        {"2": [TWO, 0, 1, 1, True]},
    ]
    return cache


class TestProcesses:
    def test_found_by_another_process(self, script: Path, filled: str) -> None:
        third = started(script, "-", "1", "2", SYNKNUMBA_CACHE_DIR=filled)
        assert result(third) == {"1": [ONE, 1, 0, 0, True], "2": [TWO, 1, 0, 0, True]}

    @pytest.mark.whole
    def test_another_processor(self, script: Path, filled: str) -> None:
        other = started(
            script,
            "-",
            "1",
            SYNKNUMBA_CACHE_DIR=filled,
            NUMBA_CPU_NAME="generic",
            NUMBA_CPU_FEATURES="",
        )
        assert result(other) == {"1": [ONE, 0, 1, 1, True]}

    @pytest.mark.whole
    def test_one_compiles_and_the_other_waits(self, script: Path, tmp_path: Path) -> None:
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        both = [started(script, f"{a},{b}", "1"), started(script, f"{b},{a}", "1")]
        (first,), (second,) = (result(process).values() for process in both)
        assert sorted([first[1:4], second[1:4]]) == [[0, 1, 1], [1, 0, 0]]
        assert first[0] == second[0] == ONE


@pytest.mark.parametrize("switch", ["", " ", "1", "on", "True"])
def test_the_switch_leaves_the_cache_on(
    switch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYNKNUMBA_CACHE", switch)
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path))
    assert store_module.directory() == tmp_path


@pytest.mark.parametrize("switch", ["0", "off", "OFF", "false", "no", " 0 "])
def test_the_switch_turns_the_cache_off(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNKNUMBA_CACHE", switch)
    assert store_module.directory() is None


def test_the_switch_refuses_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNKNUMBA_CACHE", "maybe")
    with pytest.raises(
        ArgumentError, match="SYNKNUMBA_CACHE must be 0 or off, or 1 or on, got 'maybe'"
    ):
        store_module.directory()


def test_the_directory_may_begin_at_the_users_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SYNKNUMBA_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", "~/kernels")
    assert store_module.directory() == tmp_path / "kernels"
