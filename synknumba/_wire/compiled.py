"""Compilation of the package's own functions for the host: at definition, or from the store.

    compiled(signature)(function) ──key──> in the store? ──no──> compile, store

They must be ready before the first fork. The key is a digest of the source files, the values that a
closure holds, and all that compiled code depends on. Numba's `cache=True` is not used: it unpickles
whatever lies in its directory, also what another user has written or a full disk has truncated, and
unpickling runs code. The store reads whole files of this user only.
"""

import pickle
from collections.abc import Callable
from functools import cache
from inspect import getclosurevars
from pathlib import Path
from types import FunctionType
from typing import Any, final

import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from synknumba.simt.internals import (
    Fingerprint,
    KernelStore,
    PrivateCompiler,
    directory,
    host,
    is_ours,
    link_runtime,
)

# files with functions that compiled functions of other files call
CALLED = ("doorbell.py",)
_OPTIONS = {"nogil": True, "error_model": "numpy"}


def compiled(*signatures: str) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that compiles a function of this package for the given signatures."""

    def decorate(function: Callable[..., Any]) -> Any:
        if config.DISABLE_JIT:  # `fork` refuses it
            return function
        stored = _Stored(function)
        # Symbols of two functions must differ, though other processes have compiled them: an
        # address is looked up by its symbol, among all that this process has loaded. Numba numbers
        # functions in each process, from 1.
        function.__qualname__ = f"{function.__qualname__}_{stored.digest[:16]}"
        dispatcher = numba.njit(**_OPTIONS)(function)
        dispatcher._compiler.pipeline_class = PrivateCompiler  # noqa: SLF001
        dispatcher._cache = stored  # noqa: SLF001  # where `enable_caching` puts Numba's own
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return decorate


@final
class _Stored(NullCache):  # type: ignore[misc]  # Numba has no types
    """One function's compiled code in the store, with the interface of Numba's caches.

    Attributes:
        digest: of all that the code depends on but the signature.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parts = _common(), _content(function.__code__.co_filename), _text(function)
        self.digest = Fingerprint(*parts).hexdigest()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns the code for a signature; None if it is not in the store."""
        store = _store()
        payload = None if store is None else store.read(self._key(sig))
        if payload is None:
            return None
        link_runtime()
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(payload))  # noqa: S301, SLF001  # checked by the store
        except Exception:  # noqa: BLE001  # an entry of other versions: compile
            return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Stores code, if possible."""
        store = _store()
        if store is not None:
            store.write(self._key(sig), dumps(cres._replace(type_annotation="")._reduce()))  # noqa: SLF001

    def _key(self, signature: Any) -> str:
        return Fingerprint(self.digest, str(signature)).hexdigest()


def _store() -> KernelStore | None:
    """Returns the folder of these functions in the directory of kernels; None if the cache is
    disabled or open to others.

    Also None if it cannot be looked at, as that of another user whose home is still this one's
    `$HOME`.
    """
    path = directory()
    if path is None:
        return None
    try:
        if not is_ours(path.stat()):
            return None
    except FileNotFoundError:
        pass
    except OSError:
        return None
    return KernelStore(path / "package")


@cache
def _common() -> str:
    """Returns the digest of what all compiled functions depend on; they call those of `CALLED`."""
    called = (_content(str(Path(__file__).with_name(name))) for name in CALLED)
    return Fingerprint("host", repr(_OPTIONS), *host(), *called).hexdigest()


@cache
def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _text(value: Any) -> str:
    """Returns the text of what a closure holds: a number, a class, or a function of the same file
    with what its closure holds.
    """
    value = getattr(value, "py_func", value)
    if not isinstance(value, FunctionType):
        return str(getattr(value, "__qualname__", repr(value)))
    held = map(_text, getclosurevars(value).nonlocals.values())
    return f"{value.__qualname__}({', '.join(held)})"
