"""The contract of a domain: everything that depends on what the puzzle is lives behind this class.

What a domain must say: its name, title and rules, its vocabulary, how puzzles are generated and how answers are
checked. What it may say better than the defaults: everything else. Grids and sequences of symbols start from
`ponder.domains.grid`, which answers all of it (docs/domains.md).

Shapes and tokens, everywhere in the project:
- A puzzle is `inputs`, an answer is `answer`: arrays of `seq_len` tokens (uint8), row-major, padded with 0.
- Token 0 is padding in every vocabulary. In `labels`, 0 marks a position that is not supervised.
- A leading axis, where there is one, counts examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from rich.text import Text

from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import Vary
from ponder.domains import spelling

PAD = 0

Tokens = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]
"""One split on disk: name -> array. Always has `inputs` and `labels`, as many rows as examples; what they hold is the
domain's affair where it overrides `source` (ARC stores pairs once, joint stores references)."""
Json = Any
Progress = Callable[[str, int, int], None]
"""progress(what, done, total), called often; the CLI turns it into a bar."""
Role = Literal["train", "val", "test", "ood"]


def silent(what: str, done: int, total: int) -> None:
    """The progress of someone who does not watch."""


class Params(BaseModel):
    """A domain's own parameters. Strict and frozen: a mistyped key is an error before anything is written."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sizes(Params):
    """The parameters of a domain that generates all its puzzles; one with more of them adds its own fields."""

    train: int = Field(default=10_000, ge=1, description="training puzzles")
    val: int = Field(default=500, ge=1, description="puzzles for choosing checkpoints")
    test: int = Field(default=1_000, ge=1, description="held-out puzzles")


@dataclass(frozen=True)
class Split:
    role: Role
    about: str


@dataclass(frozen=True)
class Wording:
    """A puzzle in words for a language model."""

    puzzle: str
    answer: str
    """What the last line of its reply should hold."""


@dataclass(frozen=True)
class Tool:
    """A domain as a tool that language models may call. The arguments are those of `Domain.read_call`."""

    name: str
    does: str
    arguments: Mapping[str, Json]
    """Name -> JSON schema with a description."""
    answer: Mapping[str, Json]
    """The same for the keys of `Domain.answer_to_json`."""
    optional: tuple[str, ...] = ()
    """Arguments that may be left out."""


class Misfit(UserError):
    """A puzzle of another size than a domain, at its parameters, takes."""

    def __init__(self, size: str, distance: int) -> None:
        super().__init__(f"this puzzle has {size}")
        self.size, self.distance = size, distance


@dataclass(frozen=True)
class Symmetry:
    """A way to write a puzzle and its answer otherwise: positions in another order, symbols renamed."""

    order: Ints
    rename: Tokens | None = None

    def __call__(self, tokens: Tokens) -> Tokens:
        moved = tokens[self.order]
        return moved if self.rename is None else self.rename[moved]


@dataclass(frozen=True)
class Batch:
    inputs: Tokens
    labels: Tokens
    task_ids: Ints


class Source(Protocol):
    """One split, ready to be read: `index` counts examples, `epoch` matters only where augmentation is on the fly."""

    def __len__(self) -> int: ...

    def fetch(self, index: Ints, epoch: Ints) -> Batch: ...


class ArraySource:
    """The plain case: the stored arrays are the examples."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["inputs"])

    def fetch(self, index: Ints, epoch: Ints) -> Batch:
        return Batch(
            inputs=np.asarray(self.arrays["inputs"][index]),
            labels=np.asarray(self.arrays["labels"][index]),
            task_ids=np.zeros(len(index), dtype=np.int64),
        )


class Augmented:
    """Each example under a symmetry that is a function of (seed, example, epoch)."""

    def __init__(self, source: Source, domain: "Domain", seed: int) -> None:
        self.source, self.domain, self.seed = source, domain, seed

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, index: Ints, epoch: Ints) -> Batch:
        batch = self.source.fetch(index, epoch)
        inputs, labels = np.empty_like(batch.inputs), np.empty_like(batch.labels)
        for row, (i, e) in enumerate(zip(index.tolist(), epoch.tolist(), strict=True)):
            symmetry = self.domain.symmetry(batch.inputs[row], rng_for(self.seed, AUGMENT, i, e))
            inputs[row], labels[row] = symmetry(batch.inputs[row]), symmetry(batch.labels[row])
        return Batch(inputs, labels, batch.task_ids)


