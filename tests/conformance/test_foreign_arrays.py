"""Arrays of other libraries as arguments: in files that ranks read themselves, in columns of
tables, and in Arrow's memory.

h5py, zarr, Parquet ──> the rows that NumPy selects; told by name: files that are gone, changed or written to
pandas, pyarrow, records ──> columns by name, and nulls refused by name
"""  # noqa: E501

import os
import shutil
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._host import file_data, foreign
from synknumba._host.stored import opened

ROWS = np.arange(606.0).reshape(101, 6)
BATCHES = (None, 7, slice(10, 60), slice(90, None, -3), [5, 3, 5, 100])


@synk.parallel(
    outputs={"total": synk.output("sum", shape=()), "copy": synk.output("gather", like="x")}
)
def scaled(x, factor, total, copy):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i, 2])
        for j in range(x.shape[1]):
            copy[i, j] = factor * x[i, j]


@synk.function(outputs="gather")
def plus(x, number):
    return x + number


@synk.function(outputs="gather")
def worth(price, amount):
    return price * amount


@synk.function(outputs="gather")
def worth_of(table):
    return table["price"] * table["amount"]


@synk.function(outputs="sum", broadcast=("x",))
def of_whole(x):
    return x.sum()


@synk.function(outputs="sum")
def total_of(x):
    return x.sum()


@synk.function(inout=("x",))
def double(x):
    x *= 2


def in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file["group/rows"] = ROWS
    return SimpleNamespace(path=path, array=h5py.File(path)["group/rows"])


def in_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "rows.zarr"
    zarr.create_array(path, shape=ROWS.shape, dtype="f8", chunks=(7, 4))[:] = ROWS
    return SimpleNamespace(path=path, array=zarr.open_array(path, mode="r"))


LIBRARIES = (in_hdf5, pytest.param(in_zarr, marks=pytest.mark.whole))


@pytest.fixture(autouse=True)
def no_threads_stay():
    """Ends the threads that zarr has started: the next `fork` would warn of them."""
    yield
    sync = sys.modules.get("zarr.core.sync")
    if sync is not None:
        sync.cleanup_resources()


@pytest.fixture(params=LIBRARIES)
def stored(request, world, tmp_path):
    return request.param(tmp_path)  # after the fork


@pytest.fixture
def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "table.parquet"
    table = pa.table(
        {
            "price": ROWS[:, 0],
            "amount": ROWS[:, 1].astype("f4"),
            "count": np.arange(101),
            "name": ["a"] * 101,
        }
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=13)
    return path


def selected(rows, batch):
    return rows if batch is None else rows[:batch] if isinstance(batch, int) else rows[batch]


@pytest.mark.parametrize("num_slices", [1, 3])
def test_rows_of_files_are_those_that_numpy_selects(world, stored, num_slices):
    for batch in BATCHES:
        rows = selected(ROWS, batch)
        for factor in (2.0, -1.0):
            result = scaled(stored.array, factor, batch=batch, num_slices=num_slices)
            assert result.total == (factor * rows[:, 2]).sum()
            assert_array_equal(result.copy, factor * rows)
            assert_array_equal(
                plus(stored.array, factor, batch=batch, num_slices=num_slices), rows + factor
            )
    assert of_whole(stored.array, num_slices=1) == world.world_size * ROWS.sum()
    assert_array_equal(plus(stored.array, 1.0, shards=4), ROWS + 1)
    assert_array_equal(plus.submit(stored.array, 1.0).result(), ROWS + 1)


def test_changes_of_a_file_are_seen(world, tmp_path):
    stored = in_hdf5(tmp_path)
    h5py = pytest.importorskip("h5py")
    for k in range(3):
        stored.array.file.close()
        with h5py.File(stored.path, "r+") as file:
            file["group/rows"][...] = ROWS + k
        os.utime(stored.path, ns=(k, k))
        array = stored.array = h5py.File(stored.path)["group/rows"]
        assert_array_equal(plus(array, 1.0), ROWS + k + 1)
        assert scaled(array, 1.0).total == (ROWS + k)[:, 2].sum()


