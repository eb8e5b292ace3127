"""The picture of how errors fall with the number of points, drawn from `benchmarks/results`."""

import math
from itertools import pairwise
from typing import NamedTuple

from docs._site.drawing import Drawing
from docs._site.figures import report_of

FILE = "cpu-2core-convergence"
LEFT, RIGHT, TOP, BOTTOM = 60, 220, 40, 50  # margins
WIDTH, HEIGHT = 480, 390  # of the axes
DIGITS = 1, 7  # of the vertical axis: relative errors of 10^-1 to 10^-7


class Curve(NamedTuple):
    """A method of the file, what the picture calls it, and the class of its line and dots."""

    method: str
    label: str
    kind: str


CURVES = (
    Curve("pseudo-random", "price, pseudo-random", "peer"),
    Curve("antithetic", "price, antithetic", "c3"),
    Curve("control variate", "price, control variate", "c2"),
    Curve("Sobol", "price, Sobol", "c0"),
    Curve("delta by paths", "delta, pseudo-random", "peer dashed"),
    Curve("delta by Sobol paths", "delta, Sobol", "c0 dashed"),
    Curve("average", "average, pseudo-random", "c1 dashed"),
    Curve("average by Sobol points", "average, Sobol", "c1"),
)


def place_of(points: int, error: float, powers: tuple[int, int]) -> tuple[float, float]:
    """Returns where a number of points and a relative error are in the picture.

    >>> place_of(2**8, 0.1, (8, 20)), place_of(2**20, 1e-7, (8, 20))
    ((60.0, 40.0), (540.0, 430.0))
    """
    least, most = powers
    digits = -math.log10(error)
    x = LEFT + WIDTH * (math.log2(points) - least) / (most - least)
    y = TOP + HEIGHT * (digits - DIGITS[0]) / (DIGITS[1] - DIGITS[0])
    return round(x, 1), round(y, 1)


def draw_axes(d: Drawing, powers: tuple[int, int]) -> None:
    """Draws powers of two of points, and of ten of errors, with their lines."""
    for digits in range(DIGITS[0], DIGITS[1] + 1):
        _, y = place_of(1, 10.0**-digits, powers)
        d.line([(LEFT, y), (LEFT + WIDTH, y)], "grid")
        d.text(LEFT - 10, y + 4, f"{digits}", "soft", "end")
    for power in range(powers[0], powers[1] + 1, 2):
        x, _ = place_of(1 << power, 0.1, powers)
        d.text(x, TOP + HEIGHT + 20, f"2{exponent_of(power)}", "soft")
    d.text(10, 20, "correct digits: −log₁₀ of the relative error", "soft", "start")
    d.text(LEFT + WIDTH / 2, TOP + HEIGHT + 42, "points", "soft")


def exponent_of(power: int) -> str:
    """Returns a number in superscript digits.

    >>> exponent_of(20)
    '²⁰'
    """
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def label_places(ends: list[float], distance: float = 18.0) -> list[float]:
    """Returns heights of labels beside the ends of lines, at least a distance apart.

    >>> label_places([10.0, 12.0, 60.0])
    [10.0, 28.0, 60.0]
    """
    places = list(ends)
    order = sorted(range(len(ends)), key=ends.__getitem__)
    for above, below in pairwise(order):
        places[below] = max(places[below], places[above] + distance)
    return places


def convergence() -> Drawing:
    """Measured errors as dots, and error bars as lines."""
    d = Drawing(
        LEFT + WIDTH + RIGHT,
        TOP + HEIGHT + BOTTOM,
        "Correct digits against points, on cores: dots are measured, lines are error bars",
    )
    results = report_of(FILE)["results"]
    counts = sorted({result["points"] for result in results})
    powers = counts[0].bit_length() - 1, counts[-1].bit_length() - 1
    draw_axes(d, powers)
    ends = []
    for curve in CURVES:
        points = [result for result in results if result["what"] == curve.method]
        line = [place_of(one["points"], one["stderr"], powers) for one in points]
        d.line(line, curve.kind)
        for one in points:
            d.dot(*place_of(one["points"], one["error"], powers), curve.kind)
        ends.append(line[-1][1])
    for curve, y in zip(CURVES, label_places(ends), strict=True):
        d.line([(LEFT + WIDTH + 14, y), (LEFT + WIDTH + 40, y)], curve.kind)
        d.text(LEFT + WIDTH + 48, y + 5, curve.label, "", "start")
    return d
