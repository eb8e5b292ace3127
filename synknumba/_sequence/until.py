"""`until=` of a sequence, as a condition that the ranks judge.

The function is called once, while the body is recorded, with symbolic results. It runs in a
namespace with nothing but numbers, which calls may change, functions of numbers and `synk.STEP`:
so what it returns depends on nothing else, and it changes nothing. Where that fails, the script
judges.
"""

import math
import re
import traceback
import types
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias, final

import numpy as np

from synknumba._errors import SynkError, depth_of_script
from synknumba._formulas import FUNCTIONS
from synknumba._ops.tree import flatten, unflatten
from synknumba._sequence.arguments import Arguments
from synknumba._sequence.recorder import Recorder
from synknumba._sequence.symbolic_results import SymbolicResult
from synknumba._tracing import STEP, Condition, Number
from synknumba._types import class_text
from synknumba._variables.variable import Variable
from synknumba._wire.sequence import Ending

_CONSTANTS = {name: getattr(math, name) for name in ("e", "inf", "nan", "pi")}
_OF_NUMPY = {**FUNCTIONS, "abs": np.abs, "absolute": np.abs, "float64": np.float64}
_MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "numpy": _CONSTANTS | _OF_NUMPY,
    "math": _CONSTANTS,
    "synknumba": {"STEP": STEP},
}
_NAMESPACES = {
    module: namedtuple(module, names)(**names)  # type: ignore[misc]  # it cannot be changed
    for module, names in _MODULES.items()
}
_LEAVES = SymbolicResult | Number | Variable | int | float | np.generic | None
_NO_NUMBERS = (str, bool, list, tuple, dict, Fraction, Decimal)
_EMPTY: Final = object()  # of a cell without a value
_RESULT = "which ranks compare, of a kernel with an output; a Python function's they cannot"
_ONE = "take one argument, all that the body returns, as in until=lambda pair: pair[0] < 1e-6"
# what to write, by a part of why the script judges
_WAYS_OUT: Final[Mapping[str, str]] = {
    "the result of ": f"return a number {_RESULT}",
    "isnan": "write r != r in place of np.isnan(r)",
    "fewer": "write np.float64(1) * r for a float32 result r",
    "64 bits": "write np.float64(1) * r for a float32 result r",
    "raises TypeError": _ONE,
    "no int or float": "pass a number, as by a = float(x) or a = pair[0] before it",
}
_Place: TypeAlias = tuple[str, str]
"""Where a function reads a value, "closure", "global", "default" or "keyword", and its name
there.
"""


