"""Verified search: what restarts are, which answer is chosen, and what it costs."""

import json
import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from ponder.base import rng
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.cli import main
from ponder.config.resolve import resolve
from ponder.config.schema import SearchPlan
from ponder.data import Dataset
from ponder.domains.contract import Batch, Ints, Tokens
from ponder.evaluation.search import breadths, report
from ponder.evaluation.subject import Subject
from ponder.inference.engine import Checker, Engine, Full, logits_of
from ponder.inference.search import restart_keys, search
from ponder.inference.tries import Found, likeliest, suppositions
from ponder.inference.weights import Opened, open_weights
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from tests.conftest import tiny
from tests.support.rounding import SLACK, nudged
from tests.support.stub import NEVER, Stub, solved

N, ETA = 40, 0.1
FIRST = np.where(np.arange(N) % 3 == 0, NEVER, 1 + np.arange(N) % 7)
"""Without noise, a third of the puzzles is never solved."""


@pytest.fixture(scope="module")
def puzzles(dataset: Dataset) -> tuple[Tokens, Tokens]:
    batch = dataset.source("test").fetch(np.arange(N), np.zeros(N, dtype=np.int64))
    return batch.inputs, batch.labels


def stub(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> Reasoner:
    return cast(Reasoner, Stub(*puzzles, FIRST, len(dataset.domain.vocab)))


def same(a: Found, b: Found, where: Ints | slice = slice(None)) -> bool:
    fields = ("answers", "restart", "steps", "confidence", "accepted", "compute")
    return all(np.array_equal(getattr(a, f)[where], getattr(b, f)) for f in fields)


@pytest.mark.parametrize("restarts", [1, 2, 5])
def test_the_first_accepted_answer_and_its_price(
    restarts: int, puzzles: tuple[Tokens, Tokens], dataset: Dataset
) -> None:
    """Against each trajectory on its own: the lowest restart of the earliest step, and restarts x that step."""
    model, depth = stub(puzzles, dataset), 6
    found = search(model, dataset.domain, puzzles[0], SearchPlan(restarts, depth, ETA, seed=3), slots=8)
    wake = Stub.wake(torch.from_numpy(restart_keys(3, np.arange(N), restarts))).numpy()
    wake[:, 0] = FIRST
    for i in range(N):
        earliest = int(wake[i].min())
        if earliest <= depth:
            assert found.restart[i] == int(np.flatnonzero(wake[i] == earliest)[0])
            assert found.steps[i] == earliest and found.compute[i] == restarts * earliest
        else:
            assert found.restart[i] == 0 and found.compute[i] == restarts * depth and found.steps[i] == depth
        assert found.accepted[i] == (earliest <= depth) == solved(puzzles[0][i], found.answers[i], 4)
    if restarts > 1:
        assert len(set(found.restart.tolist())) > 1
    assert cast(Stub, model).rows_run == found.compute.sum(), "work that is not in the bill"


def test_never_worse_than_plain_and_the_rest_is_plain(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    model = stub(puzzles, dataset)
    for depth in (1, 3, 6):
        plain = Engine(model, dataset.domain, 16, Full(), depth).run(puzzles[0])
        found = search(model, dataset.domain, puzzles[0], SearchPlan(4, depth, ETA))
        right = dataset.domain.check(puzzles[0], plain.answers)
        assert (found.accepted >= right).all() and found.accepted.sum() > right.sum()
        assert (found.answers[~found.accepted] == plain.answers[~found.accepted]).all()


def test_a_search_repeats_and_depends_on_nothing_else(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    """Same seed, same answers, whatever the number of slots and whichever other puzzles are searched beside."""
    model, domain, plan = stub(puzzles, dataset), dataset.domain, SearchPlan(4, 6, ETA, seed=1)
    found = search(model, domain, puzzles[0], plan)
    for slots in (1, 9, 1000):
        assert same(search(model, domain, puzzles[0], plan, slots=slots), found)
    some = np.array([31, 2, 17, 8])
    assert same(found, search(model, domain, puzzles[0][some], plan, numbers=some), some)
    assert not same(search(model, domain, puzzles[0], SearchPlan(4, 6, ETA, seed=2)), found)
    assert len({int(k) for seed in (0, 1) for k in restart_keys(seed, np.arange(50), 8).ravel()}) == 800


@pytest.fixture(scope="module")
def noisy_model(dataset: Dataset) -> Reasoner:
    torch.manual_seed(2)
    model = Reasoner(tiny().model, len(dataset.domain.vocab), dataset.domain.seq_len).eval()
    with torch.no_grad():
        assert model.q_head is not None
        model.q_head.weight.normal_()
    return model


@pytest.mark.numeric
@torch.no_grad()
def test_by_confidence_all_run_to_the_end_and_the_surest_answer_wins(
    noisy_model: Reasoner, puzzles: tuple[Tokens, Tokens], dataset: Dataset
) -> None:
    """A real model with real noise, against each trajectory run in a batch of its own; restart 0 is the plain run."""
    inputs, plan = puzzles[0][:7], SearchPlan(3, 4, noise=0.1, seed=5, select="confidence")
    found = search(noisy_model, dataset.domain, inputs, plan, slots=6)
    keys = torch.from_numpy(restart_keys(5, np.arange(7), 3))

    def trajectories() -> tuple[torch.Tensor, torch.Tensor]:
        """Confidence [puzzle, restart, step] and logits."""
        sure, logits = torch.zeros(7, 3, 4), torch.zeros(7, 3, 4, 16, len(dataset.domain.vocab))
        for restart in range(3):
            carry = noisy_model.start(keys[:, restart])
            for t in range(4):
                rows, noise = noisy_model.table[:1].expand(7, -1), 0.1 * (restart > 0)
                step = noisy_model(carry, torch.from_numpy(inputs).long(), rows, noise=noise)
                carry = step.carry
                sure[:, restart, t], logits[:, restart, t] = step.q_halt, step.logits
        return sure, logits

    surest, logits = trajectories()
    with nudged(noisy_model.state_dict().values(), 0):
        both = zip(trajectories(), (surest, logits), strict=True)
        reach, moved = (SLACK * float((new - old).abs().max()) for new, old in both)
    assert len(np.unique(surest[:, :, 0].numpy().round(4))) > 7, "the noise should tell the restarts apart"
    clear = 0
    for i in range(7):
        restart, t = divmod(int(surest[i].argmax()), 4)
        best, second = surest[i].flatten().topk(2).values.tolist()
        lead = logits[i, restart, t].topk(2).values
        if best - second <= 2 * reach or float((lead[:, 0] - lead[:, 1]).min()) <= 2 * moved:
            continue  # rounding might choose another
        clear += 1
        assert (found.restart[i], found.steps[i]) == (restart, t + 1)
        assert abs(found.confidence[i] - best) <= reach
        assert (found.answers[i] == logits[i, restart, t].argmax(-1).numpy()).all()
    assert clear >= 5
    assert (found.compute == 12).all() and not found.accepted.any() and len(set(found.restart)) > 1


class Scripted(Stub):
    """Everything that a rule may look at is a small integer that the trajectory's key and the step decide."""

    def number(self, key: torch.Tensor, step: torch.Tensor, use: int, below: int) -> torch.Tensor:
        return (rng.uniform(rng.fold(key, use, step)) * below).to(torch.int64)

    def forward(self, carry: Carry, inputs: torch.Tensor, rows: torch.Tensor, noise: float | None = None) -> Step:
        key, step = carry.key, carry.steps + 1
        answer = 1 + self.number(key, step, 1, self.vocab - 1)
        q_halt = self.number(key, step, 2, 9).float() - 7.5
        logits = torch.nn.functional.one_hot(answer, self.vocab).float() * (1 + self.number(key, step, 3, 50))[:, None]
        assert carry.states.h is not None
        h = carry.states.h + (1 + self.number(key, step, 4, 50))[:, None, None].float()
        states = States(h, torch.zeros_like(h))
        logits = logits[:, None].expand(-1, self.tokens, -1)
        return Step(Carry(states, step, key), logits, q_halt, torch.zeros_like(q_halt), None)

    def start(self, key: torch.Tensor, dtype: torch.dtype = torch.float32) -> Carry:
        return Carry(States(torch.full((len(key), 1, 1), 100.0), torch.zeros(len(key), 1, 1)), key * 0, key)


@dataclass(frozen=True)
class Point:
    """What one restart says at one step."""

    restart: int
    step: int
    answer: int
    q: float
    energy: float
    residual: float


def points(model: Scripted, keys: Ints, depth: int) -> list[Point]:
    """The script read one number at a time, step by step, restart by restart."""
    out = []
    for step in range(1, depth + 1):
        for restart, key in enumerate(torch.from_numpy(keys)):
            a, q, e = (
                int(model.number(key, torch.tensor(step), use, below))
                for use, below in ((1, model.vocab - 1), (2, 9), (3, 50))
            )
            moves = [1 + int(model.number(key, torch.tensor(s), 4, 50)) for s in range(1, step + 1)]
            # The best symbol has the logit 1 + e, the others 0: s(x) is x + 1 there.
            energy = -math.log(2 + e + model.vocab - 1)
            out.append(Point(restart, step, 1 + a, q - 7.5, energy, moves[-1] / (100 + sum(moves[:-1]))))
    return out


def chosen(select: str, said: list[Point], depth: int) -> Point:
    """Each rule in words, as a choice among all points; `min` takes the first of equals."""
    last = [p for p in said if p.step == depth]
    if select == "confidence":
        return min(said, key=lambda p: -p.q)
    if select == "first-halt":
        first = min([p.step for p in said if p.q > 0] + [depth])
        stopped = [p for p in said if p.step == first and (p.q > 0 or first == depth)]
        return min(stopped, key=lambda p: -p.q)
    return min(last, key=lambda p: p.residual if select == "residual" else p.energy)


@pytest.mark.parametrize("select", ["confidence", "first-halt", "residual", "energy"])
def test_each_rule_chooses_as_it_says(select: Any, puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    script = Scripted(*puzzles, FIRST, len(dataset.domain.vocab))
    plan = SearchPlan(3, 5, ETA, seed=2, select=select)
    found = search(cast(Reasoner, script), dataset.domain, puzzles[0], plan, slots=8)
    keys = restart_keys(2, np.arange(N), 3)
    picked = [chosen(select, points(script, keys[i], 5), 5) for i in range(N)]
    assert found.restart.tolist() == [p.restart for p in picked] and found.steps.tolist() == [p.step for p in picked]
    assert found.answers[:, 0].tolist() == [p.answer for p in picked]
    ends = [p.step if select == "first-halt" else 5 for p in picked]
    assert found.compute.tolist() == [3 * end for end in ends] and not found.accepted.any()
    assert len(set(found.restart.tolist())) == 3, "no choice to speak of"


def test_rules_that_a_model_cannot_follow_are_refused(dataset: Dataset, puzzles: tuple[Tokens, Tokens]) -> None:
    dense = resolve("sudoku-mini", "dense", {"model": {"width": 16, "heads": 2}}).model
    model = Reasoner(dense, len(dataset.domain.vocab), dataset.domain.seq_len)
    for select, why in (("first-halt", "needs a halting head"), ("residual", "needs a state")):
        with pytest.raises(UserError, match=why):
            search(model, dataset.domain, puzzles[0], SearchPlan(2, 2, ETA, select=cast(Any, select)))


@torch.no_grad()
def test_restarts_from_random_states_need_no_noise(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    torch.manual_seed(0)
    config = tiny(model={"init": "random"}).model
    model = Reasoner(config, len(dataset.domain.vocab), dataset.domain.seq_len).eval()
    found = search(model, dataset.domain, puzzles[0][:9], SearchPlan(4, 2, 0.0, select="residual"))
    assert len(set(found.restart.tolist())) > 1


def test_what_proves_nothing_is_refused(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    model = stub(puzzles, dataset)
    for preset, why in (("life-mini", "computes the answer"), ("arc1-mini", "no checker"), ("joint-mini", "Life")):
        with pytest.raises(UserError, match=why):
            search(model, resolve(preset).data.make(), puzzles[0], SearchPlan(2, 2, ETA))
    with pytest.raises(UserError, match="all restarts the same"):
        search(model, dataset.domain, puzzles[0], SearchPlan(2, 4, noise=0.0))
    for bad in ((0, 4), (4, 0)):
        with pytest.raises(UserError, match="at least 1"):
            SearchPlan(*bad, ETA)


def test_breadth_against_depth(puzzles: tuple[Tokens, Tokens], dataset: Dataset) -> None:
    assert [breadths(r) for r in (1, 4, 6)] == [[1], [1, 2, 4], [1, 2, 4, 6]]
    opened = Opened("stub", Path("stub"), stub(puzzles, dataset), tiny(), dataset.domain, None, "")
    batch = Batch(*puzzles, np.zeros(N, dtype=np.int64))
    what = Subject(opened, dataset.domain, "test", np.arange(N), batch, dataset.hash)
    result = report(what, SearchPlan(4, 6, ETA), totals=[6, 24, 25])
    cells = {(c.restarts, c.steps): c for c in result.table}
    assert set(cells) == {(1, 6), (2, 3), (4, 1), (1, 24), (2, 12), (4, 6), (1, 25)}
    assert all(c.mean_compute <= c.max_compute <= c.total == c.restarts * c.steps for c in result.table)
    assert cells[4, 6] == result.found and result.plain.mean_compute == result.plain.total == 6
    # The noise of a restart does not depend on how many there are: wider and deeper can only find more.
    found = {key: c.valid.value for key, c in cells.items()}
    assert found[4, 1] < found[4, 6] and found[1, 6] < found[4, 6] and found[2, 3] <= found[2, 12]
    assert found[1, 6] == (FIRST <= 6).mean() == result.plain.valid.value and found[1, 24] == (FIRST <= 24).mean()
    assert cells[1, 6].mean_compute < result.plain.mean_compute, "accepted answers end a search"


def test_the_command(dataset: Dataset, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    config = tiny(train={"updates": 2, "warmup": 0, "eval_every": 2, "save_every": 2})
    train_in(config, folder, data_dir, Runtime(torch.device("cpu")), Limits(), quiet=True)
    capsys.readouterr()
    words = ["search", str(folder), "--data-dir", str(data_dir), "--limit", "6", "--device", "cpu"]
    assert main([*words, "--restarts", "2", "--steps", "2", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "plain, 2 steps" in out and "search, 2 x 2" in out and "breadth against depth" in out
    said = json.loads((tmp_path / "out" / "search.json").read_text(encoding="utf-8"))
    assert said["n"] == 6 and said["plan"]["noise"] == 0.16 / 16**0.5 and said["data_hash"] == dataset.hash
    assert {(c["restarts"], c["steps"]) for c in said["table"]} == {(1, 2), (2, 1), (1, 4), (2, 2)}
    assert (tmp_path / "out" / "search.png").stat().st_size > 10_000
    assert main([*words, "--noise", "0"]) == 2 and "all restarts the same" in capsys.readouterr().err


# Suppositions ---------------------------------------------------------------------------------------------------------


def test_suppositions_are_the_two_likeliest_symbols_of_the_cells_it_is_least_sure_about(
    puzzles: tuple[Tokens, Tokens], dataset: Dataset
) -> None:
    domain, puzzle = dataset.domain, puzzles[0][0]
    logits = np.random.default_rng(0).normal(size=(domain.seq_len, len(domain.vocab))).astype(np.float32)
    wanted = []
    for cell in [i for i in range(domain.seq_len) if domain.vocab[puzzle[i]] == "."]:
        digits = sorted(
            (t for t in range(len(domain.vocab)) if domain.vocab[t].isdigit()), key=lambda t: -logits[cell, t]
        )
        wanted.append((logits[cell, digits[0]] - logits[cell, digits[1]], cell, digits[:2]))
    pairs = [(cell, digit) for _, cell, digits in sorted(wanted) for digit in digits]
    for count in (1, 5, len(pairs), len(pairs) + 9):
        tries = suppositions(domain, puzzle, logits, count)
        assert len(tries) == min(count, len(pairs))
        for supposed, (cell, digit) in zip(tries, pairs, strict=False):
            assert np.flatnonzero(supposed != puzzle).tolist() == [cell] and supposed[cell] == digit


def test_a_search_by_supposition_is_one_puzzle_after_the_other() -> None:
    """Against the plain run and each supposition alone; what it finds solves the puzzle itself."""
    opened = open_weights("sudoku-6x6")
    assert opened.domain is not None
    inputs, _ = opened.domain.sample(5, 20)
    plan = SearchPlan(7, 1, 0.0, vary="suppose")
    found = search(opened.model, opened.domain, inputs, plan, slots=1)  # as alone, to the same bits
    assert (found.restart > 0).any() and not found.accepted.all(), "else this shows nothing"
    assert np.array_equal(found.accepted, opened.domain.check(inputs, found.answers))
    for i, puzzle in enumerate(inputs):
        tries = [puzzle, *suppositions(opened.domain, puzzle, logits_of(opened.model, puzzle, plan.steps), 6)]
        alone = [Engine(opened.model, opened.domain, 1, Checker(), plan.steps).run(one[None]) for one in tries]
        right = [k for k, one in enumerate(alone) if one.accepted is not None and one.accepted[0]]
        chosen = right[0] if right else 0
        assert found.restart[i] == chosen and found.accepted[i] == bool(right)
        assert np.array_equal(found.answers[i], alone[chosen].answers[0])
        assert found.compute[i] == sum(one.steps[0] for one in alone[: chosen + 1 if right else None])


def test_likely_answers_come_in_the_order_of_their_chances() -> None:
    """Against all answers, sorted; the model's own is not among them."""
    domain = resolve("arithmetic-mini").data.make()
    generator, operators = np.random.default_rng(0), 0
    for number, puzzle in enumerate(domain.sample(2, 40)[0]):
        logits = generator.normal(size=(domain.seq_len, len(domain.vocab))).astype(np.float32)
        cells, symbols = domain.open_cells(puzzle)
        logits[:, symbols] += number / 10
        assert [domain.vocab[token] for token in symbols] == ["+", "-", "*", "/"]
        chance = {
            tokens: sum(float(logits[cell, token]) for cell, token in zip(cells, tokens, strict=True))
            for tokens in product(symbols.tolist(), repeat=len(cells))
        }
        own = tuple(logits[cells].argmax(axis=1).tolist())  # of all tokens, an operator or not
        wanted = [tokens for tokens in sorted(chance, key=lambda tokens: -chance[tokens]) if tokens != own]
        operators += own in chance
        for count in (1, 7, len(wanted), len(wanted) + 9):
            answers = likeliest(domain, puzzle, logits, count)
            assert [tuple(answer[cells].tolist()) for answer in answers] == wanted[:count]
    assert 0 < operators < 40


def test_a_search_among_likely_answers_ends_at_the_first_right_one() -> None:
    opened = open_weights("arithmetic-3-5")
    domain = opened.domain
    assert domain is not None
    inputs, _ = domain.sample(5, 50)
    plan = SearchPlan(6, 1, 0.0, vary="likely")
    found = search(opened.model, domain, inputs, plan, slots=1)
    assert (found.restart > 0).any() and not found.accepted.all(), "else this shows nothing"
    assert np.array_equal(found.accepted, domain.check(inputs, found.answers))
    for i, puzzle in enumerate(inputs):
        logits = logits_of(opened.model, puzzle, 1)
        answers = [logits.argmax(axis=1).astype(np.uint8), *likeliest(domain, puzzle, logits, 5)]
        right = [k for k, answer in enumerate(answers) if domain.check(puzzle[None], answer[None])[0]]
        assert found.restart[i] == (right[0] if right else 0) and found.accepted[i] == bool(right)
        assert np.array_equal(found.answers[i], answers[right[0] if right else 0])
        assert found.compute[i] == 1 + (right[0] if right else len(answers) - 1) <= plan.total


def test_suppositions_need_cells_to_fill_in_and_the_checker(dataset: Dataset, puzzles: tuple[Tokens, Tokens]) -> None:
    model = stub(puzzles, dataset)
    for preset, also in (("maze-mini", ""), ("arithmetic-mini", " or likely")):
        with pytest.raises(UserError, match=f"cannot vary by suppose: give --vary noise{also}$"):
            search(model, resolve(preset).data.make(), puzzles[0], SearchPlan(2, 2, ETA, vary="suppose"))
    with pytest.raises(UserError, match="leave out --select confidence"):
        search(model, dataset.domain, puzzles[0], SearchPlan(2, 2, ETA, select="confidence", vary="suppose"))
