"""Errors of Numba in a user's function, in few lines: the place in the source, the reason, and what
to write instead.

    slope (model.py:21): Numba has no operator & for float64 and 3
        y[i] = x[i] & 3
               ^^^^^^^^
    Convert the operands, …

Numba's text lists all candidates it has tried, and its traceback is one of Numba itself. Both are
kept with the environment variable SYNKNUMBA_FULL_TRACEBACK=1.
"""

import ast
import builtins
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from numba import typeof
from numba.core.errors import LoweringError, NumbaError, TypingError, UnsupportedError

from synknumba._errors import FULL_TRACEBACK, KernelError, SynkError, full_traceback, named_by_base
from synknumba._types import RankConstant, class_text, with_article
from synknumba.simt._explain.cuda_only import is_overloaded_for_cuda
from synknumba.simt._explain.numba_says import (
    in_users_names,
    places,
    raised,
    says,
    text_of,
    types_in,
)
from synknumba.simt._library.words import STATE
from synknumba.simt._source.reads import functions_called
from synknumba.simt._source.source import read_definition
from synknumba.simt._source.syntax import assigned_names, parts_of
from synknumba.simt._source.written import Source, marked_line

_OF_A_RANK: Final = frozenset({"rank", "world_size"})
_ARRAY_MEMBERS: Final = frozenset({name for name in dir(np.ndarray) if not name.startswith("_")})
_ARRAY: Final = re.compile(r"array\((?P<dtype>.+), (?P<ndim>\d+)d, \w\)")
_NUMBER: Final = re.compile(r"(?:u?int|float|complex)\d+|bool")
_OURS: Final = (f"{os.sep}synknumba{os.sep}simt{os.sep}", f"{os.sep}synknumba{os.sep}random.py")
# a candidate that called what Numba did not compile
_NESTED: Final = ("Failed in ", "No implementation of ")
_OTHER_TYPES: Final = "Pass arguments of other types."


class _Reason(NamedTuple):
    """What a message of Numba says, what to do, and a test for the syntax that it is about."""

    text: str
    way_out: str
    matches: Callable[[ast.AST], bool]


class _Place(NamedTuple):
    """A line of a user's function."""

    source: Source
    line: int


_OPERATORS: Final = {
    "add": (ast.Add, "+"),
    "sub": (ast.Sub, "-"),
    "mul": (ast.Mult, "*"),
    "truediv": (ast.Div, "/"),
    "floordiv": (ast.FloorDiv, "//"),
    "mod": (ast.Mod, "%"),
    "pow": (ast.Pow, "**"),
    "and_": (ast.BitAnd, "&"),
    "or_": (ast.BitOr, "|"),
    "xor": (ast.BitXor, "^"),
    "lshift": (ast.LShift, "<<"),
    "rshift": (ast.RShift, ">>"),
    "matmul": (ast.MatMult, "@"),
    "lt": (ast.Lt, "<"),
    "le": (ast.LtE, "<="),
    "gt": (ast.Gt, ">"),
    "ge": (ast.GtE, ">="),
    "eq": (ast.Eq, "=="),
    "ne": (ast.NotEq, "!="),
}


@named_by_base
class KernelNumbaError(KernelError, NumbaError):
    """A kernel that Numba does not compile: also Numba's error, which programs and tests for
    GPUs catch.
    """

    def __init__(self, message: str) -> None:
        NumbaError.__init__(self, message)
        self.args = (message,)  # without colours, and what unpickling passes


@named_by_base
class KernelTypingError(KernelNumbaError, TypingError):
    """A kernel whose types do not fit."""


@named_by_base
class KernelLoweringError(KernelNumbaError, LoweringError):
    """A kernel whose types fit, and of which Numba makes no code."""


@named_by_base
class KernelUnsupportedError(KernelNumbaError, UnsupportedError):
    """A kernel with a form of Python that Numba does not know."""


_KINDS: Final[dict[type[NumbaError], type[KernelNumbaError]]] = {
    TypingError: KernelTypingError,
    LoweringError: KernelLoweringError,
    UnsupportedError: KernelUnsupportedError,
    NumbaError: KernelNumbaError,
}


