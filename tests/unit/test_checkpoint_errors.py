"""Bad input of `save` and `load`: refused in words that say what to do, and nothing has changed,
on the disk or on ranks.
"""

import errno
import json
import os
import random
import re
import resource
import signal
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import synknumba as synk
from synknumba._host.stored import Source, StoredData
from synknumba._learning import checkpoint

State = namedtuple("State", "mean count")
Other = namedtuple("Other", "mean number")


@pytest.fixture
def path(tmp_path):
    """A checkpoint, which is as before after the test, and alone in its folder."""
    path = tmp_path / "model"
    synk.save(path, {"w": np.arange(3.0), "step": 5})
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


# ---- what is no tree of a checkpoint


def itself():
    tree = {}
    tree["a"] = [tree]
    return tree


def deep():
    tree = 0
    for _ in range(100_000):
        tree = [tree]
    return tree


RECORDS = np.zeros(2, [("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": {1, 2}}, r"^a has type set; checkpoints hold variables.* Convert it, as by"),
        ([b"abc"], "^0 has type bytes;"),
        ({"a": [0, object()]}, r"^a\.1 has type object;"),
        (range(3), "^the tree has type range;"),
        ({"a": np.random.default_rng(0)}, r"^a has type numpy\.random\._generator\.Generator;"),
        ({"a": errno.errorcode.keys()}, "^a has type dict_keys;"),
        ({"s": signal.SIGINT}, r"^s has type signal\.Signals;"),
        ({"a": {3j: 1}}, r"^save: a has the key 3j; keys are strings"),
        ({(0, float("nan")): 1}, "^save: the tree has the key nan; .* no NaN"),
        ({State(1, 2): 1}, r"has the key State\(mean=1, count=2\)"),
        (
            {"a": np.ma.masked_array([1.0, 2.0], [0, 1])},
            r"^save: a is a masked array; save value\.filled",
        ),
        (itself(), "^save: the tree is nested too deeply, or contains itself$"),
        (deep(), "^save: the tree is nested too deeply, or contains itself$"),
    ],
)
def test_other_values_are_refused(path, tree, text):
    with pytest.raises(synk.ArgumentError, match=text):
        synk.save(path, tree)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(3, np.longdouble), r"save value\.astype\(np\.float64\)"),
        (np.zeros(3, np.clongdouble), r"save value\.astype\(np\.complex128\)"),
        (synk.variable(np.zeros(3, np.longdouble)), r"save value\.astype\(np\.float64\)"),
        (RECORDS, r"save a dict of its fields, \{name: value\[name\]"),
        (RECORDS[0], "save a dict of its fields"),
        (synk.data(RECORDS), "save a dict of its fields"),
        (np.array(["a", "b"]), r"save a list of strings, value\.tolist\(\)"),
        (np.str_("a"), r"save a list of strings"),
        (np.array([b"a"]), r"save value\.view\(np\.uint8\)"),
        (np.datetime64("2026-01-01"), r"save value\.view\(np\.int64\)"),
        (np.array([None]), "save an array of numbers, or a list"),
        (np.zeros(2, "V3"), r"save it with a dtype of NumPy's own, as by value\.view"),
    ],
    ids=lambda value: f"{value.dtype}-{type(value).__name__}" if hasattr(value, "dtype") else "",
)
def test_other_dtypes_are_refused(path, value, text):
    with pytest.raises(
        synk.DataError,
        match=rf"^save: net\.0 has dtype .*, which safetensors files do not have; {text}",
    ):
        synk.save(path, {"net": [value]})


