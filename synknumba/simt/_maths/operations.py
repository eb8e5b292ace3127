"""Tables of the operations of `numba.cuda`: their implementations on the CPU, and hints for
unsupported ones.

Paths are relative to `numba.cuda`, such as "atomic.add".
"""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Final

from synknumba.simt._library.atomics import ATOMICS
from synknumba.simt._library.synchronisation import BARRIER_PATHS, COLLECTIVES
from synknumba.simt._library.vectors import VECTORS
from synknumba.simt._library.words import CACHED_LOADS, CACHED_STORES, FENCES, INDICES, TRIPLES
from synknumba.simt._maths import bits
from synknumba.simt._maths.bfloat16 import BF16
from synknumba.simt._maths.float16 import FP16
from synknumba.simt._maths.libdevice import LIBDEVICE

_FUNCTIONS: Final[dict[str, Any]] = {
    **{f"atomic.{name}": function for name, function in ATOMICS.items()},
    **{name: getattr(bits, name) for name in ("popc", "brev", "clz", "ffs", "fma", "cbrt", "selp")},
    **VECTORS,
}

ATOMIC_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    **{f"atomic.{name}": ("array", "index", "value") for name in ATOMICS},
    "atomic.cas": ("array", "index", "old", "value"),
    "atomic.compare_and_swap": ("array", "old", "value"),
}

FUNCTIONS: Final[Mapping[str, Any]] = ChainMap(_FUNCTIONS, LIBDEVICE, FP16, BF16)  # type: ignore[arg-type]  # read only


# Hints by prefix of the path; the longest prefix applies.
_REFUSALS: Final[dict[str, str]] = {
    "": "run the kernel on device='cuda'",
    "shared": "of the module cuda.shared use array()",
    "cg": "of the module cuda.cg use this_grid().sync()",
    "shfl_sync_intrinsic": "use cuda.shfl_sync, shfl_up_sync, shfl_down_sync or shfl_xor_sync",
    "vote_sync_intrinsic": "use cuda.all_sync, any_sync, eq_sync or ballot_sync",
    **dict.fromkeys(TRIPLES, "use its .x, .y or .z"),
}

# Submodules of numba.cuda whose functions are for kernels. The functions of `random` are ordinary
# Python.
MODULES: Final = ("libdevice", "cg", "fp16", "bf16", "random")

# Members of numba.cuda that a kernel may have imported under any name; recognised by identity.
HEADS: Final = frozenset(
    {
        path.split(".")[0]
        for path in (*INDICES, *_FUNCTIONS, *_REFUSALS, *COLLECTIVES, *BARRIER_PATHS)
        if path
    }
    | {"libdevice", "fp16", "bf16"}
    | FENCES
    | CACHED_LOADS
    | CACHED_STORES
    | {"grid", "gridsize", "laneid", "warpsize", "local", "const", "lanemask_lt"}
)


def way_out(path: str) -> str:
    """Returns the remedy in the error for an operation that the CPU cannot run."""
    while path not in _REFUSALS:
        path = path.rpartition(".")[0]
    return _REFUSALS[path]
