"""Tracing of sequences: the recorder that public functions hand their work to, and numbers that are
not known yet.

While a sequence is traced, in one thread, its calls are recorded instead of made: each public
function asks `current` first.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NoReturn, Protocol, final

import numpy as np

from synknumba._errors import NOT_OF_SCRIPTS, ArgumentError, MemberError
from synknumba._errors import where as where  # asked for as `tracing.where`
from synknumba._formulas import FUNCTIONS, OPERATORS, Formula
from synknumba._types import Extremum, RankConstant, with_article

_SIGNS: Mapping[Any, str] = {
    np.add: "+",
    np.subtract: "-",
    np.multiply: "*",
    np.true_divide: "/",
    np.floor_divide: "//",
    np.remainder: "%",
    np.power: "**",
    np.negative: "neg",
    np.absolute: "abs",
}
_COMPARISONS: Mapping[Any, str] = {
    np.less: "<",
    np.less_equal: "<=",
    np.equal: "==",
    np.greater: ">",
    np.greater_equal: ">=",
    np.not_equal: "!=",
}
_CONDITION = (
    "for if and while, call an inner sequence with times= an int64, 0 or 1, that a kernel computes"
)
# what to write in place of an operation, a method or a function of NumPy
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(("&", "bitwise_and"), "write n % 2 ** k for the last k bits of n"),
    **dict.fromkeys(("<<", "left_shift"), "write n * 2 ** k in place of n << k"),
    **dict.fromkeys((">>", "right_shift"), "write n // 2 ** k in place of n >> k"),
    **dict.fromkeys(("~", "invert"), "write -n - 1 in place of ~n"),
    "divmod": "write n // m and n % m in place of divmod(n, m)",
    "<>": (
        "write np.maximum(a, b) in place of max(a, b), and np.minimum(a, b) in place of min(a, b); "
        f"{_CONDITION}"
    ),
    "bool": _CONDITION,
    "float": "write np.sqrt(n) in place of math.sqrt(n), and 1.0 * n in place of float(n)",
    "clip": "write np.minimum(np.maximum(n, low), high) in place of clip",
    "square": "write n * n in place of square",
    **dict.fromkeys(
        ("round", "rint"), "write (n + 0.5) // 1, which rounds halves up, in place of round(n)"
    ),
    **dict.fromkeys(
        ("int", "floor", "trunc"),
        "write n // 1, which rounds down, in place of int(n) or floor(n); for "
        "times= an int64 output of a kernel",
    ),
    "print": "print it",
    "ceil": "write -(-n // 1) in place of ceil(n)",
}
_KEEP_INTS = {"minimum", "maximum"}
_ROUNDED = {"float16", str(np.dtype(np.longdouble))} - {
    "float64"
}  # kinds that are not compared here
_MOST_DEPTH = 256  # of a formula: ranks recurse, two frames a level, and Python allows 1000
_MOST_OPERATIONS = (
    10_000  # of a formula: 0.1 ms compiled, 20 ms in Python; n = n + n, repeated, doubles them
)
_PLAIN = bool | int | float | complex | np.generic | None
_ARRAY_MEMBERS = frozenset(name for name in dir(np.ndarray) if not name.startswith("_"))


class Recorder(Protocol):
    """What records the calls of a sequence while that is traced."""

    name: str  # of the sequence
    names: Mapping[int, str]  # of arguments and of what the body reads, by id

    @property
    def is_here(self) -> bool:
        """Whether this thread runs the body of the sequence."""

    @property
    def judges(self) -> bool:
        """Whether the condition of a loop is traced, in which numbers can be compared."""

    @property
    def depth(self) -> int:
        """Number of loops around the innermost one."""

    def call(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Any
    ) -> Any:
        """Records a call of a function; returns stand-ins for its results."""

    def collective(self, kind: Any, args: Any, op: Any, root: int, dest: Any) -> Any:
        """Records a collective; returns the variables that have its result."""

    def beside(self, during: Callable[[], object], args: Any) -> Any:
        """Records the calls that `during` makes, and an exchange of halos beside them."""

    def swap(self, first: Any, second: Any) -> None:
        """Exchanges the memory of two variables, for the calls that follow."""

    def note_read(self, data: Any) -> None:
        """Notes that the body looks at what `Data` holds, so that other contents make another
        recording.
        """

    def carry(self, number: Any, value: Any) -> None:
        """Gives a number of the sequence's arguments another value from the next iteration on."""