def test_more_than_a_header_holds(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MOST_HEADER_BYTES", 5000)
    synk.save(path.with_name("a"), [float(k) for k in range(500)])
    path.with_name("a").unlink()
    for tree in ([float(k) for k in range(1000)], [np.zeros(1)] * 100):
        with pytest.raises(
            synk.DataError, match=r"arrays, and [\d,]+ bytes of keys and other values.*np\.array"
        ):
            synk.save(path, tree)


# ---- paths


@pytest.mark.parametrize("bad", [None, 3, b"model", {"w": 1}, "a\0b", Path], ids=str)
def test_what_is_no_path(bad, path):
    with pytest.raises(
        synk.ArgumentError,
        match=r"^save: path must be a str or an os\.PathLike .*write synk\.save\(path, tree\)",
    ):
        synk.save(bad, "model")
    with pytest.raises(
        synk.ArgumentError, match=r"^load: path must be .*write synk\.load\(path, like=tree\)"
    ):
        synk.load(bad)
    with pytest.raises(synk.ArgumentError, match="load.*positional"):
        synk.load(path, {"w": 1})


@pytest.mark.parametrize("do", [lambda path: synk.save(path, 1), synk.load], ids=["save", "load"])
def test_paths_of_other_things(do, path, tmp_path):
    with pytest.raises(IsADirectoryError, match="Is a folder; give the path of a file in it"):
        do(tmp_path)
    with pytest.raises(FileNotFoundError, match="No such f"):
        do(tmp_path / "missing" / "model")
    with pytest.raises(OSError, match="Is a folder; give the path of a file in it|No such file"):
        do(f"{tmp_path}/missing/")
    with pytest.raises(NotADirectoryError):
        do(path / "model")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        do(pipe)
    assert pipe.is_fifo()
    pipe.unlink()


def test_no_such_file(path):
    with pytest.raises(FileNotFoundError, match="No such file or directory: .*other") as caught:
        synk.load(path.with_name("other"))
    assert caught.value.filename == str(path.with_name("other"))


def test_files_that_must_not_be_written(path, monkeypatch):
    """Renaming would replace them, as it needs rights of the folder only; root has all rights."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(PermissionError, match="Is not writable"):
        synk.save(path, 1)


def test_no_room(path):
    """A limit of the process, for which there is an error as for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            synk.save(path, np.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_broken_off(path, monkeypatch, error):
    def write(*_):
        raise error

    monkeypatch.setattr(safetensors.numpy, "save_file", write)
    with pytest.raises(error):
        synk.save(path, 1)


# ---- places


def test_on_a_rank(path):
    @synk.function(outputs=None)
    def on_rank(x, what):
        return synk.save(str(path), 1) if what == "save" else synk.load(str(path))

    with synk.fork(2, device="cpu"):
        for what in ("save", "load"):
            with pytest.raises(
                synk.WorldError, match=rf"this is rank \d, but synk\.{what}\(\) is for the script"
            ):
                on_rank(np.zeros(2), what)


@pytest.mark.parametrize("do", ["save", "load"])
def test_in_the_body_of_a_sequence(path, do, no_world):
    def body(x):
        synk.save(path, 1) if do == "save" else synk.load(path)

    with pytest.raises(synk.ArgumentError, match=rf"synk\.{do}\(\) inside body would run once"):
        synk.sequence(body).plan(np.zeros(3), world_size=1)


def test_without_the_package(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for do in (lambda: synk.save(path, 1), lambda: synk.load(path)):
        with pytest.raises(
            ModuleNotFoundError,
            match=r"synk\..* needs the package safetensors .*: pip install safetensors",
        ):
            do()


# ---- files


def test_truncated_files(path, tmp_path):
    """At each length."""
    content, cut = path.read_bytes(), tmp_path / "cut"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(
            synk.DataError, match=r"^load: .*cut is not a checkpoint of synk\.save, or is damaged: "
        ):
            synk.load(cut)
    cut.unlink()


def test_foreign_files(path, tmp_path):
    other = tmp_path / "other"
    for content in (b"", b"\x80\x05K\x01.", b"PK\3\4" + bytes(60), os.urandom(500)):
        other.write_bytes(content)
        with pytest.raises(synk.DataError, match="is not a checkpoint"):
            synk.load(other)
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file({"w": np.zeros(3)}, other, metadata)
        with pytest.raises(
            synk.DataError, match=r"a safetensors file, but not of synk\.save; .*load_file\(path\)"
        ):
            synk.load(other)
    other.unlink()


TREE = {
    "w": [np.arange(6.0).reshape(3, 2), np.ones(2, "c8")],
    "n": np.float32(2),
    "s": State(1, (1 << 70, 2j)),
    (1, "a"): 0.5,
}


def damaged(node, rng):
    """The same JSON with one thing changed."""
    if isinstance(node, dict | list) and node and rng.random() < 0.8:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        changed = dict(node) if isinstance(node, dict) else list(node)
        changed[key] = damaged(node[key], rng)
        return changed
    return rng.choice(
        [
            None,
            -1,
            2.5,
            "w.0",
            "x",
            [],
            {},
            [[]],
            {"array": "w.0"},
            {"dict": [1]},
            {"int": "z"},
            {"float": []},
            True,
        ]
    )


def test_damaged_metadata(tmp_path):
    """Whatever it is, the file is refused, or something is read; no other error, and no code of
    the file runs.
    """
    path, refused = tmp_path / "a", []
    synk.save(path, TREE)
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(str(path), "np") as file:
        text = file.metadata()["synknumba"]
    rng = random.Random(3)
    for _ in range(400):
        safetensors.numpy.save_file(
            tensors, path, {"synknumba": json.dumps(damaged(json.loads(text), rng))}
        )
        try:
            synk.load(path)
        except synk.DataError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert all(re.match("load: .* cannot be read: ", told) for told in refused)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Expecting"),
        (
            '{"version":2,"tree":1}',
            "its version is 2, and this synknumba reads version 1; update it",
        ),
        ('{"version":1}', r"its metadata are damaged \(KeyError: 'tree'\)"),
        ('{"version":1,"tree":{"array":"v"}}', r"damaged \(KeyError: 'v'\)"),
        # would be read twice
        (
            '{"version":1,"tree":{"list":[{"array":"w"},{"array":"w"}]}}',
            r"damaged \(KeyError: 'w'\)",
        ),
        ('{"version":1,"tree":{"scalar":"w"}}', r"w should be a number, and has shape \(3, 1\)"),
        (
            '{"version":1,"tree":{"array":"w","dtype":"complex128"}}',
            "w should be complex128, and is F64",
        ),
        ('{"version":1,"tree":{"dict":[[{"list":[]},1]]}}', "its metadata are damaged"),
        ('{"version":1,"tree":{"namedtuple":["import os","a",[1]]}}', "valid identifiers"),
        ('{"version":1,"tree":' + '{"list":[' * 5000 + "]}" * 5000 + "}", "RecursionError"),
        ('{"version":1,"tree":' + "9" * 5000 + "}", "4300 digits"),
    ],
)
def test_metadata_that_are_wrong(tmp_path, text, told):
    safetensors.numpy.save_file({"w": np.zeros((3, 1))}, tmp_path / "a", {"synknumba": text})
    with pytest.raises(synk.DataError, match=f"a cannot be read: .*{told}"):
        synk.load(tmp_path / "a")


# ---- trees that differ


def in_mapped_file(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones(3))
    return synk.data(np.load(tmp_path / "rows.npy", mmap_mode="r+"), copy=False)


def in_folder(tmp_path):
    """As an array of zarr, of whose files no changes are seen."""
    return StoredData(Source("zarr", str(tmp_path), "rows"), (3,), "f8")


@pytest.mark.parametrize("make", [in_mapped_file, in_folder])
def test_data_that_is_only_read_is_told_before_anything_changes(tmp_path, make):
    data, read_only, w = synk.data(np.ones(3)), make(tmp_path), synk.variable(np.ones(2), "w")
    synk.save(tmp_path / "model", {"data": np.zeros(3), "w": np.zeros(2), "rows": np.zeros(3)})
    with pytest.raises(
        synk.DataError,
        match=r"nothing has changed:\n  rows: in like=, Data is .* the file .* only read",
    ):
        synk.load(tmp_path / "model", like={"data": data, "w": w, "rows": read_only})
    assert (data.data == 1).all()
    assert (w.get_value() == 1).all()


def test_all_differences_are_told_and_nothing_has_changed(tmp_path):
    path = tmp_path / "model"
    with synk.fork(2, device="cpu"):
        w, b = (
            synk.variable([np.ones(3), np.ones((2, 2), "f4")], "w"),
            synk.variable(np.ones(2), "b"),
        )
        rows, data = synk.scatter(synk.variable(np.arange(5.0))), synk.data(np.ones(4))
        frozen = synk.data(np.ones(1))
        frozen.freeze()
        synk.save(
            path,
            {
                "w": [np.zeros(3), np.zeros((2, 2))],
                "b": np.zeros(3),
                "rows": np.zeros(6),
                "data": np.zeros(4, "i4"),
                "frozen": np.zeros(1),
                "good": np.zeros(2),
                "scalar": np.float64(3),
                "step": np.zeros(2),
                "old": 1,
                "state": State(1, 2),
                "list": [1, 2],
                "tree": {"a": 1},
                3: None,
            },
        )
        good = synk.variable(np.ones(2))
        like = {
            "w": w,
            "b": b,
            "rows": rows,
            "data": data,
            "frozen": frozen,
            "good": good,
            "scalar": np.zeros(()),
            "step": 0,
            "new": [np.zeros(1)],
            "state": Other(1, 2),
            "list": (1, 2, 3),
            "tree": None,
            3: {},
        }
        with pytest.raises(synk.DataError) as caught:
            synk.load(path, like=like)
        assert str(caught.value).splitlines() == [
            f"load: {path} does not fit like=, so nothing has changed:",
            "  new: the file has nothing, like= has a list of 1",
            "  old: the file has 1, like= has nothing",
            "  w.1: the file has float64 (2, 2), like= has float32 (2, 2)",
            "  b: the file has float64 (3,), like= has float64 (2,)",
            "  rows: the file has float64 (6,), like= has float64 (5,)",
            "  data: the file has int32 (4,), like= has float64 (4,)",
            "  frozen: in like=, Data is frozen; call thaw() before changing it",
            "  scalar: the file has a float64 number, like= has float64 ()",
            "  step: the file has float64 (2,), like= has 0",
            (
                "  state: the file has a named tuple (mean, count), like= has a "
                "named tuple (mean, number)"
            ),
            "  list: the file has a list of 2, like= has a tuple of 3",
            "  tree: the file has a dict of 1, like= has None",
            "  [3]: the file has None, like= has a dict of 0",
        ]
        for variable, value in ((good, np.ones(2)), (b, np.ones(2)), (rows, np.arange(5.0))):
            assert np.array_equal(synk.snapshot(variable), value)
        assert np.array_equal(w.get_value()[0], np.ones(3))
        assert np.array_equal(data, np.ones(4))
    with pytest.raises(synk.ArgumentError, match=r"^good has type set; checkpoints hold"):
        synk.load(path, like={**like, "good": {1}})
    with pytest.raises(
        synk.DataError, match=r"\n  the tree: the file has a dict of 13, like= has float64 \(3,\)$"
    ):
        synk.load(path, like=np.zeros(3))


def test_one_variable_in_two_places(tmp_path):
    """As tied weights: the file must have one value for them."""
    v, d = synk.variable(np.arange(3.0)), synk.data(np.arange(2))
    path, like = tmp_path / "tied", {"a": v, "b": [v, d, d]}
    synk.save(path, like)
    v.set_value(np.zeros(3))
    synk.load(path, like=like)
    assert np.array_equal(v, np.arange(3.0))
    synk.save(path, {"a": np.zeros(3), "b": [-np.zeros(3), np.zeros(2, int), np.ones(2, int)]})
    with pytest.raises(synk.DataError) as caught:
        synk.load(path, like=like)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "  b.0",
        "  b.2",
    ]
    assert "the same variable or Data as at a, and the file other values" in str(caught.value)
    assert np.array_equal(v, np.arange(3.0))
    assert np.array_equal(d, np.arange(2))


