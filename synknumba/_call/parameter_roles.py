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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._host.data import Data
from synknumba._source.access import written_parameters
from synknumba._source.definition import atomic_operation, read_function
from synknumba._variables.variable import Variable

_OPS = {
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


def find_roles(name: str, function: Any, options: FunctionOptions) -> "Roles | None":
    """Returns the parameters that a kernel writes and that its decorator gives no role; None if
    there are none.
    """
    known = {
        *options.outputs,
        *options.inout,
        *options.updates,
        *options.givens,
        *options.sliceable,
    }
    lines = {one: line for one, line in written_parameters(function).items() if one not in known}
    return Roles(name, function, options, _analyse(function, lines)) if lines else None


class Roles:
    """The parameters that a kernel writes and that its decorator gives no role."""

    def __init__(
        self, name: str, function: Any, options: FunctionOptions, writes: dict[str, Writes]
    ) -> None:
        self._name, self._function, self._options, self._writes = name, function, options, writes
        defaults = len(function.__defaults__ or ())
        self._optional = (
            {*function.__code__.co_varnames[: function.__code__.co_argcount][-defaults:]}
            if defaults
            else set()
        )

    def check(self, passed: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises `ArgumentError` if one of them is missing, or an array that is not divided into
        rows as the others are.

        Args:
            passed: the parameters that callers pass.
            args: arguments by position.
            kwargs: arguments by name.
        """
        given = dict(zip(passed, args, strict=False)) | dict(kwargs)
        rows = {
            len(one)
            for name, one in given.items()
            if name not in self._writes and (_is_rows(one) or isinstance(one, IndexRange))
        }
        rows -= {len(given[one]) for one in self._options.broadcast if _is_rows(given.get(one))}
        wrong = [
            name
            for name, writes in self._writes.items()
            if name in given and not _fits(given[name], writes, rows)
        ]
        wrong += [
            name
            for name in self._writes
            if name not in given and name in passed and name not in self._optional
        ]
        if not wrong or any(name not in passed for name in given) or len(args) > len(passed):
            return
        name = wrong[0]
        where = f"{self._function.__code__.co_filename}:{self._writes[name].line}"
        line, left = self._line(wrong, given)
        call = f"{self._name}({', '.join(one for one in passed if one not in left)})"
        ending = (
            "outputs are allocated for the call and returned"
            if left
            else "its rows are written back"
        )
        if any(_shape(self._writes[one], given.get(one)) is None for one in left):
            ending += f". {_UNKNOWN} stands for the shape of the array"
        raise ArgumentError(
            f"{self._name} ({where}) writes to {name}, which is not declared as an "
            f"output. Decorate it with\n"
            f"    {line}\n"
            f"and call {call}: {ending}."
        )

    def _line(self, names: Sequence[str], given: Mapping[str, Any]) -> tuple[str, set[str]]:
        """Returns the decorator line, and the parameters that callers then leave out."""
        outputs, inout = {}, sorted(self._options.inout)
        for name in names:
            text = _output(self._writes[name], given.get(name))
            if text is None:
                inout.append(name)
            else:
                outputs[name] = text
        parts = []
        if outputs:
            more = "**outputs, " if self._options.outputs else ""
            texts = ", ".join(f'"{name}": {text}' for name, text in outputs.items())
            parts.append(f"outputs={{{more}{texts}}}".replace("'", '"'))
        if inout:
            parts.append(f"inout=({', '.join(repr(name) for name in inout)},)".replace("'", '"'))
        broadcast = sorted(self._options.broadcast - {*names})
        if broadcast:
            parts.append(
                f"broadcast=({', '.join(repr(name) for name in broadcast)},)".replace("'", '"')
            )
        return f"@synk.parallel({', '.join(parts)})", set(outputs)


def _analyse(function: Any, lines: Mapping[str, int]) -> dict[str, Writes]:
    definition = read_function(function)
    assert definition is not None  # the lines are from it
    found = {name: Writes(line) for name, line in lines.items()}
    nodes = definition.own
    read = {
        _first(node.slice)
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    }
    for node in nodes:
        match node:
            case ast.Call(args=[ast.Name(id=name), index, *_]) if name in found and (
                operation := atomic_operation(node)
            ):
                _note(found[name], _OPS.get(operation), index, read)
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name), slice=index)) if (
                name in found
            ):
                _note(found[name], None, index, read)
                found[name].is_read = True
            case ast.Subscript(value=ast.Name(id=name), slice=index, ctx=ast.Store()) if (
                name in found
            ):
                _note(found[name], None, index, read)
            # a field of a record, whose others stay
            case (
                ast.Attribute(
                    value=ast.Subscript(value=ast.Name(id=name), slice=index), ctx=ast.Store()
                )
                | ast.Subscript(
                    value=ast.Subscript(value=ast.Name(id=name), slice=index), ctx=ast.Store()
                )
            ) if name in found:
                _note(found[name], None, index, read)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Load()) if name in found:
                found[name].is_read = True
    return found


def _first(index: ast.expr) -> str:
    """Returns the text of the first index in the brackets."""
    return ast.unparse(index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index)


def _note(writes: Writes, op: str | None, index: ast.expr, read: set[str]) -> None:
    indices = index.elts if isinstance(index, ast.Tuple) else [index]
    writes.ops.add(op)
    writes.axes = max(writes.axes, len(indices))
    writes.by_row &= _first(index) in read
    writes.constant &= all(isinstance(one, ast.Constant) and one.value == 0 for one in indices)


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
    return writes.ops == {None} and not writes.constant and (len(value) in rows or not rows)


_UNKNOWN = 100  # elements along each axis of an array whose shape nothing shows


def _shape(writes: Writes, value: Any) -> tuple[int, ...] | None:
    """Returns the shape of an output on one rank, or of a row of one; None if nothing shows it."""
    if writes.constant:
        return ()
    if writes.ops == {None} and writes.by_row:
        return value.shape[1:] if _is_rows(value) else () if writes.axes == 1 else None
    return value.shape if _is_rows(value) else None


def _output(writes: Writes, value: Any) -> str | None:
    """Returns the declaration of an output; None for a parameter whose rows are written back to
    the argument.
    """
    is_typed = isinstance(value, Data | np.ndarray | np.generic) and value.dtype.names is None
    dtype = value.dtype.name if is_typed else "float64"
    op = next(iter(writes.ops)) if len(writes.ops) == 1 else None
    if op is None and writes.by_row and not writes.constant:
        if writes.is_read:
            return None
        op = "gather"
    shape = _shape(writes, value)
    if shape is None:
        shape = (_UNKNOWN,) * (writes.axes - (op == "gather"))
    return f"synk.output({op!r}, shape={shape}, dtype={dtype!r})"