@pytest.mark.parametrize("kind", ["virtual", "external", "link"])
def test_changes_of_the_files_behind_a_dataset_are_seen(world, tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["rows"] = ROWS
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        layout = h5py.VirtualLayout(ROWS.shape, "f8")
        layout[...] = h5py.VirtualSource(tmp_path / "source.h5", "rows", ROWS.shape)
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink(tmp_path / "source.h5", "rows")
        rows = tmp_path / "rows.bin"
        file.create_dataset("external", ROWS.shape, "f8", external=[(str(rows), 0, ROWS.nbytes)])
    for k in range(3):
        (ROWS + k).tofile(rows)
        with h5py.File(tmp_path / "source.h5", "r+") as file:
            file["rows"][...] = ROWS + k
        os.utime(tmp_path / "source.h5", ns=(k, k))
        with h5py.File(tmp_path / "rows.h5") as file:
            for _ in range(2):
                assert total_of(file["link"]) == (ROWS + k).sum()  # leaves the source open
                assert total_of(file[kind]) == (ROWS + k).sum()


def test_files_that_are_gone_or_that_another_replaces_are_told(world, parquet):
    x = synk.columns(parquet, "price")["price"]
    assert_array_equal(plus(x, 1.0), ROWS[:, 0] + 1)
    assert "price" in repr(x)
    assert_array_equal(x, ROWS[:, 0])
    parquet.unlink()
    with pytest.raises(
        synk.DataError, match=r"x of plus: the file .*table.parquet cannot be read: No such file"
    ):
        plus(x, 1.0)


def test_a_parquet_file_that_is_written_again_needs_its_columns_again(world, parquet):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x = synk.columns(parquet, "price")["price"]
    assert total_of(x) == ROWS[:, 0].sum()
    for k, rows in enumerate((ROWS[:, 0] + 1, ROWS[:5, 0], np.tile(ROWS[:, 0], 3))):
        pq.write_table(pa.table({"price": rows}), parquet, row_group_size=7)
        os.utime(parquet, ns=(k, k))
        for _ in range(2):
            with pytest.raises(
                synk.DataError,
                match=r"x of total_of: the file .* has changed since synk.columns read its sch",
            ):
                total_of(x)
        with pytest.raises(
            synk.DataError,
            match=r"make the columns again, as synk.columns\('table.parquet', 'price'\)",
        ):
            np.asarray(x)
        x = synk.columns(parquet, "price")["price"]
        assert total_of(x) == rows.sum()
        assert_array_equal(x, rows)


def test_a_parquet_file_that_is_written_during_a_call_is_told(parquet):
    pytest.importorskip("pyarrow.parquet")
    reader = opened(synk.columns(parquet, "price")["price"].source)
    reader.read(np.empty(3), slice(0, 3))
    os.truncate(parquet, 100)
    with pytest.raises(synk.DataError, match="was changed or replaced while a call was made"):
        reader.read(np.empty(3), slice(90, 93))


def test_data_over_a_file_that_changes_are_read_again(world, tmp_path):
    stored = in_hdf5(tmp_path)
    x = synk.data(stored.array, copy=False)
    stored.array.file.close()
    h5py = pytest.importorskip("h5py")
    for k in range(3):
        assert total_of(x) == (ROWS + k).sum()
        with h5py.File(stored.path, "r+") as file:
            file["group/rows"][...] = ROWS + k + 1
        os.utime(stored.path, ns=(k, k))


def test_data_over_a_dataset_that_has_another_shape_now_are_told(world, tmp_path):
    h5py = pytest.importorskip("h5py")
    for name, rows, told in (
        ("rows", 3, "has the shape .3, 6. now"),
        ("rows", 900, "has the shape .900"),
        ("no", 3, "is not there"),
    ):
        stored = in_hdf5(tmp_path)
        x = synk.data(stored.array, copy=False)
        stored.array.file.close()
        assert total_of(x) == ROWS.sum()
        with h5py.File(stored.path, "w") as file:
            file[f"group/{name}"] = np.ones((rows, 6))
        os.utime(stored.path, ns=(rows, rows))
        with pytest.raises(
            synk.DataError,
            match=rf"the dataset /group/rows of .* had the shape \(101, 6\) .* {told}",
        ):
            total_of(x)


def test_texts_in_files_are_refused_by_name(world, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["texts"] = ["a", "bc"]
        for texts in (file["texts"], h5py.File(tmp_path / "t.h5")["texts"]):
            with pytest.raises(
                synk.DataError,
                match=r"x of total_of is text, or has .*\(object\); ranks take numbers",
            ):
                total_of(texts)


def test_files_that_are_closed_or_gone_are_told_by_name(world, tmp_path):
    stored = in_hdf5(tmp_path)
    group = stored.array.parent
    stored.array.file.close()
    with pytest.raises(
        synk.DataError,
        match=r"x of total_of is a Dataset of h5py whose file has been closed; open the file ag",
    ):
        total_of(stored.array)
    with pytest.raises(synk.DataError, match="is a Group of h5py whose file has been closed"):
        synk.columns(group)
    with pytest.raises(synk.DataError, match="value is a Group of h5py whose file has been closed"):
        synk.data(group)


@pytest.mark.whole
def test_directories_of_zarr_that_are_gone_are_told_by_name(world, tmp_path):
    stored = in_zarr(tmp_path)
    shutil.rmtree(stored.path)
    with pytest.raises(
        synk.DataError,
        match=r"x of total_of is an array of zarr in .*rows.zarr, which .* No such .* open it "
        r"again",
    ):
        total_of(stored.array)


def test_groups_are_told_with_their_arrays(world, tmp_path):
    file = in_hdf5(tmp_path).array.file
    for group in (file["group"], {"in": file["group"]}):
        with pytest.raises(
            synk.ArgumentError,
            match=r"x\S* of total_of is a Group of h5py with 'rows'; pass .*group\['rows'\]",
        ):
            total_of(group)
    with pytest.raises(
        synk.ArgumentError, match="x of scaled is a File of h5py; pass an array in it"
    ):
        scaled(file, 1.0)


def test_columns_without_numbers_are_told_by_name(world):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "price": ROWS[:3, 0],
            "kind": pandas.Categorical(["a", "b", "a"]),
            "name": ["x", "y", "zz"],
        }
    )
    category = (
        r"{} is a Series.* of pandas of the dtype category, and ranks take numbers. Pass "
        r"the codes .* series.cat.codes"
    )
    with pytest.raises(synk.DataError, match=category.format("column 'kind'")):
        synk.columns(frame)
    with pytest.raises(synk.DataError, match=category.format("x of total_of")):
        total_of(frame["kind"])
    with pytest.raises(
        synk.DataError,
        match=r"value is a Series 'name' of pandas of the dtype (str|object), .*factorize",
    ):
        synk.data(frame["name"])
    with pytest.raises(
        synk.DataError,
        match=r"x of total_of is a DataFrame of pandas, .* f\(\*\*synk.columns\(table",
    ):
        total_of(frame)
    assert total_of(frame["kind"].cat.codes) == 1
    assert list(synk.data(frame["name"].to_numpy("U16"))) == ["x", "y", "zz"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("m.npy", "np.load"), ("t.csv", "read_csv"), ("t.arrow", "memory_map"), ("t.h5", "h5py.File")],
)
def test_files_that_are_no_parquet_files_are_told_with_what_to_write(tmp_path, name, told):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(bytes(100))
    with pytest.raises(
        synk.DataError, match=rf"{name} cannot be read as a Parquet file: .*\. Pass .*{told}"
    ):
        synk.columns(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "told"), [("t.csv", "read_csv"), ("t.parquet", "pip install pyarrow")]
)
def test_without_pyarrow(name, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(synk.DataError, match=rf"{name} cannot be read.*{told}"):
        synk.columns(name)


def test_rows_of_files_are_not_written(world, stored):
    with pytest.raises(synk.ArgumentError, match=r"x of double is in inout=.*over the file"):
        double(stored.array)
    plan = plus.plan(stored.array, 1.0, batch=100)
    assert str(stored.path) in plan.arguments[0]
    assert sum(rank.file_bytes for rank in plan.ranks) == 4800


def test_files_as_data(world, stored):
    x = synk.data(stored.array, copy=False, name="x", minibatch=True)
    assert (x.name, x.minibatch, x.shape, x.dtype) == ("x", True, ROWS.shape, ROWS.dtype)
    assert_array_equal(plus(x, 1.0, batch=slice(5, 60)), ROWS[:55] + 1)  # by position in the batch
    assert_array_equal(x, ROWS)
    assert x.sum() == ROWS.sum()
    assert_array_equal(synk.data(stored.array), ROWS)
    for change in (x.thaw, x.free_memory, lambda: x.set_value(ROWS), lambda: x.__setitem__(0, 1.0)):
        with pytest.raises(synk.DataError, match="Data 'x' is in the file"):
            change()


def test_a_dataset_that_the_script_writes_to_is_copied(world, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = ROWS
        assert_array_equal(plus(file["rows"], 1.0), ROWS + 1)


def test_a_dataset_of_a_file_that_another_has_replaced_is_copied(world, tmp_path):
    stored = in_hdf5(tmp_path)
    assert_array_equal(plus(stored.array, 1.0), ROWS + 1)
    os.rename(stored.path, stored.path.with_suffix(".old"))
    # read by the script: ranks would not find it
    assert_array_equal(plus(stored.array, 1.0), ROWS + 1)
    np.save(stored.path, ROWS)
    assert_array_equal(plus(stored.array, 1.0), ROWS + 1)


@pytest.mark.whole
def test_an_array_of_zarr_in_memory_is_copied(world):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array({}, shape=ROWS.shape, dtype="f8")
    array[:] = ROWS
    assert_array_equal(plus(array, 1.0), ROWS + 1)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_columns_of_a_parquet_file(world, parquet, num_slices):
    columns = synk.columns(parquet, "price", "amount", n="count")
    for batch in BATCHES:
        price, amount = (selected(ROWS[:, k], batch) for k in (0, 1))
        assert_array_equal(
            worth(columns["price"], columns["amount"], batch=batch, num_slices=num_slices),
            price * amount,
        )
    assert_array_equal(plus(columns["n"], 1), np.arange(1, 102))
    assert_array_equal(worth(**synk.columns(parquet, "price", "amount")), ROWS[:, 0] * ROWS[:, 1])
    with pytest.raises(synk.DataError, match="column 'name' of .* has the Arrow type string"):
        synk.columns(parquet, "name")
    with pytest.raises(synk.ArgumentError, match="no column 'prize'; there are 'price', 'amount'"):
        synk.columns(parquet, "prize")
    with pytest.raises(synk.DataError, match="cannot be read as a Parquet file"):
        synk.columns(parquet.with_suffix(".none"))


def test_sequences_read_files(world, parquet):
    x = synk.columns(parquet, "price")["price"]

    @synk.sequence
    def steps(x):
        return of_whole(x)

    assert steps(x, times=3) == world.world_size * ROWS[:, 0].sum()
    lines = np.array([[1, 2, 3], [7, 8, 100], [0, 50, 99]])

    @synk.sequence
    def epoch(x, lines):
        return total_of(x, batch=lines[synk.STEP])

    assert_array_equal(epoch(x, synk.data(lines), times=3, every=1), ROWS[lines, 0].sum(1))


def test_sequences_take_arrays_of_others_as_arguments(world):
    pandas = pytest.importorskip("pandas")

    @synk.sequence
    def steps(x):
        return of_whole(x)

    for factor in (1.0, 2.0):
        series = pandas.Series(factor * ROWS[:, 0])
        assert steps(series, times=2) == world.world_size * factor * ROWS[:, 0].sum()


def test_columns_of_tables_in_memory(world):
    expected = ROWS[:, 0] * ROWS[:, 1]
    records = np.zeros(101, [("price", "f8"), ("amount", "f8")])
    records["price"], records["amount"] = ROWS[:, 0], ROWS[:, 1]
    tables = [
        records,
        records.view(np.recarray),
        synk.data(records),
        {"price": ROWS[:, 0], "amount": ROWS[:, 1]},
    ]
    for table in tables:
        assert_array_equal(worth(**synk.columns(table)), expected)
        assert_array_equal(worth_of(synk.columns(table)), expected)
        assert_array_equal(worth(**synk.columns(table, amount="price", price="amount")), expected)
    for wrong in (ROWS, 3):
        with pytest.raises(synk.ArgumentError, match="columns takes"):
            synk.columns(wrong)


def test_names_of_columns_that_are_given_wrongly():
    table = {"price": ROWS[:, 0], "amount": ROWS[:, 1]}
    with pytest.raises(
        synk.ArgumentError,
        match="the parameter 'price' would receive two columns, 'price' and 'amount'",
    ):
        synk.columns(table, "price", price="amount")
    for names in (["price", "amount"], ("price", "amount")):
        with pytest.raises(
            synk.ArgumentError,
            match=r"one by one, as synk.columns\(table, 'price', 'amount'\); got [\[(]'price'",
        ):
            synk.columns(table, names)


class Frame:
    """A table, as pandas has it, that may have several columns of one name."""

    columns = ("a", "b", "a")

    def __getitem__(self, name):
        return np.arange(5.0)


def test_two_columns_of_one_name():
    with pytest.raises(
        synk.ArgumentError, match="columns: there are 2 columns 'a'; give them names of their own"
    ):
        synk.columns(Frame())
    assert [*synk.columns(Frame(), "b")] == ["b"]


def test_columns_of_frames_and_arrow(world):
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    expected = ROWS[:, 0] * ROWS[:, 1]
    frame = pandas.DataFrame({"price": ROWS[:, 0], "amount": ROWS[:, 1]})
    table = pa.table({"price": ROWS[:, 0], "amount": ROWS[:, 1]})
    halves = pa.concat_tables([table.slice(0, 50), table.slice(50)])
    for one in (frame, table, halves, table.to_batches()[0]):
        assert_array_equal(worth(**synk.columns(one)), expected)
        assert_array_equal(worth(one["price"], one["amount"]), expected)
    column = np.asarray(table["price"].chunk(0))
    assert np.shares_memory(synk.columns(table)["price"], column)
    assert np.shares_memory(synk.columns(frame)["price"], frame["price"].to_numpy())


@pytest.mark.one_machine
def test_arrow_files_that_are_mapped_are_read_in_place(world, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"price": ROWS[:, 0]})
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as out,
        pa.ipc.new_file(out, table.schema) as writer,
    ):
        writer.write_table(table)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "t.arrow"))).read_all()
    column = synk.columns(mapped)["price"]
    x = synk.data(column, copy=False)
    assert str(tmp_path) in plus.plan(x, 1.0).arguments[0]
    assert_array_equal(plus(x, 1.0), ROWS[:, 0] + 1)
    for searched, in_files in ((0, 808), (10**8, 0)):
        monkeypatch.setattr(file_data, "SEARCHED_BYTES", searched)
        assert sum(rank.file_bytes for rank in plus.plan(column, 1.0).ranks) == in_files
        assert_array_equal(plus(mapped["price"], 1.0), ROWS[:, 0] + 1)


