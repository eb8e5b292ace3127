"""Namespace of the generated code: the helper functions it calls, by name."""

from typing import Any, Final

import numpy as np

from synknumba._errors import KernelError
from synknumba.simt._library import intrinsics, slots, stack
from synknumba.simt._library.collectives import COLLECT

_INTRINSICS: Final = (
    "nonneg",
    "assume",
    "ceil_bound",
    "floor_bound",
    "stack_array",
    "sum_any_order",
    "zero_like_element",
    "note_index",
)
_SLOTS: Final = ("slot_get", "slot_set", "shared_view", "inner", "borrowed", "keep")

HELPERS: Final[dict[str, Any]] = {
    **{f"_k_{name}": getattr(intrinsics, name) for name in _INTRINSICS},
    **{f"_k_{name}": getattr(slots, name) for name in _SLOTS},
    "_k_stack_begins": stack.stack_begins,
    "_k_stack_ends": stack.stack_ends,
    "_k_RecursionError": RecursionError,
    "_k_empty": np.empty,
    "_k_uint8": np.dtype(np.uint8),
    "_k_int8": np.dtype(np.int8),
    "_k_DivergenceError": KernelError,
    **COLLECT,
}