def cause(error: BaseException) -> BaseException | None:
    """Returns what to raise a short error from: the error of Numba if its text is asked for,
    else None.
    """
    if full_traceback():
        return error
    return None


def explain(
    error: BaseException, function: Any, *, compiled: bool = True, anywhere: bool = False
) -> KernelError | None:
    """Returns a short error for one that Numba raised as it compiled a function.

    Args:
        error: the exception.
        function: the function that was compiled, or that calls compiled ones.
        compiled: whether the function itself was compiled; else it is one of Python that calls
            compiled ones.
        anywhere: whether to name the function's first line if no place is found.

    Returns:
        The error; None if the exception is another one, its place is not found, or Numba's own text
        is asked for.
    """
    if full_traceback() or not isinstance(function, FunctionType):
        return None
    # of a kernel's own compilation; calls of worlds raise no error of Numba
    if isinstance(error, KernelNumbaError):
        return KernelError(text_of(error))
    if not isinstance(error, Exception) or isinstance(error, SynkError | MemoryError | OSError):
        return None
    if not (_is_numbas(error) or _has_passed_numba(error)):
        return None
    short = _explained(error, function, compiled, anywhere)
    if short is None:
        return None
    for kind, short_kind in _KINDS.items():
        if isinstance(error, kind):
            return short_kind(str(short))
    return short


def _explained(
    error: Exception, function: FunctionType, compiled: bool, anywhere: bool
) -> KernelError | None:
    sources = list(_sources(function))
    text = text_of(error)
    inner = [source for source in sources if compiled or source.function is not function]
    refusal = next(filter(None, _refusals(error, text, sources, inner)), None)
    if refusal is not None:
        return refusal
    reason, way_out, matches = _reason(text)
    if not _is_numbas(error):
        reason = f"{type(error).__name__} in Numba's compiler: {reason}"
    candidates = [_place(text, sources), _first(sources, matches)]
    if says(reason, "undefined name"):  # Numba names the line of the kernel's call
        candidates.reverse()
    if anywhere:
        candidates += [_Place(source, source.tree.lineno) for source in sources[:1]]
    place = next(filter(None, candidates), None)
    if place is None:
        return None
    node = _node(place, matches)
    way_out = _another_name(reason, place.source, node) or way_out
    way_out = _number_for_none(reason, place.source, node) or way_out
    # an own error tells what it is about; the call may be one of generated code
    if way_out != _OTHER_TYPES:
        way_out = _fewer_dimensions(text, place.source, node) or way_out
    return _error(place, node, reason, way_out)


def _refusals(
    error: Exception, text: str, sources: Sequence[Source], inner: Sequence[Source]
) -> Iterator[KernelError | None]:
    """Yields the errors that are found by what the functions read, or by one pattern."""
    yield _of_a_rank(inner)
    if isinstance(error, AttributeError):
        yield _missing_member(sources)
    if match := says(text, "plain function"):
        yield _plain_function(sources, match["name"])
    if says(text, "untyped value"):
        match = says(text, "untyped global")
        yield _untyped(inner, match and match[1])
    if match := says(text, "launch in a kernel"):
        yield _launched(inner, match[1])
    if isinstance(error, AttributeError | TypeError) and not _is_numbas(error):
        yield _of_typing(error, sources)


def _is_numbas(error: BaseException) -> bool:
    """Returns whether this is an error of Numba's, or of numba-cuda-mlir's, which has classes of
    its own.
    """
    return any(kind.__name__ == "NumbaError" for kind in type(error).__mro__)


def _has_passed_numba(error: BaseException) -> bool:
    """Returns whether Numba's compiler is on the traceback."""
    trace, inside = error.__traceback__, f"{os.sep}numba{os.sep}core{os.sep}"
    while trace is not None:
        if inside in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False


def _sources(function: FunctionType) -> Iterator[Source]:
    """Yields the sources of a function and of the compiled functions it calls, without those that
    synknumba generates.
    """
    for called in functions_called(function):
        try:
            if not called.__code__.co_filename.startswith("<synknumba "):
                yield read_definition(called)
        except KernelError:  # no source
            continue


