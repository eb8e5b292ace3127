"""Declared signatures of kernels and device functions: parsing, overload resolution, conversion
of launch arguments.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numba.core import errors, sigutils, types
from numba.core.registry import cpu_target
from numba.core.typing import signature
from numba.np.numpy_support import as_dtype

from synknumba._errors import ArgumentError, DeviceMemberError
from synknumba._types import MAX_GRID, shown
from synknumba.simt._library.slots import is_number
from synknumba.simt._maths import bfloat16
from synknumba.simt._source.mlir import counterpart

Signature = tuple[types.Type, ...]


@final
class GpuOnly:
    """A member of numba.cuda's kernels that means nothing on a core; to read it raises
    DeviceMemberError.

    Args:
        reason: what it does on a GPU.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise DeviceMemberError(
            f"{self._name} {self._reason}, and kernels run on CPU cores here; leave it "
            f"out, or run this on a GPU"
        )


class NoDeviceCode:
    """A kernel, or one of its overloads, whose code for a GPU there is nothing to show of."""

    __slots__ = ()

    inspect_asm = GpuOnly("shows PTX")
    inspect_llvm = GpuOnly("shows NVVM's code")
    inspect_sass = GpuOnly("shows machine code of a GPU")
    inspect_sass_cfg = GpuOnly("shows machine code of a GPU")


@dataclass(frozen=True, slots=True)
class Overload(NoDeviceCode):
    """A kernel compiled for one list of argument types."""

    signature: Signature
    cooperative: bool  # whether the kernel calls `cuda.cg.this_grid()`, as a grid barrier requires
    max_threads_per_block: int
    # of the static shared arrays of a block; None if only Numba can infer a dtype
    shared_bytes: int | None

    regs_per_thread = GpuOnly("counts the registers of a GPU")
    const_mem_size = GpuOnly("measures the constant memory of a GPU")
    local_mem_per_thread = GpuOnly("measures the local memory of a GPU")

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Returns the largest number of blocks of a cooperative grid: that of any grid, since
        one core runs them in turn.
        """
        del blockdim, dynsmemsize
        return MAX_GRID[0]

    @property
    def shared_mem_per_block(self) -> int:
        """Bytes of the static shared arrays of a block."""
        if self.shared_bytes is None:
            raise DeviceMemberError(
                "shared_mem_per_block is not known where the dtype of a "
                "shared array is of no argument"
            )
        return self.shared_bytes


@final
class Overloads(dict[Signature, Overload]):
    """Overloads by argument types, which may be given as those of numba-cuda-mlir."""

    def __missing__(self, kinds: Any) -> Overload:
        numbas = tuple(map(counterpart, kinds))
        if numbas not in self:
            raise KeyError(kinds)
        return self[numbas]


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared signature."""

    args: tuple[types.Type, ...]
    result: types.Type | None  # None if the compiler infers it

    def without(self, positions: Iterable[int]) -> "Declared":
        """Returns the signature with the parameters at these positions removed."""
        left_out = frozenset(positions)
        args = [kind for position, kind in enumerate(self.args) if position not in left_out]
        return Declared(tuple(args), self.result)


def declared_signatures(value: Any) -> tuple[Declared, ...]:
    """Returns the signatures given to a function's decorator; empty if the function is compiled
    for any argument types.
    """
    if hasattr(value, "__simt_kernel__"):
        return value.signatures_given  # type: ignore[no-any-return]
    # Numba has no public accessor: given signatures, `njit` and `cuda.jit` compile these at once
    # and disable further ones.
    if getattr(value, "_can_compile", True):
        return ()
    return tuple(
        Declared(tuple(map(counterpart, args)), counterpart(compiled.signature.return_type))
        for args, compiled in value.overloads.items()
    )


def as_declared(value: Any, declared: Iterable[Declared], position: int) -> Any:
    """Converts an integer constant to the declared type of a parameter, if all signatures agree
    on the type.
    """
    kinds = {signature.args[position] for signature in declared if position < len(signature.args)}
    match value, [*kinds]:
        case ((int() | np.integer()), [kind]) if is_number(kind):
            return _converted(as_dtype(kind), value)
    return value


def best_declared(
    name: str, declared: Sequence[Declared], kinds: tuple[types.Type, ...]
) -> Declared:
    """Returns the signature that fits these argument types best, by Numba's rules for calls in
    compiled code.

    Raises:
        NumbaTypeError: no signature fits.
    """
    kinds = tuple(map(types.unliteral, kinds))
    signatures = [candidate.args for candidate in declared]
    position = _best_position(name, signatures, kinds)
    if position is None:
        candidates = "\n".join(f" * {_listed(candidate)}" for candidate in signatures)
        raise errors.NumbaTypeError(
            f"Invalid use of type(device function {name}) with parameters "
            f"{_listed(kinds)}\nKnown signatures:\n{candidates}"
        )
    return declared[position]


def _best_position(
    function: Any, signatures: Iterable[Signature], kinds: Signature, **options: bool
) -> int | None:
    """Returns the position of the signature that Numba's overload resolution chooses; None if no
    signature fits.
    """
    cases = [signature(types.none, *args) for args in signatures]
    best = cpu_target.typing_context.resolve_overload(function, cases, kinds, {}, **options)
    return next((position for position, case in enumerate(cases) if case is best), None)


def parse_signatures(signatures: Any) -> tuple[Declared, ...]:
    """Parses the signatures given to the decorator: None, one, or a list."""
    match signatures:
        case None:
            return ()
        case list():
            return tuple(map(_parsed, signatures))
    return (_parsed(signatures),)


