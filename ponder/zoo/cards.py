"""Trained models, ponder's and the user's own, each with a card that says what it can and cannot do."""

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict, Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ponder import checkpoint, data
from ponder.base import files, runtime, stats
from ponder.base.console import plain_table
from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.config.resolve import Config
from ponder.config.schema import Frozen, SearchPlan, Vary, parse
from ponder.domains.contract import Domain, Progress, Source, Tokens, silent
from ponder.evaluation import records as evaluate
from ponder.evaluation.schema import Share
from ponder.inference.engine import SLOTS, logits_of
from ponder.inference.search import default_noise, search
from ponder.inference.weights import ZOO, Opened, open_weights, zoo_folders
from ponder.training import runs
from ponder.training.log import read_log

CARD, WEIGHTS = "card.json", "weights.safetensors"
EXAMPLES = 2000
"""Of each split, for the scores of a card."""
AGAIN = "write it again with `ponder zoo add`"
HARD = 12
"""Puzzles that a card keeps because they take long."""
BEYOND = 4
"""Steps run over steps trained with: what a Solver may take."""
SEARCHED, TOTAL, DEEPER = 1000, 10, 2
"""Verified search of a card: puzzles, ACT steps in all over those of training, and those of a noisy restart."""
TRIES: Mapping[Vary, str] = {"noise": "noisy restarts", "suppose": "suppositions"}
TIMED = 100
"""Puzzles that the classical methods are timed on."""


class Score(Frozen):
    model_config = ConfigDict(extra="ignore")

    n: int
    exact: Share
    valid: Share
    solved: Share | None


class DataAbout(Frozen):
    model_config = ConfigDict(extra="ignore")

    params: dict[str, Any]
    counts: dict[str, int]
    hash: str


class Recipe(Frozen):
    model_config = ConfigDict(extra="ignore")

    model: str
    preset: str
    seed: int
    updates: int
    chosen_update: int
    seconds: float
    cores: int


class Step(Frozen):
    step: int
    valid: float


class Hard(Frozen):
    """A test puzzle that takes the model long."""

    puzzle: str
    steps: int


class Searched(Frozen):
    """Verified search: what is solved with several tries, and the ACT steps that a puzzle took in all."""

    restarts: int
    steps: int
    n: int
    solved: Share
    compute: float
    vary: Vary = "noise"


class Fallback(Frozen):
    """The classical methods on the same puzzles: milliseconds of each, and guesses of the search that logits guide."""

    n: int
    exact_ms: float
    alone_ms: float | None = None
    guided_ms: float | None = None
    alone_guesses: float | None = None
    guided_guesses: float | None = None


class Card(Frozen):
    """What a card holds, at least."""

    model_config = ConfigDict(extra="ignore")

    name: str
    domain: str
    parameters: int
    bytes: int
    max_steps: int
    data: DataAbout
    recipe: Recipe
    command: str
    limits: str
    protocol: str
    accuracy: dict[str, Score] = Field(min_length=1)
    by_step_split: str
    by_step: list[Step]
    hard: tuple[Hard, ...] = ()
    search: Searched | None = None
    fallback: Fallback | None = None


