"""Copies of listed rows by compiled code: NumPy's indexing, in Python and from a recording."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from synknumba._device.cpu_recording import record
from synknumba._device.row_copies import LINE, CopyRows
from synknumba._wire import doorbell

# bytes of a row: each loop of its own, the lines of a cache, and what is prefetched
WIDTHS = (0, 1, 2, 3, 4, 7, 8, 12, 16, 63, 64, 65, 128, 3136, 8191, 8192, 8193, 20_000)


def recorded(step):
    """Compiled code that repeats the step."""
    recording = record([step])
    assert recording is not None
    return lambda: doorbell.launch(recording.relaunch)


def in_python(step):
    return step


@pytest.mark.parametrize("run", [in_python, recorded])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 300])
def test_rows_are_those_of_numpy(width, count, run):
    rng = np.random.default_rng(width)
    array = rng.integers(0, 256, (301, width), np.uint8)
    before = array.copy()
    lists = rng.integers(0, 301, (4, 302))[:, 1 : 1 + count]
    lists[:, 0] = 300
    buffer = np.full((count + 1, width), 7, np.uint8)
    for numbers in lists:
        run(CopyRows.of(buffer[:-1], array, numbers[None]))()
        assert_array_equal(buffer[:-1], array[numbers])
    assert_array_equal(buffer[-1], 7)
    assert_array_equal(array, before)


@pytest.mark.parametrize("run", [in_python, recorded])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_go_back_to_their_places(width, run):
    rng = np.random.default_rng(width)
    array, buffer = (rng.integers(0, 256, (301, width), np.uint8) for _ in range(2))
    numbers = rng.permutation(301)[:200]
    expected = array.copy()
    expected[numbers] = buffer[:200]
    run(CopyRows.of(buffer[:200], array, numbers[None], back=True))()
    assert_array_equal(array, expected)


def test_the_line_changes_among_the_arguments():
    """So that a recording, which has copied them, would go on with the same rows."""
    array, lists, buffer = np.arange(10), np.array([[0, 1, 2], [5, 4, 3]])[:, 1:], np.empty(2, int)
    step = CopyRows.of(buffer, array, lists, 1)
    assert record([step]) is None
    for line in (1, 0):
        step.args[0][LINE] = np.int64(line)
        step()
        assert_array_equal(buffer, array[lists[line]])


def test_a_recording_reads_the_row_numbers_anew():
    array, numbers, buffer = np.arange(40.0).reshape(10, 4), np.array([3, 1]), np.empty((2, 4))
    run = recorded(CopyRows.of(buffer, array, numbers[None]))
    for numbers[:] in ([3, 1], [0, 9], [5, 5]):
        run()
        assert_array_equal(buffer, array[numbers])
