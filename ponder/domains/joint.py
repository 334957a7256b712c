"""Several domains as one: a single vocabulary of two bits, one tokenizer, no domain-specific parameters.

An example is two bits that name its domain, then its tokens one after another. A domain's symbols are numbered and each
takes as many bits as the domain's largest number needs, highest bit first; padding stays padding. Where the domain
does not supervise a token, none of its bits is supervised, and neither is the name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator
from rich.text import Text

from ponder.base.errors import UserError, unknown
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams
from ponder.domains.contract import (
    PAD,
    Arrays,
    Batch,
    Bools,
    Domain,
    Ints,
    Json,
    Params,
    Progress,
    Source,
    Split,
    Tokens,
    rng_for,
    silent,
)
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams
from ponder.domains.maze.domain import Maze, MazeParams
from ponder.domains.sudoku.domain import Sudoku, SudokuParams

Name = Literal["arithmetic", "sudoku", "life", "maze"]
NAMES: tuple[Name, ...] = get_args(Name)
"""A domain's place in this list is its tag."""
TAG = 2
BIT = 1
"""Token of a bit that is 0; the next one is a bit that is 1."""
_ORDER = 1


class JointParts(Params):
    arithmetic: ArithmeticParams = ArithmeticParams()
    sudoku: SudokuParams = SudokuParams()
    life: LifeParams = LifeParams()
    maze: MazeParams = MazeParams()


class JointParams(Params):
    domains: tuple[Name, ...] = Field(default=NAMES, min_length=1, description="which domains are in")
    mixture: Literal["union", "equal"] = Field(
        default="union",
        description="union: every training example once an epoch; equal: each domain as often as any other",
    )
    parts: JointParts = Field(default=JointParts(), description="the parameters of each domain")

    @field_validator("domains")
    @classmethod
    def _once(cls, domains: tuple[Name, ...]) -> tuple[Name, ...]:
        if len(set(domains)) < len(domains):
            raise ValueError(f"each domain once, got {', '.join(domains)}")
        return tuple(name for name in NAMES if name in domains)


@dataclass(frozen=True)
class Part:
    """One domain and its serialisation."""

    domain: Domain
    tag: int

    @property
    def bits(self) -> int:
        return (len(self.domain.vocab) - 2).bit_length()

    @property
    def length(self) -> int:
        return TAG + self.domain.seq_len * self.bits

    def encode(self, tokens: Tokens, width: int, tagged: bool) -> Tokens:
        """[n, seq_len] tokens of the domain -> [n, width] bits. Only inputs carry the tag."""
        out = np.zeros((len(tokens), width), dtype=np.uint8)
        if tagged:
            out[:, :TAG] = _spell(np.array(self.tag), TAG)
        bits = np.where(tokens[..., None] == PAD, PAD, _spell(tokens.astype(np.int64) - 1, self.bits))
        out[:, TAG : self.length] = bits.reshape(len(tokens), -1)
        return out

    def decode(self, stream: Tokens) -> Tokens:
        """The inverse of `encode`. What spells no symbol becomes padding, which no domain takes for an answer."""
        blocks = (
            stream[:, TAG : self.length].reshape(len(stream), self.domain.seq_len, self.bits).astype(np.int64) - BIT
        )
        number = (blocks << np.arange(self.bits)[::-1]).sum(axis=2)
        spelled = ((blocks == 0) | (blocks == 1)).all(axis=2) & (number < len(self.domain.vocab) - 1)
        return np.where(spelled, number + 1, PAD).astype(np.uint8)


def _spell(numbers: Ints, bits: int) -> Tokens:
    return (BIT + (numbers[..., None] >> np.arange(bits)[::-1] & 1)).astype(np.uint8)


class JointSource:
    """Reads the domains' own examples and serialises them when they are fetched."""

    def __init__(self, sources: Mapping[int, tuple[Part, Source]], where: npt.NDArray[Any], width: int) -> None:
        self.sources = sources
        self.where = where
        self.width = width

    def __len__(self) -> int:
        return len(self.where)

    def places(self, index: Ints, epoch: Ints) -> tuple[Ints, Ints]:
        """Tag and row of each example."""
        where = np.asarray(self.where[index], dtype=np.int64)
        return where[:, 0], where[:, 1]

    def fetch(self, index: Ints, epoch: Ints) -> Batch:
        tags, rows = self.places(index, epoch)
        inputs = np.zeros((len(index), self.width), dtype=np.uint8)
        labels = np.zeros_like(inputs)
        for tag, (part, source) in self.sources.items():
            mine = np.flatnonzero(tags == tag)
            if len(mine):
                batch = source.fetch(rows[mine], epoch[mine])
                inputs[mine] = part.encode(batch.inputs, self.width, tagged=True)
                labels[mine] = part.encode(batch.labels, self.width, tagged=False)
        return Batch(inputs, labels, np.zeros(len(index), dtype=np.int64))


