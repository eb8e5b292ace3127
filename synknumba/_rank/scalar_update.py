"""Scalar updates: compiled code writes the numbers of the next iterations into a recording.

for each iteration: step ──formulas──> scalars of its launches ──> the device is told of each launch whose scalars have changed
"""  # noqa: E501

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, final

import numpy as np

from synknumba._formulas import Formula
from synknumba._rank.sequence_numbers import Numbers
from synknumba._rank.sequence_rows import FormulaRows, PythonOnlyError
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.relaunch import Scalar, Scalars
from synknumba._wire.sequence import Formulas

FindPlaces: TypeAlias = Callable[[int, Sequence[Scalar]], list[Scalar]]


@final
class ScalarUpdate(FormulaRows):
    """Rows that give the launches of one recording other scalars.

    Args:
        numbers: of the sequence.
        depth: of the loop whose step counts the iterations.
        launches: of each part whose numbers depend on the step: iteration in the recording, the
            formulas, what finds the places of a scalar by its offset among the packed values, and
            the places of all scalars in the recording.

    Raises:
        PythonOnlyError: compiled code cannot do it.
    """

    def __init__(
        self,
        numbers: Numbers,
        depth: int,
        launches: Iterable[tuple[int, Formulas, FindPlaces, Scalars]],
    ) -> None:
        super().__init__(numbers)
        self._first = np.zeros(1, np.int64)  # step of the first iteration
        step, begun = numbers.steps[depth:].ctypes.data, -1
        for iteration, formulas, find_places, scalars in launches:
            if not scalars.calls:  # this rank launches nothing
                continue
            if iteration != begun:
                begun = iteration
                self._row(
                    table.OPERATE,
                    step,
                    self._first.ctypes.data,
                    self._cell(iteration),
                    table.INT_ADD,
                )
            for offset, letter, formula in formulas:
                self._store(formula, letter, find_places(offset, scalars.places))
            for call in scalars.calls:
                self._row(table.REWRITE, scalars.function, *call)
        self._row(table.END, 0)
        self._table = np.array(self._rows, np.int64)
        self._state = np.zeros(table.STATE_WORDS, np.int64)
        self._state[table.STEP] = step
        self._addresses = self._table.ctypes.data, self._state.ctypes.data

    def __call__(self, step: int) -> bool:
        """Updates the recording for the iterations from `step` on. Returns false if a number
        needs Python, or a call fails.
        """
        self._first[0] = step
        self._state[: table.ITERATION + 1] = 0
        self._state[table.TIMES], self._state[table.BEGAN] = 1, 0
        return int(table.run(*self._addresses)) == table.FINISHED

    def _store(self, formula: Formula, letter: str, places: Sequence[Scalar]) -> None:
        if not places:
            raise PythonOnlyError
        source, is_float = self._number(formula)
        for place in places:
            self._store_number((letter, place.letter), place.address, source, is_float)
