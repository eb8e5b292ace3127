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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from synknumba._types import size_text

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
    title = "World of 1 rank" if engine.world_size == 1 else f"World of {engine.world_size} ranks"
    facts = [
        ("state", _state(engine)),
        ("device", "a GPU each" if engine.device == "cuda" else "a CPU core each"),
        ("collectives", f"over {'NCCL' if engine.transport == 'nccl' else 'memory of the host'}"),
        ("calls", f"{engine.tally.calls:,}"),
    ]
    machines, pids = engine.machines, engine.pids  # pids: of this machine
    if not pids:
        return _card(title, facts)
    heads = [
        "rank",
        *(["machine"] if machines else []),
        *(["GPU"] if engine.devices else []),
        "process",
    ]
    rows: list[list[Cell]] = []
    for rank in range(engine.world_size):
        host = [name for name, first, after in machines if first <= rank < after]
        gpu = [engine.devices[rank]] if engine.devices else []
        rows.append([rank, *host, *gpu, str(pids[rank]) if rank < len(pids) else ""])
    return _card(title, facts, Table(heads, rows))


def _state(engine: Any) -> str:
    if engine.closed:
        return "closed" if engine.end_reason is None else f"closed: {engine.end_reason}"
    return "open" if engine.work is None else f"open, at work: {engine.work}"


@_or_nothing
def of_data(data: Any) -> str:
    """Shows a `Data`: shape, dtype, bytes, and a few values."""
    view, named = data._view, "" if data.name is None else f" {data.name!r}"  # noqa: SLF001  # `data.data` notes a read
    more = [
        *(["frozen"] if data.frozen else []),
        *(["minibatch"] if data.minibatch else []),
        *([f"room for {data.alloc_size:,} items"] if data.alloc_size > view.size else []),
    ]
    facts = [
        *_of_array(view.shape, data.dtype, view.nbytes),
        *([("more", ", ".join(more))] if more else []),
    ]
    if not data._segment.closed:  # noqa: SLF001  # as that of a captured `Data` on a rank
        facts += _values("values", view)
    return _card(f"Data{named}", facts)


