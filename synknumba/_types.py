"""Type aliases and small value types shared by all layers."""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, final
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from synknumba._errors import ArgumentError, MemberError, shorten, shortened, where

DeviceKind: TypeAlias = Literal["cuda", "cpu"]
NamedOp: TypeAlias = Literal["sum", "prod", "min", "max", "mean", "gather", "argmin", "argmax"]
CollectiveKind: TypeAlias = Literal[
    "broadcast", "all_gather", "reduce", "all_reduce", "reduce_scatter", "exchange", "all_to_all"
]
CollectiveOp: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]
Transport: TypeAlias = Literal["nccl", "host"]
CompilerName: TypeAlias = Literal["numba.cuda", "numba-cuda-mlir"]
Batch: TypeAlias = int | slice | Sequence[int] | NDArray[Any] | None
Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Counts: TypeAlias = tuple[tuple[int, ...], ...]  # of rows, by sending and by receiving rank
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = Mapping[str, Any]
CallValues: TypeAlias = tuple[Any, ...]  # of one call, in the order of its program's format
Block: TypeAlias = int | tuple[int, ...]
MAX_GRID: Final = (2**31 - 1, 65535, 65535)  # blocks along each axis, CUDA's limits
# of one block, on GPUs of compute capability 9.0 (CUDA C++ Programming Guide, table of limits)
MAX_SMEM_BYTES: Final = 227 << 10
# As a function: of the rows of a launch, of the shapes of its arrays in a parameter named `shapes`,
# or of both.
GridRule: TypeAlias = (
    Callable[[int], Block]
    | Callable[[dict[str, Shape]], Block]
    | Callable[[int, dict[str, Shape]], Block]
)
Grid: TypeAlias = Block | Literal["elements"] | GridRule | None


class Span(NamedTuple):
    """Consecutive indices start, start + 1, …, stop − 1: of one launch's part of an index range, or
    of a rank's own rows.

    Kernels get it; Python functions get `range(start, stop)`.

    Example:
        >>> import synknumba as synk
        >>> @synk.function(outputs=None)
        ... def indices(span):
        ...     return str(span)
        >>> with synk.fork(2, device="cpu"):
        ...     print(*indices(synk.arange(5)))
        range(0, 2) range(2, 5)
    """

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class UserOp:
    """A user-defined reduction op.

    Attributes:
        function: an associative plain function of two numbers, callable from kernels.
        identity: the identity element; None if no reduction starts from one.
        number: unique id, by which ranks recognise the op.
    """

    function: Callable[[Any, Any], Any]
    identity: Any
    number: int

    def __repr__(self) -> str:
        """Returns the function's name."""
        return self.function.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickles to the same object each time, so that a rank compiles the op's kernel once."""
        return _known_op, (self.function, self.identity, self.number)


Key = TypeVar("Key")
Value = TypeVar("Value")


