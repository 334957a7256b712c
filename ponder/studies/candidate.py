"""A rule for study tasks, and what was tried to find some that keep it.

A task can tell recipes apart when a network without recursion fails on it although it has trained to the end, while a
recursive one learns it: written down before the studies are run, and checked by three trainings of the recipes that
the main results compare.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.markers import markdown
from ponder.config.resolve import merge
from ponder.studies.fixed import FixedAnswers
from ponder.studies.result import CellResult, Kept
from ponder.studies.spec import Cell, ChangedTask, Scale, Study, load, nested

MAIN, RECIPES = "main-results", ("dense", "hrm", "ponder")
DENSE, LEARNED, FLAT = 0.40, 0.80, 0.03
"""The dense control stays under the first, the best recursive recipe ends above the second, and over the last fifth of
the updates no curve rises or falls by more than the third."""


class Recipe(Kept):
    """What one recipe came to: means over seeds, at each example's most confident step."""

    keys: list[str]
    id: float
    ood: dict[str, float]
    """Split -> valid answers."""
    at_budget: float
    """In distribution, with halting off at the training budget."""
    updates: list[int]
    curve: list[float]
    """In distribution, exact answers while training."""
    change: float
    """From the fourth fifth of the evaluations to the last."""
    seconds: float


class Clause(Kept):
    says: str
    found: str
    holds: bool


class Tried(Kept):
    """A candidate: `results/tasks/NAME.json`."""

    version: Literal[1] = 1
    name: str
    task: str
    changes: dict[str, Any]
    """Put on top of the task as main results have it."""
    n: int
    recipes: dict[str, Recipe]
    fixed: dict[str, float]
    """Split -> the best fixed answer."""
    rule: list[Clause]

    @property
    def holds(self) -> bool:
        return all(clause.holds for clause in self.rule)


def study_of(task: str, changes: Mapping[str, Any], seeds: Sequence[int]) -> Study:
    """The main results cut down to one task, as changed, and the recipes that the rule looks at."""
    main = load(MAIN)
    entries = (ChangedTask(task=t) if isinstance(t, str) else t for t in main.scale("mini").tasks)
    usual = next((entry for entry in entries if entry.task == task), ChangedTask(task=task))
    changed = usual.model_copy(update={"set": merge(nested(usual.set), changes), "seeds": None})
    variants = {name: main.variants[name] for name in RECIPES}
    scale = Scale(tasks=(changed,), seeds=tuple(seeds))
    return main.model_copy(update={"name": "candidate", "variants": variants, "scales": {"mini": scale}})


def judge(name: str, changes: Mapping[str, Any], cells: Sequence[Cell], stored: Mapping[str, CellResult],
          fixed: FixedAnswers | None) -> Tried:  # fmt: skip
    """Whether the rule holds, from the trainings of the three recipes (key -> result)."""
    recipes = {r: _recipe([stored[cell.key] for cell in cells if cell.variant == r]) for r in RECIPES}
    known = {} if fixed is None else {split: found.valid for split, found in fixed.splits.items()}
    first = stored[cells[0].key]
    splits = first.after.ema.splits if first.after.ema else {}
    return Tried(
        name=name,
        task=cells[0].task,
        changes=dict(changes),
        n=min(profile.n for profile in splits.values() if profile.role != "val"),
        recipes=recipes,
        fixed={split: known[split] for split in splits if split in known},
        rule=_rule(recipes, known),
    )


