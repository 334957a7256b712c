"""The Game of Life: a board and a number of steps in, the board after exactly that many steps out."""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

import numpy as np
from rich.text import Text

from ponder.base.console import counted
from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry, Relation
from ponder.domains import contract as base
from ponder.domains.contract import (
    Arrays,
    Bools,
    Domain,
    Json,
    Misfit,
    Progress,
    Split,
    Symmetry,
    Tokens,
    Tool,
    Wording,
    silent,
)
from ponder.domains.drawing import HIGHLIGHT, INK, MUTED, PAPER, svg_grid
from ponder.domains.grid import check_cells, json_rows, row_wording, rows_schema, short, size_of, turned
from ponder.domains.life import boards as life_boards
from ponder.domains.life import generate as life_generate
from ponder.domains.life.boards import ALIVE, DEAD, MAX_SIDE, MAX_STEPS, ZERO, Boards, Examples
from ponder.domains.life.generate import LifeParams
from ponder.domains.spelling import cells_of

CELLS = {".": False, "0": False, "O": True, "o": True, "1": True}
MENDED = dict.fromkeys((".", "_", "-", " ", "", "·", "□", "False", "false"), "0") | dict.fromkeys(
    ("O", "o", "X", "x", "#", "*", "█", "■", "True", "true"), "1"
)
"""How else language models write a cell."""
SYMBOLS = {DEAD: ".", ALIVE: "O"}
CELL_SIZE = 20
CAPTION = 28


