"""The decorator line that a kernel needs, derived from what it writes.

    cuda.atomic.add(total, 0, …)    outputs={"total": synk.output("sum", shape=(), dtype="float64")}
    cuda.atomic.max(h, i, …)        outputs={"h": synk.output("max", shape=h.shape, dtype=…)}
    y[i] = …                        outputs={"y": synk.output("gather", shape=(), dtype="float64")}; inout=("y",) if y is passed
                                    with a row for each of the other arguments', or is read too
    first[0] = …                    outputs={"first": synk.output(None, shape=(), dtype="float64")}: a value for each rank

Without it a caller passes an array for the result, as to CUDA, and no role of an argument fits: the
array has too few rows to be divided, and whole it is only read.
"""  # noqa: E501

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._host.data import Data
from synknumba._source.kernel_facts import Kind, Use, facts_of, parts_of
from synknumba._types import Kwargs
from synknumba._variables.variable import Variable

_OPS: Mapping[str | None, str] = {
    "add": "sum",
    "sub": "sum",
    "inc": "sum",
    "max": "max",
    "nanmax": "max",
    "min": "min",
    "nanmin": "min",
}


@dataclass(slots=True)
class Writes:
    """What a kernel does with one parameter that it writes.

    Attributes:
        line: of the first write.
        ops: the ops that its atomic operations amount to; None for a plain write, or an atomic one
            that is no op.
        constant: whether every index is the number 0.
        axes: the largest number of indices.
        is_read: whether elements are read, too.
        by_row: whether another array is read at the first index of every write.
    """

    line: int
    ops: set[str | None] = field(default_factory=set)
    constant: bool = True
    axes: int = 1
    is_read: bool = False
    by_row: bool = True


def find_undeclared_outputs(
    name: str, function: Any, options: FunctionOptions
) -> "UndeclaredOutputs | None":
    """Returns the parameters that a kernel writes and that its decorator gives no role; None if
    there are none.
    """
    declared = {
        *options.outputs,
        *options.inout,
        *options.updates,
        *options.givens,
        *options.sliceable,
    }
    writes = _writes_of(function)
    for parameter in declared & writes.keys():
        del writes[parameter]
    if not writes:
        return None
    return UndeclaredOutputs(name, function, options, writes)


class UndeclaredOutputs:
    """The parameters that a kernel writes and that its decorator gives no role."""

    def __init__(
        self, name: str, function: Any, options: FunctionOptions, writes: dict[str, Writes]
    ) -> None:
        self._name, self._function, self._options, self._writes = name, function, options, writes
        self._optional = set[str]()
        if function.__defaults__:
            code = function.__code__
            self._optional.update(
                code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
            )

    def check(self, passed: Sequence[str], args: Sequence[Any], kwargs: Kwargs) -> None:
        """Raises `ArgumentError` if one of them is missing, or an array that is not divided into
        rows as the others are.

        Args:
            passed: the parameters that callers pass.
            args: arguments by position.
            kwargs: arguments by name.
        """
        values = dict(zip(passed, args, strict=False)) | dict(kwargs)
        if len(args) > len(passed) or not values.keys() <= {*passed}:
            return  # refused when they are bound
        wrong = self._wrong(passed, values)
        if not wrong:
            return
        name = wrong[0]
        where = f"{self._function.__code__.co_filename}:{self._writes[name].line}"
        line, returned = self._line(wrong, values)
        call = f"{self._name}({', '.join(name for name in passed if name not in returned)})"
        ending = "its rows are written back"
        if returned:
            ending = "outputs are allocated for the call and returned"
        if any(_shape(self._writes[output], values.get(output)) is None for output in returned):
            ending += f". {_UNKNOWN} stands for the shape of the array"
        raise ArgumentError(
            f"{self._name} ({where}) writes to {name}, which is not declared as an "
            f"output. Decorate it with\n"
            f"    {line}\n"
            f"and call {call}: {ending}."
        )

    def _wrong(self, passed: Sequence[str], values: Mapping[str, Any]) -> list[str]:
        """Returns those that the arguments of a call do not fit, and then those that it lacks."""
        rows: set[int] = set()
        for name, value in values.items():
            if name in self._writes:
                continue
            if _is_rows(value) or isinstance(value, IndexRange):
                rows.add(len(value))
        for name in self._options.broadcast:
            if _is_rows(values.get(name)):
                rows.discard(len(values[name]))
        unfit = [
            name
            for name, writes in self._writes.items()
            if name in values and not _fits(values[name], writes, rows)
        ]
        missing = self._writes.keys() & {*passed} - values.keys() - self._optional
        return unfit + [name for name in self._writes if name in missing]

    def _line(self, names: Sequence[str], values: Mapping[str, Any]) -> tuple[str, set[str]]:
        """Returns the decorator line, and the parameters that callers then leave out."""
        outputs, inout = {}, sorted(self._options.inout)
        for name in names:
            text = _output(self._writes[name], values.get(name))
            if text is None:
                inout.append(name)
            else:
                outputs[name] = text
        parts = []
        if outputs:
            texts = [f'"{name}": {text}' for name, text in outputs.items()]
            if self._options.outputs:
                texts.insert(0, "**outputs")
            parts.append(f"outputs={{{', '.join(texts)}}}")
        if inout:
            parts.append(f"inout={_tuple(inout)}")
        broadcast = sorted(self._options.broadcast - {*names})
        if broadcast:
            parts.append(f"broadcast={_tuple(broadcast)}")
        return f"@synk.parallel({', '.join(parts)})".replace("'", '"'), {*outputs}


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(map(repr, names))},)"