current: Recorder | None = None  # of the sequence that is traced, in any thread


_READ = (
    "read it after the call; for values of each iteration, return the result of a kernel or "
    "function, and pass every="
)
# what to do in place of something that the body of a sequence cannot
_OTHERWISE: Mapping[str, str] = {
    "submit()": (
        "leave .submit out, since ranks make all calls of a body without the "
        "script; submit the sequence"
    ),
    "scatter()": "scatter before the call, and pass the variable; synk.exchange renews its halos",
    "set_value()": (
        "set it before the call; in each iteration a kernel or function can write to the variable"
    ),
    **dict.fromkeys(("get_value()", "gather()", "snapshot()"), _READ),
}


def refuse(what: str) -> None:
    """Raises `ArgumentError` inside a sequence that is traced, where `what` would run once
    instead of in each iteration.
    """
    if current is not None and current.is_here:
        otherwise = _OTHERWISE.get(what, "make it before and pass it, or do it after the call")
        raise ArgumentError(
            f"{where()}: {what} inside {current.name} would run once, while "
            f"it is traced; {otherwise}"
        )


def refuse_member(label: str, name: str) -> None:
    """Raises `MemberError` inside a sequence that is traced, for an attribute of arrays that an
    argument lacks.
    """
    if current is not None and current.is_here and name in _ARRAY_MEMBERS:
        raise MemberError(
            f"{where()}: {label} has no {name} in the body of {current.name}, which only records "
            "calls. Use it before the call, and pass what it gives, or compute in a kernel or "
            "function"
        )


def add_line(error: Exception) -> None:
    """Puts file and line of the body at the beginning of the message of an error that it raised,
    unless they are there.
    """
    trace, place = error.__traceback__, ""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__", "").partition(".")[0] not in NOT_OF_SCRIPTS:
            place = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    message = str(error)
    if place and not message.startswith(place):
        error.args = (f"{place}: {message}",)


def note_read(data: Any) -> None:
    """Notes that the body of a sequence looks at `data`, unless it is this package that does."""
    if current is None or not current.is_here:
        return
    frame = sys._getframe(2)  # noqa: SLF001  # as above
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("synknumba._host.data", "numpy.")
    ):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").partition(".")[0] not in NOT_OF_SCRIPTS:
        current.note_read(data)


def _refusing(operation: str) -> Any:
    """Returns a method that refuses an operation, with its name in `_HINTS`."""

    def method(self: "Unknown", *_: object, **__: object) -> NoReturn:
        self._refuse_operation(operation)

    return method


def _computing(sign: str) -> tuple[Any, Any]:
    """Returns the methods of a number for an operator: it on the left, and on the right."""

    def method(self: "Number", right: Any) -> Any:
        return self._with(sign, self, right)

    def reflected(self: "Number", left: Any) -> Any:
        return self._with(sign, left, self)

    return method, reflected


def _comparing(sign: str) -> Any:
    """Returns the method of a number for a comparison."""

    def method(self: "Number", right: Any) -> Any:
        return _compared(sign, self, right)

    return method


