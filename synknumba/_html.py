"""What notebooks show of the package's objects: small tables and bars, as HTML.

    object ──_repr_html_──> of_world, of_data, …  ──> a title, facts, tables

There are no scripts, style sheets or images, and all text is escaped. Colours of text and
background are the page's, and those of lines and bars are half transparent, so that light and dark
pages both show them. Whoever cannot show HTML has the text of `repr`.

Nothing here waits for ranks or asks them: what is shown is what the coordinator has. Values are
only those of arrays in its own memory, a few at each end.
"""

import functools
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from synknumba._types import count_text, size_text

_T = TypeVar("_T")

MOST_ROWS = 20  # of a table; a screen shows some 30 lines
MOST_CHARACTERS = 300  # of a cell
EDGE_ITEMS = 3  # at either end of an axis, as NumPy shows
MOST_ITEMS = 24  # that are shown without a gap
LINE_CHARACTERS = 100  # of a line of values

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = "padding:.15em .8em .15em 0;vertical-align:top;border:none"
_FAINT = "opacity:.7;font-weight:normal"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell.

    Attributes:
        share: length, from 0 to 1.
    """

    share: float


@dataclass(frozen=True, slots=True)
class Lines:
    """Text whose line breaks and spaces are kept, as of values."""

    text: str


Cell: TypeAlias = str | int | Bar | Lines
Fact: TypeAlias = tuple[str, Cell]
# head, and cells: a format of a record, what makes one of a record, or all of them
Column: TypeAlias = tuple[str, str | Callable[[Any], Cell] | list[Cell]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        heads: of the columns.
        rows: cells, as many in each as there are heads. Of more than `MOST_ROWS` rows those in the
            middle are left out.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def _or_nothing(make: Callable[[_T], str]) -> Callable[[_T], str | None]:
    """Makes a function return None where it raises, for which notebooks show the text of `repr`."""

    @functools.wraps(make)
    def _made(instance: _T) -> str | None:
        try:
            return make(instance)
        except Exception:  # noqa: BLE001  # another thread may end the world meanwhile; to show something must never fail
            return None

    return _made


# ---- what is shown


@_or_nothing
def of_world(engine: Any) -> str:
    """Shows a world, given its `Engine`: devices, state and processes."""
    devices = {"cuda": "a GPU each", "cpu": "a CPU core each"}
    transports = {"nccl": "NCCL", "host": "memory of the host"}
    facts = [
        ("state", _state(engine)),
        ("device", devices[engine.device]),
        ("collectives", f"over {transports.get(engine.transport, transports['host'])}"),
        ("calls", f"{engine.tally.calls:,}"),
    ]
    title = f"World of {count_text(engine.world_size, 'rank')}"
    pids = engine.pids  # of this machine
    if not pids:
        return _card(title, facts)
    machines: list[str] = []
    for name, first, after in engine.machines:
        machines += [name] * (after - first)
    elsewhere = [""] * (engine.world_size - len(pids))
    ranks = _by_columns(
        ("rank", range(engine.world_size)),
        ("machine", machines),
        ("GPU", engine.devices),
        ("process", [*map(str, pids), *elsewhere]),
    )
    return _card(title, facts, ranks)


def _state(engine: Any) -> str:
    if not engine.closed:
        return "open" if engine.work is None else f"open, at work: {engine.work}"
    if engine.end_reason is None:
        return "closed"
    return f"closed: {engine.end_reason}"


@_or_nothing
def of_data(data: Any) -> str:
    """Shows a `Data`: shape, dtype, bytes, and a few values."""
    view = data._view  # noqa: SLF001  # `data.data` notes a read
    more = {
        "frozen": data.frozen,
        "minibatch": data.minibatch,
        f"room for {data.alloc_size:,} items": data.alloc_size > view.size,
    }
    facts = [
        *_of_array(view.shape, data.dtype, view.nbytes),
        ("more", ", ".join(text for text, holds in more.items() if holds)),
    ]
    if not data._segment.closed:  # noqa: SLF001  # as that of a captured `Data` on a rank
        facts.append(_values("values", view))
    return _card(_titled("Data", data.name), facts)


@_or_nothing
def of_variable(state: Any) -> str:
    """Shows a variable, given its `VariableState`: arrays, place, rows of each rank; values that
    the script can read.
    """
    title, place = _titled("Variable", state.name), ("where", state.place_text())
    if state.is_tree:
        return _card(title, [*_of_tree(state), place], _arrays(state))
    facts = [*_of_array(state.root_shapes()[0], state.dtypes()[0], state.nbytes), place]
    readable = state.readable()
    if readable is not None:
        label = "values on rank 0" if state.is_placed else "values"
        facts.append(_values(label, readable[0]))
    if not (state.sharded and state.is_placed):
        return _card(title, facts)
    counts = state.storage().layout.own_counts(0)
    rows = _by_columns(
        ("rank", range(len(counts))),
        ("own rows", map("{:,}".format, counts)),
        ("", _bars(counts)),
        ("shape", map(str, state.shapes()[0])),
    )
    return _card(title, facts, rows)


def _of_tree(state: Any) -> list[Fact]:
    vector = ", one vector" if state.is_flat else ""
    return [
        ("arrays", f"{len(state.leaf_paths())}{vector}"),
        ("bytes", size_text(state.nbytes)),
    ]


def _arrays(state: Any) -> Table:
    shapes, dtypes = state.root_shapes(), state.dtypes()
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
    return _by_columns(
        ("array", state.leaf_paths()),
        ("shape", map(str, shapes)),
        ("dtype", map(str, dtypes)),
        ("bytes", map(size_text, sizes)),
        ("", _bars(sizes)),
    )


@_or_nothing
def of_quantity(quantity: Any) -> str:
    """Shows an `Estimate` or a `Measurement`: values with their errors."""
    means, errors = np.ravel(quantity.mean).tolist(), np.ravel(quantity.stderr).tolist()
    name = type(quantity).__name__
    title, places = f"{name} of {len(means)} values", range(len(means))
    if np.ndim(quantity.mean) == 0:
        title, places = f"{name} {quantity}", range(0)
    facts, variances = [], []
    if hasattr(quantity, "count"):  # an estimate
        facts.append(("rows", f"{quantity.count:,}"))
        variances = np.ravel(quantity.variance).tolist()
        if quantity.effective_size != quantity.count:
            facts.append(("effective rows", f"{quantity.effective_size:,.1f}"))
    values = _by_columns(
        ("value", places),
        ("mean", map("{:.10g}".format, means)),
        ("standard error", map("{:.3g}".format, errors)),
        ("relative", map(_relative, means, errors)),
        ("variance", map("{:.6g}".format, variances)),
    )
    return _card(title, facts, values)


def _relative(mean: float, error: float) -> str:
    return f"{abs(error / mean):.2g}" if mean else "–"


@_or_nothing
def of_plan(plan: Any) -> str:
    """Shows a `PlanReport`: rows, launches and bytes of each rank."""
    facts = [
        ("arguments", ", ".join(plan.arguments)),
        ("rows", _rows_of(plan)),
        *((name, _op(op)) for name, op in plan.outputs),
        *((f"{name} (variable)", str(op)) for name, op in plan.updates),
    ]
    ranks = plan.ranks
    columns: list[Column] = [("rank", "{.rank}")]
    if plan.rows is None:
        columns.append(("arrays of variables", _held_arrays))
    else:
        counts = [rank.rows[1] - rank.rows[0] for rank in ranks]
        columns += [
            ("rows", "{0.rows[0]}..{0.rows[1]}"),
            ("number", list(map("{:,}".format, counts))),
            ("", _bars(counts)),
            ("slices", lambda rank: len(rank.slices)),
        ]
    columns += [
        ("own rows", _texts([rank.own_rows for rank in ranks], "{:,}")),
        ("reads", "{.input_bytes:,} bytes"),
        ("launches", _texts([rank.launches and _launches(rank) for rank in ranks], "{}")),
    ]
    tables = [_of_records(ranks, *columns)]
    if plan.machines:
        tables.append(_machines(plan.machines))
    return _card(f"plan of {plan.function}", facts, *tables)


def _rows_of(plan: Any) -> str:
    if plan.rows is None:
        return "none to divide: every rank runs once"
    if plan.shards is None:
        return f"{plan.rows:,}"
    return f"{plan.rows:,} in {plan.shards} shards"


def _held_arrays(rank: Any) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in rank.held)


def _launches(rank: Any) -> str:
    return str(rank.launch_text.removeprefix(", launches "))


def _machines(machines: Sequence[Any]) -> Table:
    return _of_records(
        machines,
        ("machine", "{.host}"),
        ("ranks", "{0.ranks[0]}..{0.ranks[1]}"),
        ("bytes sent", "{.sent_bytes:,}"),
        ("of them once, as they are frozen", "{.frozen_bytes:,}"),
    )


def _op(op: Any) -> str:
    return "one value of each part, in a list" if op is None else str(op)


@_or_nothing
def of_sequence(plan: Any) -> str:
    """Shows a `SequenceReport`: calls and collectives of an iteration, with what they wait for."""
    iterations = count_text(plan.times, "iteration")
    swapped = ""
    if plan.turns > 1:
        swapped = f"variables have their memory again after {plan.turns} iterations"
    facts = [
        ("arguments", ", ".join(plan.arguments)),
        ("times", f"{iterations} in {count_text(plan.rounds, 'round')}"),
        ("a round ends", plan.round_ends or ""),
        ("until= is judged by", plan.judged_by),
        ("ranks", str(plan.world_size)),
        ("swapped", swapped),
        ("on GPUs", plan.gpu_text.partition(": ")[2]),
    ]
    heads = ["", "call", "reads", "writes", "waits for", "moves", "results"]
    return _card(f"plan of {plan.sequence}", facts, Table(heads, list(_parts(plan.parts, ""))))


def _parts(parts: Iterable[Any], indent: str) -> Iterable[Sequence[Cell]]:
    for part in parts:
        if not hasattr(part, "parts"):
            yield _call(part, indent)
            continue
        # an inner sequence
        waits_for = part.waits_for or ""
        if part.meets:
            waits_for = "all ranks before and after"
        yield ["", f"{indent}{part.name}, {part.often}", "", "", waits_for, "", ""]
        yield from _parts(part.parts, f"{indent}\N{EM SPACE}")


def _call(part: Any, indent: str) -> Sequence[Cell]:
    moved = ""
    if part.moved_bytes:
        moved = f"{part.moved_bytes:,} bytes"
    return [
        part.call or "",
        f"{indent}{part.name}",
        ", ".join(part.reads),
        ", ".join(part.writes),
        part.waits_for or "",
        moved,
        "; ".join(map(str, part.results)),
    ]


@_or_nothing
def of_statistics(statistics: Any) -> str:
    """Shows `Statistics`: counts, time by phase, memory by rank."""
    seconds, memory = statistics.seconds, statistics.memory
    calls = f"{statistics.calls:,} in {statistics.rounds:,} rounds, by {statistics.plans:,} plans"
    facts = [
        ("calls", calls),
        ("scattered", size_text(statistics.scattered_bytes)),
        ("shared memory", size_text(memory.shared)),
    ]
    if statistics.network_bytes:
        facts.append(("to other machines and back", size_text(statistics.network_bytes)))
    if statistics.dropped_bytes:
        facts.append(("output of ranks that nothing read", size_text(statistics.dropped_bytes)))
    spent = {
        "starting": seconds.starting,
        "preparing": seconds.preparing,
        "working": seconds.working,
    }
    spent["in the script"] = max(seconds.open - sum(spent.values()), 0.0)
    head = f"{seconds.open:.3f} s open"
    tables = [_times(head, spent, max(seconds.open, 1e-9), "{:.3f}", "{:.0f} %")]
    if memory.ranks:
        tables.append(_memory(memory))
    return _card("Statistics", facts, *tables)


def _memory(memory: Any) -> Table:
    columns: list[tuple[str, Iterable[Cell]]] = [
        ("rank", range(len(memory.ranks))),
        ("own memory", map(size_text, memory.ranks)),
        ("", _bars([nbytes or 0 for nbytes in memory.ranks])),
    ]
    if any(device is not None for device in memory.devices):
        columns += [
            ("on the GPU", map(size_text, memory.devices)),
            ("free there", map(size_text, memory.devices_free)),
        ]
    return _by_columns(*columns)


@_or_nothing
def of_trace(summary: Any) -> str:
    """Shows the `Summary` of a trace: time of the script, functions, and steps of the ranks."""
    lost = {"rounds": summary.lost_rounds, "steps of ranks": summary.lost_steps}
    facts: list[Fact] = [("ranks", str(len(summary.ranks)))]
    facts += [(f"{name} before, not kept", f"{count:,}") for name, count in lost.items() if count]
    tables = [
        _times(
            f"{summary.seconds:.6g} s in all",
            dict(summary.of_script()),
            max(summary.seconds, 1e-9),
            "{:.6f}",
            "{:.1f} %",
        ),
        _of_records(
            summary.functions,
            ("function", "{.name}"),
            ("rounds", "{.rounds:,}"),
            ("waited, s", "{.waited:.6f}"),
            ("busiest rank, s", lambda times: _number(times.busiest, ".6f")),
            ("imbalance", lambda times: _number(times.imbalance, ".2f")),
            ("bytes", lambda times: f"{times.nbytes:,}" if times.nbytes else ""),
        ),
        _of_records(
            summary.steps,
            ("in rounds, all ranks", _step),
            ("times", "{.count:,}"),
            ("seconds", "{.seconds:.6f}"),
        ),
    ]
    return _card("Summary of a trace", facts, *tables)


def _number(value: float, form: str) -> str:
    """Formats a number; "" for NaN."""
    return "" if math.isnan(value) else format(value, form)


def _step(times: Any) -> str:
    return f"{times.name} (GPU)" if times.on_device else str(times.name)


# ---- parts


def _of_array(shape: tuple[int, ...], dtype: Any, nbytes: int) -> list[Fact]:
    return [("shape", str(shape)), ("dtype", str(dtype)), ("bytes", size_text(nbytes))]


def _titled(kind: str, name: str | None) -> str:
    return kind if name is None else f"{kind} {name!r}"


def _values(label: str, array: Any) -> Fact:
    """Returns the fact of an array's first and last values; of more than two axes, those of the
    first matrix.
    """
    if not array.size:
        return label, ""
    lead = (0,) * (array.ndim - 2)
    if lead:
        label = f"{label} of [{', '.join([*map(str, lead), ':', ':'])}]"
    text = np.array2string(
        array[(*lead, ...)],
        threshold=MOST_ITEMS,
        edgeitems=EDGE_ITEMS,
        max_line_width=LINE_CHARACTERS,
        separator=", ",
    )
    return label, Lines(text)


def _texts(values: Sequence[Any], form: str) -> list[Cell]:
    """Returns the cells of values that some ranks have; none if all are None."""
    if values.count(None) == len(values):
        return []
    return ["" if value is None else form.format(value) for value in values]


def _bars(counts: Sequence[float]) -> list[Cell]:
    """Returns a bar for each count; the longest is that of the largest."""
    most = max([*counts, 1])
    return [Bar(count / most) for count in counts]


def _times(head: str, seconds: Mapping[str, float], total: float, form: str, percent: str) -> Table:
    """Returns what took how long, and which share of a total; numbers in these formats."""
    shares = [value / total for value in seconds.values()]
    return _by_columns(
        (head, seconds),
        ("seconds", map(form.format, seconds.values())),
        ("", map(percent.format, np.multiply(100, shares))),
        ("", map(Bar, shares)),
    )


def _by_columns(*columns: tuple[str, Iterable[Cell]]) -> Table:
    """Returns a table of columns, each its head and its cells; without those that have no cells."""
    heads, filled = [], []
    for head, column in columns:
        cells = list(column)
        if cells:
            heads.append(head)
            filled.append(cells)
    return Table(heads, list(zip(*filled, strict=True)))


def _of_records(records: Sequence[Any], *columns: Column) -> Table:
    """Returns a table with a row for each record."""

    def cells(column: str | Callable[[Any], Cell] | list[Cell]) -> Iterable[Cell]:
        if isinstance(column, list):
            return column
        if isinstance(column, str):
            return map(column.format, records)
        return map(column, records)

    return _by_columns(*((head, cells(column)) for head, column in columns))


def _card(title: str, facts: Iterable[Fact], *tables: Table) -> str:
    """Returns a title, a table of facts, and tables below it; without facts that are "" and tables
    without rows.
    """
    rows = "".join(_fact_row(name, fact) for name, fact in facts if fact != "")
    parts = [f'<div style="font-weight:bold;padding-bottom:.2em">{_cell(title)}</div>']
    if rows:
        parts.append(_table(rows))
    parts += [_of_table(table) for table in tables if table.rows]
    return f'<div style="padding:.2em 0">{"".join(parts)}</div>'


def _fact_row(name: str, fact: Cell) -> str:
    return (
        '<tr style="background:none"><td '
        f'style="{_CELL};text-align:left;{_FAINT}">{_cell(name)}</td><td '
        f'style="{_CELL};text-align:left">{_cell(fact)}</td></tr>'
    )


def _of_table(table: Table) -> str:
    """Returns a table; columns in which all are numbers, or begin like one, are aligned at their
    end.
    """
    left_out = len(table.rows) - MOST_ROWS
    rows = list(table.rows)
    if left_out > 1:
        rows = [
            *rows[: MOST_ROWS // 2],
            [f"… {left_out} more", *[""] * (len(table.heads) - 1)],
            *rows[-MOST_ROWS // 2 :],
        ]
    aligns = [*map(_alignment, zip(*table.rows, strict=True))]
    parts = ["<tr>", *map(_head_cell, table.heads, aligns), "</tr>"]
    for row in rows:
        parts += ['<tr style="background:none">', *map(_body_cell, row, aligns), "</tr>"]
    return _table("".join(parts), "margin-top:.4em")


def _alignment(column: Sequence[Cell]) -> str:
    return "right" if all(map(_is_number, column)) else "left"


def _head_cell(head: str, align: str) -> str:
    style = f"{_CELL};border-bottom:{_LINE};text-align:{align};{_FAINT}"
    return f'<th style="{style}">{_cell(head)}</th>'


def _body_cell(cell: Cell, align: str) -> str:
    return f'<td style="{_CELL};text-align:{align}">{_cell(cell)}</td>'


def _table(rows: str, more: str = "margin-top:0") -> str:
    style = (
        "border-collapse:collapse;border:none;table-layout:auto;margin-left:0;"
        "margin-bottom:0;font-size:inherit"
    )
    return f'<table style="{style};{more}">{rows}</table>'


def _is_number(cell: Cell) -> bool:
    if isinstance(cell, str):
        return cell.removeprefix("-")[:1].isdigit()
    return isinstance(cell, int)


def _cell(cell: Cell) -> str:
    match cell:
        case Bar(share=share):
            width = 100 * min(max(share, 0.0), 1.0)
            filled = f"width:{width:.1f}%;height:.75em;background:rgba(70,130,200,.75)"
            frame = "width:10em;margin-top:.25em;background:rgba(128,128,128,.18)"
            return f'<div style="{frame}"><div style="{filled}"></div></div>'
        case Lines(text=text):
            style = (
                "margin:0;padding:0;background:none;color:inherit;font-family:monospace;"
                "font-size:.95em;line-height:1.35"
            )
            return f'<pre style="{style}">{_escaped(text, 20 * MOST_CHARACTERS)}</pre>'
        case _:
            return _escaped(str(cell))


def _escaped(text: str, most: int = MOST_CHARACTERS) -> str:
    """Escapes text for HTML, and what UTF-8 cannot encode; cuts it."""
    if len(text) > most:
        text = f"{text[:most]} …"
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
