"""Training on ranks: the steps of one process with all rows, for any number of ranks, rows and
slices.
"""

from importlib.util import find_spec

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import optim
from synknumba._ops.tree import flatten
from tests.quick import whole

OPTIMISERS = {
    "sgd": lambda: optim.sgd(0.1),
    "momentum": lambda: optim.momentum(0.05),
    "nesterov": lambda: optim.nesterov_momentum(0.05),
    "adagrad": lambda: optim.adagrad(0.2),
    "rmsprop": lambda: optim.rmsprop(0.02),
    "adadelta": optim.adadelta,
    "adam": lambda: optim.adam(0.05),
    "adamax": lambda: optim.adamax(0.05),
    "adamw": lambda: optim.adamw(
        optim.warm_up(optim.cosine(0.05, 8), 3), mask={"w": (True, False), "c": True}
    ),
    "lion": lambda: optim.lion(optim.exponential(0.02, 0.9, 3)),
    "clipped": lambda: optim.chain(optim.clip(0.05), optim.momentum(0.1)),
    "clipped by norm": lambda: optim.chain(
        optim.clip_by_global_norm(0.1), optim.adam(optim.linear(0.1, 0.01, 5))
    ),
    "norm in the middle": lambda: optim.chain(
        optim.momentum(-1.0), optim.clip_by_global_norm(0.2), optim.scale(-0.05)
    ),
    "accumulated": lambda: optim.accumulate(
        optim.chain(optim.clip_by_global_norm(0.1), optim.adam(0.1)), 3
    ),
    "averaged": lambda: optim.averaged(optim.adam(0.05), decay=0.8),
}
PARAMS = {"w": (np.linspace(-0.5, 0.5, 20).reshape(4, 5), np.zeros(5)), "c": np.linspace(1, 0.2, 5)}


def network(x, y, params):
    """Loss and slopes of a small network with one hidden layer, summed over rows; with NumPy or
    CuPy.
    """
    (w, b), c = params["w"], params["c"]
    hidden = np.tanh(x @ w + b)
    # OpenBLAS 0.3.31 computes also with words of the stack that it has not set
    with np.errstate(invalid="ignore"):
        error = hidden @ c - y
    inner = 2 * error[:, None] * c * (1 - hidden**2)
    return (error**2).sum(), {"w": (x.T @ inner, inner.sum(0)), "c": 2 * hidden.T @ error}


def by_numpy(optimizer, params, batches, state=None):
    """Losses and parameters of the serial twin."""
    state, losses = state or optimizer.init(params), []
    for x, y in batches:
        loss, slopes = network(x, y, params)
        mean = {"w": tuple(one / len(x) for one in slopes["w"]), "c": slopes["c"] / len(x)}
        step, state = optimizer.update(mean, state, params)
        params = optim.apply_updates(params, step)
        losses.append(loss / len(x))
    return losses, params, state


def rows_of(n, count, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 4)), rng.normal(size=n)) for _ in range(count)]


def assert_like(found, wanted, **tolerances):
    for one, other in zip(flatten(found)[0], flatten(wanted)[0], strict=True):
        assert_allclose(one, other, **tolerances)


# of others the rules are compared with optax's
QUICK = (
    "adam",
    "clipped by norm",
    "accumulated",
)


@pytest.mark.parametrize(
    "name", [*QUICK, *whole(*(name for name in OPTIMISERS if name not in QUICK))]
)
def test_steps_of_the_serial_twin(world, name):
    optimizer = OPTIMISERS[name]()
    step = synk.train.step(network, PARAMS, optimizer)
    batches = [one for n in (6, 11, 1, 6) for one in rows_of(n, 3, seed=n)]
    losses = [step(x, y) for x, y in batches]
    wanted, params, state = by_numpy(optimizer, PARAMS, batches)
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11, atol=1e-13)
    assert step.steps == state.steps
    if name == "averaged":
        assert_like(step.average(), state.parts[-1]["average"], rtol=1e-12)
    for rank in range(1, world.world_size):
        assert_array_equal(step.params.get_value(rank=rank)["c"], step.params.get_value()["c"])


