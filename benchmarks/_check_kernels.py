"""Kernels that `benchmarks/check.py` checks: a tiled product, and suppression of rotated boxes that
overlap.

The suppression has the shape of those in libraries for detection: blocks of 64 boxes against 64,
boxes of the columns in shared memory, a bit for each pair in a mask of 64 bits, and the overlap of
two rotated rectangles by device functions that clip a polygon in local arrays (Sutherland and
Hodgman, 1974).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, uint64

SIDE = 32
BOXES = 64
CORNERS = 16  # a clipped rectangle has at most 8 corners; each list holds x and y


def multiply(a, b, c):
    left = cuda.shared.array((SIDE, SIDE), float32)
    right = cuda.shared.array((SIDE, SIDE), float32)
    i, j = cuda.grid(2)
    s, t = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(a.shape[1] // SIDE):
        left[s, t] = a[i, t + k * SIDE]
        right[s, t] = b[s + k * SIDE, j]
        cuda.syncthreads()
        for n in range(SIDE):
            total += left[s, n] * right[n, t]
        cuda.syncthreads()
    c[i, j] = total


@cuda.jit(device=True)
def corners_of(box, corners):
    """Writes the corners of a box (x, y, width, height, angle), counter-clockwise."""
    x, y, w, h, angle = box[0], box[1], box[2], box[3], box[4]
    c, s = math.cos(angle), math.sin(angle)
    for k in range(4):
        dx = w / 2 if k % 3 == 0 else -w / 2
        dy = h / 2 if k < 2 else -h / 2
        corners[2 * k] = x + c * dx - s * dy
        corners[2 * k + 1] = y + s * dx + c * dy


@cuda.jit(device=True)
def side_of(ax, ay, bx, by, x, y):
    """Positive to the left of the line from a to b."""
    return (bx - ax) * (y - ay) - (by - ay) * (x - ax)


@cuda.jit(device=True)
def clipped(points, count, ax, ay, bx, by, result):
    """Writes the part of a polygon to the left of a line, and returns its number of corners."""
    n = 0
    for k in range(count):
        m = (k + 1) % count
        px, py, qx, qy = points[2 * k], points[2 * k + 1], points[2 * m], points[2 * m + 1]
        p, q = side_of(ax, ay, bx, by, px, py), side_of(ax, ay, bx, by, qx, qy)
        if p >= 0:
            result[2 * n], result[2 * n + 1] = px, py
            n += 1
        if (p > 0 and q < 0) or (p < 0 and q > 0):
            share = p / (p - q)
            result[2 * n], result[2 * n + 1] = px + share * (qx - px), py + share * (qy - py)
            n += 1
    return n


@cuda.jit(device=True)
def overlap(first, second):
    """The area of the intersection of two boxes over that of their union."""
    of_first = cuda.local.array(8, float32)
    of_second = cuda.local.array(8, float32)
    here = cuda.local.array(CORNERS, float32)
    there = cuda.local.array(CORNERS, float32)
    corners_of(first, of_first)
    corners_of(second, of_second)
    for k in range(8):
        here[k] = of_first[k]
    count = 4
    for k in range(4):
        m = (k + 1) % 4
        count = clipped(
            here,
            count,
            of_second[2 * k],
            of_second[2 * k + 1],
            of_second[2 * m],
            of_second[2 * m + 1],
            there,
        )
        for n in range(2 * count):
            here[n] = there[n]
    area = float32(0)
    for k in range(1, count - 1):
        area += (
            side_of(
                here[0], here[1], here[2 * k], here[2 * k + 1], here[2 * k + 2], here[2 * k + 3]
            )
            / 2
        )
    return area / (first[2] * first[3] + second[2] * second[3] - area)


def suppress(boxes, limit, mask):
    """Sets bit k of `mask[i, b]` if box i overlaps box 64 b + k by more than the limit."""
    row, column = cuda.blockIdx.x, cuda.blockIdx.y
    t = cuda.threadIdx.x
    shared = cuda.shared.array((BOXES, 5), float32)
    columns = min(boxes.shape[0] - column * BOXES, BOXES)
    if t < columns:
        for k in range(5):
            shared[t, k] = boxes[column * BOXES + t, k]
    cuda.syncthreads()
    i = row * BOXES + t
    if i < boxes.shape[0]:
        bits = uint64(0)
        for k in range(columns):
            if (row != column or k > t) and overlap(boxes[i], shared[k]) > limit:
                bits |= uint64(1) << uint64(k)
        mask[i, column] = bits


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, and what makes its grid, block and arguments; `small` for a test."""

    name: str
    kernel: Callable[..., Any]
    make: Callable[[bool], tuple[Any, Any, tuple[Any, ...]]]


def _product(small: bool) -> tuple[Any, Any, tuple[Any, ...]]:
    n = 32 if small else 96
    a, b = np.random.default_rng(0).random((2, n, n), np.float32)
    return (n // SIDE, n // SIDE), (SIDE, SIDE), (a, b, np.zeros((n, n), np.float32))


def _boxes(small: bool) -> tuple[Any, Any, tuple[Any, ...]]:
    n = 20 if small else 90
    rng = np.random.default_rng(0)
    boxes = np.column_stack(
        [rng.uniform(0, 20, (n, 2)), rng.uniform(2, 6, (n, 2)), rng.uniform(0, 3, n)]
    ).astype(np.float32)
    blocks = -(-n // BOXES)
    return (blocks, blocks), BOXES, (boxes, 0.3, np.zeros((n, blocks), np.uint64))


CASES = {
    case.name: case
    for case in (
        Case("tiled product, n = 96", multiply, _product),
        Case("rotated NMS, 90 boxes", suppress, _boxes),
    )
}