def _parsed(text_or_types: Any) -> Declared:
    if isinstance(text_or_types, tuple):
        numbas: Any = tuple(map(counterpart, text_or_types))
    else:
        numbas = counterpart(text_or_types)
    args, result = sigutils.normalize_signature(numbas)
    return Declared(tuple(args), result)


def best_signature(function: Any, signatures: Sequence[Signature], kinds: Signature) -> Signature:
    """Returns the signature that fits these argument types best, by Numba's overload resolution.

    Arrays must have the declared dtype, number of dimensions and layout, of which A is any. Whether
    they may be written does not count: the inputs of `synk.parallel` are read-only.

    Raises:
        ArgumentError: no signature fits.
        TypeError: several signatures fit equally well.
    """
    cases = [tuple(map(_writable, args)) for args in signatures]
    writable = tuple(map(_writable, kinds))
    position = _best_position(function, cases, writable, allow_ambiguous=False)
    if position is None:
        declared = " and ".join(map(_listed, signatures))
        code = function.__code__
        raise ArgumentError(
            f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}): No matching "
            f"definition for argument type(s) {_listed(kinds)}; declared: {declared}. Convert the "
            "arguments, or declare a signature for them"
        )
    return signatures[position]


def _writable(kind: types.Type) -> types.Type:
    if isinstance(kind, types.Array):
        return kind.copy(dtype=_writable(kind.dtype), readonly=False)
    return getattr(kind, "plain", kind)  # of a record that is only read


def _listed(kinds: Iterable[types.Type]) -> str:
    return f"({', '.join(map(str, kinds))})"


@final
class Signatures:
    """Signatures that a kernel is declared with, as its launches use them.

    Args:
        function: the Python function, for messages.
        declared: argument types; one tuple at least.
    """

    def __init__(self, function: Any, declared: Sequence[Signature]) -> None:
        # then arguments are converted before anything is known of their types
        self.is_one = len(declared) == 1
        self._function, self._declared = function, declared
        self._best: dict[Signature, Signature] = {}  # by the types of the arguments

    def best(self, kinds: Signature) -> Signature:
        """Returns the signature that fits arguments of these types best; raises as
        `best_signature`.
        """
        if kinds not in self._best:
            self._best[kinds] = best_signature(self._function, self._declared, kinds)
        return self._best[kinds]

    def check(self, kinds: Signature) -> None:
        """Raises as `best` if the only signature does not fit; of several, `convert` has found the
        best.
        """
        if self.is_one and len(self._declared[0]) == len(kinds):
            self.best(kinds)

    def convert(
        self, args: tuple[Any, ...], type_of: Callable[[Any], types.Type]
    ) -> tuple[Any, ...]:
        """Returns the arguments converted to the only signature, or to the best by their types.

        Raises:
            ArgumentError: as `convert_arguments` and `best`.
        """
        if self.is_one:
            return convert_arguments(self._function, self._declared[0], args)
        return convert_arguments(self._function, self.best(tuple(map(type_of, args))), args)


def convert_arguments(
    function: Any, signature: Signature, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Returns the arguments with numbers converted to the types of the signature, and integers of
    arrays read with its sign.

    Floats are cut to integers, and integers to the low bits of theirs, as in C.

    For a kernel with one signature numba.cuda does not look at the arguments: it reads their memory
    as declared, which for signed and unsigned integers is what programs mean.

    Raises:
        ArgumentError: an argument for a number is none, or has no value of the declared type.
    """
    if len(signature) != len(args):
        return args  # the call reports the mismatch
    converted = []
    for position, (kind, arg) in enumerate(zip(signature, args, strict=True)):
        # an array for a number fits no signature
        if not is_number(kind) or getattr(arg, "ndim", 0) != 0:
            converted.append(_read_as(kind, arg))
            continue
        try:
            converted.append(_converted(as_dtype(kind), arg))
        except (TypeError, ValueError, OverflowError):
            label = f"{function.__qualname__}(): {function.__code__.co_varnames[position]}"
            raise ArgumentError(
                f"{label} is declared {kind}, got {shown(arg)}; pass a number of that type"
            ) from None
    return tuple(converted)


def _read_as(kind: types.Type, arg: Any) -> Any:
    """Returns an array of integers with those of the declared sign; other arguments unchanged."""
    if not isinstance(kind, types.Array) or not isinstance(kind.dtype, types.Integer):
        return arg
    dtype, declared = getattr(arg, "dtype", None), as_dtype(kind.dtype)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iu" or not dtype.isnative:
        return arg
    if dtype.itemsize != declared.itemsize or dtype == declared:
        return arg
    return arg.view(declared)


_REAL_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_NUMBERS = (*_REAL_NUMBERS, complex, np.complexfloating)


def _converted(dtype: np.dtype[Any], value: Any) -> Any:
    """Returns a number converted to a dtype by C's rules; raises TypeError for anything else."""
    if isinstance(value, np.ndarray):  # of no axis
        value = value[()]
    numbers: tuple[type, ...] = _REAL_NUMBERS
    if dtype.kind == "c":
        numbers = _NUMBERS
    if not isinstance(value, numbers) and not bfloat16.is_scalar(value):
        raise TypeError
    if dtype.kind in "iu":
        low_bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
        return np.array(low_bits, f"u{dtype.itemsize}").view(dtype)[()]
    if isinstance(value, int) and dtype.kind != "b":
        value = float(value)  # or an OverflowError
    with np.errstate(all="ignore"):  # float32(1e300) is inf, as on a GPU
        return np.asarray(value).astype(dtype)[()]
