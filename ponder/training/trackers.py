"""Optional trackers. The run folder's own log is always written; these get the same numbers."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ponder.base.errors import UserError, unknown
from ponder.config.resolve import Config


class Tracker(Protocol):
    def log(self, values: dict[str, float], update: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, module: Any, config: Config, folder: Path) -> None:
        self.writer = module.SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: dict[str, float], update: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, update)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """wandb, and trackio, which speaks the same language."""

    def __init__(self, module: Any, config: Config, folder: Path) -> None:
        self.module = module
        module.init(project="ponder", name=folder.name, config=config.flat())

    def log(self, values: dict[str, float], update: int) -> None:
        self.module.log(values, step=update)

    def close(self) -> None:
        self.module.finish()


class _Mlflow:
    def __init__(self, module: Any, config: Config, folder: Path) -> None:
        self.module = module
        module.set_experiment("ponder")
        module.start_run(run_name=folder.name)
        module.log_dict(config.flat(), "config.json")

    def log(self, values: dict[str, float], update: int) -> None:
        self.module.log_metrics(values, step=update)

    def close(self) -> None:
        self.module.end_run()


class _ClearMl:
    def __init__(self, module: Any, config: Config, folder: Path) -> None:
        self.task = module.Task.init(project_name="ponder", task_name=folder.name)
        self.task.connect_configuration(config.flat())

    def log(self, values: dict[str, float], update: int) -> None:
        for name, value in values.items():
            self.task.get_logger().report_scalar(name, name, value=value, iteration=update)

    def close(self) -> None:
        self.task.close()


TRACKERS: dict[str, tuple[str, Callable[[Any, Config, Path], Tracker]]] = {
    "tensorboard": ("torch.utils.tensorboard", _TensorBoard),
    "wandb": ("wandb", _Wandb),
    "trackio": ("trackio", _Wandb),
    "mlflow": ("mlflow", _Mlflow),
    "clearml": ("clearml", _ClearMl),
}


def check_trackers(config: Config) -> None:
    for name in config.train.trackers:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)


def open_trackers(config: Config, folder: Path) -> list[Tracker]:
    """The trackers the configuration names; a package that is missing is found before the first step."""
    check_trackers(config)
    opened = []
    for name in config.train.trackers:
        package, make = TRACKERS[name]
        if name == "mlflow":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            module = import_module(package)
        except ImportError:
            raise UserError(f"tracker {name!r} needs a package that is not here: pip install {name}") from None
        opened.append(make(module, config, folder))
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
