"""Batches: what each epoch has, the words of Philox from its paper, and the rows that calls and
sequences get.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import synknumba as synk

MASK = (1 << 64) - 1


def philox(counter, key):
    """Philox-4x64-10 in Python's ints; J. Salmon et al., "Parallel random numbers: as easy as 1,
    2, 3" (SC11), section 3.3.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p2 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (p2 >> 64) ^ c1 ^ k0, p2 & MASK, (p0 >> 64) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return c0, c1, c2, c3


def test_the_oracle_is_philox():
    """The known answers of the authors' Random123 library, file kat_vectors, philox 4x64 with 10
    rounds.
    """
    assert philox((0, 0, 0, 0), (0, 0)) == (
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    )
    assert philox((MASK,) * 4, (MASK,) * 2) == (
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    )


def order_of(n, seed, epoch):
    words = [
        word for block in range(-(-n // 4)) for word in philox((block + 1, 0, 0, 0), (seed, epoch))
    ]
    return sorted(range(n), key=lambda row: words[row])


@pytest.mark.parametrize(
    ("n", "seed", "epoch"),
    [(1, 0, 0), (7, 0, 1), (50, 3, 0), (50, MASK, 12345), (101, 1 << 63, 1 << 40)],
)
def test_orders_are_those_of_philox(n, seed, epoch):
    rows = next(iter(synk.batches(n, n, seed=seed, epochs=None).start_at(epoch)))
    assert rows.dtype == np.int64
    assert rows.tolist() == order_of(n, seed, epoch)


@given(
    st.integers(1, 60),
    st.data(),
    st.integers(0, MASK),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_each_row_once_in_an_epoch(n, data, seed, shuffle, drop_last, epochs):
    size = data.draw(st.integers(1, n))
    batches = synk.batches(n, size, seed=seed, shuffle=shuffle, epochs=epochs, drop_last=drop_last)
    found = list(batches)
    per = n // size if drop_last else -(-n // size)
    assert len(found) == len(batches) == epochs * per
    assert batches.steps_per_epoch == per
    for epoch in range(epochs):
        mine = found[epoch * per : (epoch + 1) * per]
        assert {len(rows) for rows in mine[:-1]} <= {size}
        assert len(mine[-1]) == (size if drop_last or n % size == 0 else n % size)
        rows = np.concatenate(mine)
        assert len({*rows.tolist()}) == len(rows)
        assert set(rows.tolist()) <= set(range(n))
        if not shuffle:
            assert rows.tolist() == list(range(len(rows)))
        if drop_last or n % size == 0:
            assert np.array_equal(batches.order(epoch), np.stack(mine))
    for rows, again in zip(found, batches, strict=True):  # re-iterable
        assert np.array_equal(rows, again)
    start = data.draw(st.integers(0, len(found)))
    later = batches.start_at(start)
    assert len(later) == len(found) - start
    for rows, again in zip(found[start:], later, strict=True):
        assert np.array_equal(rows, again)


def test_epochs_and_seeds_differ():
    orders = [
        synk.batches(1000, 10, seed=seed).order(epoch).ravel()
        for seed in range(3)
        for epoch in range(4)
    ]
    same = [(a == b).mean() for i, a in enumerate(orders) for b in orders[:i]]
    assert max(same) < 0.02  # 0.001 on average, with a deviation of 0.001
    correlations = np.abs(
        np.corrcoef(np.array([*orders, np.arange(1000)])) - np.eye(len(orders) + 1)
    )
    assert correlations.max() < 5 / np.sqrt(1000)


def test_without_an_end():
    batches = synk.batches(5, 2, seed=1, epochs=None)
    first = [rows for rows, _ in zip(batches, range(9), strict=False)]
    assert [len(rows) for rows in first] == [2, 2, 1] * 3
    assert np.array_equal(
        np.concatenate(first[6:]),
        np.concatenate(list(synk.batches(5, 2, seed=1, epochs=3).start_at(6))),
    )
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(batches)
    assert (
        repr(batches) == "<Batches n=5, size=2, seed=1, shuffle=True, drop_last=False, epochs=None>"
    )


def test_training_goes_on_with_the_same_rows(tmp_path):
    """Broken off in the middle of an epoch, saved with its position, and gone on with from
    there.
    """

    def batches():
        return synk.batches(23, 4, seed=7, epochs=3)

    whole, seen = list(batches()), []
    one = batches()
    assert one.state()["step"] == 0
    for rows in one:
        seen.append(rows)
        synk.save(tmp_path / "state", {"batches": one.state()})
        if len(seen) == 8:
            break
    position = synk.load(tmp_path / "state", like={"batches": batches().state()})["batches"]
    assert position["step"] == 8
    again = batches().start_at(position)
    assert again.state() == position
    assert repr(again).endswith("epochs=3> from step 8")
    seen += list(again)
    assert [rows.tolist() for rows in seen] == [rows.tolist() for rows in whole]
    assert list(batches().start_at(again.state())) == []
    longer = synk.batches(23, 4, seed=7, epochs=4).start_at(again.state())
    assert len(longer) == 6


@pytest.mark.parametrize("ranks", [1, 3])
def test_calls_get_these_rows(ranks):
    @synk.function(outputs="gather")
    def taken(x, y):
        return np.stack([x, 2 * y], axis=1)

    @synk.function
    def add(total, x):
        total += x.sum()

    @synk.sequence
    def epoch(total, x, order):
        add(total, x, batch=order[synk.STEP])
        return taken(x, x, batch=order[synk.STEP])

    with synk.fork(ranks, device="cpu"):
        x, total = synk.data(np.arange(12.0)), synk.variable(0.0)
        batches = synk.batches(x, 5, seed=2)
        for rows in batches:
            assert np.array_equal(taken(x, x, batch=rows), np.stack([rows, 2 * rows], axis=1))
        order = synk.data(np.zeros((3, 4), np.int64))
        for k in range(2):
            order[:] = synk.batches(synk.variable(np.zeros(12)), 4, seed=2).order(k)
            found = epoch(total, x, order, times=3, every=1)
            assert np.array_equal(np.stack(found)[:, :, 0].ravel(), order_of(12, 2, k))
        synk.all_reduce(total, "sum")
        assert float(total) == 2 * sum(range(12))


NO_NUMBERS = [1.5, "3", None, True, np.bool_(True), np.array(2.0), [3], 2j]


@pytest.mark.parametrize(
    "bad",
    [*NO_NUMBERS, 0, -1, -(1 << 20000)],
    ids=[*map(str, range(len(NO_NUMBERS))), "zero", "negative", "huge"],
)
def test_what_is_no_number_is_refused(bad):
    refused = pytest.raises(synk.ArgumentError, match=r"must be an int of at least \d.*, got ")
    with refused:
        synk.batches(10, bad, seed=0)
    if bad is not None:
        with refused:
            synk.batches(10, 2, seed=0, epochs=bad)
    if not isinstance(bad, int) or bad < 0:
        with refused:
            synk.batches(10, 2, seed=bad)
        with refused:
            synk.batches(10, 2, seed=0).order(bad)
        with refused:
            synk.batches(10, 2, seed=0).start_at(bad)
    if not hasattr(bad, "__len__"):
        with pytest.raises(synk.ArgumentError, match="n must be"):
            synk.batches(bad if bad != 0 else -1, 1, seed=0)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: synk.batches(3, 4, seed=0),
            synk.PartitionError,
            "a batch of 4 rows is more than the 3",
        ),
        (
            lambda: synk.batches(np.zeros((0, 3)), 1, seed=0),
            synk.PartitionError,
            "n is 0, and batches need rows",
        ),
        (
            lambda: synk.batches(np.zeros(()), 1, seed=0),
            synk.ArgumentError,
            "n must be a number of rows",
        ),
        (
            lambda: synk.batches((np.zeros((9, 3)), np.zeros(9)), 2, seed=0),
            synk.ArgumentError,
            r"got a tuple of 2\. Pass the number of rows .*synk.batches\(len\(x\), …\)",
        ),
        (
            lambda: synk.batches({"x": np.zeros(9)}, 1, seed=0),
            synk.ArgumentError,
            "got a dict of 1",
        ),
        (lambda: synk.batches([1.0, 2.0], 2, seed=0), synk.ArgumentError, "got a list of 2"),
        (
            lambda: synk.batches(3, 1, seed=0).order(1 << 64),
            synk.ArgumentError,
            f"epoch must be .* at most {MASK}",
        ),
        (
            lambda: synk.batches(3, 2, seed=1 << 64),
            synk.ArgumentError,
            f"seed must be .* at most {MASK}",
        ),
        (
            lambda: synk.batches(4, 2, seed=0).order(2**70),
            synk.ArgumentError,
            f"order: epoch must be .* at most {MASK}",
        ),
        (lambda: synk.batches(3, 2), synk.ArgumentError, "seed"),
        (
            lambda: synk.batches(3, 2, seed=0, shufle=False),
            synk.ArgumentError,
            "Did you mean shuffle=",
        ),
        (
            lambda: synk.batches(3, 2, seed=0, shuffle=1),
            synk.ArgumentError,
            "shuffle must be True or False",
        ),
        (
            lambda: synk.batches(3, 2, seed=0, drop_last="no"),
            synk.ArgumentError,
            "drop_last must be True or False",
        ),
        (
            lambda: synk.batches(7, 3, seed=0).order(0),
            synk.PartitionError,
            "2 batches of 3 rows and one of 1.*drop_last=True",
        ),
        (
            lambda: synk.batches(7, 3, seed=0).start_at(4),
            synk.ArgumentError,
            "there are 3 batches, and 4 cannot be left out",
        ),
        (
            lambda: synk.batches(7, 3, seed=0).start_at(synk.batches(8, 3, seed=1).state()),
            synk.ArgumentError,
            "other batches, with n=8 for n=7, seed=1 for seed=0$",
        ),
        (lambda: synk.batches(7, 3, seed=0).start_at({}), synk.ArgumentError, "n=None for n=7"),
    ],
)
def test_bad_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_in_the_body_of_a_sequence(no_world):
    """Rows that are drawn while a body is recorded would be the same in each iteration."""
    batches = synk.batches(8, 4, seed=0)

    @synk.function
    def use(x):
        pass

    bodies = (
        lambda x: [use(x, batch=rows) for rows in batches],
        lambda x: use(x, batch=batches.order(0)[0]),
        lambda x: use(x, batch=next(iter(synk.batches(8, 4, seed=0)))),
    )
    for body in bodies:
        told = rf"{re.escape(__file__)}:\d+: .*synk\.batches\(\) inside <lambda> would run once"
        with pytest.raises(synk.ArgumentError, match=told):
            synk.sequence(body).plan(np.zeros(8), world_size=1)
