"""For scripts and notebooks: resolve, build, train, evaluate, compare. docs/api.md explains, docs/research.ipynb shows.

Each function is a command without its printing; what a mistake gets is a UserError, one line, as on the terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from ponder import data
from ponder.base import files, runtime
from ponder.base.console import Bar
from ponder.base.errors import unknown
from ponder.config import resolve as configuration
from ponder.config.resolve import Config
from ponder.config.schema import ModelConfig
from ponder.evaluation import diff
from ponder.evaluation.diff import Difference, Evaluation
from ponder.evaluation.run import Asked, run
from ponder.training import runs
from ponder.training.log import read_log
from ponder.training.loop import Limits, Outcome
from ponder.training.trackers import Callback

__all__ = ["Limits", "build", "compare", "evaluate", "resolve", "train"]


@dataclass(frozen=True)
class Trained:
    """A run folder after `train`."""

    folder: Path
    outcome: Outcome
    """Whether the training finished, after how many updates, and what ended it."""
    result: Mapping[str, Any] | None
    """What result.json says: scores of the last checkpoint and of the one chosen on val. None before the end."""

    @property
    def log(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl: `kind` is "train" or "eval", `update` says when."""
        return read_log(self.folder / "metrics.jsonl")


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the same examples."""

    a: Evaluation
    b: Evaluation
    settings: Mapping[str, tuple[Any, Any]]
    """Dotted key -> the values of A and B, for every setting that differs."""
    differences: list[Difference]
    """B minus A for each split and measure, with its 95% interval and how many only one of them solves."""

    def show(self) -> None:
        """The table of `ponder diff`."""
        diff.print_comparison(self.a, self.b, Console(highlight=False))


def resolve(
    preset: str,
    model: str | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """A preset, or a YAML file of that form, with changes: `seed=1`, parts of a section `train={"lr": 1e-3}`, or a
    dict of dotted names `{"train.lr": 1e-3}`. `model` is the name of another recipe or part of the section."""
    name, section = (model, {}) if isinstance(model, str) else (None, model or {})
    nested: dict[str, Any] = {"model": section}
    for key, value in {**(overrides or {}), **sections}.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        nested = configuration.merge(nested, value)
    return configuration.resolve(preset, name, nested)


def build(config: Config, data_dir: str | Path = "data", workers: int = 1) -> data.Dataset:
    """The configuration's dataset, built unless it is there: `.counts`, `.source(split)`, `.domain`. More `workers` are
    processes, which import the calling script anew: its own work then belongs under `if __name__ == "__main__":`."""
    with Bar() as bar:
        return data.Dataset.open(data.build(config.data, Path(data_dir), workers, bar))


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    callback: Callback | None = None,
    limits: Limits | None = None,
    data_dir: str | Path = "data",
    device: str = "auto",
    quiet: bool = False,
    fresh: bool = False,
) -> Trained:
    """Train in the folder `out` (default: runs/PRESET[-MODEL]-sSEED), or go on with the run that is there; `fresh`
    deletes it. `callback` gets every row of the log as it is written. Ctrl-C and `limits` stop early, saved."""
    recipe = None if config.model.name == ModelConfig().name else config.model.name
    folder = runs.default_folder(config, recipe) if out is None else Path(out)
    here = runtime.start(device)  # never closed: ranks of torchrun meet once, and a script may train and evaluate more
    if here.local_rank == 0:
        build(config, data_dir)  # with one process: see there
    outcome = runs.train_in(config, folder, Path(data_dir), here, limits or Limits(), quiet, fresh, callback)
    here.barrier()  # the first rank writes the result
    result = files.read_json(folder / runs.RESULT) if outcome.finished else None
    return Trained(folder, outcome, result)


def evaluate(what: Trained | str | Path, device: str = "auto", **settings: Any) -> Evaluation:
    """Score a run, a checkpoint, an imported folder or a zoo model at every ACT step, and write the folder that
    `ponder eval` writes. `settings` are that command's options: splits, steps, weights, limit, batch, domain,
    data_dir, out. Returns `.folder`, `.result` (eval.json) and `.scores`, by split."""
    allowed = {field.name for field in fields(Asked)} - {"checkpoint", "command"}
    for name in settings.keys() - allowed:
        raise unknown("setting of evaluate", name, allowed)
    for name in {"data_dir", "out"} & settings.keys():
        settings[name] = Path(settings[name])
    where = what.folder if isinstance(what, Trained) else what
    here = runtime.start(device)
    with Bar() as bar:
        return diff.read(run(Asked(str(where), command="ponder.evaluate", **settings), here, bar))


def compare(a: Trained | Evaluation | str | Path, b: Trained | Evaluation | str | Path) -> Comparison:
    """Two evaluated runs, A and B: the settings that differ, and B minus A on the same examples."""
    first, second = (_evaluation(each) for each in (a, b))
    return Comparison(first, second, diff.changed_settings(first, second), diff.compare(first, second))


def _evaluation(what: Trained | Evaluation | str | Path) -> Evaluation:
    if isinstance(what, Evaluation):
        return what
    return diff.read(what.folder if isinstance(what, Trained) else Path(what))
