"""Halos against NumPy: `np.pad` around the whole, of which every rank has a window."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from synknumba._ops.halo import Halo, first_rows

BLANK = -1


@st.composite
def divided(draw):
    """A halo, and the number of own rows of each rank, none of which has too few."""
    halo = Halo(draw(st.integers(1, 4)), draw(st.booleans()))
    counts = draw(st.lists(st.integers(halo.width, 9), min_size=1, max_size=6))
    return halo, counts


def windows(halo, counts):
    """The whole, and the rows of it that each rank has, by NumPy: rows beyond the ends are cut
    off unless periodic.
    """
    whole = np.arange(sum(counts)) + 100
    padded = (
        np.pad(whole, halo.width, "wrap")
        if halo.periodic
        else np.pad(whole, halo.width, constant_values=BLANK)
    )
    edges = np.cumsum([0, *counts])
    found = [padded[start : stop + 2 * halo.width] for start, stop in pairwise(edges)]
    return whole, [rows[rows != BLANK] for rows in found]


@given(divided())
def test_what_a_rank_holds(case):
    halo, counts = case
    whole, expected = windows(halo, counts)
    size, edges = len(counts), np.cumsum([0, *counts])
    for rank, wanted in enumerate(expected):
        spans = halo.spans(int(edges[rank]), int(edges[rank + 1]), len(whole), rank, size)
        assert_array_equal(np.concatenate([whole[slice(*span)] for span in spans]), wanted)
        assert halo.length(counts[rank], rank, size) == len(wanted)
        own = halo.own(len(wanted), rank, size)
        assert_array_equal(wanted[slice(*own)], whole[edges[rank] : edges[rank + 1]])
        first = first_rows(halo, counts)[rank]
        assert_array_equal(whole[(first + np.arange(len(wanted))) % len(whole)], wanted)


@given(divided())
def test_an_exchange_renews_every_halo_and_nothing_else(case):
    halo, counts = case
    _, expected = windows(halo, counts)
    size = len(counts)
    stale = [rows.copy() for rows in expected]
    for rank, rows in enumerate(stale):
        own = halo.own(len(rows), rank, size)
        rows[: own.start] = rows[own.stop :] = BLANK
    written = [np.zeros(len(rows), int) for rows in stale]
    for copy in halo.copies(counts):
        source = stale[copy.source][copy.source_start : copy.source_start + copy.count]
        assert (source != BLANK).all(), "a copy reads a halo"
        stale[copy.target][copy.target_start : copy.target_start + copy.count] = source
        written[copy.target][copy.target_start : copy.target_start + copy.count] += 1
    for rank, (rows, wanted, times) in enumerate(zip(stale, expected, written, strict=True)):
        assert_array_equal(rows, wanted)
        own = halo.own(len(rows), rank, size)
        assert (times[: own.start] == 1).all()
        assert (times[own.stop :] == 1).all()
        assert not times[own.start : own.stop].any()


def test_rows_that_are_too_few():
    told = Halo(3).problem([2, 2, 2, 2], "variable 'u'")
    assert (
        told == "halo=3 needs 3 rows on every rank, and 8 rows of variable 'u' on 4 ranks leave 2"
    )
    assert Halo(2).problem([2, 2], "u") is None
    assert (
        Halo(1).problem([0], "u")
        == "halo=1 needs 1 row on every rank, and 0 rows of u on 1 rank leave 0"
    )
