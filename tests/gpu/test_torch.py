"""torch in functions on GPUs: its work is in order with all other work, and is recorded with
`record=True`.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(512, 40))
W = RNG.normal(size=(40, 7)) / 10
GRADIENT = 2 * X.T @ (np.tanh(X @ W) * (1 - np.tanh(X @ W) ** 2))


@pytest.fixture(scope="module", params=[[0], [0, 0]], ids=["cuda1", "cuda2on1"])
def world(request):
    with synk.fork(devices=request.param) as world:
        yield world


@synk.parallel(grid="elements")
@cuda.jit
def double(v, twice):
    i = cuda.grid(1)
    if i < v.shape[0]:
        twice[i] = 2 * v[i]


def slow(v, number):
    import torch

    v = torch.from_dlpack(v)
    work = torch.ones((1024, 1024), device="cuda")
    for _ in range(50):
        work = work @ work / 1024
    v.copy_(work[0, 0] * 0 + number + torch.zeros_like(v))


def test_later_calls_read_what_torch_writes(world):
    v, twice = synk.variable(np.zeros(1000)), synk.variable(np.zeros(1000))
    write = synk.function(slow)
    for number in range(20):
        write(v, float(number))
        double(v, twice)
        assert_array_equal(twice.get_value(), np.full(1000, 2.0 * number))


def squares(x, w, gradient):
    """Sum of tanh(x w)², and its gradient by autograd."""
    import torch

    x, w, gradient = (torch.from_dlpack(array) for array in (x, w, gradient))
    w = w.detach().requires_grad_()
    loss = (torch.tanh(x @ w) ** 2).sum()
    gradient.copy_(torch.autograd.grad(loss, w)[0])
    return loss.detach()


@pytest.mark.parametrize("record", [False, True], ids=["as it is", "recorded"])
def test_autograd(world, record):
    function = synk.function(squares, outputs="sum", record=record)
    w, gradient = synk.variable(W), synk.variable(np.zeros_like(W))
    for _ in range(5):
        assert_allclose(function(X, w, gradient), (np.tanh(X @ W) ** 2).sum(), rtol=1e-12)
    synk.all_reduce(gradient, "sum")
    assert_allclose(gradient.get_value(), GRADIENT, rtol=1e-10, atol=1e-10)


def test_recorded_in_a_sequence(world):
    square = synk.function(squares, outputs="sum", record=True)

    @synk.function(record=True)
    def descend(w, gradient):
        w -= 1e-3 * gradient

    @synk.sequence
    def learn(x, w, gradient):
        loss = square(x, w, gradient)
        synk.all_reduce(gradient, "sum")
        descend(w, gradient)
        return loss

    x, w, gradient = (
        synk.scatter(synk.variable(X)),
        synk.variable(W),
        synk.variable(np.zeros_like(W)),
    )
    losses = learn(x, w, gradient, times=30, every=1)
    own, wanted = W.copy(), []
    for _ in range(30):
        y = np.tanh(X @ own)
        wanted.append((y**2).sum())
        own -= 1e-3 * (2 * X.T @ (y * (1 - y**2)))
    assert_allclose(losses, wanted, rtol=1e-9)
    assert_allclose(w.get_value(), own, rtol=1e-9)


def test_other_tensors_keep_their_values(world):
    """Tensors made between calls do not get the memory of a recording's temporary ones."""

    @synk.function(record=True, outputs="sum")
    def recorded(x):
        import torch

        x = torch.from_dlpack(x)
        return ((x * 2 + 1) * (x * 3 - 1)).sum()

    @synk.function(outputs=None)
    def keep(size):
        import sys

        import torch

        kept = sys.__dict__.setdefault("kept", [])
        kept.append(torch.full((size,), float(len(kept)), device="cuda", dtype=torch.float64))
        return all(bool((one == number).all()) for number, one in enumerate(kept))

    wanted = ((X * 2 + 1) * (X * 3 - 1)).sum()
    for _ in range(20):
        assert_allclose(recorded(X), wanted)
        assert keep(X.size // world.world_size) == [True] * world.world_size


def draws(x):
    import torch

    return torch.from_dlpack(x).sum() * torch.rand((), device="cuda")


def looks(x):
    import torch

    return torch.from_dlpack(x) * torch.from_dlpack(x).sum().item()


@pytest.mark.parametrize("function", [draws, looks])
def test_what_cannot_be_repeated_is_refused(world, function):
    with pytest.raises(
        synk.RecordError, match=rf"{function.__name__} cannot be recorded"
    ) as caught:
        synk.function(function, outputs=None, record=True)(X)
    assert "test_torch.py" in str(caught.value)
    assert (
        synk.function(squares, outputs="sum")(X, synk.variable(W), synk.variable(np.zeros_like(W)))
        > 0
    )
