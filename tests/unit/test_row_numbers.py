"""Row numbers that are none of an array's, or that a line of them lists twice."""

import numpy as np
import pytest

from synknumba._call.row_numbers import first_wrong


def expected(table, rows, once):
    for line in range(len(table)):
        for place, row in enumerate(table[line].tolist()):
            if not 0 <= row < rows or (once and row in table[line, :place]):
                return line * table.shape[1] + place
    return -1


@pytest.mark.parametrize("once", [False, True])
def test_the_first_wrong_number_of_a_table(once):
    rng, places = np.random.default_rng(0), set()
    for _ in range(1000):
        lines, count, rows = (
            int(rng.integers(low, high)) for low, high in ((0, 5), (0, 9), (1, 200))
        )
        table = rng.integers(-rng.integers(2), rows + rng.integers(2), (lines, count))
        place = expected(table, rows, once)
        assert first_wrong(table, rows, once=once) == place
        places.add(place)
    assert len(places) > 20  # the cases have some of all kinds


def test_numbers_of_neighbouring_words_of_marks():
    table = np.array([[63, 64, 127, 128, 191], [191, 0, 1, 62, 63]])
    assert first_wrong(table, 192, once=True) == -1
    assert first_wrong(table, 191, once=True) == 4
