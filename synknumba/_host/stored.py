"""Arrays in files that a library reads: datasets of h5py, arrays of zarr, columns of Parquet files.

    h5py.Dataset, zarr.Array ──stored_data──> StoredData ──Source──> each rank opens the file itself and reads its rows
    column of a Parquet file                                         into memory of its own

Nothing is read in the script. The libraries are imported only where an object of theirs is passed,
and on ranks. A `Source` says which file, and how it was when the call was made: a rank that finds
another file there tells so. On a rank a file is kept open until it has changed.
"""  # noqa: E501

import itertools
import os
import pickle
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, Literal, NoReturn, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike

from synknumba._errors import DataError
from synknumba._host.data import Data, next_version
from synknumba._types import Array, Cache, Shape, class_text, count_text

# What to pass to synk.columns, or in its place, of files that are no Parquet files.
OTHER_FILES = {
    ".npy": 'the array itself, without columns: np.load(path, mmap_mode="r")',
    ".npz": "the arrays in it: synk.columns(dict(np.load(path)))",
    ".csv": "what pandas.read_csv(path) returns, or write it as a Parquet file",
    ".arrow": "what pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all() returns",
    ".feather": "what pyarrow.feather.read_table(path) returns",
    ".zarr": 'an array of zarr itself: zarr.open(path, mode="r")',
    ".h5": "a group of h5py: h5py.File(path)",
    ".hdf5": "a group of h5py: h5py.File(path)",
}

