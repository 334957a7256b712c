"""Optional trackers. The run folder's own log is always written; these get the same numbers.

A run is one run in all of them: what it is called there is kept in its folder, so that stopped and resumed it goes on.
"""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ponder import checkpoint
from ponder.base import files
from ponder.base.errors import UserError, unknown
from ponder.config.resolve import Config

KEPT = "tracking.json"


@dataclass(frozen=True)
class Tracker:
    """What to call with the numbers of an update, and at the end."""

    log: Callable[[dict[str, float], int], None]
    close: Callable[[], None]


@dataclass(frozen=True)
class Group:
    """The study a run belongs to, and what it is called in it."""

    study: str
    label: str


@dataclass
class Tracking:
    """What a run is called, where it is tracked."""

    folder: Path
    config: Config
    id: str
    project: str
    name: str
    group: str | None
    tags: dict[str, str]
    own: dict[str, str]
    """Ids that trackers give themselves: tracker -> id."""
    done: int
    """Updates that the run has behind it."""

    @staticmethod
    def of(folder: Path, config: Config, group: Group | None) -> "Tracking":
        try:
            kept = files.read_json(folder / KEPT)
        except (OSError, ValueError):
            kept = {"id": secrets.token_hex(4), "own": {}}
        return Tracking(
            folder=folder,
            config=config,
            id=kept["id"],
            project=os.environ.get("PONDER_PROJECT", "ponder"),
            name=folder.name if group is None else group.label,
            group=None if group is None else group.study,
            tags={
                "domain": config.data.domain,
                "model": config.model.name,
                "scale": config.scale,
                "seed": str(config.seed),
            },
            own=dict(kept["own"]),
            done=checkpoint.last_update(folder),
        )

    def keep(self) -> None:
        files.write_json(self.folder / KEPT, {"id": self.id, "own": self.own})


def _tensorboard(module: Any, run: Tracking) -> Tracker:
    """Its run is its folder; what a resumed run writes again takes the place of what was there."""
    again = {"purge_step": run.done + 1} if run.done else {}
    writer = module.SummaryWriter(str(run.folder / "tensorboard"), **again)
    if not run.done:
        about = {"project": run.project, "id": run.id, "group": run.group or "", **run.tags}
        writer.add_text("run", "  \n".join(f"{key}: {value}" for key, value in about.items()), 0)

    def log(values: dict[str, float], update: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, update)

    return Tracker(log, writer.close)


def _wandb(module: Any, run: Tracking) -> Tracker:
    opened = module.init(
        project=run.project,
        id=run.id,
        name=run.name,
        group=run.group,
        tags=list(run.tags.values()),
        config=run.config.flat(),
        resume="allow",
    )
    return Tracker(lambda values, update: opened.log(values, step=update), opened.finish)


def _trackio(module: Any, run: Tracking) -> Tracker:
    """It knows a run by its name alone, and has no tags: they stand in the configuration."""
    module.init(
        project=run.project,
        name=f"{run.name}-{run.id}",
        group=run.group,
        config={**run.config.flat(), "tags": list(run.tags.values())},
        resume="allow",
        embed=False,
    )
    return Tracker(lambda values, update: module.log(values, step=update), module.finish)


def _mlflow(module: Any, run: Tracking) -> Tracker:
    """It gives its runs ids of its own."""
    module.set_experiment(run.project)
    if "mlflow" in run.own:
        module.start_run(run_id=run.own["mlflow"])
    else:
        about = {"ponder.id": run.id, **run.tags} | ({} if run.group is None else {"group": run.group})
        run.own["mlflow"] = module.start_run(run_name=run.name, tags=about).info.run_id
        module.log_dict(run.config.flat(), "config.json")
    return Tracker(lambda values, update: module.log_metrics(values, step=update), module.end_run)


def _clearml(module: Any, run: Tracking) -> Tracker:
    task = module.Task.init(
        project_name=run.project if run.group is None else f"{run.project}/{run.group}",
        task_name=run.name,
        tags=list(run.tags.values()),
        reuse_last_task_id=False,
        continue_last_task=run.own.get("clearml", False),
    )
    run.own["clearml"] = task.id
    task.connect_configuration(run.config.flat())

    def log(values: dict[str, float], update: int) -> None:
        for name, value in values.items():
            task.get_logger().report_scalar(name, name, value=value, iteration=update)

    return Tracker(log, task.close)


TRACKERS: dict[str, tuple[str, Callable[[Any, Tracking], Tracker]]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "trackio": ("trackio", _trackio),
    "mlflow": ("mlflow", _mlflow),
    "clearml": ("clearml", _clearml),
}


def check_trackers(config: Config) -> None:
    for name in config.train.trackers:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)


def open_trackers(config: Config, folder: Path, group: Group | None = None) -> list[Tracker]:
    """The trackers the configuration names; a package that is missing is found before the first step."""
    check_trackers(config)
    if not config.train.trackers:
        return []
    run, opened = Tracking.of(folder, config, group), list[Tracker]()
    for name in config.train.trackers:
        package, make = TRACKERS[name]
        if name == "mlflow":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            module = import_module(package)
        except ImportError:
            raise UserError(f"tracker {name!r} needs a package that is not here: pip install {name}") from None
        opened.append(make(module, run))
        run.keep()
    return opened


def numbers(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """A row of the log as flat names and numbers."""
    out: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key != "update":
            out[prefix + key] = float(value)
    return out


Callback = Callable[[dict[str, Any]], None]


class Tracked:
    """A view that also tells the trackers and a caller of `train`."""

    def __init__(self, view: Any, trackers: list[Tracker], callback: Callback | None = None) -> None:
        self.view, self.trackers, self.callback = view, trackers, callback

    def begin(self, config: Config, updates: int, done: int) -> None:
        self.view.begin(config, updates, done)

    def row(self, row: dict[str, Any]) -> None:
        self.view.row(row)
        for tracker in self.trackers:
            tracker.log(numbers(row, f"{row['kind']}/"), row["update"])
        if self.callback is not None:
            self.callback(row)

    def say(self, text: str) -> None:
        self.view.say(text)

    def close(self) -> None:
        self.view.close()
        for tracker in self.trackers:
            tracker.close()
