"""The body of a sequence as its source shows it, and the values from outside that it uses.

A body runs once, so three mistakes would stay silent: an assignment to a parameter at its end, which was meant for the next
iteration; random numbers; and values from outside that change between calls. The first two are refused, the last makes another
sequence.
"""

import ast
import itertools
import pickle
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, final

import numpy as np

from synknumba._call.definition import Definition, read_function
from synknumba._errors import ArgumentError
from synknumba._host.data import Data
from synknumba._variables.variable import Variable
from synknumba._world.code import file_of, is_the_scripts, names_in

VERSIONS_KEPT = 64  # sets of values from outside that are told apart
MOST_ITEMS = 1000  # of a container whose contents are compared
MOST_ELEMENTS = 64  # of an array of which elements may be read; larger ones are taken to be passed as they are
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset({"synknumba", "numba", "numpy", "cupy", "builtins", "weakref"})  # whose objects have no settings
_MISSING = object()
_GENERATORS = frozenset({"default_rng", "RandomState", "Random", "SystemRandom"})


def check_assignments(name: str, function: Callable[..., Any]) -> None:
    """Raises `ArgumentError` for an assignment to parameters that nothing reads: the next iteration has the arguments again."""
    definition = read_function(function)
    if definition is None:
        return
    parameters = {*definition.parameters}
    for statement in map(_plain, definition.tree.body):  # those of the outermost level, which run once an iteration
        bound = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if not isinstance(statement, ast.Assign | ast.AugAssign) or not bound or not bound <= parameters:
            continue
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))  # as in v = synk.all_reduce(v, "sum")
        clears = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        if calls or clears or _are_read(bound, definition, statement):
            continue
        where = f"{function.__code__.co_filename}:{statement.lineno}"
        raise ArgumentError(
            f"{name} ({where}): {_shown(statement)} has no effect: it changes names until the end of the body, and each "
            f"iteration begins with the arguments again. {_way_out(statement)}"
        )


def _plain(statement: ast.stmt) -> ast.stmt:
    """Returns `(u := v)` as the assignment that it is, and other statements unchanged."""
    match statement:
        case ast.Expr(value=ast.NamedExpr(target=target, value=value)):
            return ast.copy_location(ast.Assign([target], value), statement)
    return statement


def _are_read(bound: set[str], definition: Definition, statement: ast.stmt) -> bool:
    """Returns whether something may read one of these names after a statement."""
    end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
    own = {id(node) for node in definition.own}
    used = [node for node in definition.names if node.id in bound and not isinstance(node.ctx, ast.Store)]
    return any((node.lineno, node.col_offset) >= end or id(node) not in own for node in used)


def _shown(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[target], value=ast.Tuple() as value):  # without parentheses
            return f"{ast.unparse(target).strip('()')} = {ast.unparse(value).strip('()')}"
    return ast.unparse(statement)


def _way_out(statement: ast.Assign | ast.AugAssign) -> str:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if all(
            isinstance(one, ast.Name) for one in (*targets, *values)
        ) and {ast.unparse(one) for one in targets} == {ast.unparse(one) for one in values}:
            names = [ast.unparse(one) for one in targets]
            swaps = "; ".join(f"synk.swap({one}, {other})" for one, other in itertools.pairwise(names))
            return f"To exchange the memory of variables, write {swaps}"
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=source)):
            return (
                f"To exchange the memory of variables, write synk.swap({target}, {source}); to copy, write a kernel; for a "
                f"number, write synk.carry({target}, {source})"
            )
        case ast.Assign(targets=[ast.Name(id=target)], value=value):
            return f"For the next iteration, write synk.carry({target}, {ast.unparse(value)}) for a number"
        case ast.AugAssign(target=ast.Name(id=target), op=operation, value=value):
            computed = ast.unparse(ast.BinOp(ast.Name(target), operation, value))
            return f"For the next iteration, write synk.carry({target}, {computed}) for a number"
    return "Write synk.carry(n, value) for the value of a number in the next iteration"


@contextmanager
def refusing_draws(name: str, values: Iterable[Any]) -> Iterator[None]:
    """Refuses a body that draws random numbers, from Python's or NumPy's generator or one among values.

    Raises:
        ArgumentError: a generator has another state at the end.
    """
    found = [one for value in values for one in (value, getattr(value, "__self__", None))]  # `draw = rng.random`, too
    generators = [one for one in found if isinstance(one, np.random.Generator | np.random.RandomState | random.Random)]
    before = _states(generators)
    yield
    if before != _states(generators):
        raise ArgumentError(
            f"{name} draws random numbers in its body, which runs once, so that all iterations and later calls would get the "
            "same ones. Draw in kernels with synk.random, which takes synk.STEP as an index; or draw before the call, and pass "
            "the numbers as an argument"
        )


