"""One cell from training to its stored result: what is trained, what is measured after it, what is kept."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from ponder import checkpoint
from ponder.base import files, native, runtime
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.config.schema import SearchPlan, Select
from ponder.data import Dataset
from ponder.domains.arc.sources import ArcEvaluation
from ponder.evaluation import compare as policy
from ponder.evaluation import records as evaluate
from ponder.evaluation.arc import measure as evaluate_split
from ponder.evaluation.records import Judge, Records, Settings
from ponder.evaluation.schema import MEASURES, Share
from ponder.evaluation.subject import Subject, open_data, settings_for, subject
from ponder.evaluation.trace import TracePlan, trace
from ponder.inference.search import default_noise, search
from ponder.inference.weights import open_weights
from ponder.model import cost
from ponder.model.reasoner import Reasoner
from ponder.studies import fixed
from ponder.studies.result import CellResult
from ponder.studies.spec import SEARCHES, After, Cell
from ponder.studies.store import Store, pack
from ponder.training import runs
from ponder.training.log import TIMING, read_log, summary
from ponder.training.loop import Limits
from ponder.training.trackers import Group

POINTS = 60
"""The training log is thinned to at most so many rows."""
DIGITS = 6
TRACED = 32
"""Examples that are looked into: a Jacobian takes a dozen passes."""


def run_cell(cell: Cell, store: Store, data_dir: Path, here: Runtime, limits: Limits, quiet: bool = True) -> bool:
    """Train (or go on training), measure, and store; whether it got that far. Ranks share the work."""
    torch.set_num_threads(cell.threads)
    folder, before = store.folder(cell.key), store.stored(cell.key)
    if not (folder / runs.RESULT).is_file():
        group = Group(cell.study, cell.label)
        with native.as_when(None if before is None else before.environment):
            outcome = runs.train_in(cell.config, folder, data_dir, here, limits, quiet, group=group, online=True)
        if not outcome.finished:
            return False
    after, examples = cell.after, cell.examples
    if before is not None:
        if before.after.covers(cell):
            return True
        after = together([after, before.after.asked()], cell.config.model.max_steps)
        examples = max(examples, before.after.examples)
    began = time.perf_counter()
    measured = measure(cell.config, after, examples, folder, data_dir, here)
    if here.main:
        fixed.keep(open_data(cell.config.data, data_dir, here), store.fixed)
        took = round(time.perf_counter() - began, 3)
        made = CellResult.model_validate({**trained(cell, folder), "after": measured, "after_seconds": took})
        store.write(made if before is None else with_first_times(made, before))
    here.barrier()
    return True


def with_first_times(made: CellResult, before: CellResult) -> CellResult:
    """A training that is repeated for a measurement, and comes out the same, keeps the times it had: those of a study
    are compared, and another machine would mix them up."""
    if _course(made) != _course(before):
        return made
    return made.model_copy(
        update={name: getattr(before, name) for name in ("environment", "seconds", "curve", "train")}
    )


def _course(result: CellResult) -> dict[str, Any]:
    """All that a training's record says, but for the time it took."""
    timeless = {"seconds", "update_seconds"}
    kept = result.model_dump(mode="json", include={"data_hash", "updates", "curve", "train"})
    kept["curve"] = [{name: row[name] for name in row if name not in timeless} for row in kept["curve"]]
    kept["train"] = {name: column for name, column in kept["train"].items() if name not in timeless}
    return kept


def together(wanted: Sequence[After], budget: int) -> After:
    """All that several studies ask of one training."""
    return After(
        steps=max(each.steps or budget for each in wanted),
        weights=tuple(dict.fromkeys(name for each in wanted for name in each.weights)),
        **{name: any(getattr(each, name) for each in wanted) for name in ("policies", "search", "trace")},
    )


# From the training log ------------------------------------------------------------------------------------------------


def trained(cell: Cell, folder: Path) -> dict[str, Any]:
    """What the run folder says, made small; the result's schema leaves out the rest."""
    rows = read_log(folder / "metrics.jsonl")
    result = files.read_json(folder / runs.RESULT)
    config = cell.config
    domain = config.data.make()
    work = cost.flops(config.model, len(domain.vocab), domain.seq_len, domain.geometry)
    about = summary(rows, config.eval.select)
    return {
        "key": cell.key,
        "label": cell.label,
        "config": config.flat(),
        "data_hash": result["data_hash"],
        "environment": result["environment"],
        **{name: about[name] for name in ("updates", "seconds", "n")},
        "summary": rounded(about),
        "curve": [rounded(row) for row in rows if row["kind"] == "eval"],
        "train": rounded(thinned([row for row in rows if row["kind"] == "train"])),
        "cost": {
            "parameters": work.parameters,
            "applications": cost.applications(config.model),
            "inference_flops": work.inference,
            "training_flops": work.training,
        },
    }


