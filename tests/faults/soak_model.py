"""What a script may do in any order, beside a model of it in NumPy: every step checks what it gets
against the model.

A step takes `pick`, which chooses one of n: Hypothesis, or a random generator. All numbers are
integers, so results are equal to the model's in every bit.
"""

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numba import cuda

import synknumba as synk
from synknumba._types import DeviceKind

Pick = Callable[[int], int]
MOST = 5  # arrays, variables and kept results at a time
LENGTHS = (1, 2, 3, 7, 100, 1001, 4096, 40_000)
FEW = (1, 2, 5, 300)


@synk.function(outputs="sum")
def weighted_sum(x, k):
    return (k * x).sum()


@synk.function(outputs={"rows": "gather", "low": "min", "each": None})
def several(x):
    return {"rows": x + 1, "low": x.min(), "each": np.int64(len(x))}


@synk.function(outputs="sum", broadcast=("table",))
def looked_up(x, table):
    return table[x % len(table)].sum()


@synk.function(outputs="sum")
def fails(x, rank, which):
    if rank == which:
        raise ValueError("on purpose")
    return x.sum()


@synk.function()
def add_to(variable, k, rank):
    variable += k * (rank + 1)


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="int64"),
        "high": synk.output("max", shape=(), dtype="int64"),
        "rows": synk.output("gather", like="x"),
    }
)
def kernel(x, k, total, high, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        rows[i] = k * x[i]
        cuda.atomic.add(total, 0, x[i])
        cuda.atomic.max(high, 0, x[i])


@synk.parallel(inout=("y",))
def increase(y, k):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] += k


@synk.function(outputs="gather")
def ends(variable):
    return variable[[0, -1]]


@synk.parallel(grid="elements", outputs={"total": synk.output("sum", shape=(), dtype="int64")})
def shift(v, u, k, total):
    i = cuda.grid(1)
    if i < u.shape[0]:
        v[i] = u[i] + k
        cuda.atomic.add(total, 0, u[i] + k)


@synk.sequence
def advance(u, v, sums, k):
    found = shift(v, u, k)
    synk.all_reduce(v, "max")
    add_to(sums, found, 0)
    synk.swap(u, v)
    return found


