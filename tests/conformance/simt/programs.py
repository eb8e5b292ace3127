"""Kernels of the length and shape that simulation, speech and vision programs have: hundreds of
lines, many device functions.

They are long on purpose: what a first launch costs shows in them (`benchmarks/first_launches.py`).
"""

import linecache
import math

import numpy as np
from numba import cuda, float32, int32, int64, njit, uint64

from tests.conformance.simt.cases import case, real, whole

# ---- charge and current of a cloud of particles, on a grid of z and r, for two modes of the angle
# around the axis

CELLS_Z, CELLS_R = 6, 5
MODES = ("m0", "m1")
POINTS = [(i, j) for i in range(4) for j in range(4)]


@cuda.jit(device=True)
def z_weight(position, index):
    """One of the four weights of a cubic B-spline; the position is in cells."""
    u = position - math.floor(position)
    if index == 0:
        return (1.0 - u) ** 3 / 6.0
    if index == 1:
        return (3.0 * u**3 - 6.0 * u**2 + 4.0) / 6.0
    if index == 2:
        return (-3.0 * u**3 + 3.0 * u**2 + 3.0 * u + 1.0) / 6.0
    return u**3 / 6.0


@cuda.jit(device=True)
def r_weight(position, index, sign):
    """The same along r: beyond the axis it counts with the sign of the mode."""
    lowest = int64(math.floor(position)) - 1
    u = position - math.floor(position)
    weight = 0.0
    if index == 0:
        weight = (1.0 - u) ** 3 / 6.0
    elif index == 1:
        weight = (3.0 * u**3 - 6.0 * u**2 + 4.0) / 6.0
    elif index == 2:
        weight = (-3.0 * u**3 + 3.0 * u**2 + 3.0 * u + 1.0) / 6.0
    elif index == 3:
        weight = u**3 / 6.0
    if lowest + index < 0:
        weight *= sign
    return weight


def _spline(position):
    u = position - np.floor(position)
    return (
        np.array([(1 - u) ** 3, 3 * u**3 - 6 * u**2 + 4, -3 * u**3 + 3 * u**2 + 3 * u + 1, u**3])
        / 6
    )


