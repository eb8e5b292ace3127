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
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from numba import typeof
from numba.core.errors import LoweringError, NumbaError, TypingError, UnsupportedError

from synknumba._errors import FULL_TRACEBACK, KernelError, SynkError, full_traceback, named_by_base
from synknumba._types import RankConstant, with_article
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
from synknumba.simt._source.syntax import assigned_names
from synknumba.simt._source.written import Source, marked_line

_OF_A_RANK: Final = frozenset({"rank", "world_size"})
_ARRAY_MEMBERS: Final = frozenset({name for name in dir(np.ndarray) if not name.startswith("_")})
_ARRAY: Final = re.compile(r"array\((?P<dtype>.+), (?P<ndim>\d+)d, \w\)")
_NUMBER: Final = re.compile(r"(?:u?int|float|complex)\d+|bool")
_OURS: Final = (f"{os.sep}synknumba{os.sep}simt{os.sep}", f"{os.sep}synknumba{os.sep}random.py")
# a candidate that called what Numba did not compile
_NESTED: Final = (
    "Failed in ",
    "No implementation of ",
)
_OTHER_TYPES: Final = "Pass arguments of other types."

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
    return error if full_traceback() else None


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
    if (
        full_traceback()
        or not isinstance(function, FunctionType)
        or not (_is_numbas(error) or _is_of_numba(error))
    ):
        return None
    # of a kernel's own compilation; calls of worlds raise no error of Numba
    if isinstance(error, KernelNumbaError):
        return KernelError(str(error))
    if isinstance(error, SynkError | MemoryError | OSError) or not isinstance(error, Exception):
        return None
    short = _explained(error, function, compiled, anywhere)
    if short is None:
        return None
    return next(
        (made(str(short)) for kind, made in _KINDS.items() if isinstance(error, kind)), short
    )


def _explained(
    error: Exception, function: FunctionType, compiled: bool, anywhere: bool
) -> KernelError | None:
    sources = list(_sources(function))
    text = text_of(error)
    inner = [source for source in sources if compiled or source.function is not function]
    if refusal := _of_a_rank(inner):
        return refusal
    if isinstance(error, AttributeError) and (refusal := _missing_member(sources)):
        return refusal
    if (found := says(text, "plain function")) and (
        refusal := _plain_function(sources, found["name"])
    ):
        return refusal
    if says(text, "untyped value"):
        found = says(text, "untyped global")
        if refusal := _untyped(inner, found[1] if found else None):
            return refusal
    if (found := says(text, "launch in a kernel")) and (refusal := _launched(inner, found[1])):
        return refusal
    is_plain = isinstance(error, AttributeError | TypeError) and not _is_numbas(error)
    if is_plain and (refusal := _of_typing(error, sources)):
        return refusal
    reason, way_out, matches = _reason(text)
    if not _is_numbas(error):
        reason = f"{type(error).__name__} in Numba's compiler: {reason}"
    place = (
        _first(sources, matches) if says(reason, "undefined name") else None
    )  # Numba names the line of the kernel's call
    place = place or _place(text, sources) or _first(sources, matches)
    if place is None and anywhere and sources:
        place = sources[0], sources[0].tree.lineno
    if place is None:
        return None
    node = _node(*place, matches)
    way_out = _another_name(reason, place[0], node) or way_out
    # an own error tells what it is about; the call may be one of generated code
    if way_out != _OTHER_TYPES:
        way_out = _fewer_dimensions(text, place[0], node) or way_out
    return _error(*place, node, reason, way_out)


def _is_numbas(error: BaseException) -> bool:
    """Returns whether this is an error of Numba's, or of numba-cuda-mlir's, which has classes of
    its own.
    """
    return any(kind.__name__ == "NumbaError" for kind in type(error).__mro__)


