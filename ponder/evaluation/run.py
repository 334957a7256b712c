"""`ponder eval`: a checkpoint on its splits, as a table, a figure, and a folder from which everything can be audited.

The folder holds `eval.json`, `eval.png`, `records/WEIGHTS-SPLIT.npz` with one record per example, and for ARC the
submission. It is written aside and gets its name when it is whole. The table and the figure show `eval.json` alone.
"""

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ponder import __version__, data
from ponder.base import files, runtime
from ponder.base.console import Bar
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config import resolve as configuration
from ponder.config.resolve import DataConfig
from ponder.data import Dataset
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.contract import Domain, Progress, silent
from ponder.evaluation import records as evaluate
from ponder.evaluation.arc import arranged_table, run_votes, score_arc, with_identifiers
from ponder.evaluation.show import draw, print_result
from ponder.inference.weights import Opened, open_weights, zoo_folders
from ponder.model import cost

RESULT, FIGURE, RECORDS = "eval.json", "eval.png", "records"
OOD = "ood_mean"


@dataclass(frozen=True)
class Asked:
    """The command line of `ponder eval`."""

    checkpoint: str
    domain: str | None = None
    splits: tuple[str, ...] = ()
    steps: int | None = None
    weights: str = "ema"
    batch: int | None = None
    limit: int | None = None
    data_dir: Path = Path("data")
    out: Path | None = None
    command: str = ""


def main(args: Sequence[str]) -> None:
    if "--policy" in args or "--policy=all" in args:
        _policies(args)
        return
    parser = argparse.ArgumentParser(
        prog="ponder eval",
        description="Score a checkpoint on its splits at every ACT step, up to and beyond its training budget.",
        epilog="docs/evaluation.md says what each number means. With --policy all: accuracy against compute for every "
        "halting policy, as `ponder policies` (whose options then hold).",
    )
    parser.add_argument("checkpoint", help="a run folder, a checkpoint in one, an imported folder, or a zoo name")
    parser.add_argument("--domain", metavar="PRESET", help="evaluate on this preset's data; imported models need it")
    parser.add_argument("--split", nargs="+", action="extend", default=[], metavar="S", help="default: all but train")
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps to run (default: twice the training budget)")
    parser.add_argument("--weights", choices=("ema", "online", "both"), default="ema")
    parser.add_argument("--batch", type=int, metavar="N", help="examples at a time; changes nothing but the time")
    parser.add_argument("--limit", type=int, metavar="N", help="so many examples of each split, spread evenly over it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: eval in the run folder, or ./eval-ZOONAME")
    known = parser.parse_args(args)
    for option in ("steps", "batch", "limit"):
        value = getattr(known, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value} is too small: give at least 1")
    asked = Asked(
        checkpoint=known.checkpoint,
        domain=known.domain,
        splits=tuple(dict.fromkeys(known.split)),
        steps=known.steps,
        weights=known.weights,
        batch=known.batch,
        limit=known.limit,
        data_dir=known.data_dir,
        out=known.out,
        command=shlex.join(["ponder", "eval", *args]),
    )
    here = runtime.start(known.device)
    with Bar() as bar:
        out = run(asked, here, bar if here.main else silent)
    if here.main:
        print_result(files.read_json(out / RESULT), Console(highlight=False))
        print(f"\nwrote {out / RESULT}, {FIGURE} and {RECORDS}/")
    here.close()


def _policies(args: Sequence[str]) -> None:
    from ponder.evaluation.compare import main as policies_main

    parser = argparse.ArgumentParser(prog="ponder eval", add_help=False)
    parser.add_argument("--policy", choices=("all",))
    policies_main(parser.parse_known_args(args)[1])


@dataclass(frozen=True)
class Plan:
    """How a checkpoint is evaluated on which data."""

    dataset: Dataset
    splits: tuple[str, ...]
    steps: int
    budget: int
    batch: int
    limit: int | None
    precision: str
    here: Runtime


def run(asked: Asked, here: Runtime, progress: Progress = silent) -> Path:
    """Evaluate, and write the folder; returns it. Ranks share the work, the first one writes."""
    with torch.random.fork_rng(devices=[]):  # opening a model draws weights before it loads them
        return _run(asked, here, progress)