def _deposited(x, y, z, amounts, dz, dr):
    """What the particles leave on the grids: shape (amounts, modes, z, r)."""
    out = np.zeros((len(amounts), len(MODES), CELLS_Z, CELLS_R), np.complex128)
    for k in range(len(x)):
        r = math.hypot(x[k], y[k])
        for i, wz in enumerate(_spline(z[k] / dz)):
            for j, wr in enumerate(_spline(r / dr)):
                row, column = int(z[k] // dz) - 1 + i, int(r // dr) - 1 + j
                beyond, column = column < 0, min(-column - 1 if column < 0 else column, CELLS_R - 1)
                for mode, phase in enumerate((1.0, complex(x[k], -y[k]) / r)):
                    sign = -1 if beyond and mode else 1
                    for number, amount in enumerate(amounts):
                        out[number, mode, row % CELLS_Z, column] += (
                            sign * wz * wr * phase * amount[k]
                        )
    return out


def _particles(n=40, cells_z=CELLS_Z, cells_r=CELLS_R):
    """Particles sorted by cell: x, y, z, weights, momenta, and the number of particles up to the
    end of each cell.
    """
    draw = np.random.default_rng(5)
    r, angle, z = (
        draw.uniform(0.05, cells_r, n),
        draw.uniform(0, 2 * np.pi, n),
        draw.uniform(0, cells_z, n),
    )
    cells = z.astype(np.int64) * cells_r + r.astype(np.int64)
    order = np.argsort(cells, kind="stable")
    ends = np.cumsum(np.bincount(cells, minlength=cells_z * cells_r))
    r, angle, z = r[order], angle[order], z[order]
    return r * np.cos(angle), r * np.sin(angle), z, *draw.uniform(0.5, 1.5, (4, n)), ends


def charge_arguments(n=40, cells_z=CELLS_Z, cells_r=CELLS_R):
    x, y, z, weights, *_, ends = _particles(n, cells_z, cells_r)
    return x, y, z, weights, -1.5, 1.0, 1.0, ends, *np.zeros((2, cells_z, cells_r), np.complex128)


def current_arguments(n=40, cells_z=CELLS_Z, cells_r=CELLS_R):
    *particles, ends = _particles(n, cells_z, cells_r)
    return *particles, -1.5, 1.0, 1.0, ends, *np.zeros((6, cells_z, cells_r), np.complex128)


def _charge(x, y, z, weights, charge, dz, dr, *_):
    return dict(enumerate(_deposited(x, y, z, [charge * weights], dz, dr)[0], 8))


def _current(x, y, z, weights, ux, uy, uz, charge, dz, dr, *_):
    r, scale = np.hypot(x, y), charge * weights / np.sqrt(1 + ux**2 + uy**2 + uz**2)
    amounts = scale * (x * ux + y * uy) / r, scale * (x * uy - y * ux) / r, scale * uz
    return dict(enumerate(_deposited(x, y, z, amounts, dz, dr).reshape(6, CELLS_Z, CELLS_R), 11))


def deposition(name, params, amounts, *, as_loop=False):
    """Returns a kernel in which a thread adds up what the particles of its cell leave at 16 points,
    in a variable for each.

    Such programs write the variables out, hundreds of lines, as an array would not be kept in
    registers.

    Args:
        name: the kernel's name.
        params: its first parameters.
        amounts: what is deposited, by name, as expressions.
        as_loop: whether to write the loop over cells instead that one would write for a CPU.
    """
    sums = {
        f"{name}_{mode}_{i}{j}": (name, mode, i, j)
        for name in amounts
        for mode in MODES
        for i, j in POINTS
    }
    grids = [f"{name}_{mode}" for name in amounts for mode in MODES]
    head = (
        "for cell in range(ends.shape[0]):"
        if as_loop
        else "cell = cuda.grid(1)\n    if cell < ends.shape[0]:"
    )
    text = f"""
def {name}({params}, charge, dz, dr, ends, {", ".join(grids)}):
    cells_z, cells_r = {grids[0]}.shape
    {head}
        start = ends[cell - 1] if cell > 0 else 0
        end = ends[cell]
        low_z = cell // cells_r - 1
        low_r = cell % cells_r - 1
"""
    inner = [f"{variable} = 0.0 + 0.0j" for variable in sums]
    inner += ["for k in range(start, end):"]
    inner += [
        f"    {line}"
        for line in ("r = math.sqrt(x[k] ** 2 + y[k] ** 2)", "cos = x[k] / r", "sin = y[k] / r")
    ]
    inner += [
        "    turn_m0 = 1.0 + 0.0j",
        "    turn_m1 = cos - 1.0j * sin",
        "    zs = z[k] / dz",
        "    rs = r / dr",
    ]
    inner += [f"    {amount} = {value}" for amount, value in amounts.items()]
    for variable, (amount, mode, i, j) in sums.items():
        sign = "1.0" if mode == "m0" else "-1.0"
        inner.append(
            f"    {variable} += z_weight(zs, {i}) * r_weight(rs, {j}, {sign}) "
            f"* turn_{mode} * {amount}"
        )
    inner += [f"iz{i} = (low_z + {i}) % cells_z" for i in range(4)]
    for j in range(4):
        inner += [
            f"ir{j} = low_r + {j}",
            f"if ir{j} < 0:",
            f"    ir{j} = -ir{j} - 1",
            f"ir{j} = min(ir{j}, cells_r - 1)",
        ]
    for variable, (amount, mode, i, j) in sums.items():
        grid, place = f"{amount}_{mode}", f"iz{i}, ir{j}"
        add = "{0}.{1}[{2}] += {3}.{1}" if as_loop else "cuda.atomic.add({0}.{1}, ({2}), {3}.{1})"
        inner += [add.format(grid, part, place, variable) for part in ("real", "imag")]
    text += "".join(f"        {line}\n" for line in inner)
    filename = f"<{name}{' as a loop' if as_loop else ''}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {
        "__name__": __name__,
        "cuda": cuda,
        "math": math,
        "z_weight": z_weight,
        "r_weight": r_weight,
    }
    if as_loop:
        scope |= {"z_weight": njit(z_weight.py_func), "r_weight": njit(r_weight.py_func)}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]