def test_fewer_rows_than_a_halo(tmp_path, no_world):
    path, v, w = tmp_path / "a", synk.variable(np.arange(6.0), "rod"), synk.variable(np.zeros(2))
    with synk.fork(2, device="cpu"):
        synk.scatter(v, halo=3)
        synk.save(path, [w, v])
        w.set_value(np.ones(2))
    with synk.fork(3, device="cpu"):
        with pytest.raises(
            synk.PartitionError,
            match="halo=3 needs 3 rows on every rank, and 6 rows of variable 'rod' on 3 ranks",
        ):
            synk.load(path, like=[w, v])
        assert np.array_equal(w, np.ones(2))


def test_values_that_are_lost(tmp_path):
    path, v = tmp_path / "a", synk.variable(np.zeros(3), "v")

    @synk.function
    def die(v):
        v += 1
        if synk.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with synk.fork(2, device="cpu"), pytest.raises(synk.RankDied):
        die(v)
    with pytest.raises(
        synk.VariableLost, match=r"^save: net\.v: the values of variable 'v' ended with the ranks"
    ):
        synk.save(path, {"net": {"v": v}})
    assert os.listdir(tmp_path) == []


def test_saved_by_two_threads_at_once(tmp_path):
    """Each file is one of those saved; none is removed as if it were abandoned."""
    path, failed = tmp_path / "a", []

    def save_often(number):
        try:
            for _ in range(20):
                synk.save(path, np.full(1000, number))
                assert len({*synk.load(path).tolist()}) == 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=save_often, args=[k]) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert os.listdir(tmp_path) == ["a"]
