"""The state in which Numba compiles a kernel quickly.

CPython's collector walks the objects of the compiler again and again and finds next to nothing, as its many objects live to the
end of the compilation: a tenth of its time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.compiler_lock import global_compiler_lock


@contextmanager
def compilation() -> Iterator[None]:
    """Compiles within the context, with Numba's lock held, and without garbage collection."""
    with global_compiler_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