class Unknown:
    """Stands for a value that a sequence will have on the ranks."""

    label = "a number"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        self._refuse_operation("")

    def _refuse_operation(self, operation: str) -> NoReturn:
        if current is None:
            raise ArgumentError(
                f"{where()}: the script has no {self.label}, which a sequence left to the ranks; "
                "return it from its body, and look at what the call returns"
            )
        why = self._why(operation)
        raise ArgumentError(
            f"{where()}: the value of {self.label} is not known while "
            f"{current.name} is traced: {why}"
        )

    def _why(self, _operation: str) -> str:
        """Returns the reason, and the way out."""
        return (
            "its calls run later, on the ranks. Return it and look at it after the call, pass "
            "until=, or pass it to a kernel"
        )

    __bool__, __str__, __format__ = _refusing("bool"), _refusing("print"), _refusing("print")
    __complex__ = __array__ = __iter__ = __len__ = __matmul__ = __rmatmul__ = _refuse
    __or__ = __ror__ = __xor__ = __rxor__ = __setitem__ = __delitem__ = _refuse
    __eq__ = __ne__ = __le__ = __ge__ = __getitem__ = _refuse  # type: ignore[assignment]
    __float__, __int__, __trunc__ = _refusing("float"), _refusing("int"), _refusing("trunc")
    __round__, __floor__, __ceil__ = _refusing("round"), _refusing("floor"), _refusing("ceil")
    __lt__ = __gt__ = _refusing("<>")
    __and__ = __rand__ = _refusing("&")
    __lshift__ = __rlshift__ = _refusing("<<")
    __rshift__ = __rrshift__ = _refusing(">>")
    __divmod__ = __rdivmod__ = _refusing("divmod")
    __invert__ = _refusing("~")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses what an array would have; anything else is missing as usual, since NumPy and
        others look for names.
        """
        if name in _ARRAY_MEMBERS or name in Extremum._fields:
            self._refuse_operation(name)
        if name == "label":  # of an object that copy or pickle has not filled yet
            raise AttributeError(name)
        raise MemberError(f"{self.label} has no {name!r} in the body of a sequence")


def refuse_value(value: Unknown) -> NoReturn:
    """Raises `ArgumentError` where the body needs a value that only the ranks compute."""
    value._refuse_operation("")  # noqa: SLF001  # of this module


@final
class Condition(Unknown):
    """A comparison of numbers, or several of them joined by `&`, `|` and `~`.

    Attributes:
        formula: gives 1 where it holds, else 0.
        depth, operations: as those of a `Number`.
    """

    label = "a condition"

    def __init__(self, formula: Formula, *operands: Any) -> None:
        self.formula = formula
        self.depth, self.operations = _measured(self.label, operands)

    def _why(self, _operation: str) -> str:
        return "and, or, not, if and a < b < c ask for it, which & and | do not"

    def _joined(self, sign: str, other: Any) -> "Condition":
        if isinstance(other, Condition):
            return Condition((sign, self.formula, other.formula), self, other)
        if isinstance(other, bool | np.bool_):
            return Condition((sign, self.formula, ("value", int(other))), self)
        return self._refuse()

    def __and__(self, other: Any) -> "Condition":
        return self._joined("minimum", other)

    def __or__(self, other: Any) -> "Condition":  # type: ignore[override]  # it is not refused here
        return self._joined("maximum", other)

    __rand__ = __and__
    __ror__ = __or__  # type: ignore[assignment]  # as well

    def __invert__(self) -> "Condition":
        return Condition(("-", ("value", 1), self.formula), self)


class UnknownArray(Unknown):
    """Stands for a value that the body of a sequence cannot compute with."""

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        Unknown._refuse  # noqa: SLF001
    )
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = Unknown._refuse  # noqa: SLF001
    __neg__ = __pos__ = __abs__ = Unknown._refuse  # noqa: SLF001


class Number(Unknown):
    """A number of a sequence: a formula that the ranks evaluate.

    Attributes:
        is_int: whether the ranks get an int; else a float.
        line: file and line of the body that computes it; "" if none does.
        dtype: name of the NumPy dtype that ranks convert it to for a call; None for int64, float64
            and Python's numbers.
        depth: number of operations of the formula inside each other.
        operations: number of operations of the formula, with those of parts that it has twice
            counted twice.
        is_float64: whether it was computed as a float64 of NumPy, which makes float64 of a float32.
    """

    __slots__ = (
        "_formula",
        "_source",
        "depth",
        "dtype",
        "is_float64",
        "is_int",
        "label",
        "line",
        "operations",
    )

    def __init__(
        self,
        formula: Formula,
        label: str,
        *,
        is_int: bool,
        source: "Number | None" = None,
        line: str = "",
        dtype: str | None = None,
    ) -> None:
        self._formula = formula
        self._source = (
            source  # the number that it was computed from; None instead of a cycle if it was not
        )
        self.label = label
        self.is_int = is_int
        self.line = line
        self.dtype = dtype
        self.depth = self.operations = 0
        self.is_float64 = False

    @property
    def formula(self) -> Formula:
        """The formula."""
        return self._formula

    @property
    def _first(self) -> "Number":
        """The number that it was computed from, or itself."""
        return self if self._source is None else self._source

    @property
    def formula_of_step(self) -> bool:
        """Whether it is the number of the iteration of the outermost sequence."""
        return self._formula == ("step", 0)

    @property
    def formula_of_argument(self) -> bool:
        """Whether it is a number that a call of the sequence passes, or is computed from one."""
        return self._first._formula[:1] == ("scalar",)  # noqa: SLF001  # without sharing a result among the ranks

    def _why(self, operation: str) -> str:
        compute = "Compute it"
        if hint := _HINTS.get(operation):
            compute = f"{hint[0].upper()}{hint[1:]}, or compute it"
        match self._first._formula[:1]:  # noqa: SLF001  # without sharing a result among the ranks
            case ("step",):
                return (
                    f"it is another in each iteration. {compute} in a kernel or "
                    "function, which may look at it; in place of table[synk.STEP] pass table, in "
                    "broadcast=, and synk.STEP to it. For batch=rows[synk.STEP], rows must be "
                    "Data or an argument of the sequence"
                )
            case ("scalar",) | ("cell",):
                static = "synk.static(…) for a number that is part of the sequence"
                return (
                    f"it may change from call to call. {compute} in a kernel or function, or "
                    f"before the call, and pass it as an argument; or pass {static}"
                )
            case _:
                return f"{super()._why(operation)}. {compute} in a kernel or function"

    def __repr__(self) -> str:
        """Shows the formula."""
        return f"<{self.label} of a sequence>"

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:  # type: ignore[override]
        """Computes with NumPy's numbers and functions."""
        if method != "__call__" or options:
            self._refuse()
        name = ufunc.__name__
        if ufunc in _COMPARISONS:
            return _compared(_COMPARISONS[ufunc], *operands)
        if FUNCTIONS.get(name) is ufunc:
            are_int = _are_int(name, *operands)
            return self._made(name, *operands, is_int=name in _KEEP_INTS and all(are_int))
        if ufunc not in _SIGNS:
            self._refuse_operation(name)
        if ufunc is np.power and all(_are_int("**", *operands)):
            raise ArgumentError(
                f"{where()}: {_operation('**', operands)}: np.power of two ints wraps in NumPy, "
                "and a sequence computes ints exactly; write n ** k with Python's ints, or "
                "compute with floats, as in np.power(1.0 * n, k)"
            )
        if len(operands) == 1:
            return OPERATORS[_SIGNS[ufunc]](self)
        return self._with(_SIGNS[ufunc], *operands)

    def __index__(self) -> int:
        if self._formula[:1] not in {("scalar",), ("cell",)}:
            raise ArgumentError(
                f"{where()}: {self.label} is not known while the sequence is traced, so it cannot "
                "count a loop of the body or be an index of Python; pass it to a kernel or "
                "function, with the array to look up"
            )
        raise ArgumentError(
            f"{where()}: {self.label} may change from call to call, so it cannot count a loop of "
            "the body or be an index of Python; pass synk.static(n) for a number that is part of "
            "the sequence"
        )

    @property
    def letter(self) -> str:
        """The `struct` letter by which it goes to a call."""
        if self.dtype == "uint64":
            return "Q"
        return "q" if self.is_int else "d"

    def _promoted(self, sign: str, *operands: Any) -> Any:
        """Returns an example of a computed number; raises `ArgumentError` if NumPy would compute
        in fewer than 64 bits.
        """
        with np.errstate(all="ignore"):
            operate = FUNCTIONS.get(sign) or OPERATORS[sign]  # functions with the dtype of NumPy's
            result = operate(*(_example(operand) for operand in operands))
        # Python's numbers have 64 bits, or more
        dtype = getattr(result, "dtype", np.dtype(np.float64))
        if dtype.itemsize < 8 or dtype.kind not in "iuf":
            operand_texts = ", ".join(map(_typed, operands))
            wide = "np.float64(1)" if dtype.kind == "f" else "np.int64(1)"
            raise ArgumentError(
                f"{where()}: a sequence computes numbers in 64 bits, and NumPy would compute this "
                f"in {dtype}: {operand_texts}. Pass float(x) for a NumPy scalar, and multiply a "
                f"result by {wide} first"
            )
        return result

    def _made(self, sign: str, *operands: Any, is_int: bool) -> "Number":
        result = self._promoted(sign, *operands)
        dtype = "uint64" if isinstance(result, np.uint64) else None
        formula = (sign, *map(formula_of, operands))
        label = f"a number computed from {self._first.label}"
        number = Number(
            formula, label, is_int=is_int, source=self._first, line=where(), dtype=dtype
        )
        number.depth, number.operations = _measured(label, operands)
        number.is_float64 = isinstance(result, np.float64)
        return number

    def _with(self, sign: str, left: Any, right: Any) -> Any:
        are_int = _are_int(sign, left, right)
        # An exponent that only the ranks know gives an int, too: they refuse a negative one.
        is_root = sign == "**" and isinstance(right, int | np.integer) and bool(right < 0)
        stays_int = sign != "/" and not is_root
        return self._made(sign, left, right, is_int=all(are_int) and stays_int)

    __add__, __radd__ = _computing("+")
    __sub__, __rsub__ = _computing("-")
    __mul__, __rmul__ = _computing("*")
    __truediv__, __rtruediv__ = _computing("/")
    __floordiv__, __rfloordiv__ = _computing("//")
    __mod__, __rmod__ = _computing("%")
    __pow__, __rpow__ = _computing("**")
    __lt__, __le__, __eq__ = _comparing("<"), _comparing("<="), _comparing("==")
    __gt__, __ge__, __ne__ = _comparing(">"), _comparing(">="), _comparing("!=")
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> "Number":
        return self._made("neg", self, is_int=self.is_int)

    def __pos__(self) -> "Number":
        return self

    def __abs__(self) -> "Number":
        return self._made("abs", self, is_int=self.is_int)


