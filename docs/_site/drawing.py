"""A drawing of the pages: shapes of SVG in the colours of the page."""

RANK_COLOURS = ("#2f6fde", "#15847a", "#b3541e", "#8250df")
COLOURS = len(RANK_COLOURS)

# --color-… are variables of the site's theme; --synk-… stand in for them where a picture is shown
# alone.
STYLE = (
    """
svg.synk { --synk-ink: #1f2328; --synk-soft: #59636e; --synk-face: #f3f4f6; --synk-edge: #8c959f }
svg.synk { font: 14px system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  svg.synk { --synk-ink: #e6edf3; --synk-soft: #9198a1; --synk-face: #1c2128; --synk-edge: #656c76 } }
.synk text { fill: var(--color-foreground-primary, var(--synk-ink)) }
.synk .soft { fill: var(--color-foreground-muted, var(--synk-soft)); font-size: 12px }
.synk .code { font-family: ui-monospace, monospace; font-size: 13px }
.synk .on { fill: #ffffff; font-weight: 600 }
.synk .box { fill: var(--color-background-secondary, var(--synk-face)) }
.synk .box { stroke: var(--color-foreground-border, var(--synk-edge)) }
.synk .arrow { stroke: var(--color-foreground-muted, var(--synk-soft)); stroke-width: 1.5; fill: none }
.synk .head { fill: var(--color-foreground-muted, var(--synk-soft)) }
"""  # noqa: E501
    + " ".join(f".synk .c{r} {{ fill: {colour} }}" for r, colour in enumerate(RANK_COLOURS))
    + "\n"
    + " ".join(
        f".synk polyline.c{r} {{ stroke: {colour} }}" for r, colour in enumerate(RANK_COLOURS)
    )
    + """
.synk .peer { fill: var(--color-foreground-border, var(--synk-edge)) }
.synk .halo { fill-opacity: 0.45 }
.synk polyline[class] { fill: none; stroke-width: 1.5 }
.synk polyline.peer { stroke: var(--color-foreground-border, var(--synk-edge)) }
.synk polyline.grid { stroke: var(--color-background-border, var(--synk-face)); stroke-width: 1 }
.synk polyline.dashed { stroke-dasharray: 5 4 }
.synk circle.dashed { fill-opacity: 0.45 }
"""
)


class Drawing:
    """Shapes, in the order in which they are drawn; lengths in pixels, y downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """Writes a line of text; y is its baseline."""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escaped}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "box",
        text: str = "",
        label: str = "",
    ) -> None:
        """Draws a rectangle, with a text in its middle; `label` is the class of the text."""
        corner = 6 if kind == "box" else 3
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{corner}" class="{kind}"/>'
        )
        if text:
            self.text(
                x + width / 2, y + height / 2 + 5, text, label or ("on" if kind[0] == "c" else "")
            )

    def arrow(self, x: float, y: float, to_x: float, to_y: float, *, curved: bool = False) -> None:
        """Draws an arrow; a curved one leaves and arrives horizontally."""
        middle = (x + to_x) / 2
        way = (
            f"C {middle:g} {y:g} {middle:g} {to_y:g} {to_x - 4:g} {to_y:g}"
            if curved
            else f"L {to_x:g} {to_y:g}"
        )
        self.shapes.append(
            f'<path d="M {x:g} {y:g} {way}" class="arrow" marker-end="url(#synk-head)"/>'
        )

    def line(self, points: list[tuple[float, float]], kind: str) -> None:
        """Draws lines from each point to the next."""
        places = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(f'<polyline points="{places}" class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """Draws a measured value."""
        self.shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" class="{kind}"/>')

    def svg(self) -> str:
        """Returns the file's text."""
        head = (
            '<defs><marker id="synk-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" '
            'class="head"/></marker></defs>'
        )
        size = (
            f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="synk">',
            f"<title>{self.title}</title>",
        ]
        return "\n".join([*lines, f"<style>{STYLE}</style>", head, *self.shapes, "</svg>", ""])