def _run(asked: Asked, here: Runtime, progress: Progress) -> Path:
    opened = open_weights(asked.checkpoint, "online" if asked.weights == "online" else "ema", here.device)
    plan = make_plan(asked, opened, here, progress)
    out = asked.out or default_folder(opened)
    with writing(out, here.main) as aside:
        sha256, scores = {}, {}
        for name, each in weight_sets(asked, opened, here.device):
            sha256[name] = each.sha256
            if each.config is None and plan.dataset.domain.task_ids > 1:
                each.model.table = arranged_table(each.model.table, each.path, plan.dataset, plan.splits)
            scores[name] = {split: _score(plan, each, name, split, aside, progress) for split in plan.splits}
        if here.main:
            for splits in scores.values():
                splits.update(ood_means(splits, plan.dataset.domain))
            dataset, config = plan.dataset, opened.config
            result = {
                "checkpoint": {"name": opened.name, "path": str(opened.path.resolve()), "update": opened.update},
                "weights": sha256,
                "config": None if config is None else config.flat(),
                "model": opened.model.config.model_dump(mode="json"),
                "seed": None if config is None else config.seed,
                "data": {"path": str(dataset.path), "hash": dataset.hash, "config": dataset.config.flat()},
                "protocol": protocol_words(plan, opened, list(scores)),
                **{key: getattr(plan, key) for key in ("steps", "budget", "batch", "limit", "precision")},
                "device": str(here.device),
                "ranks": here.world,
                "cost": cost_by_step(opened, dataset.domain, plan.steps),
                "scores": scores,
                "environment": {"ponder": __version__, **runtime.environment()},
                "command": asked.command,
            }
            files.write_json(aside / RESULT, result)
            draw(result, aside / FIGURE)
    here.barrier()
    return out


def make_plan(asked: Asked, opened: Opened, here: Runtime, progress: Progress) -> Plan:
    """Everything that can be wrong is found here, before the model runs."""
    data_config, defaults = choose_data(opened, asked.domain)
    if here.main:
        data.build(data_config, asked.data_dir, data.default_workers(), progress)
    here.barrier()
    dataset = Dataset.open(data.folder_for(asked.data_dir, data_config))
    splits = asked.splits or tuple(split for split in dataset.counts if split != "train")
    for split in splits:
        dataset.arrays(split)
    model = opened.model.config
    return Plan(
        dataset=dataset,
        splits=splits,
        steps=1 if model.states == 0 else asked.steps or 2 * model.max_steps,
        budget=model.max_steps,
        batch=asked.batch or defaults.eval.batch,
        limit=asked.limit,
        precision=runtime.precision_for(defaults.train.precision, here.device),
        here=here,
    )


def _score(plan: Plan, opened: Opened, weights: str, split: str, aside: Path, progress: Progress) -> dict[str, Any]:
    """One split with one set of weights: its numbers, and its records in the folder."""
    model, domain, source = opened.model, plan.dataset.domain, plan.dataset.source(split)
    how = evaluate.Settings(plan.steps, plan.batch, plan.limit, plan.precision)

    def watch(what: str, done: int, total: int) -> None:
        progress(f"{what} {split}, {weights} weights", done, total)

    voted = None
    if isinstance(source, ArcEvaluation):
        voted = run_votes(model, domain, source, how, plan.here, watch)
        records = voted.plain.records
    else:
        records = evaluate.run_split(model, domain, source, how, plan.here, watch)
    if not plan.here.main:
        return {}
    file = aside / RECORDS / f"{weights}-{split}.npz"
    evaluate.save_records(records, file)
    head = model.config.halting != "none"
    said: dict[str, Any] = {
        "role": domain.splits[split].role,
        "of": len(source),
        **evaluate.summarise(records, plan.budget, head),
        "records": {"file": f"{RECORDS}/{file.name}", "sha256": files.sha256(file)},
    }
    if voted is not None:
        name = "submission.json" if split == "test" and weights != "online" else f"submission-{weights}-{split}.json"
        arc = score_arc(voted, domain, head)
        said["arc"] = {**arc.score, "submission": name}
        files.write(aside / name, json.dumps(arc.submission))
    return said


# What is evaluated on what --------------------------------------------------------------------------------------------


def choose_data(opened: Opened, preset: str | None) -> tuple[DataConfig, configuration.Config]:
    """The data to evaluate on, and the configuration that gives batch and precision. Refuses what cannot fit."""
    own = opened.config
    if preset is None:
        if own is None:
            raise UserError(
                f"{opened.path} was imported and does not say what data it is for: add --domain PRESET, one of "
                f"{', '.join(configuration.preset_names())}"
            )
        return own.data, own
    chosen = configuration.resolve(preset)
    domain = chosen.data.make()
    model = opened.model
    if opened.domain is not None:
        what, fits = _described(opened.domain), _described(opened.domain) == _described(domain)
    else:
        what = f"{len(model.embed)} symbols, {model.tokens} tokens"
        fits = (len(model.embed), model.tokens) == (len(domain.vocab), domain.seq_len)
    if not fits:
        raise UserError(
            f"{opened.path} is a model for {what}; preset {preset} is {_described(domain)}: choose a --domain of the "
            f"same kind"
        )
    if own is None:
        return (with_identifiers(chosen.data, opened.path) if domain.task_ids > 1 else chosen.data), chosen
    if domain.task_ids > 1 and _task_names(own.data) != _task_names(chosen.data):
        raise UserError(
            f"{opened.path} has task ids of its own data; preset {preset} numbers other tasks or augmentations: leave "
            f"out --domain, or change nothing in it but eval_augmentations"
        )
    return chosen.data, own