@final
class WeakTable(Generic[Key, Value]):
    """Values by object, which end with it: a `WeakKeyDictionary` by identity, without callbacks in
    Python.

    In these, Python would print what a signal handler raises, such as `KeyboardInterrupt`, and go
    on.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, tuple[ref[Key], Value]] = {}

    def __setitem__(self, key: Key, value: Value) -> None:
        # which no other object has until the callback, a method in C, has removed the item
        number = id(key)
        self._items[number] = ref(key, functools.partial(self._items.pop, number)), value

    def get(self, key: Key) -> Value | None:
        """Returns the value of an object; None if there is none."""
        item = self._items.get(id(key))
        return None if item is None else item[1]

    def setdefault(self, key: Key, default: Value) -> Value:
        """Returns the value of an object, which becomes `default` if there is none."""
        item = self._items.get(id(key))
        if item is not None:
            return item[1]
        self[key] = default
        return default

    def __contains__(self, key: Key) -> bool:
        return id(key) in self._items

    def pop(self, key: Key) -> None:
        """Removes an object, if it is there."""
        self._items.pop(id(key), None)

    def clear(self) -> None:
        """Removes all objects."""
        self._items.clear()

    def items(self) -> list[tuple[Key, Value]]:
        """Returns the objects that are alive now, in the order in which they were added, and
        their values.
        """
        pairs = [(reference(), value) for reference, value in self._items.copy().values()]
        return [(key, value) for key, value in pairs if key is not None]

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self.items()])


@final
class Cache(OrderedDict[Key, Value]):
    """Dictionary of at most `limit` items: beyond, the oldest are dropped.

    An item is as old as its assignment, or its last `use`; other look-ups are those of a dict, and
    change nothing. A pickled cache is empty.

    Args:
        limit: maximum number of items.
        dropped: called with the value of an item that is dropped by the limit, `drop` or
            `drop_all`; not by the methods of a dict. A method bound to the owner of the cache would
            be a reference cycle.
    """

    def __init__(self, limit: int, dropped: Callable[[Value], object] | None = None) -> None:
        super().__init__()
        self._limit, self._dropped = limit, dropped

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        while len(self) > self._limit:
            self.drop(next(iter(self)))

    def use(self, key: Key) -> Value | None:
        """Returns the value of a key, now the most recently used; None if there is none."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def drop(self, key: Key) -> None:
        """Removes an item, if it is there."""
        value = self.pop(key, None)  # may have been removed in a garbage collection
        if value is not None and self._dropped is not None:
            self._dropped(value)

    def drop_all(self) -> None:
        """Removes all items."""
        for key in list(self):
            self.drop(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._limit, self._dropped)


_known_ops: "WeakValueDictionary[int, UserOp]" = WeakValueDictionary()


def _known_op(function: Callable[[Any, Any], Any], identity: Any, number: int) -> UserOp:
    return _known_ops.setdefault(number, UserOp(function, identity, number))


Op: TypeAlias = NamedOp | UserOp | None


def as_flag(value: object, what: str) -> bool:
    """Returns True or False; raises `ArgumentError` for anything else, such as a list, which
    would count as True.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ArgumentError(f"{what} must be True or False, got {value!r}")


def as_name(value: object) -> str | None:
    """Returns a name for messages; raises `ArgumentError` for anything but a string or None."""
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError(f"name must be a string, got {value!r}")


_F = TypeVar("_F", bound=Callable[..., Any])

_SHOWN_BITS = 1000


def known_options(function: _F) -> _F:
    """Makes a function raise `ArgumentError` for arguments that it does not have, with the
    nearest option that it has; `sliceable=`, as Synkhronos calls it, is `rows=`.
    """

    @functools.wraps(function)
    def _checked(*args: Any, **options: Any) -> Any:
        as_name(options.get("name"))
        if "sliceable" in options:
            if "rows" in options:
                raise ArgumentError("rows= and sliceable= are the same option; pass rows= alone")
            options["rows"] = options.pop("sliceable")
        try:
            return function(*args, **options)
        except Exception as error:
            inside = error.__traceback__ is None or error.__traceback__.tb_next is not None
            if inside or not isinstance(error, TypeError):
                shorten(error)
                raise
            message = _misfit(function, options, error)
        raise ArgumentError(message)

    return _checked  # type: ignore[return-value]  # the same signature


def shown(value: object) -> str:
    """Returns the repr of a value for a message; of an int with more digits than Python converts to
    text, its bits.

    >>> shown(12), shown(1 << 20000)
    ('12', 'an int of 20001 bits')
    """
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an int of {value.bit_length()} bits"
    return repr(value)


def size_text(count: int | None) -> str:
    """Formats a number of bytes; None if it is not known.

    >>> size_text(1000), size_text(3 << 19), size_text(None)
    ('1000 bytes', '1.5 MiB', '?')
    """
    if count is None:
        return "?"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def count_text(count: int, noun: str) -> str:
    """Formats a number of things.

    >>> count_text(1, "rank"), count_text(1200, "rank")
    ('1 rank', '1,200 ranks')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def aligned(rows: Iterable[Iterable[object]]) -> list[str]:
    """Formats a table, a line for each row: the first column aligned left, the others right.

    >>> aligned([("what", "n"), ("call", 12)])
    ['what   n', 'call  12']
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return lines


def class_text(value: object) -> str:
    """Returns the name of a value's class with its article, for messages."""
    return with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """Returns the name of a class, or another noun, with its article.

    >>> with_article("dict"), with_article("object"), with_article("ndarray")
    ('a dict', 'an object', 'an ndarray')
    """
    return f"{'an' if noun.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {noun}"