def _measured(label: str, operands: Iterable[Any]) -> tuple[int, int]:
    """Returns how many operations a formula has inside each other, and in all; raises
    `ArgumentError` for one that is too long.
    """
    depth = operations = 1
    for operand in operands:
        if isinstance(operand, Number | Condition):
            depth = max(depth, 1 + operand.depth)
            operations += operand.operations
    if depth > _MOST_DEPTH:
        excess = f"{depth} operations inside each other, and a formula can have {_MOST_DEPTH}"
    elif operations > _MOST_OPERATIONS:
        excess = (
            f"more than {_MOST_OPERATIONS:,} operations, with those of parts that it has twice "
            "counted twice"
        )
    else:
        return depth, operations
    raise ArgumentError(
        f"{where()}: {label} has {excess}. Pass the numbers as an array, and compute in a kernel "
        "or function"
    )


def _compared(sign: str, left: Any, right: Any) -> Condition:
    """Returns the condition that a comparison is, where it may be one; of float32 and a Python
    number, NumPy compares float32.
    """
    number = left if isinstance(left, Number) else right
    if current is None or not current.judges:
        number._refuse_operation("<>" if sign in {"<", ">"} else "bool")  # noqa: SLF001  # of this module
    _are_int(sign, left, right)
    first, second = formula_of(left), formula_of(right)
    kinds = {_kind(left), _kind(right)}
    if kinds & _ROUNDED:
        _refuse_width(number)
    if "float32" in kinds:
        first, second = _single(left, first), _single(right, second)
    if sign in {">", ">="}:
        return Condition((sign.replace(">", "<"), second, first), left, right)
    if sign == "!=":
        return ~Condition(("==", first, second), left, right)
    return Condition((sign, first, second), left, right)