CHARGE = "cubic_charge", "x, y, z, weights", {"rho": "charge * weights[k]"}
_SCALE = "charge * weights[k] / math.sqrt(1.0 + ux[k] ** 2 + uy[k] ** 2 + uz[k] ** 2)"
CURRENT = (
    "cubic_current",
    "x, y, z, weights, ux, uy, uz",
    {
        "jr": f"{_SCALE} * (cos * ux[k] + sin * uy[k])",
        "jt": f"{_SCALE} * (cos * uy[k] - sin * ux[k])",
        "jz": f"{_SCALE} * uz[k]",
    },
)
cubic_charge = case(2, 16, charge_arguments, _charge, atol=1e-10)(deposition(*CHARGE))
cubic_current = case(2, 16, current_arguments, _current, atol=1e-10)(deposition(*CURRENT))


# ---- probabilities of all alignments of speech and text, forwards (Graves, "Sequence transduction
# with RNNs", 2012)


@cuda.jit(device=True)
def log_add(a, b):
    """log(exp(a) + exp(b))."""
    if a == -math.inf:
        return b
    if b == -math.inf:
        return a
    if a > b:
        return math.log1p(math.exp(b - a)) + a
    return math.log1p(math.exp(a - b)) + b


@cuda.jit(device=True)
def log_probability(denominators, scores, frames, letters, classes, batch, t, u, label):
    row = (batch * frames + t) * letters + u
    return denominators[row] + scores[row * classes + label]


def alphas(
    scores,
    denominators,
    out,
    likelihoods,
    lengths,
    text_lengths,
    labels,
    frames,
    letters,
    classes,
    blank,
):
    batch = cuda.blockIdx.x
    u = cuda.threadIdx.x
    length = lengths[batch]
    end = text_lengths[batch] + 1
    first = batch * frames * letters
    text = labels[batch]
    if u == 0:
        out[first] = 0
    cuda.syncthreads()
    for n in range(1, length + end - 1):
        t = n - u
        if u == 0:
            if t > 0 and t < length:
                out[first + t * letters + u] = out[first + (t - 1) * letters + u] + log_probability(
                    denominators, scores, frames, letters, classes, batch, t - 1, 0, blank
                )
        elif u < end:
            if t == 0:
                out[first + u] = out[first + u - 1] + log_probability(
                    denominators, scores, frames, letters, classes, batch, 0, u - 1, text[u - 1]
                )
            elif t > 0 and t < length:
                silent = out[first + (t - 1) * letters + u] + log_probability(
                    denominators, scores, frames, letters, classes, batch, t - 1, u, blank
                )
                spoken = out[first + t * letters + u - 1] + log_probability(
                    denominators, scores, frames, letters, classes, batch, t, u - 1, text[u - 1]
                )
                out[first + t * letters + u] = log_add(spoken, silent)
        cuda.syncthreads()
    if u == 0:
        last = log_probability(
            denominators, scores, frames, letters, classes, batch, length - 1, end - 1, blank
        )
        likelihoods[batch] = out[first + (length - 1) * letters + end - 1] + last


def alphas_arguments(batches=3, frames=7, letters=5, classes=6):
    scores = real(batches, frames, letters, classes)
    denominators = -np.log(np.exp(scores).sum(-1))
    lengths = (
        np.arange(frames, frames - batches, -1) if frames > batches else np.full(batches, frames)
    )
    texts = (
        np.arange(letters - 1, letters - 1 - batches, -1)
        if letters > batches
        else np.full(batches, letters - 1)
    )
    labels = whole(batches, letters - 1, low=1, high=classes)
    out, likelihoods = np.full(scores[..., 0].size, -np.inf), np.zeros(batches)
    return (
        scores.ravel(),
        denominators.ravel(),
        out,
        likelihoods,
        lengths,
        texts,
        labels,
        frames,
        letters,
        classes,
        0,
    )


