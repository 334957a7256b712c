"""Putting a trained model into the zoo: its weights, and a card of what was measured afresh."""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder import checkpoint, data
from ponder.base import files, runtime, stats
from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.config.resolve import Config
from ponder.config.schema import SearchPlan
from ponder.domains.contract import Domain, Progress, Source, Tokens, silent
from ponder.evaluation import records as evaluate
from ponder.inference.engine import SLOTS, logits_of
from ponder.inference.search import default_noise, search
from ponder.inference.weights import ZOO, Opened, open_weights
from ponder.model.published import weights_of
from ponder.training import runs
from ponder.training.log import read_log
from ponder.zoo.cards import CARD, read_card, write_card

WEIGHTS = "weights.safetensors"
EXAMPLES = 2000
"""Of each split, for the scores of a card."""
HARD = 12
"""Puzzles that a card keeps because they take long."""
BEYOND = 4
"""Steps run over steps trained with: what a Solver may take."""
SEARCHED, TOTAL, DEEPER = 1000, 10, 2
"""Verified search of a card: puzzles, ACT steps in all over those of training, and those of a noisy restart."""
TIMED = 100
"""Puzzles that the classical methods are timed on."""


def add(run: Path, name: str, limits: str, data_dir: Path, zoo: Path, progress: Progress = silent) -> Path:
    """Put the averaged weights of a run's best checkpoint into the zoo, with a card from a fresh evaluation."""
    check_name(name, zoo)
    with tempfile.TemporaryDirectory() as folder:  # outside the zoo: what is half written is not listed
        aside = Path(folder) / name
        aside.mkdir()
        pack(run, name, limits, data_dir, aside, progress)
        put(aside, zoo / name)
    return zoo / name


def check_name(name: str, zoo: Path) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UserError(f"{name!r} is no name for the zoo: use small letters, digits and single hyphens: sudoku-9x9")
    if zoo != ZOO and (ZOO / name).exists():
        raise UserError(f"{name} is a model that comes with ponder: choose another name")


def put(aside: Path, target: Path) -> None:
    """A folder's files as a model of a zoo, in the place of one of that name."""
    try:
        with files.folder_aside(target) as part:
            shutil.copytree(aside, part, dirs_exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {target.parent} ({error.strerror}): give XDG_DATA_HOME another folder"
        ) from None


def pack(run: Path, name: str, limits: str, data_dir: Path, aside: Path, progress: Progress = silent) -> None:
    """Configuration, averaged weights of the best checkpoint and card of a run, in a folder that is there. A model that
    has a card is measured anew, and keeps what the card says of its training and its limits."""
    if not (run / runs.CONFIG).is_file():
        raise UserError(f"{run} is not a run folder (it has no {runs.CONFIG}): give the folder `ponder train` wrote")
    opened, known = open_weights(run), read_card(run) if (run / CARD).is_file() else None
    if opened.config is None or opened.domain is None or (opened.update is None and known is None):
        raise UserError(f"{run} holds no training run of ours: give the folder `ponder train` wrote")
    recipe = recipe_of(run, opened) if known is None else known["recipe"]
    limits = limits or (known["limits"] if known else "")
    shutil.copyfile(run / runs.CONFIG, aside / runs.CONFIG)
    checkpoint.write_tensors(aside, Path(WEIGHTS).stem, weights_of(opened.model))
    card = make_card(name, recipe, limits, opened, data_dir, aside / WEIGHTS, progress)
    write_card(aside, {**card, "files": {each: files.sha256(aside / each) for each in (runs.CONFIG, WEIGHTS)}})
    for file in aside.iterdir():
        file.chmod(0o644)  # safetensors writes for the owner alone; a package is for all


def recipe_of(run: Path, opened: Opened) -> dict[str, Any]:
    """How a run was trained."""
    config, evals = opened.config, [row for row in read_log(run / "metrics.jsonl") if row["kind"] == "eval"]
    assert config is not None
    machine = files.read_json(run / "environment.json")
    return {
        "preset": config.preset,
        "model": config.model.name,
        "seed": config.seed,
        "updates": max((row["update"] for row in evals), default=opened.update),
        "chosen_update": opened.update,
        "seconds": max((row["seconds"] for row in evals), default=0.0),
        **{key: machine[key] for key in ("cores", "torch", "commit")},
    }