def test_float32_and_replicas_after_many_steps(world):
    """Bits of replicas stay equal for 1,000 steps: nothing is sent but the sums."""
    params = {
        "w": tuple(one.astype(np.float32) for one in PARAMS["w"]),
        "c": PARAMS["c"].astype(np.float32),
    }
    optimizer = optim.chain(optim.clip_by_global_norm(0.5), optim.adamw(0.01))
    step = synk.train.step(network, params, optimizer)
    ((x, y),) = rows_of(90, 1)
    x, y = x.astype(np.float32), y.astype(np.float32)
    order = np.random.default_rng(1).permuted(np.tile(np.arange(90), (100, 1)), axis=1)[:, :30]
    losses = np.concatenate(
        [step.epoch(synk.data(x), synk.data(y), order=order) for _ in range(10)]
    )
    wanted, serial, _ = by_numpy(optimizer, params, [(x[rows], y[rows]) for rows in order])
    assert_allclose(losses[:100], wanted, rtol=2e-5)
    values = [flatten(step.params.get_value(rank=rank))[0] for rank in range(world.world_size)]
    for value in values[1:]:
        for one, other in zip(value, values[0], strict=True):
            assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    assert step.steps == 1000
    assert losses[-50:].mean() < 0.8 * losses[:50].mean()
    assert serial["c"].dtype == step.params.dtype["c"] == np.float32


@pytest.mark.parametrize("rows", [9, 15, "2n"])
def test_data_parallel_tables_steps(world, rows):
    """DataParallelTable's tests: 10 steps of Nesterov's momentum, with nested inputs, equal a
    single device's at each step.
    """
    count = 2 * world.world_size if rows == "2n" else rows

    def nested(inputs, params):
        return network(inputs["x"], inputs["y"][0], params)

    optimizer = optim.nesterov_momentum(0.05)
    step = synk.train.step(nested, PARAMS, optimizer)
    params, state = PARAMS, optimizer.init(PARAMS)
    for x, y in rows_of(count, 10, seed=3):
        loss = step({"x": x, "y": [y]})
        (wanted,), params, state = by_numpy(optimizer, params, [(x, y)], state)
        assert_allclose(loss, wanted, rtol=1e-12)
        assert_like(step.params.get_value(), params, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("slices", [2, 5])
def test_slices(world, slices):
    optimizer, batches = optim.adam(0.05), rows_of(13, 4)
    step = synk.train.step(network, PARAMS, optimizer)
    losses = [step(x, y, num_slices=slices) for x, y in batches]
    wanted, params, _ = by_numpy(optimizer, PARAMS, batches)
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11)


@pytest.mark.parametrize("how", ["numbers", "slice", "mask", "count"])
def test_rows_that_batch_selects(world, how):
    ((x, y),) = rows_of(40, 1)
    rows = {
        "numbers": [3, 39, 7, 7, 0],
        "slice": slice(5, 30, 3),
        "mask": np.arange(40) % 3 == 1,
        "count": 11,
    }[how]
    picked = np.arange(40)[:11] if how == "count" else np.arange(40)[rows]
    optimizer = optim.momentum(0.05)
    step = synk.train.step(network, PARAMS, optimizer)
    data = synk.data(x), synk.data(y)
    losses = [step(*data, batch=rows) for _ in range(3)]
    wanted, params, _ = by_numpy(optimizer, PARAMS, [(x[picked], y[picked])] * 3)
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11)