def _alphas(
    scores, denominators, out, likelihoods, lengths, texts, labels, frames, letters, classes, blank
):
    logs = (scores.reshape(-1, classes) + denominators[:, None]).reshape(
        -1, frames, letters, classes
    )
    made = out.reshape(-1, frames, letters).copy()
    final = likelihoods.copy()
    for b, (length, end) in enumerate(zip(lengths, texts + 1, strict=True)):
        for t in range(length):
            for u in range(end):
                came = [made[b, t - 1, u] + logs[b, t - 1, u, blank]] if t else []
                came += [made[b, t, u - 1] + logs[b, t, u - 1, labels[b, u - 1]]] if u else []
                made[b, t, u] = np.logaddexp.reduce(came) if came else 0.0
        final[b] = made[b, length - 1, end - 1] + logs[b, length - 1, end - 1, blank]
    return {2: made.ravel(), 3: final}


case(3, 5, alphas_arguments, _alphas, atol=1e-10)(alphas)


# ---- overlap of rotated boxes (x, y, width, height, angle), and the boxes that a better one covers

BOXES = 16  # threads of a block, each with a box; a mask has a bit for each
BOX_NUMBERS = BOXES * 5  # of so many boxes


@cuda.jit(device=True)
def triangle(a, b, c):
    """Area of the triangle between three points, whose coordinates follow each other from the
    given places on.
    """
    return ((a[0] - c[0]) * (b[1] - c[1]) - (a[1] - c[1]) * (b[0] - c[0])) / 2.0


@cuda.jit(device=True)
def polygon_area(points, n):
    area = 0.0
    for i in range(n - 2):
        area += abs(
            triangle(points[:2], points[2 * i + 2 : 2 * i + 4], points[2 * i + 4 : 2 * i + 6])
        )
    return area


@cuda.jit(device=True)
def sort_around(points, n):
    """Sorts the corners of a convex polygon by the angle around its centre."""
    if n > 0:
        centre = cuda.local.array((2,), float32)
        centre[:] = 0.0
        for i in range(n):
            centre[0] += points[2 * i]
            centre[1] += points[2 * i + 1]
        centre[0] /= n
        centre[1] /= n
        turn = cuda.local.array((16,), float32)
        for i in range(n):
            dx = points[2 * i] - centre[0]
            dy = points[2 * i + 1] - centre[1]
            d = math.sqrt(dx * dx + dy * dy)
            dx = dx / d
            dy = dy / d
            if dy < 0:
                dx = -2 - dx
            turn[i] = dx
        for i in range(1, n):
            if turn[i - 1] > turn[i]:
                key = turn[i]
                x = points[2 * i]
                y = points[2 * i + 1]
                j = i
                while j > 0 and turn[j - 1] > key:
                    turn[j] = turn[j - 1]
                    points[2 * j] = points[2 * j - 2]
                    points[2 * j + 1] = points[2 * j - 1]
                    j -= 1
                turn[j] = key
                points[2 * j] = x
                points[2 * j + 1] = y


@cuda.jit(device=True)
def sides_cross(one, other, i, j, point):
    """Stores the point where side `i` of one box crosses side `j` of the other; returns whether
    there is one.
    """
    ax = one[2 * i]
    ay = one[2 * i + 1]
    bx = one[2 * ((i + 1) % 4)]
    by = one[2 * ((i + 1) % 4) + 1]
    cx = other[2 * j]
    cy = other[2 * j + 1]
    dx = other[2 * ((j + 1) % 4)]
    dy = other[2 * ((j + 1) % 4) + 1]
    acd = (dy - ay) * (cx - ax) > (cy - ay) * (dx - ax)
    bcd = (dy - by) * (cx - bx) > (cy - by) * (dx - bx)
    if acd != bcd:
        abc = (cy - ay) * (bx - ax) > (by - ay) * (cx - ax)
        abd = (dy - ay) * (bx - ax) > (by - ay) * (dx - ax)
        if abc != abd:
            across = (by - ay) * (dx - cx) - (bx - ax) * (dy - cy)
            along = bx * ay - ax * by
            beside = dx * cy - cx * dy
            point[0] = ((bx - ax) * beside - along * (dx - cx)) / across
            point[1] = ((by - ay) * beside - along * (dy - cy)) / across
            return True
    return False


