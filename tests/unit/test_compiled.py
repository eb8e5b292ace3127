"""The package's own compiled functions (`_wire/compiled.py`)."""

import itertools

import pytest
from numba import types
from numba.core.bytecode import FunctionIdentity
from numba.extending import register_jitable

from synknumba._wire.compiled import compiled
from synknumba._wire.native import address_of
from synknumba.simt.internals import emitted


@emitted("void()")
def stay_a_call(builder):
    """Keeps LLVM from inlining the function that calls this."""
    builder.function.attributes.add("noinline")


@pytest.fixture(params=[1, 2], ids=["compiled", "loaded"])
def scales(request, tmp_path, monkeypatch):
    """Two functions of one name that processes of their own have numbered alike; compiled here,
    or loaded.
    """
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path))

    def make(factor):
        @register_jitable
        def times(x: int) -> int:
            stay_a_call()
            return factor * x

        def scale(x: int) -> int:
            return times(x)

        monkeypatch.setattr(FunctionIdentity, "_unique_ids", itertools.count(10**6))
        return compiled("int64(int64)")(scale)

    for _ in range(request.param):
        made = make(2), make(3)
    return made


def test_functions_of_one_name_have_symbols_of_their_own(scales):
    found = []
    for function in scales:
        result = function.overloads[types.int64,]
        name = result.fndesc.llvm_func_name
        found.append((function(10), name, address_of(result)))
    (two, *first), (three, *second) = found
    assert (two, three) == (20, 30)
    assert first[0] != second[0]
    assert first[1] != second[1]