@pytest.mark.one_machine
def test_arrow_files_that_are_truncated_before_a_call_are_told(world, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    path, table = tmp_path / "t.arrow", pa.table({"price": ROWS[:, 0]})
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    column = synk.columns(pa.ipc.open_file(pa.memory_map(str(path))).read_all())["price"]
    os.truncate(path, 100)
    monkeypatch.setattr(file_data, "SEARCHED_BYTES", 0)
    with pytest.raises(
        synk.DataError, match=r"x of plus: the file .*t.arrow has been truncated to 100 bytes"
    ):
        plus(column, 1.0)


def test_nulls_are_refused_by_name(world):
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    cases = (
        pa.array([1, None]),
        pa.chunked_array([[1.0], [None]]),
        pandas.Series([1, None], dtype="Int64"),
    )
    for one in cases:
        with pytest.raises(synk.DataError, match="x of plus has 1 null, and ranks have no masks"):
            plus(one, 1.0)
    with pytest.raises(synk.DataError, match="value has 1 null"):
        synk.data(pa.array([1, None]))
    with pytest.raises(synk.DataError, match="column 'a' has 1 null"):
        synk.columns(pa.table({"a": [None, 1.0]}))
    with pytest.raises(synk.DataError, match=r"x of <lambda> has 1 null"):
        synk.sequence(lambda x: plus(x, 1.0))(pa.array([1, None]), times=1)
    assert_array_equal(plus(pandas.Series([1.0, np.nan]), 1.0), [2.0, np.nan])


@pytest.mark.whole
def test_columns_of_polars(world):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"price": ROWS[:, 0], "amount": ROWS[:, 1], "some": [None] * 100 + [1.0]}
    )
    assert_array_equal(worth(**synk.columns(frame, "price", "amount")), ROWS[:, 0] * ROWS[:, 1])
    with pytest.raises(synk.DataError, match="column 'some' has 100 nulls"):
        synk.columns(frame)


