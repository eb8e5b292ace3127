"""Numba's runtime for code that is loaded, not compiled.

Before it compiles, Numba imports all that it can compile: 0.4 s. Loaded code needs only the C
functions that it calls by name. `import synknumba` and ranks that find their kernels in the store
do without the rest.
"""

import sys
import time
from functools import cache

from llvmlite import binding
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

_CALLED = (
    "NRT_Free",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_unpickle",
    "_Py_NoneStruct",
    "PyExc_IndexError",
)
_HEAD_START = 0.005  # seconds; ranks reach a kernel within a millisecond of each other


@cache
def link_runtime() -> None:
    """Gives LLVM's linker the addresses of Numba's C functions; where one is missing, the linker
    ends the process.
    """
    import numba.cpython.hashing  # noqa: F401  # adds those of hashes

    rtsys.initialize(cpu_target.target_context)
    # of a release of Numba that adds them elsewhere
    if not all(map(binding.address_of_symbol, _CALLED)):
        cpu_target.target_context.refresh()


def give_way() -> None:
    """Lets a process that has compiled before, if there is one, take a kernel's lock first: it
    need not import anything.
    """
    if "numba.np.arraymath" not in sys.modules:
        time.sleep(_HEAD_START)