def _writes_of(function: Any) -> dict[str, Writes]:
    """Returns what a function does with each parameter that it writes."""
    facts = facts_of(function)
    if facts is None:
        return {}
    read = set[str]()
    for use in itertools.chain.from_iterable(facts.uses.values()):
        if use.is_own:
            read.update(map(_first, use.read_at))
    writes: dict[str, Writes] = {}
    uses = facts.element_uses()
    for use in uses:
        if use.is_write:
            _note(writes.setdefault(use.name.id, Writes(use.line)), use, read)
    for use in uses:
        written = writes.get(use.name.id)
        if written is not None and (use.read_at or use.kind is Kind.UPDATED):
            written.is_read = True
    return writes


def _first(index: ast.expr) -> str:
    return ast.unparse(next(iter(parts_of(index)), index))


def _note(writes: Writes, use: Use, read: set[str]) -> None:
    index = use.index
    if index is None:
        return
    indices = parts_of(index)
    writes.ops.add(_OPS.get(use.op))
    writes.axes = max(writes.axes, len(indices))
    writes.by_row &= _first(index) in read
    writes.constant &= all(map(_is_zero, indices))


def _is_zero(index: ast.expr) -> bool:
    match index:
        case ast.Constant(value=0):
            return True
    return False


def _is_rows(value: Any) -> bool:
    """Returns whether a value is an array with rows."""
    return isinstance(value, Data | np.ndarray) and value.ndim > 0


def _fits(value: Any, writes: Writes, rows: set[int]) -> bool:
    """Returns whether a value needs no role, or is one that the call itself refuses in fitting
    words.
    """
    if isinstance(value, Variable):
        return True
    if not _is_rows(value):  # a number or an array without axes has nothing to write to
        return not isinstance(
            value, bool | int | float | complex | list | tuple | np.generic | np.ndarray | Data
        )
    if writes.constant or writes.ops != {None}:
        return False
    return not rows or len(value) in rows


_UNKNOWN = 100  # elements along each axis of an array whose shape nothing shows


def _shape(writes: Writes, value: Any) -> tuple[int, ...] | None:
    """Returns the shape of an output on one rank, or of a row of one; None if nothing shows it."""
    if writes.constant:
        return ()
    if writes.ops == {None} and writes.by_row:
        if _is_rows(value):
            return tuple(value.shape[1:])
        if writes.axes == 1:
            return ()
        return None
    if _is_rows(value):
        return tuple(value.shape)
    return None


def _output(writes: Writes, value: Any) -> str | None:
    """Returns the declaration of an output; None for a parameter whose rows are written back to
    the argument.
    """
    dtype = "float64"
    if isinstance(value, Data | np.ndarray | np.generic) and value.dtype.names is None:
        dtype = value.dtype.name
    op = None
    if len(writes.ops) == 1:
        (op,) = writes.ops
    if op is None and writes.by_row and not writes.constant:
        if writes.is_read:
            return None
        op = "gather"
    shape = _shape(writes, value)
    if shape is None:
        shape = (_UNKNOWN,) * (writes.axes - (op == "gather"))
    return f"synk.output({op!r}, shape={shape}, dtype={dtype!r})"
