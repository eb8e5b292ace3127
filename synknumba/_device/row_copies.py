"""Copies of listed rows on a core: from an array to a buffer, in the order of the list, or back.

Compiled code repeats them, as it does launches. A processor fetches ahead within a row by itself;
from a row to the next of a list it cannot, so rows that come later are prefetched. The design note
docs/design/2026-11-29-rows-by-number.md has the measurements.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import register_jitable

from synknumba._types import Array
from synknumba._wire.compiled import compiled
from synknumba._wire.doorbell import memcpy
from synknumba._wire.native import Native, NativeCall, NativeStep, address_of
from synknumba._wire.sequence_interpreter import load_word
from synknumba.simt.internals import emitted

# Bytes from the row that is copied to the one that is prefetched. From 2 to 16 KiB the times are
# alike; a row that is as long is fetched ahead by the processor.
_AHEAD = 8192
_CACHE_LINE = 64  # bytes; prefetching shorter rows takes longer than waiting for them
_KINDS = (types.int64,) * 8
LINE = 7  # position of the line's number among the arguments


@emitted("void(int64)")
def _prefetch(builder: Any, address: Any) -> None:
    """Fetches the cache line of an address into all caches."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    declared = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), declared)
    # to read, to be kept, data
    options = [number(0), number(3), number(1)]
    builder.call(function, [builder.inttoptr(address, pointer), *options])


@register_jitable  # type: ignore[untyped-decorator]
def _copy_long(
    buffer: int, array: int, numbers: int, count: int, row_bytes: int, is_back: int
) -> None:
    ahead = count
    if row_bytes > _CACHE_LINE:
        ahead = 1 + _AHEAD // row_bytes
    for row in range(count):
        if row + ahead < count:
            later = array + row_bytes * load_word(numbers + 8 * (row + ahead))
            for at in range(0, min(row_bytes, _AHEAD), _CACHE_LINE):
                _prefetch(later + at)
        in_buffer = buffer + row_bytes * row
        in_array = array + row_bytes * load_word(numbers + 8 * row)
        if is_back:
            memcpy(in_array, in_buffer, row_bytes)
        else:
            memcpy(in_buffer, in_array, row_bytes)


def _or_taking(nbytes: int, copy_others: Any) -> Any:
    """Returns a copy that takes rows of so many bytes without a call for each, and leaves all
    else to another.
    """

    @emitted("void(int64, int64)")
    def move(builder: Any, target: Any, source: Any) -> None:
        pointer = ir.IntType(8 * nbytes).as_pointer()
        value = builder.load(builder.inttoptr(source, pointer), align=1)
        builder.store(value, builder.inttoptr(target, pointer), align=1)

    @register_jitable  # type: ignore[untyped-decorator]
    def copy(
        buffer: int, array: int, numbers: int, count: int, row_bytes: int, is_back: int
    ) -> None:
        if row_bytes == nbytes and not is_back:
            for row in range(count):
                move(buffer + nbytes * row, array + nbytes * load_word(numbers + 8 * row))
        else:
            copy_others(buffer, array, numbers, count, row_bytes, is_back)

    return copy


# as in NumPy, each of these sizes has a loop of its own
_copy_numbered = _copy_long
for _size in (1, 2, 4, 8, 16):
    _copy_numbered = _or_taking(_size, _copy_numbered)


@compiled(f"void({', '.join(map(str, _KINDS))})")
def copy_rows(
    buffer: int,
    array: int,
    lists: int,
    count: int,
    row_bytes: int,
    is_back: int,
    list_bytes: int,
    line: int,
) -> None:
    """Copies rows of an array to a buffer, or back if `is_back`; all by address.

    The numbers of the rows are a line of `lists`, int64, with `list_bytes` from one to the next.
    """
    numbers = lists + line * list_bytes
    _copy_numbered(buffer, array, numbers, count, row_bytes, is_back)


@final
class CopyRows(partial[None], Native):
    """A copy of listed rows, as `CopyRows(_copy, arguments)` for `copy_rows`.

    Attributes:
        kept: buffer, array and row numbers, whose addresses are among the arguments.
    """

    kept: tuple[Array, Array, Array]

    @classmethod
    def of(
        cls, buffer: Array, array: Array, lists: Array, line: int = 0, *, back: bool = False
    ) -> "CopyRows":
        """Returns the copy of the rows of a C-contiguous array that a line of `lists` has to a
        buffer; with `back`, from there.

        lists: row numbers, int64, shape (lines, n), contiguous in each line.
        """
        addresses = [each.ctypes.data for each in (buffer, array, lists)]
        count = lists.shape[1]
        numbers = [count, buffer.nbytes // count, int(back), lists.strides[0], line]
        step = cls(_copy, [np.int64(number) for number in (*addresses, *numbers)])
        step.kept = buffer, array, lists
        return step

    @property
    def nbytes(self) -> int:
        """Number of bytes that are copied."""
        return self.kept[0].nbytes

    def native(self) -> Sequence[NativeStep] | None:
        if len(self.kept[-1]) > 1:
            return None  # the number of the line changes among the arguments
        (arguments,) = self.args
        code = copy_rows.overloads[_KINDS]
        return [NativeCall(address_of(code), _KINDS, arguments, (code, self.kept))]


def _copy(arguments: Sequence[Any]) -> None:
    copy_rows(*arguments)
