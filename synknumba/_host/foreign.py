"""Arrays of other libraries: pandas, pyarrow, torch, h5py, zarr and whatever else has `__array__`,
as arguments and in columns.

pandas.Series, torch.Tensor on the CPU, numbers of pyarrow    a NumPy view of their memory, where NumPy makes one
pyarrow.ChunkedArray                                          its only chunk; several are joined, which copies
h5py.Dataset, zarr.Array in files                             `StoredData`: ranks read the rows
"""  # noqa: E501

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._host.file_data import NotShareableError, file_data
from synknumba._host.log import log
from synknumba._host.stored import (
    StoredData,
    numeric_dtype,
    parquet_columns,
    refuse_closed,
    refuse_nulls,
    stored_data,
)
from synknumba._types import Array, class_text

# what no other library's array is
_KNOWN = (
    Data,
    np.ndarray,
    np.generic,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    list,
    dict,
    type(None),
    type,
)


def is_foreign(value: Any) -> bool:
    """Returns whether a value is an array of another library than NumPy, or a group of such
    arrays in a file.
    """
    if isinstance(value, _KNOWN) or type(value).__module__.startswith("synknumba."):
        return False
    return has_array(value) or _is_group(value)


def has_array(value: Any) -> bool:
    """Returns whether a value has `__array__`, or raises when it is asked: `adopted` then says
    which argument it is.
    """
    try:
        return hasattr(value, "__array__")
    except Exception:  # noqa: BLE001  # of the value's own code
        return True


def _is_group(value: Any) -> bool:
    """Returns whether a value is a group or file of h5py, or a group of zarr."""
    return _is_stored(value) and type(value).__name__ in {"File", "Group"}


def _is_stored(value: Any) -> bool:
    """Returns whether a value is of h5py or zarr."""
    return type(value).__module__.startswith(("h5py.", "zarr."))


def adopted(value: Any, label: str) -> Array | Data:
    """Returns an array of another library as one of NumPy, or as `Data` if it is in a file; copies
    as little as possible.

    Raises:
        DataError: it has nulls, items without a fixed size, or its file is closed or gone.
        ArgumentError: it cannot be read as an array, or is a group of arrays. `label` is what
            messages call it.
    """
    module = type(value).__module__
    if _is_stored(value):
        data = _of_file(value, label)
        if data is not None:
            return data
    if module == "pyarrow.lib":
        return _of_arrow(value, label)
    if module.startswith("polars.") and hasattr(value, "null_count") and hasattr(value, "to_numpy"):
        nulls = value.null_count()
        if isinstance(nulls, int):  # of a DataFrame it is a table
            refuse_nulls(nulls, label)
    if module.partition(".")[0] == "pandas" and not isinstance(
        getattr(value, "dtype", None), np.dtype | None
    ):
        refuse_nulls(int(value.isna().sum()), label)  # it has nulls beside NaN
    try:
        array = np.asarray(value)
    except Exception as error:
        raise ArgumentError(
            f"{label} is {class_text(value)}, which cannot be read as an "
            f"array: {error}. Pass "
            "it as an array of NumPy, or what it holds"
        ) from error
    if array.dtype.hasobject:
        raise DataError(_no_numbers(value, label))
    return array


def _of_file(value: Any, label: str) -> Data | None:
    """Returns an array of h5py or zarr as `Data`; None if ranks cannot open it themselves."""
    refuse_closed(value, label)
    if _is_group(value):
        raise ArgumentError(_group_told(value, label))
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        raise DataError(
            f"{label} is text, or has items of various sizes ({dtype}); ranks take numbers"
        )
    data = stored_data(value, label)
    if data is None:
        log.debug(
            "%s is read and copied: ranks cannot open it themselves, as it is written to, "
            "or in no file of its own",
            label,
        )
    return data


def _group_told(value: Any, label: str) -> str:
    """Returns the message for a group where an array is needed."""
    names: list[str] = []
    if hasattr(value, "items"):
        names = [repr(name) for name, item in value.items() if not _is_group(item)]
    example, listed = "name", ""
    if names:
        example, listed = names[0], f" with {', '.join(names[:8])}"
    if len(names) > 8:
        listed += ", …"
    library = type(value).__module__.partition(".")[0]
    return (
        f"{label} is {class_text(value)} of {library}{listed}; pass "
        f"an array in it, as group[{example}], or all by name, as f(**synk.columns(group))"
    )


def _no_numbers(value: Any, label: str) -> str:
    """Returns the message for a column or table that NumPy can only read as objects."""
    library = type(value).__module__.partition(".")[0]
    if hasattr(value, "columns"):
        return (
            f"{label} is {class_text(value)} of {library}, whose columns have "
            "no common type "
            "of numbers; pass the columns that the function takes, as f(**synk.columns(table, "
            "'price', 'amount'))"
        )
    dtype = getattr(value, "dtype", "object")
    name = getattr(value, "name", None)
    called = ""
    if isinstance(name, str) and repr(name) not in label:
        called = f" {name!r}"
    if str(dtype) == "category":
        hint = "Pass the codes of the categories, as series.cat.codes"
    else:
        hint = (
            "Cast it to numbers, as pandas.factorize does with texts, or to texts of a fixed "
            'size, as series.to_numpy("U16")'
        )
    return (
        f"{label} is {class_text(value)}{called} of {library} of the dtype "
        f"{dtype}, and "
        f"ranks take numbers. {hint}"
    )


