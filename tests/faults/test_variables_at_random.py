"""Variables through forks, deaths, snapshots and closes in random order, against a model in NumPy.

The model keeps, for each variable, its value; the value to go back to; and whether a call may have
written since it was given.
"""

import os
import random
import signal

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk

OPERATIONS = [
    "add",
    "add",
    "add",
    "set",
    "broadcast",
    "snapshot",
    "idle death",
    "death",
    "close",
    "check",
]
STEPS = 40


@synk.function
def add(v, amount):
    v += amount


@synk.function
def add_and_die(v, amount, rank, dying):
    v += amount
    if rank == dying:
        os.kill(os.getpid(), signal.SIGKILL)


class Model:
    """One variable, and what docs/variables.md says of it."""

    def __init__(self, number: int):
        self.value = np.full(2, 100.0 * number)
        self.variable = synk.variable(self.value, f"v{number}")
        self.back = None  # the value to go back to
        self.may_be_written = self.lost = self.placed = False
        self.unseen = False  # whether a snapshot was taken since it was last on ranks

    def place(self, snapshots: bool) -> None:
        """Enters a world, if it is not there yet; the value before is kept if snapshots are
        taken.
        """
        if not self.placed:
            if self.lost:
                self.back = None if self.unseen else self.back
            elif self.unseen or snapshots or self.back is not None:
                self.back = self.value
            self.placed, self.unseen, self.may_be_written = True, False, False

    def add(self, amount: float) -> None:
        self.value = self.value + amount
        self.may_be_written = True

    def give(self, value: np.ndarray) -> None:
        self.value, self.lost, self.may_be_written = value, False, False

    def snapshot(self) -> None:
        if self.placed and not self.lost:
            self.back, self.may_be_written = self.value, False
        else:
            self.unseen = True

    def fail(self, snapshots: bool, *, torn: bool) -> None:
        """A rank has died, in a call that had this variable (`torn`) or had not."""
        if self.placed and (torn or (self.may_be_written and snapshots)):
            if self.back is not None:
                self.value = self.back
            elif torn:
                self.lost = True
        self.placed = False

    def check(self) -> None:
        if self.lost:
            with pytest.raises(synk.VariableLost):
                self.variable.get_value()
        else:
            assert_array_equal(self.variable.get_value(), self.value)


def run(seed: int) -> None:
    choose = random.Random(seed)
    models = [Model(number) for number in range(3)]
    world, snapshots, done = None, False, []
    try:
        for _ in range(STEPS):
            if world is None:
                size, respawn = choose.choice([1, 2, 3]), choose.random() < 0.6
                world, snapshots = synk.fork(size, device="cpu", respawn=respawn), False
                done.append(("fork", size, respawn))
            model, operation = choose.choice(models), choose.choice(OPERATIONS)
            done.append((operation, models.index(model)))
            if model.lost and operation in {"add", "death"}:
                operation = "set"
            if world.closed and operation in {
                "set",
                "snapshot",
                "broadcast",
                "idle death",
                "check",
            }:
                synk.broadcast(synk.variable(0.0))  # starts the ranks again
            match operation:
                case "add":
                    add(model.variable, 1.0)
                    model.place(snapshots)
                    model.add(1.0)
                case "set" | "broadcast":
                    value = np.full(2, float(choose.randrange(1000)))
                    model.variable.set_value(value) if operation == "set" else synk.broadcast(
                        model.variable, value
                    )
                    model.place(snapshots)
                    model.give(value)
                case "snapshot":
                    world.snapshot()
                    snapshots = True
                    for one in models:
                        one.snapshot()
                case "idle death" | "death":
                    if operation == "death":
                        with pytest.raises(synk.RankDied):
                            add_and_die(model.variable, 1.0, synk.RANK, choose.randrange(size))
                        model.place(snapshots)
                    else:
                        os.kill(choose.choice(world.pids), signal.SIGKILL)
                        with pytest.raises(synk.RankDied):
                            synk.broadcast(synk.variable(0.0))
                    for one in models:
                        one.fail(snapshots, torn=operation == "death" and one is model)
                    if not respawn:
                        world = None
                case "close":
                    world.close()
                    world = None
                    for one in models:
                        one.placed = False
            for one in models if operation in {"idle death", "death", "close"} else []:
                one.check()
            if operation == "check":
                model.check()
                if not model.lost:
                    model.place(snapshots)
    except BaseException as error:
        error.add_note(f"seed {seed}: {done}")
        raise
    finally:
        synk.close()


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(8))
def test_values_are_those_of_the_model(seed):
    run(seed)