# names that other packages have for options
_OTHER_NAMES: Mapping[str, str] = dict.fromkeys(
    ("n", "ranks", "num_ranks", "nprocs", "processes", "workers", "num_workers", "n_jobs", "gpus"),
    "world_size",
)


def nearest(name: str, names: Iterable[str], after: str = "") -> str:
    """Returns the question whether the nearest of some names was meant, with `after` behind it;
    "" if none is near.
    """
    import difflib  # for errors only

    names = list(names)
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if (known := _OTHER_NAMES.get(name)) in names:
        near = [known]
    if not near:
        return ""
    return f". Did you mean {near[0]}{after}?"


def unknown_keyword(
    called: str, name: str, parameters: Iterable[str], options: Iterable[str]
) -> str:
    """Returns that calls have no such keyword, and which they have: parameters of the function,
    and options.
    """
    parameters, options = list(parameters), list(options)
    candidates = [candidate for candidate in (*parameters, *options) if candidate != name]
    return (
        f"{called} has no parameter {name!r}; it has {', '.join(parameters) or 'none'}, "
        f"and calls have the options {', '.join(options)}{nearest(name, candidates)}"
    )


def times_refusal(called: str) -> str:
    """Returns what to write in place of `times=` at what is called once."""
    return (
        f"times= is an option of sequences: call {called} in a function decorated with "
        "@synk.sequence, and pass times= to that"
    )


def _misfit(function: Callable[..., Any], options: Iterable[str], error: TypeError) -> str:
    """Returns what is wrong with the arguments of a call that has raised `error`."""
    parameters = inspect.signature(function).parameters
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    takes_variables = "vars" in names
    for name in options:
        if name == "times" and takes_variables:
            return times_refusal(function.__name__)
        if name not in names:
            return (
                f"{function.__name__} has no option {name}=; it has "
                f"{', '.join(names)}{nearest(name, names, '=')}"
            )
    plain = inspect.Signature(
        [parameter.replace(annotation=parameter.empty) for parameter in parameters.values()]
    )
    advice = ""
    if takes_variables:
        advice = f"; several variables are one argument: {function.__name__}([u, v])"
    return f"{error}; write {function.__name__}{plain}{advice}"


class Extremum(NamedTuple):
    """The best value and the index of its row in the data; two arrays of equal shape if a row
    has several values.

    Example:
        >>> import numpy as np
        >>> from numba import cuda
        >>> import synknumba as synk
        >>> @synk.parallel(outputs={"best": synk.output("argmin", like="x")})
        ... def distance(x, best):
        ...     i = cuda.grid(1)
        ...     if i < x.shape[0]:
        ...         best[i] = abs(x[i] - 2.0)
        >>> with synk.fork(2, device="cpu"):
        ...     distance(np.array([0.0, 5.0, 2.5]))
        Extremum(value=np.float64(0.5), row=np.int64(2))
    """

    value: Any
    row: Any