def _states(generators: Iterable[Any]) -> list[Any]:
    return [*map(_state, generators), random.getstate(), pickle.dumps(np.random.get_state(legacy=False))]  # noqa: NPY002


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    is_new = isinstance(generator, np.random.Generator)
    return pickle.dumps(generator.bit_generator.state if is_new else generator.get_state(legacy=False))


def check_generators(name: str, function: Callable[..., Any]) -> None:
    """Raises `ArgumentError` for a body that makes a random number generator without a seed."""
    definition = read_function(function)
    for node in ast.walk(definition.tree) if definition is not None else ():
        match node:
            case ast.Call(func=ast.Name(id=made) | ast.Attribute(attr=made), args=[], keywords=[]) if made in _GENERATORS:
                where = f"{function.__code__.co_filename}:{node.lineno}"
                raise ArgumentError(
                    f"{name} ({where}): {ast.unparse(node)} has other numbers each time, and the body runs once, so that all "
                    "iterations and later calls would get the same ones. Draw in kernels with synk.random, which takes "
                    "synk.STEP as an index; or draw before the call, and pass the numbers as an argument"
                )


@final
class OuterValues:
    """The values from outside that a body and the functions that it calls use, told apart like arguments.

    They are globals, variables of closures, attributes of objects, and what containers and small arrays hold.

    Args:
        body: the function.
        inside: returns the body of a sequence; None for any other object.
    """

    def __init__(self, body: Callable[..., Any], inside: Callable[[Any], Any]) -> None:
        self._body, self._inside = body, inside
        self._names: list[tuple[Callable[..., Any], str, Any]] = []  # how to look up a name; the value, or a weak reference
        self._cells: list[tuple[Any, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType]] = []  # of the body and the functions
        self._contents: list[tuple[Any, Any]] = []  # containers and arrays, with the keys of what they hold
        self._read: set[str] = set()  # names of globals and attributes in the code
        self._versions: dict[Any, tuple[int, list[Any]]] = {}  # with values whose ids are in the key
        self._numbers = itertools.count()
        self._version = -1

    def version(self) -> int:
        """Returns a number that is the same for the same values; it may be new for old ones."""
        for look_up, name, value in self._names:
            now = look_up(name, _MISSING)
            if now is not value and not (type(value) is weakref.ref and value() is now):
                return self._renew()
        for function, code in self._codes:
            if function.__code__ is not code:  # changed in place, as %autoreload does
                return self._renew()
        for cell, value in self._cells:
            now = _cell_contents(cell)
            if now is not value and not (type(value) is weakref.ref and value() is now):
                return self._renew()
        for holder, key in self._contents:
            if _contents_key(holder, []) != key:
                return self._renew()
        return self._version if self._version >= 0 else self._renew()

    def key_of(self, argument: Any, kept: list[Any]) -> Any:
        """Returns the key of an argument that is part of the sequence, with the attributes that the code may read."""
        if self._version < 0:
            self._renew()
        keys: list[Any] = []
        waiting, seen = [argument], {id(argument)}
        while waiting:
            one = waiting.pop()
            keys.append(_contents_key(one, kept))
            for _, name, value in _attributes(one, _names_with_methods(one, self._read)):
                keys.append((name, _key(value, kept)))
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting.append(value)
        try:
            hash(argument)
        except TypeError:
            return ("id", id(argument), *keys)
        return (type(argument), argument, *keys)

    def _renew(self) -> int:
        """Finds the values anew."""
        key, kept = self._found(set())
        while len(key) != len(again := self._found(self._read)[0]):  # methods that attributes name read further names
            key = again
        key, kept = self._found(self._read)
        if len(self._versions) > VERSIONS_KEPT:
            self._versions.clear()
        known = self._versions.get(tuple(key))
        if known is None or any(type(one) is weakref.ref and one() is None for one in known[1]):  # ids may be used again
            known = self._versions[tuple(key)] = next(self._numbers), kept
        self._version = known[0]
        return self._version

    def _found(self, names: set[str]) -> tuple[list[Any], list[Any]]:
        """Returns a key of all values, and what its ids stand for; `names` are those that the code is known to read."""
        self._names, self._cells, self._codes, self._contents = [], [], [], []
        self._read = set(names)
        key: list[Any] = []
        kept: list[Any] = []
        waiting, seen = [self._body], {id(self._body)}
        while waiting:
            one = waiting.pop()
            if isinstance(one, FunctionType):
                if not is_the_scripts(one.__code__.co_filename):
                    continue
                key.append(one.__code__)
                found = self._used_by(one)
            else:
                found = self._held_by(one, key, kept)
            for value in found:
                key.append(_key(value, kept))
                inner = value.fget if isinstance(value, property) else self._inside(value) or value
                if id(inner) not in seen and not isinstance(inner, _PLAIN):
                    seen.add(id(inner))
                    waiting.append(inner)
        return key, kept

    def _used_by(self, function: FunctionType) -> list[Any]:
        self._codes.append((function, function.__code__))
        found: list[Any] = []
        names = [*dict.fromkeys(names_in(function.__code__))]
        self._read.update(names)
        spaces = [function.__globals__]
        spaces += [
            vars(module)
            for module in (function.__globals__.get(name) for name in names)
            if isinstance(module, ModuleType) and is_the_scripts(getattr(module, "__file__", None))
        ]
        for space in spaces:
            for name in names:
                if name in space:
                    found.append(space[name])
                    self._names.append((space.get, name, _held(space[name])))
        for cell in function.__closure__ or ():
            found.append(_cell_contents(cell))
            self._cells.append((cell, _held(found[-1])))
        return found

    def _held_by(self, holder: Any, key: list[Any], kept: list[Any]) -> list[Any]:
        """Returns what a container or an object holds, and notes it."""
        contents = _contents_key(holder, kept)
        if contents is not None:
            self._contents.append((holder, contents))
            key.append(contents)
            items = [] if isinstance(holder, np.ndarray) else holder.values() if isinstance(holder, dict) else holder
            return [item for item in items if not isinstance(item, _PLAIN)]
        found = []
        for look_up, name, value in _attributes(holder, self._read):
            self._names.append((look_up, name, _held(value)))
            found.append(value)
        return found

    def labels(self) -> list[tuple[str, Any]]:
        """Returns the values by name."""
        self._renew()
        cells = zip(self._body.__code__.co_freevars, self._cells, strict=False) if isinstance(self._body, FunctionType) else ()
        named = [(name, value) for _, name, value in self._names] + [(name, value) for name, (_, value) in cells]
        return [(name, value() if type(value) is weakref.ref else value) for name, value in named]


