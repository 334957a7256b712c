"""The contract of a domain: everything that depends on what the puzzle is lives behind this class.

Shapes and tokens, everywhere in the project:
- A puzzle is `inputs`, an answer is `answer`: arrays of `seq_len` tokens (uint8), row-major, padded with 0.
- Token 0 is padding in every vocabulary. In `labels`, 0 marks a position that is not supervised.
- A leading axis, where there is one, counts examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from rich.text import Text

from ponder.base.errors import UserError

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

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Split:
    role: Role
    about: str


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


class Domain(ABC):
    """One kind of puzzle. An instance is a domain at given parameters (board size, number of operands, ...)."""

    name: ClassVar[str]
    """The registry's key and the first word of its presets."""
    title: ClassVar[str]
    """One line for `ponder domains`."""
    rules: ClassVar[str]
    """What the puzzle is and how an answer is written, for a person or a language model who has never seen it."""
    example: ClassVar[str]
    """A puzzle in text form that `parse` accepts at the default parameters."""
    checkable: ClassVar[bool] = True
    """Whether `check` judges by the rules alone. Where it is False, a valid answer is one that equals the label."""
    checker_solves: ClassVar[str] = ""
    """Why an accepted answer is no find (the checker computes the answer itself); empty where checking is easier."""
    Params: ClassVar[type[Params]]

    params: Any
    vocab: tuple[str, ...]
    """Token id -> the symbol shown for it; vocab[0] is padding."""
    seq_len: int
    splits: Mapping[str, Split]
    """In the order they are shown; `train` and `val` are always there."""

    def __init__(self, params: BaseModel) -> None:
        self.params = params

    @property
    def task_ids(self) -> int:
        """Rows of the puzzle-embedding table. Row 0 is the blank id, the only one outside ARC."""
        return 1

    # From rules to arrays -------------------------------------------------------------------------------------------

    @abstractmethod
    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        """All splits. A pure function of (params, seed): the number of workers changes nothing but the time."""

    def source(self, split: str, arrays: Mapping[str, npt.NDArray[Any]], seed: int) -> Source:
        """How the stored arrays of a split are read as examples."""
        return ArraySource(arrays)

    @abstractmethod
    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        """`count` fresh (inputs, labels), for a demonstration; not promised to be outside any split."""

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

    @abstractmethod
    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        """Why `check` refuses one answer, in a few words naming the place; empty where it accepts."""

    def conflicts(self, inputs: Tokens) -> str:
        """What makes a well-formed puzzle unsolvable at first sight (two 5s in row 3); empty where nothing does."""
        return ""

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        """Up to `limit` right answers by a classical method; empty when there is none. ARC has no such method."""
        raise UserError(f"{self.name} has no exact solver")

    # Looking at it --------------------------------------------------------------------------------------------------

    @abstractmethod
    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        """For the terminal: the puzzle, or the answer with what was given set apart from what was filled in."""

    @abstractmethod
    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        """A self-contained SVG picture of the same; `changed` marks positions to highlight."""


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
