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
    processes = [str(pid) for pid in pids]
    elsewhere = [""] * (engine.world_size - len(pids))
    ranks = _by_columns(
        ("rank", range(engine.world_size)),
        ("machine", [name for name, first, after in engine.machines for _ in range(first, after)]),
        ("GPU", engine.devices),
        ("process", processes + elsewhere),
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
        ("own rows", [f"{count:,}" for count in counts]),
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
        ("mean", [f"{mean:.10g}" for mean in means]),
        ("standard error", [f"{error:.3g}" for error in errors]),
        ("relative", map(_relative, means, errors)),
        ("variance", [f"{variance:.6g}" for variance in variances]),
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
    rank_column = ("rank", [rank.rank for rank in ranks])
    end_columns = (
        ("own rows", _texts(ranks, lambda rank: rank.own_rows, "{:,}")),
        ("reads", [f"{rank.input_bytes:,} bytes" for rank in ranks]),
        ("launches", _texts(ranks, lambda rank: rank.launches and _launches(rank), "{}")),
    )
    if plan.rows is None:
        held = [", ".join(f"{name} {shape}" for name, shape in rank.held) for rank in ranks]
        tables = [_by_columns(rank_column, ("arrays of variables", held), *end_columns)]
    else:
        counts = [stop - start for start, stop in (rank.rows for rank in ranks)]
        rows = (
            ("rows", [f"{start}..{stop}" for start, stop in (rank.rows for rank in ranks)]),
            ("number", [f"{count:,}" for count in counts]),
            ("", _bars(counts)),
            ("slices", [len(rank.slices) for rank in ranks]),
        )
        tables = [_by_columns(rank_column, *rows, *end_columns)]
    if plan.machines:
        tables.append(_machines(plan.machines))
    return _card(f"plan of {plan.function}", facts, *tables)


def _rows_of(plan: Any) -> str:
    if plan.rows is None:
        return "none to divide: every rank runs once"
    if plan.shards is None:
        return f"{plan.rows:,}"
    return f"{plan.rows:,} in {plan.shards} shards"


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
    swapped = f"variables have their memory again after {plan.turns} iterations"
    facts = [
        ("arguments", ", ".join(plan.arguments)),
        ("times", f"{iterations} in {count_text(plan.rounds, 'round')}"),
        ("a round ends", plan.round_ends or ""),
        ("ranks", str(plan.world_size)),
        ("swapped", swapped if plan.turns > 1 else ""),
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
        often = "a computed number of times" if part.times is None else f"{part.times:,} times"
        waits_for = "all ranks before and after" if part.meets else part.waits_for or ""
        yield ["", f"{indent}{part.name}, {often}", "", "", waits_for, "", ""]
        yield from _parts(part.parts, f"{indent}\N{EM SPACE}")


def _call(part: Any, indent: str) -> Sequence[Cell]:
    return [
        part.call or "",
        f"{indent}{part.name}",
        ", ".join(part.reads),
        ", ".join(part.writes),
        part.waits_for or "",
        f"{part.moved_bytes:,} bytes" if part.moved_bytes else "",
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
    tables = [_times(head, spent, max(seconds.open, 1e-9), places=3, share="{:.0f} %")]
    if memory.ranks:
        tables.append(_memory(memory))
    return _card("Statistics", facts, *tables)


def _memory(memory: Any) -> Table:
    on_gpus = any(device is not None for device in memory.devices)
    return _by_columns(
        ("rank", range(len(memory.ranks))),
        ("own memory", map(size_text, memory.ranks)),
        ("", _bars([nbytes or 0 for nbytes in memory.ranks])),
        ("on the GPU", map(size_text, memory.devices if on_gpus else ())),
        ("free there", map(size_text, memory.devices_free if on_gpus else ())),
    )


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
            places=6,
            share="{:.1f} %",
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


def _texts(ranks: Iterable[Any], value: Callable[[Any], Any], form: str) -> list[str]:
    """Returns the cells of a value that some ranks have; none if no rank has it."""
    values = [value(rank) for rank in ranks]
    if all(number is None for number in values):
        return []
    return ["" if number is None else form.format(number) for number in values]


def _bars(counts: Sequence[float]) -> list[Bar]:
    """Returns a bar for each count; the longest is that of the largest."""
    most = max([*counts, 1])
    return [Bar(count / most) for count in counts]


def _times(
    head: str, seconds: Mapping[str, float], total: float, *, places: int, share: str
) -> Table:
    """Returns what took how long, and which share of a total."""
    return _by_columns(
        (head, list(seconds)),
        ("seconds", [f"{value:.{places}f}" for value in seconds.values()]),
        ("", [share.format(100 * value / total) for value in seconds.values()]),
        ("", [Bar(value / total) for value in seconds.values()]),
    )


def _by_columns(*columns: tuple[str, Iterable[Cell]]) -> Table:
    """Returns a table of columns, each its head and its cells; without those that have no cells."""
    filled = [(head, cells) for head, column in columns if (cells := list(column))]
    return Table(
        [head for head, _ in filled], list(zip(*(cells for _, cells in filled), strict=True))
    )


def _of_records(records: Sequence[Any], *columns: tuple[str, str | Callable[[Any], Cell]]) -> Table:
    """Returns a table with a row for each record; a column is a format, or what makes a cell."""

    def cells(column: str | Callable[[Any], Cell]) -> Iterable[Cell]:
        return map(column.format if isinstance(column, str) else column, records)

    return _by_columns(*((head, cells(column)) for head, column in columns))


def _card(title: str, facts: Iterable[Fact], *tables: Table) -> str:
    """Returns a title, a table of facts, and tables below it; without facts that are "" and tables
    without rows.
    """
    rows = "".join(
        '<tr style="background:none"><td '
        f'style="{_CELL};text-align:left;{_FAINT}">{_cell(name)}</td><td '
        f'style="{_CELL};text-align:left">{_cell(fact)}</td></tr>'
        for name, fact in facts
        if fact != ""
    )
    parts = [f'<div style="font-weight:bold;padding-bottom:.2em">{_cell(title)}</div>']
    if rows:
        parts.append(_table(rows))
    parts += [_of_table(table) for table in tables if table.rows]
    return f'<div style="padding:.2em 0">{"".join(parts)}</div>'


def _of_table(table: Table) -> str:
    """Returns a table; columns in which all are numbers, or begin like one, are aligned at their
    end.
    """
    left_out = len(table.rows) - MOST_ROWS
    rows = list(table.rows)
    if left_out > 1:
        rows = [
            *rows[: MOST_ROWS // 2],
            [f"… {left_out} more", *("" for _ in table.heads[1:])],
            *rows[-MOST_ROWS // 2 :],
        ]
    columns = zip(*table.rows, strict=True)
    aligns = ["right" if all(map(_is_number, column)) else "left" for column in columns]
    heads = "".join(
        f'<th style="{_CELL};border-bottom:{_LINE};text-align:{align};{_FAINT}">{_cell(head)}</th>'
        for head, align in zip(table.heads, aligns, strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_CELL};text-align:{align}">{_cell(cell)}</td>'
            for cell, align in zip(row, aligns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return _table(f"<tr>{heads}</tr>{body}", "margin-top:.4em")


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
