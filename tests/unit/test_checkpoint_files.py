"""Checkpoints as files: names, what a script finds in later versions, permissions, links, and
what killed processes leave.
"""

import base64
import fcntl
import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import synknumba as synk

State = namedtuple("State", "mean count")


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (0.0, ["value"]),
        ({"params": {"w": [0.0, 1.0]}}, ["params.w.0", "params.w.1"]),
        ({"a.b": 0.0, "a": {"b": 1.0}}, ["a%2Eb", "a.b"]),
        ({0: 0.0, "0": 1.0, "[0]": 2.0, "%5B0]": 3.0}, ["[0]", "0", "%5B0]", "%255B0]"]),
        ({"": {"a": 0.0}, "a": 1.0, "%": 2.0}, ["%.a", "a", "%25"]),
        ({"": {"": 0.0}}, ["%.%"]),
        ({"__metadata__": 0.0, "%5F_metadata__": 1.0}, ["%5F_metadata__", "%255F_metadata__"]),
        (
            {(1, "é"): 0.0, None: [1.0], 1.5: 2.0, False: 3.0},
            [r"[(1, '\xe9')]", "[None].0", "[1.5]", "[False]"],
        ),
        ({"\udc80": 0.0, "é": 1.0}, ["%ED%B2%80", "é"]),
        (State(0.0, {"x": 1.0}), ["mean", "count.x"]),
    ],
    ids=str,
)
def test_names(tree, names, tmp_path):
    """Of arrays in place of the floats, which count up."""

    def filled(node):
        match node:
            case dict():
                return {key: filled(child) for key, child in node.items()}
            case State():
                return State(*map(filled, node))
            case list():
                return [*map(filled, node)]
        return np.array(node)

    path = tmp_path / "a"
    synk.save(path, filled(tree))
    assert {name: float(value) for name, value in load_file(path).items()} == {
        name: k for k, name in enumerate(names)
    }
    assert synk.load(path) == filled(tree)


def test_files_of_version_1_are_read(tmp_path):
    """A file as it was written when this test was."""
    path = tmp_path / "a"
    path.write_bytes(base64.b64decode(VERSION_1))
    tree = synk.load(path)
    assert list(tree) == ["w", "opt", "step", (0, "a")]
    assert [one.dtype.name for one in tree["w"]] == ["float32", "complex128", "bool"]
    assert np.array_equal(tree["w"][0], np.arange(6, dtype="f4").reshape(2, 3))
    assert np.array_equal(tree["w"][1], np.array([1 + 2j]))
    assert tree["opt"]._asdict() == {"mean": (np.int16(-3), None), "count": 1 << 64}
    assert type(tree["opt"].mean[0]) is np.int16
    assert type(tree["opt"]).__name__ == "State"
    assert (tree["step"], tree[0, "a"]) == (12, [True, "é", float("-inf"), 2j])


VERSION_1 = """
oAIAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJzeW5rbnVtYmEiOiJ7XCJ2ZXJzaW9uXCI6MSxcInRyZWVcIjp7XCJkaWN0XCI6W1tcIndcIix7XCJsaXN0XCI6
W3tcImFycmF5XCI6XCJ3LjBcIn0se1wiYXJyYXlcIjpcIncuMVwiLFwiZHR5cGVcIjpcImNvbXBsZXgxMjhcIn0se1wiYXJyYXlcIjpcIncuMlwifV19XSxb
XCJvcHRcIix7XCJuYW1lZHR1cGxlXCI6W1wiU3RhdGVcIixbXCJtZWFuXCIsXCJjb3VudFwiXSxbe1widHVwbGVcIjpbe1wic2NhbGFyXCI6XCJvcHQubWVh
bi4wXCJ9LG51bGxdfSx7XCJpbnRcIjpcIjB4MTAwMDAwMDAwMDAwMDAwMDBcIn1dXX1dLFtcInN0ZXBcIiwxMl0sW3tcInR1cGxlXCI6WzAsXCJhXCJdfSx7
XCJsaXN0XCI6W3RydWUsXCJcXHUwMGU5XCIse1wiZmxvYXRcIjpcIi1pbmZcIn0se1wiY29tcGxleFwiOlswLjAsMi4wXX1dfV1dfX0ifSwidy4xIjp7ImR0
eXBlIjoiRjY0Iiwic2hhcGUiOlsxLDJdLCJkYXRhX29mZnNldHMiOlswLDE2XX0sIncuMCI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMiwzXSwiZGF0YV9v
ZmZzZXRzIjpbMTYsNDBdfSwib3B0Lm1lYW4uMCI6eyJkdHlwZSI6IkkxNiIsInNoYXBlIjpbXSwiZGF0YV9vZmZzZXRzIjpbNDAsNDJdfSwidy4yIjp7ImR0
eXBlIjoiQk9PTCIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzQyLDQ0XX19ICAAAAAAAADwPwAAAAAAAABAAAAAAAAAgD8AAABAAABAQAAAgEAAAKBA
/f8BAA==
"""


