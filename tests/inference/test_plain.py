"""Solving without torch: the same step as the model's, the same answers, and torch not loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.base.errors import UserError
from ponder.config.schema import ModelConfig
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams
from ponder.domains.contract import Domain
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.inference.plain import Beyond, Plain, PlainSolver, solver
from ponder.inference.solver import Solver
from ponder.inference.weights import ZOO, zoo_names
from ponder.model.reasoner import Reasoner
from tests.support import rounding

SMALL: dict[str, Any] = {"layers": 1, "width": 16, "heads": 1, "inner_multiple": 8, "h_cycles": 2, "l_cycles": 2}
ALONE: dict[str, Any] = {"states": 1, "gate": False, "bound": None, "post_norm": False}
BOARD: dict[str, Any] = {"mixer": "relations", "symbols": "equivariant", "positions": "none"}
VARIANTS: dict[str, dict[str, Any]] = {
    "two states": {"mixer": "mlp"},
    "two blocks": {"mixer": "mlp", "modules": "separate", "layers": 2, "high_layers": 1, "halting": "halt"},
    "bound alone": {"mixer": "mlp", "gate": False, "post_norm": False},
    "gate alone": {"mixer": "mlp", "bound": None, "prefix": 3},
    "neither": {"mixer": "mlp", "bound": None, "gate": False, "positions": "learned"},
    "one state": ALONE | {"mixer": "mlp", "halting": "none"},
    "dense": ALONE | {"mixer": "mlp", "states": 0, "halting": "none", "max_steps": 1},
    "board": ALONE | BOARD,
    "grid": BOARD | {"symbols": "own"},
    "asked": ALONE | BOARD | {"symbols": "own", "halting": "asked"},
    "tree": ALONE | BOARD | {"symbols": "own"},
}


def sudoku() -> Sudoku:
    return Sudoku(SudokuParams.model_validate({"size": 4, "source": "generate"}))


def life() -> Life:
    return Life(LifeParams.model_validate({"min_side": 4, "max_side": 4}))


def arithmetic() -> Arithmetic:
    return Arithmetic(ArithmeticParams.model_validate({"align": "right"}))


def doubled(model: Reasoner) -> Reasoner:
    model = model.double().eval().requires_grad_(False)
    if model.q_head is not None:
        model.q_head.float()  # in every precision
    return model


def made(domain: Domain, **changes: Any) -> Reasoner:
    torch.manual_seed(0)
    model = Reasoner(ModelConfig(**{**SMALL, **changes}), len(domain.vocab), domain.seq_len, 1, domain.geometry)
    for tensor in model.state_dict().values():
        tensor.normal_(0, 0.4)
    return doubled(model)


def same_steps(model: Reasoner, domain: Domain, count: int) -> None:
    """Logits and halting logits of a few steps, as near as rounding lets them be: norms and the halting head are
    float32 in every precision."""
    inputs = domain.sample(3, 1)[0][0]

    def by_torch() -> list[torch.Tensor]:
        carry, out = model.start(torch.zeros(1, dtype=torch.int64), torch.float64), []
        for _ in range(count):
            step = model(carry, torch.from_numpy(inputs[None]).long(), model.table[:1], noise=0.0)
            carry = step.carry
            out += [step.logits[0], *([] if step.q_halt is None else [step.q_halt.double()])]
        return out

    plain = Plain(model.config, domain, {name: t.double().numpy() for name, t in model.state_dict().items()})
    carry, got = plain.start(), []
    for _ in range(count):
        step = plain(carry, inputs)
        carry = step.carry
        got += [torch.from_numpy(step.logits), *([] if step.q_halt is None else [torch.tensor([step.q_halt])])]
    wanted = by_torch()
    assert len(got) == len(wanted)
    rounding.agree(got, wanted, rounding.limits(by_torch, model.state_dict().values()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_is_the_models(variant: str) -> None:
    domain = {"asked": life, "tree": arithmetic}.get(variant, sudoku)()
    same_steps(made(domain, **VARIANTS[variant]), domain, 3)


@pytest.mark.parametrize("name", zoo_names())
def test_every_model_of_the_zoo_thinks_the_same(name: str) -> None:
    usual = Solver(name)
    same_steps(doubled(usual.opened.model), usual.domain, 2)


@pytest.mark.parametrize("name", zoo_names())
def test_answers_are_of_the_same_kind(name: str) -> None:
    quick, usual = PlainSolver(name, steps=4), Solver(name, steps=4)
    puzzles = list(usual.domain.sample(5, 2)[0])
    for a, b in zip(quick.solve_tokens(puzzles), usual.solve_tokens(puzzles), strict=True):
        assert (a.model, a.domain.name, len(a.tokens)) == (b.model, b.domain.name, len(b.tokens))
        assert np.isnan(a.confidence) == np.isnan(b.confidence)
        assert (a.verified is None) == (b.verified is None)
        # A checker's domain stops both at the first accepted answer, or both at the budget; asked ones at theirs.
        assert [t.step for t in a.trace] == list(range(1, a.steps + 1))
        assert a.verified or a.steps == b.steps or b.verified


@pytest.mark.parametrize("changes", [{"mixer": "attention"}, {"norm": "pre"}, {"init": "random"}, {"mlp_conv": True}])
def test_what_is_not_covered_says_so(changes: dict[str, Any]) -> None:
    domain = sudoku()
    with pytest.raises(Beyond):
        Plain(ModelConfig(**{**SMALL, "mixer": "mlp", **changes}), domain, {})


def test_what_is_not_covered_is_opened_the_usual_way(tmp_path: Path) -> None:
    assert type(solver("sudoku-4x4", None, "cpu", None, 0)) is PlainSolver
    assert type(solver(ZOO / "sudoku-4x4", None, "cpu", None, 0)) is Solver, "a folder may hold anything"
    with pytest.raises(UserError, match="there is no"):
        solver(tmp_path / "none", None, "cpu", None, 0)


def test_a_refused_puzzle_is_searched_as_by_the_usual_solver() -> None:
    plain, usual = solver("sudoku-6x6", 1, "cpu", None, None), Solver("sudoku-6x6", 1, search=None)
    puzzles = [plain.domain.format(each) for each in plain.domain.sample(4, 40)[0]]
    both = zip(plain.solve_many(puzzles), usual.solve_many(puzzles), strict=True)
    # Where rounding does not turn the first thought itself.
    same = [(a, b) for a, b in both if np.array_equal(a.trace[0].answer, b.trace[0].answer)]
    equal = [(a.text, a.note, a.verified) == (b.text, b.note, b.verified) for a, b in same]
    assert sum(equal) >= len(equal) - 2  # nor which cell it is least sure about
    assert any("supposing" in a.note for a, _ in same)


def test_a_refused_expression_gets_the_answers_that_are_likely() -> None:
    plain, usual = solver("arithmetic-3-5", None, "cpu", None, None), Solver("arithmetic-3-5", search=None)
    answered = usual.solve_tokens(list(plain.domain.sample(4, 200)[0]))
    refused = [answer for answer in answered if answer.tries]
    both = zip(plain.solve_tokens([answer.inputs for answer in refused]), refused, strict=True)
    same = [(a, b) for a, b in both if np.array_equal(a.trace[0].answer, b.trace[0].answer)]
    equal = [(a.text, a.note, a.verified, a.tries) == (b.text, b.note, b.verified, b.tries) for a, b in same]
    assert len(same) > 4 and sum(equal) >= len(equal) - 1  # where rounding does not turn which answer is likelier
    assert all(a.verified and "checking what the model finds likely (try" in a.note for a, _ in same)


@pytest.mark.parametrize(
    "words",
    [
        ["sudoku-4x4", "--random", "3"],
        ["sudoku-6x6", "--random", "8", "--steps", "1"],
        ["sudoku", "1... .2.. ..3. ...4", "--json"],
    ],
)
def test_a_puzzle_is_solved_without_loading_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom ponder.cli import main\n"
        f"assert main(['solve', *{words}]) in (0, 1)\n"
        "heavy = {'torch', 'matplotlib', 'huggingface_hub', 'sympy', 'onnxruntime', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
