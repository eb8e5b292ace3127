"""The body of a sequence as its source shows it, and the values from outside that it uses.

A body runs once, so four mistakes would stay silent: an assignment to a parameter at its end, which was meant for the next
iteration; random numbers; values from outside that it changes, itself or in a function that it calls; and such that change
between calls. The first three are refused, the last makes another sequence.
"""

import ast
import builtins
import hashlib
import itertools
import pickle
import random
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, final

import numpy as np

from synknumba._call.definition import Definition, read_function
from synknumba._call.method import Method
from synknumba._errors import ArgumentError
from synknumba._tracing import Number
from synknumba._world.code import file_of, is_the_scripts, names_in, reached
from synknumba._world.read_values import MISSING, Look, globals_of, key_of

DIGEST_BYTES = 4096  # of an array, of which a longer one is kept as a digest
VERSIONS_KEPT = 64  # sets of values from outside that are told apart
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset({"synknumba", "numba", "numpy", "cupy", "builtins", "weakref"})  # whose objects have no settings
_NONE: dict[str, Any] = {}  # the attributes of an object that can have none of its own
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
        return [_alive(value) for value in walk.kept]

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
        return self._found.labels()


@final
class _Walk:
    """What a function, or an object, reaches.

    Args:
        root: the body of a sequence, or an argument.
        inside: as for `OuterValues`.
        read: names that other code reads, as of objects that are arguments.

    Attributes:
        read: these, and the names that the code reads which is reached.
        key: differs if a value does.
        kept: the values whose ids are in it, or weak references to them.
    """

    def __init__(self, root: Any, inside: Callable[[Any], Any], read: Iterable[str] = ()) -> None:
        self._inside = inside
        self.read = set(read)
        names_before = -1
        while names_before != len(self.read):  # methods, which names lead to, read more
            names_before = len(self.read)
            self._start(root)

    def of(self, argument: Any) -> "_Walk":
        """Returns what an argument of the function reaches."""
        return _Walk(argument, self._inside, self.read)

    def is_current(self) -> bool:
        """Returns whether all values are as they were."""
        for look, place, value, _ in self._names:
            now = look(place, MISSING)
            if now is not value and not (type(value) is weakref.ref and now is not None and value() is now):
                return False
        for holder, values in self._objects:
            own = _own(holder() if type(holder) is weakref.ref else holder)
            for name, value in values:
                now = own.get(name, MISSING)
                if now is not value and not (type(value) is weakref.ref and now is not None and value() is now):
                    return False
        for function, code, defaults, by_keyword in self._codes:  # as %autoreload changes them
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not by_keyword:
                return False
        for holder, key in self._contents:
            now = holder() if type(holder) is weakref.ref else holder
            if now is None or _contents_key(now) != key:
                return False
        return True

    @property
    def reads_something(self) -> bool:
        """Whether code reads something of what is reached."""
        return bool(self._names or self._contents or self._codes or self._objects)

    def changed(self) -> str | None:
        """Returns the name of a value that is not as it was; None if all are."""
        named = list(self._named())
        for now, name, value in named:
            if now is not _alive(value):
                return name
        for holder, key in self._contents:
            container = _alive(holder)
            if _contents_key(container) != key:
                names = (name for now, name, _ in named if now is container)
                return next(names, f"a {type(container).__name__}")
        return None

    def labels(self) -> list[tuple[str, Any]]:
        """Returns the values by name."""
        return [(name, _alive(value)) for _, name, value in self._named()]

    def _named(self) -> Iterator[tuple[Any, str, Any]]:
        """Yields values that have names: as they are now, the names, and as they were."""
        for look, place, value, name in self._names:
            yield look(place, MISSING), name, value
        for holder, values in self._objects:
            own = _own(_alive(holder))
            yield from ((own.get(name, MISSING), name, value) for name, value in values)

    def _start(self, root: Any) -> None:
        self._names: list[tuple[Look, Any, Any, str]] = []  # how each is found, and what it was
        self._objects: list[tuple[Any, list[tuple[str, Any]]]] = []  # with attributes
        self._codes: list[tuple[FunctionType, CodeType, Any, Any]] = []  # with the defaults
        self._contents: list[tuple[Any, Any]] = []  # containers and arrays, with their keys
        self.key: list[Any] = []
        self.kept: list[Any] = []
        self._passed: set[int] = set()  # arrays by id, of which no element is read
        waiting, seen = [root], {id(root)}
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

    def _next(self, holder: Any) -> list[Any]:
        """Returns what an object leads to, and notes how to see whether it has changed."""
        if (body := self._inside(holder)) is not None:
            return [body]
        if isinstance(holder, Method):
            return [holder.func, *holder.args]
        if _is_of(holder, "synknumba") and (plain := getattr(holder, "py_func", None)) is not None:
            for function in reached([plain]):  # what it reads on the ranks of objects passed to it
                self.read.update(names_in(function.__code__))
            return []
        match holder:
            case FunctionType():
                if is_the_scripts(holder.__code__.co_filename):
                    return self._used_by(holder)
                return [vars(holder).get("__wrapped__")]
            case MethodType():
                return [holder.__func__, holder.__self__]
            case staticmethod() | classmethod():
                return [holder.__func__]
            case property():
                return [holder.fget]
            case partial():
                return [holder.func, *holder.args, *holder.keywords.values()]
            case type():
                return self._members(holder)
            case np.ndarray() if id(holder) in self._passed:
                return []
        contents = _contents_key(holder)
        if contents is None:
            return self._attributes(holder)
        self._contents.append((_held(holder), contents))
        self.key.append(contents)
        items = [item for item in _items(holder) if not isinstance(item, _PLAIN)]
        return [*items, *self._attributes(holder)]

    def _members(self, kind: type) -> list[Any]:
        """Returns what classes of the script hold that code may read, and special methods."""
        spaces = [vars(owner) for owner in _of_the_script(kind)]
        names = {name for members in spaces for name in members if name in self.read}
        for members in spaces:
            names |= {name for name, value in members.items() if name[:2] == "__" and isinstance(value, FunctionType)}
        return [self._note(space.get, name, name) for space in spaces for name in sorted(names)]

    def _attributes(self, holder: Any) -> list[Any]:
        """Returns what attributes of an object or a module hold that code may read."""
        if _is_of_a_library(holder):
            return []
        own, found = _own(holder), list[Any]()
        kinds = _of_the_script(type(holder))
        names = self.read & own.keys()
        for members in map(vars, kinds):
            for name in sorted(self.read & members.keys()):
                if isinstance(members[name], MemberDescriptorType):
                    found.append(self._note(partial(_slot, holder), name, name))
                else:
                    names.add(name)  # which the object may hide
        if names:
            values = [(name, own.get(name, MISSING)) for name in sorted(names)]
            self._objects.append((_held(holder), [(name, _held(value)) for name, value in values]))
            found += [value for _, value in values]
        return [*found, type(holder)] if kinds else found

    def _note(self, look: Look, place: Any, name: str) -> Any:
        """Returns a value, and notes how it is found again."""
        value = look(place, MISSING)
        self._names.append((look, place, _held(value), name))
        return value

    def _used_by(self, function: FunctionType) -> list[Any]:
        code, space = function.__code__, function.__globals__
        defaults, by_keyword = function.__defaults__, function.__kwdefaults__
        self._codes.append((function, code, defaults, by_keyword))
        self.key.append(code)
        self.read.update(names_in(code))
        found: list[Any] = [*(defaults or ()), *([by_keyword] if by_keyword else [])]
        by_name = dict(space)
        names = [name for name in globals_of(code) if name in space or not hasattr(builtins, name)]
        found += [self._note(space.get, name, name) for name in names]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            by_name[name] = self._note(_cell_contents, cell, name)
            found.append(by_name[name])
        passed = _passed_whole(function, by_name)
        self._passed |= {id(by_name[name]) for name in passed if name in by_name}
        return found


