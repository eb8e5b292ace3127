"""Kernels that compare an index with the rows of one array, and use it for another that has fewer rows on a rank.

    if i < u.shape[0]:                        if own.start <= i < own.stop:
        u[i] += a[i]                              u[i] += a[i]

On the left past the end of a, if a rank has 6 rows of u and 2 of a; on the right, if it has own rows of u from 1 to 5, beside
a halo, and 5 of a.

Refused before anything is sent, where the kernel's source shows it with certainty (`row_elements.py`), and the rows of the
smaller array are not asked for. Other reads past the end are found by `check`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from synknumba._call.row_elements import Bound, Element, Reading, Shapes, Spans, pairs, read_elements
from synknumba._errors import ArgumentError
from synknumba._ops.launch import Dim3


@dataclass(frozen=True, slots=True)
class RowUses:
    """How a kernel uses rows.

    Attributes:
        elements: elements with an index variable, or one with an int added, as the first index.
        guarded: those of them that are certainly used for all values of an index that is not compared with their own length.
        pairs: elements of two arrays at the same index in one statement.
        plain: arrays and indices: elements of the array are used at this index alone.
        written: arrays that the kernel stores to.
        looked_up: arrays of which each element that it uses has a first index that is the value of another array.
        known: arrays of which the kernel may know the number of rows.
        limits: lengths with which positions in the grid are compared wherever they are used, each with the axis of the grid.
    """

    elements: tuple[Element, ...] = ()
    guarded: tuple[Element, ...] = ()
    pairs: tuple[tuple[Element, Element], ...] = ()
    plain: frozenset[tuple[str, str]] = frozenset()
    written: frozenset[str] = frozenset()
    looked_up: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    limits: tuple[tuple[int, Bound], ...] = ()


NO_USES = RowUses()


def row_uses(function: Callable[..., object]) -> RowUses:
    """Returns how a kernel uses rows, as far as its source shows it."""
    source = read_elements(function)
    if source is None:
        return NO_USES
    elements = tuple(source.elements())
    plain = {(one.array, one.index.name) for one in elements}
    return RowUses(
        elements,
        tuple(one for one in elements if _is_guarded(one, source)),
        tuple(pairs(elements)),
        frozenset(one for one in plain if source.is_at(*one)),
        frozenset(filter(source.is_written, source.parameters)),
        frozenset(source.looked_up()),
        frozenset(filter(source.may_know_rows, source.parameters)),
        source.limits(),
    )


def _is_guarded(element: Element, source: Reading) -> bool:
    bounds = element.index.uppers
    is_known = any(one.name == element.array for one in bounds) or source.may_know_rows(element.array)
    return element.is_sure and not element.offset and not is_known and any(one.name for one in bounds)


def check_element(name: str, element: Element, rank: int, shapes: Shapes, spans: Spans, threads: Dim3) -> None:
    """Raises `ArgumentError` if an element's array certainly has fewer rows than its index reaches.

    Args:
        name: the kernel's.
        element: one that is guarded by other lengths.
        rank: the rank of a launch.
        shapes: those of the arrays in the launch, as far as they are known.
        spans: own rows of a variable on the rank, of the parameters that get them.
        threads: those of the launch along each axis.
    """
    used, shape = element.rows(shapes, spans, threads), shapes.get(element.array)
    if not used or not shape or used[-1] < shape[0]:
        return
    array, index = element.array, element.index.name
    bound = min(element.index.uppers, key=lambda one: one.value(shapes, spans) or 0)
    told = f"{name} ({element.place}) uses {index} as an index of {array}, but"
    end = f"{_rows(shape[0])} of {array}, so that {array}[{index}] would lie past its end"
    if bound.kind in {"start", "stop"}:
        own = spans[bound.name]
        raise ArgumentError(
            f"{told} {bound.name} has a rank's own rows in the array of a variable: rank {rank} has {own.start} to "
            f"{own.stop - 1} there, and {end}. Index {array} by {index} - {bound.name}.start; or keep it in a variable "
            f"scattered with the same halo; or, if every rank has all of it, index it by synk.OFFSET + {index}."
        )
    length = bound.plus(-bound.offset)
    raise ArgumentError(
        f"{told} compares it with rows of {bound.name} only: rank {rank} has {_rows(length.value(shapes, spans) or 0)} of "
        f'{bound.name} and {end}. Pass {array} with the rows of {bound.name}; name it in broadcast=("{array}",) if every rank '
        f"needs all of it, and index it by rows of the whole, synk.OFFSET + {index}; or write `if {index} < min({length}, "
        f"{array}.shape[0])` to leave out the other rows of each rank."
    )


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
