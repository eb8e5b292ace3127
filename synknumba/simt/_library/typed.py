"""Intrinsics with fixed signatures, as in CUDA's C library: arguments are converted, not dispatched
on.

A signature is a string in the style of Numba's short names: `d(d,i)` returns a float64 and takes a
float64 and an int32. Several results form a tuple: `fi(f)`.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, final

from llvmlite import ir
from numba import njit
from numba.core import cgutils, sigutils, types
from numba.extending import intrinsic

from synknumba.simt._library.intrinsics import call_llvm, check_number, parts_of

_TYPES: dict[str, types.Type] = {
    "b": types.boolean,
    "e": types.float16,
    "f": types.float32,
    "d": types.float64,
    "c": types.int8,
    "h": types.int16,
    "i": types.int32,
    "l": types.int64,
    "C": types.uint8,
    "H": types.uint16,
    "I": types.uint32,
    "L": types.uint64,
}

_PROMOTED = {types.float16: types.float32}

# Emits the code of a function: (context, builder, signature, argument values) -> value.
Code = Callable[[Any, Any, Any, Any], Any]


def parse_signature(text: str, half: types.Type | None = types.float16) -> Any:
    """Parses a string such as `d(d,i)` into a Numba signature; `half` is the type of `e`."""
    match = re.fullmatch(r"(\w+)\((\w(?:,\w)*)\)", text)
    if match is None:
        raise ValueError(f"not a signature: {text!r}")
    kinds = _TYPES | {"e": half}
    results = [kinds[letter] for letter in match[1]]
    params = [kinds[letter] for letter in match[2].split(",")]
    if len(results) == 1:
        return results[0](*params)
    return types.Tuple(results)(*params)


def with_arity(name: str, count: int, resolve: Callable[..., Any]) -> Any:
    """Returns an intrinsic with 0 to 5 parameters; `resolve` maps their types to a signature and
    code.

    Numba takes the number of arguments from the signature of the Python function, and the name for
    its errors.
    """
    resolvers: Any = (
        lambda _context: resolve(),
        lambda _context, x: resolve(x),
        lambda _context, x, y: resolve(x, y),
        lambda _context, x, y, z: resolve(x, y, z),
        lambda _context, x, y, z, w: resolve(x, y, z, w),
        lambda _context, x, y, z, w, v: resolve(x, y, z, w, v),
    )
    resolvers[count].__name__ = resolvers[count].__qualname__ = name.replace(".", "_")
    return intrinsic(resolvers[count])


def plain(emit: Callable[..., Any]) -> Code:
    """Returns code by a function that emits it, given the builder and the values of the arguments
    alone.
    """
    return lambda _context, builder, _signature, args: emit(builder, *args)


def emitted(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that makes an intrinsic with one signature, such as
    "int64(int64, float64)", of a function that gets the builder and the values of the arguments.
    """
    args, result = sigutils.normalize_signature(signature)

    def decorate(emit: Callable[..., Any]) -> Any:
        return with_arity(emit.__name__, len(args), lambda *_: (result(*args), plain(emit)))

    return decorate


def typed(name: str, cases: Mapping[str, Code], half: types.Type | None = types.float16) -> Any:
    """Returns an intrinsic with signatures such as `d(d,i)`: the one that matches the arguments
    exactly applies, else the last.

    Args:
        name: name in error messages.
        cases: code emitters by signature.
        half: type of `e` in the signatures.
    """
    by_args = {}
    for text, code in cases.items():
        signature = parse_signature(text, half)
        by_args[signature.args] = last = signature, code

    def resolve(*args: types.Type) -> Any:
        kinds = tuple(map(types.unliteral, args))
        check_number(name, *kinds)
        # CUDA does not convert complex numbers either
        if any(isinstance(kind, types.Complex) for kind in kinds):
            return None
        # Where there is no case for float16, it counts as float32, to which Numba promotes it.
        promoted = tuple(_PROMOTED.get(kind, kind) for kind in kinds)
        return by_args.get(kinds) or by_args.get(promoted, last)

    return with_arity(name, len(signature.args), resolve)


@final
class Library(Mapping[str, Any]):
    """The functions of a module of `numba.cuda` by their paths, such as `libdevice.sin`.

    The table is made when it is first looked at, and each function on first use: making the 300 of
    libdevice takes long.

    Args:
        module: name of the module.
        entries: returns the signature and code of each function, by name.
        half: returns the type of `e` in the signatures.
    """

    def __init__(
        self,
        module: str,
        entries: Callable[[], Mapping[str, tuple[str, Code]]],
        half: Callable[[], types.Type | None] = lambda: types.float16,
    ) -> None:
        self._prefix, self._make, self._half = f"{module}.", entries, half
        self._functions: dict[str, Any] = {}

    @functools.cached_property
    def _entries(self) -> Mapping[str, tuple[str, Code]]:
        return self._make()

    def __getitem__(self, path: str) -> Any:
        if path not in self._functions:
            if path not in self:
                raise KeyError(path)
            signature, code = self._entries[path.removeprefix(self._prefix)]
            self._functions[path] = typed(f"cuda.{path}", {signature: code}, self._half())
        return self._functions[path]

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str) or not path.startswith(self._prefix):
            return False
        return path.removeprefix(self._prefix) in self._entries

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def like(function: Any) -> Code:
    """Returns code that calls Numba's implementation of a `math` function or operator; loops
    over it vectorize as usual.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        callee = context.typing_context.resolve_value_type(function)
        called = callee.get_call_type(context.typing_context, signature.args, {})
        implementation = context.get_function(callee, called)
        context.add_linking_libs(getattr(implementation, "libs", ()))
        values = map(partial(context.cast, builder), args, signature.args, called.args)
        value = implementation(builder, [*values])
        return context.cast(builder, value, called.return_type, signature.return_type)

    return code


def body(function: Callable[..., Any]) -> Code:
    """Returns code that calls a Python function, compiled without fast-math whatever the
    kernel's options.
    """

    def code(*args: Any) -> Any:
        return like(strict(function))(*args)  # the dispatcher is made when a kernel first calls it

    return code


@functools.cache
def strict(function: Callable[..., Any]) -> Any:
    """Returns an njit function without fast-math: `a * b + c` is not contracted, NaN and the
    sign of zero are kept.
    """
    return njit(error_model="numpy", fastmath=False, forceinline=True)(function)


def c_function(name: str) -> Code:
    """Returns code that calls a C library function; results after the first are output pointers,
    its last parameters.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = signature.return_type
        first, *others = map(context.get_value_type, parts_of(result))
        outputs = [cgutils.alloca_once(builder, kind) for kind in others]
        params = [arg.type for arg in (*args, *outputs)]
        function_type = ir.FunctionType(first, params)
        if not outputs:  # ignoring errno makes the call pure: LLVM may move and vectorize it
            function = cgutils.insert_pure_function(builder.module, function_type, name)
            return builder.call(function, args)
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        value = builder.call(function, [*args, *outputs])
        return context.make_tuple(builder, result, [value, *map(builder.load, outputs)])

    return code


def llvm(name: str, *constants: bool) -> Code:
    """Returns code that calls an LLVM intrinsic, overloaded on the type of its first argument."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flags = [ir.Constant(ir.IntType(1), constant) for constant in constants]
        value = call_llvm(builder, name, *args, *flags)
        result = context.get_value_type(signature.return_type)
        if value.type == result:
            return value
        return builder.trunc(value, result)

    return code