Kind: TypeAlias = Literal["h5py", "zarr", "parquet"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where an array is stored, for the ranks.

    Attributes:
        kind: the library.
        path: the file, or the directory of a zarr array.
        name: the dataset, array or column in it.
        state: inode, size and time of modification of the file when the call was made; () for
            several files.
        payload: a pickled zarr array.
        shape: of an HDF5 dataset, which another one may have by now; () otherwise.
        is_spread: whether it is an HDF5 dataset with items in other files, a virtual or external
            one.
    """

    kind: Kind
    path: str
    name: str
    state: tuple[int, ...] = ()
    payload: bytes = field(default=b"", repr=False)
    shape: Shape = ()
    is_spread: bool = False

    def current_state(self) -> tuple[int, ...]:
        """Returns `state` as it is now.

        Raises:
            DataError: the file is gone.
        """
        try:
            state = state_of(self.path)
        except OSError as error:
            raise DataError(f"the file {self.path} cannot be read: {error.strerror}") from None
        return () if self.is_spread else state

    def __str__(self) -> str:
        """Shows file and name in it."""
        return f"{self.path}:{self.name}"


def state_of(path: str) -> tuple[int, ...]:
    """Returns what tells a file from others, and from itself before a change; () for a directory.

    The device is left out, whose number differs between machines that share a file system.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


class _NoSegment:
    """Stands for the memory of an array that is in none."""

    id, generation, size, is_file, closed = 0, 0, 0, True, False

    def overlaps(self, array: Array) -> bool:
        """Returns False."""
        return False

    def close(self) -> None:
        """Does nothing."""


_NOWHERE: Any = _NoSegment()


@final
class StoredData(Data):
    """A read-only `Data` whose rows ranks read from a file. In the script `data`, and all that uses
    it, reads the whole array.

    It is frozen if its file is a single one, whose changes are seen.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source, shape: Shape, dtype: DTypeLike) -> None:
        self.name = None
        self._minibatch = False
        self._dtype = np.dtype(dtype).newbyteorder("=")
        self._source, self._segment = source, _NOWHERE
        # for shape and dtype: without memory
        self._view = np.broadcast_to(np.zeros((), self._dtype), shape)
        self._alloc_size = self._used = self._view.size
        self._version = next_version() if source.state else 0

    @property
    def path(self) -> str:
        """The file, and the name of the array in it."""
        return str(self._source)

    @property
    def source(self) -> Source:
        """What ranks open."""
        return self._source

    @property
    def data(self) -> Array:
        """The array, read from the file."""
        out = np.empty(self.shape, self._dtype)
        if out.size:
            opened(self.renewed()).read(out, slice(0, len(out)))
        out.flags.writeable = False
        return out

    def renewed(self) -> Source:
        """Returns the source with the present state of the file, whose contents have a new version
        if that has changed.

        Raises:
            DataError: the file is gone, or it is a Parquet file, of which the shape may be another
                by now, and has changed.
        """
        source = self._source
        state = source.current_state()
        if state != source.state:
            if source.kind == "parquet":
                raise DataError(
                    f"the file {source.path} has changed since synk.columns read its schema; make "
                    f"the columns again, as synk.columns({os.path.basename(source.path)!r}, "
                    f"{source.name!r})"
                )
            self._source = replace(source, state=state)
            self._version = next_version() if state else 0
        return self._source

    @property
    def _layout(self) -> tuple[Any, ...]:  # type: ignore[override]  # looks at the file, each time
        return (self.renewed(), self._view.shape, self._dtype.str, self._minibatch)

    def _set_layout(self) -> None:
        pass  # see above

    @property
    def frozen(self) -> bool:
        """Whether ranks may keep rows that they have read, until the file changes."""
        return self._version != 0

    def freeze(self) -> None:
        """Does nothing for a single file; refused for an array in several, whose changes are not
        seen.
        """
        if not self._version:
            raise DataError(
                f"{self._label()} is in the files of {self.path}, whose changes are not seen; "
                f"copy it by synk.data(...)"
            )

    def thaw(self) -> NoReturn:
        """Refused: ranks only read the file."""
        self._check_thawed()

    def _check_thawed(self) -> NoReturn:
        raise DataError(
            f"{self._label()} is in the file {self.path}, and is only read; take a copy, "
            f"as synk.data(np.array(d))"
        )

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __repr__(self) -> str:
        """Shows place, shape and dtype, without reading."""
        return f"<Data in {self.path}, shape={self.shape}, dtype={self._dtype}>"


# ---- in the script


def stored_data(value: Any, label: str) -> StoredData | None:
    """Returns a dataset of h5py or an array of zarr as `Data`; None if it is neither, or ranks
    cannot open it themselves.

    Raises:
        DataError: its directory is gone. `label` is what messages call it.
    """
    module = type(value).__module__
    if module.startswith("h5py."):
        return _of_h5py(value)
    return _of_zarr(value, label) if module.startswith("zarr.") else None


def refuse_closed(value: Any, label: str) -> None:
    """Raises `DataError` for a dataset or group of h5py whose file the script has closed."""
    if type(value).__module__.startswith("h5py.") and hasattr(value, "id") and not value:
        raise DataError(
            f"{label} is {class_text(value)} of h5py whose file has been "
            "closed; open the "
            "file again, and call within its with block"
        )


def _of_h5py(dataset: Any) -> StoredData | None:
    if not hasattr(dataset, "read_direct") or not dataset.shape or 0 in dataset.shape:
        return None
    file = dataset.file
    # written to, or in memory
    if file.mode != "r" or file.driver not in {"sec2", "stdio"} or dataset.name is None:
        return None
    path = os.path.abspath(file.filename)
    try:
        mine, there = os.fstat(file.id.get_vfd_handle()), os.stat(path)
    except OSError:  # deleted
        return None
    # replaced since the script has opened it
    if not os.path.samestat(mine, there):
        return None
    is_spread = dataset.is_virtual or dataset.external is not None
    state = () if is_spread else state_of(path)
    source = Source("h5py", path, dataset.name, state, shape=dataset.shape, is_spread=is_spread)
    return StoredData(source, dataset.shape, dataset.dtype)


def _of_zarr(array: Any, label: str) -> StoredData | None:
    root = getattr(getattr(array, "store", None), "root", None)
    # not in files
    if root is None or not hasattr(array, "oindex") or not array.shape or 0 in array.shape:
        return None
    try:
        state = state_of(root)
    except OSError as error:
        raise DataError(
            f"{label} is an array of zarr in {root}, which cannot be read: "
            f"{error.strerror}; open it again"
        ) from None
    source = Source("zarr", os.path.abspath(root), array.path, state, pickle.dumps(array))
    return StoredData(source, array.shape, array.dtype)


def parquet_columns(path: str) -> Mapping[str, StoredData]:
    """Returns the columns of a Parquet file as `Data`.

    Raises:
        DataError: the file cannot be read, or is no Parquet file.
    """
    instead = ""
    for ending, what in OTHER_FILES.items():
        if path.rstrip("/").endswith(ending):
            instead = f". Pass {what}"
            break
    try:
        from pyarrow import ArrowInvalid, parquet  # an optional package
    except ImportError:
        instead = instead or ": Parquet files take pyarrow; pip install pyarrow"
        raise DataError(f"{path} cannot be read{instead}") from None
    try:
        state = state_of(path)  # before the schema, so that a change of it in between is seen
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            nulls = _nulls(file.metadata)
    except (OSError, ArrowInvalid) as error:
        raise DataError(
            f"{path} cannot be read as a Parquet file: {str(error).rstrip('.')}{instead}"
        ) from None
    return _Columns(os.path.abspath(path), state, schema, rows, nulls)


def _nulls(metadata: Any) -> dict[str, int]:
    """Returns how many nulls the columns have, as far as the file says so."""
    nulls: dict[str, int] = {}
    cells = itertools.product(range(metadata.num_row_groups), range(metadata.num_columns))
    for group, column in cells:
        chunk = metadata.row_group(group).column(column)
        if chunk.statistics is not None and chunk.statistics.has_null_count:
            before = nulls.get(chunk.path_in_schema, 0)
            nulls[chunk.path_in_schema] = before + chunk.statistics.null_count
    return nulls


@final
class _Columns(Mapping[str, StoredData]):
    """The columns of a Parquet file, made when they are asked for."""

    def __init__(
        self, path: str, state: tuple[int, ...], schema: Any, rows: int, nulls: Mapping[str, int]
    ) -> None:
        self._path, self._state = path, state
        self._schema, self._rows, self._nulls = schema, rows, nulls

    def __getitem__(self, name: str) -> StoredData:
        kind = self._schema.field(name).type
        refuse_nulls(self._nulls.get(name, 0), f"column {name!r} of {self._path}")
        dtype = numeric_dtype(kind, f"column {name!r} of {self._path}")
        return StoredData(Source("parquet", self._path, name, self._state), (self._rows,), dtype)

    def __iter__(self) -> Any:
        return iter(self._schema.names)

    def __len__(self) -> int:
        return len(self._schema.names)


def refuse_nulls(count: int, label: str) -> None:
    """Raises `DataError` for an array with nulls."""
    if count:
        raise DataError(
            f"{label} has {count_text(count, 'null')}, and ranks have no masks; fill "
            "them (fill_null of pyarrow.compute, fillna of pandas) or leave those rows out"
        )


def numeric_dtype(kind: Any, label: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of an Arrow type; raises `DataError` for one that is not of
    numbers or truth values.
    """
    from pyarrow import types  # as above

    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{label} has the Arrow type {kind}; ranks take integers, floats "
            f"and booleans. Cast it first"
        )
    return np.dtype(kind.to_pandas_dtype())


