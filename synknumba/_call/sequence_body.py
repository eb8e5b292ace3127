"""The body of a sequence as its source shows it, and the values from outside that it uses.

A body runs once, so four mistakes would stay silent: an assignment to a parameter at its end, which was meant for the next
iteration; random numbers; values from outside that it changes, itself or in a function that it calls; and such that change
between calls. The first three are refused, the last makes another sequence.
"""

import ast
import builtins
import dis
import hashlib
import itertools
import mmap
import pickle
import random
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence, Set
from contextvars import ContextVar
from functools import lru_cache, partial
from types import BuiltinMethodType, CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, final

import numpy as np

from synknumba._call.definition import Definition, read_function
from synknumba._call.method import Method
from synknumba._errors import ArgumentError
from synknumba._tracing import Number
from synknumba._world.code import file_of, is_the_scripts, names_in, reached
from synknumba._world.read_values import key_of

DIGEST_BYTES = 4096  # of an array, of which a longer one is kept as a digest
MOST_CODES = 256  # functions of which it is known whether they look at all attributes
VERSIONS_KEPT = 64  # sets of values from outside that are told apart
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset({"synknumba", "numba", "numpy", "cupy", "builtins", "weakref"})  # whose objects have no settings
_MISSING = object()
_NONE: dict[str, Any] = {}  # the attributes of an object that can have none of its own
_ASKING = frozenset({"getattr", "hasattr", "globals", "__getattr__", "__getattribute__"})  # who does without what they ask for
_READING = ("__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__", "__contains__", "__call__")
_NOT_READING = frozenset(  # special methods of which a body has no result
    {
        *("__init__", "__new__", "__post_init__", "__setattr__", "__delattr__", "__setitem__", "__delitem__", "__exit__"),
        *("__getstate__", "__setstate__", "__reduce__", "__copy__", "__deepcopy__", "__del__", "__repr__", "__str__"),
    }
)
_VIEWS = {type(_NONE.keys()), type(_NONE.values()), type(_NONE.items())}
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_GROWING = {"append", "appendleft", "extend", "insert", "setdefault"}  # methods of containers
_GENERATORS = frozenset({"default_rng", "RandomState", "Random", "SystemRandom"})


def check_body(name: str, function: Callable[..., Any]) -> None:
    """Raises `ArgumentError` for what a body does once, while it is recorded, and was meant for each iteration."""
    definition = read_function(function)
    if definition is None:
        return

    def place(node: ast.AST) -> str:
        return f"{name} ({function.__code__.co_filename}:{getattr(node, 'lineno', 0)})"

    _check_assignments(definition, place)
    _check_stores(definition, place)
    _check_generators(definition, place)


def _check_assignments(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses an assignment to parameters that nothing reads: the next iteration has the arguments again."""
    parameters = {*definition.parameters}
    for statement in map(_plain, definition.tree.body):  # those of the outermost level, which run once an iteration
        bound = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if not isinstance(statement, ast.Assign | ast.AugAssign) or not bound or not bound <= parameters:
            continue
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))  # as in v = synk.all_reduce(v, "sum")
        clears = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        if calls or clears or _are_read(bound, definition, statement):
            continue
        raise ArgumentError(
            f"{place(statement)}: {_shown(statement)} has no effect: it changes names until the end of the body, and each "
            f"iteration begins with the arguments again. {_way_out(statement)}"
        )


def _check_stores(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses an assignment to what outlives the body, such as `self.t += dt`: it would be made once."""
    shared = {one for node in definition.own if isinstance(node, ast.Global | ast.Nonlocal) for one in node.names}
    local = {node.id for node in definition.names if not isinstance(node.ctx, ast.Load)} - shared - {*definition.parameters}
    for node in definition.own:
        is_grown = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWING
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and not is_grown:
            continue
        root: Any = node.func if isinstance(node, ast.Call) else node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name) or (root.id not in shared if root is node else root.id in local):
            continue
        done = "called" if is_grown else "assigned"
        way_out = (
            "For a number of each iteration write synk.carry, to exchange the memory of variables synk.swap; return results, "
            "which every=1 gives of each iteration, and assign other things after the call"
        )
        if isinstance(node, ast.Subscript) and root.id in definition.parameters:
            way_out = (
                f"Elements of a variable or an array are written on the ranks: call a kernel or a function with {root.id}, "
                "which writes to them"
            )
        raise ArgumentError(
            f"{place(node)}: {ast.unparse(node)} would be {done} once, while the body is recorded, and not in each "
            f"iteration. {way_out}"
        )


