"""The values from outside that the body of a sequence uses: if one has changed at a call, the body
is recorded anew.

    body ── reads_of ──> values ──> containers: their items; arrays: their contents
      ▲                    └──────> objects: attributes with names that code reads, methods and properties, which are code again
      └─────────────────────────────┘

Everything else is read once, when the body is recorded.
"""  # noqa: E501

import ast
import hashlib
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeAlias, final
from weakref import ref

import numpy as np

from synknumba._source.definition import read_function
from synknumba._source.reached import (
    MISSING,
    Read,
    file_of,
    inside,
    is_a_function_of_the_script,
    is_a_module_of_the_script,
    is_the_scripts,
    own,
    reached,
    reads_of,
    walk,
)
from synknumba._types import Cache
from synknumba._world.read_values import alive, held, is_plain, key_of
from synknumba.simt.internals import names_in

DIGEST_BYTES = 4096  # of an array, of which a longer one is kept as a digest
VERSIONS_KEPT = 64  # sets of values from outside that are told apart
_ARRAYS = (np.ndarray, bytearray, array)
_LIBRARIES = frozenset({"synknumba", "numba"})  # whose objects have no settings


@final
class OuterValues:
    """The values from outside that a body and the functions that it calls use, told apart like
    arguments.

    Args:
        body: the function.
        body_of: returns the body of a sequence; None for any other object.
    """

    def __init__(self, body: Callable[..., Any], body_of: Callable[[Any], Any]) -> None:
        self._body, self._body_of = body, body_of
        self._now: Values | None = None
        self._of_arguments: Values | None = None  # of the last call
        # with values whose ids are in the key
        self._versions: Cache[Any, tuple[int, list[Any]]] = Cache(VERSIONS_KEPT)
        self._numbers = itertools.count()

    def now(self) -> "Values":
        """Returns what the body reads, as it is now."""
        values = self._now
        if values is None or values.changed() is not None:
            values = self._now = self._numbered(Values([self._body], self._body_of))
        return values

    def of(self, arguments: Sequence[Any]) -> "Values":
        """Returns what code reads of arguments of the sequence that are objects."""
        names, values = self.now().names, self._of_arguments
        if values is None or not values.are_of(arguments, names):
            values = self._of_arguments = self._numbered(Values(arguments, self._body_of, names))
        return values

    def _numbered(self, values: "Values") -> "Values":
        version, objects = self._versions.get(values.key, (-1, []))
        # ids may be used again
        if version < 0 or any(type(item) is ref and item() is None for item in objects):
            version = next(self._numbers)
            self._versions[values.key] = version, values.objects
        values.version = version
        return values


@final
class Values:
    """What code reads of some objects, and of what they lead to.

    Args:
        roots: the body of a sequence, or arguments of it.
        body_of: as for `OuterValues`.
        names: names that other code reads, which the roots are arguments of.

    Attributes:
        roots: these objects.
        names_before: the names that other code reads.
        names: these, and the names that the code reads which is reached.
        key: differs if a value does.
        version: number that is the same for the same values; it may be new for old ones.
        objects: the values whose ids are in it, or weak references to them.
    """

    def __init__(
        self, roots: Sequence[Any], body_of: Callable[[Any], Any], names: Collection[str] = ()
    ) -> None:
        self.roots, self._body_of = list(roots), body_of
        self.names_before, self.names, self.version = names, set(names), -1
        before = -1
        while before != len(self.names):  # methods, which names lead to, read more
            before = len(self.names)
            self._reads: dict[tuple[int, str], Read] = {}
            self._contents: list[tuple[Any, Any, str]] = []
            self._labels: dict[int, str] = {}
            values = list(walk(self.roots, self._parts))
        self._looks = [(*read[2:], read.name) for read in self._reads.values()]
        self.objects = [held(value) for value in values if not is_plain(value)]
        self.key = (
            *map(_key, self.roots),
            *((name, _key(alive(value))) for _, _, value, name in self._looks),
            *((type(holder), *map(_key, before)) for holder, before, _ in self._contents),
        )

    def changed(self) -> str | None:
        """Returns the name of a value that is not as it was; None if all are."""
        for look, place, value, name in self._looks:
            now = look(place, MISSING)
            if now is not value and (now is None or type(value) is not ref or value() is not now):
                return name
        for holder, before, name in self._contents:
            if type(before) is tuple:  # of an array
                is_same = _array_key(holder) == before
            else:
                is_same = _are_same(_items(holder), before)
            if not is_same:
                return name
        return None

    def are_of(self, roots: Sequence[Any], names: Collection[str]) -> bool:
        """Returns whether these are what is read of some objects, as they are now, given the names
        that other code reads.
        """
        if self.names_before is not names or not _are_same(roots, self.roots):
            return False
        return self.changed() is None

    def labels(self) -> list[tuple[str, Any]]:
        """Returns the values by name."""
        return [(name, alive(value)) for _, _, value, name in self._looks]

    def alive(self) -> list[Any]:
        """Returns the values that there still are."""
        return list(map(alive, self.objects))

    def _parts(self, holder: Any) -> list[Any]:
        """Returns what an object leads to, and notes how to see whether it has changed."""
        if is_plain(holder):
            return []
        if (body := self._body_of(holder)) is not None:
            return [body]
        if _package(holder) == "synknumba" and not isinstance(holder, partial):
            for function in reached([getattr(holder, "py_func", None)]):
                self.names.update(names_in(function.__code__))  # of objects that are passed to it
            return []
        name = self._labels.get(id(holder), "an argument")
        parts, items = inside(holder), _items(holder)
        if items is not None:
            self._contents.append((holder, items, name))
            parts = [*items, *parts]
        elif isinstance(holder, _ARRAYS):
            self._contents.append((holder, _array_key(holder), name))
        self._labels.update((id(part), name) for part in parts)
        return [*parts, *self._read(holder)]

    def _read(self, holder: Any) -> Iterator[Any]:
        """Yields the values of the names that an object has and code reads; notes them."""
        passed = set[str]()
        if is_a_function_of_the_script(holder):
            self.names.update(names_in(holder.__code__))
            reads = list(reads_of(holder))
            passed = _passed_whole(holder, {read.name: read.value for read in reads})
        else:
            reads = list(_attributes_of(holder, self.names))
        for read in reads:
            self._reads[id(read.space), read.name] = read._replace(
                space=None, value=held(read.value)
            )
            self._labels[id(read.value)] = read.name
            if read.name not in passed or not isinstance(read.value, np.ndarray):
                yield read.value