def _described(domain: Domain) -> str:
    symbols = "".join(domain.vocab[1:])
    shown = symbols if len(symbols) <= 24 else f"{symbols[:24]}..."
    return f"{domain.name} ({len(domain.vocab)} symbols, {shown!r} and padding; {domain.seq_len} tokens)"


def _task_names(config: DataConfig) -> dict[str, Any]:
    """What determines which task id means what."""
    return {key: value for key, value in config.flat().items() if key != "eval_augmentations"}


def weight_sets(asked: Asked, opened: Opened, device: torch.device) -> Iterator[tuple[str, Opened]]:
    """The weights asked for, one after the other, each under the name of what it is."""
    if opened.config is None:
        yield "published", opened
    elif opened.config.train.ema is None:
        yield "online", opened
    elif opened.update is None:  # a zoo model: its averaged weights, without the checkpoint around them
        if asked.weights == "online":
            raise UserError(f"{asked.checkpoint} holds its averaged weights only: leave out --weights online")
        yield "ema", opened
    elif asked.weights == "both":
        yield "ema", opened
        yield "online", open_weights(asked.checkpoint, "online", device)
    else:
        yield asked.weights, opened


def ood_means(scores: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
    """The unweighted mean over all out-of-distribution splits, where all were evaluated; in joint, of each domain."""
    groups: dict[str, list[str]] = {}
    for split, info in domain.splits.items():
        if info.role == "ood":
            part = split.rpartition(".")[0]
            groups.setdefault(f"{part}.{OOD}" if part else OOD, []).append(split)
    return {
        name: {"role": "ood", "splits": splits, **evaluate.mean_of([scores[split] for split in splits])}
        for name, splits in groups.items()
        if all(split in scores for split in splits)
    }


def cost_by_step(opened: Opened, domain: Domain, steps: int) -> dict[str, Any]:
    """What an answer costs when it is taken after 1, 2, ... steps."""
    config, counts = opened.model.config, range(1, steps + 1)
    work, applications = cost.flops(config, len(domain.vocab), domain.seq_len), cost.applications(config)
    return {
        "parameters": work.parameters,
        "layer_applications": [applications * count for count in counts],
        "dense_passes": [applications / cost.DENSE_LAYERS * count for count in counts],
        "flops": [work.inference * count for count in counts],
    }


def protocol_words(plan: Plan, opened: Opened, weights: Sequence[str]) -> str:
    model = opened.model.config
    run_to = f"halting off, every example runs {plan.steps} ACT steps (training budget {plan.budget})"
    rules = "accepted by the domain's rules" if plan.dataset.domain.checkable else "the same, for want of rules"
    trust = "halting logit" if model.halting != "none" else "mean token log-probability"
    return (
        f"{' and '.join(weights)} weights; {run_to if model.states else 'one pass'}; "
        f"{'all examples' if plan.limit is None else f'at most {plan.limit} examples of each split'}; "
        f"exact: equals the stored label, valid: {rules}, token: share of right tokens; "
        f"best_full: each example at its most confident step by {trust}; 95% Wilson intervals; "
        f"{plan.precision} on {plan.here.device.type}"
    )


# Writing --------------------------------------------------------------------------------------------------------------


def default_folder(opened: Opened) -> Path:
    path = opened.path
    if path.resolve() in [folder.resolve() for folder in zoo_folders().values()]:
        return Path(f"eval-{opened.name}")
    if (path / "config.json").is_file():
        return path / "eval"
    run_folder = path.parent if (path.parent / "config.json").is_file() else path.parent.parent
    return run_folder / f"eval-{path.name}"


@contextmanager
def writing(folder: Path, main: bool) -> Iterator[Path]:
    """A folder to fill, which takes the place of an earlier evaluation when it is whole."""
    if not main:
        yield folder
        return
    if folder.exists() and not (folder / RESULT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an evaluation: choose another --out")
    with ExitStack() as stack:
        try:
            aside = stack.enter_context(files.folder_aside(folder))
            (aside / RECORDS).mkdir()
        except OSError as error:
            raise UserError(f"cannot write to {folder.parent} ({error.strerror}): choose another --out") from None
        yield aside