@_or_nothing
def of_variable(state: Any) -> str:
    """Shows a variable, given its `VariableState`: arrays, place, rows of each rank; values that
    the script can read.
    """
    named, shapes, dtypes = (
        "" if state.name is None else f" {state.name!r}",
        state.root_shapes(),
        state.dtypes(),
    )
    readable, tables = state.readable(), []
    facts: list[tuple[str, Cell]]
    if state.is_tree:
        sizes = [
            int(np.prod(shape)) * dtype.itemsize
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        facts = [
            ("arrays", f"{len(shapes)}{', one vector' if state.is_flat else ''}"),
            ("bytes", size_text(state.nbytes)),
        ]
        arrays: list[list[Cell]] = [
            [path, str(shape), str(dtype), size_text(size), Bar(size / max([*sizes, 1]))]
            for path, shape, dtype, size in zip(
                state.leaf_paths(), shapes, dtypes, sizes, strict=True
            )
        ]
        tables.append(Table(["array", "shape", "dtype", "bytes", ""], arrays))
    else:
        facts = _of_array(shapes[0], dtypes[0], state.nbytes)
    facts.append(("where", state.place_text()))
    if not state.is_tree and readable is not None:
        facts += _values("values on rank 0" if state.is_placed else "values", readable[0])
    if state.sharded and state.is_placed and not state.is_tree:
        counts = state.storage().layout.own_counts(0)
        heads = ["rank", "own rows", "", "shape"]
        rows: list[list[Cell]] = [
            [rank, f"{count:,}", Bar(count / max([*counts, 1])), str(shape)]
            for rank, (count, shape) in enumerate(zip(counts, state.shapes()[0], strict=True))
        ]
        tables.append(Table(heads, rows))
    return _card(f"Variable{named}", facts, *tables)


@_or_nothing
def of_quantity(quantity: Any) -> str:
    """Shows an `Estimate` or a `Measurement`: values with their errors."""
    mean, stderr = np.ravel(quantity.mean).tolist(), np.ravel(quantity.stderr).tolist()
    facts, is_one = [], np.ndim(quantity.mean) == 0
    is_estimate = hasattr(quantity, "count")
    if is_estimate:
        facts.append(("rows", f"{quantity.count:,}"))
        if quantity.effective_size != quantity.count:
            facts.append(("effective rows", f"{quantity.effective_size:,.1f}"))
    heads = [
        *([] if is_one else ["value"]),
        "mean",
        "standard error",
        "relative",
        *(["variance"] if is_estimate else []),
    ]
    variance = np.ravel(quantity.variance).tolist() if is_estimate else []
    rows: list[list[Cell]] = []
    for i, (value, error) in enumerate(zip(mean, stderr, strict=True)):
        relative = f"{abs(error / value):.2g}" if value else "–"
        cells = [
            f"{value:.10g}",
            f"{error:.3g}",
            relative,
            *([f"{variance[i]:.6g}"] if is_estimate else []),
        ]
        rows.append([*([] if is_one else [i]), *cells])
    title = (
        f"{type(quantity).__name__} {quantity}"
        if is_one
        else f"{type(quantity).__name__} of {len(mean)} values"
    )
    return _card(title, facts, Table(heads, rows))


@_or_nothing
def of_plan(plan: Any) -> str:
    """Shows a `PlanReport`: rows, launches and bytes of each rank."""
    cut = "" if plan.shards is None else f" in {plan.shards} shards"
    rows_text = (
        "none to divide: every rank runs once" if plan.rows is None else f"{plan.rows:,}{cut}"
    )
    facts = [("arguments", ", ".join(plan.arguments)), ("rows", rows_text)]
    facts += [(name, _op(op)) for name, op in plan.outputs]
    facts += [(f"{name} (variable)", str(op)) for name, op in plan.updates]
    has_own = any(rank.own_rows is not None for rank in plan.ranks)
    has_launches = any(rank.launches is not None for rank in plan.ranks)
    counts = [stop - start for start, stop in (rank.rows for rank in plan.ranks)]
    heads, rows = ["rank"], []
    heads += ["arrays of variables"] if plan.rows is None else ["rows", "number", "", "slices"]
    heads += [*(["own rows"] if has_own else []), "reads", *(["launches"] if has_launches else [])]
    for rank, count in zip(plan.ranks, counts, strict=True):
        held = ", ".join(f"{name} {shape}" for name, shape in rank.held)
        span = f"{rank.rows[0]}..{rank.rows[1]}"
        of_rows: list[Cell] = [span, f"{count:,}", Bar(count / max([*counts, 1])), len(rank.slices)]
        own_rows = ["" if rank.own_rows is None else f"{rank.own_rows:,}"] if has_own else []
        launches = [rank.launch_text.removeprefix(", launches ")] if has_launches else []
        rows.append(
            [
                rank.rank,
                *([held] if plan.rows is None else of_rows),
                *own_rows,
                f"{rank.input_bytes:,} bytes",
                *launches,
            ]
        )
    tables = [Table(heads, rows)]
    if plan.machines:
        sent: list[list[Cell]] = [
            [
                machine.host,
                f"{machine.ranks[0]}..{machine.ranks[1]}",
                f"{machine.sent_bytes:,}",
                f"{machine.frozen_bytes:,}",
            ]
            for machine in plan.machines
        ]
        tables.append(
            Table(["machine", "ranks", "bytes sent", "of them once, as they are frozen"], sent)
        )
    return _card(f"plan of {plan.function}", facts, *tables)


def _op(op: Any) -> str:
    return "one value of each part, in a list" if op is None else str(op)


@_or_nothing
def of_sequence(plan: Any) -> str:
    """Shows a `SequenceReport`: calls and collectives of an iteration, with what they wait for."""
    rounds = f"{plan.times:,} iteration{'' if plan.times == 1 else 's'} in {plan.rounds:,} round"
    facts = [
        ("arguments", ", ".join(plan.arguments)),
        ("times", rounds + ("" if plan.rounds == 1 else "s")),
        *([("a round ends", plan.round_ends)] if plan.round_ends else []),
        ("ranks", str(plan.world_size)),
        *(
            [("swapped", f"variables have their memory again after {plan.turns} iterations")]
            if plan.turns > 1
            else []
        ),
        ("on GPUs", plan.gpu_text.partition(": ")[2]),
    ]
    heads = ["", "call", "reads", "writes", "waits for", "moves", "results"]
    return _card(f"plan of {plan.sequence}", facts, Table(heads, list(_parts(plan.parts, ""))))


def _parts(parts: Iterable[Any], indent: str) -> Iterable[Sequence[Cell]]:
    for part in parts:
        if hasattr(part, "parts"):  # an inner sequence
            often = "a computed number of times" if part.times is None else f"{part.times:,} times"
            whom = "all ranks before and after" if part.meets else part.waits_for or ""
            yield ["", f"{indent}{part.name}, {often}", "", "", whom, "", ""]
            yield from _parts(part.parts, f"{indent}\N{EM SPACE}")
        else:
            moves = f"{part.moved_bytes:,} bytes" if part.moved_bytes else ""
            results = "; ".join(map(str, part.results))
            names = (", ".join(part.reads), ", ".join(part.writes))
            yield [
                part.call or "",
                f"{indent}{part.name}",
                *names,
                part.waits_for or "",
                moves,
                results,
            ]


@_or_nothing
def of_statistics(statistics: Any) -> str:
    """Shows `Statistics`: counts, time by phase, memory by rank."""
    seconds, memory = statistics.seconds, statistics.memory
    facts = [
        (
            "calls",
            f"{statistics.calls:,} in {statistics.rounds:,} rounds, by {statistics.plans:,} plans",
        ),
        ("scattered", size_text(statistics.scattered_bytes)),
        ("shared memory", size_text(memory.shared)),
    ]
    if statistics.network_bytes:
        facts.append(("to other machines and back", size_text(statistics.network_bytes)))
    if statistics.dropped_bytes:
        facts.append(("output of ranks that nothing read", size_text(statistics.dropped_bytes)))
    spent = [
        ("starting", seconds.starting),
        ("preparing", seconds.preparing),
        ("working", seconds.working),
    ]
    spent.append(
        ("in the script", max(seconds.open - sum(spent_seconds for _, spent_seconds in spent), 0.0))
    )
    total = max(seconds.open, 1e-9)
    times: list[list[Cell]] = [
        [name, f"{value:.3f}", f"{100 * value / total:.0f} %", Bar(value / total)]
        for name, value in spent
    ]
    tables = [Table([f"{seconds.open:.3f} s open", "seconds", "", ""], times)]
    if memory.ranks:
        most, on_gpus = (
            max(1, *(nbytes or 0 for nbytes in memory.ranks)),
            any(device is not None for device in memory.devices),
        )
        rows: list[list[Cell]] = []
        for rank, nbytes in enumerate(memory.ranks):
            gpu = (
                [size_text(memory.devices[rank]), size_text(memory.devices_free[rank])]
                if on_gpus
                else []
            )
            rows.append([rank, size_text(nbytes), Bar((nbytes or 0) / most), *gpu])
        tables.append(
            Table(
                ["rank", "own memory", "", *(["on the GPU", "free there"] if on_gpus else [])], rows
            )
        )
    return _card("Statistics", facts, *tables)


@_or_nothing
def of_trace(summary: Any) -> str:
    """Shows the `Summary` of a trace: time of the script, functions, and steps of the ranks."""
    lost = [("rounds", summary.lost_rounds), ("steps of ranks", summary.lost_steps)]
    facts: list[tuple[str, Cell]] = [
        ("ranks", str(len(summary.ranks))),
        *((f"{name} before, not kept", f"{count:,}") for name, count in lost if count),
    ]
    total = max(summary.seconds, 1e-9)
    times: list[list[Cell]] = [
        [name, _seconds(value), f"{100 * value / total:.1f} %", Bar(value / total)]
        for name, value in summary.of_script()
    ]
    functions: list[list[Cell]] = [
        [
            times.name,
            f"{times.rounds:,}",
            _seconds(times.waited),
            _seconds(max(times.ranks.values())) if times.ranks else "",
            "" if np.isnan(times.imbalance) else f"{times.imbalance:.2f}",
            f"{times.nbytes:,}" if times.nbytes else "",
        ]
        for times in summary.functions
    ]
    steps: list[list[Cell]] = [
        [
            f"{times.name}{' (GPU)' if times.on_device else ''}",
            f"{times.count:,}",
            _seconds(times.seconds),
        ]
        for times in summary.steps
    ]
    tables = [Table([f"{summary.seconds:.6g} s in all", "seconds", "", ""], times)]
    if functions:
        tables.append(
            Table(
                ["function", "rounds", "waited, s", "busiest rank, s", "imbalance", "bytes"],
                functions,
            )
        )
    if steps:
        tables.append(Table(["in rounds, all ranks", "times", "seconds"], steps))
    return _card("Summary of a trace", facts, *tables)


def _seconds(value: float) -> str:
    return f"{value:.6f}"


# ---- parts


def _of_array(shape: tuple[int, ...], dtype: Any, nbytes: int) -> list[tuple[str, Cell]]:
    return [("shape", str(shape)), ("dtype", str(dtype)), ("bytes", size_text(nbytes))]


def _values(label: str, array: Any) -> list[tuple[str, Cell]]:
    """Returns the fact of an array's first and last values; of more than two axes, those of the
    first matrix.
    """
    if not array.size:
        return []
    lead = (0,) * (array.ndim - 2)
    text = np.array2string(
        array[lead] if lead else array,
        threshold=MOST_ITEMS,
        edgeitems=EDGE_ITEMS,
        max_line_width=LINE_CHARACTERS,
        separator=", ",
    )
    return [
        (f"{label} of [{', '.join([*map(str, lead), ':', ':'])}]" if lead else label, Lines(text))
    ]


def _card(title: str, facts: Sequence[tuple[str, Cell]], *tables: Table) -> str:
    """Returns a title, a table of facts, and tables below it."""
    facts_rows = "".join(
        '<tr style="background:none"><td '
        f'style="{_CELL};text-align:left;{_FAINT}">{_cell(name)}</td><td '
        f'style="{_CELL};text-align:left">{_cell(fact)}</td></tr>'
        for name, fact in facts
    )
    head = f'<div style="font-weight:bold;padding-bottom:.2em">{_cell(title)}</div>'
    shown_facts = _table(facts_rows) if facts_rows else ""
    shown_tables = "".join(map(_of_table, tables))
    return f'<div style="padding:.2em 0">{head}{shown_facts}{shown_tables}</div>'


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
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.heads)
    aligns = ["right" if column and all(map(_is_number, column)) else "left" for column in columns]
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
    return isinstance(cell, int) or (
        isinstance(cell, str) and (cell[:1].isdigit() or cell[:2].strip("-")[:1].isdigit())
    )


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
    text = text if len(text) <= most else f"{text[:most]} …"
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