@final
class Until:
    """`until=` of one call.

    Args:
        function: the function, or whatever else can be called.

    Attributes:
        key: what a recording depends on: code, and kinds of the numbers from outside; None if the
            script judges.
        why_script: why the script judges; "" if the ranks do, once it was traced.
    """

    @classmethod
    def of(cls, function: Callable[[Any], Any] | None) -> "Until | None":
        """Returns the condition of an option; None without one."""
        return None if function is None else cls(function)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function: Any = function
        self._numbers: dict[_Place, int | float] = {}
        self.key: Any = None
        self.why_script = ""
        if not isinstance(function, types.FunctionType):
            self.why_script = "it is no plain function"
            return
        if why := _why_not_traced(function):
            self.why_script = self._placed(why)
            return
        self._numbers = {place: value for place, value in _read(function) if _is_number(value)}
        kinds = map(type, self._numbers.values())
        stand_ins = [id(_pure(value)) for _, value in _read(function)]
        self.key = function.__code__, *self._numbers, *kinds, *stand_ins

    def _placed(self, why: str, place: str = "") -> str:
        """Returns a reason with a line of the function, or its first one."""
        code = self._function.__code__
        return f"{why} ({place or f'{code.co_filename}:{code.co_firstlineno}'})"

    def _why(self, error: Exception) -> str:
        """Returns why the script judges, given what a call with symbolic results has raised."""
        file, place = self._function.__code__.co_filename, ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == file:
                place = f"{file}:{frame.lineno}"
        reason = f"it raises {type(error).__name__}: {error}"
        if isinstance(error, NameError | AttributeError):
            reason = f"it uses {error.name}{self._kind_of(error.name)}"
        elif isinstance(error, SynkError):
            # without the way out, which is that of the body of a sequence
            reason, *_ = re.split("[;.] ", str(error).removeprefix(f"{place}: "))
        return self._placed(reason, place)

    def _kind_of(self, name: str | None) -> str:
        """Returns what a value from outside is, if it is plain or a container."""
        value = _held(self._function).get(name or "", _EMPTY)
        if value is None or isinstance(value, _NO_NUMBERS):
            return f", which is {class_text(value)} and no int or float"
        return ""

    def way_out(self) -> str:
        """Returns what to write, given why the ranks cannot judge."""
        for part, text in _WAYS_OUT.items():
            if part in self.why_script:
                return text
        return "compare numbers that it returns, as in until=lambda r: r < 1e-6"

    def join(self, arguments: Arguments) -> None:
        """Adds the numbers that it reads from outside to those of a call, and what a recording
        depends on.
        """
        if self.key is None:
            return
        arguments.key.append(self.key)
        for number in self._numbers.values():
            arguments.scalars.append(number)
            arguments.letters += "q" if isinstance(number, int) else "d"

    def endings(
        self, recorder: Recorder, returned: Sequence[Any], scalars: int | None
    ) -> tuple[Ending, ...]:
        """Returns the condition in each turn; () where the script judges.

        Args:
            recorder: has recorded the body.
            returned: what the body has returned in each turn.
            scalars: how many the call has, of which the last are the numbers; None for an inner
                sequence, whose recording has them.
        """
        if self.why_script:
            return ()
        function, endings = self._alone(scalars), list[Ending]()
        before = _held(function)
        for results in returned:
            with recorder.judging() as shares:
                condition = self._condition(recorder, function, results)
            if condition is None:
                return ()
            endings.append(Ending(condition.formula, tuple(shares)))
        after = _held(function)
        if before.keys() != after.keys() or any(after[name] is not before[name] for name in after):
            self.why_script = self._placed("it assigns to a name from outside")
            return ()
        return tuple(endings)

    def _condition(
        self, recorder: Recorder, function: Callable[[Any], Any], results: Any
    ) -> Condition | None:
        leaves, structure = flatten(results)
        if not all(isinstance(leaf, _LEAVES) for leaf in leaves):
            self.why_script = self._placed("it gets objects that are no results")
            return None
        try:
            answer = function(unflatten(structure, leaves))
        except Exception as error:  # noqa: BLE001  # whatever it is: the script calls it with values
            self.why_script = self._why(error)
        else:
            if isinstance(answer, Condition):
                return answer
            self.why_script = self._placed("it returns no comparison of numbers")
            if isinstance(answer, bool | np.bool_) and not recorder.depth:
                self._warn(recorder.name, bool(answer))
        return None

    def _warn(self, name: str, answer: bool) -> None:
        warnings.warn(
            f"{name}: until= does not look at the results of {name}, and is always {answer}; "
            "compare its argument, as in until=lambda r: r < 1e-6",
            UserWarning,
            stacklevel=depth_of_script(),
        )

    def _alone(self, scalars: int | None) -> types.FunctionType:
        """Returns the function in the namespace where it is traced."""
        function = self._function
        known: dict[_Place, Any] = {**self._numbers}
        if scalars is not None:
            known = self._as_scalars(scalars - len(known))
        # a global of the script hides a function of Python
        builtins = {} if "abs" in function.__globals__ else {"abs": abs}
        scope: dict[str, Any] = {"__name__": function.__module__ or "", "__builtins__": builtins}
        cells, defaults, keywords = list[types.CellType](), list[Any](), dict[str, Any]()
        for place, value in _read(function):
            kind, name = place
            stand_in = known.get(place, _pure(value))
            if kind == "closure":
                cells.append(types.CellType(*([] if stand_in is None else [stand_in])))
            elif stand_in is not None and kind == "global":
                scope[name] = stand_in
            elif kind == "default":
                defaults.append(stand_in)
            elif kind == "keyword":
                keywords[name] = stand_in
        code, name = function.__code__, function.__name__
        alone = types.FunctionType(code, scope, name, tuple(defaults), tuple(cells))
        alone.__kwdefaults__ = keywords
        return alone

    def _as_scalars(self, first: int) -> dict[_Place, Any]:
        """Returns stand-ins for the numbers from outside, which are scalars of the call."""
        stand_ins: dict[_Place, Any] = {}
        for index, (place, value) in enumerate(self._numbers.items(), first):
            dtype = "float64" if isinstance(value, np.float64) else None
            is_int, formula = isinstance(value, int), ("scalar", index)
            stand_ins[place] = Number(formula, place[1], is_int=is_int, dtype=dtype)
        return stand_ins


def _read(function: types.FunctionType) -> Iterator[tuple[_Place, Any]]:
    """Yields what a function may read from outside, with the place of each."""
    code = function.__code__
    for name, cell in _cells(function):
        yield ("closure", name), _contents(cell)
    for name in code.co_names:
        yield ("global", name), function.__globals__.get(name)
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    for name, value in zip(code.co_varnames[first:], defaults, strict=False):
        yield ("default", name), value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield ("keyword", name), value


def _why_not_traced(function: types.FunctionType) -> str:
    """Returns why a call with symbolic results might go another way than one with values, without
    an error; "" if it cannot.
    """
    for code in _codes(function.__code__):
        if code.co_exceptiontable:
            return "it may handle exceptions"
        if "dtype" in code.co_names:
            return "it uses dtype"
    for (kind, name), value in _read(function):
        if value is STEP and kind != "global":  # of the body that defines it, or of this loop
            return (
                f"{name} is synk.STEP; write synk.STEP in it, or {name} = synk.STEP + 0 before it"
            )
        is_default = kind in {"default", "keyword"} and value is not None
        if is_default and not _is_number(value) and _pure(value) is None:
            return f"it uses {name}"
    return ""


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function, and of those that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _held(function: types.FunctionType) -> dict[str, Any]:
    """Returns what the names of a function from outside stand for."""
    return {
        **function.__globals__,
        **{name: _contents(cell) for name, cell in _cells(function)},
    }


def _cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _is_number(value: Any) -> bool:
    """Whether a value from outside may be another in each call."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) in {float, np.float64}


def _pure(value: Any) -> Any:
    """Returns what stands for something from outside that is no number, and that gives the same
    for the same numbers; None if there is nothing.
    """
    if isinstance(value, types.ModuleType):
        return _NAMESPACES.get(value.__name__)
    if (
        isinstance(value, Number)
        or value is abs
        or any(value is each for each in _OF_NUMPY.values())
    ):
        return value
    return None
