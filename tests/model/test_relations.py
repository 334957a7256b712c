"""The mixer over relations and exchangeable symbols: their definition in loops, the symmetries, any size of board."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ponder.base.errors import UserError
from ponder.base.geometry import Geometry, Relation
from ponder.config.schema import ModelConfig, parse
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams
from ponder.domains.maze.domain import Maze, MazeParams
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.model import cost
from ponder.model.products import SwiGLU
from ponder.model.reasoner import Reasoner
from ponder.model.relations import Links, Relations
from tests.support.rounding import FORMULA, agree

BOARD: dict[str, Any] = {
    "states": 1,
    "layers": 1,
    "width": 16,
    "heads": 1,
    "expansion": 3.0,
    "inner_multiple": 8,
    "h_cycles": 1,
    "l_cycles": 3,
    "h_horizon": 1,
    "l_horizon": 3,
    "mixer": "relations",
    "symbols": "equivariant",
    "positions": "none",
    "bound": None,
    "gate": False,
    "post_norm": False,
    "halting": "halt",
}


def sudoku(size: int) -> Sudoku:
    return Sudoku(SudokuParams.model_validate({"size": size, "source": "generate"}))


def made(domain: Sudoku, **changes: Any) -> Reasoner:
    torch.manual_seed(0)
    config = ModelConfig(**{**BOARD, **changes})
    model = Reasoner(config, len(domain.vocab), domain.seq_len, 1, domain.geometry).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    assert model.q_head is not None
    model.q_head.float()  # the halting head is float32 in every precision
    return model


def logits(model: Reasoner, inputs: Tensor, steps: int = 2) -> tuple[Tensor, Tensor]:
    carry = model.start(torch.zeros(len(inputs), dtype=torch.int64), torch.float64)
    with torch.no_grad():
        for _ in range(steps):
            step = model(carry, inputs, torch.zeros(len(inputs), model.config.width, dtype=torch.float64))
            carry = step.carry
    assert step.q_halt is not None
    return step.logits, step.q_halt


def puzzles(domain: Sudoku, count: int = 3) -> Tensor:
    return torch.from_numpy(domain.sample(0, count)[0].astype(np.int64))


# Against the definition -----------------------------------------------------------------------------------------------


def swiglu(mlp: SwiGLU, x: Tensor) -> Tensor:
    gate, up = (mlp.up.weight @ x).chunk(2)
    return mlp.down.weight @ (F.silu(gate) * up)


@pytest.mark.parametrize("symbols", ["own", "equivariant"])
def test_what_a_token_hears_is_what_its_groups_say(symbols: str) -> None:
    geometry = Geometry(
        (Relation.units("pair", [(0, 1), (2, 3)]), Relation.neighbours("next", 1, 4, [(0, 1)])), symbols=(1, 2, 3)
    )
    config = ModelConfig(**{**BOARD, "symbols": symbols, "prefix": 2})
    kinds = 3 if symbols == "equivariant" else 1
    torch.manual_seed(0)
    mixer = Relations(config, 2 + 4 * kinds, geometry).double()
    x = torch.randn(2, 2 + 4 * kinds, config.width, dtype=torch.float64)
    out = mixer(x, mixer.weights(None))

    members = {"pair": [[0, 1], [0, 1], [2, 3], [2, 3]], "next": [[1], [2], [3], []]}
    for b in range(2):
        everyone = swiglu(mixer.kinds["mean"], x[b].mean(0))  # type: ignore[arg-type]
        assert torch.allclose(out[b, :2], everyone.expand(2, -1))
        for cell in range(4):
            for k in range(kinds):
                heard = everyone
                for name, groups in members.items():
                    if groups[cell]:
                        total = sum(x[b, 2 + other * kinds + k] for other in groups[cell])
                        heard = heard + swiglu(mixer.kinds[name], total / len(groups[cell]) ** 0.5)  # type: ignore
                if kinds > 1:
                    whole = x[b, 2 + cell * kinds : 2 + (cell + 1) * kinds].sum(0) / kinds**0.5
                    heard = heard + swiglu(mixer.kinds["symbols"], whole)  # type: ignore[arg-type]
                assert torch.allclose(out[b, 2 + cell * kinds + k], heard)


def test_neighbours_end_at_the_edge() -> None:
    around = Relation.neighbours("around", 2, 3, [(-1, 0), (1, 0), (0, -1), (0, 1)])
    assert around.groups == ((3, 1), (4, 0, 2), (5, 1), (0, 4), (1, 3, 5), (2, 4))
    assert around.tells == ((0,), (1,), (2,), (3,), (4,), (5,))


def test_a_grid_tells_where_a_neighbour_is() -> None:
    """Each direction has weights of its own: a board upside down is another board to the model."""
    domain = Maze(MazeParams.model_validate({"source": "generate", "height": 3, "width": 3, "min_path": 2}))
    groups = {relation.name: relation.groups for relation in domain.geometry.relations}
    assert groups == {
        "above": ((), (), (), (0,), (1,), (2,), (3,), (4,), (5,)),
        "left": ((), (0,), (1,), (), (3,), (4,), (), (6,), (7,)),
        "right": ((1,), (2,), (), (4,), (5,), (), (7,), (8,), ()),
        "below": ((3,), (4,), (5,), (6,), (7,), (8,), (), (), ()),
    }
    torch.manual_seed(0)
    mixer = Relations(ModelConfig(**{**BOARD, "symbols": "own", "prefix": 1}), 10, domain.geometry).double()
    x = torch.randn(1, 10, 16, dtype=torch.float64)
    upside_down = [0, 7, 8, 9, 4, 5, 6, 1, 2, 3]
    out, turned = (mixer(board, mixer.weights(None)) for board in (x, x[:, upside_down]))
    assert not torch.allclose(turned[:, upside_down], out)


# Trees ----------------------------------------------------------------------------------------------------------------


def arithmetic(operands: int = 8) -> Arithmetic:
    return Arithmetic(ArithmeticParams.model_validate({"max_operands": operands, "align": "right"}))


def test_links_join_what_is_computed_from_what() -> None:
    """3 4 ? 5 ? = 17: the first operator takes 3 and 4, the second takes what the first makes, and 5."""
    domain = arithmetic(4)
    inputs = domain.parse("3 4 ? 5 ? = 17")
    three, four, plus, five, times = range(3, 8)  # behind three of padding
    assert [domain.vocab[token] for token in inputs[three : times + 1]] == ["3", "4", "?", "5", "?"]
    tree = domain.geometry.tree
    assert tree is not None
    none = domain.seq_len
    assert tree.links(inputs).tolist() == [
        [plus, times, none],
        [three, plus, none],
        [four, five, none],
        [times, none, none],
        [none, none, none],
    ]


def test_links_of_a_batch_are_those_of_each_puzzle() -> None:
    domain = arithmetic()
    tree, inputs = domain.geometry.tree, domain.sample(0, 300)[0]
    assert tree is not None and {int((each == 1).sum()) for each in inputs} == {*range(2, 8)}
    found = Links(len(domain.vocab), tree)(torch.from_numpy(inputs.astype(np.int64)))
    assert found.tolist() == [tree.links(each).tolist() for each in inputs]


def test_an_operator_hears_what_it_takes_and_what_takes_it() -> None:
    domain = arithmetic(5)
    config = ModelConfig(**{**BOARD, "symbols": "own", "prefix": 2})
    torch.manual_seed(0)
    mixer = Relations(config, 2 + domain.seq_len, domain.geometry).double()
    inputs = domain.sample(1, 6)[0]
    tree = domain.geometry.tree
    assert tree is not None
    x = torch.randn(6, 2 + domain.seq_len, config.width, dtype=torch.float64)
    links = torch.from_numpy(np.stack([tree.links(each) for each in inputs]))
    out, without = mixer(x, mixer.weights(None), links), mixer(x, mixer.weights(None))
    for b, puzzle in enumerate(inputs):
        told = torch.zeros_like(x[b])
        for itself, *others in tree.links(puzzle).T.tolist():
            if itself < domain.seq_len:
                heard = [x[b, 2 + at] if at < domain.seq_len else torch.zeros(16).double() for at in (itself, *others)]
                told[2 + itself] = swiglu(mixer.kinds["tree"], torch.cat(heard))  # type: ignore[arg-type]
        assert torch.allclose(out[b] - without[b], told)


# Symmetries -----------------------------------------------------------------------------------------------------------


def test_renaming_digits_renames_the_answer_and_nothing_else() -> None:
    domain = sudoku(6)
    model, inputs = made(domain), puzzles(domain)
    named = torch.tensor([0, 1, *(2 + torch.randperm(6, generator=torch.Generator().manual_seed(1))).tolist()])
    before, halt = logits(model, inputs)
    after, halt_after = logits(model, named[inputs])
    assert torch.allclose(after[..., named], before)
    assert torch.allclose(halt_after, halt)
    own, _ = logits(made(domain, symbols="own"), inputs)
    own_after, _ = logits(made(domain, symbols="own"), named[inputs])
    assert not torch.allclose(own_after[..., named], own)


@pytest.mark.parametrize("symbols", ["own", "equivariant"])
def test_moving_rows_of_a_band_moves_the_answer(symbols: str) -> None:
    domain = sudoku(9)
    model, inputs = made(domain, symbols=symbols), puzzles(domain)
    cells = torch.arange(81).view(9, 9)
    for order in (
        cells[[2, 0, 1, 3, 4, 5, 6, 7, 8]].flatten(),
        cells.t().flatten(),
        cells[:, [3, 4, 5, 0, 1, 2, 6, 7, 8]].flatten(),
    ):
        assert torch.allclose(logits(model, inputs[:, order])[0], logits(model, inputs)[0][:, order])
    torn = cells[[3, 1, 2, 0, 4, 5, 6, 7, 8]].flatten()  # rows of different bands: another puzzle
    assert not torch.allclose(logits(model, inputs[:, torn])[0], logits(model, inputs)[0][:, torn])


def test_the_weights_fit_every_size() -> None:
    small, large = made(sudoku(4)), made(sudoku(9))
    large.load_state_dict(small.state_dict())
    assert logits(large, puzzles(sudoku(9)))[0].shape == (3, 81, 11)


# What it costs, and what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("symbols", ["own", "equivariant", "tree"])
def test_flops_are_what_torch_counts_without_zeros(symbols: str) -> None:
    domain: Sudoku | Arithmetic = arithmetic(5) if symbols == "tree" else sudoku(4)
    config = ModelConfig(**{**BOARD, "symbols": "own" if symbols == "tree" else symbols})
    tokens = domain.seq_len
    with torch.device("meta"):
        model = Reasoner(config, len(domain.vocab), tokens, 1, domain.geometry).eval()
        carry, inputs = model.start(torch.zeros(1, dtype=torch.int64)), torch.ones(1, tokens, dtype=torch.int64)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(carry, inputs, torch.zeros(1, config.width))
    told = domain.geometry.told(tokens)
    zeros = 2 * told.gather.size - told.terms  # torch multiplies them too, which is no use
    wasted = 2 * zeros * config.width * (4 if symbols == "equivariant" else 1) * cost.applications(config)
    counted = counter.get_total_flops() - wasted
    assert cost.flops(config, len(domain.vocab), domain.seq_len, domain.geometry).inference == counted


def test_a_domain_without_relations_or_symbols_is_refused() -> None:
    with pytest.raises(UserError, match="mixer relations needs a domain that has relations"):
        Reasoner(ModelConfig(**{**BOARD, "symbols": "own"}), 5, 4)
    with pytest.raises(UserError, match="exchangeable symbols"):
        Reasoner(ModelConfig(**BOARD), 5, 4, geometry=Geometry((Relation.units("all", [range(4)]),)))
    with pytest.raises(UserError, match="symbols equivariant needs mixer relations"):
        parse(ModelConfig, {**BOARD, "mixer": "mlp"})


def test_a_model_that_takes_the_steps_asked_for_hears_neighbours_alone() -> None:
    """What is far away, and how many cells there are, changes nothing: the rule that it learns is one of any board."""
    reach = 2  # rounds of one layer
    small = {"layers": 1, "width": 16, "heads": 1, "h_cycles": 1, "l_cycles": reach, "h_horizon": 1, "l_horizon": reach}
    config = ModelConfig(**{**BOARD, **small, "symbols": "own", "halting": "asked"})
    domains = {side: Life(LifeParams.model_validate({"min_side": side, "max_side": side})) for side in (7, 10)}
    models = {}
    for side, domain in domains.items():
        torch.manual_seed(0)
        models[side] = Reasoner(config, len(domain.vocab), domain.seq_len, 1, domain.geometry).double().eval()
        for tensor in models[side].state_dict().values():
            tensor.normal_(0, 0.4, generator=torch.Generator().manual_seed(tensor.numel()))
    rng = np.random.default_rng(0)
    near = rng.integers(2, size=(7, 7))
    found = []
    for side, filling in ((7, 0), (10, 0), (10, 1)):
        cells = np.full((side, side), filling)
        cells[:7, :7] = near
        inputs = torch.tensor(domains[side].from_json({"board": cells.tolist(), "steps": 1})[None]).long()
        model = models[side]
        with torch.no_grad():
            carry = model.start(torch.zeros(1, dtype=torch.int64), torch.float64)
            logits = model(carry, inputs, torch.zeros(1, 16, dtype=torch.float64)).logits[0]
        found.append(logits[: side * (side + 1) - 1].reshape(-1, logits.shape[-1]))
    inside = 7 - reach  # cells whose neighbours, so many rounds away, all lie on the small board
    tables = [
        torch.stack([rows[r * (side + 1) + c] for r in range(inside) for c in range(inside)])
        for rows, side in zip(found, (7, 10, 10), strict=True)
    ]
    assert torch.allclose(tables[0], tables[1]) and torch.allclose(tables[1], tables[2])


@pytest.mark.parametrize("kind", ["board", "grid", "wide grid"])
def test_the_form_for_a_cpu_is_the_plain_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, gradients and gradients of gradients, in float64; sums over lists and by products alike."""
    changes: dict[str, Any] = {} if kind == "board" else {"symbols": "own"}
    if kind == "wide grid":
        around = Relation.neighbours("around", 6, 8, [(0, 1), (1, 0), (0, -1), (-1, 0)])
        geometry, length = Geometry(relations=(around,)), 48
    else:
        geometry, length = sudoku(4).geometry, 16
    config = ModelConfig(**{**BOARD, **changes, "prefix": 2})
    length = config.prefix + length * (4 if kind == "board" else 1)
    torch.manual_seed(0)
    mixer = Relations(config, length, geometry).double()
    ends = mixer.ends
    assert (ends.gather.lists is not None) == (kind == "wide grid") and ends.tell.same == (kind == "wide grid")
    x = torch.randn(3, length, config.width, dtype=torch.float64, requires_grad=True)
    u, v = torch.randn_like(x), torch.randn_like(x)

    def run() -> list[Tensor]:
        out = mixer(x, mixer.weights(None))
        wanted = [x, *mixer.parameters()]
        first = torch.autograd.grad(out, wanted, u, retain_graph=True)
        (again,) = torch.autograd.grad(out, x, u.requires_grad_(), create_graph=True)
        return [out, *first, *torch.autograd.grad(again, (x, u), v)]

    fast = run()
    monkeypatch.setattr("ponder.model.relations.plain_only", lambda x: True)
    agree(fast, run(), [FORMULA] * len(fast))