def _attributes_of(holder: Any, names: set[str]) -> Iterator[Read]:
    """Yields the attributes of an object, a class or a module that code reads by these names,
    and special methods.
    """
    match holder:
        case FunctionType():
            return
        case ModuleType() if not is_a_module_of_the_script(holder):
            return
    if _package(holder) in _LIBRARIES:
        return
    spaces = _spaces_of(holder)
    for name, (space, values) in itertools.product(_names_read(holder, spaces, names), spaces):
        value = values.get(name, MISSING)
        if isinstance(value, MemberDescriptorType) and not isinstance(holder, type):  # a slot
            yield Read(holder, name, partial(getattr, holder), name, getattr(holder, name, MISSING))
        else:
            yield Read(space, name, values.get, name, value)


_Spaces: TypeAlias = list[tuple[object, Mapping[str, Any]]]


def _spaces_of(holder: Any) -> _Spaces:
    """Returns what has attributes of an object, with these: itself and the script's classes."""
    kind = holder if isinstance(holder, type) else type(holder)
    kinds = [parent for parent in kind.__mro__ if is_the_scripts(file_of(str(parent.__module__)))]
    spaces: _Spaces = [(parent, vars(parent)) for parent in kinds]
    attributes = own(holder)
    if attributes is not None:
        spaces.insert(0, (holder, attributes))  # which may hide those of classes
    return spaces


def _names_read(holder: Any, spaces: _Spaces, names: set[str]) -> list[str]:
    """Returns the names of attributes that are among these, or of special methods."""
    read = set[str]()
    for _, attributes in spaces:
        for name, value in list(attributes.items()):
            if name in names or (name[:2] == "__" and isinstance(value, FunctionType)):
                read.add(name)
    if not isinstance(holder, type):
        # which has run, and names attributes that the body may not look at
        read -= {"__init__"} - names
    return sorted(read)


def _passed_whole(function: FunctionType, values: Mapping[str, Any]) -> set[str]:
    """Returns names that a function passes to decorated functions, as they are, and uses in no
    other way.
    """
    definition = read_function(function)
    if definition is None:
        return set()
    passed = set[int]()
    for node in definition.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if _package(values.get(name)) == "synknumba":
                passed.update(map(id, (*node.args, *(keyword.value for keyword in node.keywords))))
    uses = definition.names
    return {use.id for use in uses} - {use.id for use in uses if id(use) not in passed}


def _package(value: Any) -> str:
    return str(type(value).__module__).partition(".")[0]


def _are_same(items: Sequence[Any] | None, before: Sequence[Any]) -> bool:
    return items is not None and len(items) == len(before) and all(map(is_, items, before))


def _items(holder: Any) -> list[Any] | None:
    """Returns what a container holds, at one moment; None for anything else."""
    if isinstance(holder, dict):
        # A sparse matrix that is a dict has, as an iterator, rows that have rows, without end.
        return [*dict.keys(holder), *dict.values(holder)]
    if isinstance(holder, list | tuple | set | frozenset | deque):
        return list(holder)
    if isinstance(holder, np.ndarray) and holder.dtype.hasobject:
        items: list[Any] = holder.ravel().tolist()
        return items
    return None


def bytes_of(array: Any) -> bytes:
    """Returns what an array, or `Data`, holds: its bytes, or a digest of many."""
    data = np.asarray(array).tobytes()
    if len(data) <= DIGEST_BYTES:
        return data
    return hashlib.blake2b(data).digest()


def _array_key(holder: Any) -> tuple[Any, ...]:
    view = np.asarray(holder)
    return view.dtype, view.shape, bytes_of(view)


def _key(value: Any) -> Any:
    return key_of(value) if is_plain(value) else id(value)