def thinned(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The training rows as columns of at most POINTS numbers, each over a window of rows of equal length."""
    if not rows:
        return {}
    windows = np.array_split(np.arange(len(rows)), min(POINTS, len(rows)))
    ends = {"update", "seconds"}
    names = [name for name in rows[0] if name != "kind" and (name in ends or name not in TIMING)]
    out: dict[str, list[float]] = {}
    for name in names:
        values = np.array([row[name] for row in rows], dtype=np.float64)
        parts = [values[window] for window in windows]
        if name in ends:
            out[name] = [float(part[-1]) for part in parts]
        else:
            out[name] = [float(part.max() if name == "grad_norm_max" else part.mean()) for part in parts]
    return out


def rounded(value: Any) -> Any:
    """The same data with DIGITS decimals: enough for 1/n of any split, and a third of the bytes."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list | tuple) else value


# After the training ---------------------------------------------------------------------------------------------------


def measure(config: Config, after: After, examples: int, folder: Path, data_dir: Path, here: Runtime) -> dict[str, Any]:
    """The forced depth profile of each set of weights, and of the averaged ones what else is asked for."""
    budget = config.model.max_steps
    steps = max(after.steps or budget, budget)
    out: dict[str, Any] = {"steps": steps, "budget": budget, "examples": examples}
    last = checkpoint.listed(folder / "checkpoints")[-1]
    dataset = open_data(config.data, data_dir, here)
    for weights in after.weights:
        if weights == "online" and config.train.ema is None:
            continue
        opened = open_weights(last, weights, here.device)
        how = settings_for(opened.model.config, config, here.device, steps, limit=examples)
        names = [split for split in dataset.counts if split != "train"]
        splits = {split: profile(opened.model, dataset, split, how, here) for split in names}
        out[weights] = {"update": opened.update, "splits": rounded(splits)}
    if here.main and (after.policies or after.search or after.trace):
        precision = runtime.precision_for(config.train.precision, here.device)
        opened = open_weights(last, "ema", here.device)
        what = subject(opened, dataset, None, examples, precision)
        if after.policies:
            out["policies"] = rounded(_policies(what))
        if after.search:
            out["search"] = rounded(searches(what))
        if after.trace:
            few = subject(opened, dataset, None, min(TRACED, examples), precision)
            out["trace"] = trace(few, TracePlan(budget)).as_data()
    return out


def profile(model: Reasoner, dataset: Dataset, split: str, how: Settings, here: Runtime) -> dict[str, Any]:
    """One split at every forced step, and each example's verdict at the training budget and at the end."""
    domain, source, head = dataset.domain, dataset.source(split), model.config.head
    votes = isinstance(source, ArcEvaluation)  # all of them count
    measured = evaluate_split(model, domain, source, replace(how, limit=None) if votes else how, here)
    records, arc = measured.records, {}
    if measured.arc is not None:
        arc = {"arc": {k: v for k, v in measured.arc.score.as_data().items() if k != "submission"}}
    within = records.first(model.config.max_steps)
    few = how.limit is None or records.n <= how.limit  # the votes of a whole ARC set would fill the file
    return {
        "role": domain.splits[split].role,
        "n": records.n,
        "of": len(source),
        **{m: getattr(records, m).mean(axis=0, dtype=np.float64).tolist() for m in MEASURES},
        "best_full": _answered(within, "best_full"),
        "halting": _halting(within) if head else None,
        "bits": _bits(within, "final") if few else None,
        "bits_end": _bits(records, "final") if few else None,
        "bits_full": _bits(within, "best_full") if few else None,
        **arc,
    }


def _bits(records: Records, way: str) -> dict[str, str]:
    return {m: pack(evaluate.answered(records, m, way)) for m in ("exact", "valid")}


def _answered(records: Records, way: str) -> dict[str, float]:
    return {m: float(evaluate.answered(records, m, way).mean(dtype=np.float64)) for m in MEASURES}


def _halting(records: Records) -> dict[str, float]:
    mean_step = float(evaluate.picked_steps(records)["halting"].mean() + 1)
    return {**_answered(records, "halting"), "mean_step": mean_step}


def _policies(what: Subject) -> dict[str, Any]:
    compared = policy.compare_policies(what)
    results = [result.as_data() for result in compared.results]
    return {"split": what.split, "n": len(what.index), "budget": compared.budget, "results": results}


def searches(what: Subject) -> dict[str, Any]:
    """Every rule with every split of the compute, on the same examples; `mean_steps` are those of all restarts."""
    model, batch, n = what.model, what.batch, len(what.index)
    budget, judge = model.config.max_steps, Judge(what.domain, batch.inputs, batch.labels)
    results = []
    for rule in get_args(Select):
        for restarts, depth in SEARCHES:
            plan = SearchPlan(restarts, depth * budget, default_noise(model), select=rule)
            found = search(model, what.domain, batch.inputs, plan, batch.task_ids, what.index, precision=what.precision)
            valid = judge(found.answers)[1]
            share = Share.of(valid.mean(), n).as_data()
            point = {"policy": f"{rule} {restarts}x{depth}", "mean_steps": float(found.compute.mean())}
            results.append({**point, "valid": share, "bits": pack(valid)})
    return {"split": what.split, "n": n, "budget": budget, "results": results}


def one_training(cells: Sequence[Cell]) -> Cell:
    """The cells of one key as one cell that asks for all they ask for."""
    first = cells[0]
    if any(cell.key != first.key or cell.threads != first.threads for cell in cells):
        raise UserError(f"{', '.join(c.label for c in cells)} are not the same training: run them one by one")
    after = together([cell.after for cell in cells], first.config.model.max_steps)
    return Cell(**{**vars(first), "after": after})
