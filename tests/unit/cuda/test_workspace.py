"""What brings a program's rows to the device and back, wherever they lie; against NumPy's
indexing.
"""

import mmap

import numpy as np
import pytest

from synknumba._ops.rows import Listed, Partition, Range
from tests.unit.cuda import stand_in

ROWS = 300
RECORD = np.dtype([("a", "f4"), ("b", "i1")])
SELECTIONS = {
    "together": Range(10, 1, 200),
    "apart": Range(3, 4, 70),
    "backwards": Range(299, -1, 300),
    "listed": Listed(np.array([5, 299, 0, 5, 17])),
    "once": Listed(np.array([5, 299, 0, 17])),
}


class Place:
    """A segment, a workspace, and a stream for the work.

    Args:
        machine: the model.
        gpu: the device's modules.
        known: whether the segment is one of the device's.
        sliced: whether copies have streams of their own.
    """

    def __init__(self, machine, gpu, *, known=True, sliced=False):
        self.machine, self.gpu = machine, gpu
        self.memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
        self.locked = gpu.memory.LockedMemory(lambda _: None)
        self.streams = gpu.memory.Streams(stand_in.Stream(non_blocking=True))
        self.workspace = gpu.memory.CudaWorkspace(self.streams, self.locked, sliced=sliced)
        self.taken = 0
        if known:
            self.locked.add(1, self.memory, whole=False)

    def host(self, dtype, shape, seed=0):
        """An array in the segment, behind the others."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        here = self.memory[self.taken : self.taken + nbytes]
        self.taken += -(-nbytes // 8) * 8
        here[:] = np.random.default_rng(seed).integers(0, 100, nbytes)
        return here.view(dtype).reshape(shape)

    def listed(self, rows):
        """The rows with their list in the segment, as calls give them."""
        if isinstance(rows, Range):
            return rows
        indices = self.host("int64", rows.indices.shape)
        indices[:] = rows.indices
        return Listed(indices)

    def wait(self):
        self.streams.synchronize()

    def found(self, array):
        """What is on the device."""
        self.wait()
        return (
            stand_in.bytes_at(array.data.ptr, array.nbytes).view(array.dtype).reshape(array.shape)
        )


@pytest.fixture(params=["locked", "refused", "unknown"])
def place(request, machine, gpu):
    made = Place(machine, gpu, known=request.param != "unknown")
    machine.may_lock = request.param == "locked"
    return made


@pytest.fixture
def locked_place(machine, gpu):
    return Place(machine, gpu)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("int8", (3,)), (RECORD, ()), ("float64", (64,))],
    ids=["bytes", "records", "long rows"],
)
@pytest.mark.parametrize("name", SELECTIONS)
def test_rows_are_brought_and_put_back(place, name, shape, dtype):
    rows = place.listed(SELECTIONS[name])
    host = place.host(dtype, (ROWS, *shape))
    writable = name != "listed"  # where a row is there twice nobody writes
    buffer = place.workspace.rows("x", host, rows, writable=writable)
    assert buffer.array.shape == (rows.count, *shape)
    assert buffer.array.dtype == host.dtype
    assert (buffer.store is not None) == writable
    for seed in (1, 2):  # contents change, steps stay
        host.view(np.uint8)[...] = np.random.default_rng(seed).integers(
            0, 100, host.view(np.uint8).shape
        )
        expected = host.copy()
        buffer.load()
        found = place.found(buffer.array)
        assert found.tobytes() == expected[rows.indices].tobytes()
        if writable:
            found.view(np.uint8)[...] = 255 - found.view(np.uint8)
            expected[rows.indices] = found
            buffer.store()
            place.wait()
        assert host.tobytes() == expected.tobytes()


def test_lists_are_read_at_each_load(place):
    host = place.host("float64", (ROWS, 3))
    rows = place.listed(Listed(np.arange(20)))
    buffer = place.workspace.rows("x", host, rows, writable=False)
    for seed in range(3):
        rows.indices[:] = np.random.default_rng(seed).integers(0, ROWS, 20)
        buffer.load()
        np.testing.assert_array_equal(place.found(buffer.array), host[rows.indices])


@pytest.mark.parametrize("name", ["together", "apart", "listed"])
@pytest.mark.parametrize("may_lock", [True, False])
def test_only_staged_rows_cannot_be_recorded(machine, gpu, may_lock, name):
    machine.may_lock = may_lock
    place = Place(machine, gpu)
    rows = place.listed(SELECTIONS[name])
    buffer = place.workspace.rows("x", place.host("float64", (ROWS, 3)), rows, writable=True)
    assert gpu.steps.all_on_stream([buffer.load, buffer.store]) == (may_lock or name == "together")


def test_a_list_that_is_not_locked_has_its_rows_staged(locked_place, gpu):
    host = locked_place.host("float64", (ROWS,))
    rows = Listed(np.array([3, 1, 2]))
    buffer = locked_place.workspace.rows("x", host, rows, writable=True)
    assert not isinstance(buffer.load, gpu.steps.OnStream)
    buffer.load()
    np.testing.assert_array_equal(locked_place.found(buffer.array), host[[3, 1, 2]])


def test_staging_memory_is_not_filled_before_it_was_copied(machine, gpu):
    """Slices of one turn share it: loads follow each other with nothing but the stream's order
    between them.
    """
    place = Place(machine, gpu, known=False, sliced=True)
    host = place.host("float64", (ROWS,))
    parts = [Range(0, 2, 50), Range(100, 2, 50), Range(1, 2, 50)]
    kept = [place.workspace.scratch(("kept", k), "float64", (50,)) for k in range(3)]
    for k, rows in enumerate(parts):
        buffer = place.workspace.rows("x", host, rows, writable=False)
        buffer.load()
        place.gpu.steps.OnStream(
            stand_in.memcpy,
            kept[k].data.ptr,
            buffer.array.data.ptr,
            kept[k].nbytes,
            stand_in.ON_DEVICE,
            place.streams.load.ptr,
        )()
    for k, rows in enumerate(parts):
        np.testing.assert_array_equal(place.found(kept[k]), host[rows.selector])


@pytest.mark.parametrize("nbytes", [8, 2 << 10, 512 << 10, (1 << 20) - 8])
@pytest.mark.parametrize("known", [True, False])
def test_rows_that_lie_together_of_all_sizes(machine, gpu, nbytes, known):
    """Copied, or read by a kernel, which must not be told to read memory that the device cannot
    reach.
    """
    place = Place(machine, gpu, known=known)
    host = place.host("float64", (nbytes // 8,))
    buffer = place.workspace.whole("w", host)
    assert buffer.store is None
    buffer.load()
    np.testing.assert_array_equal(place.found(buffer.array), host)
    is_kernel = buffer.load.func is gpu.code.launch_own
    assert is_kernel == (known and gpu.memory.SMALLEST_MOVED <= nbytes <= gpu.memory.LARGEST_MOVED)


def test_outputs(place, gpu):
    host = place.host("float64", (7, 2))
    for slot in ("out", None):
        buffer = place.workspace.output(slot, host)
        assert buffer.load is None
        assert isinstance(buffer.store, gpu.steps.CopyOut) == bool(place.machine.locked)
        place.found(buffer.array)[...] = np.arange(14.0).reshape(7, 2)
        host[...] = -1
        buffer.store()
        place.wait()
        np.testing.assert_array_equal(host, np.arange(14.0).reshape(7, 2))


def test_copies_that_cannot_be_published_are_told_apart(machine, gpu):
    place = Place(machine, gpu)
    assert type(place.workspace.output("a", place.host("float64", (3,))).store) is gpu.steps.CopyOut
    assert type(place.workspace.output("b", np.zeros(3)).store) is gpu.steps.StoreToHost


# ---- rows of arrays that live on the device ------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", RECORD], ids=["numbers", "records"])
@pytest.mark.parametrize("listed", ["segment", "anywhere"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_held_rows(locked_place, name, listed, dtype):
    place = locked_place
    rows = SELECTIONS[name]
    rows = place.listed(rows) if listed == "segment" else rows
    writable = name != "listed"
    array = place.workspace.scratch(None, dtype, (ROWS, 3))
    buffer = place.workspace.held_rows("h", array, rows, writable=writable)
    for seed in (1, 2):
        held = place.found(array)
        held.view(np.uint8)[...] = np.random.default_rng(seed).integers(
            0, 100, held.view(np.uint8).shape
        )
        expected = held.copy()
        if name == "together":  # the very rows
            assert buffer.load is buffer.store is None
            assert buffer.array.data.ptr == array.data.ptr + 10 * 3 * np.dtype(dtype).itemsize
        else:
            buffer.load()
        found = place.found(buffer.array)
        assert found.tobytes() == expected[rows.indices].tobytes()
        if writable:
            found.view(np.uint8)[...] = 255 - found.view(np.uint8)
            expected[rows.indices] = found
            if buffer.store is not None:
                buffer.store()
            assert place.found(array).tobytes() == expected.tobytes()


def test_a_list_of_held_rows_anywhere_is_read_at_each_load(locked_place):
    place = locked_place
    array = place.workspace.scratch(None, "float64", (ROWS,))
    place.found(array)[...] = np.arange(ROWS)
    rows = Listed(np.arange(20))
    buffer = place.workspace.held_rows("h", array, rows, writable=False)
    kept = [place.workspace.scratch(("kept", k), "float64", (20,)) for k in range(4)]
    lists = []
    for k in range(4):
        rows.indices[:] = np.random.default_rng(k).integers(0, ROWS, 20)
        lists.append(rows.indices.copy())
        buffer.load()  # with the load before perhaps still under way
        stand_in.memcpy(
            kept[k].data.ptr, buffer.array.data.ptr, 160, stand_in.ON_DEVICE, place.streams.work.ptr
        )
    for k in range(4):
        np.testing.assert_array_equal(place.found(kept[k]), lists[k])


# ---- slices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True], ids=["host", "held"])
@pytest.mark.parametrize("name", ["together", "apart", "backwards", "once"])
def test_slices_of_rows_wherever_they_lie(place, gpu, name, held):
    """Each slice's rows come in, are doubled, and go back, while those of others are under way."""
    workspace, work = (
        gpu.memory.CudaWorkspace(place.streams, place.locked, sliced=True),
        place.streams.work,
    )
    rows = place.listed(SELECTIONS[name])
    host = place.host("float64", (ROWS, 3))
    host[...] = np.random.default_rng(1).integers(0, 100, host.shape)
    array = workspace.scratch(None, "float64", (ROWS, 3))
    table = place.found(array) if held else host
    table[...] = host
    expected = host.copy()
    expected[rows.indices] *= 2
    slices = []
    for k in range(4):
        slot, part = ("x", k % workspace.turns), Partition.even(4).of(rows, k)
        if held:
            buffer = workspace.held_rows(slot, array, part, writable=True)
        else:
            buffer = workspace.rows(slot, host, part, writable=True)
        step = gpu.steps.OnStream(place.machine.put, work.ptr, doubling(buffer.array))
        slices.append(
            gpu.memory.SliceSteps(
                [one for one in [buffer.load] if one is not None],
                [step],
                [one for one in [buffer.store] if one is not None],
            )
        )
    assert workspace.replaced == 0
    for step in workspace.in_order(slices):
        step()
    work.synchronize()
    np.testing.assert_array_equal(table, expected)


