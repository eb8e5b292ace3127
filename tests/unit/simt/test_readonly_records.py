"""Records of read-only arrays: read as others are, and never written."""

import numpy as np
import pytest
from numba import cuda

from synknumba import ArgumentError, simt

INNER = np.dtype([("u", "f4"), ("v", "i4")])
INNER_PAIRS = np.dtype([("v", "i4"), ("w", "f4", (7,))])
RECORD = np.dtype([("a", "i4"), ("b", "f8"), ("p", "f4", (4,)), ("n", INNER)])


@pytest.fixture
def rows() -> np.ndarray:
    made = np.zeros(4, RECORD)
    made["b"], made["p"], made["n"]["u"] = np.arange(4), np.arange(16).reshape(4, 4), 7
    made.setflags(write=False)
    return made


def a_field(r):
    r[0].a = 9


def a_nested_array(r):
    r[0].p[1] = 65


def a_nested_record(r):
    r[0].n.u = 1


@cuda.jit(device=True)
def write(q):
    q.a = 5


def by_a_device_function(r):
    write(r[2])


def by_its_name(r):
    r[0]["a"] = 9


def a_variable(r):
    q = r[1]
    q.b = 3


def in_a_loop(r):
    for q in r:
        q.a = 4


def a_part_of_a_nested_array(r):
    q = r[0].p[1:]
    q[0] = 1


def atomically(r):
    cuda.atomic.add(r[0].p, 0, 1)


def a_view_of_records(r):
    r.view(INNER_PAIRS)[0].v = 1


MORE = [by_its_name, a_variable, in_a_loop, a_part_of_a_nested_array, atomically, a_view_of_records]


@pytest.mark.parametrize(
    "function",
    [
        a_field,
        a_nested_array,
        a_nested_record,
        by_a_device_function,
        *(pytest.param(one, marks=pytest.mark.whole) for one in MORE),
    ],
)
def test_writes_are_refused(function, rows):
    before = rows.tobytes()
    with pytest.raises(ArgumentError, match=r"(r is|array that is) read-only.*; pass a copy"):
        simt.jit(function)[1, 1](rows)
    assert rows.tobytes() == before


def test_a_record_and_a_tuple(rows):
    def of_a_record(r):
        r.a = 9

    def of_a_tuple(t):
        t[0][0].a = 3

    for function, argument in ((of_a_record, rows[1]), (of_a_tuple, (rows, 1))):
        with pytest.raises(ArgumentError, match="is read-only; pass a copy"):
            simt.jit(function)[1, 1](argument)
    assert not rows["a"].any()
    loose = rows.copy()
    simt.jit(of_a_record)[1, 1](loose[1])
    assert loose["a"].tolist() == [0, 9, 0, 0]


def a_view_of_numbers(x):
    x.view(INNER)[1].v = 1


@cuda.jit(device=True)
def viewed(x):
    return x.view(INNER)


def views_of_a_device_function(x):
    for q in viewed(x):
        q.v = 1


@pytest.mark.parametrize(
    "function",
    [a_view_of_numbers, pytest.param(views_of_a_device_function, marks=pytest.mark.whole)],
)
def test_views_of_an_array_of_numbers_as_records(function):
    x = np.zeros(4)
    kernel = simt.jit(function)
    kernel[1, 1](x)
    assert x.view(INNER)["v"][1] == 1
    x[:] = 0
    x.setflags(write=False)
    with pytest.raises(ArgumentError, match=r"(x is|array that is) read-only.*; pass a copy"):
        kernel[1, 1](x)
    assert not x.any()


TABLE = np.zeros(3, INNER)
TABLE["u"] = np.arange(3)


def of_a_global(x):
    TABLE[0].v = 1


def of_a_constant(x):
    table = cuda.const.array_like(TABLE)
    table[1].v = 1


def of_a_view_of_a_global(x):
    TABLE.view(np.float64).view(INNER)[0].v = 1


@pytest.mark.parametrize(
    "function",
    [
        of_a_global,
        *(
            pytest.param(one, marks=pytest.mark.whole)
            for one in (of_a_constant, of_a_view_of_a_global)
        ),
    ],
)
def test_records_of_global_arrays_are_constants(function):
    with pytest.raises(
        ArgumentError,
        match="writes to a global array or a constant, which are read-only; pass the array",
    ):
        simt.jit(function)[1, 1](np.zeros(3))


def test_records_of_global_arrays_are_read():
    @simt.jit
    def reads(x):
        i = cuda.grid(1)
        row = TABLE[i]
        x[i] = row.u + cuda.const.array_like(TABLE)[2 - i].u * 10 + len(TABLE) * 100

    x = np.zeros(3)
    reads[1, 3](x)
    assert x.tolist() == [320, 311, 302]


def test_they_are_read_and_copied(rows):
    @simt.jit
    def copies(r, out, others, b):
        i = cuda.grid(1)
        out[i] = r[i]
        chosen = r[i]
        if i > 1:
            chosen = others[i]
        shared = cuda.shared.array(4, RECORD)
        shared[i] = r[i]
        cuda.syncthreads()
        b[i] = chosen.b + shared[3 - i].p[1] + r[i].n.u + r[i].p.sum()

    out, others, b = np.zeros(4, RECORD), np.zeros(4, RECORD), np.zeros(4)
    others["b"] = 100
    copies[1, 4](rows, out, others, b)
    assert (out == rows).all()
    np.testing.assert_array_equal(b, [0, 1, 100, 100] + rows["p"][::-1, 1] + 7 + rows["p"].sum(1))
