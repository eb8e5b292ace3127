"""Functions as they go to the ranks: pickles with their sources, stand-ins on ranks, and named
tuples of results.

A function is sent to the ranks once per world, before they run it, and again after failures until
it has run to its end once; generated kernels are sent without the function inside.

    first call of a function  ──> that function
    distribute()              ──> all functions
"""

import importlib
import itertools
import linecache
import os
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from synknumba._call.options import NO_OPTIONS, FunctionOptions
from synknumba._device import fold_kernel
from synknumba._errors import ArgumentError, depth_of_script
from synknumba._host.deaths import when_gone
from synknumba._host.log import log
from synknumba._host.signals import is_of_handler
from synknumba._source.reached import MISSING
from synknumba._types import WeakTable
from synknumba._wire import function_pickling as pickling
from synknumba._wire.messages import Install
from synknumba._wire.program import FunctionSpec, Program
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.holdings import Uses
from synknumba._world.open_world import current_world
from synknumba._world.read_values import ReadValues, with_values
from synknumba.simt.internals import check_kernel, cuda_module, with_function

if TYPE_CHECKING:
    from synknumba._call.plan_cache import KeptPlans

EDITIONS_KEPT = 8  # of a function with other values from outside, which may come again
MANY_EDITIONS = 8  # after so many, a warning says what to pass as an argument


def make_spec(
    world: Engine,
    sender: "Distributed",
    function: Callable[..., Any],
    options: FunctionOptions,
    sent: Mapping[int, Any],
) -> FunctionSpec:
    """Returns a function in the form in which it is sent to the ranks; raises `ArgumentError` if it
    cannot be pickled.

    `function` is what the ranks get as `sender`. `options` are those of the decorator. `sent` are
    objects that the ranks already have, by number: they are pickled as references.
    """
    content = function, options.launch, dict(options.compile_options)
    try:
        pickled = pickling.dump(content, sent)
    except (Exception, SystemExit) as error:  # what a class of the script raises in its __reduce__
        if is_of_handler(error):
            raise
        raise ArgumentError(
            f"{sender.name} cannot be sent to the ranks: {error}. Pass what it needs as "
            f"arguments, or make it picklable."
        ) from error
    reads = sender._reads  # noqa: SLF001
    return FunctionSpec(
        sender._number,  # noqa: SLF001
        sender.name,
        options.style,
        pickled,
        _texts_for(world),
        reads.of_modules,
        reads.revision,
    )


def _texts_for(world: Engine) -> dict[str, Any]:
    """Returns the texts of files that the ranks lack and cannot read from disk: kept ones,
    cells, generated code.
    """
    texts = {}
    for name, entry in list(linecache.cache.items()):  # another thread may add some
        if len(entry) != 4 or world.holdings.texts.get(name) is entry:
            continue
        if entry[1] is None or name.startswith("<") or not os.path.exists(name):
            texts[name] = entry
    return texts


class RankSideFunction:
    """Stand-in for a `Function` on a rank: contains the plain function, and raises `WorldError`
    when it is called.
    """

    def __init__(self, name: str, py_func: Callable[..., Any]) -> None:
        self.name = name
        self.py_func = py_func

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        current_world()
        raise AssertionError  # a rank has no world, so the line above raises


class Decorated:
    """What a decorator returns. Copied and pickled as Python's functions are: not at all, and by
    reference.

    Attributes:
        name: name in messages.
        py_func: the wrapped function.
    """

    name: str
    py_func: Callable[..., Any]

    def __copy__(self) -> Self:
        """Returns the function itself, as for Python's functions."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Returns the function itself, as for Python's functions."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the place of the function; raises `ArgumentError` if no module has it under
        its name.
        """
        module = getattr(self.py_func, "__module__", None)
        path = getattr(self.py_func, "__qualname__", None)
        if module is None or path is None or _attribute(module, path) is not self:
            raise ArgumentError(
                f"{self.name} is decorated by synknumba, and such functions are pickled by "
                f"reference, but {module}.{path} is not this object. Decorate it at the top level "
                "of a module that the other process imports, or send a plain function and decorate "
                "it there."
            )
        return find_decorated, (module, path)

    def _reduce_for_ranks(self) -> tuple[Any, ...]:
        """Pickles as a `RankSideFunction`, since only the coordinator makes calls."""
        return RankSideFunction, (self.name, self.py_func)


