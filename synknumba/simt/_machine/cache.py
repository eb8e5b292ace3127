"""Persistent cache of compiled kernels, shared by all processes of a user.

    launch ──types──> key ──> in this process? ──> on disk? ──> lock ──> on disk by now? ──> translate, compile, store

The key is a digest of everything that the machine code depends on (see `_machine.fingerprint`), so
entries never go stale: any change yields a different key. On a hit the kernel is loaded without
translation. Numba's `cache=True` is not used: it compares a file's modification time, not the
values that the function reads, and needs the translated function for the lookup.
"""  # noqa: E501

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

from numba.core import types
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from synknumba.simt._machine.codegen import Compiled, KernelLibrary
from synknumba.simt._machine.fingerprint import (
    Fingerprint,
    NotComparableError,
    environment,
    type_text,
)
from synknumba.simt._machine.store import KernelStore, directory
from synknumba.simt._machine.vector_math import describe
from synknumba.simt._numba.frame_space import with_frame_space
from synknumba.simt._numba.runtime import give_way, link_runtime

# Keyed by cache key. Loading a kernel twice would define its symbols twice.
_loaded: WeakValueDictionary[str, Compiled] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Cache statistics of a kernel.

    Attributes:
        hits: number of argument-type sets whose machine code was loaded.
        misses: number of argument-type sets that were compiled.
        not_kept: reason why the most recently compiled code is not on disk; None if it is.
    """

    hits: int = 0
    misses: int = 0
    not_kept: str | None = None


class KernelCache:
    """One kernel's access to the cache; `options` are part of the key."""

    def __init__(self, function: FunctionType, options: Any, *, enabled: bool) -> None:
        self._function, self._options, self.enabled = function, options, enabled
        self._translated: str | None = None
        self.info = CacheInfo()

    def translating(self) -> None:
        """Records the digest of the values that the kernel reads; call before translation, which
        freezes these values.
        """
        if self.enabled and directory() is not None:
            self._translated = self._digest()[0]

    def digest(self) -> str | None:
        """Returns the digest of all that the kernel's code depends on but argument types; None
        if it cannot be compared.
        """
        digest, problem = self._digest()
        return digest if problem is None else None

    def has(self, kinds: tuple[types.Type, ...]) -> bool:
        """Returns whether the kernel compiled for these argument types is in this process or on
        disk.
        """
        path = directory()
        if not self.enabled or path is None:
            return False
        digest, problem = self._digest(kinds)
        key = Fingerprint(digest, *map(type_text, kinds)).hexdigest() if problem is None else ""
        return bool(key) and (key in _loaded or KernelStore(path).read(key) is not None)

    def accept(self, translate: Callable[[], object]) -> None:
        """Calls `translate`, unless a translation of the kernel has succeeded before, in
        whichever process.
        """
        path = directory()
        if path is None or not self.enabled:
            translate()
            return
        digest, problem = self._digest()
        if problem is not None:
            translate()
            return
        store, key = KernelStore(path), Fingerprint(digest, "accepted").hexdigest()
        if store.read(key) is None:
            translate()
            # no value that it reads has changed in the meantime
            if self._digest() == (
                digest,
                None,
            ):
                store.write(key, b"")

    @with_frame_space
    def get(self, kinds: tuple[types.Type, ...], build: Callable[[str], Compiled]) -> Compiled:
        """Returns the kernel compiled for these argument types: loaded if cached, else built and
        stored.

        `build` compiles it on a miss; it is called with the key, or with "" if the kernel cannot be
        cached.
        """
        path = directory()
        if not self.enabled or path is None:
            return self._built(build(""), "the cache is switched off")
        digest, problem = self._digest(kinds)
        if problem is not None:
            return self._built(build(""), problem)
        key = Fingerprint(digest, *map(type_text, kinds)).hexdigest()
        store = KernelStore(path)
        if (found := self._load(store, key)) is not None:
            return found
        give_way()
        with store.lock(key):
            if (found := self._load(store, key)) is not None:
                return found
            compiled = build(key)
            if self._digest(kinds)[0] != digest:
                return self._built(compiled, "a value that it reads has changed in the meantime")
            _loaded[key] = compiled
            return self._built(compiled, _keep(store, key, compiled))

    def _digest(self, kinds: tuple[types.Type, ...] = ()) -> tuple[str, str | None]:
        """Returns the kernel's digest without argument types, and the reason why it cannot serve
        as a key, or None.
        """
        try:
            fingerprint = Fingerprint(*environment(), *describe(), self._options)
            fingerprint.function(self._function)
            for kind in kinds:
                type_text(kind)
        except NotComparableError as error:
            return "", str(error)
        digest = fingerprint.hexdigest()
        if self._translated not in {None, digest}:
            return digest, "a value that it reads has changed since it was translated"
        return digest, None

    def _built(self, compiled: Compiled, not_kept: str | None) -> Compiled:
        self.info = CacheInfo(self.info.hits, self.info.misses + 1, not_kept)
        return compiled

    def _load(self, store: KernelStore, key: str) -> Compiled | None:
        found = _loaded.get(key)
        if found is None:
            payload = store.read(key)
            if payload is None or (found := _unpacked(payload)) is None:
                return None
            _loaded[key] = found
        self.info = CacheInfo(self.info.hits + 1, self.info.misses, self.info.not_kept)
        return found


def _keep(store: KernelStore, key: str, compiled: Compiled) -> str | None:
    """Writes a compiled kernel to disk. Returns None on success, else the reason for the
    failure.
    """
    library = compiled.result.library
    if not isinstance(library, KernelLibrary):
        return "it was compiled in another way"
    problem = library.bound_to_process()
    if problem is not None:
        return problem
    try:
        parts = compiled.result._replace(type_annotation="")._reduce()  # noqa: SLF001  # Numba's own cache does the same
        if any(
            environment.consts
            for environment in parts[-1]
            if environment not in compiled.environments
        ):
            return "a function that it calls keeps Python objects"
        payload = dumps((compiled.text, compiled.any_block_size, parts))
    except Exception as error:  # noqa: BLE001  # pickling may raise anything; the kernel runs regardless
        return f"it cannot be pickled ({type(error).__name__}: {error})"
    return None if store.write(key, payload) else f"{store.path} cannot be written to"


def _unpacked(payload: bytes) -> Compiled | None:
    link_runtime()
    try:
        text, any_block_size, parts = pickle.loads(payload)  # noqa: S301  # the store reads files of this user only
        result = CompileResult._rebuild(cpu_target.target_context, *parts)  # noqa: SLF001
    except Exception:  # noqa: BLE001  # incompatible entry, e.g. of a removed class: recompile
        return None
    return Compiled(result.entry_point, text, result, any_block_size)
