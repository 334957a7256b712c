"""An ARC grid: on its canvas as tokens, as text or JSON, and as a picture."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.style import Style
from rich.text import Text

from ponder.base.errors import UserError
from ponder.domains.contract import PAD, Bools, Ints, Json, Tokens
from ponder.domains.drawing import INK, MUTED, PAPER, svg_grid
from ponder.domains.grid import check_cells, json_rows

END = 1
"""The token of the row below and the column beside a grid."""
FIRST = 2
"""The token of colour 0; colour c is FIRST + c."""
COLOURS = 10
VOCAB = (" ", "|", *"0123456789")
PALETTE = (
    *("#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00"),
    *("#aaaaaa", "#f012be", "#ff851b", "#7fdbff", "#870c25"),
)

Grid = npt.NDArray[np.uint8]
"""[height, width] of colours 0..9."""


def place(canvas: Tokens, tokens: Tokens, top: int, left: int) -> None:
    """Write a grid of colour tokens and its end markers into an empty canvas [side, side]; markers that do not fit are
    left out."""
    side = len(canvas)
    bottom, right = top + tokens.shape[0], left + tokens.shape[1]
    canvas[top:bottom, left:right] = tokens
    if bottom < side:
        canvas[bottom, left:right] = END
    if right < side:
        canvas[top:bottom, right] = END


def encode(grid: Grid, side: int, top: int = 0, left: int = 0) -> Tokens:
    """A grid as side * side tokens."""
    canvas = np.full((side, side), PAD, dtype=np.uint8)
    place(canvas, grid + np.uint8(FIRST), top, left)
    return canvas.reshape(-1)


def crop_sizes(canvases: Tokens) -> Ints:
    """[n, height, width] tokens -> [n, 2]: rows and columns of the largest rectangle of colours at the top left; of
    several, the one with the fewest rows."""
    coloured = (canvases >= FIRST) & (canvases < FIRST + COLOURS)
    runs = np.where(coloured.all(axis=2), canvases.shape[2], coloured.argmin(axis=2))
    widths = np.minimum.accumulate(runs, axis=1)
    areas = widths * np.arange(1, canvases.shape[1] + 1)
    rows = areas.argmax(axis=1)
    width = np.take_along_axis(widths, rows[:, None], axis=1)[:, 0]
    return np.stack([np.where(width > 0, rows + 1, 0), width], axis=1).astype(np.int64)


def side_of(length: int) -> int:
    side = int(np.sqrt(length) + 0.5)
    if side * side != length:
        raise UserError(f"an ARC canvas is square, got {length} tokens; a {side}x{side} canvas has {side * side}")
    return side


def crop(tokens: Tokens, corner: tuple[int, int] = (0, 0)) -> Grid:
    """The grid a model has written, read from `corner` on; 0x0 where there is none."""
    side = side_of(tokens.shape[-1])
    canvas = tokens.reshape(side, side)[corner[0] :, corner[1] :]
    height, width = crop_sizes(canvas[None])[0]
    return canvas[:height, :width] - np.uint8(FIRST)


def corner_of(inputs: Tokens) -> tuple[int, int]:
    """Where the grid of a puzzle starts; its answer starts there too."""
    side = side_of(inputs.shape[-1])
    coloured = inputs.reshape(side, side) >= FIRST
    return int(coloured.any(axis=1).argmax()), int(coloured.any(axis=0).argmax())


def _check_size(size: tuple[int, int], room: tuple[int, int], what: str) -> None:
    if size[0] > room[0] or size[1] > room[1]:
        raise UserError(
            f"{what} is {size[0]}x{size[1]}; at most {room[0]}x{room[1]} (rows x columns) fits on the canvas"
        )


def grid_from_text(text: str, room: tuple[int, int], what: str) -> Grid:
    """Rows of digits, separated by `/`, spaces or line ends; at most `room` rows and columns."""
    rows = text.replace("/", " ").split()
    if not rows:
        raise UserError(f"{what} is empty; write rows of digits separated by '/', as in 012/340/555")
    check_cells(rows, what, lambda char: char in "0123456789", "the digits 0 to 9")
    for r, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{what} has {len(row)} cells in row {r + 1} and {len(rows[0])} in row 1; all rows must be equally long"
            )
    _check_size((len(rows), len(rows[0])), room, what)
    return np.array([[int(char) for char in row] for row in rows], dtype=np.uint8)


def grid_to_text(grid: Grid) -> str:
    return "/".join("".join(str(cell) for cell in row) for row in grid.tolist())


def grid_from_json(value: Json, room: tuple[int, int], what: str) -> Grid:
    rows = json_rows(value, what)
    check_cells(rows, what, lambda cell: type(cell) is int and 0 <= cell < COLOURS, "whole numbers 0 to 9")
    _check_size((len(rows), len(rows[0])), room, what)
    return np.array(rows, dtype=np.uint8)


def paint(panels: Sequence[Tokens]) -> Text:
    """Grids of tokens side by side in the terminal, two columns a cell."""
    text = Text()
    for r in range(max(len(panel) for panel in panels)):
        for number, panel in enumerate(panels):
            if number:
                text.append("  →  " if r == 0 else "     ")
            for token in panel[r] if r < len(panel) else np.zeros(panel.shape[1], dtype=np.uint8):
                if token >= FIRST:
                    text.append("  ", Style(bgcolor=PALETTE[token - FIRST]))
                else:
                    text.append("··" if token == END else "  ", Style(color=MUTED))
        text.append("\n")
    return text


def draw_svg(panels: Sequence[Tokens], marked: Bools | None, label: str) -> str:
    """The same as SVG; `marked` cells of the last panel carry a dot."""
    size = 20
    drawings, x, height = [], 0, 0
    for number, panel in enumerate(panels):
        marks = marked if number == len(panels) - 1 else None

        def cell(r: int, c: int, panel: Tokens = panel, marks: Bools | None = marks) -> tuple[str, str, str]:
            token = int(panel[r, c])
            dot = "•" if marks is not None and marks[r, c] else ""
            if token < FIRST:
                return PAPER, dot or ("·" if token == END else ""), MUTED
            return PALETTE[token - FIRST], dot, PAPER if token - FIRST in (0, 1, 2, 6, 9) else INK

        if number:
            drawings.append(f'<text x="{x}" y="{size * 1.2}" font-size="{size}" fill="{INK}">→</text>')
            x += size + size // 2
        inner = svg_grid(panel.shape[0], panel.shape[1], cell, size=size, label=label)
        drawings.append(f'<g transform="translate({x} 0)">{inner}</g>')
        x += panel.shape[1] * size + 4 + size // 2
        height = max(height, panel.shape[0] * size + 4)
    width = x - size // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"{''.join(drawings)}</svg>"
    )