@cuda.jit
def line(x, y, w, b, loss, w_slope, b_slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        error = b[0] - y[i]
        for j in range(x.shape[1]):
            error += x[i, j] * w[j]
        cuda.atomic.add(loss, 0, error * error)
        cuda.atomic.add(b_slope, 0, 2 * error)
        for j in range(x.shape[1]):
            cuda.atomic.add(w_slope, j, 2 * error * x[i, j])


@pytest.mark.parametrize("slices", [1, 2])
def test_gradients_by_kernels(world, slices):
    def twin(x, y, w, b):
        error = x @ w + b[0] - y
        return (error**2).sum(), (2 * x.T @ error, np.array([2 * error.sum()]))

    start, optimizer = (np.zeros(4), np.zeros(1)), optim.adam(0.1)
    step = synk.train.step(line, start, optimizer)
    params, state = start, optimizer.init(start)
    for x, y in rows_of(7, 5) + rows_of(1, 2):
        loss = step(x, y, num_slices=slices)
        total, slopes = twin(x, y, *params)
        change, state = optimizer.update(tuple(one / len(x) for one in slopes), state, params)
        params = optim.apply_updates(params, change)
        assert_allclose(loss, total / len(x), rtol=1e-12)
        assert_like(step.params.get_value(), params, rtol=1e-10, atol=1e-13)


@cuda.jit
def weighted_line(x, y, mask, w, loss, slope):
    i = cuda.grid(1)
    if i < x.shape[0]:
        error = x[i, 0] * w[0] + x[i, 1] * w[1] - y[i]
        weight = mask[i, 0] + mask[i, 1]
        cuda.atomic.add(loss, 0, weight * error**2)
        for j in range(2):
            cuda.atomic.add(slope, j, 2 * weight * error * x[i, j])


def by_mask(x, y, mask, w):
    weight = np.asarray(mask, float).sum(1)
    error = x @ w - y
    return (weight * error**2).sum(), 2 * x.T @ (weight * error)


def with_count(x, y, mask, w):
    return *by_mask(x, y, mask, w), mask.sum()


GIVES_WEIGHTS = {
    "returned": (with_count, {}),
    "named": (by_mask, {"weights": "mask"}),
    "kernel": (weighted_line, {"weights": "mask"}),
}


@pytest.mark.parametrize("how", GIVES_WEIGHTS)
@pytest.mark.parametrize(
    "options", [{}, {"num_slices": 3}, {"batch": [5, 8, 1, 7, 7]}, {"there": True}], ids=str
)
def test_weights_of_rows(world, how, options):
    """Descent by the mean over all weights, of which ranks have few, or none, clipped by its
    norm.
    """
    if how != "kernel" and world.device == "cuda":
        pytest.skip("NumPy's functions")
    rng, count = np.random.default_rng(1), 4 * world.world_size + 5
    x, y = rng.normal(size=(count, 2)), rng.normal(size=count)
    mask = rng.integers(0, 3, size=(count, 2)) * (np.arange(count) % 5 < 2)[:, None]
    mask[: count // 2, 1] = 0
    mask = mask > 0 if how == "returned" else mask / np.float32(4) if options else mask
    function, more = GIVES_WEIGHTS[how]
    optimizer = optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(0.3))
    step = synk.train.step(function, np.zeros(2), optimizer, **more)
    given = [x, y, mask]
    if "there" in options:
        given = [synk.scatter(synk.variable(one)) for one in given]
    rows, params = np.array(options.get("batch", range(count))), np.zeros(2)
    for _ in range(3):
        loss = step(*given, **{key: value for key, value in options.items() if key != "there"})
        weight = mask[rows].sum(1, dtype=float)
        error = x[rows] @ params - y[rows]
        assert_allclose(loss, (weight * error**2).sum() / weight.sum(), rtol=1e-12)
        mean = 2 * x[rows].T @ (weight * error) / weight.sum()
        params = params - 0.3 * mean * min(1, 0.5 / np.linalg.norm(mean))
        for rank in range(world.world_size):
            assert_allclose(step.params.get_value(rank=rank), params, rtol=1e-11)


@pytest.mark.parametrize("how", ["returned", "kernel"])
def test_a_batch_without_weight_makes_no_step(world, how):
    if how != "kernel" and world.device == "cuda":
        pytest.skip("NumPy's functions")
    function, more = GIVES_WEIGHTS[how]
    ((x, y),) = rows_of(12, 1)
    mask = np.ones((12, 2))
    for on_nonfinite in ("raise", "skip"):
        step = synk.train.step(
            function, np.zeros(2), optim.adam(0.1), on_nonfinite=on_nonfinite, **more
        )
        step(x[:, :2].copy(), y, mask)
        before = step.params.get_value()
        if on_nonfinite == "raise":
            with pytest.raises(
                synk.NonFiniteError,
                match=r"the weights by \w+ do not add up .* all have the weight 0",
            ):
                step(x[:, :2].copy(), y, 0 * mask)
        else:
            step(x[:, :2].copy(), y, 0 * mask)
        assert_array_equal(step.params.get_value(), before)
        assert (step.steps, step.skipped) == (1, 1)
        step(x[:, :2].copy(), y, mask)
        assert step.steps == 2


def test_data_on_the_ranks(world):
    """Variables of rows, which stay where they are."""
    ((x, y),) = rows_of(23, 1)
    optimizer = optim.momentum(0.05)
    step = synk.train.step(network, PARAMS, optimizer)
    there = [synk.scatter(synk.variable(one)) for one in (x, y)]
    losses = [step(*there) for _ in range(3)]
    wanted, params, _ = by_numpy(optimizer, PARAMS, [(x, y)] * 3)
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11)