def _is_of_numba(error: BaseException) -> bool:
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
            match node:
                case ast.Attribute(value=base, attr=attribute):
                    module, name = _module(source, base), ast.unparse(base)
                    if isinstance(module, ModuleType) and not hasattr(module, attribute):
                        near = difflib.get_close_matches(attribute, dir(module), 1, 0.6)
                        way_out = (
                            f"Did you mean {name}.{near[0]}?"
                            if near
                            else f"Use a name that {module.__name__} has."
                        )
                        reason = f"module {module.__name__!r} has no attribute {attribute!r}"
                        return _error(source, node.lineno, node, reason, way_out)
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
            if isinstance(value, RankConstant):
                name = value.name
            elif (
                isinstance(value, FunctionType)
                and str(value.__module__).startswith("synknumba.")
                and value.__name__ in _OF_A_RANK
            ):
                name = value.__name__.upper()
            else:
                continue
            reason = f"{ast.unparse(node)} has no value in compiled code"
            return _error(
                source,
                node.lineno,
                node,
                reason,
                f"Add a parameter, and pass synk.{name} as its argument.",
            )
    return None


def _untyped(sources: Sequence[Source], wanted: str | None) -> KernelError | None:
    """Returns the error for a name outside the function, whose value Numba cannot use: a dict,
    an object, a class.
    """
    for source in sources:
        for node, value in _read(source):
            name = ast.unparse(node)
            if isinstance(value, ModuleType):
                continue
            if isinstance(value, type) or callable(value):
                if wanted != name:  # many are functions that Numba knows
                    continue
                kind = (
                    "class"
                    if isinstance(value, type)
                    else f"function of the type {type(value).__name__}"
                )
                reason = f"{name} is a {kind}, which Numba cannot use"
                way_out = (
                    "Pass its numbers as arguments, or call a function decorated with "
                    "@numba.njit or @cuda.jit(device=True)."
                )
                return _error(source, node.lineno, node, reason, way_out)
            try:
                typeof(value)
            except (ValueError, NumbaError):
                reason = f"{name} is {with_article(type(value).__name__)}, which Numba cannot use"
                return _error(
                    source,
                    node.lineno,
                    node,
                    reason,
                    "Pass its numbers as arguments or use constants.",
                )
    return None


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
                return _error(source, node.lineno, node, reason, way_out)
    return None


def _another_name(reason: str, source: Source, node: ast.AST | None) -> str | None:
    """Returns what to write instead of an unknown variable or attribute; None if nothing is near
    it.
    """
    if found := says(reason, "undefined name"):
        names = {*source.params, *assigned_names(source.tree), *source.scope, *dir(builtins)} - {
            found[1]
        }
        nearest = difflib.get_close_matches(found[1], sorted(names), 1, 0.6)
        return (
            f"Did you mean {nearest[0]}?"
            if nearest
            else "Assign or import it before the first launch, or make it a parameter."
        )
    if not (found := says(reason, "no attribute")):
        return None
    value = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    if found[2].startswith("Span("):
        return (
            f"The span of rows that synk.arange passes has no elements; use "
            f"{value}.start and {value}.stop."
        )
    nearest = (
        difflib.get_close_matches(found[1], sorted(_ARRAY_MEMBERS), 1, 0.6)
        if "array(" in found[2]
        else []
    )
    return f"Did you mean {value}.{nearest[0]}?" if nearest else None


def _fewer_dimensions(text: str, source: Source, node: ast.AST | None) -> str | None:
    """Returns what to pass where part of an argument, as the row of a matrix, stands for a number;
    None if none does.
    """
    signature = says(text, "signature")
    types = types_in(signature[1]) if signature else []
    for kind, operand in zip(
        reversed(types), reversed(_operands(node)), strict=False
    ):  # intrinsics may have fewer operands
        parts = [one for one in ast.walk(operand) if isinstance(one, ast.Subscript)]
        array = _ARRAY.search(kind)
        if (
            array is None
            or len(parts) != 1
            or not isinstance(parts[0].value, ast.Name)
            or _has_slice(parts[0])
        ):
            continue
        name, indices = parts[0].value.id, len(getattr(parts[0].slice, "elts", [parts[0].slice]))
        if name in source.params:
            ndim = indices + int(array["ndim"])
            flat = f", such as {name}.ravel()," if indices == 1 else ","
            used = "1 index" if indices == 1 else f"{indices} indices"
            return (
                f"{name} has {_dimensions(ndim)}, and {ast.unparse(parts[0])} has {used}. Pass an "
                f"array of {_dimensions(indices)}{flat} or use {ndim} indices."
            )
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


def _has_slice(node: ast.Subscript) -> bool:
    return any(isinstance(one, ast.Slice) for one in ast.walk(node.slice))


