"""Batches: the row numbers of minibatches, epoch by epoch, as functions of a seed.

epoch k    rows 0 … n − 1, in the order of n random words of Philox with the key (seed, k)
batch j    entries j·size … (j+1)·size − 1 of that order
"""

import math
from collections.abc import Iterator, Mapping, Set, Sized
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, PartitionError, shortened
from synknumba._host.casting import as_index
from synknumba._host.stopping import stopping
from synknumba._progress import Bar, Progress, wanted
from synknumba._types import as_flag, known_options, shown

_WORD_BITS = 64  # Philox's key is two words: the seed, and the epoch
_MOST_WORD = (1 << _WORD_BITS) - 1


@final
class Batches:
    """Row numbers of minibatches. Created by `batches`.

    Iterate over it for one array of row numbers after the other, as often as wanted; `len` is the
    number of batches. The rows depend on the arguments of `batches` alone: not on the number of
    ranks, the machine, or NumPy's version.

    Example:
        >>> import synknumba as synk
        >>> batches = synk.batches(5, 2, seed=0, shuffle=False)
        >>> len(batches), [rows.tolist() for rows in batches]
        (3, [[0, 1], [2, 3], [4]])
    """

    __slots__ = (
        "_drop_last",
        "_end",
        "_epochs",
        "_n",
        "_progress",
        "_seed",
        "_shuffle",
        "_size",
        "_start",
        "_step",
    )

    def __init__(
        self,
        n: int,
        size: int,
        *,
        seed: int,
        shuffle: bool,
        epochs: int | None,
        drop_last: bool,
        start: int = 0,
        progress: Progress = False,
    ) -> None:
        self._n, self._size, self._seed = n, size, seed
        self._shuffle, self._epochs, self._drop_last = shuffle, epochs, drop_last
        self._start = self._step = start
        self._end: int | None = None  # number of batches of all epochs
        if epochs is not None:
            self._end = epochs * self.steps_per_epoch
        self._progress: Progress = progress

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return self._n // self._size if self._drop_last else -(-self._n // self._size)

    def __len__(self) -> int:
        """Returns the number of batches, from the start to the end of the last epoch."""
        if self._end is None:
            raise ArgumentError(
                "batches with epochs=None have no length; steps_per_epoch is that of an epoch"
            )
        return self._end - self._start

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Yields the rows of each batch: int64, shape (size,); the last of an epoch may have fewer.

        Ends where `synk.stopping()` is true.
        """
        tracing.refuse("going through synk.batches()")
        return self._shown() if self._progress else self._batches()

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        step = self._start
        while step != self._end:
            epoch, first = divmod(step, self.steps_per_epoch)
            rows = self._rows(epoch)
            for k in range(first, self.steps_per_epoch):
                if stopping():
                    return
                step = self._step = step + 1
                yield rows[k * self._size : (k + 1) * self._size]

    def _shown(self) -> Iterator[NDArray[np.int64]]:
        """Yields the batches, under a bar that counts those with which the loop is done."""
        total = None if self._end is None else len(self)
        with Bar(self._progress, "batches", " batches", total) as bar:
            for done, rows in enumerate(self._batches()):
                bar.show(done)
                yield rows
            bar.show(self._step - self._start)

    @shortened
    def order(self, epoch: int) -> NDArray[np.int64]:
        """Returns the rows of all batches of an epoch, for `batch=order[synk.STEP]` in a sequence.

        Args:
            epoch: number of the epoch, from 0; it may be beyond the last.

        Returns:
            Array of int64, shape (steps_per_epoch, size).

        Raises:
            PartitionError: the last batch would have fewer rows.
            ArgumentError: `epoch` is no int from 0 to 2^64 − 1.
        """
        tracing.refuse("order() of synk.batches()")
        number = _integer(epoch, "order: epoch", 0, _MOST_WORD)
        if not self._drop_last and self._n % self._size:
            raise PartitionError(
                f"order: {self._n} rows make {self._n // self._size} batches of {self._size} rows "
                f"and one of {self._n % self._size}, which is no 2-D array; pass drop_last=True to "
                "synk.batches(), or a size that divides the rows"
            )
        return self._rows(number)[: self.steps_per_epoch * self._size].reshape(-1, self._size)

    def state(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded, for `start_at`, as a dict
        that `synk.save` takes.

        With it are the arguments on which the rows depend.
        """
        return {**self._arguments(), "step": self._step}

    @shortened
    def start_at(self, position: int | Mapping[str, Any]) -> "Batches":
        """Returns the same batches, without the first ones.

        Args:
            position: number of batches to leave out, of all epochs; or what `state()` has returned.

        Raises:
            ArgumentError: the position is not one of these, or is that of other batches, or behind
                the last batch.
        """
        if isinstance(position, Mapping):
            differences = []
            for key, value in self._arguments().items():
                if position.get(key) != value:
                    differences.append(f"{key}={position.get(key)!r} for {key}={value!r}")
            if differences:
                raise ArgumentError(
                    f"start_at: the position is one of other batches, with {', '.join(differences)}"
                )
            position = position.get("step", -1)
        step = _integer(position, "start_at: position", 0)
        if self._end is not None and step > self._end:
            raise ArgumentError(
                f"start_at: there are {self._end} batches, and {step} cannot be left out; pass "
                "more epochs= to synk.batches()"
            )
        return Batches(
            **self._arguments(), epochs=self._epochs, start=step, progress=self._progress
        )

    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments on which the rows of a batch depend."""
        return {
            "n": self._n,
            "size": self._size,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
        }

    def _rows(self, epoch: int) -> NDArray[np.int64]:
        """Returns the rows in the order of an epoch."""
        if not self._shuffle:
            return np.arange(self._n, dtype=np.int64)
        # Not `Generator.permutation`, which takes a third of the time: NumPy promises the words of
        # Philox for ever, and no more than these. A stable sort leaves nothing to chance where two
        # words are equal.
        words = np.random.Philox(key=self._seed + (epoch << _WORD_BITS)).random_raw(self._n)
        return np.argsort(words, kind="stable").astype(np.int64, copy=False)

    def __repr__(self) -> str:
        """Shows the arguments, and where they start."""
        options = {**self._arguments(), "epochs": self._epochs}
        arguments = ", ".join(f"{name}={value}" for name, value in options.items())
        text = f"<Batches {arguments}>"
        if self._start:
            text += f" from step {self._start}"
        return text


@known_options
def batches(
    n: int | Sized,
    size: int,
    *,
    seed: int,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_last: bool = False,
    progress: Progress | None = None,
) -> Batches:
    """Returns the row numbers of minibatches: each row once in an epoch, in another random order in
    each.

    Args:
        n: number of rows, or what has so many: an array, `Data`, a replica; no list or other
            container, whose length may be that of a batch's inputs.
        size: number of rows of a batch, at most n.
        seed: int from 0 to 2^64 − 1.
        shuffle: whether rows are in random order; if not, in their own.
        epochs: number of epochs; None for no end.
        drop_last: whether the last batch of an epoch is left out if it has fewer rows than the
            others.
        progress: whether a loop over them draws a bar, as for a call; None for the default, which
            `synk.options` sets.

    Returns:
        The `Batches`, over which to iterate: `for rows in batches: f(x, y, batch=rows)`.

    Raises:
        ArgumentError: an argument is not of its type, or out of range.
        PartitionError: there are fewer rows than a batch has.

    Example:
        >>> import synknumba as synk
        >>> batches = synk.batches(7, 3, seed=0, epochs=2)
        >>> [rows.tolist() for rows in batches]
        [[0, 2, 1], [5, 4, 3], [6], [5, 3, 2], [4, 1, 0], [6]]
        >>> [rows.tolist() for rows in batches.start_at(4)]
        [[4, 1, 0], [6]]
    """
    tracing.refuse("synk.batches()")
    rows = _integer(_length(n), "batches: n", 0)
    if epochs is not None:
        epochs = _integer(epochs, "batches: epochs", 1)
    number = _integer(size, "batches: size", 1)
    if not rows:
        raise PartitionError("batches: n is 0, and batches need rows")
    if number > rows:
        raise PartitionError(
            f"batches: a batch of {number} rows is more than the {rows} that there "
            f"are; pass a smaller size"
        )
    return Batches(
        rows,
        number,
        seed=_integer(seed, "batches: seed", 0, most=_MOST_WORD),
        shuffle=as_flag(shuffle, "batches: shuffle"),
        epochs=epochs,
        drop_last=as_flag(drop_last, "batches: drop_last"),
        progress=wanted(progress, "batches"),
    )


def _length(n: Any) -> Any:
    if hasattr(n, "__index__") and not hasattr(n, "__len__"):
        return n
    if isinstance(n, list | tuple | Mapping | Set | str):
        raise ArgumentError(
            "batches: n must be a number of rows, or an array, whose rows are counted; got a "
            f"{type(n).__name__} of {len(n)}. Pass the number of rows of an array in it: "
            "synk.batches(len(x), …)"
        )
    try:
        return len(n)
    except TypeError:
        raise ArgumentError(
            f"batches: n must be a number of rows, or something that has rows; got {shown(n)}"
        ) from None


def _integer(value: Any, what: str, least: int, most: float = math.inf) -> int:
    """Returns an int that is in range; raises `ArgumentError` for anything else."""
    number = as_index(value)
    if least <= number <= most:
        return number
    required = f"an int of at least {least}"
    if most < math.inf:
        required += f" and at most {most}"
    raise ArgumentError(f"{what} must be {required}, got {shown(value)}")
