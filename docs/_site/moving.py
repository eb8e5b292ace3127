"""Draws the moving picture of the README, a wave on a membrane whose rows two ranks have, into
`docs/pictures/wave.webp`.

    python -m docs._site.moving

Needs matplotlib and Pillow, of the extra `docs`. The time steps are those of `examples/wave.py`; a
drop falls on the still membrane.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import synknumba as synk
from docs._site.drawing import RANK_COLOURS
from examples.wave import COURANT, two_steps

FILE = Path(__file__).resolve().parents[1] / "pictures" / "wave.webp"
ROWS, COLUMNS = 257, 513
CENTRE, WIDTH = (84, 150), 9.0  # of the drop, in cells
PAIRS = 4  # of time steps, before each frame
FRAMES = 100
MILLISECONDS = 60  # that a frame is shown
MARGIN = 40  # pixels on the left, for the names of the ranks


def frames() -> list[np.ndarray]:
    """Returns the displacement after equal times, each float64, shape (ROWS, COLUMNS)."""
    i, j = np.mgrid[:ROWS, :COLUMNS]
    square = (i - CENTRE[0]) ** 2 + (j - CENTRE[1]) ** 2
    drop = np.exp(-square / (2 * WIDTH**2))
    drop[[0, -1]] = drop[:, [0, -1]] = 0
    shown = []
    with synk.fork(2, device="cpu"):
        u, w = (synk.scatter(synk.variable(drop), halo=1) for _ in range(2))
        for _ in range(FRAMES):
            shown.append(synk.gather(u))
            two_steps(u, w, COURANT**2, times=PAIRS)
    return shown


def picture(displacement: np.ndarray) -> Image.Image:
    """Returns a frame, with the ranks' names and the line between their rows."""
    colours = mpl.colormaps["RdBu_r"](0.5 + 1.6 * displacement, bytes=True)[..., :3]
    image = Image.new("RGB", (MARGIN + COLUMNS, ROWS), "white")
    image.paste(Image.fromarray(colours), (MARGIN, 0))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    half = ROWS // 2
    for left in range(MARGIN, MARGIN + COLUMNS, 12):
        draw.line((left, half, left + 5, half), "#59636e")
    for rank, colour in enumerate(RANK_COLOURS[:2]):
        top = rank * half
        draw.rectangle((0, top, 4, top + half), colour)
        draw.text((8, top + half // 2), "rank", "#1f2328", font)
        draw.text((8, top + half // 2 + 15), str(rank), "#1f2328", font)
    return image


def main() -> None:
    first, *others = map(picture, frames())
    options = {"duration": MILLISECONDS, "loop": 0, "quality": 85, "method": 6}
    first.save(FILE, save_all=True, append_images=others, **options)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