def test_groups_of_hdf5_are_tables(world, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["t/price"], file["t/amount"] = ROWS[:, 0], ROWS[:, 1]
    with h5py.File(tmp_path / "t.h5") as file:
        assert_array_equal(worth(**synk.columns(file["t"])), ROWS[:, 0] * ROWS[:, 1])


class Tensor:
    """What is like a tensor that NumPy cannot read."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


class Proxy:
    """What is there only in a context, as the current application of a web framework."""

    def __getattr__(self, name):
        raise RuntimeError("outside of the context")


@pytest.mark.parametrize(
    ("kind", "says"), [(Tensor, "Can't call numpy"), (Proxy, "outside of the context")]
)
def test_objects_that_cannot_be_read_are_told_by_name(kind, says, world):
    name = kind.__name__
    with pytest.raises(
        synk.ArgumentError,
        match=rf"x of plus is a {name}, which cannot be read as an array: {says}",
    ):
        plus(kind(), 1.0)
    with pytest.raises(
        synk.DataError, match=rf"the variable: a {name} cannot be read as an array: {says}"
    ):
        synk.variable(kind())
    assert foreign.is_foreign(Tensor())
    assert not foreign.is_foreign(np.ones(2))


def test_tensors_of_torch_are_read_in_place(world):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.from_numpy(ROWS.copy())
    assert np.shares_memory(foreign.adopted(x, "x"), x.numpy())
    assert_array_equal(plus(x, 1.0), ROWS + 1)