def _check_generators(definition: Definition, place: Callable[[ast.AST], str]) -> None:
    """Refuses a body that makes a random number generator without a seed."""
    for node in ast.walk(definition.tree):
        match node:
            case ast.Call(func=ast.Name(id=made) | ast.Attribute(attr=made), args=[], keywords=[]) if made in _GENERATORS:
                raise ArgumentError(
                    f"{place(node)}: {ast.unparse(node)} has other numbers each time, and the body runs once, so that all "
                    "iterations and later calls would get the same ones. Draw in kernels with synk.random, which takes "
                    "synk.STEP as an index; or draw before the call, and pass the numbers as an argument"
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
            computed = ast.unparse(value)
            return f"For the next iteration, write synk.carry({target}, {computed}) for a number, and a kernel for an array"
        case ast.AugAssign(target=ast.Name(id=target), op=operation, value=value):
            computed = ast.unparse(ast.BinOp(ast.Name(target), operation, value))
            return f"For the next iteration, write synk.carry({target}, {computed}) for a number, and a kernel for an array"
    return "Write synk.carry(n, value) for the value of a number in the next iteration"


def watch_draws(values: Iterable[Any]) -> Callable[[], bool]:
    """Returns what then tells whether Python's or NumPy's generator, or one among values, has drawn, in any thread."""
    kinds = np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
    bound = BuiltinMethodType | MethodType  # as in `draw = rng.random`
    owners = [value.__self__ if isinstance(value, bound) else value for value in values]
    generators = [one for one in owners if isinstance(one, kinds) and not isinstance(one, random.SystemRandom)]
    before = _states(generators)
    return lambda: before != _states(generators)


def differ(first: Any, second: Any) -> bool:
    """Returns whether what two runs of a body pass to calls certainly differs: numbers, and those in arrays and containers."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() != second.keys() or any(differ(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) != len(second) or any(map(differ, first, second))
    if isinstance(first, Number) and isinstance(second, Number):
        return differ(first.formula, second.formula)
    if isinstance(first, np.ndarray | np.generic) and isinstance(second, np.ndarray | np.generic):
        return first.shape != second.shape or first.dtype != second.dtype or first.tobytes() != second.tobytes()
    return isinstance(first, _PLAIN) and isinstance(second, _PLAIN) and repr(first) != repr(second)


def _states(generators: Iterable[Any]) -> list[Any]:
    return [*map(_state, generators), random.getstate(), pickle.dumps(np.random.get_state(legacy=False))]  # noqa: NPY002


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.state)


@final
class OuterValues:
    """The values from outside that a body and the functions that it calls use, told apart like arguments.

    They are globals, variables of closures, attributes of objects, and what containers and arrays hold.

    Args:
        body: the function.
        inside: returns the body of a sequence; None for any other object.
    """

    def __init__(self, body: Callable[..., Any], inside: Callable[[Any], Any]) -> None:
        self._body, self._inside = body, inside
        self._found: _Walk | None = None
        self._versions: dict[Any, tuple[int, list[Any]]] = {}  # with values whose ids are in the key
        self._numbers = itertools.count()
        self._version = -1

    def version(self) -> int:
        """Returns a number that is the same for the same values; it may be new for old ones."""
        found = self._found
        return self._version if found is not None and found.is_current() else self._renew()

    def key_of(self, argument: Any, kept: list[Any]) -> Any:
        """Returns the key of an argument that is part of the sequence, with what the code may read of it."""
        if isinstance(argument, _PLAIN):
            return key_of(argument)
        self.version()
        assert self._found is not None
        walk = self._found.of(argument)
        kept += walk.kept
        if walk.reads_something and is_the_scripts(file_of(str(type(argument).__module__))):
            return (type(argument), *walk.key)
        try:
            hash(argument)
        except (TypeError, ValueError):  # the latter of a memoryview that may be written
            return ("id", id(argument), *walk.key)
        return (*key_of(argument), *walk.key)

    def objects(self, argument: Any = None) -> list[Any]:
        """Returns all values, or those that an argument has."""
        self.version()
        assert self._found is not None
        walk = self._found if argument is None else self._found.of(argument)
        return [one() if type(one) is weakref.ref else one for one in walk.kept]

    def watch(self, arguments: Iterable[Any]) -> Callable[[], str | None]:
        """Returns what then finds the name of a value that has changed since, also one of arguments; None if none has."""
        self.version()
        assert self._found is not None
        walks = [self._found, *map(self._found.of, arguments)]
        return lambda: next((name for walk in walks if (name := walk.changed()) is not None), None)

    def _renew(self) -> int:
        """Finds the values anew."""
        self._found, self._version = None, -1  # if an object raises an exception, the next call tries again
        found = _Walk(self._body, self._inside)
        if len(self._versions) > VERSIONS_KEPT:
            self._versions.clear()
        key = tuple(found.key)
        known = self._versions.get(key)
        if known is None or any(type(one) is weakref.ref and one() is None for one in known[1]):  # ids may be used again
            known = self._versions[key] = next(self._numbers), found.kept
        self._found, self._version = found, known[0]
        return self._version

    def labels(self) -> list[tuple[str, Any]]:
        """Returns the values by name."""
        self._renew()
        assert self._found is not None
        return [(name, value() if type(value) is weakref.ref else value) for name, value in self._found.labels()]


@final
class _Walk:
    """What a function, or an object, reaches.

    Args:
        root: the body of a sequence, or an argument.
        inside: as for `OuterValues`.
        outer: what the function reaches of which the object is an argument; None for the function.

    Attributes:
        read: names that the code which it reaches reads.
        is_lenient: whether code does without what it does not find.
        is_whole: whether a function, which is no method, looks at all attributes of an object.
        key: differs if a value does.
        kept: the values whose ids are in it, or weak references to them.
    """

    def __init__(self, root: Any, inside: Callable[[Any], Any], outer: "_Walk | None" = None) -> None:
        self._root, self._inside = root, inside
        self.read: frozenset[str] = frozenset() if outer is None else outer.read
        self.is_lenient: bool = outer is not None and outer.is_lenient
        self.is_whole: bool = outer is not None and outer.is_whole
        before: Any = None
        while before != (now := (len(self.read), self.is_lenient, self.is_whole)):  # methods, which names lead to, read more
            before = now
            self._start()

    def of(self, argument: Any) -> "_Walk":
        """Returns what an argument of the function reaches."""
        return _Walk(argument, self._inside, self)

    def is_current(self) -> bool:
        """Returns whether all values are as they were."""
        for look_up, name, value in self._names:
            now = look_up(name, _MISSING)
            if now is not value and not (type(value) is weakref.ref and now is not None and value() is now):
                return False
        for keys, missing in self._absent.values():
            if not keys.isdisjoint(missing):
                return False
        for holder, kind, values, names in self._objects:
            one = holder() if type(holder) is weakref.ref else holder
            own = _own(one)
            if type(one) is not kind or not own.keys().isdisjoint(names):
                return False
            for name, value in values:
                now = own.get(name, _MISSING)
                if now is not value and not (type(value) is weakref.ref and now is not None and value() is now):
                    return False
        for function, code, defaults, by_keyword in self._codes:  # changed in place, as %autoreload does
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not by_keyword:
                return False
        for cell, value in self._cells:
            now = _cell_contents(cell)
            if now is not value and not (type(value) is weakref.ref and now is not None and value() is now):
                return False
        for holder, key in self._contents:
            now = holder() if type(holder) is weakref.ref else holder
            if now is None or _contents_key(now) != key:
                return False
        return True

    @property
    def reads_something(self) -> bool:
        """Whether code reads something of what is reached."""
        return bool(self._names or self._contents or self._codes or any(values for _, _, values, _ in self._objects))

    def changed(self) -> str | None:
        """Returns the name of a value that is not as it was; None if all are."""
        closures = [zip(one.__code__.co_freevars, one.__closure__ or (), strict=True) for one, *_ in self._codes]
        names = {id(cell): name for closure in closures for name, cell in closure}
        named = [(look_up(name, _MISSING), name, value) for look_up, name, value in self._names]
        named += [(_cell_contents(cell), names.get(id(cell), "a variable"), value) for cell, value in self._cells]
        for holder, _, values, absent in self._objects:
            own = _own(holder() if type(holder) is weakref.ref else holder)
            named += [(own.get(name, _MISSING), name, value) for name, value in (*values, *((one, _MISSING) for one in absent))]
        for now, name, value in named:
            if now is not (value() if type(value) is weakref.ref else value):
                return name
        for holder, key in self._contents:
            one = holder() if type(holder) is weakref.ref else holder
            if _contents_key(one) != key:
                return next((name for now, name, _ in named if now is one), f"a {type(one).__name__}")
        return None

    def labels(self) -> list[tuple[str, Any]]:
        cells = zip(self._root.__code__.co_freevars, self._cells, strict=False) if isinstance(self._root, FunctionType) else ()
        of_objects = [pair for _, _, values, _ in self._objects for pair in values]
        return [*((name, value) for _, name, value in self._names), *of_objects, *((name, value) for name, (_, value) in cells)]

    def _start(self) -> None:
        self._names: list[tuple[Callable[..., Any], str, Any]] = []  # how to look up a name; the value, or a weak reference
        # The names of modules and classes, by their ids, and those that they lack.
        self._absent: dict[int, tuple[KeysView[str], set[str]]] = {}
        # Objects, with their classes, attributes by name, and names that they lack.
        self._objects: list[tuple[Any, type, list[tuple[str, Any]], frozenset[str]]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType, Any, Any]] = []  # with the defaults
        self._contents: list[tuple[Any, Any]] = []  # containers and arrays, with the keys of what they hold
        self.key: list[Any] = []
        self.kept: list[Any] = []
        self._passed: set[int] = set()  # arrays by id, of which no element is read
        waiting, seen = [self._root], {id(self._root)}
        while waiting:
            for value in self._next(waiting.pop()):
                if isinstance(value, _PLAIN):
                    self.key.append(key_of(value))
                    continue
                self.key.append(id(value))
                self.kept.append(_held(value))
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting.append(value)

    def _next(self, one: Any) -> list[Any]:
        """Returns what an object leads to, and notes how to see whether it has changed."""
        if (body := self._inside(one)) is not None:
            return [body]
        if isinstance(one, Method):
            return [one.func, *one.args]
        if (plain := getattr(one, "py_func", None) if _is_of(one, "synknumba") else None) is not None:
            for function in reached([plain]):  # they run on the ranks: of what they are passed they may read these
                self.is_lenient |= _does_without(function.__code__) or not _ASKING.isdisjoint(self._read_by(function.__code__))
            return []
        match one:
            case FunctionType():
                return self._used_by(one) if is_the_scripts(one.__code__.co_filename) else [*_wrapped(one)]
            case _ if type(one) in _VIEWS:
                return [one.mapping]
            case ContextVar():
                found = _of_context(one)
                self._names.append((partial(_of_context, one), "", _held(found)))
                return [found]
            case weakref.ref():
                found = one()
                self._names.append((lambda *_: one(), "", _held(found)))
                return [found]
            case MethodType():
                return [one.__func__, one.__self__]
            case staticmethod() | classmethod():
                return [one.__func__]
            case property():
                return [one.fget]
            case partial():
                return [one.func, *one.args, *one.keywords.values()]
            case np.ndarray() if id(one) in self._passed:
                return []
        found = []
        contents = _contents_key(one)
        if contents is not None:
            self._contents.append((_held(one), contents))
            self.key.append(contents)
            found += [item for item in _items(one) if not isinstance(item, _PLAIN)]
        return found + (self._members(one) if isinstance(one, type) else self._attributes(one))

    def _members(self, kind: type) -> list[Any]:
        """Returns what attributes of a class hold that code may read, and special methods; notes how to look them up."""
        found: list[Any] = []
        read = set(self.read if self.is_lenient else ())
        for owner in reversed(_of_the_script(type(kind)) if type(kind) is not type else []):
            read |= self.read & vars(owner).keys()  # which the class may hide
        for owner in reversed(_of_the_script(kind)):  # what one has, those before it may hide
            members = vars(owner)
            special = {name for name, value in members.items() if name[:2] == "__" and isinstance(value, FunctionType)}
            names = sorted((self.read & members.keys()) | special)
            self.is_lenient |= not _ASKING.isdisjoint(special)
            self._note(members.get, {name: members[name] for name in names}, found)
            self._note_absent(owner, members, read - members.keys())
            read.update(names)
        return found if type(kind) is type else [*found, type(kind)]

    def _attributes(self, holder: Any) -> list[Any]:
        """Returns what attributes of an object or a module hold that code may read; notes how to look them up."""
        own, found = _own(holder), list[Any]()
        kinds = [vars(kind) for kind in _of_the_script(type(holder))]
        of_class = {name: members[name] for members in reversed(kinds) for name in sorted(self.read & members.keys())}
        if own is not _NONE and not isinstance(holder, ModuleType):
            methods = (*of_class.values(), *(members[name] for members in kinds for name in _READING if name in members))
            if self.is_whole or _is_read_by_a_library(holder) or any(map(_looks_at_all, methods)):
                found.append(own)
        if _is_of_a_library(holder):
            return found
        slots = [name for name, value in of_class.items() if isinstance(value, MemberDescriptorType)]
        self._note(partial(_slot, holder), {name: _slot(holder, name, _MISSING) for name in slots}, found)
        values = {name: own[name] for name in sorted(self.read & own.keys())}
        names = frozenset((self.read if self.is_lenient else of_class.keys()) - own.keys())
        if kinds or values or self.is_lenient:
            self._objects.append((_held(holder), type(holder), [(name, _held(value)) for name, value in values.items()], names))
            self.key.append(tuple(values))
            found += values.values()
        return [*found, type(holder)] if kinds else found

    def _note(self, look_up: Callable[..., Any], values: Mapping[str, Any], found: list[Any]) -> None:
        """Notes values, and the names by which they are looked up."""
        self.key += [tuple(values)] if values else []
        self._names += [(look_up, name, _held(value)) for name, value in values.items()]
        found += values.values()

    def _note_absent(self, owner: object, space: Mapping[str, Any], names: set[str]) -> None:
        if names:
            self._absent.setdefault(id(owner), (space.keys(), set()))[1].update(names)

    def _read_by(self, code: CodeType) -> list[str]:
        names = [*dict.fromkeys((*names_in(code), *_texts_in(code)))]
        if not {"eval", "exec"}.isdisjoint(names):
            names += [name for text in _constants(code) for name in _names_of(text)]
        self.read |= {*names}
        return names

    def _used_by(self, function: FunctionType) -> list[Any]:
        defaults, by_keyword = function.__defaults__, function.__kwdefaults__
        self._codes.append((function, function.__code__, defaults, by_keyword))
        self.key.append(function.__code__)
        found: list[Any] = [*(defaults or ()), *_wrapped(function)]
        found += [] if by_keyword is None else [by_keyword]
        names, space = self._read_by(function.__code__), function.__globals__
        if function.__name__ not in _NOT_READING:
            self.is_lenient |= _does_without(function.__code__) or not _ASKING.isdisjoint(names)
            self.is_whole |= _looks_at_all(function) and not _is_a_method(function)
        modules = [*map(space.get, names), *_imported(space, names)]
        spaces = [space]
        spaces += [vars(module) for module in modules if isinstance(module, ModuleType) and _is_a_module_of_the_script(module)]
        for one in spaces:
            self._note(one.get, {name: one[name] for name in names if name in one}, found)
        self._note_absent(
            space, space, {one for one in names if one not in space and (self.is_lenient or hasattr(builtins, one))}
        )
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            found.append(_cell_contents(cell))
            self._cells.append((cell, _held(found[-1])))
        by_name = {**space, **{name: _cell_contents(cell) for name, cell in cells.items()}}
        self._passed |= {id(by_name[name]) for name in _passed_whole(function, by_name) if name in by_name}
        return [*found, *self._attributes(function)]


def _constants(code: CodeType) -> Iterator[str]:
    """Yields the texts among the constants of code, with the functions inside it."""
    waiting = [*code.co_consts]
    while waiting:
        one = waiting.pop()
        if isinstance(one, CodeType | tuple):
            waiting += one if isinstance(one, tuple) else one.co_consts
        elif isinstance(one, str):
            yield one


def _texts_in(code: CodeType) -> Iterator[str]:
    """Yields the constants that may be names, as in `getattr(settings, "rate")` and `attrgetter("settings.rate")`."""
    for text in _constants(code):
        names = text.split(".")
        if all(map(str.isidentifier, names)):
            yield from names


def _names_of(text: str) -> Iterator[str]:
    """Yields the names in a text that is code, as `eval` and `exec` take."""
    try:
        code = compile(text.strip(), "", "exec")
    except (SyntaxError, ValueError):  # no code
        return
    yield from names_in(code)
    yield from _texts_in(code)


def _does_without(code: CodeType) -> bool:
    """Returns whether code may go on where an attribute or a global is missing: in `except`, `with` or `case`."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return bool(code.co_exceptiontable) or _MATCH_CLASS in code.co_code[::2] or any(map(_does_without, inner))


def _is_a_method(function: FunctionType) -> bool:
    """Returns whether a function was defined in the body of a class."""
    return function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in {"", "<locals>"}


def _looks_at_all(value: Any) -> bool:
    """Returns whether a function, method or property looks at all attributes of an object."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return isinstance(function, FunctionType) and _loads_all(function.__code__)


@lru_cache(MOST_CODES)
def _loads_all(code: CodeType) -> bool:
    names = {*names_in(code)}
    if "__dict__" in names:
        return True
    if {"vars", "dir"}.isdisjoint(names):  # also attributes may have these names
        return False
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    loads = (one.argval for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"})
    return not {"vars", "dir"}.isdisjoint(loads) or any(map(_loads_all, inner))


def _imported(space: Mapping[str, Any], names: Iterable[str]) -> Iterator[Any]:
    """Yields modules that a function may import by these names."""
    package = space.get("__package__")
    for name in names:
        yield sys.modules.get(name)
        if package:
            yield sys.modules.get(f"{package}.{name}")


def _is_of(value: Any, package: str) -> bool:
    return str(type(value).__module__).partition(".")[0] == package


def _wrapped(function: Any) -> Iterator[Any]:
    """Yields the function that a decorator of a library has wrapped."""
    if (wrapped := vars(function).get("__wrapped__")) is not None:
        yield wrapped


def _passed_whole(function: FunctionType, values: Mapping[str, Any]) -> set[str]:
    """Returns names that a function passes to decorated functions, as they are, and uses in no other way."""
    definition = read_function(function)
    if definition is None:
        return set()
    looked, passed = set[str](), set[str]()
    for node in definition.names:
        parent = definition.parents.get(id(node))
        is_keyword = isinstance(parent, ast.keyword)
        match definition.parents.get(id(parent)) if is_keyword else parent:
            case ast.Call(func=ast.Name(id=name), args=args) if is_keyword or node in args:
                is_passed = _is_of(values.get(name), "synknumba")
            case _:
                is_passed = False
        (passed if is_passed else looked).add(node.id)
    return passed - looked


def _held(value: Any) -> Any:
    """Returns a weak reference to a value, so that it is freed with its last name; itself if there are none to its type."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _MISSING


def _items(holder: Any) -> Iterable[Any]:
    """Returns what a container holds besides its keys, at one moment."""
    if isinstance(holder, np.ndarray):
        return holder.ravel().tolist() if holder.dtype.hasobject else ()
    if isinstance(holder, dict | MappingProxyType):
        return list(holder.values())
    return list(holder) if isinstance(holder, list | tuple | set | frozenset | deque) else ()


def contents(array: Any) -> bytes:
    """Returns what an array, or `Data`, holds: its bytes, or a digest of many."""
    return _digest(np.asarray(array).tobytes())


def _digest(data: bytes) -> bytes:
    return data if len(data) <= DIGEST_BYTES else hashlib.blake2b(data).digest()


def _contents_key(holder: Any) -> Any:
    """Returns a key of what a container or an array holds: plain values, and the ids of others; None for anything else."""
    if isinstance(holder, np.ndarray):
        return holder.dtype, holder.shape, contents(holder)
    if isinstance(holder, bytearray | array):
        return bytes(holder)
    if not isinstance(holder, dict | MappingProxyType | list | tuple | set | frozenset | deque):
        return _buffer_key(holder)
    keys = tuple(map(_item_key, list(holder))) if isinstance(holder, dict | MappingProxyType) else ()
    items = map(_item_key, _items(holder))
    return type(holder), keys, frozenset(items) if isinstance(holder, set | frozenset) else tuple(items)


def _buffer_key(holder: Any) -> Any:
    """Returns a key of the bytes that an object shows, as a `bytearray` or a number of ctypes does; None for anything else."""
    if isinstance(holder, np.generic | type | mmap.mmap) or _is_of(holder, "synknumba"):  # a file is read once
        return None
    try:
        with memoryview(holder) as memory:
            return memory.format, memory.shape, _digest(memory.tobytes())
    except (TypeError, ValueError, BufferError):  # it shows none, or none any more
        return None


def _item_key(item: Any) -> Any:
    return key_of(item) if isinstance(item, _PLAIN) else id(item)


def _of_the_script(kind: type) -> list[type]:
    """Returns a class and those that it inherits from, without those of libraries."""
    return [one for one in kind.__mro__ if is_the_scripts(file_of(str(one.__module__)))]


def _own(holder: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object itself."""
    try:
        own = vars(holder)
        if not isinstance(own, dict):  # what its class makes up
            own = object.__getattribute__(holder, "__dict__")
    except Exception:  # noqa: BLE001  # no attributes of its own, or an object that answers for another one
        return _NONE
    return own


def _is_read_by_a_library(holder: Any) -> bool:
    """Returns whether methods of a library read all that attributes of an object hold: containers that it has in Python."""
    kind = type(holder)
    if issubclass(kind, np.poly1d) or str(kind.__module__).startswith(("numpy.ma", "numpy.polynomial")):
        return True
    return issubclass(kind, Mapping | Sequence | Set) and not _is_of(holder, "synknumba")


def _is_of_a_library(holder: Any) -> bool:
    if isinstance(holder, ModuleType):
        return not _is_a_module_of_the_script(holder)
    return str(type(holder).__module__).partition(".")[0] in _LIBRARIES and not isinstance(holder, FunctionType)


def _is_a_module_of_the_script(module: ModuleType) -> bool:
    """Returns whether a module is the user's own, or was made without being imported."""
    file = getattr(module, "__file__", None)
    return is_the_scripts(file) or (file is None and getattr(module, "__spec__", None) is None)


def _of_context(variable: ContextVar[Any], *_: object) -> Any:
    """Returns what a context variable has in this context."""
    try:
        return variable.get()
    except LookupError:
        return _MISSING


def _slot(holder: Any, name: str, default: Any) -> Any:
    try:
        return object.__getattribute__(holder, name)
    except AttributeError:
        return default