class Guided(NamedTuple):
    """What a guided search found and what it took."""

    answer: Tokens | None
    guesses: int


class Domain(ABC):
    """One kind of puzzle. An instance is a domain at given parameters (board size, number of operands, ...)."""

    name: ClassVar[str]
    """The registry's key and the first word of its presets."""
    title: ClassVar[str]
    """One line for `ponder domains`."""
    rules: ClassVar[str]
    """What the puzzle is and how an answer is written, for a person or a language model who has never seen it."""
    example: ClassVar[str] = ""
    """A puzzle in text form that `parse` accepts at the default parameters; empty: any `sample` will do."""
    checkable: ClassVar[bool] = True
    """Whether `check` judges by the rules alone. Where it is False, a valid answer is one that equals the label."""
    checker_solves: ClassVar[str] = ""
    """Why an accepted answer is no find (the checker computes the answer itself); empty where checking is easier."""
    grouped: ClassVar[bool] = False
    """Whether several examples can make up one task, which is solved when all of them are (`tasks_of`)."""
    smoke: ClassVar[Mapping[str, Any]] = {}
    """Parameters that make the data small enough to try a study in seconds; the rest is as its preset has it."""
    published: ClassVar[Sequence[str]] = ()
    """Token id -> symbol in datasets of the published models, where they have more or others than `vocab`."""
    paper_examples: ClassVar[int | None] = None
    """Training examples at paper scale, where a study counts in epochs; None: not known without building them."""
    Params: ClassVar[type[Params]] = Sizes

    params: Any
    vocab: tuple[str, ...]
    """Token id -> the symbol shown for it; vocab[0] is padding."""
    seq_len: int
    splits: Mapping[str, Split] = {
        "train": Split("train", "puzzles to learn from"),
        "val": Split("val", "puzzles for choosing checkpoints"),
        "test": Split("test", "held-out puzzles"),
    }
    """In the order they are shown; `train` and `val` are always there. What is generated has a parameter of each name
    that says how many."""

    def __init__(self, params: BaseModel) -> None:
        self.params = params

    @property
    def task_ids(self) -> int:
        """Rows of the puzzle-embedding table. Row 0 is the blank id, the only one outside ARC."""
        return 1

    @property
    def geometry(self) -> Geometry:
        """What belongs together on the board, for models that mix along it."""
        return NO_GEOMETRY

    def path(self, inputs: Tokens, steps: int) -> Tokens:
        """[n, steps, seq_len] the answers after 1, 2, ... of the steps that puzzles ask for; the last one stays."""
        raise UserError(f"{self.name} has no steps of its own to follow: set model.halting to halt")

    def symmetry(self, inputs: Tokens, rng: np.random.Generator) -> Symmetry:
        """One of the symmetries of a puzzle, all alike likely: what it makes of puzzle and answer is right again."""
        raise UserError(f"{self.name} has no symmetries: leave out data.augment")

    # From rules to arrays -------------------------------------------------------------------------------------------

    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        """`count` (inputs, labels) drawn from `rng` alone. A domain has this, or its own `build` and `sample`."""
        raise NotImplementedError(f"{self.name} has no generator")

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        """All splits, no puzzle twice. A pure function of (params, seed): the number of workers changes nothing but
        the time."""
        return self.shared_out(*self._different(self.generated, seed, workers, progress))

    @property
    def generated(self) -> int:
        """Puzzles of all splits together."""
        return sum(int(getattr(self.params, split)) for split in self.splits)

    def shared_out(self, inputs: Tokens, labels: Tokens, **more: npt.NDArray[Any]) -> dict[str, Arrays]:
        """What was generated, cut into splits; training last: asking for more of it leaves the puzzles to be judged on
        as they are."""
        arrays, parts, end = {"inputs": inputs, "labels": labels, **more}, dict[str, Arrays](), 0
        for split in reversed([*self.splits]):
            start, end = end, end + int(getattr(self.params, split))
            parts[split] = {name: array[start:end] for name, array in arrays.items()}
        return {split: parts[split] for split in self.splits}

    def _different(self, count: int, seed: int, workers: int, progress: Progress) -> tuple[Tokens, Tokens]:
        """The first `count` different puzzles of an endless row of chunks."""
        found: dict[bytes, tuple[Tokens, Tokens]] = {}
        chunk, share = 0, 1.0
        while len(found) < count:
            before = len(found)
            more = int((count - before) / max(share, 0.05) / CHUNK) + 1
            jobs = [(self, seed, chunk + i) for i in range(more)]
            for inputs, labels in run_chunks(_generate_chunk, jobs, workers, progress, f"making {self.name} puzzles"):
                for each in zip(inputs, labels, strict=True):
                    found.setdefault(each[0].tobytes(), each)
            chunk, share = chunk + more, (len(found) - before) / (more * CHUNK)
            if len(found) < count and chunk >= 10 and share < 0.002:
                raise UserError(
                    f"of {chunk * CHUNK} {self.name} puzzles at these parameters only {len(found)} are different, "
                    f"{count} were asked for; ask for fewer ({', '.join(f'data.{split}' for split in self.splits)})"
                )
        kept = list(islice(found.values(), count))
        return np.stack([inputs for inputs, _ in kept]), np.stack([labels for _, labels in kept])

    def source(self, split: str, arrays: Mapping[str, npt.NDArray[Any]], seed: int) -> Source:
        """How the stored arrays of a split are read as examples."""
        return ArraySource(arrays)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        """`count` fresh (inputs, labels), for a demonstration; not promised to be outside any split."""
        return _generated(self, rng_for(seed, SAMPLE), count)

    @property
    def sides(self) -> str:
        """Of its boards, as in 9x9; empty where they have several or none."""
        return ""

    def resized(self, puzzle: str | Json) -> "Domain | None":
        """The same kind of puzzle at the size of this one, for models in which nothing has a size; None where that is
        no other size, or cannot be told."""
        return None

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, text: str) -> Tokens:
        """A puzzle from text. Raises UserError naming what is wrong and where."""

    @abstractmethod
    def format(self, inputs: Tokens) -> str:
        """The puzzle as text, one line; `parse(format(x))` equals x."""

    @abstractmethod
    def from_json(self, puzzle: Json) -> Tokens: ...

    @abstractmethod
    def to_json(self, inputs: Tokens) -> Json:
        """The puzzle as JSON data; `from_json(to_json(x))` equals x."""

    @abstractmethod
    def parse_answer(self, inputs: Tokens, text: str) -> Tokens: ...

    @abstractmethod
    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        """The answer as text, one line. Never fails: a model may predict anything."""

    @abstractmethod
    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json: ...

    # Judging --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        """Which answers the rules accept, for arrays of examples [n, seq_len] (positions a puzzle does not use are
        ignored)."""

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        """Why `check` refuses one answer, in a few words naming the place; empty where it accepts."""
        return "" if self.check(inputs[None], answer[None])[0] else "the rules do not accept it"

    def conflicts(self, inputs: Tokens) -> str:
        """What makes a well-formed puzzle unsolvable at first sight (two 5s in row 3); empty where nothing does."""
        return ""

    @property
    def exact(self) -> bool:
        """Whether there is a classical method to find answers, `solutions`."""
        return type(self).solutions is not Domain.solutions

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        """Up to `limit` right answers by a classical method; empty when there is none."""
        raise UserError(f"{self.name} has no exact solver")

    def right(self, inputs: Tokens, most: int) -> Tokens:
        """[n, most, seq_len] the right answers of each puzzle, or so many of them; then zeros."""
        out = np.zeros((len(inputs), most, self.seq_len), dtype=np.uint8)
        for row, puzzle in enumerate(inputs):
            for place, answer in enumerate(self.solutions(puzzle, most)):
                out[row, place] = answer
        return out

    def guided(self, inputs: Tokens, logits: npt.NDArray[np.float32] | None) -> Guided:
        """A right answer by a complete search that tries first what a model's logits, [seq_len, symbols], say; without
        them the same search by itself."""
        raise UserError(f"{self.name} has no search to be guided")

    @property
    def unverifiable(self) -> str:
        """Why it is no achievement that the checker accepts an answer; empty where it is one."""
        return self.checker_solves or ("" if self.checkable else "it has no checker")

    @property
    def vary(self) -> Vary:
        """How the tries of a search differ. suppose: a cell is filled in on trial, which with the right symbol leaves a
        puzzle of the same answer; likely: all cells are filled in, as the model finds likely; else by noise."""
        return "noise"

    def open_cells(self, inputs: Tokens) -> tuple[Ints, Ints]:
        """Where cells are: the positions of one puzzle that may be filled in, and the symbols that may be tried."""
        raise UserError(f"{self.name} has no cells to fill in on trial")

    # Looking at it --------------------------------------------------------------------------------------------------

    @abstractmethod
    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        """For the terminal: the puzzle, or the answer with what was given set apart from what was filled in."""

    @abstractmethod
    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        """A self-contained SVG picture of the same; `changed` marks positions to highlight."""

    def board(self) -> Json:
        """What the web page needs to draw puzzles as cells that can be typed into; None: it shows text and `svg`."""
        return None

    # For language models --------------------------------------------------------------------------------------------

    def own(self, inputs: Tokens, *answers: Tokens) -> tuple["Domain", Sequence[Tokens]]:
        """The domain that one puzzle is of, and the puzzle and its answers as that domain writes them."""
        return self, (inputs, *answers)

    def tasks_of(self, split: str, source: Source) -> Mapping[str, Sequence[int]]:
        """Task -> which examples of a split belong to it. Outside ARC every example is a task of its own."""
        return {str(i): (i,) for i in range(len(source))}

    def shown(self, task: str) -> str:
        """What a language model sees of a task before its puzzle: the demonstrations, where there are any."""
        return ""

    def wording(self, inputs: Tokens) -> Wording:
        return Wording(f"Puzzle: {self.format(inputs)}", "the answer, written as said above")

    def spellings(self, text: str) -> Iterator[str]:
        """The ways to read a piece of a language model's reply; `parse_answer` is asked about each in turn."""
        yield from spelling.rows_in(text)

    @classmethod
    def tool(cls) -> Tool | None:
        """How language models are offered this domain as a tool; None where they are not."""
        return None

    def takes(self) -> str:
        """Which puzzles can be solved at these parameters, in words."""
        return self.title

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        """The arguments of a call of the tool as the puzzle's JSON. Only spelling and size (Misfit) are looked at."""
        return dict(arguments)


