"""Honest scores: every forced ACT step of every example, kept as records from which any metric can be had later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ponder.data import Dataset
from ponder.domains.base import Domain, Source, Tokens
from ponder.model.reasoner import Reasoner
from ponder.runtime import Runtime


@dataclass(frozen=True)
class Records:
    """What happened to each example at each forced step, [n, steps]. `index` numbers the examples in their split."""

    index: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    token: npt.NDArray[np.float32]
    q_halt: npt.NDArray[np.float32]
    """Halting logit; for a model without a halting head, the mean log-probability of the predicted tokens."""

    @property
    def n(self) -> int:
        return len(self.index)

    @property
    def steps(self) -> int:
        return int(self.exact.shape[1])


def join(parts: Sequence[Records]) -> Records:
    """Records of several ranks or batches as one, in the order of the examples."""
    index = np.concatenate([p.index for p in parts])
    order = np.argsort(index, kind="stable")
    columns = {
        name: np.concatenate([getattr(p, name) for p in parts])[order] for name in ("exact", "valid", "token", "q_halt")
    }
    return Records(index=index[order], **columns)


class Judge:
    """Judges a batch step by step; the checker sees a row only when its answer changed and is not the label."""

    def __init__(self, domain: Domain, inputs: Tokens, labels: Tokens) -> None:
        self.domain, self.inputs, self.labels = domain, inputs, labels
        self.supervised = labels != 0
        self.last = np.zeros_like(labels)
        self.valid = np.zeros(len(labels), dtype=bool)

    def __call__(self, answers: Tokens) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """(exact, valid, token) of each row."""
        right = (answers == self.labels) & self.supervised
        count = self.supervised.sum(axis=1)
        exact = right.sum(axis=1) == count
        if self.domain.checkable:
            changed = (answers != self.last).any(axis=1) & ~exact
            if changed.any():
                self.valid[changed] = self.domain.check(self.inputs[changed], answers[changed])
            self.valid[exact] = True
            self.last = answers
            valid = self.valid.copy()
        else:
            valid = exact
        return exact, valid, (right.sum(axis=1) / np.maximum(count, 1)).astype(np.float32)


@torch.no_grad()
def run_batch(
    model: Reasoner,
    domain: Domain,
    batch: Any,
    index: npt.NDArray[np.int64],
    steps: int,
    runtime: Runtime,
    precision: str,
) -> Records:
    """All forced steps of one batch from a fresh carry, halting off."""
    device = runtime.device
    inputs = torch.from_numpy(batch.inputs).to(device, torch.int64)
    rows = model.table[torch.from_numpy(batch.task_ids).to(device)]
    carry = model.start(torch.zeros(len(index), dtype=torch.int64, device=device))
    judge = Judge(domain, batch.inputs, batch.labels)
    columns: dict[str, list[npt.NDArray[Any]]] = {"exact": [], "valid": [], "token": [], "q_halt": []}
    for _ in range(steps):
        with runtime.autocast(precision):
            step = model(carry, inputs, rows)
        carry = step.carry
        answers = step.logits.argmax(dim=-1)
        exact, valid, token = judge(answers.to(torch.uint8).cpu().numpy())
        if step.q_halt is not None:
            confidence = step.q_halt.float()
        else:
            best = step.logits.float().log_softmax(dim=-1).amax(dim=-1)
            confidence = best.mean(dim=-1)
        for name, value in (("exact", exact), ("valid", valid), ("token", token), ("q_halt", confidence.cpu().numpy())):
            columns[name].append(value)
    return Records(index=index, **{name: np.stack(value, axis=1) for name, value in columns.items()})


def run_split(
    model: Reasoner,
    domain: Domain,
    source: Source,
    steps: int,
    batch: int,
    runtime: Runtime,
    precision: str = "float32",
    limit: int | None = None,
) -> Records:
    """Evaluate a split (or `limit` examples spread evenly over it). Ranks share the work; each example counts once."""
    was = model.training
    model.eval()
    size = len(source)
    chosen = np.arange(size) if limit is None or limit >= size else np.linspace(0, size - 1, limit).astype(np.int64)
    mine = chosen[runtime.rank :: runtime.world]
    if model.config.states == 0:
        steps = 1
    parts = []
    for start in range(0, len(mine), batch):
        index = mine[start : start + batch]
        parts.append(
            run_batch(model, domain, source.fetch(index, np.zeros_like(index)), index, steps, runtime, precision)
        )
    model.train(was)
    gathered = [p for rank in runtime.gather_objects(parts) for p in rank]
    return join(gathered)


def run_splits(
    model: Reasoner,
    dataset: Dataset,
    splits: Sequence[str],
    steps: int,
    batch: int,
    runtime: Runtime,
    precision: str,
    limit: int | None = None,
) -> dict[str, Records]:
    return {
        split: run_split(model, dataset.domain, dataset.source(split), steps, batch, runtime, precision, limit)
        for split in splits
    }


def final_scores(records: Records) -> dict[str, float]:
    """The main protocol: the answer at the full budget."""
    return {
        "exact": float(records.exact[:, -1].mean()),
        "valid": float(records.valid[:, -1].mean()),
        "token": float(records.token[:, -1].mean()),
        "best_full": float(records.exact[np.arange(records.n), records.q_halt.argmax(axis=1)].mean()),
    }