class EqualSource(JointSource):
    """As many examples an epoch, but the domains in turn. A small one starts again, a large one goes on next epoch."""

    def places(self, index: Ints, epoch: Ints) -> tuple[Ints, Ints]:
        tags = np.array(list(self.sources))
        sizes = np.array([len(source) for _, source in self.sources.values()])
        turn, which = np.divmod(index, len(tags))
        return tags[which], (turn + epoch * -(-len(self) // len(tags))) % sizes[which]


class Joint(Domain):
    name = "joint"
    title = "Arithmetic, sudoku, Life and mazes in one binary serialisation"
    rules = (
        "A puzzle of one of four kinds, written after the name of its kind and a colon; the answer is written as that "
        "kind writes it.\n" + "\n".join(f"{part.name}: {part.rules}" for part in (Arithmetic, Sudoku, Life, Maze))
    )
    example = f"arithmetic: {Arithmetic.example}"
    paper_examples = 6_239_131
    smoke: ClassVar[Mapping[str, Any]] = {"parts": {part.name: part.smoke for part in (Arithmetic, Sudoku, Life, Maze)}}
    checker_solves = "some of its puzzles are Life, whose checker computes the answer"
    Params: ClassVar[type[Params]] = JointParams
    vocab = (" ", "0", "1")
    params: JointParams

    def __init__(self, params: JointParams) -> None:
        super().__init__(params)
        p = params.parts
        every = (Arithmetic(p.arithmetic), Sudoku(p.sudoku), Life(p.life), Maze(p.maze))
        self.parts: dict[str, Part] = {
            domain.name: Part(domain, tag) for tag, domain in enumerate(every) if domain.name in params.domains
        }
        self.seq_len = max(part.length for part in self.parts.values())
        self.splits = {
            "train": Split("train", "the training examples of all domains"),
            "val": Split("val", "the val examples of all domains"),
        } | {
            f"{name}.{split}": about
            for name, part in self.parts.items()
            for split, about in part.domain.splits.items()
            if split not in ("train", "val")
        }

    # From rules to arrays -------------------------------------------------------------------------------------------

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        """Splits hold the domains' own arrays, which are far smaller than the bits; `inputs` and `labels` of a split
        say which domain's (tag) which row each example is."""
        built = {name: part.domain.build(seed, workers, progress) for name, part in self.parts.items()}
        return {split: self._split(split, number, built, seed) for number, split in enumerate(self.splits)}

    def _split(self, split: str, number: int, built: Mapping[str, Mapping[str, Arrays]], seed: int) -> Arrays:
        name, _, of_part = split.partition(".")
        members = {name: of_part} if of_part else dict.fromkeys(self.parts, split)
        out: Arrays = {}
        where = []
        for name, own in members.items():
            out |= {f"{name}.{key}": array for key, array in built[name][own].items()}
            count = len(self.parts[name].domain.source(own, built[name][own], seed))
            where.append(np.stack([np.full(count, self.parts[name].tag), np.arange(count)], axis=1).astype(np.int32))
        # Mixed, so that the first examples of a split are of every domain.
        mixed = rng_for(seed, _ORDER, number).permutation(np.concatenate(where))
        return {"inputs": mixed, "labels": mixed, **out}

    def source(self, split: str, arrays: Mapping[str, npt.NDArray[Any]], seed: int) -> Source:
        sources: dict[int, tuple[Part, Source]] = {}
        for name, part in self.parts.items():
            own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            if own:
                sources[part.tag] = part, part.domain.source(split.removeprefix(f"{name}."), own, seed)
        kind = EqualSource if split == "train" and self.params.mixture == "equal" else JointSource
        return kind(sources, arrays["inputs"], self.seq_len)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        """The domains in turn."""
        inputs = np.zeros((count, self.seq_len), dtype=np.uint8)
        labels = np.zeros_like(inputs)
        for first, part in enumerate(self.parts.values()):
            if mine := len(range(first, count, len(self.parts))):
                own_inputs, own_labels = part.domain.sample(seed, mine)
                inputs[first :: len(self.parts)] = part.encode(own_inputs, self.seq_len, tagged=True)
                labels[first :: len(self.parts)] = part.encode(own_labels, self.seq_len, tagged=False)
        return inputs, labels

    # One example's own domain ---------------------------------------------------------------------------------------

    def _tags(self, inputs: Tokens) -> Ints:
        """The tag of each example; -1 where there is none."""
        bits = inputs[:, :TAG].astype(np.int64) - BIT
        return np.where(((bits == 0) | (bits == 1)).all(axis=1), bits @ (1 << np.arange(TAG)[::-1]), -1)

    def part_of(self, inputs: Tokens) -> Part:
        """The domain one puzzle belongs to."""
        tag = int(self._tags(inputs[None])[0])
        for part in self.parts.values():
            if part.tag == tag:
                return part
        raise UserError(f"the puzzle's first {TAG} bits name none of: {', '.join(self.parts)}")

    def own(self, inputs: Tokens, *answers: Tokens) -> tuple[Domain, Sequence[Tokens]]:
        part = self.part_of(inputs)
        return part.domain, [part.decode(stream[None])[0] for stream in (inputs, *answers)]

    def _joined(self, part: Part, tokens: Tokens, tagged: bool) -> Tokens:
        """The reverse for one example."""
        bits: Tokens = part.encode(tokens[None], self.seq_len, tagged)[0]
        return bits

    def _named(self, name: str) -> Part:
        if name not in self.parts:
            raise unknown("domain", name, self.parts)
        return self.parts[name]

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    def parse(self, text: str) -> Tokens:
        name, colon, puzzle = text.partition(":")
        if not colon:
            raise UserError(f"{text.strip()[:60]!r} does not say its domain; write it first, as in {self.example!r}")
        part = self._named(name.strip())
        return self._joined(part, part.domain.parse(puzzle.strip()), tagged=True)

    def format(self, inputs: Tokens) -> str:
        domain, (own,) = self.own(inputs)
        return f"{domain.name}: {domain.format(own)}"

    def from_json(self, puzzle: Json) -> Tokens:
        if not isinstance(puzzle, dict) or set(puzzle) != {"domain", "puzzle"}:
            raise UserError(f"a joint puzzle is {{'domain': 'sudoku', 'puzzle': ...}}; got {str(puzzle)[:60]}")
        part = self._named(str(puzzle["domain"]))
        return self._joined(part, part.domain.from_json(puzzle["puzzle"]), tagged=True)

    def to_json(self, inputs: Tokens) -> Json:
        domain, (own,) = self.own(inputs)
        return {"domain": domain.name, "puzzle": domain.to_json(own)}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        domain, (own,) = self.own(inputs)
        return self._joined(self.part_of(inputs), domain.parse_answer(own, text), tagged=False)

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        domain, (own, own_answer) = self.own(inputs, answer)
        return domain.format_answer(own, own_answer)

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        domain, (own, own_answer) = self.own(inputs, answer)
        return domain.answer_to_json(own, own_answer)

    # Judging --------------------------------------------------------------------------------------------------------

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        accepted = np.zeros(len(inputs), dtype=np.bool_)
        tags = self._tags(inputs)
        for part in self.parts.values():
            mine = tags == part.tag
            accepted[mine] = part.domain.check(part.decode(inputs[mine]), part.decode(answers[mine]))
        return accepted

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        domain, (own, own_answer) = self.own(inputs, answer)
        return domain.explain(own, own_answer)

    def conflicts(self, inputs: Tokens) -> str:
        domain, (own,) = self.own(inputs)
        return domain.conflicts(own)

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        domain, (own,) = self.own(inputs)
        return [self._joined(self.part_of(inputs), a, tagged=False) for a in domain.solutions(own, limit)]

    # Looking at it --------------------------------------------------------------------------------------------------

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        domain, (own, *answers) = self.own(inputs, *([] if answer is None else [answer]))
        return Text(f"{domain.name}\n", style="dim").append_text(domain.render(own, *answers))

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        domain, (own, *answers) = self.own(inputs, *([] if answer is None else [answer]))
        part = self.part_of(inputs)
        lit: Bools | None = None
        if changed is not None:
            lit = np.logical_or.reduce(changed[TAG : part.length].reshape(-1, part.bits), axis=1)
        return domain.svg(own, answers[0] if answers else None, lit)