@cuda.jit(device=True)
def is_inside(x, y, corners):
    ab0 = corners[2] - corners[0]
    ab1 = corners[3] - corners[1]
    ad0 = corners[6] - corners[0]
    ad1 = corners[7] - corners[1]
    ap0 = x - corners[0]
    ap1 = y - corners[1]
    abap = ab0 * ap0 + ab1 * ap1
    adap = ad0 * ap0 + ad1 * ap1
    return ab0 * ab0 + ab1 * ab1 >= abap >= 0 and ad0 * ad0 + ad1 * ad1 >= adap >= 0


@cuda.jit(device=True)
def common_corners(one, other, points):
    """Stores the corners of the common part of two boxes; returns their number."""
    n = 0
    for i in range(4):
        if is_inside(one[2 * i], one[2 * i + 1], other):
            points[2 * n] = one[2 * i]
            points[2 * n + 1] = one[2 * i + 1]
            n += 1
        if is_inside(other[2 * i], other[2 * i + 1], one):
            points[2 * n] = other[2 * i]
            points[2 * n + 1] = other[2 * i + 1]
            n += 1
    crossing = cuda.local.array((2,), float32)
    for i in range(4):
        for j in range(4):
            if sides_cross(one, other, i, j, crossing):
                points[2 * n] = crossing[0]
                points[2 * n + 1] = crossing[1]
                n += 1
    return n


@cuda.jit(device=True)
def box_corners(corners, box):
    cos = math.cos(box[4])
    sin = math.sin(box[4])
    for k in range(4):
        x = box[2] / 2 if k >= 2 else -box[2] / 2
        y = box[3] / 2 if k == 1 or k == 2 else -box[3] / 2
        corners[2 * k] = cos * x + sin * y + box[0]
        corners[2 * k + 1] = -sin * x + cos * y + box[1]


@cuda.jit(device=True)
def common_area(one, other):
    corners = cuda.local.array((8,), float32)
    others = cuda.local.array((8,), float32)
    points = cuda.local.array((48,), float32)
    box_corners(corners, one)
    box_corners(others, other)
    n = common_corners(corners, others, points)
    sort_around(points, n)
    return polygon_area(points, n)


@cuda.jit(device=True)
def overlap(one, other, criterion):
    """Common area over that of the union, or with criterion 0 or 1 over that of one of them."""
    area = one[2] * one[3]
    other_area = other[2] * other[3]
    common = common_area(one, other)
    if criterion == -1:
        return common / (area + other_area - common)
    if criterion == 0:
        return common / area
    if criterion == 1:
        return common / other_area
    return common


def rotated_overlaps(n, k, boxes, others, out, criterion):
    row_start = cuda.blockIdx.x
    column_start = cuda.blockIdx.y
    t = cuda.threadIdx.x
    rows = min(n - row_start * BOXES, BOXES)
    columns = min(k - column_start * BOXES, BOXES)
    block_boxes = cuda.shared.array(shape=(BOX_NUMBERS,), dtype=float32)
    block_others = cuda.shared.array(shape=(BOX_NUMBERS,), dtype=float32)
    row = row_start * BOXES + t
    column = column_start * BOXES + t
    if t < columns:
        block_others[t * 5 + 0] = others[column * 5 + 0]
        block_others[t * 5 + 1] = others[column * 5 + 1]
        block_others[t * 5 + 2] = others[column * 5 + 2]
        block_others[t * 5 + 3] = others[column * 5 + 3]
        block_others[t * 5 + 4] = others[column * 5 + 4]
    if t < rows:
        block_boxes[t * 5 + 0] = boxes[row * 5 + 0]
        block_boxes[t * 5 + 1] = boxes[row * 5 + 1]
        block_boxes[t * 5 + 2] = boxes[row * 5 + 2]
        block_boxes[t * 5 + 3] = boxes[row * 5 + 3]
        block_boxes[t * 5 + 4] = boxes[row * 5 + 4]
    cuda.syncthreads()
    if t < rows:
        for i in range(columns):
            place = row_start * BOXES * k + column_start * BOXES + t * k + i
            out[place] = overlap(
                block_others[i * 5 : i * 5 + 5], block_boxes[t * 5 : t * 5 + 5], criterion
            )