# ---- on a rank


class Reader(ABC):
    """An open file, of which rows are read."""

    @abstractmethod
    def read(self, target: Array, rows: slice | Array) -> None:
        """Reads rows, a slice with a positive step or row numbers, into a C-contiguous array of
        as many items.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""


FILES_OPEN = 64  # of a process
_open: Cache[Source, Reader] = Cache(FILES_OPEN, methodcaller("close"))


def opened(source: Source) -> Reader:
    """Returns the reader of a source; raises `DataError` if the file is missing or replaced."""
    cached = _open.get(source)
    if cached is not None:
        return cached
    if source.current_state() != source.state:
        raise _changed(source)
    _close_changed()
    if source.is_spread:
        return _SpreadReader(source)
    reader: Reader
    match source.kind:
        case "h5py":
            reader = _H5Reader(source)
        case "zarr":
            reader = _ZarrReader(source)
        case "parquet":
            reader = _ParquetReader(source)
    _open[source] = reader
    return reader


def _close_changed() -> None:
    """Closes files that have changed: HDF5 shares their cache with whatever opens them again."""
    for source in list(_open):
        try:
            is_changed = source.current_state() != source.state
        except DataError:  # deleted
            is_changed = True
        if is_changed:
            _open.drop(source)


def _changed(source: Source) -> DataError:
    return DataError(
        f"the file {source.path} was changed or replaced while a call was made; call again"
    )


def _in_order(indices: Array) -> tuple[Array, Array]:
    """Returns row numbers in increasing order, each once, and the place of each listed row among
    them.
    """
    ordered, places = np.unique(indices, return_inverse=True)
    return ordered, places.reshape(-1)


@final
class _H5Reader(Reader):
    def __init__(self, source: Source) -> None:
        import h5py  # an optional package

        try:
            # A lock would keep the script from writing to the file for as long as the ranks have it
            # open.
            self._file = h5py.File(source.path, "r", locking=False)
        # the script had it open, with a lock, when the rank was forked; or an old HDF5
        except (OSError, ValueError):
            self._file = h5py.File(source.path, "r")
        self._dataset = self._file.get(source.name)
        shape = getattr(self._dataset, "shape", None)
        if shape != source.shape:  # `read_direct` would read what there is
            self._file.close()
            state = "is not there" if shape is None else f"has the shape {shape}"
            raise DataError(
                f"the dataset {source.name} of {source.path} had the shape {source.shape} when it "
                f"was opened, and {state} now; open the file again"
            )

    def read(self, target: Array, rows: slice | Array) -> None:
        target = target.reshape(len(target), *self._dataset.shape[1:])
        if isinstance(rows, slice):
            self._dataset.read_direct(target, rows)
        else:
            ordered, places = _in_order(rows)
            np.take(self._dataset[ordered], places, axis=0, out=target, mode="clip")

    def close(self) -> None:
        self._file.close()


@final
class _SpreadReader(Reader):
    """Opens the file for each read, since HDF5 does not see changes of the files it refers to."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, target: Array, rows: slice | Array) -> None:
        _close_changed()
        reader = _H5Reader(self._source)
        try:
            reader.read(target, rows)
        finally:
            reader.close()

    def close(self) -> None:
        pass


