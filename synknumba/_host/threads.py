"""Threads of the script that a fork leaves behind."""

import sys
import threading
import warnings

# Their threads are idle while a cell runs, or hold locks of their own that a rank does not use.
_NOTEBOOK = ("ipykernel", "IPython", "debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle")

_told: list[bool] = []  # once is enough


def tell_of_threads() -> None:
    """Warns, once in the life of the process, that it has other threads than the main one and the one that forks.

    A child has only the thread that forked. What another one was doing stays half done in it, and a lock that it held is never
    given back: a rank that needs it waits for ever. Threads of C libraries are not seen here: BLAS and OpenMP mind forks.
    """
    spared = {threading.main_thread(), threading.current_thread()}
    others = [thread for thread in threading.enumerate() if thread not in spared and not _is_of_notebook(thread)]
    if not others or _told:
        return
    _told.append(True)
    names = ", ".join(f"{thread.name!r}" for thread in others)
    many = len(others) > 1
    message = (
        f"fork() while {len(others)} other thread{'s run' if many else ' runs'}: {names}. Ranks do not have "
        f"{'them' if many else 'it'}, and a lock that {'one of them' if many else 'it'} holds at this moment stays "
        f"locked on the ranks for ever. Call fork() before threads are started."
    )
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _is_of_notebook(thread: threading.Thread) -> bool:
    if "ipykernel" not in sys.modules and "pydevd" not in sys.modules:
        return False
    target = getattr(thread, "_target", None)
    modules = type(thread).__module__, getattr(target, "__module__", None) or ""
    return any(module.partition(".")[0] in _NOTEBOOK for module in modules)