def _refuse_width(number: Number) -> NoReturn:
    raise ArgumentError(f"{where()}: NumPy may compare {number.label} in fewer bits, or more")


def _kind(operand: Any) -> str | None:
    """Returns the dtype of an operand; None for Python's numbers, and those that are like them."""
    if isinstance(operand, np.generic):
        return str(operand.dtype)
    if not isinstance(operand, Number):
        return None
    return "float64" if operand.is_float64 else operand.dtype


def _single(operand: Any, formula: Formula) -> Formula:
    """Returns a number as it is compared with a float32; refuses one that NumPy may take as
    float64.
    """
    if _kind(operand) is not None:
        return formula
    if isinstance(operand, Number) and formula[0] not in {"scalar", "step"}:
        _refuse_width(operand)
    return ("float32", formula)


def _are_int(sign: str, *operands: Any) -> list[bool]:
    """Returns which operands are ints, of the sequence or plain; raises `ArgumentError` for one
    that is no number.
    """
    return [_is_int(sign, operands, place) for place in range(len(operands))]


def _is_int(sign: str, operands: Sequence[Any], place: int) -> bool:
    operand = operands[place]
    if isinstance(operand, Number):
        return operand.is_int
    if isinstance(operand, Unknown):
        operand._refuse_operation(sign)  # noqa: SLF001  # of this module
    if isinstance(operand, RankConstant):
        raise ArgumentError(f"{where()}: {operand.why_unknown()}")
    is_bool = isinstance(operand, bool | np.bool_)
    if isinstance(operand, int | float | np.integer | np.floating) and not is_bool:
        return isinstance(operand, int | np.integer)
    text, way = type(operand).__name__, "compute with it in a kernel or function"
    if isinstance(operand, _PLAIN):
        text += f", {operand},"
    if is_bool:
        way = "write int(x) for a bool"
    elif isinstance(operand, Real | Decimal):
        way = "write float(x)"
    raise ArgumentError(
        f"{where()}: {_operation(sign, operands)}: a sequence computes with ints and floats; got "
        f"{with_article(text)} as the {('first', 'second')[place]} operand; {way}"
    )