def doubling(array):
    return lambda: np.multiply(now(array), 2, out=now(array))


def now(array):
    return stand_in.bytes_at(array.data.ptr, array.nbytes).view(array.dtype).reshape(array.shape)


# ---- slots ---------------------------------------------------------------------------------------


def test_a_slot_keeps_its_memory_until_more_is_asked_for(locked_place):
    workspace = locked_place.workspace
    assert workspace.storage("s") is None
    first = workspace.scratch("s", "float64", (100,))
    memory = workspace.storage("s")
    assert workspace.scratch("s", "int32", (5, 2)).data.ptr == first.data.ptr
    assert workspace.storage("s") is memory
    assert workspace.replaced == 0
    workspace.scratch("other", "float64", (100,))
    assert workspace.replaced == 0
    larger = workspace.scratch("s", "float64", (101 * 100,))
    assert workspace.replaced == 1
    assert workspace.storage("s") is not memory
    assert larger.nbytes <= workspace.storage("s").mem.size


def test_turns_have_memory_of_their_own(machine, gpu):
    place = Place(machine, gpu, sliced=True)
    assert place.workspace.turns == 2
    one, other = (place.workspace.scratch(("x", turn), "float64", (10,)) for turn in range(2))
    assert one.data.ptr != other.data.ptr


def test_no_slot_means_memory_of_its_own(locked_place):
    workspace = locked_place.workspace
    one, other = (workspace.scratch(None, "float64", (10,)) for _ in range(2))
    assert one.data.ptr != other.data.ptr
    assert workspace.storage(None) is None
    assert workspace.replaced == 0


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_small_shapes(locked_place, shape):
    array = locked_place.workspace.scratch("s", "float64", shape)
    assert array.shape == shape
    assert array.nbytes == 8 * int(np.prod(shape))


def test_close_lets_go_of_all(locked_place):
    workspace = locked_place.workspace
    workspace.scratch("s", "float64", (3,))
    workspace.close()
    assert workspace.storage("s") is None
    workspace.close()
