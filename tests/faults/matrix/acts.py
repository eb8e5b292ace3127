"""What a script does wrong: arguments, kernels, results, exceptions, and what does not unpickle."""

import os
import threading

from numba import cuda

import synknumba as synk
from synknumba._host import this_process
from tests.faults.matrix.acting import act, here, mask
from tests.faults.matrix.phases import BOARD, LARGE, total

FAR = 10**13  # elements behind an array: no page is there


# ---- arguments: refused in the coordinator, nothing is sent --------------------------------------


@act("an unknown argument")
def _(calls, ranks):
    total(calls.numbers, y=1)


@act("an argument that cannot be sent")
def _(calls, ranks):
    total(threading.Lock())


@act("a batch out of range")
def _(calls, ranks):
    total(calls.numbers, batch=5000)


@synk.function(outputs="sum")
def dot(x, y):
    return x @ y


@act("lengths that differ")
def _(calls, ranks):
    dot(calls.numbers, calls.large)


@act("a frozen array is written")
def _(calls, ranks):
    calls.large.freeze()
    try:
        calls.large.set_value(LARGE)
    finally:
        calls.large.thaw()


@synk.parallel(outputs={"found": synk.output("sum", shape=())}, grid=lambda _: 0)
def nowhere(x, found):
    found[0] = x[0]


@act("a grid of no blocks")
def _(calls, ranks):
    nowhere(calls.numbers)


# ---- kernels -------------------------------------------------------------------------------------


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def untypable(x, found):
    i = cuda.grid(1)
    if i < x.shape[0]:
        found[0] = x[i] + "text"


@act("a kernel that does not compile")
def _(calls, ranks):
    untypable(calls.numbers)


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def unsupported(x, found):
    with open("file") as file:
        found[0] = len(file.read())


@act("a kernel that is refused")
def _(calls, ranks):
    unsupported(calls.numbers)


@synk.parallel(outputs={"found": synk.output("sum", shape=())})
def raising(x, on, rank, found):
    if on >> rank & 1:
        raise ValueError("in a kernel")


@act("an exception in a kernel")
def _(calls, ranks):
    raising(calls.numbers, mask(ranks), synk.RANK)


@synk.parallel(inout=("y",))
def wild(y, on, rank, far):
    i = cuda.grid(1)
    if on >> rank & 1 and i < y.shape[0]:
        y[i + far] = 1.0


@act("a kernel stores outside")
def _(calls, ranks):
    BOARD.strike()
    wild(calls.large, mask(ranks), synk.RANK, FAR)


# ---- results and reductions ----------------------------------------------------------------------


@synk.function(outputs="sum")
def part_of(x):
    return x


@act("results of different shapes")
def _(calls, ranks):
    part_of(calls.large)


@synk.function(outputs="sum")
def odd_structure(on, rank):
    return (1.0, 2.0) if here(on, rank) else {"a": 1.0}


@act("results of different structure")
def _(calls, ranks):
    odd_structure(mask(ranks), synk.RANK)


@synk.function(outputs="sum")
def an_object(x):
    return object()


@act("a result that is an object")
def _(calls, ranks):
    an_object(calls.numbers)


class Key:
    """A key of a result's dict, which is sent with the structure: it pickles, or is read, with
    trouble.
    """

    def __init__(self, how: str) -> None:
        self.how = how

    def __hash__(self) -> int:
        return hash(self.how)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.how == self.how

    def __reduce__(self) -> tuple[object, ...]:
        if self.how == "does not pickle":
            raise ValueError("this key stays here")
        if self.how == "kills when pickled":
            os._exit(3)
        return _read_key, (self.how,)


def _read_key(how: str) -> Key:
    if how == "does not unpickle" and this_process.current_rank() is None:
        raise ValueError("this key is not read")
    return Key(how)


@synk.function(outputs="sum")
def keyed(on, rank, how):
    return {Key(how) if here(on, rank) else "plain": 1.0}


@act("a result that does not pickle")
def _(calls, ranks):
    keyed(mask(ranks), synk.RANK, "does not pickle")


@act("a result that does not unpickle")
def _(calls, ranks):
    keyed(mask(ranks), synk.RANK, "does not unpickle")


@act("a result that ends its rank when pickled")
def _(calls, ranks):
    BOARD.strike()
    keyed(mask(ranks), synk.RANK, "kills when pickled")


# ---- exceptions ----------------------------------------------------------------------------------


class OddError(Exception):
    """An exception that pickles, is read, or prints with trouble."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how

    def __str__(self) -> str:
        if self.how == "does not print":
            raise ZeroDivisionError
        return self.how

    def __reduce__(self) -> tuple[object, ...]:
        if self.how == "does not pickle":
            raise ValueError("this error stays here")
        if self.how == "kills when pickled":
            os._exit(3)
        return _read_error, (self.how,)


def _read_error(how: str) -> "OddError":
    if how == "does not unpickle" and this_process.current_rank() is None:
        raise ValueError("this error is not read")
    return OddError(how)


@synk.function(outputs="sum")
def odd_error(on, rank, how):
    if here(on, rank):
        raise OddError(how)
    return 1.0


@act("an exception that does not pickle")
def _(calls, ranks):
    odd_error(mask(ranks), synk.RANK, "does not pickle")


@act("an exception that does not unpickle")
def _(calls, ranks):
    odd_error(mask(ranks), synk.RANK, "does not unpickle")


@act("an exception that does not print")
def _(calls, ranks):
    odd_error(mask(ranks), synk.RANK, "does not print")


@act("an exception that ends its rank when pickled")
def _(calls, ranks):
    BOARD.strike()
    odd_error(mask(ranks), synk.RANK, "kills when pickled")


# ---- unpickling on a rank ------------------------------------------------------------------------


class Parcel:
    """An argument that does something where it is unpickled."""

    def __init__(self, on: int, how: str) -> None:
        self.on, self.how = on, how

    def __reduce__(self) -> tuple[object, ...]:
        return _open_parcel, (self.on, self.how)


def _open_parcel(on: int, how: str) -> Parcel:
    rank = this_process.current_rank()
    if rank is not None and here(on, rank):
        if how == "raises":
            raise ValueError("this parcel is not opened")
        os._exit(3)
    return Parcel(on, how)


@synk.function(outputs="sum")
def unpack(parcel):
    return 1.0


@act("an argument that does not unpickle")
def _(calls, ranks):
    unpack(Parcel(mask(ranks), "raises"))


@act("an argument that ends its rank when unpickled")
def _(calls, ranks):
    BOARD.strike()
    unpack(Parcel(mask(ranks), "ends"))


@act("a function that does not unpickle")
def _(calls, ranks):
    parcel = Parcel(mask(ranks), "raises")
    synk.function(outputs="sum")(lambda x: x.sum() if parcel else 0.0)(calls.numbers)