def _is_of(value: Any, package: str) -> bool:
    return str(type(value).__module__).partition(".")[0] == package


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


def _alive(held: Any) -> Any:
    return held() if type(held) is weakref.ref else held


def _cell_contents(cell: Any, default: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return default


def _items(holder: Any) -> Iterable[Any]:
    """Returns what a container holds besides its keys, at one moment."""
    if isinstance(holder, np.ndarray):
        return holder.ravel().tolist() if holder.dtype.hasobject else ()
    if isinstance(holder, bytearray | array):
        return ()
    return list(holder.values() if isinstance(holder, dict) else holder)


def contents(array: Any) -> bytes:
    """Returns what an array, or `Data`, holds: its bytes, or a digest of many."""
    data = np.asarray(array).tobytes()
    return data if len(data) <= DIGEST_BYTES else hashlib.blake2b(data).digest()


def _contents_key(holder: Any) -> Any:
    """Returns a key of what a container or an array holds: plain values, and the ids of others; None for anything else."""
    if isinstance(holder, np.ndarray):
        return holder.dtype, holder.shape, contents(holder)
    if isinstance(holder, bytearray | array):
        return bytes(holder)
    if not isinstance(holder, dict | list | tuple | set | frozenset | deque):
        return None
    keys = tuple(map(_item_key, list(holder))) if isinstance(holder, dict) else ()
    items = map(_item_key, _items(holder))
    return type(holder), keys, frozenset(items) if isinstance(holder, set | frozenset) else tuple(items)


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


def _is_of_a_library(holder: Any) -> bool:
    if isinstance(holder, ModuleType):
        return not _is_a_module_of_the_script(holder)
    return str(type(holder).__module__).partition(".")[0] in _LIBRARIES


def _is_a_module_of_the_script(module: ModuleType) -> bool:
    """Returns whether a module is the user's own, or was made without being imported."""
    file = getattr(module, "__file__", None)
    return is_the_scripts(file) or (file is None and getattr(module, "__spec__", None) is None)


def _slot(holder: Any, name: str, default: Any) -> Any:
    try:
        return object.__getattribute__(holder, name)
    except AttributeError:
        return default
