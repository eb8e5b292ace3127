"""Calls beside an exchange of halos, `synk.exchange(v, during=lambda: interior(u, v))`, which must not touch what is exchanged.

They run before the halos have their new rows, and, in a sequence, perhaps while neighbours read the rows that they get. A
kernel that does, and whose source shows it with certainty (`row_elements.py`), is refused.
"""

from collections.abc import Collection

from synknumba._call.call import Call
from synknumba._call.guarded_rows import RowUses
from synknumba._call.launches import planned_launches, spans_of
from synknumba._call.row_elements import Element
from synknumba._call.variable_rows import own_by_rank, rows_shapes
from synknumba._errors import ArgumentError
from synknumba._ops.launch import LaunchConfig
from synknumba._variables.state import VariableState


def check_beside(
    name: str,
    launch: LaunchConfig,
    uses: RowUses,
    call: Call,
    source: str | None,
    exchanged: Collection[VariableState],
    *,
    is_recorded: bool,
) -> None:
    """Raises `ArgumentError` if a kernel reads halos that are exchanged beside its call, or writes rows that neighbours get.

    Args:
        name: the kernel's.
        launch: its grid and block.
        uses: what its source shows.
        call: bound, with its rows.
        source: the argument that gives launches their size.
        exchanged: the variables.
        is_recorded: whether the call is one of a sequence; a single one ends before the exchange, and may write.
    """
    arrays = {name for name, one in call.intact.items() if any(one is variable for variable in exchanged)}
    elements = [one for one in uses.elements if one.array in arrays and one.is_sure and (is_recorded or not one.is_stored)]
    for rank, shapes, threads in planned_launches(launch, call, {}, source) if elements else ():
        spans = spans_of(call, rank)
        for element in elements:
            rows = element.rows(shapes, spans, threads)
            problem = _problem(element, rows, call, rank) if rows else ""
            if problem:
                raise ArgumentError(
                    f"{name} ({element.place}) {problem} on rank {rank}, and runs beside an exchange of {element.array}. Call "
                    f"it after the exchange; or give during= a kernel for rows that need no neighbours, as own.start < "
                    f"{element.index.name} < own.stop - 1, and call one for the others before the exchange"
                )


def _problem(element: Element, rows: range, call: Call, rank: int) -> str:
    """Returns what an element does that it must not, with rows of a rank's array; "" if it does nothing of the kind."""
    variable, shapes = call.intact[element.array], rows_shapes(call, element.array)
    own, halo = own_by_rank(variable, shapes)[rank], variable.halo
    if halo is None:
        return ""
    lower, upper = halo.sides(rank, len(shapes))
    if not element.is_stored:
        at = rows[0] if rows[0] < own.start else rows[-1]
        return "" if own.start <= at < own.stop else f"reads {element.text}, with row {at} a row of the halo"
    if lower and rows[0] < own.start + lower and rows[-1] >= own.start:
        at = max(rows[0], own.start)
    elif upper and rows[-1] >= own.stop - upper and rows[0] < own.stop:
        at = min(rows[-1], own.stop - 1)
    else:
        return ""
    return f"writes {element.text}, with row {at} a row that a neighbour gets"
