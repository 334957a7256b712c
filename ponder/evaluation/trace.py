"""Looking inside: what an ACT step does to the state of each example, step after step.

A step is a map from states to states. Here are the residual along its trajectory, the largest singular value of its
Jacobian, and the plane that shows most of the trajectories; first for any map, then for a model's.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ponder.base.errors import UserError, at_least
from ponder.evaluation.records import Judge, example_keys
from ponder.evaluation.schema import Quantiles, SettledRight, TraceResult, Trajectory
from ponder.evaluation.subject import Subject
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States

Map = Callable[[Tensor], Tensor]
"""[n, d] states -> [n, d] states, each row by itself."""
SHOWN = 40
"""Trajectories that are kept for the picture."""


# Any map --------------------------------------------------------------------------------------------------------------


def residuals(path: Tensor) -> Tensor:
    """[steps, n] how far each step moved the state, relative to its size, from the path [steps + 1, n, d]."""
    moved: Tensor = (path[1:] - path[:-1]).norm(dim=-1) / path[:-1].norm(dim=-1)
    return moved


def stretch(step: Map, z: Tensor, directions: int = 2, rounds: int = 6, seed: int = 0) -> Tensor:
    """[n] the largest singular value of the step's Jacobian at each state: power iteration on J^T J from sampled
    directions, J v and J^T u by automatic differentiation. From below: more rounds only raise it."""
    z = z.detach().requires_grad_()
    out = step(z)
    # J^T u is linear in u, and its derivative with respect to u, applied to v, is J v.
    u = torch.zeros_like(out, requires_grad=True)
    (back,) = torch.autograd.grad(out, z, u, create_graph=True)
    generator = torch.Generator().manual_seed(seed)
    best = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    for _ in range(directions):
        v = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
        for turn in range(rounds):
            (ahead,) = torch.autograd.grad(back, u, v / v.norm(dim=-1, keepdim=True), retain_graph=True)
            best = torch.maximum(best, ahead.norm(dim=-1))
            if turn + 1 < rounds:
                (v,) = torch.autograd.grad(out, z, ahead, retain_graph=True)
    return best


@dataclass(frozen=True)
class Plane:
    points: Tensor
    """[steps + 1, n, 2]"""
    explained: tuple[float, float]
    """Shares of the variance of all states, over examples and steps, along its two directions."""


def plane(path: Tensor) -> Plane:
    """The two principal components of all states of all trajectories."""
    states = path.flatten(0, 1)
    states = states - states.mean(dim=0)
    _, sizes, directions = torch.linalg.svd(states, full_matrices=False)
    share = (sizes.square() / sizes.square().sum().clamp(min=1e-30))[:2].tolist()
    points = (states @ directions[:2].T).unflatten(0, path.shape[:2])
    return Plane(torch.nn.functional.pad(points, (0, 2 - points.shape[-1])), (share[0], (*share, 0.0)[1]))


def crossed(settled: Tensor, right: Tensor) -> SettledRight:
    """How many examples are settled or not, and right or not."""
    return SettledRight(
        settled_right=int((settled & right).sum()),
        settled_wrong=int((settled & ~right).sum()),
        moving_right=int((~settled & right).sum()),
        moving_wrong=int((~settled & ~right).sum()),
    )


# A model's map --------------------------------------------------------------------------------------------------------


class Twin:
    """A model's ACT step as a map of flat states in float64, whose derivatives see all cycles and the bound."""

    def __init__(self, model: Reasoner, inputs: Tensor, rows: Tensor, key: Tensor) -> None:
        self.inputs, self.rows, self.key = inputs, rows.double(), key
        self.model = copy.deepcopy(model).double().eval().requires_grad_(False)
        if self.model.q_head is not None:
            self.model.q_head.float()  # the one layer that takes float32 whatever the rest is
        config = model.config
        whole = {"h_horizon": config.h_cycles, "l_horizon": config.l_cycles, "gradient": "horizon", "neumann": 0}
        self.model.config = config.model_copy(update=whole)
        if self.model.update is not None:
            self.model.update.exact = True

    def start(self) -> Tensor:
        return self.flat(self.model.start(self.key, torch.float64).states)

    def __call__(self, z: Tensor) -> Tensor:
        return self.flat(self.run(z).carry.states)

    def run(self, z: Tensor) -> Step:
        size = (len(self.inputs), self.model.length, self.model.config.width)
        states = States.of(part.view(size) for part in z.chunk(self.model.config.states, dim=1))
        carry = Carry(states, torch.ones_like(self.key), self.key)
        step: Step = self.model(carry, self.inputs, self.rows)
        return step

    def bounded(self, step: Step) -> float:
        """The share of positions, over all examples, whose last update of z_L the bound made smaller."""
        tau = self.model.config.bound
        return 0.0 if tau is None or step.ratio is None else float((step.ratio > tau).double().mean())

    @staticmethod
    def flat(states: States) -> Tensor:
        return torch.cat([z.flatten(1) for z in states.held], dim=1)


