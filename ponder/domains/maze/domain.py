"""Maze: mark a shortest path from start to goal. Published 30x30 CSVs, or generated mazes of any size."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from rich.text import Text

from ponder.base.errors import UserError
from ponder.domains.contract import (
    Arrays,
    Bools,
    Ints,
    Json,
    Params,
    Progress,
    Split,
    Symmetry,
    Tokens,
    Tool,
    rng_for,
    run_chunks,
    silent,
)
from ponder.domains.drawing import ACCENT, HIGHLIGHT, INK, PAPER, svg_grid
from ponder.domains.grid import GridDomain, fit_size, rows_schema, size_of, turned
from ponder.domains.hub import COLUMNS, first_of_each, puzzle_keys, read_solved, train_and_test
from ponder.domains.maze.generate import generate_chunk
from ponder.domains.maze.paths import (
    Mazes,
    bordered,
    every_shortest_path,
    flood,
    inside,
    lengths,
    marked,
    shortest_paths,
)
from ponder.domains.spelling import cells_of

REPO, REVISION = "sapientinc/maze-30x30-hard-1k", "549754de3d67eebe57b6b22c7d226b9412d55b07"
WALL, FREE, START, GOAL, PATH = range(1, 6)
SPLITS, SAMPLE, CARVE, EASE = range(4)
"""What random numbers are for."""
HOPELESS = 1000, 0.002
"""Give up when, after so many tries, less than this share of the last ones gave a new maze."""

EXAMPLE = """
##....#...#..#..#......###.#.#
...#..#....#...#.#..##.....#..
.##.##..##.#..#....#...#...###
.#.#...###...###.#.#.##..##...
......#..#..#...#..#.#.#.#.#..
..........#..##......#...#.#.#
.......###.#..#..#..#.#.###...
###.......#..#...##..#........
##..#..#......##.#.#..###.##.#
...#.##...#..#####...###.#....
.##..#..#..#.#.....##.##...#.#
..#S...#.#...###.###.....##..#
#.#..#..#....#.#.#.#.###...#..
...#.#....#...#....#...#.....#
..#.#..##.##.#.#.##.#.#..#....
#..##....#..#....#.#...#.....#
##.#.####.##.#.##......#....#.
.#...#....###..###.##.##...#.#
..#.#.#...#.#...#.#..G.#..#.#.
.#....#......##...#.#..###..##
.#.##..#.......##..#..#.#..##.
..####.#..#.#.#.##.#...#..#.##
#..#.....#.#..#.#...##.#.#..##
....##....#...#..#...#.#....#.
#...#..###..##..#..###...#....
.#....##..##...#.#.#####...##.
#....#.....#...#........#...#.
..##.#.#.#.......##..#...##...
..#..#.#..##.#.#.#.##.#..#....
..#....#....###....#.....#.#..
"""


SMALLEST, LARGEST = 3, 100
"""Cells of a side."""


class MazeParams(Params):
    height: int = Field(default=30, ge=SMALLEST, le=LARGEST, description="rows")
    width: int = Field(default=30, ge=SMALLEST, le=LARGEST, description="columns")
    source: Literal["generate", "hub", "csv"] = Field(
        default="hub",
        description=f"generate mazes, read {REPO} from the Hub, or read train.csv and test.csv in a folder",
    )
    folder: str | None = Field(default=None, description=f"folder of train.csv and test.csv ({','.join(COLUMNS)})")
    train: int = Field(default=1_000, ge=1, description="generated training mazes")
    val: int = Field(default=100, ge=1, description="mazes of the val split")
    val_from: Literal["train", "generator"] = Field(
        default="train", description="carve val from train.csv, or generate it, so that all of train.csv is trained on"
    )
    test: int = Field(default=1_000, ge=1, description="generated test mazes")
    subsample: int | None = Field(
        default=None, ge=1, description="use only so many mazes of train.csv, drawn by the seed"
    )
    unique: bool = Field(
        default=True, description="generated mazes have exactly one shortest path; off: one or several"
    )
    eased: float = Field(
        default=0.0, ge=0, le=1, description="share of the generated training mazes that start anywhere on their path"
    )
    min_path: int = Field(default=111, ge=1, description="fewest steps from start to goal in generated mazes")

    @model_validator(mode="after")
    def _possible(self) -> "MazeParams":
        if self.source == "hub" and (self.height, self.width) != (30, 30):
            raise ValueError(
                f"{REPO} has 30x30 mazes only, got {self.height}x{self.width}; set source to generate or csv"
            )
        if self.source == "csv" and self.folder is None:
            raise ValueError("source csv needs folder, where train.csv and test.csv are")
        if self.source == "generate" and self.subsample is not None:
            raise ValueError("subsample is for CSV files; with source generate, set train")
        if self.source == "generate" and self.min_path >= self.height * self.width:
            raise ValueError(
                f"min_path {self.min_path} does not fit into {self.height}x{self.width} cells; set a smaller one"
            )
        return self


class Maze(GridDomain):
    name = "maze"
    title = "Mark a shortest path from start to goal between walls"
    rules = (
        "A maze is a grid of cells: walls (#), free cells (.), one start (S) and one goal (G). A path goes from S to G "
        "through free cells, each step to the cell above, below, left or right. Find a path with the fewest steps and "
        "write the whole grid again, row by row, rows separated by /, with every free cell on the path replaced by o; "
        "S, G, the walls and all other cells stay as they are."
    )
    example = "/".join(EXAMPLE.split())
    paper_examples = 1000
    smoke: ClassVar[Mapping[str, Any]] = {"train": 100, "val": 16, "test": 16}
    Params: ClassVar[type[Params]] = MazeParams
    splits: Mapping[str, Split] = {
        "train": Split("train", "mazes to learn from"),
        "val": Split("val", "mazes that are not trained on, for choosing checkpoints"),
        "test": Split("test", "held-out mazes"),
    }
    marks = "o"
    also: ClassVar[Mapping[str, str]] = {"_": ".", " ": "."}
    legend: ClassVar[Mapping[str, str]] = {"#": "wall", ".": "free", "S": "start", "G": "goal", "o": "path"}
    params: MazeParams

    def __init__(self, params: MazeParams) -> None:
        super().__init__(params, params.height, params.width, "#.SGo")

    def symmetry(self, inputs: Tokens, rng: np.random.Generator) -> Symmetry:
        return Symmetry(turned(self.height, self.width, rng))

    def resized(self, puzzle: str | Json) -> "Maze | None":
        size = size_of(puzzle)
        if size is None or size == (self.height, self.width) or not all(SMALLEST <= side <= LARGEST for side in size):
            return None
        return Maze(self.params.model_copy(update={"height": size[0], "width": size[1], "min_path": 1}))

    # From rules to arrays -------------------------------------------------------------------------------------------

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        if self.params.source == "generate":
            made = self._generate(self.generated, self._tries, seed, SPLITS, workers, progress)
            built = self.shared_out(*made)
            self._ease(built["train"], seed)
            return built
        return self._from_csvs(seed, workers, progress)

    @property
    def _tries(self) -> int:
        """Mazes tried in one piece of work."""
        return min(max(2**19 // self.seq_len, 64), 8192)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        return self._generate(count, min(2 * count + 16, 512), seed, SAMPLE, 1, silent)

    def _generate(
        self, count: int, tries: int, seed: int, tag: int, workers: int, progress: Progress
    ) -> tuple[Tokens, Tokens]:
        """The first `count` different mazes of an endless row of chunks."""
        p = self.params
        found: dict[int, Tokens] = {}
        chunk, share = 0, 0.5
        while len(found) < count:
            before = len(found)
            more = int((count - before) / max(share, 0.05) / tries * 1.05) + 1
            jobs = [(p.height, p.width, p.min_path, p.unique, tries, seed, tag, chunk + i) for i in range(more)]
            for mazes in run_chunks(generate_chunk, jobs, workers, progress, "making mazes"):
                inputs = self._tokens(mazes)
                for key, maze in zip(self._keys(inputs).tolist(), inputs, strict=True):
                    found.setdefault(key, maze)
            chunk += more
            share = (len(found) - before) / (more * tries)
            if len(found) < count and chunk * tries >= HOPELESS[0] and share < HOPELESS[1]:
                raise UserError(
                    f"only {len(found)} different {p.height}x{p.width} mazes with a shortest path of {p.min_path} "
                    f"steps or more came out of {chunk * tries} tries, {count} were asked for; set a smaller min_path, "
                    "a larger maze, or fewer of them (train, val, test)"
                )
        inputs = np.stack(list(islice(found.values(), count)))
        return inputs, self._labels(inputs)

    def _ease(self, train: Arrays, seed: int) -> None:
        """Moves the start of a share of the training mazes along the path, by any number of steps; what is left of a
        shortest path is one. The mazes to be judged on stay as they are."""
        rng = rng_for(seed, EASE)
        chosen = np.flatnonzero(rng.random(len(train["inputs"])) < self.params.eased)
        mazes = self._mazes(train["inputs"][chosen])
        to_goal = flood(mazes, mazes.goal).steps
        paths = shortest_paths(mazes, to_goal)
        moved = rng.integers((paths >= 0).sum(1) - 1)
        start = paths[np.arange(len(paths)), moved]
        train["inputs"][chosen] = self._tokens(Mazes(mazes.free, start, mazes.goal, mazes.stride))
        train["labels"][chosen] = self._labels(train["inputs"][chosen])

    def _from_csvs(self, seed: int, workers: int, progress: Progress) -> dict[str, Arrays]:
        p = self.params
        train_file, test_file = train_and_test(p.source, p.folder, REPO, REVISION)
        test, rest = self._read(test_file, progress), self._read(train_file, progress)
        keys, once = self._keys(rest["inputs"]), first_of_each(puzzle_keys(rest["inputs"]))
        index = rng_for(seed, CARVE).permutation(np.flatnonzero(once & ~np.isin(keys, self._keys(test["inputs"]))))
        carved = p.val if p.val_from == "train" else 0
        val, train = index[:carved], index[carved:]
        # A file may hold a maze turned and mirrored: all its images stay on one side.
        train = train[~np.isin(keys[train], keys[val])]
        if not len(train):
            raise UserError(
                f"{train_file} has {len(index)} different mazes that are not in test.csv, too few to carve "
                f"{carved} for val; set a smaller val"
            )
        if p.subsample is not None and p.subsample > len(train):
            raise UserError(f"subsample {p.subsample} is more than the {len(train)} training mazes there are")
        parts = {"train": np.sort(train[: p.subsample]), "val": np.sort(val)}
        built = {**{split: {k: v[part] for k, v in rest.items()} for split, part in parts.items()}, "test": test}
        if p.val_from == "generator":
            taken = np.concatenate([keys, self._keys(test["inputs"])])
            inputs, labels = self._generate(2 * p.val, self._tries, seed, SPLITS, workers, progress)
            fresh = np.flatnonzero(~np.isin(self._keys(inputs), taken))[: p.val]
            if len(fresh) < p.val:
                raise UserError(f"too few mazes of this size are in neither CSV file to generate {p.val} for val")
            built["val"] = {"inputs": inputs[fresh], "labels": labels[fresh]}
        return built

    def _read(self, path: Path, progress: Progress) -> Arrays:
        read = read_solved(path, self, self.codes, self.codes | self.answer_codes, progress)
        pieces = [(inputs, labels) for _, inputs, labels in read]
        if not pieces:
            raise UserError(f"{path} has no mazes, only a header")
        inputs, labels = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return {"inputs": inputs, "labels": labels}

    def _keys(self, inputs: Tokens) -> npt.NDArray[np.uint64]:
        """Fingerprints that a maze shares with its mirror images and rotations, and with nothing else."""
        grids = inputs.reshape(-1, self.height, self.width)
        views = [grids, grids[:, ::-1], grids[:, :, ::-1], grids[:, ::-1, ::-1]]
        if self.height == self.width:
            views += [view.transpose(0, 2, 1) for view in views]
        keys: npt.NDArray[np.uint64] = np.stack([puzzle_keys(v.reshape(inputs.shape)) for v in views]).min(0)
        return keys

    # Tokens <-> mazes -----------------------------------------------------------------------------------------------

    def _mazes(self, inputs: Tokens) -> Mazes:
        cells = bordered(inputs.reshape(-1, self.height, self.width))
        free = (cells >= FREE) & (cells <= PATH)
        return Mazes(free, (cells == START).argmax(1), (cells == GOAL).argmax(1), self.width + 2)

    def _tokens(self, mazes: Mazes) -> Tokens:
        cells = np.where(mazes.free, np.uint8(FREE), np.uint8(WALL))
        cells[np.arange(len(cells)), mazes.start] = START
        cells[np.arange(len(cells)), mazes.goal] = GOAL
        return inside(cells, mazes.stride).reshape(-1, self.seq_len)

    def _labels(self, inputs: Tokens) -> Tokens:
        """The inputs with the first shortest path, in the order of directions, marked."""
        mazes = self._mazes(inputs)
        return self._mark(inputs, shortest_paths(mazes, flood(mazes, mazes.goal).steps))

    def _mark(self, inputs: Tokens, paths: Ints) -> Tokens:
        path = inside(marked(paths, (self.height + 2) * (self.width + 2)), self.width + 2).reshape(-1, self.seq_len)
        return np.where(path & (inputs == FREE), np.uint8(PATH), inputs)

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    def parse(self, text: str) -> Tokens:
        return self._with_ends(super().parse(text))

    def cut(self, text: str) -> list[str]:
        """Rows of text. A space may be a free cell or stand between rows: the reading that fits the size counts."""
        lines = text.replace("/", "\n").strip("\r\n").splitlines()
        flat = "".join(lines)
        cut = [flat[i : i + self.width] for i in range(0, self.seq_len, self.width)]
        for rows in (lines, [line.strip() for line in lines if line.strip()], text.replace("/", " ").split()):
            if len(rows) == self.height and all(len(row) == self.width for row in rows):
                return rows
        return cut if len(flat) == self.seq_len else [line.strip() for line in lines if line.strip()]

    def from_json(self, puzzle: Json) -> Tokens:
        return self._with_ends(super().from_json(puzzle))

    def _with_ends(self, inputs: Tokens) -> Tokens:
        if fault := self._ends_fault(inputs):
            raise UserError(fault)
        return inputs

    def _ends_fault(self, inputs: Tokens) -> str:
        for token, end in ((START, "start"), (GOAL, "goal")):
            places = [self.place(cell) for cell in np.flatnonzero(inputs == token).tolist()]
            if not places:
                return f"the maze has no {end}; write {self.symbol(token)} in one cell"
            if len(places) > 1:
                both = f"the first two in {places[0]} and {places[1]}"
                return f"the maze has {len(places)} {end}s ({self.symbol(token)}), {both}; keep one"
        return ""

    # Judging --------------------------------------------------------------------------------------------------------

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        path = answers == PATH
        good: Bools = ((inputs == answers) | ((inputs == FREE) & path)).all(1)
        good &= ((inputs == START).sum(1) == 1) & ((inputs == GOAL).sum(1) == 1)
        mazes = self._mazes(inputs[good])
        shortest = lengths(mazes)
        # As many cells as a shortest path has, and a way through them alone that is as short: nothing is left over.
        good[good] = (lengths(self._walked(answers[good])) == shortest) & (path[good].sum(1) == shortest - 1)
        return good

    def _walked(self, answers: Tokens) -> Mazes:
        """The answers with a wall wherever no path is marked."""
        return self._mazes(np.where(answers >= START, answers, np.uint8(WALL)))

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        names = {WALL: "wall", FREE: "free cell", START: "start", GOAL: "goal", PATH: "path"}
        for cell in np.flatnonzero((inputs != answer) & ~((inputs == FREE) & (answer == PATH)))[:1]:
            before, after = (names.get(int(tokens[cell]), "no symbol") for tokens in (inputs, answer))
            return f"{self.place(cell)}: {before} became {after}"
        if conflict := self.conflicts(inputs):
            return conflict
        walk = self._walked(answer[None])
        shortest, walked = int(lengths(self._mazes(inputs[None]))[0]), int(lengths(walk)[0])
        if walked < 0:
            end = inside(flood(walk, walk.start).steps, walk.stride).argmax()
            return f"the path is broken: from S it ends at {self.place(int(end))}"
        if walked > shortest:
            return f"not shortest: {walked} steps where {shortest} suffice"
        used = self._mark(inputs, shortest_paths(walk, flood(walk, walk.goal).steps))
        astray = np.flatnonzero(answer != used)
        if len(astray):
            return f"marked cells off the path: {len(astray)}, the first in {self.place(int(astray[0]))}"
        return ""

    def conflicts(self, inputs: Tokens) -> str:
        """Why a puzzle cannot have an answer; empty where it has one."""
        fault = self._ends_fault(inputs)
        return fault or ("" if lengths(self._mazes(inputs[None]))[0] > 0 else "no path leads from S to G")

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        maze = self._mazes(inputs[None])
        paths = every_shortest_path(maze, flood(maze, maze.goal).steps)
        return [self._mark(inputs, np.array([path]))[0] for path in islice(paths, limit)]

    # Looking at it --------------------------------------------------------------------------------------------------

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        looks = {
            WALL: ("██", "bright_black"),
            FREE: ("  ", ""),
            START: ("S ", "bold green"),
            GOAL: ("G ", "bold magenta"),
            PATH: ("▒▒", "cyan"),
        }
        shown = inputs if answer is None else answer
        edge = "──" * self.width
        text = Text(f"┌{edge}┐")
        for cell, (given, token) in enumerate(zip(inputs.tolist(), shown.tolist(), strict=True)):
            if cell % self.width == 0:
                text.append("│\n│" if cell else "\n│")
            symbol, style = looks.get(token, ("??", ""))
            allowed = token == given or (given, token) == (FREE, PATH)
            text.append(symbol, style=style if allowed else "red")
        return text.append(f"│\n└{edge}┘")

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        shown = inputs if answer is None else answer

        def cell(r: int, c: int) -> tuple[str, str, str]:
            i = r * self.width + c
            token = int(shown[i])
            fill = INK if token == WALL else PAPER
            if changed is not None and changed[i]:
                fill = HIGHLIGHT
            symbol = {WALL: "", FREE: "", PATH: "●"}.get(token, self.symbol(token))
            return fill, symbol, ACCENT if token == PATH else INK

        size = max(10, min(32, 480 // max(self.height, self.width)))
        return svg_grid(self.height, self.width, cell, size=size, label=f"maze, {self.height} by {self.width} cells")

    # For language models --------------------------------------------------------------------------------------------

    def spellings(self, text: str) -> Iterator[str]:
        yield from super().spellings(text)
        yield text.strip("\r\n")  # a space may be a free cell

    @classmethod
    def tool(cls) -> Tool:
        path = "The maze, row by row, with o on every free cell of the path."
        return Tool(
            "solve_maze",
            "Find a shortest path through a maze from S to G, stepping up, down, left or right between walls.",
            {
                "grid": rows_schema(
                    ["string"],
                    "Rows as strings, top to bottom: # wall, . free cell, exactly one S (start) and one G (goal).",
                )
            },
            {"grid": {"type": "array", "items": {"type": "string"}, "description": path}},
        )

    def mended(self) -> Mapping[str, str]:
        return dict.fromkeys("1█■Xx", "#") | dict.fromkeys("gEe", "G") | {"0": ".", "": ".", "s": "S"}

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        rows = cells_of(arguments["grid"], "the maze's grid", self.mended(), spaces=True)
        fit_size(rows, self.height, self.width)
        return {"grid": rows}
