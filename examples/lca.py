"""Sparse coding by locally competitive algorithms (LCA), after PetaVision: a dictionary of features
is learned from images.

    python examples/lca.py
    python examples/lca.py --batch 1024 --scaling
    python examples/lca.py --threshold hard --delayed --picture lca.png
    python examples/lca.py --tutorial --picture tutorial.png

An image x is approximated by few features φ_k, each at one of many places: x ≈ Φa, with activities
a for which the energy

    E = ½ |x − Φa|² + Σ C(a)

is low. Each feature at each place is a leaky integrator with a membrane potential V. What the
others leave unexplained drives it, so that features compete, and above a threshold it is active:

    G = Φᵀ (x − Φa)
    V ← e V + (1 − e) (G + s a),  e = exp(−dt/τ),  with self-interaction s = 1
    a = T(V) = AMin                                            if V < VThresh
               a line from AMin to VThresh + VWidth − AShift   up to V = VThresh + VWidth
               V − AShift                                      above; and AMax at most

With AShift = VThresh, the soft threshold, C(a) = VThresh·a; with AShift = 0, the hard one, each
activity costs VThresh²/2.
Source: C. Rozell, D. Johnson, R. Baraniuk and B. Olshausen, Neural Computation 20 (2008).

The elements of a batch are networks of their own, each with its input, its potentials, which are
kept from image to image, and its time step, which grows while the energy falls (`next_scale`). Only
the features are shared. After some steps they learn:

    ΔΦ_k = mean of a_k (x − Φa) over elements and places where a_k ≠ 0,  Φ_k ← Φ_k + rate ΔΦ_k,
    normalised

Source of these rules, and of names and numbers: OpenPV, PetaVision's open source
(https://petavision.github.io), in its classes HyPerLCALayer, ANNActivityBuffer,
KneeTimeScaleController, HebbianUpdater and BatchIndexer, and its tutorial LCA-CIFAR.

Elements are divided over any number of ranks; features are a replica on every rank. Each rank sums
a_k (x − Φa) over its elements, in multiples of 2⁻³², and an `all_reduce` adds these integers:
exactly, so that features have the same bits on any number of ranks. With --delayed a sum is reduced
between the steps for the next images, and applied after them, one period late: no rank waits for
others at the end of its steps. Steps, sums and updates are one sequence.

The images are dead leaves, discs and rectangles that hide each other, which have edges and sizes
like photographs, whitened.
Sources: A. Lee, D. Mumford and J. Huang, International Journal of Computer Vision 41 (2001); B.
Olshausen and D. Field, Vision Research 37 (1997). Features become small edges.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import cuda, float32, float64, int64

import synknumba as synk

THREADS = 64  # of a block: the pixels of a patch of 8 × 8
SITES = 4  # an element and a place each; a thread of `integrate` reads a weight once for so many
# of the integers that are summed, which stay below 2⁶³: products of some 10 at up to 10⁸ places
SCALE = 2.0**32
CONVERGED = 0.2  # greatest mean distance of an energy from the lower bound, relative to the energy


@dataclass(frozen=True)
class Settings:
    """A network, with PetaVision's names for parameters of neurons.

    Attributes:
        side, channels: of the square images.
        patch, stride: side of a feature, and distance between places where it can be, in pixels.
        features: number of features.
        batch: number of batch elements.
        steps: time steps for each image.
        v_thresh, a_shift, a_min, a_max, v_width: of the transfer function.
        self_interaction: s.
        tau: τ, in units of a time step of 1.
        base_max, base_min, tau_factor, growth, knee, knee_slope: of the time steps, as in
            `next_scale`.
        rate: learning rate, dWMax in PetaVision.
    """

    side: int = 8
    channels: int = 1
    patch: int = 8
    stride: int = 8
    features: int = 128
    batch: int = 256
    steps: int = 100
    v_thresh: float = 1.0
    a_shift: float = 1.0
    a_min: float = 0.0
    a_max: float = math.inf
    v_width: float = 0.0
    self_interaction: float = 1.0
    tau: float = 100.0
    base_max: float = 1.2
    base_min: float = 1.0
    tau_factor: float = 0.03
    growth: float = 0.1
    knee: float = 10.0
    knee_slope: float = 0.01
    rate: float = 0.1

    @property
    def neuron(self) -> np.ndarray:
        """Parameters of V and T for kernels: float32, shape (6,)."""
        values = (
            self.v_thresh,
            self.a_shift,
            self.a_min,
            self.a_max,
            self.v_width,
            self.self_interaction,
        )
        return np.array(values, np.float32)

    @property
    def rule(self) -> np.ndarray:
        """Parameters of time steps for kernels: float64, shape (7,)."""
        base = self.base_max, self.base_min
        return np.array([*base, self.tau_factor, self.growth, self.knee, self.knee_slope, self.tau])


TUTORIAL = Settings(
    side=32, channels=3, stride=2, batch=16, steps=400, v_thresh=0.55, a_shift=0.55,
    base_max=0.06, base_min=0.05, growth=0.025, knee=3.4, rate=0.25,
)  # fmt: skip


class Geometry:
    """Where patches lie in images, which are flattened, and have a margin: patches at the edge
    stick out, and are blind there.

    Attributes:
        width: side of an image with its margin, in pixels.
        places: (across, right, down): number of places in a row of them, and the distances in a
            flattened image from a place to the next one in its row, and in its column. Place p
            begins at p // across · down + p % across · right.
        start: int64, shape (places,), the same for NumPy.
        offset: int64, shape (D,), distance of each number of a patch from its first, in a flattened
            image.
        visible: float32, shape (size,), 1 in the image and 0 in the margin.
    """

    def __init__(self, s: Settings) -> None:
        if (
            s.side % s.stride
            or s.patch < s.stride
            or (s.patch - s.stride) % 2
            or s.patch * s.channels % 4
        ):
            raise ValueError(
                "side must be a multiple of stride, patch − stride an even number of at least 0, "
                f"and patch · channels a multiple of 4; got side {s.side}, stride {s.stride}, "
                f"patch {s.patch}, channels {s.channels}"
            )
        across = s.side // s.stride
        self.width = (across - 1) * s.stride + s.patch
        self.places = across, s.stride * s.channels, s.stride * self.width * s.channels
        index = np.arange(self.width**2 * s.channels).reshape(self.width, self.width, s.channels)
        self.start = index[
            : across * s.stride : s.stride, : across * s.stride : s.stride, 0
        ].ravel()
        self.offset = index[: s.patch, : s.patch].ravel()
        self.visible = self.with_margin(np.ones((1, s.side, s.side, s.channels)))[0]

    def with_margin(self, images: np.ndarray) -> np.ndarray:
        """Returns images, shape (n, side, side, channels), as float32 of shape (n, size)."""
        margin = (self.width - images.shape[1]) // 2
        return (
            np.pad(images, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
            .reshape(len(images), -1)
            .astype(np.float32)
        )

    def without_margin(self, images: np.ndarray, s: Settings) -> np.ndarray:
        """Undoes `with_margin`."""
        margin = (self.width - s.side) // 2
        inside = slice(margin, margin + s.side)
        return images.reshape(-1, self.width, self.width, s.channels)[:, inside, inside]


# ---- one neuron, and one time step


@cuda.jit(device=True)
def transfer(v, neuron):
    """Returns the activity T(V); neuron as in `Settings.neuron`."""
    v_thresh, a_shift, a_min, a_max, v_width = neuron[0], neuron[1], neuron[2], neuron[3], neuron[4]
    if v < v_thresh:
        a = a_min
    elif v < v_thresh + v_width:
        a = a_min + (v_thresh + v_width - a_shift - a_min) * (v - v_thresh) / v_width
    else:
        a = v - a_shift
    return min(a, a_max)


@cuda.jit(device=True)
def cost(a, neuron):
    """Returns C(a), the integral of V − a from AMin to a, with V the potential of that activity:
    see Rozell et al.
    """
    v_thresh, a_shift, a_min, v_width = neuron[0], neuron[1], neuron[2], neuron[4]
    corner = v_thresh + v_width - a_shift  # activity at the end of the line
    low = min(a, corner)
    total = v_thresh * (low - a_min) - (low * low - a_min * a_min) / 2
    if v_width > 0:
        total += (low - a_min) * (low - a_min) * v_width / (corner - a_min) / 2
    return total + a_shift * (a - low)


@cuda.jit(device=True)
def next_scale(energy, before, scale, top, rule):
    """Returns the time scale of an element and its upper limit, from its energy now and before the
    last step.

    The scale is a part of the time in which the energy would reach 0 at its present rate. An upper
    limit grows whenever it is reached, more slowly beyond a knee. Where the energy has risen, or is
    below 0 for a new image, all begins anew.
    """
    base_max, base_min, tau_factor, growth, knee, slope = (
        rule[0],
        rule[1],
        rule[2],
        rule[3],
        rule[4],
        rule[5],
    )
    if energy == before:
        return scale, top
    if energy > before or energy <= 0 or before <= 0:
        return base_min, base_max
    limit = top
    scale = tau_factor * before * scale / (before - energy)
    if scale >= top:
        scale = top
        limit = (1 + growth) * top
    if limit > knee:
        limit = top + (limit - top) * slope
        scale = min(scale, limit)
    return scale, limit


# ---- kernels


@synk.parallel(
    block=THREADS,
    broadcast=("images", "index"),
    grid=lambda rows, shapes: (-(-shapes["x"][1] // THREADS), rows),
)
@cuda.jit
def present(x, images, index, first, period):
    """Shows each element its next image, one thread per pixel.

    Args:
        x: float32, shape (B, size), the images of this rank's B elements; written.
        images: float32, shape (files, size); broadcast.
        index: int64, shape (periods, batch), number of the image that each element shows in each
            period; broadcast.
        first: `synk.OFFSET`, the number of this rank's first element.
        period: int.
    """
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    b = cuda.blockIdx.y
    if i < x.shape[1]:
        x[b, i] = images[index[period, first + b], i]


@cuda.jit(device=True)
def block_sum(shared, t, value):
    """Returns the sum over the threads of a block, always in the same order."""
    shared[t] = value
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    return shared[0]


@synk.parallel(block=THREADS, grid=lambda rows: rows)
@cuda.jit
def reconstruct(
    x, residual, a, decay, clock, trace, w, offset, visible, neuron, rule, across, right, down, step
):
    """Computes residuals, energies, and the time steps that follow. One block per element.

    Few activities are not 0, and all threads of a block skip the same ones. Indices are written out
    as `j + t`, where the compiler for cores sees that neighbouring threads read neighbouring
    weights: it then runs the loop over k outside.

    Args:
        x: float32, shape (B, size), images.
        residual: the same shape, x − Φa, 0 in the margin; written.
        a: float32, shape (B, places, features), activities.
        decay: float32, shape (B,), e; written.
        clock: float64, shape (B, 3), energy, time step and its limit; written.
        trace: float64, shape (B, steps + 1, 2), energy and time step; line `step` is written.
        w: float32, shape (features, D padded with zeros to a multiple of THREADS), features.
        offset: as in `Geometry`.
        visible: as in `Geometry`.
        neuron: as in `Settings`.
        rule: as in `Settings`.
        across: as in `Geometry`.
        right: as in `Geometry`.
        down: as in `Geometry`.
        step: int, number of steps made with this image.
    """
    shared = cuda.shared.array(THREADS, float64)
    b = cuda.blockIdx.x
    t = cuda.threadIdx.x
    for i in range(t, x.shape[1], THREADS):
        residual[b, i] = x[b, i]
    cuda.syncthreads()
    for place in range(a.shape[1]):
        corner = place // across * down + place % across * right
        for j in range(0, w.shape[1], THREADS):
            part = float32(0)
            for k in range(w.shape[0]):
                strength = a[b, place, k]
                if strength != 0:
                    part += strength * w[k, j + t]
            if j + t < offset.shape[0]:
                residual[b, corner + offset[j + t]] -= part
            cuda.syncthreads()  # the next place has some of these pixels, too
    energy = 0.0
    for i in range(t, x.shape[1], THREADS):
        rest = residual[b, i] * visible[i]
        residual[b, i] = rest
        energy += 0.5 * float64(rest) * rest
    for place in range(a.shape[1]):
        for unit in range(t, w.shape[0], THREADS):
            if a[b, place, unit] != neuron[2]:
                energy += cost(float64(a[b, place, unit]), neuron)
    energy = block_sum(shared, t, energy)
    if t == 0:
        known = energy if step > 0 else -1.0  # a new image
        scale, top = next_scale(known, clock[b, 0], clock[b, 1], clock[b, 2], rule)
        clock[b, 0], clock[b, 1], clock[b, 2] = known, scale, top
        decay[b] = math.exp(-scale / rule[6])
        trace[b, step, 0], trace[b, step, 1] = energy, scale


@cuda.jit(device=True)
def product(residual, b, i, w0, w1, w2, w3):
    """Returns the product of four weights and four pixels next to each other."""
    return (
        w0 * residual[b, i]
        + w1 * residual[b, i + 1]
        + w2 * residual[b, i + 2]
        + w3 * residual[b, i + 3]
    )


@cuda.jit(device=True)
def advanced(v, a, drive, e, neuron):
    """Returns the potential after a time step."""
    return e * v + (float32(1) - e) * (drive + neuron[5] * a)


@synk.parallel(
    block=2 * THREADS,
    grid=lambda rows, shapes: (
        -(-rows * shapes["v"][1] // SITES),
        -(-shapes["v"][2] // (2 * THREADS)),
    ),
)
@cuda.jit
def integrate(v, a, residual, decay, wt, offset, neuron, across, right, down):
    """Advances potentials and activities by a time step. One thread per feature and SITES sites.

    For 16 multiplications a thread reads 4 weights; on cores, neighbouring threads are the lanes of
    vectors, and 4 sums are loaded and stored too. The last threads of a launch may have the same
    site several times, and compute the same for it.

    Args:
        v: float32, shape (B, places, features), potentials; written.
        a: as for `reconstruct`; written.
        residual: as for `reconstruct`.
        decay: as for `reconstruct`.
        wt: float32, the transpose of `w`.
        offset: as in `Geometry`.
        neuron: as in `Settings`.
        across: as in `Geometry`.
        right: as in `Geometry`.
        down: as in `Geometry`.
    """
    k = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    places = v.shape[1]
    last = v.shape[0] * places - 1
    n0 = cuda.blockIdx.x * SITES
    n1, n2, n3 = min(n0 + 1, last), min(n0 + 2, last), min(n0 + 3, last)
    b0, b1, b2, b3 = n0 // places, n1 // places, n2 // places, n3 // places
    p0, p1, p2, p3 = n0 % places, n1 % places, n2 % places, n3 % places
    s0 = p0 // across * down + p0 % across * right
    s1 = p1 // across * down + p1 % across * right
    s2 = p2 // across * down + p2 % across * right
    s3 = p3 // across * down + p3 % across * right
    if k < v.shape[2]:
        g0, g1, g2, g3 = float32(0), float32(0), float32(0), float32(0)
        for j in range(0, offset.shape[0], 4):
            w0, w1, w2, w3 = wt[j, k], wt[j + 1, k], wt[j + 2, k], wt[j + 3, k]
            i = offset[j]
            g0 += product(residual, b0, s0 + i, w0, w1, w2, w3)
            g1 += product(residual, b1, s1 + i, w0, w1, w2, w3)
            g2 += product(residual, b2, s2 + i, w0, w1, w2, w3)
            g3 += product(residual, b3, s3 + i, w0, w1, w2, w3)
        v0 = advanced(v[b0, p0, k], a[b0, p0, k], g0, decay[b0], neuron)
        v1 = advanced(v[b1, p1, k], a[b1, p1, k], g1, decay[b1], neuron)
        v2 = advanced(v[b2, p2, k], a[b2, p2, k], g2, decay[b2], neuron)
        v3 = advanced(v[b3, p3, k], a[b3, p3, k], g3, decay[b3], neuron)
        v[b0, p0, k], a[b0, p0, k] = v0, transfer(v0, neuron)
        v[b1, p1, k], a[b1, p1, k] = v1, transfer(v1, neuron)
        v[b2, p2, k], a[b2, p2, k] = v2, transfer(v2, neuron)
        v[b3, p3, k], a[b3, p3, k] = v3, transfer(v3, neuron)


@synk.parallel(
    outputs={
        "fell": synk.output("sum", shape=(), dtype="int64"),
        "energy": synk.output("sum", shape=(), dtype="float64"),
    }
)
@cuda.jit
def judge(trace, steps, fell, energy):
    """Counts elements whose energy fell from the first step with an image to the last; adds up
    the energies of the last.
    """
    b = cuda.grid(1)
    if b < trace.shape[0]:
        cuda.atomic.add(fell, 0, int64(trace[b, steps, 0] < trace[b, 0, 0]))
        cuda.atomic.add(energy, 0, trace[b, steps, 0])


@synk.parallel(grid="elements")
@cuda.jit
def clear(sums):
    """Sets the sums to 0, also on a rank that has no elements."""
    j, k, which = cuda.grid(3)
    if which < sums.shape[0] and k < sums.shape[1] and j < sums.shape[2]:
        sums[which, k, j] = 0


@synk.parallel(
    block=THREADS, grid=lambda shapes: (shapes["sums"][1], -(-shapes["sums"][2] // THREADS))
)
@cuda.jit
def correlate(a, residual, sums, offset, visible, across, right, down):
    """Sums activity · residual over this rank's elements and places, and counts what is added. One
    thread per weight.

    Args:
        a: as for `reconstruct`.
        residual: as for `reconstruct`.
        sums: int64, shape (2, features, D), sums in units of 1/SCALE, and counts of pixels that are
            not in the margin; written.
        offset: as in `Geometry`.
        visible: as in `Geometry`.
        across: as in `Geometry`.
        right: as in `Geometry`.
        down: as in `Geometry`.
    """
    k = cuda.blockIdx.x
    j = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
    places = a.shape[1]
    if j < sums.shape[2]:
        total, count = int64(0), int64(0)
        for n in range(a.shape[0] * places):
            b = n // places
            place = n % places
            strength = a[b, place, k]
            if strength != 0:
                i = place // across * down + place % across * right + offset[j]
                # the product of two float32 is exact in float64
                total += int64(float64(strength) * residual[b, i] * SCALE)
                count += int64(visible[i])
        sums[0, k, j] = total
        sums[1, k, j] = count


@cuda.jit(device=True)
def learned(w, sums, rate, k, j):
    """Returns a weight after an update, before the feature is normalised."""
    count = sums[1, k, j]
    return w[k, j] + (rate * (sums[0, k, j] / SCALE) / count if count > 0 else 0.0)


@synk.parallel(block=THREADS, grid=lambda shapes: shapes["sums"][1])
@cuda.jit
def learn(w, wt, sums, rate):
    """Applies an update, and normalises each feature that was active. One block per feature.

    Args:
        w: as for `reconstruct`; written.
        wt: as for `integrate`; written.
        sums: as for `correlate`, of all ranks.
        rate: float.
    """
    shared = cuda.shared.array(THREADS, float64)
    k = cuda.blockIdx.x
    t = cuda.threadIdx.x
    squares, counts = 0.0, 0.0
    for j in range(t, sums.shape[2], THREADS):
        new = learned(w, sums, rate, k, j)
        squares += new * new
        counts += sums[1, k, j]
    norm = math.sqrt(block_sum(shared, t, squares))
    cuda.syncthreads()
    if block_sum(shared, t, counts) > 0:
        for i in range(t, sums.shape[2], THREADS):
            value = learned(w, sums, rate, k, i) / norm
            w[k, i] = value
            wt[i, k] = value


# ---- sequences


@synk.sequence
def step(net, model, made):
    """Makes a time step; `made` were made with these images before the first."""
    weights = model["wt"], model["offset"], model["neuron"]
    integrate(net["v"], net["a"], net["residual"], net["decay"], *weights, *model["places"])
    measure(net, model, made + synk.STEP + 1)


def measure(net, model, number):
    """Computes residuals and energies after so many steps."""
    state = (net[name] for name in ("x", "residual", "a", "decay", "clock", "trace"))
    reconstruct(
        *state,
        *(model[name] for name in ("w", "offset", "visible", "neuron", "rule")),
        *model["places"],
        number,
    )


@synk.sequence
def train(net, model, images, index, made, steps, rate, delayed):
    """Shows an image to each element, makes steps with it, and learns; `made` periods were made
    before the first.

    Returns how many energies fell, and the sum of the energies at the end.
    """
    present(net["x"], images, index, synk.OFFSET, made + synk.STEP)
    measure(net, model, 0)
    if delayed:
        step(net, model, 0, times=steps // 2)
        synk.all_reduce(model["sums"], "sum")  # of the period before; in the first one, zeros
        step(net, model, steps // 2, times=steps - steps // 2)
        learn(model["w"], model["wt"], model["sums"], rate)
    else:
        step(net, model, 0, times=steps)
    clear(model["sums"])
    correlate(
        net["a"],
        net["residual"],
        model["sums"],
        model["offset"],
        model["visible"],
        *model["places"],
    )
    if not delayed:
        synk.all_reduce(model["sums"], "sum")
        learn(model["w"], model["wt"], model["sums"], rate)
    return judge(net["trace"], steps)


# ---- images


def image_numbers(
    method: str,
    files: int,
    batch: int,
    periods: int,
    *,
    start: int | Sequence[int] = 0,
    skip: int | Sequence[int] = 1,
    seed: int = 0,
) -> np.ndarray:
    """Returns which image each batch element shows in each period: int64, shape (periods, batch).

    PetaVision's batch methods. Elements are numbered over all ranks, so nothing depends on how they
    are divided.

    Args:
        method: "file": elements take turns, element g begins with image start + g and skips `batch`
            images. "list": each has a part of the list of its own, from start + g · (files //
            batch) on, image after image. "given": it begins at its `start` and goes on by its
            `skip`. "random": as "file", in an order that is shuffled anew for each pass.
        files: number of images; behind the last one comes the first.
        batch: number of batch elements.
        periods: number of images that each element shows.
        start: first image; for "given", one number or one for each element.
        skip: for "given" only: how far to go on, one number or one for each element.
        seed: for "random" only.

    >>> image_numbers("file", 10, 4, 3).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    >>> image_numbers("list", 10, 4, 3).tolist()
    [[0, 2, 4, 6], [1, 3, 5, 7], [2, 4, 6, 8]]
    """
    element, period = np.arange(batch), np.arange(periods)[:, None]
    if method == "list":
        return (start + element * (files // batch) + period) % files
    if method == "given":
        begin, further = np.broadcast_to(start, batch), np.broadcast_to(skip, batch)
        return (begin + period * further) % files
    turn = start + element + period * batch
    if method == "file":
        return turn % files
    if method != "random":
        raise ValueError(f'method must be "file", "list", "given" or "random", got {method!r}')
    shuffles = [
        np.random.default_rng([seed, one]).permutation(files)
        for one in range(turn.max() // files + 1)
    ]
    return np.stack(shuffles)[turn // files, turn % files]


def dead_leaves(side: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """Returns an image, shape (side, side, channels), of shapes on top of each other, from the
    topmost on; whitened.
    """
    y, x = np.mgrid[:side, :side]
    image, free = np.zeros((side, side, channels)), np.ones((side, side), bool)
    while free.mean() > 0.01:
        # 2 to side / 2, with density ∝ radius⁻³: alike at all scales
        radius = rng.uniform((side / 2) ** -2, 2.0**-2) ** -0.5
        row, column = rng.uniform(0, side, 2)
        angle, flat = rng.uniform(0, np.pi), rng.uniform(0.3, 1)
        along = (x - column) * np.cos(angle) + (y - row) * np.sin(angle)
        across = ((y - row) * np.cos(angle) - (x - column) * np.sin(angle)) / flat
        distance = (
            np.hypot(along, across) if rng.random() < 0.5 else np.maximum(abs(along), abs(across))
        )
        shape = free & (distance < radius)
        image[shape] = rng.normal(size=channels)
        free &= ~shape
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    # flattens 1/f, and cuts off what only the grid shows
    weight = frequency * np.exp(-((frequency / 0.4) ** 4))
    return np.fft.ifft2(np.fft.fft2(image, axes=(0, 1)) * weight[..., None], axes=(0, 1)).real


def make_images(count: int, s: Settings, seed: int) -> np.ndarray:
    """Returns images of mean 0 and variance 1, cut from larger ones: float64, shape (count,
    side, side, channels).
    """
    rng = np.random.default_rng(seed)
    large = max(64, 2 * s.side)
    from_each = 2 * (large // s.side) ** 2
    found = []
    while len(found) < count:
        whole = dead_leaves(large, s.channels, rng)
        for row, column in rng.integers(0, large - s.side + 1, (from_each, 2)):
            image = whole[row : row + s.side, column : column + s.side]
            if image.std() > 0.1 * whole.std():  # something to see
                found.append((image - image.mean()) / image.std())
    return np.stack(found[:count])


# ---- a network on the ranks


def first_features(s: Settings, seed: int) -> np.ndarray:
    """Returns random features of norm 1: float32, shape (features, D)."""
    w = np.random.default_rng(seed).normal(size=(s.features, s.patch**2 * s.channels))
    return (w / np.linalg.norm(w, axis=1, keepdims=True)).astype(np.float32)


class Network:
    """Batch elements, divided over the ranks of the world that is open, and features, the same on
    all.

    Args:
        s: its settings.
        images: shape (files, side, side, channels).
        numbers: int64, shape (periods, batch): which image each element shows in each period.
        w: first features, shape (features, D).
    """

    def __init__(self, s: Settings, images: np.ndarray, numbers: np.ndarray, w: np.ndarray) -> None:
        self.settings, self.geometry, self.made = s, Geometry(s), 0
        g = self.geometry
        self.images, self.numbers = synk.data(g.with_margin(images)), synk.data(numbers)
        for one in (self.images, self.numbers):
            one.freeze()  # GPUs keep them
        padded = np.zeros((s.features, -(-w.shape[1] // THREADS) * THREADS), np.float32)
        padded[:, : w.shape[1]] = w
        shared = {
            "w": padded, "wt": padded.T.copy(), "sums": np.zeros((2, *w.shape), np.int64),
            "offset": g.offset, "visible": g.visible, "neuron": s.neuron, "rule": s.rule,
        }  # fmt: skip
        image, sites = (
            np.zeros((s.batch, g.visible.size), np.float32),
            (s.batch, g.start.size, s.features),
        )
        own = {
            "x": image, "residual": image, "decay": image[:, 0],
            "v": np.full(sites, s.v_thresh, np.float32), "a": np.zeros(sites, np.float32),
            "clock": np.tile([-1.0, s.base_min, s.base_max], (s.batch, 1)),
            "trace": np.zeros((s.batch, s.steps + 1, 2)),
        }  # fmt: skip
        self.model = {name: synk.variable(value, name=name) for name, value in shared.items()} | {
            "places": g.places
        }
        self.net = {
            name: synk.scatter(synk.variable(value, name=name)) for name, value in own.items()
        }

    def train(
        self, periods: int, *, rate: float | None = None, delayed: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Shows images, from where it was last on, and learns.

        Args:
            periods: number of images for each element.
            rate: learning rate; default: that of the settings.
            delayed: whether updates are applied one period late.

        Returns:
            How many energies fell, and the mean energy, in each period: shape (periods,).
        """
        s, made = self.settings, self.made
        self.made += periods
        rate = s.rate if rate is None else rate
        options = {"times": periods, "every": 1}
        fell, energy = train(
            self.net, self.model, self.images, self.numbers, made, s.steps, rate, delayed, **options
        )
        return fell, energy / s.batch

    def state(self, name: str) -> np.ndarray:
        """Returns what all elements have of a variable; or the features, shape (features, D), by
        the name "w".
        """
        if name == "w":
            return self.model["w"].get_value()[:, : self.geometry.offset.size]
        return synk.gather(self.net[name])


