"""The source of a function is read once, for all that is refused or decided by it."""

import inspect

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._source import definition
from synknumba._source.access import read_parameters, written_parameters


def test_one_reading_serves_every_analysis():
    def doubled(x, y):
        i, j = cuda.grid(2)
        if i < x.shape[0]:
            for k in range(j, x.shape[1], cuda.gridsize(2)[1]):
                total = 2 * x[i, k]
                y[i, k] = total
            y[i, 0] += 0

    definition._read.cache_clear()
    synk.parallel(inout=("y",))(doubled)
    assert written_parameters(doubled).keys() == {"y"}
    assert read_parameters(doubled, {"x": 2, "y": 2}) == {"x"}
    assert definition._read.cache_info().misses == 1
    assert definition._read.cache_info().hits >= 2


def test_lines_are_those_of_the_file():
    def written(x):
        x[0] = 1

    read = definition.read_code(written.__code__)
    assert read.tree.lineno == inspect.getsourcelines(written)[1]
    assert read.parameters == ["x"]
    assert written_parameters(written) == {"x": read.tree.lineno + 1}


def test_equal_functions_of_two_files_are_read_each(tmp_path):
    codes = []
    for name, text in {"a.py": "def f(x):\n    x[0] = 1\n", "b.py": None}.items():
        namespace: dict = {}
        if text is not None:
            (tmp_path / name).write_text(text)
        exec(compile("def f(x):\n    x[0] = 1\n", tmp_path / name, "exec"), namespace)
        codes.append(namespace["f"].__code__)
    assert codes[0] == codes[1]
    assert [definition.read_code(code) is None for code in codes] == [False, True]


def test_a_wrapped_function_is_read_for_what_it_writes():
    def wrapped(x):
        x[0] = np.inf

    def wrapper(*args):
        return wrapped(*args)

    wrapper.__wrapped__ = wrapped
    assert written_parameters(wrapper).keys() == {"x"}
    assert definition.read_code(wrapper.__code__).parameters == []
    assert definition.read_function(np.add) is None


@pytest.mark.parametrize("text", ["# nothing but a remark\n" * 9, "x = (\n" * 9, ""])
def test_a_file_in_the_middle_of_an_edit(tmp_path, text):
    source = "\n" * 4 + "def f(x):\n    return x\n"
    path = tmp_path / "script.py"
    scope = {}
    exec(compile(source, str(path), "exec"), scope)
    path.write_text(text)
    assert definition.read_function(scope["f"]) is None