def test_minibatches_of_data_on_the_ranks(world):
    """Each rank gets the numbers of its rows that are in a minibatch."""

    def chosen(rows, x, y, params):
        return network(x[rows], y[rows], params)

    ((x, y),) = rows_of(37, 1)
    rng, count = np.random.default_rng(7), world.world_size
    edges = 11 * np.arange(count + 1) // count
    own = [
        [
            rng.permutation((rank + 1) * 37 // count - rank * 37 // count)[
                : edges[rank + 1] - edges[rank]
            ]
            for rank in range(count)
        ]
        for _ in range(4)
    ]
    there = [synk.scatter(synk.variable(one)) for one in (x, y)]
    optimizer = optim.adam(0.05)
    step = synk.train.step(chosen, PARAMS, optimizer)
    losses = [step(np.concatenate(one), *there) for one in own[:2]]
    losses += list(
        step.epoch(np.concatenate([*own[2], *own[3]]), *there, order=np.arange(22).reshape(2, 11))
    )
    rows = [
        np.concatenate([rank * 37 // count + mine for rank, mine in enumerate(one)]) for one in own
    ]
    wanted, params, _ = by_numpy(optimizer, PARAMS, [(x[one], y[one]) for one in rows])
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("slices", [1, 2])
def test_sliceable_data_of_which_a_rank_has_none(world, slices):
    """A function is not called there, and the sums of the step before must not count again."""
    ((x, y),) = rows_of(23, 1)
    there = [synk.scatter(synk.variable(one)) for one in (x, y)]
    batches = [(x, y)]
    optimizer = optim.sgd(0.05)
    step = synk.train.step(network, PARAMS, optimizer, rows=("x", "y"))
    losses = [step(*there, num_slices=slices)]
    for emptied in range(world.world_size - 1, 0, -1):
        for one in there:
            synk.set_value(emptied, one, synk.get_value(emptied, one)[:0])
        batches.append(tuple(synk.gather(one, nd_up=0) for one in there))
        losses.append(step(*there, num_slices=slices))
    wanted, params, _ = by_numpy(optimizer, PARAMS, batches)
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11)


def spoiled(x, y, params):
    loss, slopes = network(x, y, params)
    return loss, {"w": slopes["w"], "c": slopes["c"] + np.where(x[:, 0].max() > 100, np.nan, 0.0)}


def test_gradients_that_are_not_finite(world):
    optimizer, batches = optim.adam(0.05), rows_of(12, 5)
    bad = batches[0][0].copy()
    bad[5, 0] = 1000
    wanted, params, state = by_numpy(optimizer, PARAMS, batches)
    for how in ("raise", "skip"):
        step = synk.train.step(spoiled, PARAMS, optimizer, on_nonfinite=how)
        for number, (x, y) in enumerate(batches):
            if number == 2 and how == "raise":
                before = step.params.get_value()
                with pytest.raises(
                    synk.NonFiniteError, match="the gradient by spoiled has a NaN or an infinity"
                ):
                    step(bad, y)
                assert_array_equal(step.params.get_value()["c"], before["c"])
            elif number == 2:
                step(bad, y)
            assert_allclose(step(x, y), wanted[number], rtol=1e-12)
        assert_like(step.params.get_value(), params, rtol=1e-11)
        assert (step.steps, step.skipped) == (state.steps, 1)
    through = synk.train.step(spoiled, PARAMS, optimizer, on_nonfinite=None)
    through(bad, batches[0][1])
    assert np.isnan(through.params.get_value()["c"]).all()


def test_an_epoch_stops_at_the_step_that_is_not_finite(world):
    ((x, y),) = rows_of(20, 1)
    x[13, 0] = 1000
    order = np.array([[0, 1, 2], [3, 4, 5], [6, 13, 7], [8, 9, 10]])
    step = synk.train.step(spoiled, PARAMS, optim.sgd(0.1))
    with pytest.raises(synk.NonFiniteError, match="the gradient of step 3 of 4 by spoiled"):
        step.epoch(synk.data(x), synk.data(y), order=order)
    _, params, _ = by_numpy(optim.sgd(0.1), PARAMS, [(x[rows], y[rows]) for rows in order[:2]])
    assert_like(step.params.get_value(), params, rtol=1e-12)
    assert step.steps == 2
    assert step.epoch(synk.data(x), synk.data(y), order=order[[0, 1, 3]], every=3).shape == (1,)
    assert step.steps == 5
    for lines, told in (
        ([0, 2, 0, 0], "1 to 2 of 4"),
        ([0, 0, 2], "3 of 3"),
        ([0, 0, 1, 2, 0], "3 to 4 of 5"),
    ):
        with pytest.raises(synk.NonFiniteError, match=f"the gradient of step {told} by spoiled"):
            step.epoch(synk.data(x), synk.data(y), order=order[lines], every=2)
        assert step.steps == 5 + lines.index(2)
        step = synk.train.step(spoiled, PARAMS, optim.sgd(0.1))
        step.epoch(synk.data(x), synk.data(y), order=order[[0, 1, 3, 0, 1]])


def test_submitted_steps(world):
    ((x, y),) = rows_of(60, 1)
    data = synk.data(x), synk.data(y)
    batches = list(synk.batches(60, 7, seed=3))
    optimizer = optim.adam(0.05)
    step = synk.train.step(network, PARAMS, optimizer)
    losses, future = [], step.submit(*data, batch=batches[0])
    for rows in batches[1:]:
        following = step.submit(*data, batch=rows)
        losses.append(future.result())
        future = following
    losses.append(future.result(timeout=60))
    assert future.done()
    wanted, params, _ = by_numpy(optimizer, PARAMS, [(x[rows], y[rows]) for rows in batches])
    assert_allclose(losses, wanted, rtol=1e-12)
    assert_like(step.params.get_value(), params, rtol=1e-11)
    bad = x.copy()
    bad[0, 0] = 1000
    refused = synk.train.step(spoiled, PARAMS, optimizer)
    refused(x, y)
    with pytest.raises(synk.NonFiniteError, match="the gradient by spoiled"):
        refused.submit(bad, y).result()
    assert refused.submit(x, y).result() > 0


def test_updaters_in_sequences(world):
    w, g = synk.vector(PARAMS), synk.vector(PARAMS)
    optimizer = optim.adam(0.1)
    update = optim.updater(optimizer, w, g)

    @synk.function
    def slope(w, g):
        for one, other in zip(flatten(w)[0], flatten(g)[0], strict=True):
            other[...] = 2 * one

    @synk.sequence
    def descend(w, g):
        slope(w, g)
        update()

    descend(w, g, times=20)
    slope(w, g)
    update()
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(21):
        twice = {"w": tuple(2 * one for one in params["w"]), "c": 2 * params["c"]}
        step, state = optimizer.update(twice, state, params)
        params = optim.apply_updates(params, step)
    assert_like(w.get_value(), params, rtol=1e-11, atol=1e-14)
    assert update.counts()[0] == 21


def test_resumed_training_has_the_bits_of_the_uninterrupted_run(world, tmp_path):
    ((x, y),) = rows_of(60, 1)
    data = synk.data(x), synk.data(y)
    optimizer = optim.averaged(optim.accumulate(optim.adamw(optim.cosine(0.05, 10)), 2))
    batches = synk.batches(60, 7, seed=3, epochs=2)

    def train(step, batches):
        return [step(*data, batch=rows) for rows in batches]

    whole = synk.train.step(network, PARAMS, optimizer)
    losses = train(whole, batches)
    first = synk.train.step(network, PARAMS, optimizer)
    assert train(first, list(batches)[:5]) == losses[:5]
    synk.save(tmp_path / "training", {"training": first.state, "batches": 5})
    second = synk.train.step(network, PARAMS, optimizer)
    done = synk.load(tmp_path / "training", like={"training": second.state, "batches": 0})[
        "batches"
    ]
    assert train(second, batches.start_at(done)) == losses[5:]
    assert second.steps == whole.steps == len(losses) // 2
    for one, other in zip(
        flatten(second.params.get_value())[0], flatten(whole.params.get_value())[0], strict=True
    ):
        assert_array_equal(one, other)
    assert_array_equal(second.average()["c"], whole.average()["c"])


def by_jax(x, y, w, b):
    """As `line`, by JAX's autodiff; imported on the ranks alone, since it starts threads."""
    import jax

    def total(w, b):
        return ((x @ w + b[0] - y) ** 2).sum()

    x, y, w, b = map(jax.numpy.asarray, (x, y, w, b))
    return jax.value_and_grad(total, argnums=(0, 1))(w, b)


@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
def test_gradients_by_jax(world):
    if world.device == "cuda" or world.world_size > 2:
        pytest.skip("JAX takes most of a GPU's memory, and seconds to start on each rank")
    ((x, y),) = rows_of(30, 1)
    x, y = x.astype(np.float32), y.astype(np.float32)
    start = np.zeros(4, np.float32), np.zeros(1, np.float32)
    step = synk.train.step(by_jax, start, optim.nesterov_momentum(0.05))
    losses = [step(x, y) for _ in range(60)]
    design = np.column_stack([x, np.ones(len(x))])
    best, residual, *_ = np.linalg.lstsq(design, y)
    assert_allclose(losses[0], (y**2).mean(), rtol=1e-6)
    assert_allclose(losses[-1], residual[0] / len(x), rtol=1e-3)
    assert_allclose(np.concatenate(step.params.get_value()), best, atol=2e-2)