T = TypeVar("T")


def rng_for(seed: int, *key: int) -> np.random.Generator:
    """A generator that depends on the key alone, so that work can be cut into pieces in any way."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *key])))


def run_chunks(
    work: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    workers: int,
    progress: Progress,
    what: str,
) -> Iterator[T]:
    """work(*job) for each job, results in the order of the jobs whatever the number of processes.

    `work` must be a module-level function; give each job its own key for `rng_for`.
    """
    if workers <= 1 or len(jobs) <= 1:
        for done, job in enumerate(jobs):
            progress(what, done, len(jobs))
            yield work(*job)
    else:
        with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
            for done, result in enumerate(pool.map(work, *zip(*jobs, strict=True))):
                progress(what, done, len(jobs))
                yield result
    progress(what, len(jobs), len(jobs))


CHUNK = 100
"""Puzzles of one piece of work."""
SPLITS, SAMPLE, AUGMENT = range(3)
"""What random numbers are for."""


def _generate_chunk(domain: Domain, seed: int, chunk: int) -> tuple[Tokens, Tokens]:
    return _generated(domain, rng_for(seed, SPLITS, chunk), CHUNK)


def _generated(domain: Domain, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
    inputs, labels = map(np.asarray, domain.generate(rng, count))
    for name, array in (("inputs", inputs), ("labels", labels)):
        if array.shape != (count, domain.seq_len) or array.max(initial=0) >= len(domain.vocab):
            raise UserError(
                f"{domain.name}: generate(rng, {count}) gave {name} of shape {array.shape} with tokens up to "
                f"{array.max(initial=0)}; expected {(count, domain.seq_len)} and tokens below {len(domain.vocab)}"
            )
    return inputs.astype(np.uint8), labels.astype(np.uint8)