def modes(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0])
def test_permissions(tmp_path, mask):
    """Those of open(), and then those that the file has."""
    path, other = tmp_path / "a", tmp_path / "b"
    before = os.umask(mask)
    try:
        synk.save(path, 1)
        other.touch()
        assert modes(path) == modes(other) == 0o666 & ~mask
        path.chmod(0o604)
        synk.save(path, 2)
    finally:
        os.umask(before)
    assert modes(path) == 0o604
    assert synk.load(path) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner(tmp_path):
    path = tmp_path / "a"
    synk.save(path, 1)
    os.chown(path, 12345, 54321)
    synk.save(path, 2)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_links(tmp_path):
    """A link stays one, also if there was nothing at its end."""
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "model", tmp_path / "link"
    link.symlink_to(Path("real") / "model")
    for k in range(2):
        synk.save(link, k)
        assert link.is_symlink()
        assert synk.load(real) == synk.load(link) == k
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    assert os.listdir(tmp_path / "real") == ["model"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "é", "a b", "x" * 255, os.fsdecode(b"\xff")], ids=ascii
)
def test_names_of_files(tmp_path, name, monkeypatch):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    synk.save(os.path.join(folder, name), {"w": np.arange(3)})
    assert np.array_equal(synk.load(folder / name)["w"], np.arange(3))
    monkeypatch.chdir(folder)
    synk.save(name, 3)
    assert synk.load(name) == 3
    assert os.listdir() == [name]


def test_what_a_killed_process_leaves(tmp_path):
    """The next save in the folder removes it; not what a process has that still writes, and
    nothing of the user's.
    """
    names = [".synk-save-abandoned", ".synk-save-in-use", ".synk-saved", "saves"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "new").write_bytes(b"half")
    lock = os.open(tmp_path / names[1], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    synk.save(tmp_path / "model", 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*names[1:], "model"])
    os.close(lock)
    synk.save(tmp_path / "other", 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*names[2:], "model", "other"])


def test_a_folder_taken_for_abandoned_before_it_is_locked(tmp_path, monkeypatch):
    """By another process, right after it was made: another one is made."""
    real, taken = fcntl.flock, []

    def flock(lock, how):
        real(lock, how)
        if how == fcntl.LOCK_EX and not taken:
            taken.append(os.readlink(f"/proc/self/fd/{lock}"))
            shutil.rmtree(taken[0])

    monkeypatch.setattr(fcntl, "flock", flock)
    synk.save(tmp_path / "a", 1)
    assert taken
    assert synk.load(tmp_path / "a") == 1
    assert os.listdir(tmp_path) == ["a"]


def test_file_systems_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".synk-save-x").mkdir()
    synk.save(tmp_path / "a", 1)
    assert synk.load(tmp_path / "a") == 1
    assert sorted(os.listdir(tmp_path)) == [".synk-save-x", "a"]


class Matrix(np.ndarray):
    pass


def test_arrays_of_any_layout(tmp_path):
    x = np.arange(24.0).reshape(4, 6)
    tree = {
        "t": x.T,
        "s": x[::-2, ::3],
        "o": np.asfortranarray(x),
        "b": x.astype(">f8"),
        "m": x.view(Matrix),
        "c": (x + 1j * x).T,
    }
    synk.save(tmp_path / "a", tree)
    found = synk.load(tmp_path / "a")
    for name, array in tree.items():
        assert np.array_equal(found[name], array)
        assert type(found[name]) is np.ndarray
        assert found[name].dtype.isnative
        found[name][...] = 0  # writable, and the caller's own


def test_arrays_of_like_are_not_changed(tmp_path):
    """What is returned has those of the file, and keys in the order of `like`."""
    mine = np.zeros(3)
    synk.save(tmp_path / "a", {"w": np.arange(3.0), "k": [1, "x", None]})
    found = synk.load(tmp_path / "a", like={"k": (None, 0, 2.5), "w": mine})
    assert list(found) == ["k", "w"]
    assert found["k"] == (1, "x", None)
    assert np.array_equal(found["w"], np.arange(3.0))
    assert np.array_equal(mine, np.zeros(3))


def test_the_state_of_a_generator(tmp_path):
    """Of NumPy's generators it is a tree of numbers, strings and arrays."""
    for make in (np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64):
        rng = np.random.Generator(make(5))
        rng.normal(size=7)
        synk.save(tmp_path / "a", rng.bit_generator.state)
        wanted = rng.normal(size=5)
        other = np.random.Generator(make(6))
        other.bit_generator.state = synk.load(tmp_path / "a")
        assert np.array_equal(other.normal(size=5), wanted)
