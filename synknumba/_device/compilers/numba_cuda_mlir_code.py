"""Code of operations that numba-cuda-mlir 0.6 has none for, or wrong code; registered in this process by `complete`.

    threadfence…         no code, reported as a bug of the compiler; kernels of expectations need it
    a != b of floats     false where one is NaN
    shfl_…sync           float64 comes as float32, and 64-bit integers without their upper half

Signatures are more specific than the package's own, so that they are found before these.
"""

import functools
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.extending import lower_builtin, lowering_registry

# Names, kinds, and the last lane of a warp, which bounds all but `up`.
_SHUFFLES = (
    ("shfl_sync", "idx", 31),
    ("shfl_up_sync", "up", 0),
    ("shfl_down_sync", "down", 31),
    ("shfl_xor_sync", "bfly", 31),
)


@functools.cache
def complete() -> None:
    """Registers the code, once in a process."""
    with suppress(ImportError, AttributeError):  # another version, with other private parts
        from numba_cuda_mlir._mlir.dialects import arith, nvvm
        from numba_cuda_mlir._mlir.extras import types as mlir
        from numba_cuda_mlir.lowering.cuda import constant, int_of, registry
        from numba_cuda_mlir.lowering_utilities import coerce_numpy_scalars_for_binary_op as coerce

        known = {member for _, member, _ in (*registry.functions, *lowering_registry.functions)}
        for name, scope in (("threadfence_block", "CTA"), ("threadfence", "GPU"), ("threadfence_system", "SYS")):
            if getattr(cuda, name) not in known:
                lower_builtin(getattr(cuda, name))(functools.partial(_fence, nvvm.memory_barrier, nvvm.MemScopeKind[scope]))

        def differ(builder: Any, target: Any, args: Any, *_: Any) -> None:
            builder.store_var(target, arith.cmpf(arith.CmpFPredicate.UNE, *coerce(*map(builder.load_var, args))))

        for kinds in ((types.Float, types.Float), (types.Float, types.Integer), (types.Integer, types.Float)):
            lower_builtin(operator.ne, *kinds)(differ)

        def shuffle(kind: Any, clamp: int, builder: Any, target: Any, args: Any, *_: Any) -> None:
            """Passes the two halves of a number of 64 bits."""
            mask, value, lane = map(builder.load_var, args)
            mask, lane = int_of(mask, mlir.i32()), int_of(lane, mlir.i32())
            is_integer = value.type == mlir.i64()
            bits = value if is_integer else arith.bitcast(mlir.i64(), value)
            shift, limit = constant(32, mlir.i64()), constant(clamp, mlir.i32())
            low, high = (
                arith.extui(mlir.i64(), nvvm.shfl_sync(mask, arith.trunci(mlir.i32(), half), lane, limit, kind))
                for half in (bits, arith.shrui(bits, shift))
            )
            made = arith.ori(low, arith.shli(high, shift))
            builder.store_var(target, made if is_integer else arith.bitcast(value.type, made))

        for name, kind, clamp in _SHUFFLES:
            emit = functools.partial(shuffle, nvvm.ShflKind[kind], clamp)
            for number in (types.float64, types.int64, types.uint64):
                lower_builtin(getattr(cuda, name), types.Integer, number, types.Integer)(emit)


def _fence(memory_barrier: Callable[[Any], object], scope: Any, builder: Any, target: Any, *_: Any) -> None:
    memory_barrier(scope)
    builder.store_var(target, None)
