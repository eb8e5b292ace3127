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
        known = tuple(map(counterpart, kinds))
        if known not in self:
            raise KeyError(kinds)
        return self[known]


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared signature."""

    args: tuple[types.Type, ...]
    result: types.Type | None  # None if the compiler infers it

    def without(self, positions: Iterable[int]) -> "Declared":
        """Returns the signature with the parameters at these positions removed."""
        left_out = frozenset(positions)
        return Declared(
            tuple(kind for place, kind in enumerate(self.args) if place not in left_out),
            self.result,
        )


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
        Declared(tuple(map(counterpart, args)), counterpart(made.signature.return_type))
        for args, made in value.overloads.items()
    )


def as_declared(value: Any, declared: Iterable[Declared], position: int) -> Any:
    """Converts an integer constant to the declared type of a parameter, if all signatures agree
    on the type.
    """
    kinds = {one.args[position] for one in declared if position < len(one.args)}
    if len(kinds) != 1 or not isinstance(value, (int, np.integer)):
        return value
    return _converted(as_dtype(*kinds), value) if all(map(is_number, kinds)) else value


def best_declared(
    name: str, declared: Sequence[Declared], kinds: tuple[types.Type, ...]
) -> Declared:
    """Returns the signature that fits these argument types best, by Numba's rules for calls in
    compiled code.

    Raises:
        NumbaTypeError: no signature fits.
    """
    kinds = tuple(types.unliteral(kind) for kind in kinds)
    cases = [signature(types.none, *one.args) for one in declared]
    found = cpu_target.typing_context.resolve_overload(name, cases, kinds, {})
    if found is None:
        given = ", ".join(map(str, kinds))
        known = "\n".join(f" * ({', '.join(map(str, one.args))})" for one in declared)
        raise errors.NumbaTypeError(
            f"Invalid use of type(device function {name}) with parameters "
            f"({given})\nKnown signatures:\n{known}"
        )
    return declared[next(place for place, case in enumerate(cases) if case is found)]


def parse_signatures(given: Any) -> tuple[Declared, ...]:
    """Parses the signatures given to the decorator: None, one, or a list."""
    listed = [] if given is None else given if isinstance(given, list) else [given]
    known = [
        tuple(map(counterpart, one)) if isinstance(one, tuple) else counterpart(one)
        for one in listed
    ]
    return tuple(
        Declared(tuple(args), result) for args, result in map(sigutils.normalize_signature, known)
    )


def best_signature(function: Any, signatures: Sequence[Signature], kinds: Signature) -> Signature:
    """Returns the signature that fits these argument types best, by Numba's overload resolution.

    Arrays must have the declared dtype, number of dimensions and layout, of which A is any. Whether
    they may be written does not count: the inputs of `synk.parallel` are read-only.

    Raises:
        ArgumentError: no signature fits.
        TypeError: several signatures fit equally well.
    """
    cases = [signature(types.none, *map(_writable, one)) for one in signatures]
    best = cpu_target.typing_context.resolve_overload(
        function, cases, tuple(map(_writable, kinds)), {}, allow_ambiguous=False
    )
    if best is None:
        given, declared = _listed(kinds), " and ".join(map(_listed, signatures))
        code = function.__code__
        raise ArgumentError(
            f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}): No matching "
            f"definition for argument type(s) {given}; declared: {declared}. Convert the "
            "arguments, or declare a signature for them"
        )
    return signatures[next(place for place, case in enumerate(cases) if case is best)]


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

    def convert(
        self, args: tuple[Any, ...], type_of: Callable[[Any], types.Type]
    ) -> tuple[Any, ...]:
        """Returns the arguments as `fit` for the only signature, or the best by their types; raises
        as that and `best`.
        """
        wanted = self._declared[0] if self.is_one else self.best(tuple(map(type_of, args)))
        return convert_arguments(self._function, wanted, args)


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
    fitted = []
    for place, (kind, arg) in enumerate(zip(signature, args, strict=True)):
        # an array for a number fits no signature
        if not is_number(kind) or getattr(arg, "ndim", 0) != 0:
            fitted.append(_read_as(kind, arg))
            continue
        try:
            fitted.append(_converted(as_dtype(kind), arg))
        except (TypeError, ValueError, OverflowError):
            label = f"{function.__qualname__}(): {function.__code__.co_varnames[place]}"
            raise ArgumentError(
                f"{label} is declared {kind}, got {shown(arg)}; pass a number of that type"
            ) from None
    return tuple(fitted)


def _read_as(kind: types.Type, arg: Any) -> Any:
    given = getattr(arg, "dtype", None)
    if (
        not isinstance(kind, types.Array)
        or not isinstance(kind.dtype, types.Integer)
        or not isinstance(given, np.dtype)
    ):
        return arg
    wanted = as_dtype(kind.dtype)
    alike = (
        given.kind in "iu"
        and given.isnative
        and given.itemsize == wanted.itemsize
        and given != wanted
    )
    return arg.view(wanted) if alike else arg


def _converted(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, np.ndarray):  # of no axis
        value = value[()]
    is_known = isinstance(
        value, bool | int | float | np.bool_ | np.integer | np.floating
    ) or bfloat16.is_scalar(value)
    if not is_known and not (dtype.kind == "c" and isinstance(value, complex | np.complexfloating)):
        raise TypeError
    if dtype.kind in "iu":
        return np.array(int(value) & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(
            dtype
        )[()]
    if isinstance(value, int) and dtype.kind != "b":
        value = float(value)  # or an OverflowError
    with np.errstate(all="ignore"):  # float32(1e300) is inf, as on a GPU
        return np.asarray(value).astype(dtype)[()]