def _dimensions(ndim: int) -> str:
    return f"{ndim} dimension{'s' * (ndim != 1)}"


def _module(source: Source, node: ast.expr) -> Any:
    """Returns the object that a name, or attributes of a module as synk.random, stand for; None
    if unknown.
    """
    match node:
        case ast.Name(id=name):
            return None if name in source.params else source.scope.get(name)
        case ast.Attribute(value=base, attr=attribute) if isinstance(
            found := _module(source, base), ModuleType
        ):
            return getattr(found, attribute, None)
    return None


def _of_typing(error: BaseException, sources: Sequence[Source]) -> KernelError | None:
    """Returns the error for an exception of a function that types a call, as for a missing
    argument; it names no place.
    """
    trace, found = error.__traceback__, None
    while trace is not None:
        # of Numba's type inference
        place = getattr(trace.tb_frame.f_locals.get("constraint"), "loc", None)
        if place is not None:
            found = _place(f'File "{place.filename}", line {place.line}', sources) or found
        trace = trace.tb_next
    if found is None:
        return None
    reason = " ".join(text_of(error).split())
    way_out = "Check the names and the number of the arguments."
    return _error(*found, _node(*found, lambda node: isinstance(node, ast.Call)), reason, way_out)


def _plain_function(sources: Sequence[Source], wanted: str | None) -> KernelError | None:
    """Returns the error for a call of a plain Python function."""
    for source in sources:
        bound = {
            node.id
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Name(id=name) as called):
                    value = source.scope.get(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name) as called):
                    value = getattr(source.scope.get(module), name, None)
                case _:
                    continue
            is_plain = isinstance(value, FunctionType) and not str(value.__module__).startswith(
                ("numba.", "synknumba.")
            )
            if is_plain and name not in {*bound, *source.params} and wanted in {None, name}:
                code = value.__code__  # type: ignore[union-attr]  # a plain function
                reason = (
                    f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) "
                    f"is a plain Python function"
                )
                return _error(
                    source,
                    node.lineno,
                    called,
                    reason,
                    "Decorate it with @numba.njit or @cuda.jit(device=True).",
                )
    return None


def _place(text: str, sources: Sequence[Source]) -> tuple[Source, int] | None:
    """Returns the innermost place in a user's source that Numba's message names."""
    for file, line in places(text):
        for source in sources:
            first, last = source.function.__code__.co_firstlineno, source.tree.end_lineno or 0
            if os.path.basename(source.filename) == file and first <= line <= last:
                return source, line
    return None


def _first(sources: Sequence[Source], matches: Any) -> tuple[Source, int] | None:
    """Returns the place of the first syntax that an error is about; None if there is none."""
    for source in sources:
        for node in ast.walk(source.tree):
            if matches(node):
                return source, node.lineno  # type: ignore[attr-defined]  # names, attributes, calls and operations
    return None