class Model:
    """A script's state, and what it must be."""

    def __init__(self, device: DeviceKind = "cpu", world_size: int = 2) -> None:
        self.device = device
        self.calls = 0
        self.worlds = 0
        self.arrays: list[tuple[synk.Data, np.ndarray]] = []
        self.variables: list[tuple[synk.Variable, list[np.ndarray]]] = []
        self.results: list[tuple[np.ndarray, np.ndarray]] = []  # what a call returned, and a copy
        self.world: synk.World | None = None
        if world_size:
            self.fork(world_size)

    # ---- state

    def fork(self, world_size: int) -> None:
        """Another world; what was on the old one's ranks is gone."""
        synk.close()
        self.variables.clear()
        self.world = synk.fork(world_size, device=self.device)
        self.worlds += 1

    @property
    def ranks(self) -> range:
        assert self.world is not None
        return range(self.world.world_size)

    def close(self) -> None:
        """Lets go of everything."""
        synk.close()
        self.check_results()
        self.arrays.clear()
        self.variables.clear()
        self.results.clear()

    def check_results(self) -> None:
        """What was returned stays as it was, whatever is called later."""
        for got, expected in self.results:
            assert np.array_equal(got, expected)

    def _array(self, pick: Pick) -> tuple[synk.Data, np.ndarray]:
        if not self.arrays:
            self.make_array(pick)
        return self.arrays[pick(len(self.arrays))]

    def _variable(self, pick: Pick) -> tuple[int, synk.Variable, list[np.ndarray]]:
        if not self.variables:
            self.make_variable(pick)
        chosen = pick(len(self.variables))
        return chosen, *self.variables[chosen]

    @staticmethod
    def _batch(pick: Pick, length: int) -> tuple[object, np.ndarray]:
        """A selection of rows as a call takes it, and as their numbers."""
        rows = np.arange(length)
        match pick(5):
            case 0:
                n = 1 + pick(length)
                return n, rows[:n]
            case 1:
                chosen = slice(pick(length), None, 1 + pick(3))
                return chosen, rows[chosen]
            case 2:
                indices = [pick(length) for _ in range(1 + pick(6))]
                return indices, np.array(indices)
            case 3:
                stop = 1 + pick(length)
                return slice(0, stop), rows[:stop]
            case _:
                return None, rows

    # ---- arrays

    def make_array(self, pick: Pick) -> None:
        value = np.arange(LENGTHS[pick(len(LENGTHS))]) * (1 + pick(5)) - pick(100)
        self.arrays.append((synk.data(value), value))
        del self.arrays[:-MOST]

    def change_array(self, pick: Pick) -> None:
        data, _ = self._array(pick)
        at = next(i for i, (one, _) in enumerate(self.arrays) if one is data)
        value = np.arange(LENGTHS[pick(len(LENGTHS))]) + pick(7)
        data.set_value(value)
        self.arrays[at] = data, value

    def drop_array(self, pick: Pick) -> None:
        if self.arrays:
            del self.arrays[pick(len(self.arrays))]

    # ---- calls

    def call_function(self, pick: Pick) -> None:
        data, value = self._array(pick)
        batch, rows = self._batch(pick, len(value))
        slices = 1 + pick(3)
        for k in range(1 + pick(12)):
            assert weighted_sum(data, k, batch=batch, num_slices=slices) == k * value[rows].sum()
            self.calls += 1

    def repeat_function(self, pick: Pick) -> None:
        data, value = self._array(pick)
        total = value.sum()
        for k in range(1 + pick(60)):
            assert weighted_sum(data, k) == k * total
        self.calls += k + 1

    def call_kernel(self, pick: Pick) -> None:
        data, value = self._array(pick)
        batch, rows = self._batch(pick, len(value))
        for k in range(1 + pick(12)):
            got = kernel(data, k, batch=batch)
            chosen = value[rows]
            assert (got.total, got.high) == (chosen.sum(), chosen.max())
            assert np.array_equal(got.rows, k * chosen)
            self.calls += 1
        if pick(4) == 0:
            self.results.append((got.rows, k * chosen))
            del self.results[:-MOST]

    def call_with_numpy(self, pick: Pick) -> None:
        value = np.arange(LENGTHS[pick(len(LENGTHS))]) - pick(50)
        table = np.arange(FEW[pick(len(FEW))]) * 3
        assert looked_up(value, table) == table[value % len(table)].sum()
        self.calls += 1

    def call_for_several(self, pick: Pick) -> None:
        data, value = self._array(pick)
        if len(value) < len(self.ranks):
            return  # a rank without rows has no lowest one
        got = several(data)
        assert np.array_equal(got["rows"], value + 1)
        assert got["low"] == value.min()
        assert sum(got["each"]) == len(value)
        self.results.append((got["rows"], value + 1))
        del self.results[:-MOST]
        self.calls += 1

    def call_in_flight(self, pick: Pick) -> None:
        data, value = self._array(pick)
        futures = [
            several.submit(data) if len(value) >= len(self.ranks) else None,
            weighted_sum.submit(data, 2),
        ]
        if pick(2):
            assert weighted_sum(data, 3) == 3 * value.sum()
        assert futures[1].result() == 2 * value.sum()
        if futures[0] is not None:
            assert np.array_equal(futures[0].result()["rows"], value + 1)
        self.calls += 3

    def write_rows(self, pick: Pick) -> None:
        data, value = self._array(pick)
        k = pick(9)
        increase(data, k)
        value += k
        assert np.array_equal(data, value)
        self.calls += 1

    def call_serially(self, pick: Pick) -> None:
        data, value = self._array(pick)
        assert weighted_sum.as_serial(data, 3) == 3 * value.sum()
        self.calls += 1

    # ---- variables and collectives

    def make_variable(self, pick: Pick) -> None:
        value = np.arange(LENGTHS[pick(len(LENGTHS))])
        self.variables.append((synk.variable(value), [value.copy() for _ in self.ranks]))
        del self.variables[:-MOST]

    def drop_variable(self, pick: Pick) -> None:
        if self.variables:
            del self.variables[pick(len(self.variables))]

    def change_variable(self, pick: Pick) -> None:
        _, variable, held = self._variable(pick)
        if pick(2):
            rank, value = pick(len(held)), np.arange(len(held[0])) + pick(9)
            if value.shape == held[0].shape:
                synk.set_value(rank, variable, value)
                held[rank] = value
        else:
            k = pick(5)
            add_to(variable, k, synk.RANK)
            for rank in self.ranks:
                held[rank] = held[rank] + k * (rank + 1)
        self.calls += 1
        self._check_variable(pick, variable, held)

    def collective(self, pick: Pick, kind: int | None = None) -> None:
        at, variable, held = self._variable(pick)
        uniform = len({one.shape for one in held}) == 1
        kind = pick(6 if uniform else 1) if kind is None else kind
        if kind == 0:
            value = np.arange(LENGTHS[pick(len(LENGTHS))]) * 2
            synk.scatter(variable, value)
            bounds = [rank * len(value) // len(held) for rank in range(len(held) + 1)]
            held = [value[a:b] for a, b in itertools.pairwise(bounds)]
        elif kind == 1:
            synk.all_reduce(variable, "max")
            held = [np.maximum.reduce(held)] * len(held)
        elif kind == 2:
            root = pick(len(held))
            synk.broadcast(variable, root=root)
            held = [held[root]] * len(held)
        elif kind == 3:
            root = pick(len(held))
            synk.reduce(variable, "min", root=root)
            held = [
                np.minimum.reduce(held) if rank == root else one for rank, one in enumerate(held)
            ]
        elif kind == 4 or len(held[0]) < len(held):
            assert np.array_equal(synk.gather(variable, nd_up=0), np.concatenate(held))
        else:
            self._exchange(held[0])
        held = [one.copy() for one in held]
        self.variables[at] = variable, held
        self.calls += 1
        self._check_variable(pick, variable, held)

    def scatter(self, pick: Pick) -> None:
        self.make_variable(pick)
        self.collective(pick, 0)

    def halo(self, pick: Pick) -> None:
        self._exchange(np.arange(len(self.ranks) + LENGTHS[pick(len(LENGTHS))]))

    def _exchange(self, value: np.ndarray) -> None:
        haloed = synk.scatter(synk.variable(value), halo=1, periodic=True)
        add_to(haloed, 3, 0)
        assert np.array_equal(synk.gather(synk.exchange(haloed), nd_up=0), value + 3)
        bounds = [rank * len(value) // len(self.ranks) for rank in range(len(self.ranks) + 1)]
        around = [
            value[at % len(value)] + 3 for a, b in itertools.pairwise(bounds) for at in (a - 1, b)
        ]
        assert np.array_equal(ends(haloed), around)
        self.calls += 4

    def sequence(self, pick: Pick) -> None:
        times, k, length = 1 + pick(40), pick(9), LENGTHS[pick(len(LENGTHS))]
        u, v, sums = (synk.variable(np.zeros(n, np.int64)) for n in (length, length, 1))
        each = len(self.ranks) * length * k * np.arange(1, times + 1)
        assert np.array_equal(advance(u, v, sums, k, times=times, every=1), each)
        for one, expected in ((u, k * times), (v, k * (times - 1)), (sums, each.sum())):
            found = one.get_value(pick(len(self.ranks)))
            assert np.array_equal(found, np.full(found.shape, expected))
        self.calls += 1

    def _check_variable(self, pick: Pick, variable: synk.Variable, held: list[np.ndarray]) -> None:
        rank = pick(len(held))
        assert np.array_equal(variable.get_value(rank), held[rank])

    # ---- what goes wrong

    def refused(self, pick: Pick) -> None:
        data, value = self._array(pick)
        with suppress(synk.BatchError):
            weighted_sum(data, 1, batch=len(value) + 1 + pick(5))
            raise AssertionError
        with suppress(synk.ArgumentError):
            weighted_sum(data)
            raise AssertionError
        self.calls += 2

    def fail_on_a_rank(self, pick: Pick) -> None:
        data, value = self._array(pick)
        which = pick(len(self.ranks))
        if len(value) < len(self.ranks):
            return  # ranks without rows are not asked
        try:
            fails(data, synk.RANK, which)
            failed = []
        except synk.RankError as error:
            failed = [one.rank for one in error.failures]
        assert failed == [which]
        assert fails(data, synk.RANK, -1) == value.sum()
        self.calls += 2

    def kill_a_rank(self, pick: Pick) -> None:
        assert self.world is not None
        data, _ = self._array(pick)
        sig = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)[pick(3)]
        os.kill(self.world.pids[pick(len(self.ranks))], sig)
        try:
            while True:  # it may be alive for some calls more
                weighted_sum(data, 1)
                self.calls += 1
        except synk.WorldError as error:
            told = str(error)
        assert sig.name in told, told
        self.check_data()
        self.fork(1 + pick(3))

    def another_world(self, pick: Pick) -> None:
        self.fork(1 + pick(3))
        self.check_data()

    def check_data(self) -> None:
        """Whatever has become of a world, data are as they were."""
        for data, value in self.arrays:
            assert np.array_equal(data, value)
        self.check_results()


# Steps, and how often each is made, of the sum of all.
COMMON = {
    "repeat_function": 30,
    "call_function": 12,
    "call_kernel": 8,
    "call_with_numpy": 4,
    "call_for_several": 3,
    "write_rows": 3,
    "call_serially": 1,
    "call_in_flight": 1,
    "make_array": 2,
    "change_array": 2,
    "drop_array": 1,
    "make_variable": 1,
    "drop_variable": 1,
    "change_variable": 4,
    "collective": 6,
    "sequence": 1,
    "refused": 2,
    "fail_on_a_rank": 2,
}
RARE = {"kill_a_rank": 2, "another_world": 1}
