"""Draws the pictures of the pages as SVG, into `docs/pictures/`.

    python -m docs._site.drawings

The site puts them into its pages, where their colours are those of the page, light or dark. Shown
alone, as in the repository, they follow the reader's system.
"""

from collections.abc import Callable
from pathlib import Path

from docs._site.convergence import convergence
from docs._site.drawing import COLOURS, Drawing
from docs._site.speed import speed

PICTURES = Path(__file__).resolve().parents[1] / "pictures"


def call() -> Drawing:
    """One call: rows in shared memory, a rank for each GPU or core, and the sum."""
    d = Drawing(
        760, 300, "A call: each rank launches the kernel on its rows, and the results are added"
    )
    d.text(80, 24, "your script")
    d.box(10, 36, 140, 228)
    for k, line in enumerate(("energy(", "\u00a0 x,", "\u00a0 0.5,", ")")):
        d.text(28, 70 + 22 * k, line, "code", "start")
    d.text(80, 190, "serial Python", "soft")
    d.text(80, 206, "launches,", "soft")
    d.text(80, 222, "waits once", "soft")
    d.text(228, 24, "x, in shared memory")
    for r in range(COLOURS):
        y = 36 + 58 * r
        d.box(188, y, 80, 54, f"c{r}", ("0 … n/4", "… n/2", "… 3n/4", "… n")[r])
        d.box(358, y + 4, 190, 46)
        d.text(370, y + 24, f"rank {r}", "", "start")
        d.text(370, y + 41, "kernel on its rows", "soft", "start")
        d.text(536, y + 32, f"GPU {r}", "", "end")
        d.arrow(270, y + 27, 356, y + 27)
        d.arrow(550, y + 27, 622, 150, curved=True)
    d.text(
        453,
        290,
        "or a core each, where there is no GPU: the same kernel, compiled for cores",
        "soft",
    )
    d.arrow(152, 150, 186, 150)
    d.shapes.append('<circle cx="646" cy="150" r="24" class="box"/>')
    d.text(646, 156, "Σ")
    d.arrow(672, 150, 696, 150)
    d.text(728, 155, "0.8557", "code")
    return d


def rows() -> Drawing:
    """Who gets which rows: sharded, broadcast, in slices."""
    d = Drawing(720, 300, "Ten rows on three ranks, in two slices; y goes to every rank whole")
    edges = [0, 3, 6, 10]
    d.text(90, 24, "x, 10 rows")
    for i in range(10):
        r = next(r for r in range(3) if i < edges[r + 1])
        d.box(50, 36 + 24 * i, 80, 22, f"c{r}", str(i))
    d.text(300, 24, "ranks: r·n // W … (r+1)·n // W")
    for r in range(3):
        n, top = edges[r + 1] - edges[r], 36 + 24 * edges[r] + (0, 0, 0)[r]
        middle = top + 12 * n
        d.arrow(134, middle, 206, middle)
        d.text(222, middle + 5, f"rank {r}", "", "start")
        half = n // 2
        for k in range(n):
            second = k >= half
            d.box(
                290 + 46 * (k if not second else k + 0.35),
                middle - 12,
                42,
                24,
                f"c{r}",
                str(edges[r] + k),
            )
        d.text(500, middle + 5, f"{half} + {n - half} rows in num_slices=2", "soft", "start")
    d.text(90, 292, 'broadcast=("y",): every rank gets y whole', "soft", "start")
    return d


def memory() -> Drawing:
    """What is copied when, on cores and on GPUs."""
    d = Drawing(760, 290, "What is copied when: NumPy arrays, Data, frozen Data and variables")
    d.text(90, 22, "the script's memory", "soft")
    d.text(330, 22, "shared memory, page-locked on GPUs", "soft")
    d.text(640, 22, "memory of a GPU", "soft")
    lines = [
        (
            "NumPy array",
            "kept for the next call",
            "rows of a rank",
            "copied",
            "copied at each call",
        ),
        ("", "synk.data(…)", "rows of a rank", "", "copied at each call"),
        ("", "x.freeze()", "rows of a rank", "", "copied once, kept"),
        ("", "", "synk.variable(…)", "", "lives there"),
    ]
    for k, (own, shared, gpu, first, second) in enumerate(lines):
        y = 36 + 58 * k
        if own:
            d.box(20, y, 140, 40, "c0", own)
            d.arrow(162, y + 20, 236, y + 20)
            d.text(199, y + 12, first, "soft")
        if shared:
            d.box(240, y, 180, 40, "c1", shared)
            d.arrow(422, y + 20, 556, y + 20)
            d.text(489, y + 12, second, "soft")
        else:
            d.text(489, y + 25, second, "soft")
        d.box(560, y, 160, 40, f"c{3 if k == 3 else 2}", gpu)
    d.text(
        20,
        280,
        "Ranks on cores work on shared memory in place: nothing on the right is copied.",
        "soft",
        "start",
    )
    return d


