"""Pieces of examples/lca.py. Expected: NumPy's interpolation and integration, SciPy's optimum,
rules applied step by step.
"""

import importlib.util
import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy  # its parts load at first use
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import simt
from tests.environment import ROOT


def load():
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("lca", ROOT / "examples" / "lca.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["lca"] = module  # where its dataclass looks for its own annotations
    spec.loader.exec_module(module)
    return module


lca = load()
transfer, cost, next_scale = lca.transfer, lca.cost, lca.next_scale

SOFT = lca.Settings()  # VThresh and AShift 1, VWidth 0
NEURONS = {
    "soft": SOFT,
    "hard": replace(SOFT, a_shift=0.0),
    "firm": replace(SOFT, a_shift=0.0, v_width=1.5),
    "shifted": replace(SOFT, v_thresh=0.8, a_shift=0.5, v_width=0.75),
    "capped": replace(SOFT, a_max=2.0),
    "floor": replace(SOFT, v_thresh=0.9, a_shift=0.25, a_min=0.1, v_width=0.5),
}


@simt.jit
def activities(v, neuron, a, costs):
    i = cuda.grid(1)
    if i < v.shape[0]:
        a[i] = transfer(v[i], neuron)
        costs[i] = cost(a[i], neuron)


def vertices(s):
    """The corners of the transfer function, from below the threshold to where it ends or goes on
    with slope 1.
    """
    end = s.v_thresh + s.v_width
    v, a = [-9.0, s.v_thresh, end], [s.a_min, s.a_min, end - s.a_shift]
    most = min(s.a_max, 9.0)
    return np.array([*v, most + s.a_shift, 99.0]), np.array([*a, most, most])


@pytest.mark.parametrize("name", NEURONS)
def test_transfer_function(name):
    s = NEURONS[name]
    v = np.random.default_rng(1).uniform(-1, 6, 1000)
    a, costs = np.zeros_like(v), np.zeros_like(v)
    activities.forall(v.size)(v, s.neuron.astype(float), a, costs)
    assert_allclose(a, np.interp(v, *vertices(s)), atol=1e-6)
    assert_allclose(lca.transfer_reference(v, s), a, atol=1e-6)
    assert len(np.unique(a > s.a_min + 1e-6)) == 2


@pytest.mark.parametrize("name", NEURONS)
def test_costs_are_what_activities_lack_of_the_potential(name):
    """C(a) is the integral of V(a) − a from AMin: that of the inverse of the transfer function."""
    s = NEURONS[name]
    fine = np.linspace(s.a_min, min(s.a_max, 3.0), 20001)
    corners_v, corners_a = vertices(s)
    potential = np.interp(fine, corners_a[1:4], corners_v[1:4])
    lack = potential - fine
    expected = np.concatenate([[0], np.cumsum((lack[1:] + lack[:-1]) / 2 * np.diff(fine))])
    found = [cost.py_func(one, s.neuron.astype(float)) for one in fine[::1000]]
    assert_allclose(found, expected[::1000], atol=1e-3)
    if s.a_min == 0 and name != "shifted":
        assert_allclose(lca.cost_reference(fine[::1000], s), found, atol=1e-6)


def test_costs_of_soft_and_hard_thresholds():
    soft, hard = (
        replace(one, v_thresh=0.6, a_shift=shift) for one, shift in ((SOFT, 0.6), (SOFT, 0.0))
    )
    assert_allclose(cost.py_func(1.7, soft.neuron), 0.6 * 1.7, rtol=1e-6)
    assert_allclose(cost.py_func(1.7, hard.neuron), 0.6**2 / 2, rtol=1e-6)


def test_time_scales():
    rule = replace(
        SOFT, base_min=0.1, base_max=0.4, tau_factor=0.05, growth=0.5, knee=2.0, knee_slope=0.1
    ).rule
    step = next_scale.py_func
    assert step(-1.0, -1.0, 0.1, 0.4, rule) == (0.1, 0.4)  # the first image
    assert step(8.0, -1.0, 0.3, 1.0, rule) == (0.1, 0.4)  # a new image
    assert step(8.1, 8.0, 0.3, 1.0, rule) == (0.1, 0.4)  # risen
    assert step(8.0, 8.0, 0.3, 1.0, rule) == (0.3, 1.0)
    # 1/20 of the time to 0 at this rate
    assert_allclose(step(6.0, 8.0, 0.3, 1.0, rule), (0.05 * 8 / (2 / 0.3), 1.0))
    assert_allclose(step(7.9, 8.0, 0.3, 1.0, rule), (1.0, 1.5))  # at the limit, which grows
    # and more slowly beyond the knee
    assert_allclose(step(7.9, 8.0, 1.9, 1.9, rule), (1.9, 1.9 + 0.95 * 0.1))


class Indexer:
    """An element's place in a list of images, moved on image by image."""

    def __init__(self, files, start, skip):
        self.files, self.at, self.skip = files, start % files, skip

    def __next__(self):
        found = self.at
        self.at += self.skip
        while self.at >= self.files:
            self.at -= self.files
        return found


@pytest.mark.parametrize(("files", "batch"), [(10, 4), (3, 5), (12, 4), (7, 1)])
def test_indices_by_file_and_list(files, batch):
    for method, begin, skip in (("file", 1, batch), ("list", files // batch, 1)):
        elements = [Indexer(files, 2 + g * begin, skip) for g in range(batch)]
        expected = [[next(one) for one in elements] for _ in range(9)]
        assert_array_equal(lca.image_numbers(method, files, batch, 9, start=2), expected)


def test_indices_that_are_given():
    elements = [Indexer(10, start, skip) for start, skip in ((0, 1), (5, 3), (9, 2))]
    expected = [[next(one) for one in elements] for _ in range(12)]
    assert_array_equal(
        lca.image_numbers("given", 10, 3, 12, start=[0, 5, 9], skip=[1, 3, 2]), expected
    )
    with pytest.raises(ValueError, match="method must be"):
        lca.image_numbers("byFile", 10, 3, 12)


def test_random_indices_show_each_image_once_in_each_pass():
    found = lca.image_numbers("random", 10, 4, 15, seed=3)
    passes = found.reshape(-1, 10)
    assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(10), (6, 1)))
    assert len(np.unique(passes, axis=0)) == 6
    # elements take turns
    assert_array_equal(lca.image_numbers("random", 10, 2, 30, seed=3).ravel(), found.ravel())
    assert (lca.image_numbers("random", 10, 4, 15, seed=4) != found).any()


def test_places_of_patches():
    s = replace(SOFT, side=12, channels=2, stride=4)
    g = lca.Geometry(s)
    images = np.random.default_rng(0).normal(size=(2, 12, 12, 2))
    flat = g.with_margin(images)
    assert_array_equal(g.without_margin(flat, s), images.astype(np.float32))
    padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)])
    across, right, down = g.places
    for place, (i, j) in enumerate(itertools.product(range(3), repeat=2)):
        patch = padded[:, 4 * i : 4 * i + 8, 4 * j : 4 * j + 8].reshape(2, -1)
        assert_array_equal(flat[:, g.start[place] + g.offset], patch.astype(np.float32))
        assert g.start[place] == place // across * down + place % across * right
    assert g.visible.sum() == 12 * 12 * 2
    with pytest.raises(ValueError, match="got side 10"):
        lca.Geometry(replace(s, side=10))