def _held(value: Any) -> Any:
    """Returns a value, or a weak reference to what has memory on the ranks, which is freed with its last name."""
    return weakref.ref(value) if isinstance(value, Variable | Data) else value


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _MISSING


def _key(value: Any, kept: list[Any]) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    kept.append(_held(value))
    return id(value)


def _contents_key(holder: Any, kept: list[Any], depth: int = 4) -> Any:
    """Returns a key of what a container or a small array holds; None for anything else, and for containers of variables."""
    if isinstance(holder, np.ndarray):
        small = holder.size <= MOST_ELEMENTS and not holder.dtype.hasobject
        return (holder.dtype.str, holder.shape, holder.tobytes()) if small else None
    if not isinstance(holder, dict | list | tuple | set | frozenset) or len(holder) > MOST_ITEMS or not depth:
        return None
    if isinstance(holder, set | frozenset):
        return type(holder), frozenset(holder)
    items: list[Any] = []
    for item in holder.values() if isinstance(holder, dict) else holder:
        if isinstance(item, Variable | Data):  # the key would keep its memory
            return None
        inner = _contents_key(item, kept, depth - 1)
        items.append(_key(item, kept) if inner is None else inner)
    return type(holder), tuple(holder) if isinstance(holder, dict) else None, tuple(items)


def _attributes(holder: Any, names: set[str]) -> Iterator[tuple[Callable[..., Any], str, Any]]:
    """Yields attributes of an object or a class of the script that have one of the names: how to look them up, and values."""
    is_class = isinstance(holder, type)
    of_a_library = not is_class and type(holder).__module__.partition(".")[0] in _LIBRARIES
    if of_a_library or isinstance(holder, FunctionType | ModuleType):
        return
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict):
        for name in names & own.keys():
            yield _look_up_of(holder), name, own[name]
    for kind in holder.__mro__ if is_class else type(holder).__mro__:
        if is_the_scripts(file_of(kind.__module__)):
            for name in names & vars(kind).keys():
                value = vars(kind)[name]
                if isinstance(value, MemberDescriptorType) and not is_class:  # of __slots__
                    yield partial(getattr, holder), name, getattr(holder, name, _MISSING)
                else:
                    yield vars(kind).get, name, value


def _look_up_of(holder: Any) -> Callable[..., Any]:
    """Returns what looks up an attribute of an object, without keeping the object."""
    try:
        reference = weakref.ref(holder)
    except TypeError:
        return vars(holder).get

    def look_up(name: str, default: Any) -> Any:
        found = reference()
        return default if found is None else vars(found).get(name, default)

    return look_up


def _names_with_methods(holder: Any, names: set[str]) -> set[str]:
    """Returns names that code reads, with those that methods of an object read which it names."""
    found, before = set(names), -1
    while len(found) != before:
        before = len(found)
        for _, _, value in _attributes(holder, found):
            code = getattr(getattr(value, "fget", value), "__code__", None)  # also of a property
            if isinstance(code, CodeType):
                found.update(names_in(code))
    return found
