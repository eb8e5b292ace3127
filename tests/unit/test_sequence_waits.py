"""Waits of a sequence: every conflict between ranks is ordered by them, and few could be left
out.
"""

import random

from synknumba._wire.sequence import (
    Access,
    Loop,
    Part,
    Wait,
    conflict,
    ordered,
    own_access,
    waits,
)
from tests.quick import examples

TURNS = 4


def bodies(number, seed=0):
    """Random accesses of the parts of a body: launches, exchanges, collectives in place, and
    inner loops.
    """
    rng = random.Random(seed)
    for _ in range(number):
        keys = [("v", k) for k in range(rng.randint(1, 3))]

        def some(share, keys=keys):
            return frozenset(key for key in keys if rng.random() < share)

        body = []
        for _ in range(rng.randint(1, 6)):
            one = frozenset({rng.choice(keys)})
            kind = rng.choice("lllxxardo")
            if kind == "l":
                writes = some(0.4)
                body.append(Access(some(0.5) | writes, writes))
            elif kind == "x":
                body.append(Access(remote_reads=one, nearby=True))
            elif kind == "a":
                body.append(Access(one, one, one, one))
            elif kind == "o":
                body.append(None)
            else:
                body.append(Access(writes=some(0.3), remote_reads=some(0.5)))
        yield body


def known_before(ranks, body, found):
    """For each part of each rank: the last part of every rank that is finished before it begins,
    by waits and barriers.
    """
    size = len(body)
    begins = [[None] * size * TURNS for _ in range(ranks)]  # before the part
    ends = [[None] * size * TURNS for _ in range(ranks)]
    for now in range(size * TURNS):  # an order in which every wait is for an earlier part
        for rank in range(ranks):
            clock = list(ends[rank][now - 1]) if now else [-1] * ranks
            wait = found[now % size]
            if body[now % size] is None:
                clock = [max(one, now - 1) for one in clock]
            elif wait is not None and now - wait.back >= 0:
                for other in range(ranks):
                    near = other in {(rank - 1) % ranks, (rank + 1) % ranks}
                    if other != rank and (near or not wait.nearby):
                        clock = [
                            max(pair)
                            for pair in zip(clock, ends[other][now - wait.back], strict=True)
                        ]
            begins[rank][now] = clock
            ends[rank][now] = [now if one == rank else clock[one] for one in range(ranks)]
    return begins


def unordered(ranks, body, found):
    """The first two parts of two ranks that conflict, of which the later does not wait for the
    earlier; None without.
    """
    begins, size = known_before(ranks, body, found), len(body)
    for now in range(size * TURNS):
        later = body[now % size]
        for earlier in range(now):
            other = body[earlier % size]
            if later is None or other is None:
                continue
            conflicts, nearby = conflict(other, later)
            for rank in range(ranks):
                for peer in range(ranks) if conflicts else ():
                    near = peer in {(rank - 1) % ranks, (rank + 1) % ranks}
                    if peer != rank and (near or not nearby) and begins[rank][now][peer] < earlier:
                        return earlier, peer, now, rank
    return None


def test_conflicts_are_ordered():
    dispensable = total = 0
    for body in bodies(examples(600, quick=150)):
        found, shown = waits(body)
        assert unordered(3, body, found) is None, (body, found)
        for place, wait in enumerate(found):
            if wait is not None:
                total += 1
                assert (place - wait.back) % len(body) in shown
                fewer = [None if at == place else one for at, one in enumerate(found)]
                dispensable += unordered(3, body, fewer) is None
    assert total > 100
    assert dispensable < total * 0.05


def test_a_stencil_waits_for_its_neighbours_once():
    u, v = frozenset({"u"}), frozenset({"v"})
    body = [Access(remote_reads=u, nearby=True), Access(reads=u, writes=v)] * 2
    body[2:] = [Access(remote_reads=v, nearby=True), Access(reads=v, writes=u)]
    found, _ = waits(body)
    assert [one is not None for one in found] == [True, False, True, False]
    assert found[0] == Wait(1, nearby=True)


def test_ranks_that_touch_their_own_memory_never_wait():
    u = frozenset({"u"})
    assert waits([Access(u, u), Access(u, u)]) == ([None, None], set())


def test_no_wait_reaches_beyond_an_inner_loop():
    u = frozenset({"u"})
    found, _ = waits([Access(writes=u), None, Access(remote_reads=u), Access(writes=u)])
    assert found == [None, None, None, Wait(1)]


def test_parts_of_an_inner_loop_wait_for_each_other():
    u = frozenset({"u"})
    parts = Part(0, "", 0, Access(u, u)), Part(1, "", 0, Access(remote_reads=u))
    (loop,) = ordered([Loop("inner", ("value", 3), 1, parts)])
    assert [part.wait for part in loop.parts] == [Wait(1), Wait(1)]


def test_an_inner_loop_over_own_memory_is_one_part():
    u, v = frozenset({"u"}), frozenset({"v"})

    def loop(*accesses):
        return Loop("inner", ("value", 3), 1, tuple(Part(0, "", 0, one) for one in accesses))

    own = own_access(loop(Access(u, v), Access(v)).parts)
    assert own == Access(u | v, v)
    for further in (Access(remote_reads=u), Access(remote_writes=u)):
        assert own_access(loop(Access(u, v), further).parts) is None
    assert own_access((loop(Access(u, v)),)) is None  # which meets
    # others read what the loop writes
    found, shown = waits([Access(remote_reads=v), own, Access(u, u)])
    assert found == [Wait(2), Wait(1), None]
    assert shown == {0, 1}


def test_an_exchange_waits_for_no_part_that_it_runs_beside():
    u, v = frozenset({"u"}), frozenset({"v"})
    edges, interior = Access(u, v), Access(u, v, beside=1)
    exchange = Access(remote_reads=v, nearby=True, exchange=1)
    back = Access(v, u)
    found, shown = waits([edges, interior, exchange, back])
    assert found == [Wait(2, nearby=True), None, Wait(2, nearby=True), None]
    assert shown == {0, 2}
    plain, _ = waits([edges, Access(u, v), Access(remote_reads=v, nearby=True), back])
    assert plain[2] == Wait(1, nearby=True)