def _missing_member(sources: Sequence[Source]) -> KernelError | None:
    """Returns the error for a name that a module does not have, as math.epx."""
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute):
                continue
            module = _module(source, node.value)
            if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                reason = f"module {module.__name__!r} has no attribute {node.attr!r}"
                question = _did_you_mean(node.attr, dir(module), f"{ast.unparse(node.value)}.")
                way_out = question or f"Use a name that {module.__name__} has."
                return _error_at(source, node, reason, way_out)
    return None


def _did_you_mean(name: str, names: Iterable[str], before: str = "") -> str | None:
    """Returns a question after the nearest of the names; None if none is near."""
    for nearest in difflib.get_close_matches(name, sorted(names), 1, 0.6):
        return f"Did you mean {before}{nearest}?"
    return None


def _read(source: Source) -> Iterator[tuple[ast.expr, Any]]:
    """Yields the global names and closure variables that a function reads, members of modules
    too, with their values.
    """
    local = assigned_names(source.tree) | set(source.params)
    for node in ast.walk(source.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in local and name in source.scope:
                yield node, source.scope[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name not in local:
                module = source.scope.get(name)
                if isinstance(module, ModuleType) and hasattr(module, attribute):
                    yield node, getattr(module, attribute)


def _of_a_rank(sources: Sequence[Source]) -> KernelError | None:
    """Returns the error for a function that reads what has a value on ranks only, such as
    synk.RANK or synk.rank().
    """
    for source in sources:
        for node, value in _read(source):
            name = _constant_of_a_rank(value)
            if name is not None:
                reason = f"{ast.unparse(node)} has no value in compiled code"
                way_out = f"Add a parameter, and pass synk.{name} as its argument."
                return _error_at(source, node, reason, way_out)
    return None


def _constant_of_a_rank(value: Any) -> str | None:
    if isinstance(value, RankConstant):
        return value.name
    if not isinstance(value, FunctionType) or value.__name__ not in _OF_A_RANK:
        return None
    if not str(value.__module__).startswith("synknumba."):
        return None
    return value.__name__.upper()


def _untyped(sources: Sequence[Source], callee: str | None) -> KernelError | None:
    """Returns the error for a name outside the function, whose value Numba cannot use: a dict,
    an object, or a class or function if it is the callee.
    """
    for source in sources:
        for node, value in _read(source):
            name = ast.unparse(node)
            if isinstance(value, ModuleType):
                continue
            if callable(value):
                if name != callee:  # many are functions that Numba knows
                    continue
                kind = f"a function of the type {type(value).__name__}"
                if isinstance(value, type):
                    kind = "a class"
                way_out = (
                    "Pass its numbers as arguments, or call a function decorated with "
                    "@numba.njit or @cuda.jit(device=True)."
                )
            elif not _has_type(value):
                kind = class_text(value)
                way_out = "Pass its numbers as arguments or use constants."
            else:
                continue
            return _error_at(source, node, f"{name} is {kind}, which Numba cannot use", way_out)
    return None


def _has_type(value: Any) -> bool:
    try:
        typeof(value)
    except (ValueError, NumbaError):
        return False
    return True


def _launched(sources: Sequence[Source], name: str) -> KernelError | None:
    """Returns the error for a kernel that another one launches, as `other[1, 1](x)`."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Subscript) and name in _names(node.value):
                reason = f"{name} is launched inside a kernel, which no device can"
                way_out = (
                    f"Launch it from the host, or call it as a device function: "
                    f"{name}(...), with device=True."
                )
                return _error_at(source, node, reason, way_out)
    return None


def _number_for_none(reason: str, source: Source, node: ast.AST | None) -> str | None:
    """Returns which parameter needs a number in place of None; None if an operator has none."""
    match node:
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            operands = left, right
        case _:
            return None
    kinds = reason.rpartition(" for ")[2].split(" and ")
    for operand, kind in zip(operands, kinds, strict=False):
        if kind == "none" and isinstance(operand, ast.Name) and operand.id in source.params:
            name = operand.id
            return f"{name} of {source.name} is None here: pass a number as {name}."
    return None


def _another_name(reason: str, source: Source, node: ast.AST | None) -> str | None:
    """Returns what to write instead of an unknown variable or attribute; None if nothing is near
    it.
    """
    if undefined := says(reason, "undefined name"):
        names = {*source.params, *assigned_names(source.tree), *source.scope, *dir(builtins)}
        return (
            _did_you_mean(undefined[1], names - {undefined[1]})
            or "Assign or import it before the first launch, or make it a parameter."
        )
    missing = says(reason, "no attribute")
    if not missing:
        return None
    value = ""
    if isinstance(node, ast.Attribute):
        value = ast.unparse(node.value)
    if missing[2].startswith("Span("):
        return (
            f"The span of rows that synk.arange passes has no elements; use "
            f"{value}.start and {value}.stop."
        )
    if _NUMBER.fullmatch(missing[2]) and value in source.params:
        parameters = ", ".join(source.params)
        return (
            f"{value} is a number here, and {source.name} uses {value}.{missing[1]}. Pass an array "
            f"as {value}: the parameters are {parameters}, in this order."
        )
    if "array(" not in missing[2]:
        return None
    return _did_you_mean(missing[1], _ARRAY_MEMBERS, f"{value}.")


def _fewer_dimensions(text: str, source: Source, node: ast.AST | None) -> str | None:
    """Returns what to pass where part of an argument, as the row of a matrix, stands for a number;
    None if none does.
    """
    signature = says(text, "signature")
    if signature is None:
        return None
    types = types_in(signature[1])
    # intrinsics may have fewer operands
    for kind, operand in zip(reversed(types), reversed(_operands(node)), strict=False):
        array, part = _ARRAY.search(kind), _only_part(operand)
        if array is None or part is None:
            continue
        name, indices = ast.unparse(part.value), len(parts_of(part.slice))
        if name in source.params:
            ndim, flat = indices + int(array["ndim"]), ","
            if indices == 1:
                flat = f", such as {name}.ravel(),"
            return (
                f"{name} has {_dimensions(ndim)}, and {ast.unparse(part)} has "
                f"{_indices(indices)}. Pass an array of {_dimensions(indices)}{flat} or use "
                f"{_indices(ndim)}."
            )
    return None


def _only_part(operand: ast.expr) -> ast.Subscript | None:
    """Returns the only subscript in an operand; None if there are several, or slices in it."""
    parts = [node for node in ast.walk(operand) if isinstance(node, ast.Subscript | ast.Slice)]
    match parts:
        case [ast.Subscript() as part]:
            return part
    return None


def _operands(node: ast.AST | None) -> list[ast.expr]:
    match node:
        case ast.Call(args=args):
            return args
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.AugAssign(target=left, value=right):
            return [left, right]
    return []


def _dimensions(ndim: int) -> str:
    return f"{ndim} dimension{'s' * (ndim != 1)}"


def _indices(count: int) -> str:
    if count == 1:
        return "1 index"
    return f"{count} indices"


def _module(source: Source, node: ast.expr) -> Any:
    """Returns the object that a name, or attributes of a module as synk.random, stand for; None
    if unknown.
    """
    match node:
        case ast.Name(id=name) if name not in source.params:
            return source.scope.get(name)
        case ast.Attribute(value=base, attr=attribute):
            module = _module(source, base)
            if isinstance(module, ModuleType):
                return getattr(module, attribute, None)
    return None


def _of_typing(error: BaseException, sources: Sequence[Source]) -> KernelError | None:
    """Returns the error for an exception of a function that types a call, as for a missing
    argument; it names no place.
    """
    trace, place = error.__traceback__, None
    while trace is not None:
        # of Numba's type inference
        loc = getattr(trace.tb_frame.f_locals.get("constraint"), "loc", None)
        if loc is not None:
            place = _place(f'File "{loc.filename}", line {loc.line}', sources) or place
        trace = trace.tb_next
    if place is None:
        return None
    reason = " ".join(text_of(error).split())
    way_out = "Check the names and the number of the arguments."
    return _error(place, _node(place, _is_a_call), reason, way_out)


def _plain_function(sources: Sequence[Source], callee: str | None) -> KernelError | None:
    """Returns the error for a call of a plain Python function."""
    for source in sources:
        local = {*assigned_names(source.tree), *source.params}
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Name(id=name) as called):
                    value = source.scope.get(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name) as called):
                    value = getattr(source.scope.get(module), name, None)
                case _:
                    continue
            if not isinstance(value, FunctionType) or name in local or callee not in {None, name}:
                continue
            if not str(value.__module__).startswith(("numba.", "synknumba.")):
                code = value.__code__
                where = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
                way_out = "Decorate it with @numba.njit or @cuda.jit(device=True)."
                return _error_at(source, called, f"{where} is a plain Python function", way_out)
    return None


def _place(text: str, sources: Sequence[Source]) -> _Place | None:
    """Returns the innermost place in a user's source that Numba's message names."""
    for file, line in places(text):
        for source in sources:
            first, last = source.function.__code__.co_firstlineno, source.tree.end_lineno or 0
            if os.path.basename(source.filename) == file and first <= line <= last:
                return _Place(source, line)
    return None


def _first(sources: Sequence[Source], matches: Callable[[ast.AST], bool]) -> _Place | None:
    """Returns the place of the first syntax that an error is about; None if there is none."""
    for source in sources:
        for node in ast.walk(source.tree):
            if matches(node):
                return _Place(source, source.line(node))
    return None


def _reason(text: str) -> _Reason:
    """Returns what a message of Numba says."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("Failed in ")] or [text]
    is_call_without_code = lines[0].startswith("No implementation")
    if is_call_without_code and (needs := says(text, "not a number")):
        name, kind = needs.groups()
        array = _ARRAY.search(kind)
        got = with_article(kind)
        if array:
            got = f"an array of {_dimensions(int(array['ndim']))}"
        reason = f"{name} needs a number, and gets {got}"
        return _Reason(reason, "Pass one of its elements.", _is_call(name.rpartition(".")[2]))
    messages = raised(text)
    for message, file in messages.items():
        if any(path in file for path in _OURS):
            way_out = _OTHER_TYPES
            if count := says(message, "indices"):
                way_out = f"Use {_indices(int(count[1]))}, or an array of another shape."
            return _Reason(message, way_out, _is_a_call)
    callee, signature = says(text, "no implementation"), says(text, "signature")
    if is_call_without_code and callee and signature:
        return _no_implementation(callee[1], types_in(signature[1]), text, messages)
    names: set[str] = set()
    if match := says(lines[0], "name"):
        names.update(filter(None, match.groups()))
    return _Reason(
        in_users_names(lines[0]),
        "Numba compiles a subset of Python and NumPy: write it in another way.",
        lambda node: not names.isdisjoint(_names(node)),
    )


def _no_implementation(
    name: str, types: list[str], text: str, messages: Mapping[str, str]
) -> _Reason:
    """Returns the reason for a function, or an operator, that Numba does not have for these types.

    Args:
        name: of the function.
        types: of the arguments.
        text: Numba's message.
        messages: what the candidates have raised.
    """
    operator = _OPERATORS.get(name) or _OPERATORS.get(name.removeprefix("i"))
    if operator is not None:
        kind, symbol = operator
        return _Reason(
            f"Numba has no operator {symbol} for {' and '.join(types)}",
            f"{_overload_for_cuda(name)}Convert an operand, for example with int(…) or float(…), "
            "or pass arrays of another dtype.",
            lambda node: _has_operator(node, kind),
        )
    if name in {"getitem", "setitem"} and (reason := _indexing(*types)):
        return reason
    if says(text, "overload for GPUs"):  # which takes the thread's place, too
        types = types[len(STATE) :]
    specific = [message for message in messages if not message.startswith(_NESTED)]
    why = ""
    if len(specific) == 1:  # several are guesses at what was meant
        why = f": {specific[0]}"
    return _Reason(
        f"Numba has no {name}({', '.join(types)}){why}",
        f"{_overload_for_cuda(name)}Pass arguments of other types, use another function, or write "
        "it out in the kernel.",
        _is_call(name),
    )


def _overload_for_cuda(name: str) -> str:
    """Returns what to do if an overload of the program's is meant, which may or may not take
    these types; mostly empty.
    """
    if not is_overloaded_for_cuda(name):
        return ""
    return (
        f"The program's {name} for the target 'cuda' is none of the CPU's: if it is meant, "
        "register it for every target, as by numba.extending.overload without target=. "
    )


def _indexing(container: str, index: str, stored: str = "") -> _Reason | None:
    """Returns the reason for a value of the first type that is indexed by one of the second; None
    if it may be.

    Args:
        container: the type.
        index: the type of the index, a tuple or one index.
        stored: the type of what is stored there; empty where an element is read.
    """
    array = _ARRAY.search(container)
    if array is None:
        if not _NUMBER.fullmatch(container):
            return None
        reason = f"a {container} is one number, and is indexed"
        way_out = "Pass an array, or use the number itself."
        return _Reason(reason, way_out, lambda node: isinstance(node, ast.Subscript))
    kinds, ndim = _kinds_of(index), int(array["ndim"])

    def is_it(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and len(parts_of(node.slice)) == len(kinds)

    def is_store(node: ast.AST) -> bool:
        return is_it(node) and isinstance(node.ctx, ast.Store)  # type: ignore[attr-defined]

    if len(kinds) > ndim:
        reason = f"an array of {_dimensions(ndim)} has {len(kinds)} indices here"
        way_out = f"Pass an array of {len(kinds)} dimensions, or use {_indices(ndim)}."
        return _Reason(reason, way_out, is_it)
    for kind in kinds:
        if kind.startswith(("float", "complex")):
            way_out = "Convert it with int(…), or divide by // in place of /."
            return _Reason(f"an index is a {kind}", way_out, is_it)
    value = _ARRAY.search(stored)
    if value is None or len(kinds) != ndim:
        return None
    part = f"an array of {_dimensions(int(value['ndim']))}"
    reason = f"{part} is stored where one {array['dtype']} belongs"
    return _Reason(reason, "Store one of its elements.", is_store)


def _kinds_of(index: str) -> list[str]:
    """Returns the types of indices, from that of a tuple of them or of one."""
    if alike := re.fullmatch(r"UniTuple\((.+) x (\d+)\)", index):
        return [alike[1]] * int(alike[2])
    if several := re.fullmatch(r"Tuple\((.+)\)", index):
        return types_in(several[1])
    return [index]


def _has_operator(node: ast.AST, kind: type[ast.AST]) -> bool:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.Compare(ops=[op]):
            return isinstance(op, kind)
    return False


def _is_a_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


def _is_call(name: str) -> Callable[[ast.AST], bool]:
    """Returns a test for calls of a function of this name."""
    return lambda node: isinstance(node, ast.Call) and name in _names(node.func)


def _names(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
    return set()


def _node(place: _Place, matches: Callable[[ast.AST], bool]) -> ast.AST | None:
    """Returns the only syntax on a line that an error is about; else the innermost statement with
    all that may be meant.

    None if there is no such statement. Numba tells lines only, and columns of the generated code
    would not be the user's.
    """
    starting = [
        node for node in ast.walk(place.source.tree) if getattr(node, "lineno", 0) == place.line
    ]
    about = [node for node in starting if matches(node)]
    if len(about) == 1:
        return about[0]
    statements = [node for node in starting if isinstance(node, ast.stmt)]
    meant = set(about or statements)
    for statement in reversed(statements):
        if meant.issubset(ast.walk(statement)):
            return statement
    return None


def _error_at(source: Source, node: ast.expr, reason: str, way_out: str) -> KernelError:
    return _error(_Place(source, node.lineno), node, reason, way_out)


def _error(place: _Place, node: ast.AST | None, reason: str, way_out: str) -> KernelError:
    source, line = place
    return KernelError(
        f"{source.name} ({source.filename}:{line}): {reason}\n"
        f"    {marked_line(source.filename, line, node)}\n"
        f"{way_out} {FULL_TRACEBACK}=1 shows Numba's own message."
    )