def _reason(text: str) -> tuple[str, str, Any]:
    """Returns the reason in a message of Numba, what to do, and a test for the syntax that it is
    about.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("Failed in ")] or [text]
    found, signature = says(text, "no implementation"), says(text, "signature")
    if (needs := says(text, "not a number")) and lines[0].startswith("No implementation"):
        (name, kind), array = needs.groups(), _ARRAY.search(needs[2])
        got = f"an array of {_dimensions(int(array['ndim']))}" if array else f"a {kind}"
        reason = f"{name} needs a number, and gets {got}"
        return (
            reason,
            "Pass one of its elements.",
            lambda node: _is_call(node, name.rpartition(".")[2]),
        )
    messages = raised(text)
    if own := next(
        (message for message, file in messages.items() if any(map(file.__contains__, _OURS))), None
    ):
        return own, _OTHER_TYPES, lambda node: isinstance(node, ast.Call)
    if found and signature and lines[0].startswith("No implementation"):
        name, types = found[1], types_in(signature[1])
        if name in _OPERATORS or name.removeprefix("i") in _OPERATORS:
            kind, symbol = _OPERATORS.get(name) or _OPERATORS[name.removeprefix("i")]
            reason = f"Numba has no operator {symbol} for {' and '.join(types)}"
            way_out = _overload_for_cuda(name)
            way_out += (
                "Convert an operand, for example with int(…) or float(…), or pass "
                "arrays of another dtype."
            )
            return reason, way_out, lambda node: _has_operator(node, kind)
        if name in {"getitem", "setitem"} and (refused := _indexing(*types)):
            return refused
        if says(text, "overload for GPUs"):  # which takes the thread's place, too
            types = types[len(STATE) :]
        way_out = _overload_for_cuda(name)
        way_out += (
            "Pass arguments of other types, use another function, or write it out in the kernel."
        )
        specific = [message for message in messages if not message.startswith(_NESTED)]
        why = (
            f": {specific[0]}" if len(specific) == 1 else ""
        )  # several are guesses at what was meant
        return (
            f"Numba has no {name}({', '.join(types)}){why}",
            way_out,
            lambda node: _is_call(node, name),
        )
    named = says(lines[0], "name")
    name = next(filter(None, named.groups()), "") if named else ""
    return (
        in_users_names(lines[0]),
        "Numba compiles a subset of Python and NumPy: write it in another way.",
        lambda node: name and name in _names(node),
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


def _indexing(container: str, index: str, stored: str = "") -> tuple[str, str, Any] | None:
    """Returns what `_reason` does for a value of the first type that is indexed by one of the
    second; None if it may be.

    Args:
        container: the type.
        index: the type of the index, a tuple or one index.
        stored: the type of what is stored there; empty where an element is read.
    """
    array = _ARRAY.search(container)
    if array is None:
        if _NUMBER.fullmatch(container):
            return (
                f"a {container} is one number, and is indexed",
                "Pass an array, or use the number itself.",
                _is_subscript,
            )
        return None
    found, several = (
        re.fullmatch(r"UniTuple\((.+) x (\d+)\)", index),
        re.fullmatch(r"Tuple\((.+)\)", index),
    )
    kinds = [found[1]] * int(found[2]) if found else types_in(several[1]) if several else [index]
    ndim = int(array["ndim"])

    def is_it(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and len(
            getattr(node.slice, "elts", [node.slice])
        ) == len(kinds)

    if len(kinds) > ndim:
        reason = f"an array of {_dimensions(ndim)} has {len(kinds)} indices here"
        return (
            reason,
            f"Pass an array of {len(kinds)} dimensions, or use {ndim} "
            f"ind{'ex' if ndim == 1 else 'ices'}.",
            is_it,
        )
    if wrong := next((kind for kind in kinds if kind.startswith(("float", "complex"))), None):
        return (
            f"an index is a {wrong}",
            "Convert it with int(…), or divide by // in place of /.",
            is_it,
        )
    if len(kinds) == ndim and (value := _ARRAY.search(stored)):
        reason = (
            f"an array of {_dimensions(int(value['ndim']))} is stored where one "
            f"{array['dtype']} belongs"
        )
        return (
            reason,
            "Store one of its elements.",
            lambda node: is_it(node) and isinstance(node.ctx, ast.Store),
        )  # type: ignore[attr-defined]
    return None


def _is_subscript(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript)


def _has_operator(node: ast.AST, kind: type[ast.AST]) -> bool:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.Compare(ops=[op]):
            return isinstance(op, kind)
    return False


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and name in _names(node.func)


def _names(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
    return set()


def _node(source: Source, line: int, matches: Any) -> ast.AST | None:
    """Returns the only syntax on a line that an error is about; else the innermost statement with
    all that may be meant.

    None if there is no such statement. Numba tells lines only, and columns of the generated code
    would not be the user's.
    """
    nodes = [
        node
        for node in ast.walk(source.tree)
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)
    ]
    about = [node for node in nodes if matches(node) and node.lineno == line]  # type: ignore[attr-defined]
    if len(about) == 1:
        return about[0]
    statements = [node for node in nodes if isinstance(node, ast.stmt) and node.lineno == line]
    meant = set(about or statements)
    return next((node for node in reversed(statements) if meant.issubset(ast.walk(node))), None)


def _error(
    source: Source, line: int, node: ast.AST | None, reason: str, way_out: str
) -> KernelError:
    shown = marked_line(source.filename, line, node)
    where = f"{source.name} ({source.filename}:{line})"
    return KernelError(
        f"{where}: {reason}\n    {shown}\n{way_out} {FULL_TRACEBACK}=1 shows Numba's own message."
    )
