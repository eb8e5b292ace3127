"""Any sequence of collectives on a few variables does what it does to a list of NumPy arrays, one
for each rank.

What is refused is refused for the reason that the model has for it, and changes nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import synknumba as synk
from tests.conformance.collectives.cases import (
    OPS,
    RECORD,
    assert_held,
    assert_same,
    combined,
    numbers,
    rows_of,
)
from tests.conformance.conftest import COLLECTIVE_ROWS
from tests.quick import examples

CPU_ROWS = [row for row in COLLECTIVE_ROWS if row.values[0]["device"] != "cuda"]
MOST = 700_000  # elements on a rank; a variable that would become longer is left alone

dtypes = st.sampled_from(["uint8", "int32", "float64", "complex64", "bool", RECORD])
ops = st.sampled_from(list(OPS))
places = st.integers(0, 5)
lengths = st.integers(0, 7) | st.just(300_000)  # the last is more than the coordinator does itself
seeds = st.integers(0, 2**32 - 1)


@dataclass
class Model:
    """A variable, and what is on each rank."""

    variable: synk.Variable
    ranks: list[Any]

    @property
    def dtype(self) -> Any:
        return self.ranks[0].dtype

    @property
    def rest(self) -> tuple[int, ...]:
        return self.ranks[0].shape[1:]

    def problem(self, op: str) -> type[Exception] | None:
        """Why it cannot be reduced."""
        if not any(np.dtype(dtype) == self.dtype for dtype in OPS[op][0]):
            return synk.ReductionError
        return synk.PartitionError if len({array.shape for array in self.ranks}) > 1 else None


class Sequences(RuleBasedStateMachine):
    """Two to four variables of one dimension or two."""

    world: synk.World

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []
        self.size = self.world.world_size

    def value(self, model: Model, length: int, seed: int) -> Any:
        return numbers(np.random.default_rng(seed), model.dtype, (length, *model.rest))

    def parts(self, whole: Any) -> list[Any]:
        return [whole[rows_of(len(whole), self.size, rank)] for rank in range(self.size)]

    def check(self, *models: Model) -> None:
        for model in models:
            assert_held(model.variable, self.world, model.ranks)

    def teardown(self) -> None:
        self.check(*self.models)

    @precondition(lambda self: len(self.models) < 4)
    @rule(
        dtype=dtypes,
        shape=st.tuples(lengths) | st.tuples(st.integers(0, 5), st.integers(0, 3)),
        seed=seeds,
        flat=st.booleans(),
    )
    def make(self, dtype, shape, seed, flat):
        value = numbers(np.random.default_rng(seed), dtype, shape)
        made = (synk.vector if flat else synk.variable)(value)
        self.models.append(Model(made, [value] * self.size))

    @precondition(lambda self: len(self.models) > 2)
    @rule(which=places)
    def drop(self, which):
        self.models.pop(which % len(self.models))

    def pick(self, which: int) -> Model:
        return self.models[which % len(self.models)]

    @precondition(lambda self: self.models)
    @rule(which=places, rank=places, length=lengths, seed=seeds)
    def set_value(self, which, rank, length, seed):
        model, rank = self.pick(which), rank % self.size
        model.ranks = list(model.ranks)
        model.ranks[rank] = self.value(model, length, seed)
        synk.set_value(rank, model.variable, model.ranks[rank])
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places, seed=seeds)
    def make_differ(self, which, seed):
        """All of one shape, each something else."""
        model = self.pick(which)
        model.ranks = [
            self.value(model, len(model.ranks[0]), seed + rank) for rank in range(self.size)
        ]
        for rank, value in enumerate(model.ranks):
            synk.set_value(rank, model.variable, value)
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places, root=places)
    def broadcast(self, which, root):
        model, root = self.pick(which), root % self.size
        model.ranks = [model.ranks[root]] * self.size
        synk.broadcast(model.variable, root=root)
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places, length=lengths, seed=seeds)
    def broadcast_value(self, which, length, seed):
        model = self.pick(which)
        model.ranks = [self.value(model, length, seed)] * self.size
        synk.broadcast(model.variable, model.ranks[0])
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places, length=st.none() | lengths, seed=seeds)
    def scatter(self, which, length, seed):
        model = self.pick(which)
        value = None if length is None else self.value(model, length, seed)
        model.ranks = self.parts(model.ranks[0] if value is None else value)
        synk.scatter(model.variable, value)
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places, length=lengths, seed=seeds, width=st.integers(1, 3), periodic=st.booleans())
    def exchange(self, which, length, seed, width, periodic):
        """With a halo meanwhile."""
        model = self.pick(which)
        value = self.value(model, length + width * self.size, seed)
        synk.scatter(model.variable, value, halo=width, periodic=periodic)
        for _ in range(2):
            synk.exchange(model.variable)
        for rank, part in enumerate(self.parts(value)):
            assert_same(synk.get_value(rank, model.variable), part)
        with pytest.raises((synk.PartitionError, synk.ReductionError)):
            synk.all_reduce(model.variable, "max")
        model.ranks = self.parts(value)
        synk.scatter(model.variable, value)
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=places)
    def gather(self, which):
        model = self.pick(which)
        if len({array.shape[1:] for array in model.ranks}) == 1:
            assert_same(synk.gather(model.variable, nd_up=0), np.concatenate(model.ranks))
        if len({array.shape for array in model.ranks}) == 1:
            assert_same(synk.gather(model.variable, nd_up=1), np.stack(model.ranks))
        else:
            with pytest.raises(synk.PartitionError):
                synk.gather(model.variable, nd_up=1)

    @precondition(lambda self: self.models)
    @rule(which=places, into=places)
    def all_gather(self, which, into):
        model, target = self.pick(which), self.pick(into)
        if sum(array.size for array in model.ranks) > MOST:
            return
        if target.dtype != model.dtype or len(target.rest) != len(model.rest):
            target = model
        whole = np.concatenate(model.ranks)
        synk.all_gather(model.variable, None if target is model else target.variable)
        target.ranks = [whole] * self.size
        self.check(model, target)

    @precondition(lambda self: self.models)
    @rule(which=places, into=places, length=lengths, seed=seeds, equal=st.booleans())
    def all_to_all(self, which, into, length, seed, equal):
        model, target, rng = self.pick(which), self.pick(into), np.random.default_rng(seed)
        if target.dtype != model.dtype or len(target.rest) != len(model.rest):
            target = model
        value = self.value(model, length * self.size**2 if equal else length, seed)
        model.ranks = self.parts(value)
        synk.scatter(model.variable, value)
        cuts = [
            np.linspace(0, len(rows), self.size + 1).astype(int)[1:-1]
            if equal
            else np.sort(rng.integers(0, len(rows) + 1, self.size - 1))
            for rows in model.ranks
        ]
        blocks = [np.split(rows, edges) for rows, edges in zip(model.ranks, cuts, strict=True)]
        counts = None if equal else [list(map(len, row)) for row in blocks]
        synk.all_to_all(model.variable, None if target is model else target.variable, counts)
        target.ranks = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        self.check(model, target)

    @precondition(lambda self: self.models)
    @rule(which=places, op=ops, root=places, in_place=st.booleans())
    def reduce(self, which, op, root, in_place):
        model, root = self.pick(which), root % self.size
        problem = model.problem(op)
        if problem is not None:
            with pytest.raises(problem):
                synk.reduce(model.variable, op, in_place, root=root)
        else:
            result = combined(op, model.ranks)
            found = synk.reduce(model.variable, op, in_place, root=root)
            if in_place:
                model.ranks = [
                    result if rank == root else mine for rank, mine in enumerate(model.ranks)
                ]
            else:
                assert_same(found, result)
        self.check(model)

    @precondition(lambda self: self.models)
    @rule(which=st.lists(places, min_size=1, max_size=3), op=ops)
    def all_reduce(self, which, op):
        models = [self.models[i] for i in sorted({i % len(self.models) for i in which})]
        problems = [problem for problem in (model.problem(op) for model in models) if problem]
        variables = models[0].variable if len(models) == 1 else [model.variable for model in models]
        if problems:
            with pytest.raises(tuple(problems)):
                synk.all_reduce(variables, op)
        else:
            synk.all_reduce(variables, op)
            for model in models:
                model.ranks = [combined(op, model.ranks)] * self.size
        self.check(*models)

    @precondition(lambda self: self.models)
    @rule(which=places, op=ops, into=places)
    def reduce_scatter(self, which, op, into):
        model, target = self.pick(which), self.pick(into)
        if target.dtype != model.dtype or len(target.rest) != len(model.rest):
            target = model
        dest = None if target is model else target.variable
        problem = model.problem(op)
        if problem is not None:
            with pytest.raises(problem):
                synk.reduce_scatter(model.variable, op, dest)
        else:
            parts = self.parts(combined(op, model.ranks))
            synk.reduce_scatter(model.variable, op, dest)
            target.ranks = parts
        self.check(model, target)


@pytest.mark.parametrize("row", CPU_ROWS, indirect=True)
def test_any_sequence(world):
    machine = type("SequencesHere", (Sequences,), {"world": world})
    limits = settings(
        max_examples=examples(8, quick=3),
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    with np.errstate(all="ignore"):  # products of products grow
        run_state_machine_as_test(machine, settings=limits)