def covered_boxes(n, threshold, boxes, masks):
    """A mask of a box has a bit for each box of a block that it covers; in its own block for
    those that come later.
    """
    row_start = cuda.blockIdx.y
    column_start = cuda.blockIdx.x
    rows = min(n - row_start * BOXES, BOXES)
    columns = min(n - column_start * BOXES, BOXES)
    block_boxes = cuda.shared.array(shape=(BOX_NUMBERS,), dtype=float32)
    t = cuda.threadIdx.x
    if t < columns:
        for part in range(5):
            block_boxes[t * 5 + part] = boxes[(BOXES * column_start + t) * 5 + part]
    cuda.syncthreads()
    if t < rows:
        own = BOXES * row_start + t
        mask = uint64(0)
        start = t + 1 if row_start == column_start else 0
        for i in range(start, columns):
            if (
                overlap(boxes[own * 5 : own * 5 + 5], block_boxes[i * 5 : i * 5 + 5], -1)
                > threshold
            ):
                mask |= uint64(1) << uint64(i)
        masks[own * ((n + BOXES - 1) // BOXES) + column_start] = mask


def boxes_of(n, seed, spread=8.0):
    draw = np.random.default_rng(seed)
    low, high = [0, 0, 1, 1, -3], [spread, spread, 4, 4, 3]
    return draw.uniform(low, high, (n, 5)).astype(np.float32)


def _corners(box):
    x, y, width, height, angle = map(float, box)
    turned = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return np.array(
        [[-width, -height], [-width, height], [width, height], [width, -height]]
    ) / 2 @ turned.T + (x, y)


def _common(one, other):
    """Area of what is left of one box when it is cut along each side of the other (Sutherland
    and Hodgman 1974).
    """
    left, sides = list(_corners(one)), _corners(other)
    for a, b in zip(sides, np.roll(sides, -1, axis=0), strict=True):
        ways = [(b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) for p in left]
        cut = []
        for p, q, way, next_way in zip(
            left, left[1:] + left[:1], ways, ways[1:] + ways[:1], strict=True
        ):
            cut += [p] if way <= 0 else []
            cut += [p + (q - p) * way / (way - next_way)] if way * next_way < 0 else []
        left = cut
    if len(left) < 3:
        return 0.0
    x, y = np.array(left).T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _overlaps(boxes, others):
    common = np.array([[_common(one, other) for other in others] for one in boxes])
    areas, other_areas = boxes[:, 2] * boxes[:, 3], others[:, 2] * others[:, 3]
    return common / (areas[:, None] + other_areas - common)


def overlaps_arguments(n=19, k=21):
    return n, k, boxes_of(n, 1).ravel(), boxes_of(k, 2).ravel(), np.zeros(n * k, np.float32), -1


def _rotated_overlaps(n, k, boxes, others, *_):
    return {4: _overlaps(boxes.reshape(n, 5), others.reshape(k, 5)).ravel()}


def covered_arguments(n=40):
    return n, 0.2, boxes_of(n, 3).ravel(), np.zeros(n * -(-n // BOXES), np.uint64)


def _covered(n, threshold, boxes, masks):
    row, column = np.ogrid[:n, :n]
    later = (column > row) | (column // BOXES != row // BOXES)
    padded = np.zeros((n, masks.size // n * BOXES), np.uint64)
    padded[:, :n] = later & (_overlaps(boxes.reshape(n, 5), boxes.reshape(n, 5)) > threshold)
    bits = np.uint64(1) << np.arange(BOXES, dtype=np.uint64)
    return {3: (padded.reshape(n, -1, BOXES) * bits).sum(-1, dtype=np.uint64).ravel()}


case((2, 2), BOXES, overlaps_arguments, _rotated_overlaps, rtol=1e-4, atol=1e-5)(rotated_overlaps)
case((3, 3), BOXES, covered_arguments, _covered)(covered_boxes)


# ---- where each tile of an image has moved to: the shift with the least sum of absolute
# differences

TILE = 8
RADIUS = 2
WIDE = TILE + 2 * RADIUS
SHIFTS = (2 * RADIUS + 1) ** 2
MATCHERS = 32  # threads of a block


def block_matching(reference, moved, shifts):
    tile_y = cuda.blockIdx.y
    tile_x = cuda.blockIdx.x
    t = cuda.threadIdx.x
    height, width = moved.shape
    own = cuda.shared.array((TILE, TILE), float32)
    around = cuda.shared.array((WIDE, WIDE), float32)
    parts = cuda.shared.array(MATCHERS, float32)
    sums = cuda.shared.array(SHIFTS, float32)
    for k in range(t, TILE * TILE, MATCHERS):
        own[k // TILE, k % TILE] = reference[tile_y * TILE + k // TILE, tile_x * TILE + k % TILE]
    start_y = tile_y * TILE + int32(shifts[tile_y, tile_x, 1]) - RADIUS
    start_x = tile_x * TILE + int32(shifts[tile_y, tile_x, 0]) - RADIUS
    for k in range(t, WIDE * WIDE, MATCHERS):
        y = start_y + k // WIDE
        x = start_x + k % WIDE
        if 0 <= y < height and 0 <= x < width:
            around[k // WIDE, k % WIDE] = moved[y, x]
        else:
            around[k // WIDE, k % WIDE] = math.inf
    cuda.syncthreads()
    for shift in range(SHIFTS):
        down = shift // (2 * RADIUS + 1)
        right = shift % (2 * RADIUS + 1)
        total = float32(0.0)
        for k in range(t, TILE * TILE, MATCHERS):
            difference = own[k // TILE, k % TILE] - around[k // TILE + down, k % TILE + right]
            total += abs(difference)
        parts[t] = total
        cuda.syncthreads()
        step = MATCHERS // 2
        while step > 0:
            if t < step:
                parts[t] += parts[t + step]
            cuda.syncthreads()
            step //= 2
        if t == 0:
            sums[shift] = parts[0]
        cuda.syncthreads()
    if t == 0:
        least = float32(math.inf)
        best = int32(0)
        for shift in range(SHIFTS):
            if sums[shift] < least:
                least = sums[shift]
                best = int32(shift)
        shifts[tile_y, tile_x, 0] += best % (2 * RADIUS + 1) - RADIUS
        shifts[tile_y, tile_x, 1] += best // (2 * RADIUS + 1) - RADIUS


def matching_arguments(tiles_y=3, tiles_x=4):
    # integers, so that sums are exact
    reference = whole(tiles_y * TILE, tiles_x * TILE, low=0, high=200).astype(np.float32)
    shifts = whole(tiles_y, tiles_x, 2, low=-1, high=2, seed=4).astype(np.float32)
    return reference, np.roll(reference, (1, -1), (0, 1)), shifts


def _matched(reference, moved, shifts):
    out, padded = shifts.copy(), np.pad(moved, 2 * WIDE, constant_values=np.inf)
    for tile_y, tile_x in np.ndindex(shifts.shape[:2]):
        y, x = tile_y * TILE, tile_x * TILE
        sums = {}
        for down, right in np.ndindex(2 * RADIUS + 1, 2 * RADIUS + 1):
            at_y = y + int(shifts[tile_y, tile_x, 1]) + down - RADIUS + 2 * WIDE
            at_x = x + int(shifts[tile_y, tile_x, 0]) + right - RADIUS + 2 * WIDE
            found = padded[at_y : at_y + TILE, at_x : at_x + TILE]
            sums[right - RADIUS, down - RADIUS] = np.abs(
                reference[y : y + TILE, x : x + TILE] - found
            ).sum()
        out[tile_y, tile_x] += min(sums, key=sums.__getitem__)
    return {2: out}


case((4, 3), MATCHERS, matching_arguments, _matched)(block_matching)
