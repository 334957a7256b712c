"""Solver: a puzzle in, a stream of ACT steps out. Shelf: the solvers at hand.

torch is loaded when a model that runs on it is opened: those of `ponder.inference.plain` do without.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ponder.base import stats
from ponder.base.errors import UserError, at_least, unknown
from ponder.config.schema import ModelConfig, SearchPlan, Vary
from ponder.domains.contract import Domain, Json, Tokens
from ponder.inference.answers import Answer, SecondThought, Thought
from ponder.inference.weights import open_weights, zoo_names

if TYPE_CHECKING:
    from ponder.inference.engine import Engine, Seen


class Unsolvable(UserError):
    """A well-formed puzzle that breaks the rules at first sight."""


TRIES: Mapping[Vary, int] = {"noise": 0, "suppose": 8, "likely": 8}
"""Of a search that nobody gave a number for."""
HOW: Mapping[Vary, str] = {
    "noise": "noisy restarts",
    "suppose": "supposing one more cell",
    "likely": "checking what the model finds likely",
}
LARGEST, SIZES = 1200, 8
"""Tokens of a board that a model is put to which was trained on others, and how many such sizes a shelf remembers."""


def _possible(steps: int | None, fallback: str | None, restarts: int | None) -> None:
    if restarts is not None and restarts < 0:
        raise UserError(f"search {restarts} is too small: give the number of restarts, or 0 for none")
    if fallback not in (None, "exact", "guided"):
        raise UserError(f"fallback {fallback!r} is unknown: give 'exact' or 'guided', or leave it out")
    at_least(1, {"steps": steps})


class Solver:
    """A trained model as a function from puzzles to answers."""

    def __init__(
        self,
        model: str | Path,
        steps: int | None = None,
        device: str = "cpu",
        fallback: Literal["exact", "guided"] | None = None,
        search: int | None = 0,
    ) -> None:
        """`search`: so many more tries at a puzzle whose answer is refused, until one is accepted; None: some, where it
        has cells to fill in on trial."""
        _possible(steps, fallback, search)
        self.model = model
        self.name, self.domain, self.config = self.open(model, device)
        self.trained = self.name
        """The model's own name, also where it is put to boards of another size."""
        self.note = ""
        """What is to be said with every answer."""
        if fallback is not None and not self.domain.exact:
            raise UserError(f"{self.domain.name} has no exact solver: leave out fallback")
        if fallback == "guided" and type(self.domain).guided is Domain.guided:
            raise UserError(f"{self.domain.name} has no search to be guided: give fallback 'exact'")
        self.steps = 4 * self.config.max_steps if steps is None else steps
        self.fallback = fallback
        self.search = TRIES[self.domain.vary] if search is None else search
        if self.search and (why := self.domain.unverifiable):
            raise UserError(f"no verified search in {self.domain.name}: {why}; leave out search")
        self.patience = self.steps if steps is not None or not self.fills_in(self.search) else self.config.max_steps
        """ACT steps before a search begins: but for noise it begins where training ended, since the next try does more
        for a puzzle than going on."""

    def open(self, model: str | Path, device: str) -> tuple[str, Domain, ModelConfig]:
        """Make it ready to think; its name, what it is for and what it is."""
        self.opened = open_weights(model, device=device)
        if self.opened.domain is None:
            raise UserError(f"{model} was imported and names no domain: import it again with --domain PRESET")
        return self.opened.name, self.opened.domain, self.opened.model.config

    @property
    def any_size(self) -> bool:
        """Whether it can be put to boards of other sizes: no weight knows the size, and the domain tells it."""
        return self.config.any_size and type(self.domain).resized is not Domain.resized

    def at(self, domain: Domain) -> "Solver":
        """The same model on boards of another size, where no weight knows the size."""
        other = copy(self)
        other.name, other.note = f"{self.name} at {domain.sides}", f"trained on {self.domain.sides} only"
        other.domain = domain
        other.fit()
        return other

    def fit(self) -> None:
        """The model, to boards of its domain's size."""
        self.opened = self.opened.at(self.domain)

    def fills_in(self, tries: int) -> bool:
        """Whether a search of so many tries fills in cells on trial."""
        return tries > 0 and self.domain.vary != "noise"

    def read(self, puzzle: str | Json) -> Tokens:
        """The puzzle as tokens. Raises UserError where it is malformed or breaks the rules at first sight."""
        inputs = self.domain.parse(puzzle) if isinstance(puzzle, str) else self.domain.from_json(puzzle)
        wrong = self.domain.conflicts(inputs)
        if wrong:
            raise Unsolvable(f"this puzzle has no solution: {wrong}")
        return inputs

    def stream(self, puzzle: str | Json) -> Iterator[Thought]:
        """One item per ACT step, until the checker accepts or the budget ends."""
        yield from self.think(self.read(puzzle))

    def think(self, inputs: Tokens) -> Iterator[Thought]:
        engine = self.engine(1, self.patience)
        engine.admit(inputs)
        before = inputs
        while not engine.idle:
            seen, _ = engine.advance()
            yield self.thought(seen, 0, before)
            before = seen.answers[0]

    def solve(self, puzzle: str | Json) -> Answer:
        """The answer that `stream` ends with."""
        return self.solve_many([puzzle])[0]

    def solve_many(self, puzzles: Sequence[str | Json]) -> list[Answer]:
        """The answers of many puzzles, which share the machine; each gets what it would get alone."""
        return self.solve_tokens([self.read(puzzle) for puzzle in puzzles])

    def solve_tokens(self, puzzles: Sequence[Tokens]) -> list[Answer]:
        """The same for puzzles that were read."""
        if not len(puzzles):
            return []
        inputs = np.stack(puzzles)
        traces = self.traces(inputs)
        found = self.searched(inputs, traces)
        return [self.answer(*each, found=found.get(i)) for i, each in enumerate(zip(inputs, traces, strict=True))]

    def traces(self, inputs: Tokens) -> list[list[Thought]]:
        """What `think` gives of each puzzle."""
        from ponder.inference.engine import SLOTS

        traces: list[list[Thought]] = [[] for _ in inputs]

        def watch(seen: "Seen") -> None:
            for row, ticket in enumerate(seen.tickets):
                trace = traces[ticket]
                trace.append(self.thought(seen, row, trace[-1].answer if trace else inputs[ticket]))

        self.engine(SLOTS, self.patience).run(inputs, watch=watch)
        return traces

    def searched(self, inputs: Tokens, traces: Sequence[Sequence[Thought]]) -> dict[int, SecondThought]:
        """Of the puzzles whose last thought is refused, what a search finds, where one is asked for."""
        refused = np.array([i for i, trace in enumerate(traces) if not trace[-1].valid], dtype=np.int64)
        if not self.search or not len(refused):
            return {}
        from ponder.inference.search import default_noise, search

        model = self.opened.model
        plan = SearchPlan(1 + self.search, self.steps, default_noise(model))
        if self.fills_in(self.search):
            plan = replace(plan, steps=min(self.patience, self.config.max_steps), vary=self.domain.vary)
        found = search(model, self.domain, inputs[refused], plan, numbers=np.zeros_like(refused))
        # Without the first run, which was done again, and without answers that were only looked at
        steps = {"noise": found.compute, "suppose": found.compute - plan.steps, "likely": 0 * found.compute}[plan.vary]
        return {
            int(i): SecondThought(
                found.answers[row],
                self._sure(found.confidence[row]),
                tries=int(found.restart[row]),
                steps=int(steps[row]),
            )
            for row, i in enumerate(refused)
            if found.accepted[row]
        }

    # The parts of `solve`, for those who run the engine themselves (`ponder serve` batches the puzzles of many clients)

    def engine(self, slots: int, steps: int) -> "Engine":
        from ponder.inference.engine import Checker, Engine, Full

        policy = Checker() if self.domain.checkable else Full()
        return Engine(self.opened.model, self.domain, slots, policy, steps)

    def thought(self, seen: "Seen", row: int, before: Tokens) -> Thought:
        confidence = self._sure(seen.confidence[row])
        valid = None if seen.accepted is None else bool(seen.accepted[row])
        answer = seen.answers[row]
        return Thought(int(seen.steps[row]), answer, answer != before, confidence, valid)

    def _sure(self, logit: float) -> float:
        return float(stats.probability(logit)) if self.config.head else float("nan")

    def logits(self, inputs: Tokens, steps: int) -> npt.NDArray[np.float32]:
        """[tokens, symbols] what the model says of one puzzle after so many steps."""
        from ponder.inference.engine import logits_of

        return logits_of(self.opened.model, inputs, steps)

    def answer(
        self, inputs: Tokens, trace: Sequence[Thought], fallback: str | None = None, found: SecondThought | None = None
    ) -> Answer:
        """The last thought as an answer, or what a search `found`, or the exact one where that is refused and
        `fallback` (or the solver's) asks for it; and what there is to say about it."""
        last = trace[-1]
        tokens, verified, confidence = last.answer, last.valid, last.confidence
        notes = [self.note] if self.note else []
        if found is not None:
            tokens, verified, confidence = found.answer, True, found.confidence
            notes.append(f"found by {HOW[self.domain.vary]} (try {found.tries}, {found.steps} more ACT steps)")
        by: Literal["model", "exact"] = "model"
        if self.domain.checkable:
            known = self.domain.solutions(inputs, limit=2) if self.domain.exact else []
            if not known and self.domain.exact:
                notes.append("this puzzle has no solution")
            elif not verified:
                notes.append(f"the model's answer is wrong: {self.domain.explain(inputs, last.answer)}")
                if known and (fallback or self.fallback):
                    tokens, by = known[0], "exact"
                    if (fallback or self.fallback) == "guided":
                        guided = self.domain.guided(inputs, self.logits(inputs, last.step))
                        assert guided.answer is not None
                        tokens = guided.answer
                        alone = self.domain.guided(inputs, None)
                        took = f"{guided.guesses} guesses, {alone.guesses} without guidance"
                        notes.append(f"found by a search that its logits guide ({took})")
                    verified = bool(self.domain.check(inputs[None], tokens[None])[0])
            if len(known) > 1:
                notes.append("several solutions exist" + (", this is one of them" if verified else ""))
        return Answer(
            model=self.name,
            domain=self.domain,
            inputs=inputs,
            tokens=tokens,
            verified=verified,
            by=by,
            note="; ".join(notes),
            steps=last.step,
            confidence=confidence,
            trace=tuple(trace),
            tries=found.tries if found else 0,
        )


