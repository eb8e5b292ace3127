"""A parameter that a kernel writes to is never said to be read only, whatever way its source takes
to it.

Every kernel is run by Python on NumPy arrays too: it does write.
"""

import pytest

from tests.unit.reads.asked import read, run

NOTHING = None
EVERYTHING = slice(None)


def store(array, i=0):
    array[i] = -1.0


def of(array):
    return array


WRITES = []


def writes(kernel):
    """Puts a kernel among those that write."""
    WRITES.append(kernel)
    return kernel


@writes
def a_store(x):
    x[0] = 0


@writes
def a_store_in_place(x):
    x[0] += 1


@writes
def the_whole_array(x):
    x += 1


@writes
def a_store_to_a_row(m):
    m[0][:] = 0


@writes
def a_store_by_two_indices(m):
    m[0][1] = 0


@writes
def a_store_behind_two_indices(c):
    c[0, 1][2] = 0


@writes
def one_of_several_targets(x, y):
    (a, x[0]), y[1] = (1, 0), 0
    return a


@writes
def a_starred_target(x):
    _, *x[:2] = 1, 0, 0


@writes
def a_target_of_a_loop(x):
    for x[0] in range(3):
        pass


@writes
def a_target_of_with(x):
    import contextlib

    with contextlib.nullcontext(0) as x[0]:
        pass


@writes
def another_name(x):
    a = x
    a[0] = 0


@writes
def another_name_twice(x, y):
    a, b = y, x
    b[0] = a[0]


@writes
def swapped_names(x, out):
    x, out = out, x
    out[0] = -1


@writes
def a_walrus(x):
    (_a := x)[0] = 0


@writes
def one_of_two(x, y, n):
    a = x if n else y
    a[0] = 0


@writes
def one_or_the_other(x, n):
    (n > 1 and x)[0] = 0


@writes
def a_tuple(x, y):
    (y, x)[1][0] = 0


@writes
def a_list(x, y):
    for a in [x, y]:
        a[0] = 0


@writes
def rows_one_by_one(m):
    for row in m:
        row[0] = 0


@writes
def a_row(m):
    row = m[1]
    row[0] = 0


@writes
def a_slice(x):
    part = x[1:]
    part[0] = 0


@writes
def a_slice_of_one_axis(m):
    part = m[0, 1:]
    part[0] = 0


@writes
def a_slice_by_name(x):
    s = slice(1, 3)
    part = x[s]
    part[0] = 0


@writes
def a_slice_from_outside(x):
    part = x[EVERYTHING]
    part[0] = 0


@writes
def a_new_axis(x):
    part = x[None]
    part[0, 0] = 0


@writes
def a_new_axis_from_outside(x):
    part = x[NOTHING]
    part[0, 0] = 0


@writes
def a_new_axis_from_the_caller(x, k):
    part = x[k]
    part[0, 0] = 0


@writes
def an_ellipsis(x):
    part = x[...]
    part[0] = 0


@writes
def an_ellipsis_for_the_last_axis(m):
    part = m[0, ...]
    part[0] = 0


@writes
def a_tuple_of_slices(m):
    where = (slice(0, 2),)
    part = m[where][0]
    part[0] = 0


@writes
def an_empty_tuple(x):
    where = ()
    part = x[where]
    part[0] = 0


@writes
def an_empty_tuple_by_arithmetic(x, pair):
    part = x[pair * 0]
    part[0] = 0


@writes
def an_empty_sum(x):
    a = ()
    part = x[a + a]
    part[0] = 0


@writes
def a_starred_index(m):
    where = (0, slice(None))
    part = m[*where]
    part[0] = 0


@writes
def a_sometime_slice(x, n):
    s = 0
    if n:
        s = slice(0, 2)
    part = x[s]
    part[0] = 0


@writes
def a_slice_out_of_a_tuple(x):
    both = (slice(0, 2), 1)
    part = x[both[0]]
    part[0] = 0


@writes
def a_slice_out_of_a_pair(x):
    s, n = slice(0, 2), 1
    part = x[s]
    part[n] = 0


@writes
def a_slice_by_choice(x, n):
    part = x[slice(0, 2) if n else 0]
    part[0] = 0


@writes
def a_slice_by_walrus(x):
    part = x[(s := slice(0, 2))]
    part[0] = s.start


@writes
def a_slice_by_a_call(x):
    part = x[of(EVERYTHING)]
    part[0] = 0


@writes
def a_slice_by_a_loop(x):
    for s in (slice(0, 2),):
        part = x[s]
        part[0] = 0


@writes
def a_slice_by_a_pattern(x, n):
    s = 0
    match slice(0, n):
        case s:
            pass
    part = x[s]
    part[0] = 0


@writes
def a_slice_by_a_global(x):
    global EVERYTHING  # noqa: PLW0603
    EVERYTHING = 0
    EVERYTHING = globals()["_EVERYTHING"]
    part = x[EVERYTHING]
    part[0] = 0


_EVERYTHING = slice(None)


@writes
def a_new_axis_by_an_import(x, n):
    s = n
    from numpy import newaxis as s  # noqa: F811

    part = x[s]
    part[0, 0] = 0


@writes
def a_pattern(x):
    match x:
        case a:
            a[0] = 0


@writes
def a_comprehension(x):
    [a for a in [x] if len(a)][0][0] = 0  # noqa: RUF015


@writes
def an_index_of_a_comprehension(x):
    [0 for EVERYTHING in range(2)]
    part = x[EVERYTHING]
    part[0] = 0


@writes
def a_function(x):
    store(x)


@writes
def a_function_by_keyword(x):
    store(i=0, array=x)


@writes
def a_function_of_a_row(m):
    store(m[0])


@writes
def a_function_of_all_arguments(x):
    store(*(x,))


@writes
def a_function_that_returns_it(x):
    of(x)[0] = 0


@writes
def a_method(x):
    x.fill(0)


@writes
def a_transposed_view(m):
    m.T[0, 0] = 0


@writes
def a_flat_view(m):
    m.flat[0] = 0


@writes
def a_reshaped_view(m):
    m.reshape(16)[0] = 0


@writes
def an_inner_function(x):
    def inner():
        x[0] = 0

    inner()


@writes
def an_inner_function_with_a_default(x):
    def inner(a=x):
        a[0] = 0

    inner()


@writes
def an_inner_function_that_rebinds(x, out):
    a = out

    def inner():
        nonlocal a
        a = x

    inner()
    a[0] = -1


@writes
def a_lambda(x):
    inner = lambda a=x: store(a)  # noqa: E731
    inner()


@pytest.mark.parametrize("kernel", WRITES, ids=lambda one: one.__name__)
def test_what_is_written_is_not_surely_read(kernel):
    written = run(kernel)
    assert written
    assert not written & read(kernel)
