"""`cuda.fp16`: arithmetic, comparisons, mathematical functions and conversions of float16.

The names are those of Numba (`hadd`), and those that numba-cuda adds, which are CUDA's
(`__hadd_sat`, `__float2half_rz`).
"""

from typing import Final

from synknumba.simt._library.float16 import FLOAT16
from synknumba.simt._library.small_floats import functions
from synknumba.simt._library.typed import Code, Library


def _entries() -> dict[str, tuple[str, Code]]:
    table = functions(FLOAT16, "half")
    return table | {f"__{name}": entry for name, entry in table.items()}


FP16: Final = Library("fp16", _entries)