@pytest.mark.parametrize("stride", [4, 8])
def test_activities_reach_the_least_energy(stride):
    s = replace(SOFT, side=8, stride=stride, features=72, batch=3, steps=300, knee=4.0)
    g, w = lca.Geometry(s), lca.first_features(s, 1)
    x = g.with_margin(lca.make_images(3, s, 2))
    energies, scales = lca.simulate_reference(s, g, x, w)
    assert (np.diff(energies) <= 1e-12).all()
    assert (scales[:, -1] > 4).all()
    at, places = g.start[:, None] + g.offset, g.start.size
    features = np.zeros((places, s.features, x.shape[1]))
    for place in range(places):
        features[place][:, at[place]] = w
    features = features.reshape(-1, x.shape[1]) * g.visible
    for b in range(s.batch):

        def energy(a, b=b):
            residual = x[b] - a @ features
            return residual @ residual / 2 + s.v_thresh * a.sum(), s.v_thresh - features @ residual

        best = scipy.optimize.minimize(
            energy,
            np.zeros(len(features)),
            jac=True,
            bounds=[(0, None)] * len(features),
            method="L-BFGS-B",
        )
        assert best.fun <= energies[b, -1] < best.fun * 1.001
        residual = (x[b] - best.x @ features)[None]
        assert_allclose(lca.least_energy(s, g, x[b : b + 1], residual, w), best.fun, rtol=1e-2)
        assert lca.least_energy(s, g, x[b : b + 1], residual * 0.9, w) <= best.fun


@pytest.fixture
def network():
    """A small network on two ranks."""
    s = replace(SOFT, side=12, channels=2, stride=4, features=72, batch=4, steps=6)
    with synk.fork(2, device="cpu"):
        yield lca.Network(
            s,
            lca.make_images(5, s, 1),
            lca.image_numbers("file", 5, 4, 3),
            lca.first_features(s, 2),
        )


@pytest.mark.parametrize("delayed", [False, True])
def test_ranks_wait_for_sums_only(network, delayed):
    given = network.net, network.model, network.images, network.numbers
    plan = lca.train.plan(*given, 0, 6, 0.1, delayed, times=3, every=1)
    waiting = [part.name.split("(")[0] for part in plan.parts if part.waits_for]
    assert waiting == ["all_reduce", "learn"]
    assert [part.meets for part in plan.parts if part.name == "step"] == [False] * (1 + delayed)
    between = [part.name.split("(")[0] for part in plan.parts]
    assert ("step" in between[between.index("all_reduce") : between.index("learn")]) == delayed


@pytest.mark.whole
def test_kernels_have_no_races(network):
    network.train(1)
    net, model, places = network.net, network.model, network.model["places"]
    lca.present.check(net["x"], network.images, network.numbers, synk.OFFSET, 1)
    state = (net[name] for name in ("x", "residual", "a", "decay", "clock", "trace"))
    lca.reconstruct.check(
        *state, *(model[name] for name in ("w", "offset", "visible", "neuron", "rule")), *places, 3
    )
    of_model = (model[name] for name in ("wt", "offset", "neuron"))
    lca.integrate.check(net["v"], net["a"], net["residual"], net["decay"], *of_model, *places)
    lca.correlate.check(
        net["a"], net["residual"], model["sums"], model["offset"], model["visible"], *places
    )
    lca.learn.check(model["w"], model["wt"], model["sums"], 0.1)