# Reading --------------------------------------------------------------------------------------------------------------


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model; one without scores where a folder came without a card."""
    try:
        card = files.read_object(folder / CARD, AGAIN)
    except FileNotFoundError:
        config = runs.read_config(folder)
        return {"name": folder.name, "domain": config.data.domain, "max_steps": config.model.max_steps, "accuracy": {}}
    if not files.intact(card):
        raise UserError(f"{folder / CARD} was changed after it was written: {AGAIN}, --limits included")
    try:
        parse(Card, card)
    except UserError as error:
        raise UserError(f"{folder / CARD} is damaged ({error}): {AGAIN}") from None
    return card


def list_cards() -> list[dict[str, Any]]:
    """The cards of all models in the zoo. One that cannot be read is left out with a line that says why."""
    cards = []
    for name, folder in sorted(zoo_folders().items()):
        try:
            cards.append(read_card(folder))
        except (UserError, OSError, ValueError) as error:
            print(f"ponder: the zoo model {name} is left out: {error}", file=sys.stderr)
    return cards


def table(cards: Sequence[Mapping[str, Any]]) -> Table:
    out = plain_table("model", "domain", "parameters", "valid", "n", right=("parameters", "n"), no_wrap=True)
    for card in cards:
        scores = card["accuracy"]
        out.add_row(
            f"[bold]{escape(card['name'])}[/]",
            escape(card["domain"]),
            f"{card['parameters']:,}" if "parameters" in card else "?",
            "\n".join(f"{escape(split)} {share_words(score['valid'])}" for split, score in scores.items()) or "no card",
            "\n".join(f"{score['n']:,}" for score in scores.values()),
        )
    return out


def share_words(share: Mapping[str, float]) -> str:
    return f"{share['value']:.1%} ({share['low']:.1%}–{share['high']:.1%})"


def print_card(console: Console, card: Mapping[str, Any]) -> None:
    console.print(f"[bold]{escape(card['name'])}[/]  {escape(str(card.get('title', card['domain'])))}")
    if not card["accuracy"]:
        console.print("no card: write one with `ponder zoo add RUN NAME`")
        return
    recipe, about = card["recipe"], card["data"]
    rows = {
        "parameters": f"{card['parameters']:,} ({card['bytes'] / 1e6:.1f} MB), {card['max_steps']} ACT steps",
        "data": ", ".join(f"{k} {v}" for k, v in about["params"].items() if v is not None)
        + f"; {', '.join(f'{split} {count:,}' for split, count in about['counts'].items())}; hash {about['hash']}",
        "recipe": f"{recipe['model']} on {recipe['preset']}, seed {recipe['seed']}: {recipe['updates']} updates in "
        f"{recipe['seconds']:.0f} s on {recipe['cores']} cores; weights after update {recipe['chosen_update']}",
        "command": card["command"],
        "limits": card["limits"],
        "protocol": card["protocol"],
    }
    for name, words in rows.items():
        console.print(f"  [dim]{name:<11}[/]{escape(words)}", soft_wrap=True)
    scores = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("split", "exact (95% interval)", "valid", "solved by the Solver", "n"):
        scores.add_column(column, justify="right" if column == "n" else "left")
    for split, score in card["accuracy"].items():
        shares = [share_words(score[k]) if score[k] else "–" for k in ("exact", "valid", "solved")]
        scores.add_row(escape(split), *shares, f"{score['n']:,}")
    console.print(scores)
    if found := card.get("search"):
        console.print(
            f"  [dim]verified search[/]  {share_words(found['solved'])} with {found['restarts']} "
            f"{TRIES[found.get('vary', 'noise')]} of "
            f"{found['steps']} steps, {found['compute']:.0f} ACT steps on average, n {found['n']:,}",
            soft_wrap=True,
        )
    if taken := card.get("fallback"):
        words = f"exact {taken['exact_ms']:.1f} ms"
        if taken.get("guided_ms") is not None:
            words += (
                f"; plain search {taken['alone_ms']:.1f} ms and {taken['alone_guesses']:.2f} guesses, guided by the "
                f"model {taken['guided_ms']:.1f} ms and {taken['guided_guesses']:.2f}"
            )
        console.print(f"  [dim]fallback[/]  {words} (medians, means of guesses; n {taken['n']})", soft_wrap=True)
    steps = [(each["step"], f"{each['valid']:.1%}") for each in card["by_step"]]
    settled = next(i for i in range(len(steps)) if all(share == steps[i][1] for _, share in steps[i:]))
    by_step = "  ".join(f"{step}: {share}" for step, share in steps[: settled + 1])
    by_step += " and on" if settled + 1 < len(steps) else ""
    console.print(f"  [dim]valid after each step on {escape(card['by_step_split'])}[/]  {by_step}", soft_wrap=True)


# Adding ---------------------------------------------------------------------------------------------------------------


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
    shared = "high." if opened.model.high is opened.model.low else None  # safetensors stores no tensor twice
    tensors = opened.model.state_dict().items()
    stored = {k: v for k, v in tensors if not shared or not k.startswith(shared)}
    checkpoint.write_tensors(aside, Path(WEIGHTS).stem, stored)
    card = make_card(name, recipe, limits, opened, data_dir, aside / WEIGHTS, progress)
    write_card(aside, {**card, "files": {each: files.sha256(aside / each) for each in (runs.CONFIG, WEIGHTS)}})
    for file in aside.iterdir():
        file.chmod(0o644)  # safetensors writes for the owner alone; a package is for all


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    files.write(folder / CARD, json.dumps(files.sealed(card), indent=1, ensure_ascii=False) + "\n")


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
    if domain.supposes:
        plan = SearchPlan(TOTAL, model.config.max_steps, 0.0, vary="suppose")
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
