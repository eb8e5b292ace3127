"""Namespace of the generated code: the helper functions it calls, by name."""

from typing import Any, Final

import numpy as np

from synknumba._errors import KernelError
from synknumba.simt._library.collectives import COLLECT
from synknumba.simt._library.intrinsics import (
    assume,
    ceil_bound,
    floor_bound,
    nonneg,
    stack_array,
    sum_any_order,
    zero_like_element,
)
from synknumba.simt._library.slots import borrowed, inner, keep, shared_view, slot_get, slot_set

HELPERS: Final[dict[str, Any]] = {
    "_k_nonneg": nonneg,
    "_k_assume": assume,
    "_k_ceil_bound": ceil_bound,
    "_k_floor_bound": floor_bound,
    "_k_stack_array": stack_array,
    "_k_sum_any_order": sum_any_order,
    "_k_zero_like_element": zero_like_element,
    "_k_slot_get": slot_get,
    "_k_slot_set": slot_set,
    "_k_shared_view": shared_view,
    "_k_empty": np.empty,
    "_k_uint8": np.dtype(np.uint8),
    "_k_int8": np.dtype(np.int8),
    "_k_inner": inner,
    "_k_borrowed": borrowed,
    "_k_keep": keep,
    "_k_DivergenceError": KernelError,
    **COLLECT,
}