def make_card(
    name: str,
    recipe: Mapping[str, Any],
    limits: str,
    opened: Opened,
    data_dir: Path,
    weights: Path,
    progress: Progress,
) -> dict[str, Any]:
    config, domain, model = opened.config, opened.domain, opened.model
    assert config is not None and domain is not None
    dataset = data.Dataset.open(data.build(config.data, data_dir, data.default_workers(), progress))
    budget = model.config.max_steps
    steps = BEYOND * budget if model.config.states else 1
    here = runtime.Runtime(torch.device("cpu"))
    how = evaluate.Settings(steps, min(config.eval.batch, SLOTS), EXAMPLES)  # large batches of wide boards leave caches
    accuracy: dict[str, Any] = {}
    hard: list[dict[str, Any]] = []
    by_step: dict[str, list[dict[str, Any]]] = {}
    for split, info in domain.splits.items():
        if info.role not in ("test", "ood"):
            continue
        records = evaluate.run_split(model, domain, dataset.source(split), how, here, progress)
        n, last = records.n, min(budget, steps) - 1
        accuracy[split] = {
            "role": info.role,
            "about": info.about,
            "n": n,
            "exact": stats.share(records.exact[:, last].mean(), n),
            "valid": stats.share(records.valid[:, last].mean(), n),
            "solved": stats.share(records.valid.any(axis=1).mean(), n) if domain.checkable else None,
        }
        if info.role == "test":
            shares = records.valid.mean(axis=0).tolist()
            by_step[split] = [{"step": step, "valid": share} for step, share in enumerate(shares, 1)]
            hard = hard or hardest(domain, dataset.source(split), records.first(budget))
    first = next(iter(by_step))
    flat = config.data.flat()
    return {
        "name": name,
        "domain": domain.name,
        "title": domain.title,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": weights.stat().st_size,
        "sha256": files.sha256(weights),
        "max_steps": budget,
        "data": {
            "params": {k: v for k, v in flat.items() if k != "domain"},
            "hash": dataset.hash,
            "counts": dict(dataset.counts),
        },
        "recipe": dict(recipe),
        "command": command(config),
        "protocol": (
            f"{'online' if config.train.ema is None else 'averaged (EMA)'} weights of update "
            f"{recipe['chosen_update']}; at most {EXAMPLES} examples of each split; exact (equals the label) and valid "
            f"(the rules accept it) after {budget} forced ACT steps, the training's budget; solved: some answer within "
            f"{steps} steps is valid, which is when a Solver stops; 95% Wilson intervals"
        ),
        "accuracy": accuracy,
        "by_step_split": first,
        "by_step": by_step[first],
        "hard": hard,
        "search": searched(opened, dataset.source(first)),
        "fallback": timed(opened, dataset.source(first)),
        "limits": limits or default_limits(accuracy[first], first),
    }


def hardest(domain: Domain, source: Source, records: evaluate.Records) -> list[dict[str, Any]]:
    """The solved puzzles that took the most steps, the longest first, for those who want to see a model think."""
    steps = np.where(records.valid.any(axis=1), records.valid.argmax(axis=1) + 1, 0)
    chosen = np.argsort(-steps, kind="stable")[:HARD]
    inputs = source.fetch(records.index[chosen], np.zeros(len(chosen), dtype=np.int64)).inputs
    made = zip(inputs, steps[chosen].tolist(), strict=True)
    return [{"puzzle": domain.format(puzzle), "steps": taken} for puzzle, taken in made if taken > 1]


def searched(opened: Opened, source: Source) -> dict[str, Any] | None:
    """Verified search on the puzzles of a split, within ten times the steps of training."""
    model, domain = opened.model, opened.domain
    assert domain is not None
    if domain.unverifiable or not model.config.states or model.config.halting == "asked":
        return None
    plan = SearchPlan(TOTAL // DEEPER, DEEPER * model.config.max_steps, default_noise(model))
    if domain.vary == "suppose":
        plan = SearchPlan(TOTAL, model.config.max_steps, 0.0, vary="suppose")
    elif domain.vary == "likely":
        plan = SearchPlan((TOTAL - 1) * model.config.max_steps + 1, model.config.max_steps, 0.0, vary="likely")
    found = search(model, domain, some(source, SEARCHED), plan)
    n = len(found.accepted)
    return {
        "restarts": plan.restarts,
        "steps": plan.steps,
        "n": n,
        "solved": stats.share(found.accepted.mean(), n),
        "compute": round(float(found.compute.mean()), 1),
        "vary": plan.vary,
    }


def timed(opened: Opened, source: Source) -> dict[str, Any] | None:
    """What the fallbacks take on this machine. The model's own steps are not in the times."""
    domain = opened.domain
    assert domain is not None
    if not domain.exact:
        return None
    puzzles = some(source, TIMED)
    exact = _median_ms([partial(domain.solutions, puzzle, 1) for puzzle in puzzles])
    out: dict[str, Any] = {"n": len(puzzles), "exact_ms": exact}
    if type(domain).guided is Domain.guided:
        return out
    said = [logits_of(opened.model, puzzle, opened.model.config.max_steps) for puzzle in puzzles]
    for name, logits in (("alone", [None] * len(puzzles)), ("guided", said)):
        solves = [partial(domain.guided, *each) for each in zip(puzzles, logits, strict=True)]
        out[f"{name}_ms"] = _median_ms(solves)
        out[f"{name}_guesses"] = float(np.mean([solve().guesses for solve in solves]))
    return out


def some(source: Source, count: int) -> Tokens:
    index = evaluate.chosen_examples(len(source), count)
    return source.fetch(index, np.zeros_like(index)).inputs


def _median_ms(solves: Sequence[Callable[[], object]]) -> float:
    times = []
    for solve in solves:
        start = time.perf_counter()
        solve()
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 3)


def default_limits(score: Mapping[str, Any], split: str) -> str:
    missed = round((1 - score["valid"]["value"]) * score["n"])
    return f"Puzzles of these parameters only; misses {missed:,} of {score['n']:,} {split} puzzles. One training seed."


def command(config: Config) -> str:
    """The `ponder train` that gives this configuration, in the fewest words."""
    best: list[str] | None = None
    for model in (None, config.model.name.removesuffix("-mini")):
        try:
            base = configuration.resolve(config.preset, model)
        except UserError:
            continue
        words = [*(["--model", model] if model else [])]
        for key, (_, value) in configuration.differences(base, config).items():
            words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
        if best is None or len(words) < len(best):
            best = words
    if best is None:
        return "ponder train config.yaml   (a copy of config.json, which lies beside this card)"
    quoted = (f"'{word}'" if re.search(r"[\s\[\]{}\"]", word) else word for word in best)
    return " ".join(["ponder", "train", config.preset, *quoted])