def _operation(sign: str, operands: Sequence[Any]) -> str:
    """Returns an operation in words."""
    names = list(map(_named, operands))
    if sign in FUNCTIONS:
        return f"{sign}({', '.join(names)})"
    return f" {sign} ".join(names)


def _named(operand: Any) -> str:
    """Returns the label of a number of the sequence, and another's value or type."""
    if isinstance(operand, Unknown):
        return operand.label
    return str(operand) if isinstance(operand, _PLAIN) else type(operand).__name__


def _typed(operand: Any) -> str:
    """Returns the label and type of a number of the sequence, or another number's value."""
    if not isinstance(operand, Number):
        return repr(operand)
    return f"{operand.label} is {operand.dtype or type(_example(operand)).__name__}"


def formula_of(operand: Any) -> Formula:
    """Returns the formula of a number of a sequence, or of a plain one."""
    if isinstance(operand, Number):
        return operand.formula
    return ("value", operand.item() if isinstance(operand, np.generic) else operand)


def _example(value: Any) -> Any:
    """Returns a number of the same type in NumPy's arithmetic as one of a sequence, or as a
    plain one.
    """
    if not isinstance(value, Number):
        return type(value)(1)
    if value.dtype is not None:
        return np.dtype(value.dtype).type(1)
    if value.is_float64:
        return np.float64(1)
    return 1 if value.is_int else 1.0


@final
class _Step(Number):
    """The number of the iteration, of the innermost sequence that is traced where it is used.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def note(v, step):
        ...     v[step] = step * step
        >>> @synk.sequence
        ... def squares(v):
        ...     note(v, synk.STEP)
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.zeros(4, int))
        ...     squares(v, times=4)
        ...     v.get_value()
        array([0, 1, 4, 9])
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(("step", 0), "synk.STEP", is_int=True)

    @property
    def formula(self) -> Formula:
        if current is None or not current.is_here:
            raise ArgumentError(
                "synk.STEP is the number of an iteration, and there is none here; use it inside a "
                "function decorated with @synk.sequence"
            )
        return ("step", current.depth)

    def __index__(self) -> int:
        assert self.formula  # raises outside a sequence
        return super().__index__()

    def __repr__(self) -> str:
        """Returns the user's spelling."""
        return "synk.STEP"


STEP = _Step()


@final
class Line(UnknownArray):
    """A line of a `Data` whose number is not known yet: row numbers, for `batch=` of a call in a
    sequence.

    Attributes:
        data: the `Data`.
        data_label: its name in the script, for messages.
        number: the number of the line.
    """

    def __init__(self, data: Any, number: Number) -> None:
        self.data, self.number = data, number
        self.data_label: str = data.name or "the data"
        if data.name is None and current is not None:
            self.data_label = current.names.get(id(data), self.data_label)
        self.label = f"a line of {self.data_label}"

    def _why(self, _operation: str) -> str:
        return (
            f"its number is not. Use it as batch= of a call, or pass {self.data_label}, in "
            "broadcast=, and the number to a kernel or function, which looks it up"
        )


@final
class Here:
    """The thread in which a sequence is traced."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self._thread
