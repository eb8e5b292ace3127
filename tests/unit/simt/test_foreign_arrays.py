"""Arrays of other libraries as arguments: the kernel works on their memory."""

import importlib.util
from collections import namedtuple

import numpy as np
import pytest
from numba import cuda

from synknumba import simt
from synknumba._errors import ArgumentError


@simt.jit
def doubled(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


class Interface:
    """An object with `__array_interface__` alone."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class OldDLPack:
    """A tensor as PyTorch's: the first version of DLPack, without a flag for read-only memory,
    and `__array__`.
    """

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device, 0

    def __array__(self, dtype=None, copy=None):
        return self.array


class NewDLPack(OldDLPack):
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    __array__ = None


class Copied(OldDLPack):
    """A tensor whose `__array__` gives a copy."""

    def __array__(self, dtype=None, copy=None):
        return self.array.copy()


class Unshared(OldDLPack):
    def __dlpack__(self, **_options):
        raise BufferError("tensors that require gradient cannot be exported")


X = np.arange(5.0)


# NumPy 2.0 gives no array to write to, and takes none that may only be read.
needs_numpy = pytest.mark.skipif(
    not np.from_dlpack(np.zeros(1)).flags.writeable, reason="NumPy 2.0 passes no writable DLPack"
)


@pytest.mark.parametrize("kind", [Interface, OldDLPack, NewDLPack])
def test_kernels_write_to_their_memory(kind):
    out = np.zeros(5)
    doubled[1, 8](kind(X), kind(out))
    np.testing.assert_array_equal(out, 2 * X)
    steps = np.zeros(10)[::2]
    doubled[1, 8](kind(X), kind(steps))
    np.testing.assert_array_equal(steps, 2 * X)


@pytest.mark.parametrize("run", [simt.jit, simt.debug, simt.check])
def test_every_way_of_running_takes_them(run):
    out = np.zeros(5)
    run(doubled)[1, 8](OldDLPack(X), Interface(out))
    np.testing.assert_array_equal(out, 2 * X)


@needs_numpy
def test_parts_of_tuples():
    pair = namedtuple("Pair", "x out")

    @simt.jit
    def kernel(plain, named, wrapped):
        i = cuda.grid(1)
        named.out[i] = plain[0][i] + named.x[i] + wrapped[i]

    out = np.zeros(5)
    kernel[1, 5]((Interface(X), 3), pair(OldDLPack(X), NewDLPack(out)), cuda.In(OldDLPack(X)))
    np.testing.assert_array_equal(out, 3 * X)


@needs_numpy
def test_what_may_not_be_written_is_not():
    for readonly in (np.frombuffer(X.tobytes()), NewDLPack(np.frombuffer(X.tobytes())), Copied(X)):
        out = np.zeros(5)
        doubled[1, 8](readonly, out)
        np.testing.assert_array_equal(out, 2 * X)
        with pytest.raises(ArgumentError, match="array that is read-only|out is read-only"):
            doubled[1, 8](X, readonly)


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(
        ArgumentError,
        match=r"doubled\(\): out is a \w+\.OldDLPack in a GPU's memory .DLPack device 2.; pass",
    ):
        doubled[1, 8](X, OldDLPack(X, device=2))
    with pytest.raises(
        ArgumentError,
        match=r"x is a \w+\.Unshared whose memory .* require gradient.*; pass a NumPy",
    ):
        doubled[1, 8](Unshared(X), X)
    with pytest.raises(
        ArgumentError,
        match="x is an object, which Numba cannot pass to a kernel; pass arrays "
        "of NumPy, or with DLPack",
    ):
        doubled[1, 8](object(), X)


HEADER = """
import numpy as np
from numba import cuda
from synknumba import simt
from synknumba._errors import ArgumentError

@simt.jit
def doubled(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]
"""
PROGRAMS = {
    "jax": """
import jax
out = np.zeros(5, np.float32)
doubled[1, 8](jax.numpy.arange(5, dtype=np.float32), out)
np.testing.assert_array_equal(out, 2 * np.arange(5))
""",
    "torch": """
import torch
x, out = torch.arange(12.0).reshape(3, 4)[:, 1], torch.zeros(3)
doubled[1, 8](x, out)
np.testing.assert_array_equal(out.numpy(), [2, 10, 18])
try:
    doubled[1, 8](torch.zeros(3, requires_grad=True), out)
except ArgumentError as error:
    assert "x is a torch.Tensor whose memory its library does not share" in str(error), error
    assert "grad" in str(error), error
else:
    raise AssertionError("a tensor that requires a gradient was taken")
""",
}


@pytest.mark.parametrize("library", PROGRAMS)
def test_arrays_of(library, tmp_path, run_program):
    """In a process of its own: both start threads, and JAX warns of each fork after it was
    imported.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = run_program(HEADER + PROGRAMS[library], tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
