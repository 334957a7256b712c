"""Drawing cells: the colours of all pictures, and a grid as SVG."""

from collections.abc import Callable
from html import escape

INK = "#1f2430"
PAPER = "#ffffff"
LINE = "#c8ccd4"
ACCENT = "#2f6fde"
HIGHLIGHT = "#ffe08a"
MUTED = "#8a90a0"
WRONG = "#c0362c"


def svg_grid(
    height: int,
    width: int,
    cell: Callable[[int, int], tuple[str, str, str]],
    *,
    size: int = 32,
    thick: tuple[int, int] | None = None,
    label: str = "",
) -> str:
    """Draw a grid. `cell(row, column)` gives (fill, text, text colour); `thick` is the box shape of bold lines."""
    w, h = width * size, height * size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {w + 4} {h + 4}" width="{w + 4}" height="{h + 4}" '
        f'role="img" aria-label="{escape(label)}">',
        f'<rect width="{w}" height="{h}" fill="{PAPER}"/>',
    ]
    for r in range(height):
        for c in range(width):
            fill, text, ink = cell(r, c)
            parts.append(f'<rect x="{c * size}" y="{r * size}" width="{size}" height="{size}" fill="{fill}"/>')
            if text:
                parts.append(
                    f'<text x="{c * size + size / 2}" y="{r * size + size * 0.7}" text-anchor="middle" '
                    f'font-family="ui-monospace, monospace" font-size="{size * 0.55:.0f}" fill="{ink}">'
                    f"{escape(text)}</text>"
                )
    for r in range(height + 1):
        parts.append(_line(0, r * size, w, r * size, thick is not None and r % thick[0] == 0))
    for c in range(width + 1):
        parts.append(_line(c * size, 0, c * size, h, thick is not None and c % thick[1] == 0))
    return "".join([*parts, "</svg>"])


def _line(x1: int, y1: int, x2: int, y2: int, bold: bool) -> str:
    colour, stroke = (INK, 2) if bold else (LINE, 1)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{stroke}"/>'
