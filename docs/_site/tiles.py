"""Square pictures for the cards of the gallery: parts of what examples draw, and drawings for those
that draw nothing.
"""

import math
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from docs._site.drawing import COLOURS, Drawing

SIDE = 240  # pixels


def crop(picture: Path, square: tuple[float, float, float], file: Path) -> None:
    """Saves a square of a picture: left, top and side, in widths of the picture."""
    with Image.open(picture) as image:
        left, top, side = (round(part * image.width) for part in square)
        part = image.convert("RGB").crop((left, top, left + side, top + side))
        part.resize((2 * SIDE, 2 * SIDE), Image.Resampling.LANCZOS).save(file)


def _tile(title: str) -> Drawing:
    return Drawing(SIDE, SIDE, title)


def _bell(x: float) -> float:
    """The height of exp(−x²) above the upper edge, of x in pixels."""
    return 190 - 140 * math.exp(-(((x - 120) / 60) ** 2))


def energy() -> Drawing:
    """The area below a Gaussian, a part for each rank."""
    d = _tile("The area below exp(−x²)")
    for x in range(20, 220, 5):
        d.box(x, _bell(x + 2.5), 4.5, 190 - _bell(x + 2.5), f"c{(x - 20) // 50}")
    return d


def pi() -> Drawing:
    """Points inside and outside the unit circle."""
    d = _tile("Points in a square, inside the circle or not")
    for k in range(1, 400):  # points of a lattice of Fibonacci's, which fill the square evenly
        x, y = k / 400, (k * 0.6180339887) % 1
        kind = "c0" if x * x + y * y < 1 else "peer"
        d.shapes.append(
            f'<circle cx="{20 + 200 * x:.1f}" cy="{220 - 200 * y:.1f}" r="3.4" class="{kind}"/>'
        )
    return d


def greeks() -> Drawing:
    """The payoff of an option that is knocked out at a barrier, and paths that end around it."""
    d = _tile("A payoff that jumps at a barrier")
    for x in range(20, 220, 5):
        payoff = max(0, x - 90) if x < 160 else 0
        d.box(x, 200 - 1.8 * payoff, 4.5, 4 + 1.8 * payoff, "c0" if payoff else "peer")
    return d


def saxpy() -> Drawing:
    """Two arrays, of which each rank adds its rows."""
    d = _tile("a·x + y, element by element")
    for row in range(8):
        for x, symbol in ((20, "x"), (100, "y"), (180, "")):
            d.box(x, 24 + 25 * row, 40, 21, f"c{row // 2}", symbol)
    d.text(80, 125, "+")
    d.text(160, 125, "=")
    return d


def intro() -> Drawing:
    """Rows of a matrix on two ranks."""
    d = _tile("Rows of a matrix on two ranks")
    for row in range(6):
        for column in range(5):
            d.box(20 + 27 * column, 30 + 31 * row, 23, 27, f"c{row // 3}")
    for r in range(2):
        d.arrow(160, 74 + 93 * r, 186, 74 + 93 * r)
        d.text(208, 79 + 93 * r, f"f(x{'₀₁'[r]})", "code")
    return d


def _ranks(d: Drawing, text: str) -> None:
    for r in range(COLOURS):
        d.box(20 + 104 * (r % 2), 20 + 104 * (r // 2), 96, 96)
        d.text(30 + 104 * (r % 2), 40 + 104 * (r // 2), f"rank {r}", "soft", "start")
        d.box(40 + 104 * (r % 2), 54 + 104 * (r // 2), 56, 44, f"c{r}", text)


def variables() -> Drawing:
    """An array of its own on each rank."""
    d = _tile("An array on each rank")
    _ranks(d, "w")
    return d


def shared_variables() -> Drawing:
    """The same array on each rank."""
    d = _tile("Replicas of a variable")
    _ranks(d, "w = w")
    return d


def resnet() -> Drawing:
    """Layers with a shortcut."""
    d = _tile("Layers, and a way around them")
    for k, y in enumerate((24, 84, 144)):
        d.box(50, y, 110, 36, f"c{k}", ("conv", "conv", "add")[k])
        d.arrow(105, y + 38, 105, y + 58)
    d.shapes.append('<path d="M 160 42 C 225 42 225 162 164 162" class="arrow"/>')
    d.text(105, 222, "gradients: all_reduce", "soft")
    return d


def reductions() -> Drawing:
    """Numbers of four ranks become one."""
    d = _tile("A sum over the ranks")
    for r in range(COLOURS):
        d.box(20 + 52 * r, 30, 44, 36, f"c{r}", str(r))
        d.arrow(42 + 52 * r, 68, 120 + 12 * (r - 1.5), 140)
    d.shapes.append('<circle cx="120" cy="170" r="28" class="box"/>')
    d.text(120, 176, "Σ")
    return d


def data() -> Drawing:
    """Rows in shared memory, which all ranks see."""
    d = _tile("Rows in shared memory")
    for r in range(COLOURS):
        d.box(20, 24 + 50 * r, 90, 46, f"c{r}", "rows")
        d.arrow(114, 47 + 50 * r, 146, 47 + 50 * r)
        d.box(150, 28 + 50 * r, 70, 38)
        d.text(185, 52 + 50 * r, f"rank {r}", "soft")
    return d


def batches() -> Drawing:
    """Rows that are chosen of the whole."""
    d = _tile("A batch of all rows")
    chosen = {1, 4, 5, 9, 12, 14, 18, 23}
    for k in range(25):
        kind = "c0" if k in chosen else "peer halo"
        d.box(20 + 41 * (k % 5), 20 + 41 * (k // 5), 36, 36, kind)
    return d


def local_batches() -> Drawing:
    """Rows that each rank chooses of its own."""
    d = _tile("A batch of each rank's own rows")
    for r in range(COLOURS):
        for k in range(6):
            kind = f"c{r}" if (k + r) % 3 == 0 else "peer halo"
            d.box(20 + 34 * k, 28 + 50 * r, 29, 36, kind)
    return d


TILES: dict[str, Callable[[], Drawing]] = {
    tile.__name__: tile
    for tile in (
        *(energy, pi, greeks, saxpy, intro, variables, resnet),
        *(reductions, data, shared_variables, batches, local_batches),
    )
}
