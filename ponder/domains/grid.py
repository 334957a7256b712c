"""What grid puzzles share: reading and writing rows, and drawing cells."""

from collections.abc import Callable, Sequence
from html import escape

from ponder.base.errors import UserError
from ponder.domains.contract import Json

INK = "#1f2430"
PAPER = "#ffffff"
LINE = "#c8ccd4"
ACCENT = "#2f6fde"
HIGHLIGHT = "#ffe08a"
MUTED = "#8a90a0"
WRONG = "#c0362c"


def rows_of(text: str, height: int, width: int, allowed: str, what: str) -> list[str]:
    """Cut text into rows: either lines / space- or slash-separated groups of `width`, or one run of height*width."""
    groups = [g for g in text.replace("/", " ").split() if g]
    if len(groups) == height and all(len(g) == width for g in groups):
        rows = groups
    else:
        flat = "".join(groups)
        if len(flat) != height * width:
            raise UserError(
                f"{what} has {len(flat)} cells, expected {height * width} "
                f"({height} rows of {width}); write them as one line or as {height} rows"
            )
        rows = [flat[r * width : (r + 1) * width] for r in range(height)]
    for r, row in enumerate(rows):
        for c, char in enumerate(row):
            if char not in allowed:
                raise UserError(f"{what} has {char!r} in row {r + 1}, column {c + 1}; allowed: {' '.join(allowed)}")
    return rows


def json_rows(value: Json, what: str) -> list[list[Json]]:
    """A JSON value that should be a rectangular list of lists."""
    if not isinstance(value, list) or not value or not all(isinstance(r, list) and r for r in value):
        raise UserError(f"{what} should be a list of rows, each a list of cells; got {str(value)[:60]!r}")
    widths = {len(r) for r in value}
    if len(widths) > 1:
        raise UserError(f"{what} has rows of different lengths {sorted(widths)}; all rows must be equally long")
    return value


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
    parts += _lines(height, width, size, thick)
    parts.append("</svg>")
    return "".join(parts)


def _lines(height: int, width: int, size: int, thick: tuple[int, int] | None) -> Sequence[str]:
    lines = []
    for r in range(height + 1):
        bold = thick is not None and r % thick[0] == 0
        lines.append(_line(0, r * size, width * size, r * size, bold))
    for c in range(width + 1):
        bold = thick is not None and c % thick[1] == 0
        lines.append(_line(c * size, 0, c * size, height * size, bold))
    return lines


def _line(x1: int, y1: int, x2: int, y2: int, bold: bool) -> str:
    colour, stroke = (INK, 2) if bold else (LINE, 1)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{stroke}"/>'