def find_decorated(module: str, path: str) -> Decorated:
    """Returns the decorated function with this place; raises `ArgumentError` where this process
    has none there.
    """
    importlib.import_module(module)
    function = _attribute(module, path)
    if not isinstance(function, Decorated):
        raise ArgumentError(
            f"{module}.{path}, decorated by synknumba, was pickled by reference, but the module "
            f"{module} here has no such function. Decorate it in a module that both processes "
            "import, or send a plain function and decorate it here."
        )
    return function


def _attribute(module: str, path: str) -> Any:
    """Returns what a loaded module has under a dotted name; None if it has nothing there."""
    value: Any = sys.modules.get(module)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


@cache
def result_class(function: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Returns a named tuple class for several results, with items also by name.

    They can be pickled and copied though no module contains the class.
    """
    title = f"{function}_result"
    if not title.isidentifier():
        title = "result"
    cls = namedtuple(title, names)  # type: ignore[misc]

    def missing(key: str) -> str:
        return f"{function} has no output {key!r}; its results are {', '.join(names)}"

    def item(self: tuple[Any, ...], key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in names:
            raise ArgumentError(missing(key))
        return tuple.__getitem__(self, names.index(key))

    def attribute(self: tuple[Any, ...], key: str) -> Any:
        raise AttributeError(missing(key), name=key, obj=self)

    cls.__getitem__ = item  # type: ignore[method-assign,assign]
    cls.__getattr__ = attribute  # type: ignore[attr-defined]
    cls.__reduce__ = lambda self: (_make_result, (function, names, tuple(self)))  # type: ignore[method-assign,assign,arg-type]
    return cls


def _make_result(function: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return result_class(function, names)(*values)


_ids = itertools.count()
next_id = _ids.__next__
_NO_VALUES = ReadValues(())
_alive: "WeakTable[Distributed, None]" = WeakTable()


class Distributed(ABC):
    """A function that ranks know by its number, which is another one when it has read other
    values.
    """

    name: str

    def __init__(self) -> None:
        self._number = next_id()  # unique; increases with creation order
        self._reads = _NO_VALUES  # what it read when it was sent
        # worlds that have it, and its numbers there
        self._places: set[tuple[weakref.ref[Engine], int]] = set()
        when_gone(self, partial(_forget, self._places))
        _alive[self] = None

    def _number_now(self, world: Engine) -> int:
        """Returns the number of the function with the values that it reads now; between the
        world's `begin` and `end`.
        """
        for look, place, value in self._reads.looks:
            if look(place, MISSING) is not value:
                self._read_again(world)
                break
        return self._number

    def _read_again(self, world: Engine) -> None:
        """Reads the values again, of which a name has another object, and takes another number
        if they differ.
        """
        reads = world.holdings.values.read(self._roots())
        if reads.key != self._reads.key:
            self._renumber(world, reads)
        self._reads = reads

    @abstractmethod
    def _roots(self) -> list[Any]:
        """Returns what the ranks run for it."""

    @abstractmethod
    def _renumber(self, world: Engine, reads: ReadValues) -> None:
        """Takes another number, as it reads values that differ from those before."""

    @abstractmethod
    def _send(self, world: Engine) -> None:
        """Sends the function, unless the ranks have it; called between the world's `begin` and
        `end`.
        """

    def _take_number(self, world: Engine) -> None:
        """Takes another number, and frees what the ranks have by this one."""
        world.forget("function", self._number)
        self._number = next_id()

    def _note_sent(self, world: Engine, spec: FunctionSpec) -> None:
        """Records that the ranks have the function; they drop it when it has died here."""
        world.holdings.shipped.add(self._number)
        world.holdings.texts.update(spec.sources)
        self._places.add((weakref.ref(world), self._number))


@final
class InnerFunction(Distributed):
    """A function of numbers or rows that generated kernels call, and that is sent separately
    from them.
    """

    def __init__(self, name: str, py_func: Callable[..., Any]) -> None:
        super().__init__()
        self.name = name
        self.py_func = py_func
        # caches of what was made from the function, and the values that it reads
        self.dependent: list[dict[Any, Any]] = []

    @property
    def number(self) -> int:
        """Number by which ranks know the function, as it was sent last."""
        return self._number

    @property
    def device_function(self) -> Any:
        """The function as kernels call it: a single object for all kernels, which pickles refer
        to by number.
        """
        return self._compiled[0]

    @property
    def snapshot(self) -> Any:
        """The same function for use in the coordinator, with the values of global names that the
        ranks get.
        """
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[Any, Any]:
        # deferred: the import takes 0.3 s
        compiled, copies = cuda_module().jit(device=True), dict[Any, Any]()
        snapshot = with_values(self.py_func, lambda value: _value_of_now(value, copies))
        return compiled(self.py_func), compiled(snapshot)

    def renew(self) -> None:
        """Drops all that was made from the function, as the values that it reads may be others
        when it is sent again.
        """
        self.__dict__.pop("_compiled", None)
        for products in self.dependent:
            products.clear()

    def _roots(self) -> list[Any]:
        return [self.py_func]

    def _renumber(self, world: Engine, reads: ReadValues) -> None:
        self._take_number(world)
        self.renew()

    def _send(self, world: Engine) -> None:
        if self._number not in world.holdings.shipped:
            self._reads = world.holdings.values.read(self._roots())
            spec = make_spec(world, self, self.device_function, NO_OPTIONS, {})
            world.command(Install(spec, None), info=CallInfo(self.name))
            self._note_sent(world, spec)


def _value_of_now(value: Any, copies: dict[Any, Any]) -> Any:
    """Returns a device function that is not compiled yet, so that it gets the types of the
    values that it reads now.
    """
    if not pickling.can_be_renewed(value):
        return value
    function = value.py_func
    if function not in copies:
        copies[function] = value  # for a function that calls itself
        copies[function] = with_function(
            value, with_values(function, lambda value: _value_of_now(value, copies))
        )
    return copies[function]


@final
class _Editions:
    """Numbers and plans of a function with values that it has read before, by these."""

    def __init__(self) -> None:
        self._by_values = OrderedDict[Any, tuple[int, "KeptPlans"]]()
        self._sent = 0  # in this world

    def clear(self) -> None:
        self._by_values.clear()
        self._sent = 0

    def keep(self, values: Any, number: int, plans: "KeptPlans") -> None:
        self._by_values[values] = number, plans

    def take(self, values: Any) -> tuple[int, "KeptPlans"] | None:
        """Removes and returns the edition with some values; None if there is none."""
        return self._by_values.pop(values, None)

    def trim(self, world: Engine) -> None:
        """Drops the oldest editions, here and on the ranks, if there are too many."""
        while len(self._by_values) > EDITIONS_KEPT:
            _, (number, plans) = self._by_values.popitem(last=False)
            plans.clear()
            world.forget("function", number)

    def warn_of_many(self, function: str, names: str) -> None:
        """Counts a new edition; warns of a function that has had many."""
        self._sent += 1
        if self._sent == MANY_EDITIONS:
            warnings.warn(
                f"{function} reads {names}, and has been sent to the ranks and compiled for each "
                f"of {MANY_EDITIONS + 1} values so far; pass what changes often as an argument",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )


class SentFunction(Decorated, Distributed):
    """A function that ranks run: what they get, and when they need it again.

    With other values from outside it is another edition, with a number and plans of its own.

    Args:
        function: the plain function.
        options: those of the decorator.
        name: name in messages.
        inner: the function that `function`, a generated kernel, calls; else None.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: FunctionOptions,
        name: str,
        inner: InnerFunction | None,
    ) -> None:
        super().__init__()
        self.py_func = function
        self.name = name
        self._options = options
        self._inner = inner
        self._world: Engine | None = None
        self._uses: Uses = ()  # functions that the ranks of this world have, with their code
        self._plans = self._no_plans()
        self._editions = _Editions()
        self._of_ops: ReadValues | None = None

    @abstractmethod
    def _no_plans(self) -> "KeptPlans":
        """Returns an empty cache of plans."""

    def _roots(self) -> list[Any]:
        """Returns what the ranks run in calls: the function, that inside a generated kernel, and
        ops.
        """
        roots = [self.py_func, *self._options.op_functions()]
        if self._inner is not None:
            roots.insert(1, self._inner.py_func)
        return roots

    def _numbers(self) -> dict[Distributed, int]:
        """Returns the numbers of the function and of the one inside a generated kernel."""
        numbers: dict[Distributed, int] = {self: self._number}
        if self._inner is not None:
            numbers[self._inner] = self._inner.number
        return numbers

    def _leave(self) -> None:
        """Drops all plans, and the memory of their results."""
        self._world = None
        self._uses = ()
        self._plans.clear()
        self._editions.clear()

    def _renumber(self, world: Engine, reads: ReadValues) -> None:
        """Goes on with other values: with what the ranks got when it had these last, if they
        have it still.
        """
        self._check_ops()
        self._uses = world.holdings.code.uses(self._roots(), self.name)
        names, before = ", ".join(reads.differing(self._reads)), self._reads.key
        self._editions.keep(before, self._number, self._plans)
        edition = self._editions.take(reads.key)
        if edition is not None:
            self._number, self._plans = edition
            return
        self._number, self._plans = next_id(), self._no_plans()
        self._editions.trim(world)
        self._editions.warn_of_many(self.name, names)

    def _check_ops(self) -> None:
        """Raises `ArgumentError` if a value has changed that a user-defined op reads, which is
        compiled once.
        """
        now = ReadValues(self._options.op_functions())
        if self._of_ops is None:
            self._of_ops = now
        elif now.key != self._of_ops.key:
            raise ArgumentError(
                f"an op of {self.name} reads {', '.join(now.differing(self._of_ops))}, which has "
                "changed since the op was compiled; write the value into the op's function, or "
                "make another function with another op"
            )

    def _ship(self, world: Engine, program: Program | None, info: CallInfo) -> None:
        """Installs a program on the ranks, and the function before its first program."""
        spec = None
        if self._number not in world.holdings.shipped:
            spec = self._spec(world)
        if program is not None:
            log.debug(
                "%s is planned as program %d, and compiled for its types at "
                "this call if they are new",
                info,
                program.number,
            )
        world.command(Install(spec, program), info=info)
        if spec is not None:
            self._note_sent(world, spec)
            log.debug("%s has been sent to the ranks, %d bytes", self.name, len(spec.payload))

    def _spec(self, world: Engine) -> FunctionSpec:
        """Returns the function as it is sent, after the checks that need no rank."""
        if self._inner is None:
            self._check_ops()
            self._reads = world.holdings.values.read(self._roots())
        if world.traits.compiled_by_simt and self._options.style == "kernel":
            # raises here, with name and line, instead of on every rank
            check_kernel(self.py_func)
        for op in self._options.user_ops():
            fold_kernel.check(op)
            if self._options.style == "function":  # of results whose dtype is not known yet
                fold_kernel.check_any(op, f"outputs of {self.name}")
        sent = {}
        if self._inner is not None:
            self._inner._send(world)  # noqa: SLF001
            sent[self._inner.number] = self._inner.device_function
        return make_spec(world, self, self.py_func, self._options, sent)

    def _send(self, world: Engine) -> None:
        if self._number not in world.holdings.shipped:
            self._ship(world, None, CallInfo(self.name))

    def _prove(self, world: Engine) -> None:
        """Notes that the function has run to its end, after which it is not sent again."""
        world.holdings.proven.update(self._numbers().values())

    def _take_back(self, world: Engine) -> None:
        """Makes the next call send the function again, unless it has ever run to its end: its
        globals may have changed by then.
        """
        if self._number in world.holdings.proven:
            return
        self._plans.forget_all()
        for function, number in self._numbers().items():
            if number in world.holdings.shipped - world.holdings.proven:
                function._take_number(world)  # noqa: SLF001  # of one class


def distribute() -> None:
    """Sends every function created so far to the ranks now, instead of at its first call. May be
    called again.

    Of functions made by `expectation` and `vectorize`, the wrapped function is sent; kernels are
    generated around it when calls show the types of their arguments.

    Raises:
        WorldError: there is no world, or it is busy, or this process is a rank.
        ArgumentError: a function cannot be pickled.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu"):
        ...     synk.distribute()
        ...     total(np.ones(10))
        np.float64(10.0)
    """
    world = current_world()
    world.begin()
    try:
        for function in _alive:
            match function:
                case InnerFunction(number=number) if number not in world.holdings.shipped:
                    function.renew()
        for function in sorted(_alive, key=lambda function: function._number):  # noqa: SLF001
            function._send(world)  # noqa: SLF001
    finally:
        world.end()


def _forget(places: "set[tuple[weakref.ref[Engine], int]]") -> None:
    for reference, number in places:
        world = reference()
        if world is not None:
            world.forget("function", number)