@dataclass(frozen=True)
class TracePlan:
    steps: int
    settled: float = 0.01
    """An example has settled when its last step moved its state by less than this part of its size."""
    directions: int = 2
    rounds: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, {"steps": self.steps, "directions": self.directions, "rounds": self.rounds})
        if self.settled <= 0:
            raise UserError(f"a residual of {self.settled:g} is never undercut: give --settled a positive number")


def trace(what: Subject, plan: TracePlan) -> TraceResult:
    if what.model.config.states == 0:
        raise UserError(f"{what.opened.name} has no state to look at: trace a recurrent model")
    device = what.model.table.device
    inputs, task_ids, key = (
        torch.from_numpy(each).to(device, torch.int64)
        for each in (what.batch.inputs, what.batch.task_ids, example_keys(what.index))
    )
    twin = Twin(what.model, inputs, what.model.table[task_ids], key)
    judge = Judge(what.domain, what.batch.inputs, what.batch.labels)
    path, stretched, right, bounded = [twin.start()], [], [], []
    for number in range(plan.steps):
        stretched.append(stretch(twin, path[-1], plan.directions, plan.rounds, plan.seed + number).cpu())
        with torch.no_grad():
            step = twin.run(path[-1])
        path.append(twin.flat(step.carry.states))
        bounded.append(twin.bounded(step))
        right.append(judge(step.logits.argmax(dim=-1).to(torch.uint8).cpu().numpy())[1])
    whole = torch.stack(path).cpu()
    moved = residuals(whole)
    settled, good = moved[-1] < plan.settled, torch.from_numpy(right[-1])
    seen = plane(whole)
    shown = np.linspace(0, len(inputs) - 1, min(SHOWN, len(inputs))).astype(int)
    return TraceResult(
        **what.measurement(PROTOCOL),
        steps=plan.steps,
        budget=what.model.config.max_steps,
        settled=plan.settled,
        directions=plan.directions,
        rounds=plan.rounds,
        right=[float(each.mean()) for each in right],
        residual=[Quantiles.of(each.tolist()) for each in moved],
        stretch=[Quantiles.of(each.tolist()) for each in stretched],
        bounded=bounded,
        table=crossed(settled, good),
        explained=seen.explained,
        trajectories=[
            Trajectory(
                example=int(what.index[i]),
                right=bool(good[i]),
                settled=bool(settled[i]),
                points=[(round(x, 6), round(y, 6)) for x, y in seen.points[:, i].tolist()],
            )
            for i in shown
        ],
    )


PROTOCOL = (
    "Every example runs the given number of ACT steps in float64, halting and noise off. Residual: |z' - z| / |z| of "
    "z_H and z_L at all positions. Stretch: largest singular value of the ACT step's Jacobian at the state that the "
    "step starts from, by power iteration from sampled directions (a lower bound). Bounded: the share of positions "
    "whose last update of z_L in the step exceeded tau. Right: accepted by the domain's rules, or equal to the label "
    "where there are none. Plane: the principal components of all states of all examples."
)