class RankConstant(Enum):
    r"""Placeholder for a value that each rank fills in for itself or for a slice.

    - `RANK`: the number of the rank, from 0.
    - `WORLD_SIZE`: the number of ranks.
    - `OFFSET`: the number, in the whole, of the first row that is passed.
    - `ROWS`: the number of rows that are passed.
    - `OWN`: the `Span` of the rank's own rows in a variable that has a halo.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs=None)
        ... def place(x, rank, offset, rows):
        ...     return f"rank {rank} has {rows} rows from {offset}"
        >>> with synk.fork(2, device="cpu"):
        ...     print(*place(np.ones(5), synk.RANK, synk.OFFSET, synk.ROWS), sep="\n")
        rank 0 has 2 rows from 0
        rank 1 has 3 rows from 2
    """

    RANK = "rank"
    WORLD_SIZE = "world_size"
    OFFSET = "offset"
    ROWS = "rows"  # of the rank's arrays in a launch
    OWN = "own"  # the `Span` of a variable's own rows, which the coordinator fills in
    SLICE = "slice"
    POSITION = "position"  # of the slice's first row among the rows of the call

    __hash__ = object.__hash__  # `__eq__` would take it away; it is part of the keys of calls

    @shortened
    def __eq__(self, other: object) -> bool:
        """Compares with another placeholder; raises `ArgumentError` for a number, which would
        never be equal.
        """
        if isinstance(other, RankConstant):
            return self is other
        raise ArgumentError(f"{self._told()} compared with {shown(other)}{self._way_out()}")

    @shortened
    def __bool__(self) -> bool:
        """Raises `ArgumentError`: it would be true on every rank."""
        raise ArgumentError(f"{self._told()} true or false{self._way_out()}")

    def _told(self) -> str:
        return (
            f"{where()}: {self!r} is no number: a call that passes it fills it in on "
            f"each rank. So it cannot be"
        )

    def _way_out(self) -> str:
        hints = {
            "RANK": ". A function may ask synk.rank() instead",
            "WORLD_SIZE": ". Or ask synk.world_size()",
        }
        return (
            f". Pass it, as in f(x, {self!r}), and look at it in the kernel or "
            f"function{hints.get(self.name, '')}"
        )

    def __repr__(self) -> str:
        """Returns the user's spelling."""
        return f"synk.{self.name}"

    def why_unknown(self) -> str:
        """Returns why nothing can be computed with it, and the way out."""
        way_out = "or pass synk.per_rank([...]) with a value of yours for each rank"
        if self is RankConstant.WORLD_SIZE:
            way_out = "or compute with synk.world_size(), the number of ranks"
        elif self is RankConstant.RANK:
            way_out = f"a function may also call synk.rank(); {way_out}"
        return (
            f"{self!r} is no number: a call that passes it fills it in on each rank, and nothing "
            f"can be computed with it before. Pass it, as in f(x, {self!r}), and compute with the "
            f"parameter in the kernel or function; {way_out}"
        )

    @shortened
    def __getattr__(self, name: str) -> NoReturn:
        """Refuses what a `Span` has; anything else is missing as usual."""
        if name in Span._fields and self is RankConstant.OWN:
            raise MemberError(f"synk.OWN.{name}: {self.why_unknown()}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


ARITHMETIC: Final = (  # binary operators, without underscores
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_REFUSED = (
    *(side + name for name in ARITHMETIC for side in ("", "r")),
    *("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "array_ufunc"),
    *("index", "int", "float", "complex", "round", "trunc", "floor", "ceil"),
)


@shortened
def _refuse_arithmetic(self: RankConstant, *_: object, **__: object) -> NoReturn:
    raise ArgumentError(f"{where()}: {self.why_unknown()}")


for _name in _REFUSED:
    setattr(RankConstant, f"__{_name}__", _refuse_arithmetic)

RANK: Final = RankConstant.RANK
WORLD_SIZE: Final = RankConstant.WORLD_SIZE
OFFSET: Final = RankConstant.OFFSET
ROWS: Final = RankConstant.ROWS
OWN: Final = RankConstant.OWN

Scalar: TypeAlias = bool | int | float | complex | np.generic
