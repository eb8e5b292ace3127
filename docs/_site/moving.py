"""Draws the moving picture of the README, the wake of a sphere in a flow whose planes two ranks
have, into `docs/pictures/lattice_boltzmann.webp`.

    python -m docs._site.moving

Needs matplotlib and Pillow, of the extra `docs`; it takes seconds on two GPUs, and more than an
hour on two cores. The time steps are those of `examples/lattice_boltzmann.py`.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import synknumba as synk
from docs._site.drawing import RANK_COLOURS
from examples.lattice_boltzmann import place, step, velocity

FILE = Path(__file__).resolve().parents[1] / "pictures" / "lattice_boltzmann.webp"
SIZE = 128  # cells along y and z; three times as many along x
FLOW = 0.004, SIZE / 10, 0.1  # viscosity, radius, speed
BEFORE, BETWEEN = 16_000, 80  # steps before the first frame, and from one to the next
FRAMES = 90
MILLISECONDS = 60  # that a frame is shown
SCALE, HEADER = 2, 22  # pixels a cell along x and y, and above, for the names of the ranks


def frames() -> list[np.ndarray]:
    """Returns the vorticity in the middle after equal times, each float32, shape (n, 3 n)."""
    shown = []
    with synk.fork(2):
        fields = place(np.full((3 * SIZE, SIZE, 2), (0.1, 0.01)))
        step(*fields, *FLOW, times=BEFORE)
        for _ in range(FRAMES):
            ux, uy = velocity(*fields[:2]).T
            shown.append(np.gradient(uy, axis=1) - np.gradient(ux, axis=0))
            step(*fields, *FLOW, times=BETWEEN)
    return shown


def picture(vorticity: np.ndarray) -> Image.Image:
    """Returns a frame, with the ranks' names and the line between their planes."""
    colours = mpl.colormaps["RdBu_r"](0.5 + 14 * vorticity, bytes=True)[..., :3]
    height, width = SCALE * SIZE, SCALE * 3 * SIZE
    image = Image.new("RGB", (width, HEADER + height), "white")
    image.paste(
        Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC), (0, HEADER)
    )
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    x, y, radius = SCALE * SIZE, HEADER + height // 2, SCALE * FLOW[1]
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), "#59636e")
    half = width // 2
    for top in range(HEADER, HEADER + height, 12):
        draw.line((half, top, half, top + 5), "#59636e")
    for rank, colour in enumerate(RANK_COLOURS[:2]):
        left = rank * half
        draw.rectangle((left, 0, left + half, 4), colour)
        draw.text((left + half // 2 - 20, 5), f"rank {rank}", "#1f2328", font)
    return image


def save(shown: list[np.ndarray]) -> None:
    """Writes the picture of these frames."""
    first, *others = map(picture, shown)
    options = {"duration": MILLISECONDS, "loop": 0, "quality": 70, "method": 6}
    first.save(FILE, save_all=True, append_images=others, **options)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    save(frames())
