"""Kernels that are generated around a function surely read their rows, so that frozen ones are
not copied for a call.
"""

import numpy as np
import pytest
from numba import cuda
from numba.core import types

from synknumba._rowwise.generate import define_kernel
from synknumba._rowwise.map_kernels import (
    MapRecipe,
    Operand,
    ReductionRecipe,
    map_source,
    reduction_source,
)
from synknumba._rowwise.moment_kernels import Recipe, kernel_source
from synknumba._source.access import read_parameters


def kernel_of(text, function):
    scope = {"float64": np.float64, "nan": np.nan}
    scope |= {f"synk_{kind}": kind for kind in (types.float64, types.int64, types.uint64)}
    name = text.removeprefix("def ").partition("(")[0]
    return define_kernel(text, name, "test", cuda.jit(device=True)(function), scope)


@pytest.mark.parametrize("together", [1, 4])
def test_means_read_rows_that_are_numbers(together):
    kinds = {"x": "numbers", "m": "rows", "i": "indices", "table": "whole"}
    recipe = Recipe("mean", kinds, None, None, False, "float64", True, together=together)
    kernel = kernel_of(kernel_source(recipe), lambda x, m, i, table: x + m[0] + table[i])
    # A row of m, and the table, go on to the function.
    assert read_parameters(
        kernel, {"x": 1, "m": 2, "table": 1, "synk_partials": 3, "synk_slice": 0}
    ) == {"x"}


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_maps_read_all_but_the_result(axes, counted):
    operands = {
        "x": Operand("rows", (True,) * axes),
        "y": Operand("rows", (False,) * axes, "synk_float64"),
        "table": Operand("whole", (True,) * axes),
        "n": Operand("scalar"),
    }
    kernel = kernel_of(
        map_source(MapRecipe("map", operands, axes, counted=counted)),
        lambda x, y, table, n: x + y + table + n,
    )
    dimensions = {"x": 1 + axes, "y": 1 + axes, "table": axes, "n": 0, "out": 1 + axes}
    assert read_parameters(kernel, dimensions) == {"x", "y", "table"}


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_reductions_read_their_rows(axes, is_divided):
    recipe = ReductionRecipe("reduction", "x", False, axes, "synk_float64", is_divided)
    kernel = kernel_of(reduction_source(recipe), lambda x, y: x + y)
    dimensions = {"x": 1 + axes, "synk_partials": 2 + axes, "synk_there": 2, "synk_slice": 0}
    assert read_parameters(kernel, dimensions) == {"x"}