def _of_arrow(value: Any, label: str) -> Array:
    refuse_nulls(getattr(value, "null_count", 0), label)
    if not hasattr(value, "type"):
        raise ArgumentError(
            f"{label} is {class_text(value)}; pass its columns, as f(**synk.columns(table))"
        )
    numeric_dtype(value.type, label)
    chunks = getattr(value, "num_chunks", None)
    if chunks == 1:
        value = value.chunk(0)
    elif chunks is not None:
        log.debug("%s has %d chunks, which are joined in a copy", label, chunks)
        return np.asarray(value.to_numpy())
    return np.asarray(value.to_numpy(zero_copy_only=False))


def without_copy(value: Any, *, minibatch: bool, name: str | None) -> Data:
    """Returns an array in a file, or in shared memory with a descriptor, as `Data`; `DataError`
    if it is in neither.
    """
    label = "Data" if name is None else f"Data {name!r}"
    source = value
    if is_foreign(value):
        source = adopted(value, label)
    if isinstance(source, StoredData):
        source.name, source.minibatch = name, minibatch
        return source
    try:
        return file_data(np.asarray(source), minibatch=minibatch, name=name)
    except NotShareableError as reason:
        raise DataError(
            f"{label}: copy=False takes an array in a file that this process has mapped, such as "
            f'np.load(path, mmap_mode="r"); '
            f"the {type(value).__name__} cannot be shared as it is: {reason}. Leave "
            f"copy out to have it copied"
        ) from None


def columns(table: Any, *names: str, **renamed: str) -> dict[str, Any]:
    """Returns columns of a table by name, as arguments of a function: `f(**synk.columns(frame))`.

    A @synk.function may also take all of them as one argument, a dict: `f(synk.columns(frame))`.

    Args:
        table: a DataFrame of pandas or polars, a Table of pyarrow, an array of records, a `Data` of
            records, a mapping of arrays, such as a group of h5py, or the path of a Parquet file, of
            which ranks read the row groups that they need.
        names: the columns to take; default: all, unless some are renamed.
        renamed: further columns, by the parameters that receive them: `price="Price in EUR"`.

    Returns:
        Arrays by name, in the order asked for. Columns without nulls are views of the table's
        memory where NumPy can make one: not those in several chunks, booleans of Arrow, and fields
        of records, which a call copies in steps.

    Raises:
        ArgumentError: there is no such column, or `table` has none.
        DataError: a column has nulls, or no numbers.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> atoms = np.array([(1, 1.0), (8, 16.0)], [("number", "i8"), ("mass", "f8")])
        >>> synk.columns(atoms, "mass", charge="number")
        {'mass': array([ 1., 16.]), 'charge': array([1, 8])}
    """
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        listed: Any = ["price", "amount"]
        if isinstance(wrong[0], list | tuple):
            listed = wrong[0]
        raise ArgumentError(
            "columns takes the names of columns one by one, as synk.columns(table, "
            f"{', '.join(map(repr, listed))}); got {wrong[0]!r}"
        )
    twice = [name for name in names if name in renamed]
    if twice:
        raise ArgumentError(
            f"columns: the parameter {twice[0]!r} would receive two columns, {twice[0]!r} and "
            f"{renamed[twice[0]]!r}; leave one out"
        )
    source, available = _columns_of(table)
    if not names and not renamed:
        names = tuple(available)
    requested = dict(zip(names, names, strict=True)) | renamed
    missing = [name for name in requested.values() if name not in available]
    if missing:
        raise ArgumentError(
            f"columns: there is no column {missing[0]!r}; there are "
            f"{', '.join(map(repr, available))}"
        )
    repeated = [name for name in requested.values() if available.count(name) > 1]
    if repeated:
        raise ArgumentError(
            f"columns: there are {available.count(repeated[0])} columns {repeated[0]!r}; "
            f"give them names of their own"
        )
    arrays: dict[str, Any] = {}
    for parameter, name in requested.items():
        column = source[name]
        if is_foreign(column):
            column = adopted(column, f"column {name!r}")
        arrays[parameter] = column
    return arrays


def _columns_of(table: Any) -> tuple[Any, list[str]]:
    """Returns what gives columns by name, and their names."""
    if isinstance(table, str) or hasattr(table, "__fspath__"):
        source = parquet_columns(str(table))
        return source, list(source)
    if isinstance(table, Data):
        table = table.data
    if isinstance(table, np.ndarray):
        if table.dtype.names is None:
            raise ArgumentError(
                f"columns takes arrays of records; got one of {table.dtype}, which has no columns"
            )
        return table, list(table.dtype.names)
    refuse_closed(table, "the table of columns")
    if isinstance(table, Mapping):
        return table, list(table)
    for names in ("column_names", "columns"):
        labels = getattr(table, names, None)
        if isinstance(labels, Iterable) and all(isinstance(label, str) for label in labels):
            return table, list(labels)
    if hasattr(table, "keys"):
        return table, list(table.keys())
    raise ArgumentError(
        "columns takes a DataFrame, a Table, an array of records, a mapping of arrays or the path "
        f"of a Parquet file; got {class_text(table)}"
    )