@final
class _ZarrReader(Reader):
    def __init__(self, source: Source) -> None:
        self._array = pickle.loads(source.payload)  # noqa: S301  # of the script

    def read(self, target: Array, rows: slice | Array) -> None:
        read = self._array[rows] if isinstance(rows, slice) else self._array.oindex[rows]
        np.copyto(target, read.reshape(target.shape))

    def close(self) -> None:
        pass


@final
class _ParquetReader(Reader):
    """Reads by row groups, of which the last one is kept.

    The file is not mapped: a mapping of one that is truncated would end the rank (SIGBUS).
    """

    def __init__(self, source: Source) -> None:
        from pyarrow import parquet  # an optional package

        self._file, self._source = parquet.ParquetFile(source.path), source
        groups = self._file.metadata.num_row_groups
        counts = [self._file.metadata.row_group(group).num_rows for group in range(groups)]
        self._edges = np.cumsum([0, *counts])
        self._last: tuple[int, Array] = (-1, np.empty(0))

    def read(self, target: Array, rows: slice | Array) -> None:
        target = target.reshape(-1)
        if isinstance(rows, slice) and rows.step in {None, 1}:
            start, stop = rows.start, rows.start + len(target)
            for group in range(*self._groups(start, stop)):
                first = int(self._edges[group])
                low, high = max(start, first), min(stop, int(self._edges[group + 1]))
                target[low - start : high - start] = self._group(group)[low - first : high - first]
            return
        indices = (
            np.arange(len(target)) * rows.step + rows.start if isinstance(rows, slice) else rows
        )
        where = np.searchsorted(self._edges, indices, "right") - 1
        for group in np.unique(where):
            mine = where == group
            target[mine] = self._group(int(group))[indices[mine] - self._edges[group]]

    def _groups(self, start: int, stop: int) -> tuple[int, int]:
        first = np.searchsorted(self._edges, start, "right") - 1
        return int(first), int(np.searchsorted(self._edges, stop, "left"))

    def _group(self, group: int) -> Array:
        if self._last[0] != group:
            column = self._column(group)
            refuse_nulls(column.null_count, f"column {self._source.name!r} of {self._source.path}")
            self._last = group, column.to_numpy()
        return self._last[1]

    def _column(self, group: int) -> Any:
        """Returns the column of a row group; raises `DataError` if the file was replaced."""
        try:
            column = self._file.read_row_group(group, columns=[self._source.name]).column(0)
        except Exception as error:  # as many kinds as there are ways to read half of a file
            if self._is_changed():
                raise _changed(self._source) from error
            raise
        if self._is_changed():
            raise _changed(self._source)
        return column

    def _is_changed(self) -> bool:
        try:
            return state_of(self._source.path) != self._source.state
        except OSError:  # deleted; what is open is still as it was
            return False

    def close(self) -> None:
        self._file.close()