class Life(Domain):
    name: ClassVar[str] = "life"
    title: ClassVar[str] = "Game of Life: the board after k steps"
    rules: ClassVar[str] = (
        "Conway's Game of Life on a small rectangular board. In each step all cells change at once: a dead cell with "
        "exactly three living neighbours, of the eight around it, becomes alive; a living cell with two or three "
        "living neighbours stays alive; every other cell is dead. Cells outside the board are dead (with the option "
        "boundary=torus, opposite edges touch instead). The puzzle is the board, row by row with '/' between rows, "
        "'.' for dead and 'O' for alive, then ':' and the number of steps as two digits. The answer is the board after "
        "exactly that many steps, written in the same way without ':' and number: .../OOO/...:01 has the answer "
        ".O./.O./.O."
    )
    example: ClassVar[str] = "...../..O../..O../..O../.....:03"
    paper_examples = 1_508_237
    smoke: ClassVar[Mapping[str, Any]] = {"configurations": 300, "val": 16, "eval_size": 16}
    checker_solves: ClassVar[str] = "its checker computes the answer, so that an accepted answer is no find"
    Params: ClassVar[type[base.Params]] = LifeParams
    vocab = (" ", ".", "O", "/", ":", *"0123456789")
    splits: Mapping[str, Split] = {
        "train": Split("train", "early steps of known patterns"),
        "val": Split("val", "steps of known patterns below their training horizon, not trained"),
        "in_range": Split("test", "more such steps: known pattern, untrained step below the training horizon"),
        "plus_1": Split("ood", "known pattern, 1 step beyond its training horizon"),
        "plus_2": Split("ood", "known pattern, 2 steps beyond its training horizon"),
        "plus_3": Split("ood", "known pattern, 3 steps beyond its training horizon"),
        "plus_10": Split("ood", "known pattern, 10 steps beyond its training horizon"),
        "unseen": Split("ood", "patterns that no other split has, early steps"),
    }
    params: LifeParams

    def __init__(self, params: LifeParams) -> None:
        super().__init__(params)
        self.seq_len = params.seq_len

    @property
    def geometry(self) -> Geometry:
        side = self.params.max_side
        if self.params.min_side < side:
            return NO_GEOMETRY  # boards of several shapes share the positions
        steps = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right]
        around = Relation.neighbours("around", side, side, steps, gap=1, torus=self.params.boundary == "torus")
        return Geometry((around,), asked=(self.seq_len - 2, self.seq_len - 1), zero=ZERO)

    def symmetry(self, inputs: Tokens, rng: np.random.Generator) -> Symmetry:
        height, width = self._read(inputs)[0].shape
        places = np.arange(height * (width + 1)).reshape(height, width + 1)[:, :width].ravel()
        order = np.arange(self.seq_len)
        order[places] = places[turned(height, width, rng)]
        return Symmetry(order)

    @property
    def sides(self) -> str:
        side = self.params.max_side
        return f"{side}x{side}" if self.params.min_side == side else ""

    def resized(self, puzzle: str | Json) -> "Life | None":
        side, other = size_of(_board_of(puzzle)) or (0, 0)
        if not self.sides or side != other or side == self.params.max_side or not 2 <= side <= MAX_SIDE:
            return None
        changes = {"min_side": side, "max_side": side, "max_chars": side * (side + 1)}
        return Life(self.params.model_copy(update=changes))

    def path(self, inputs: Tokens, steps: int) -> Tokens:
        boards, asked, _ = life_boards.decode(inputs, self.params.max_side)
        many = np.minimum(np.arange(1, steps + 1), asked[:, None])
        last = np.clip(asked, 1, steps)  # after which nothing changes
        before = last.cumsum() - last
        examples = Examples(np.repeat(np.arange(len(inputs)), last), many[np.arange(steps) < last[:, None]])
        after = life_boards.evolve(boards, examples, self.params.boundary == "torus")
        reached = before[:, None] + np.minimum(np.arange(steps), last[:, None] - 1)
        boards_after: Tokens = life_boards.encode_cells(after, self.seq_len)[reached]
        return boards_after

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        return life_generate.build(self.params, seed, workers, progress)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        return life_generate.sample(self.params, seed, count)

    def parse(self, text: str) -> Tokens:
        board, colon, number = text.partition(":")
        if not colon:
            raise UserError(f"life puzzle {short(text)} has no ':'; write the board, ':' and the steps: {self.example}")
        steps = re.fullmatch(r"\s*([0-9]{1,2})\s*", number)
        if steps is None:
            raise UserError(f"life puzzle has {short(number)} after ':'; write the number of steps, 1 to {MAX_STEPS}")
        return self._puzzle(_read_board(board, "life board"), int(steps[1]))

    def format(self, inputs: Tokens) -> str:
        cells, steps = self._read(inputs)
        return f"{_board_text(cells + DEAD)}:{steps:02d}"

    def from_json(self, puzzle: Json) -> Tokens:
        if not isinstance(puzzle, dict) or set(puzzle) != {"board", "steps"}:
            raise UserError(f'life puzzle should be {{"board": [[0, 1, ...], ...], "steps": 4}}; got {short(puzzle)}')
        steps = puzzle["steps"]
        if type(steps) is not int:
            raise UserError(f"life puzzle has steps {short(steps)}; give a whole number from 1 to {MAX_STEPS}")
        rows = json_rows(puzzle["board"], "life board")
        check_cells(rows, "life board", lambda cell: type(cell) is int and cell in (0, 1), "0 (dead), 1 (alive)")
        return self._puzzle(np.array(rows, dtype=np.bool_), steps)

    def to_json(self, inputs: Tokens) -> Json:
        cells, steps = self._read(inputs)
        return {"board": cells.tolist(), "steps": steps}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        cells, _ = self._read(inputs)
        answer = _read_board(text, "life answer")
        if answer.shape != cells.shape:
            given, wanted = (f"{height} rows of {width}" for height, width in (answer.shape, cells.shape))
            raise UserError(f"life answer has {given} cells, the puzzle has {wanted}; write '/' between rows")
        tokens: Tokens = life_boards.encode_cells(_one_board(answer), self.seq_len)[0]
        return tokens

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        return _board_text(self._answer_cells(inputs, answer))

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        """Cells are 0 or 1, and null where the answer has something else."""
        values = {DEAD: 0, ALIVE: 1}
        return {"board": [[values.get(int(token)) for token in row] for row in self._answer_cells(inputs, answer)]}

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        labels, puzzles = self._solve(inputs)
        accepted: Bools = puzzles & ((answers == labels) | (labels == base.PAD)).all(axis=1)
        return accepted

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        labels, puzzles = self._solve(inputs[None])
        if not puzzles[0]:
            return "the puzzle is not a board followed by a number of steps"
        wrong = np.flatnonzero((answer != labels[0]) & (labels[0] != base.PAD))
        if not len(wrong):
            return ""
        cells, steps = self._read(inputs)
        row, column = divmod(int(wrong[0]), cells.shape[1] + 1)
        state = "alive" if labels[0, wrong[0]] == ALIVE else "dead"
        return f"row {row + 1}, column {column + 1} should be {state} after {counted(steps, 'step')}"

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        labels, puzzles = self._solve(inputs[None])
        return [labels[0]][:limit] if puzzles[0] else []

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        cells, steps = self._read(inputs)
        text = Text()
        text.append(f"{counted(steps, 'step')}\n", style="bold")
        for row in range(len(cells)):
            _append_row(text, cells[row] + DEAD, "default" if answer is None else "dim")
            if answer is not None:
                text.append("  →  " if row == len(cells) // 2 else "     ")
                _append_row(text, self._answer_cells(inputs, answer)[row], "bold green")
            text.append("\n" if row < len(cells) - 1 else "")
        return text

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        cells, steps = self._read(inputs)
        height, width = cells.shape
        boards = [cells + DEAD] if answer is None else [cells + DEAD, self._answer_cells(inputs, answer)]
        marked = np.zeros(self.seq_len, dtype=np.bool_) if changed is None else changed

        def drawing(board: Tokens, mark: bool) -> str:
            def cell(row: int, column: int) -> tuple[str, str, str]:
                token = int(board[row, column])
                lit = mark and bool(marked[row * (width + 1) + column])
                if token not in SYMBOLS:
                    return HIGHLIGHT if lit else PAPER, "?", MUTED
                if lit:
                    return HIGHLIGHT, "■" if token == ALIVE else "", INK
                return (INK if token == ALIVE else PAPER), "", INK

            return svg_grid(height, width, cell, size=CELL_SIZE, label="Game of Life board")

        apart = width * CELL_SIZE + 40
        caption = f"{counted(steps, 'step')} to go" if answer is None else f"start → after {counted(steps, 'step')}"
        w, h = max(180, apart * (len(boards) - 1) + width * CELL_SIZE + 4), height * CELL_SIZE + 4 + CAPTION
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f'aria-label="Game of Life, {caption}">',
            f'<text x="2" y="18" font-family="ui-sans-serif, sans-serif" font-size="15" fill="{INK}">{caption}</text>',
        ]
        last = len(boards) - 1
        for number, board in enumerate(boards):
            drawn = drawing(board, number == last)
            parts.append(f'<g transform="translate({number * apart} {CAPTION})">{drawn}</g>')
        return "".join([*parts, "</svg>"])

    def wording(self, inputs: Tokens) -> Wording:
        board, _, steps = self.format(inputs).partition(":")
        rows = board.split("/")
        torus = self.params.boundary == "torus"
        edges = "boundary=torus: opposite edges touch" if torus else "cells outside the board are dead"
        answer = f"the board after step {int(steps)}, {len(rows)} rows of {len(rows[0])} cells with / between the rows"
        return row_wording(f"{board}:{steps} ({edges})", rows, answer)

    @classmethod
    def tool(cls) -> Tool:
        cells = {"type": "array", "items": {"type": ["integer", "null"]}}
        about = "Rows of cells, 1 alive and 0 dead; or rows as strings of O and '.'."
        return Tool(
            "simulate_life",
            "Run Conway's Game of Life (B3/S23) for a number of steps.",
            {
                "board": rows_schema(["integer"], about),
                "steps": {"description": f"How many steps to run, 1 to {MAX_STEPS}.", "type": "integer"},
            },
            {"board": {"type": "array", "items": cells, "description": "The board after the steps: 1 alive, 0 dead."}},
        )

    def takes(self) -> str:
        p = self.params
        side = f"{p.min_side} to {p.max_side}" if p.min_side < p.max_side else str(p.max_side)
        edges = "cells outside are dead" if p.boundary == "dead" else "opposite edges touch"
        trained = ceil(p.max_steps * p.horizon)
        return f"boards of {side} rows and {side} columns ({edges}), trained on up to {trained} steps"

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        rows = cells_of(arguments["board"], "the board", MENDED)
        check_cells(rows, "the board", lambda cell: cell in ("0", "1"), "0 (dead), 1 (alive)")
        least, most = self.params.min_side, self.params.max_side
        if far := sum(max(least - side, side - most, 0) for side in (len(rows), len(rows[0]))):
            raise Misfit(f"{len(rows)}x{len(rows[0])} cells (rows x columns)", far)
        return {"board": [[int(cell) for cell in row] for row in rows], "steps": arguments["steps"]}

    def _puzzle(self, cells: Bools, steps: int) -> Tokens:
        params = self.params
        for side, name in zip(cells.shape, ("height", "width"), strict=True):
            if not params.min_side <= side <= params.max_side:
                raise UserError(
                    f"life board has {name} {side}; allowed: {params.min_side} to {params.max_side}, "
                    f"with '/' or a new line between rows"
                )
        board = _one_board(cells)
        if board.chars()[0] > params.max_chars:
            raise UserError(
                f"life board of {cells.shape[0]} rows and {cells.shape[1]} columns takes {board.chars()[0]} characters "
                f"with the separators between rows; at most {params.max_chars} fit"
            )
        if not 1 <= steps <= MAX_STEPS:
            raise UserError(f"life puzzle asks for {steps} steps; allowed: 1 to {MAX_STEPS}")
        tokens: Tokens = life_boards.encode(board, np.array([steps]), self.seq_len)[0]
        return tokens

    def _read(self, inputs: Tokens) -> tuple[Tokens, int]:
        """The cells (0 or 1) and the number of steps of one puzzle."""
        found = _decoded(inputs.tobytes(), self.params.max_side)
        if found is None:
            shown = "".join(self.vocab[t] if t < len(self.vocab) else "?" for t in inputs)
            raise UserError(f"tokens {short(shown)} are not a life board, ':' and two digits")
        return found

    def _answer_cells(self, inputs: Tokens, answer: Tokens) -> Tokens:
        cells, _ = self._read(inputs)
        height, width = cells.shape
        return answer[: height * (width + 1)].reshape(height, width + 1)[:, :width]

    def _solve(self, inputs: Tokens) -> tuple[Tokens, Bools]:
        boards, steps, puzzles = life_boards.decode(inputs, self.params.max_side)
        end = life_boards.evolve(boards, Examples(np.arange(len(boards)), steps), self.params.boundary == "torus")
        return life_boards.encode_cells(end, inputs.shape[1]), puzzles