def nearest(solvers: Sequence[Solver], puzzle: str | Json) -> tuple[Solver, Domain] | None:
    """Of those that take any size, the one trained on boards the least times as large or small as this puzzle's, where
    twice too small is as far as four times too large (docs/boards.md); and its domain at that size."""
    sizes = ((solver, solver.domain.resized(puzzle)) for solver in solvers if solver.any_size)
    fits = [(solver, domain) for solver, domain in sizes if domain is not None and domain.seq_len <= LARGEST]

    def far(fit: tuple[Solver, Domain]) -> float:
        times = log(fit[1].seq_len / fit[0].domain.seq_len)
        return 2 * times if times > 0 else -times

    return min(fits, key=far, default=None)


class Shelf:
    """The solvers at hand, opened when first asked for: the zoo's, or the models (names, run folders) one lists."""

    def __init__(
        self,
        models: Sequence[str] | None = None,
        device: str = "cpu",
        steps: int | None = None,
        fallback: Literal["exact", "guided"] | None = None,
        search: int | None = 0,
        make: "Callable[..., Solver]" = Solver,
    ) -> None:
        """`make`: opens one, given the model and the rest in this order."""
        _possible(steps, fallback, search)  # here too: below, what cannot be opened is a model's fault
        self.places = {Path(m).name: m for m in (zoo_names() if models is None else models)}
        self.zoo = models is None
        self.how = steps, device, fallback, search
        self.make = make
        self.opened: dict[str, Solver] = {}
        self.sizes: dict[str, Solver] = {}
        """Of those, such as were put to other boards than they were trained on; the last ones."""
        if not self.places:
            raise UserError("there is no model: train one and name its run folder")

    @property
    def names(self) -> list[str]:
        return list(self.places)

    def __getitem__(self, name: str) -> Solver:
        if name not in self.places:
            raise unknown("model", name, self.places)
        if name not in self.opened:
            self.opened[name] = self.make(self.places[name], *self.how)
        return self.opened[name]

    @property
    def solvers(self) -> list[Solver]:
        """All of them. A model of the zoo that cannot be opened is left out with a line that says why."""
        for name in self.names:
            try:
                self[name]
            except Exception as error:
                if not self.zoo:
                    raise
                reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                print(f"ponder: the zoo model {name} is left out: {reason.partition(chr(10))[0]}", file=sys.stderr)
                del self.places[name]
        return [self[name] for name in self.names]

    def of(self, wanted: str) -> list[Solver]:
        """The model of that name, or all of that domain."""
        if wanted in self.places:
            return [self[wanted]]
        solvers = self.solvers
        if not any(s.domain.name == wanted for s in solvers):
            raise unknown("model or domain", wanted, {*self.places, *(s.domain.name for s in solvers)})
        return [s for s in solvers if s.domain.name == wanted]

    def choose(self, wanted: str, puzzle: str | Json) -> tuple[Solver, Tokens]:
        """The model of that name, or the first of that domain that reads the puzzle, or the nearest of those that take
        any size; and the puzzle as it reads it."""
        solvers = self.of(wanted)
        refusals = []
        for solver in solvers:
            try:
                return solver, solver.read(puzzle)
            except Unsolvable:
                raise  # it is this model's puzzle: that others cannot read it is no news
            except UserError as error:
                refusals.append(f"{solver.name}: {error}")
        if (found := nearest(solvers, puzzle)) is not None:
            other = self._at(*found)
            return other, other.read(puzzle)
        raise UserError("; ".join(refusals) if len(refusals) > 1 else refusals[0].partition(": ")[2])

    def _at(self, solver: Solver, domain: Domain) -> Solver:
        name = f"{solver.name} at {domain.sides}"
        other = self.sizes.pop(name, None) or solver.at(domain)
        self.sizes[name] = other  # the last one asked for
        if len(self.sizes) > SIZES:
            del self.sizes[next(iter(self.sizes))]
        return other