def _recipe(results: Sequence[CellResult]) -> Recipe:
    ids, ood = (_splits(results, role) for role in ("test", "ood"))
    if not ids:
        raise UserError("the task has no held-out split in distribution (role `test`): the rule cannot be checked")
    rows = [results[0].curve[i].update for i in range(min(len(r.curve) for r in results))]
    curve = [
        float(np.mean([r.curve[i].ema[split].best_full for r in results for split in ids])) for i in range(len(rows))
    ]
    fifth = max(1, len(rows) // 5)
    before = curve[-2 * fifth : -fifth] or curve[:1]
    return Recipe(
        keys=[r.key for r in results],
        id=float(np.mean([value for value, _ in ids.values()])),
        ood={split: value for split, (value, _) in ood.items()},
        at_budget=float(np.mean([value for _, value in ids.values()])),
        updates=rows,
        curve=curve,
        change=float(np.mean(curve[-fifth:]) - np.mean(before)),
        seconds=float(np.mean([r.seconds for r in results])),
    )


def _splits(results: Sequence[CellResult], role: str) -> dict[str, tuple[float, float]]:
    """Split of this role -> valid answers at the most confident step and at the training budget, means over seeds."""
    out = {}
    for split, profile in (results[0].after.ema.splits if results[0].after.ema else {}).items():
        if profile.role == role:
            every = [found for r in results if (found := r.after.profile("ema", split)) is not None]
            budget = results[0].after.budget
            at = [each.valid[min(budget, len(each.valid)) - 1] for each in every]
            out[split] = (float(np.mean([each.best_full.valid for each in every])), float(np.mean(at)))
    return out


def _rule(recipes: Mapping[str, Recipe], fixed: Mapping[str, float]) -> list[Clause]:
    best = max((r for r in recipes if r != "dense"), key=lambda r: recipes[r].id)
    dense, top = recipes["dense"], recipes[best]
    out = [
        Clause(says=f"dense under {DENSE:.0%}", found=f"{dense.id:.0%}", holds=dense.id < DENSE),
        Clause(says=f"best recursive above {LEARNED:.0%}", found=f"{best} {top.id:.0%}", holds=top.id > LEARNED),
    ]
    if top.ood:
        gaps = {
            split: max(recipes[r].ood[split] for r in RECIPES if r != "dense") - fixed.get(split, 1.0)
            for split in top.ood
        }
        worst = min(gaps, key=gaps.__getitem__)
        found = f"{worst} {gaps[worst]:+.0%}" if worst in fixed else f"{worst}: no fixed answer known"
        out.append(Clause(says="above the fixed answer out of it", found=found, holds=gaps[worst] > 0))
    moving = max(recipes, key=lambda r: abs(recipes[r].change))
    change = recipes[moving].change
    out.append(Clause(says="flat over the last fifth", found=f"{moving} {change:+.1%}", holds=abs(change) <= FLAT))
    return out


# What was tried -------------------------------------------------------------------------------------------------------


def keep(tried: Tried, root: Path) -> list[Path]:
    """Into `root`, with a page of all that was tried."""
    path = root / f"{tried.name}.json"
    files.write(path, tried.model_dump_json(indent=1) + "\n")
    page = root / "README.md"
    files.write(page, page_text(read_all(root)))
    return [path, page]


def read_all(root: Path) -> list[Tried]:
    try:
        return [Tried.model_validate_json(path.read_bytes()) for path in sorted(root.glob("*.json"))]
    except ValueError as error:
        raise UserError(
            f"a file of {root} is damaged ({str(error).splitlines()[0]}): delete it and try again"
        ) from None


def page_text(every: Sequence[Tried]) -> str:
    return "\n\n".join(
        [
            "# Tasks that were tried",
            f"Made by `ponder study task`. A study task has the dense control under {DENSE:.0%} and the best recursive "
            f"recipe above {LEARNED:.0%} in distribution, above the best fixed answer on every split out of it, and "
            f"curves that move by at most {100 * FLAT:.0f} points over the last fifth: then recursion has something to "
            "do, and the end of a training is its end. Valid answers at each example's most confident step (at the "
            "training budget in brackets); each file has the curves.",
            table(every),
        ]
    ) + "\n"  # fmt: skip


def table(every: Sequence[Tried]) -> str:
    rows = []
    for tried in every:
        cells = [f"{r.id:.1%} ({r.at_budget:.1%})" for r in (tried.recipes[name] for name in RECIPES)]
        minutes = ", ".join(f"{tried.recipes[name].seconds / 60:.1f}" for name in RECIPES)
        clauses = "; ".join(f"{'' if c.holds else '**not** '}{c.says}: {c.found}" for c in tried.rule)
        changed = " ".join(f"--{key} {value}" for key, value in _dotted(tried.changes)) or "as it is"
        seeds = str(len(tried.recipes["dense"].keys))
        verdict = "holds" if tried.holds else "does not hold"
        rows.append([tried.name, f"`{tried.task}` {changed}", *cells, seeds, str(tried.n), minutes, verdict, clauses])
    return markdown(["name", "task", *RECIPES, "seeds", "n", "minutes", "the rule", "clause by clause"], rows)


def _dotted(changes: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in changes.items():
        out += _dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else [(above + key, value)]
    return out