@lru_cache(maxsize=1024)
def _decoded(inputs: bytes, max_side: int) -> tuple[Tokens, int] | None:
    """Whoever shows a puzzle or an answer reads it several times."""
    tokens = np.frombuffer(inputs, dtype=np.uint8)
    boards, steps, puzzles = life_boards.decode(tokens[None], max_side)
    if not puzzles[0]:
        return None
    cells = life_boards.unpack(boards.rows[0, : boards.heights[0]], int(boards.widths[0]))
    cells.flags.writeable = False
    return cells, int(steps[0])


def _board_of(puzzle: str | Json) -> str | Json:
    """The board in a puzzle, in rows without spaces."""
    if isinstance(puzzle, str):
        return "/".join(_rows(puzzle.partition(":")[0]))
    return puzzle.get("board") if isinstance(puzzle, dict) else None


def _rows(text: str) -> list[str]:
    text = text.strip()
    parts = re.split(r"\s*/\s*|\n\s*", text) if re.search(r"[/\n]", text) else text.split()
    return ["".join(part.split()) for part in parts]


def _read_board(text: str, what: str) -> Bools:
    """Rows apart by '/' or new lines, with spaces as one likes; or, without those, apart by spaces."""
    rows = _rows(text)
    check_cells(rows, what, lambda char: char in CELLS, ". 0 (dead), O o 1 (alive)")
    for r, row in enumerate(rows, 1):
        if not row or len(row) != len(rows[0]):
            raise UserError(f"{what} has {len(row)} cells in row {r} but {len(rows[0])} in row 1; make all rows equal")
    if not rows:
        raise UserError(f"{what} is empty; write rows of . and O with '/' between them")
    return np.array([[CELLS[char] for char in row] for row in rows], dtype=np.bool_)


def _append_row(text: Text, row: Tokens, living: str) -> None:
    for token in row:
        text.append(*{DEAD: ("· ", "dim"), ALIVE: ("██", living)}.get(int(token), ("??", "bold red")))


def _one_board(cells: Bools) -> Boards:
    height, width = cells.shape
    return Boards(life_boards.pack(cells)[None], np.array([height], np.uint32), np.array([width], np.uint32))


def _board_text(tokens: Tokens) -> str:
    return "/".join("".join(SYMBOLS.get(int(token), "?") for token in row) for row in tokens)
