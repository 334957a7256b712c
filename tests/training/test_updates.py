"""Updates of the weights and of the puzzle table by kernels, against their definitions number by number in float64.

How far a kernel may be from its definition is what one part in ten million, in everything that goes in, does to that.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from itertools import product as combinations

import pytest
import torch
from torch import Tensor

from ponder.base import native
from ponder.config.schema import ModelConfig, TrainConfig
from ponder.model.reasoner import Reasoner
from ponder.training.optimisers import AdamAtan2, Average, PuzzleTable, Weights
from tests.model.test_kernels import SEVERAL, drawn, spied
from tests.model.test_program import bits, lib
from tests.model.test_whole import threads
from tests.support.rounding import DRAWS, EPS, agree, nudge, spread
from tests.training.test_optimisers import scalar_adam

NAN, INF = float("nan"), float("inf")


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


# The weights ----------------------------------------------------------------------------------------------------------

UPDATES, LR, DECAY = 4, 0.5, 0.3


@dataclass(frozen=True)
class Run:
    """A few updates of weights that belong to no model, by gradients of all sizes."""

    size: int
    decayed: int
    atan2: str = "outside"
    average: float | None = 0.7
    hurt: tuple[int, ...] = ()
    """Where the second gradient is no number."""

    @property
    def config(self) -> TrainConfig:
        given = {"updates": UPDATES, "atan2": self.atan2, "beta1": 0.9, "beta2": 0.95, "weight_decay": DECAY}
        return TrainConfig.model_validate(given)

    @property
    def start(self) -> Tensor:
        return drawn(self.size, seed=5)

    @property
    def grads(self) -> list[Tensor]:
        grads = [drawn(self.size, seed=t) * 10.0 ** (3 * t - 6) for t in range(UPDATES)]
        grads[1][list(self.hurt)] = NAN
        return grads

    def made(self) -> list[Tensor]:
        """After each update: the weights, both moments and the average of the weights."""
        weights, out = object.__new__(Weights), list[Tensor]()
        weights.value, weights.grad, weights.decayed = self.start, torch.zeros(self.size), self.decayed
        optimiser = AdamAtan2(weights, self.config)
        average = None if self.average is None else Average(weights, self.average)
        for grad in self.grads:
            weights.grad.copy_(grad)
            optimiser.update(LR, average)
            shown = (weights.value, optimiser.m, optimiser.v, None if average is None else average.value)
            out += [t.clone() for t in shown if t is not None]
        return out

    def exact(self, draw: int | None = None) -> list[Tensor]:
        """The same by the definition, of what goes in or of what a nudge makes of it."""
        config, start, grads, out = self.config, self.start.double(), [g.double() for g in self.grads], list[Tensor]()
        if draw is not None:
            nudge([start, *grads], draw)
        m, v = torch.zeros(2, self.size, dtype=torch.float64)
        kept = start
        for t, grad in enumerate(grads, start=1):
            value = [
                scalar_adam(
                    p, [float(g[i]) for g in grads[:t]], LR, DECAY if i < self.decayed else 0.0,
                    config.beta1, config.beta2, self.atan2,
                )
                for i, p in enumerate(start.tolist())
            ]  # fmt: skip
            m, v = config.beta1 * m + (1 - config.beta1) * grad, config.beta2 * v + (1 - config.beta2) * grad**2
            out += [torch.tensor(value, dtype=torch.float64), m, v]
            if self.average is not None:
                kept = self.average * kept + (1 - self.average) * out[-3]
                out.append(kept)
        return out


@pytest.mark.numeric
@pytest.mark.parametrize("atan2", ["outside", "inside"])
@pytest.mark.parametrize(
    ("size", "decayed"), [(1, 0), (1, 1), (15, 7), (16, 16), (17, 3), (17, 17), (33, 20), (1000, 985), (1000, 0)]
)
def test_an_update_of_weights(size: int, decayed: int, atan2: str) -> None:
    """However many there are, and wherever those begin that do not decay."""
    for average in (None, 0.7):
        given = Run(size, decayed, atan2, average)
        exact, moved = given.exact(), [given.exact(draw) for draw in range(DRAWS)]
        with spied() as called:
            agree(given.made(), exact, spread(exact, moved))
        assert called == ["adam_atan2"] * UPDATES
        with native.without(), spied() as called:
            agree(given.made(), exact, spread(exact, moved))
        assert called == []


def test_the_average_changes_nothing_of_the_weights() -> None:
    for atan2 in ("outside", "inside"):
        kept, alone = (Run(33, 20, atan2, average).made() for average in (0.7, None))
        kept = [t for number, t in enumerate(kept) if number % 4 < 3]
        assert all(same(a, b) for a, b in zip(kept, alone, strict=True))


def arrays(size: int) -> list[Tensor]:
    """A gradient, both moments, weights and their average, in the middle of a training."""
    return [drawn(size, seed=n).abs() if n == 2 else drawn(size, seed=n) for n in range(5)]


RATES = (0.1, 0.95, 0.05, 1.7, 1.3, 0.01, 0.9, 0.2)


def by_parts(size: int, ends: list[int], decayed: int, average: bool) -> list[Tensor]:
    """One update, in parts that end there."""
    out = arrays(size)
    for first, last in pairwise(ends):
        lib("adam_atan2", first, last, decayed, *RATES, *out[:4], out[4] if average else None)
    return out


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 40, 1000])
def test_weights_come_to_the_same_bits_wherever_they_are_parted(size: int, average: bool) -> None:
    for decayed in {0, size // 2 + 1, size}:
        whole = by_parts(size, [0, size], decayed, average)
        for cut in range(0, size + 1, 1 if size < 100 else 77):
            for ends in ([0, cut, size], [0, cut // 3, cut, size]):
                parted = by_parts(size, ends, decayed, average)
                assert all(same(a, b) for a, b in zip(whole, parted, strict=True)), (decayed, ends)


def test_weights_of_other_parts_are_left_alone() -> None:
    before, whole = arrays(50), by_parts(50, [0, 50], 30, True)
    for first, last in ((0, 1), (3, 19), (3, 20), (17, 17), (31, 50)):
        inside = (torch.arange(50) >= first) & (torch.arange(50) < last)
        for old, new, part in zip(before, whole, by_parts(50, [first, last], 30, True), strict=True):
            assert same(part, torch.where(inside, new, old)), (first, last)


@pytest.mark.parametrize("atan2", ["outside", "inside"])
def test_threads_that_share_weights_come_to_the_same_bits(atan2: str) -> None:
    given = Run(1000, 501, atan2)
    with threads(1):
        alone = given.made()
    for count in (2, 3):
        with threads(count), spied() as called:
            shared = given.made()
        assert called == ["adam_atan2"] * count * UPDATES, "the work was not shared"
        assert all(same(a, b) for a, b in zip(alone, shared, strict=True))


def angles(y: Tensor, square: Tensor) -> Tensor:
    """The angle of (root of square, y): what one step of size 1 takes from weights of 0, of such moments."""
    w, zero = torch.zeros_like(y), torch.zeros_like(y)
    lib("adam_atan2", 0, len(y), 0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, zero, y.clone(), square.clone(), w, None)
    return -w


@pytest.mark.numeric
def test_every_angle_is_right_to_the_last_places() -> None:
    """Relative to each number itself, whatever the sizes: those below the normal ones, none at all, both signs, and on
    either side of the diagonal."""
    tiny = torch.finfo(torch.float32).tiny
    sizes = torch.cat((torch.logspace(-44.8, 38.5, 800), torch.tensor([0.0, 1e-45, tiny, 1.0, 3.4e38])))
    y, square = (t.reshape(-1) for t in torch.meshgrid(torch.cat((sizes, -sizes)), sizes[::5], indexing="ij"))
    near_diagonal = torch.linspace(0.5, 2, 3001)
    y = torch.cat((y, near_diagonal, -near_diagonal))
    square = torch.cat((square, torch.ones(2 * len(near_diagonal))))
    ours, truth = angles(y, square).double(), torch.atan2(y.double(), square.double().sqrt())
    none = y == 0
    assert none.any() and not ours[none].any(), "no direction at all is one of 0"
    normal = truth.abs() >= tiny
    assert float((ours / truth - 1)[normal].abs().max()) <= SEVERAL * EPS
    assert float((ours - truth)[~normal].abs().max()) <= SEVERAL * EPS * tiny
    assert (normal & (y.abs() < tiny)).any() and (~normal & ~none).any()


def test_the_angle_of_special_points() -> None:
    cases = [(0.0, 0.0, 0.0), (1.0, 0.0, 90.0), (-1.0, 0.0, -90.0), (0.0, 4.0, 0.0), (2.0, 4.0, 45.0),
             (-2.0, 4.0, -45.0), (1e-45, 0.0, 90.0), (-3e38, 1e-45, -90.0), (3.0, INF, 0.0)]  # fmt: skip
    y, square, degrees = torch.tensor(cases).T.contiguous()
    assert (angles(y, square).double() - degrees.double().deg2rad()).abs().max() <= SEVERAL * EPS
    for point in ((NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, 0.0), (0.0, NAN)):
        assert angles(*torch.tensor([point]).T.contiguous()).isnan().all()


def test_a_gradient_that_is_no_number_is_seen_in_its_weight_and_nowhere_else() -> None:
    """Whether it is in a whole vector or in the rest."""
    hurt = (0, 7, 31, 32, 34)
    for atan2 in ("outside", "inside"):
        given = Run(35, 20, atan2)
        before, after = given.made(), replace(given, hurt=hurt).made()
        where = torch.zeros(35, dtype=torch.bool)
        where[list(hurt)] = True
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            expected = where if number >= 4 else torch.zeros_like(where)  # from the second update on
            assert torch.equal(new.isnan(), expected)
            assert same(old[~expected], new[~expected])


# The puzzle table -----------------------------------------------------------------------------------------------------

ROWS, TABLE_LR = 9, 0.05
Calls = dict[int, list[tuple[Tensor, Tensor]]]
"""Of every update, the rows that examples used and the gradients of these."""


def examples(width: int, several: bool) -> Calls:
    """Twelve updates, at some of which nothing is used, and rows that are used again and again, now and then, and
    never. Sums of gradients are exact, and often 0."""
    g, calls = torch.Generator().manual_seed(width), dict[int, list[tuple[Tensor, Tensor]]]()
    for t in range(1, 13):
        calls[t] = []
        for _ in range(0 if t % 5 == 3 else 3 if several and t % 2 else 1):
            rows = torch.randint(0, ROWS - 2, (6,), generator=g)
            grads = torch.randint(-2, 3, (6, width), generator=g).float()
            calls[t].append((rows, grads * 2.0**-t))
    calls[12].append((torch.tensor([ROWS - 2]), torch.ones(1, width)))
    return calls


def table(width: int, ema: float | None) -> PuzzleTable:
    torch.manual_seed(0)
    model = Reasoner(ModelConfig.model_validate({"width": width, "heads": 1, "layers": 1}), 5, 4, ROWS)
    model.table.normal_()
    config = TrainConfig.model_validate({"updates": 12, "weight_decay": DECAY, "ema": ema})
    return PuzzleTable(model, config)


def stepped(width: int, ema: float | None, calls: Calls) -> list[Tensor]:
    """The table and its average after each update."""
    made, out = table(width, ema), list[Tensor]()
    for t, each in calls.items():
        for rows, grads in each:
            had = grads.clone()
            made.update(rows, grads, TABLE_LR, t)
            assert same(grads, had), "gradients are the caller's"
        out += [made.value.clone(), made.averaged(t).clone()]
    return out


def defined(width: int, ema: float | None, calls: Calls, draw: int | None = None) -> list[Tensor]:
    """The same of all rows in float64. The average takes in where an update ends."""
    value = table(width, ema).value.double()
    if draw is not None:
        nudge([value], draw)
    average, out = value.clone(), list[Tensor]()
    for each in calls.values():
        for rows, grads in each:
            for row in set(rows.tolist()):
                total = grads[rows == row].double().sum(dim=0)
                value[row] = value[row] * (1 - TABLE_LR * DECAY) - TABLE_LR * total.sign()
        average = value.clone() if ema is None else ema * average + (1 - ema) * value
        out += [value.clone(), average]
    return out


@pytest.mark.numeric
@pytest.mark.parametrize("several", [False, True], ids=["once", "several times an update"])
@pytest.mark.parametrize("ema", [None, 0.9, 0.5], ids=str)
def test_steps_of_rows(ema: float | None, several: bool) -> None:
    for width in (8, 18):
        calls = examples(width, several)
        assert any(not grads[rows == row].sum(dim=0).all() for rows, grads in calls[1] for row in rows)
        exact, moved = defined(width, ema, calls), [defined(width, ema, calls, draw) for draw in range(DRAWS)]
        with spied() as called:
            agree(stepped(width, ema, calls), exact, spread(exact, moved))
        assert called == ["sign_step"] * sum(map(len, calls.values()))
        with native.without(), spied() as called:
            agree(stepped(width, ema, calls), exact, spread(exact, moved))
        assert called == []


@pytest.mark.parametrize("ema", [None, 0.9], ids=str)
def test_rows_that_nobody_used_stay_as_they_are(ema: float | None) -> None:
    made, rows = table(8, ema), torch.tensor([3, 1, 3])
    names = ("value",) if ema is None else ("value", "ema", "seen")
    before = {name: getattr(made, name).clone() for name in names}
    made.update(rows, torch.ones(3, 8), TABLE_LR, 1)
    made.update(rows[:1], torch.ones(1, 8), TABLE_LR, 4)
    for name, old in before.items():
        kept = torch.tensor([row not in (1, 3) for row in range(ROWS)])
        assert torch.equal(getattr(made, name)[kept], old[kept])
        assert (getattr(made, name)[~kept] != old[~kept]).all()


def test_a_gradient_of_0_moves_nothing() -> None:
    """Whether it is none or the sum of some; what is left is the decay."""
    for ema, zero in combinations((None, 0.9), (0.0, -0.0)):
        made = table(8, ema)
        before = made.value.clone()
        grads = torch.full((3, 8), zero)
        grads[1], grads[2] = 7.0, -7.0
        made.update(torch.tensor([4, 2, 2]), grads, TABLE_LR, 1)
        assert torch.equal(made.value[[4, 2]], before[[4, 2]] * (1 - TABLE_LR * DECAY))


def test_what_is_no_number_is_seen_in_its_place_of_the_row_and_nowhere_else() -> None:
    for ema, first in combinations((None, 0.9), (0, 1)):
        grads, rows = drawn(3, 8), torch.tensor([5, 5, 2])
        hurt = grads.clone()
        hurt[first, 3] = NAN
        fine, made = table(8, ema), table(8, ema)
        for t in (1, 3):
            fine.update(rows, grads, TABLE_LR, t)
            made.update(rows, hurt if t == 1 else grads, TABLE_LR, t)
            where = torch.zeros(ROWS, 8, dtype=torch.bool)
            where[5, 3] = True
            for old, new in ((fine.value, made.value), (fine.averaged(t), made.averaged(t))):
                assert torch.equal(new.isnan(), where)
                assert same(old[~where], new[~where])