def variables() -> Drawing:
    """A replica and a divided variable with halos."""
    d = Drawing(720, 290, "A replica on each rank, and rows divided with a halo")
    d.text(
        20,
        24,
        "w = synk.variable(…): each rank has its own array; collectives make replicas equal",
        "",
        "start",
    )
    for r in range(3):
        x = 20 + 240 * r
        d.box(x, 36, 200, 64)
        d.text(x + 12, 58, f"rank {r}", "soft", "start")
        d.box(x + 70, 48, 116, 40, f"c{r}", "w")
    for r in range(2):
        d.arrow(222 + 240 * r, 62, 256 + 240 * r, 62)
        d.arrow(258 + 240 * r, 76, 224 + 240 * r, 76)
    d.text(360, 118, 'synk.all_reduce(w, "sum")', "code")
    d.text(
        20,
        160,
        "u = synk.scatter(synk.variable(…), halo=1): own rows between "
        "copies of the neighbours' rows",
        "",
        "start",
    )
    for r in range(3):
        x = 20 + 240 * r
        d.box(x, 172, 200, 64)
        own = [3 * r, 3 * r + 1, 3 * r + 2]
        shown = ([own[0] - 1] if r else []) + own + ([own[-1] + 1] if r < 2 else [])
        left = x + 100 - 18 * len(shown)
        for k, i in enumerate(shown):
            d.box(left + 36 * k, 186, 32, 36, f"c{i // 3}" + ("" if i in own else " halo"), str(i))
    for r in range(2):
        d.arrow(222 + 240 * r, 198, 256 + 240 * r, 198)
        d.arrow(258 + 240 * r, 212, 224 + 240 * r, 212)
    d.text(360, 256, "synk.exchange(u)", "code")
    d.text(360, 280, "pale: halos, copies as of the last exchange", "soft")
    return d


def sequence() -> Drawing:
    """Single calls, and the same as a sequence."""
    d = Drawing(
        760, 250, "Single calls come back to the script each time; a sequence comes back once"
    )
    d.text(20, 22, "four single calls: the script rings, and waits, for each", "", "start")
    d.text(20, 58, "script", "soft", "start")
    d.text(20, 98, "ranks", "soft", "start")
    for k in range(4):
        x = 80 + 165 * k
        d.box(x, 42, 30, 24, "c0")
        d.arrow(x + 30, 60, x + 52, 82)
        d.box(x + 52, 82, 62, 24, f"c{1 + k % 2}", ("flow", "swap")[k % 2])
        d.arrow(x + 116, 84, x + 160, 60)
    d.box(740, 42, 16, 24, "c0")
    d.text(20, 148, "a sequence, times=2: the ranks repeat the calls by themselves", "", "start")
    d.text(20, 184, "script", "soft", "start")
    d.text(20, 224, "ranks", "soft", "start")
    d.box(80, 168, 30, 24, "c0")
    d.arrow(110, 186, 130, 208)
    for k in range(4):
        d.box(132 + 66 * k, 208, 62, 24, f"c{1 + k % 2}", ("flow", "swap")[k % 2])
    d.arrow(396, 210, 430, 186)
    d.box(432, 168, 30, 24, "c0")
    d.text(480, 186, "the script has waited once", "soft", "start")
    return d


def logo() -> Drawing:
    """Rows of four ranks, and their sum; the site's icon, too."""
    d = Drawing(64, 64, "synknumba")
    for r in range(COLOURS):
        d.box(4, 4 + 14.5 * r, 34, 12.5, f"c{r}")
    d.shapes.append('<circle cx="51" cy="32" r="9" class="c0"/>')
    return d


DRAWINGS: tuple[Callable[[], Drawing], ...] = (
    call,
    rows,
    memory,
    variables,
    sequence,
    speed,
    convergence,
    logo,
)


def main() -> None:
    """Writes all drawings."""
    PICTURES.mkdir(exist_ok=True)
    for draw in DRAWINGS:
        (PICTURES / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