# ---- the same with NumPy


def transfer_reference(v: np.ndarray, s: Settings) -> np.ndarray:
    """Returns T(V)."""
    corner = s.v_thresh + s.v_width
    line = s.a_min + (corner - s.a_shift - s.a_min) * (v - s.v_thresh) / (s.v_width or 1)
    return np.minimum(
        np.where(v < s.v_thresh, s.a_min, np.where(v < corner, line, v - s.a_shift)), s.a_max
    )


def cost_reference(a: np.ndarray, s: Settings) -> np.ndarray:
    """Returns C(a) of the thresholds that `with_threshold` makes."""
    if s.a_shift == s.v_thresh:
        return s.v_thresh * a
    low = np.minimum(a, s.v_thresh + s.v_width)
    return s.v_thresh * (low - low**2 / 2 / (s.v_thresh + s.v_width))


def simulate_reference(
    s: Settings, g: Geometry, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns energies and time scales, shape (batch, steps + 1), of a network that is shown its
    first images, in float64.
    """
    at = g.start[:, None] + g.offset  # of each number of each patch
    v, e = np.full((s.batch, g.start.size, s.features), s.v_thresh), 1.0
    a, residual, trace = np.zeros_like(v), np.zeros(x.shape), np.zeros((s.steps + 1, 2, s.batch))
    before, scale, top = (
        np.full(s.batch, -1.0),
        np.full(s.batch, s.base_min),
        np.full(s.batch, s.base_max),
    )
    for number in range(s.steps + 1):
        if number:
            v = e * v + (1 - e) * (residual[:, at] @ w.T + s.self_interaction * a)
            a = transfer_reference(v, s)
        residual = x.astype(float)
        for place, indices in enumerate(at):
            residual[:, indices] -= a[:, place] @ w
        residual *= g.visible
        energy = (residual**2).sum(1) / 2 + cost_reference(a, s).sum((1, 2))
        known = energy if number else np.full(s.batch, -1.0)
        for b in range(s.batch):
            scale[b], top[b] = next_scale.py_func(known[b], before[b], scale[b], top[b], s.rule)
        before, e = known, np.exp(-scale / s.tau)[:, None, None]
        trace[number] = energy, scale
    return trace[:, 0].T, trace[:, 1].T


def learn_reference(
    s: Settings, g: Geometry, a: np.ndarray, residual: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Returns the features after an update: the sum over all elements and places, in float64."""
    at = g.start[:, None] + g.offset
    count = np.einsum("bpk,pj->kj", (a != 0).astype(float), g.visible[at])
    new = w + s.rate * np.einsum(
        "bpk,bpj->kj", a.astype(float), residual.astype(float)[:, at]
    ) / np.maximum(count, 1)
    return new / np.linalg.norm(new, axis=1, keepdims=True)


def least_energy(
    s: Settings, g: Geometry, x: np.ndarray, residual: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Returns a lower bound of each element's energy, for the soft threshold: no activities have
    less.

    For every u with Φᵀu ≤ VThresh it is |x|²/2 − |x − u|²/2, the dual problem; here u is the
    residual, made smaller.
    """
    drive = residual.astype(float)[:, g.start[:, None] + g.offset] @ w.T.astype(float)
    u = residual * np.minimum(1, s.v_thresh / np.maximum(drive.max((1, 2)), 1e-9))[:, None]
    return ((x.astype(float) ** 2).sum(1) - ((x - u) ** 2).sum(1)) / 2


# ---- the script


def with_threshold(s: Settings, kind: str) -> Settings:
    """Returns settings with a soft, hard or firm threshold; firm is a line up to twice the
    threshold, and no shift.
    """
    return replace(
        s,
        a_shift=s.v_thresh if kind == "soft" else 0.0,
        v_width=s.v_thresh if kind == "firm" else 0.0,
    )


def world_of(ranks: int, device: str) -> synk.World:
    """Starts a world; of ranks that share a GPU if there are fewer."""
    try:
        return synk.fork(ranks, device=device)
    except synk.PartitionError:
        return synk.fork(devices=[0] * ranks, device="cuda")


def check(device: str, threshold: str) -> None:
    """Compares a small network with NumPy; and those of 1, 2 and 3 ranks, and of delayed updates,
    with each other.

    There are 5 elements, whose images have patches that stick out over the edge.
    """
    s = Settings(
        side=12, channels=2, stride=4, features=72, batch=5, steps=40, v_thresh=0.8, knee=4.0
    )
    s = with_threshold(s, threshold)
    numbers = image_numbers("random", 7, s.batch, 2)
    start = make_images(7, s, 1), numbers, first_features(s, 2)
    found = []
    for ranks in (1, 2, 3):
        with world_of(ranks, device):
            network = Network(s, *start)
            network.train(1)
            x, residual, a, trace, once = map(network.state, ("x", "residual", "a", "trace", "w"))
            network = Network(s, *start)
            network.train(2, delayed=True)
            found.append((once, network.state("w"), network.state("v")))
    for one in found:
        for mine, first in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(mine, first)  # bit by bit
        # the first period's update, which the second one applies
        np.testing.assert_array_equal(one[1], one[0])
    g, w = network.geometry, start[-1]
    np.testing.assert_allclose(once, learn_reference(s, g, a, residual, w), rtol=0, atol=1e-6)
    energies, scales = simulate_reference(s, g, x, w)
    np.testing.assert_allclose(trace[..., 0], energies, rtol=1e-4)
    np.testing.assert_allclose(trace[..., 1], scales, rtol=1e-2)


def tiled(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Returns tiles, shape (n, side, side, channels), side by side in colour, each with its own
    contrast.
    """
    most = abs(tiles).max((1, 2, 3), keepdims=True)
    tiles = np.pad(
        0.5 + 0.5 * tiles / np.where(most > 0, most, 1),
        [(0, 0), (0, 1), (0, 1), (0, 0)],
        constant_values=1,
    )
    n, side, _, channels = tiles.shape
    rows = -(-n // columns)
    tiles = np.concatenate([tiles, np.ones((rows * columns - n, side, side, channels))])
    whole = (
        tiles.reshape(rows, columns, side, side, channels)
        .swapaxes(1, 2)
        .reshape(rows * side, columns * side, channels)
    )
    return np.broadcast_to(whole, (*whole.shape[:2], 3)) if channels == 1 else whole


def draw(
    s: Settings, g: Geometry, shown: dict[str, np.ndarray], energies: np.ndarray, file: str
) -> None:
    """Draws features, some images with their reconstructions, and energies against time."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, ((left, middle), (right, last)) = plt.subplots(
        2, 2, figsize=(11, 7.5), layout="constrained"
    )
    left.imshow(
        tiled(shown["w"].reshape(-1, s.patch, s.patch, s.channels), 16), interpolation="nearest"
    )
    left.set(title=f"{s.features} features")
    pairs = np.concatenate(
        [g.without_margin(one[:12], s) for one in (shown["x"], shown["x"] - shown["residual"])]
    )
    middle.imshow(tiled(pairs, len(pairs) // 2), interpolation="nearest")
    middle.set(title="images, and below them their reconstructions")
    for axes in (left, middle):
        axes.set(xticks=[], yticks=[])
    right.plot(shown["trace"][:12, :, 0].T)
    right.set(
        xlabel="time step", ylabel="energy", title="energies of some elements for their last images"
    )
    scales = right.twinx()
    scales.plot(shown["trace"][:12, :, 1].T, ":", linewidth=1)
    scales.set(ylabel="time scale, dotted", yscale="log")
    last.plot(energies)
    last.set(xlabel="images that each element has seen", ylabel="mean energy after the steps")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Checks a small network, and lets a larger one learn."""
    parser = argparse.ArgumentParser(description="Sparse coding by locally competitive algorithms.")
    parser.add_argument(
        "--tutorial",
        action="store_true",
        help="PetaVision's tutorial: colour images of 32 × 32, stride 2",
    )
    parser.add_argument("--batch", type=int, help="batch elements (default: 256; tutorial: 16)")
    parser.add_argument("--features", type=int, default=128, help="default: 128")
    parser.add_argument(
        "--steps", type=int, help="time steps for each image (default: 100; tutorial: 400)"
    )
    parser.add_argument(
        "--periods", type=int, help="images that each element sees (default: 120; tutorial: 5)"
    )
    parser.add_argument("--files", type=int, help="number of images (default: 2048; tutorial: 64)")
    parser.add_argument(
        "--order",
        choices=("file", "list", "random"),
        default="random",
        help="of the images; default: random",
    )
    parser.add_argument("--threshold", choices=("soft", "hard", "firm"), default="soft")
    parser.add_argument("--delayed", action="store_true", help="apply updates one period late")
    parser.add_argument(
        "--scaling", action="store_true", help="measure one rank, too, and print the ratio"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as lca.png"
    )
    args = parser.parse_args()
    base, files, periods = (TUTORIAL, 64, 5) if args.tutorial else (Settings(), 2048, 120)
    files, periods = args.files or files, args.periods or periods
    s = replace(
        base, batch=args.batch or base.batch, steps=args.steps or base.steps, features=args.features
    )
    s = with_threshold(s, args.threshold)
    if min(s.batch, s.features, files) < 1 or min(s.steps, periods) < 2:
        parser.error(
            "--batch, --features and --files must be at least 1, and --steps "
            "and --periods at least 2"
        )

    check(args.device, args.threshold)
    w, g = first_features(s, args.seed), Geometry(s)
    start = (
        make_images(files, s, args.seed),
        image_numbers(args.order, files, s.batch, periods + 1, seed=args.seed),
        w,
    )
    print(
        f"{files} images of {s.side} × {s.side} × {s.channels}, {s.batch} batch elements, "
        f"{args.threshold} threshold ",
        end="",
    )
    print(
        f"{s.v_thresh}; {s.features} features of {s.patch} × {s.patch} pixels, at "
        f"{g.places[0]} × {g.places[0]} places"
    )
    times = []
    for ranks in (1, args.ranks) if args.scaling else (args.ranks,):
        with synk.fork(ranks, device=args.device) as world:
            network = Network(s, *start)
            results = [network.train(1, delayed=args.delayed)]  # compiles
            began = time.perf_counter()
            results.append(network.train(periods - 1, delayed=args.delayed))
            seconds = time.perf_counter() - began
            results.append(network.train(1, rate=0.0))  # shows what it has learned
            shown = {name: network.state(name) for name in ("x", "residual", "a", "trace", "w")}
            where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"
        times.append(seconds / (periods - 1) / s.steps)
        rate = 2e-9 * s.batch * g.start.size * w.size / times[-1]
        print(
            f"{periods} × {s.steps} steps on {where}: {times[-1] * 1e6:.1f} µs a step; G alone "
            f"takes {rate:.1f} GFLOP/s"
        )
    if args.scaling:
        print(f"{where}: {times[0] / times[1]:.2f} x one rank")

    fell, energies = map(np.concatenate, zip(*results, strict=True))
    assert (fell == s.batch).all(), "an energy has not fallen; make more --steps"
    active = (shown["a"] != 0).sum() / s.batch
    left = (shown["residual"] ** 2).sum() / (shown["x"] ** 2).sum()
    print(
        f"mean energy after the steps: {energies[0]:.2f} for the first images, "
        f"{energies[-1]:.2f} for the last, ",
        end="",
    )
    print(
        f"in which {active:.1f} activities are not 0, and leave {100 * left:.0f} % of the squares"
    )
    if args.threshold == "soft":
        energy = shown["trace"][:, -1, 0]
        above = 1 - least_energy(s, g, *(shown[name] for name in ("x", "residual", "w"))) / energy
        print(
            f"no activities have a mean energy that is lower by more than "
            f"{100 * above.mean():.1f} %"
        )
        assert above.mean() < CONVERGED or s.steps < base.steps, (
            "the activities are not those of the least energy"
        )
    print("energies fall; features agree with NumPy's, and have the same bits on 1, 2 and 3 ranks")
    if args.picture:
        draw(s, g, shown, energies, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
