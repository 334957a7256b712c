"""Run folders: opening one, training in it, and what it says when the training is over."""

import json
import shutil
import signal
from pathlib import Path
from threading import current_thread, main_thread

from ponder import checkpoint, data
from ponder.base import files, runtime
from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.config.resolve import Config, differences
from ponder.training.log import read_log, summary
from ponder.training.loop import Limits, Outcome, Stop, train
from ponder.training.trackers import Callback, Tracked, check_trackers, open_trackers
from ponder.training.view import view_for

CONFIG, RESULT, ENVIRONMENT = "config.json", "result.json", "environment.json"


def default_folder(config: Config, model: str | None = None) -> Path:
    """Where a run belongs that nobody gave a place: runs/PRESET[-MODEL]-sSEED."""
    return Path("runs") / "-".join([config.preset, *([model] if model else []), f"s{config.seed}"])


def train_in(
    config: Config,
    folder: Path,
    data_dir: Path,
    here: runtime.Runtime,
    limits: Limits,
    quiet: bool = False,
    fresh: bool = False,
    callback: Callback | None = None,
) -> Outcome:
    """Train `config` in `folder` (which may hold an interrupted run of the same configuration; a `fresh` one
    replaces what it holds). `callback` gets every row of the log. A start that is refused leaves no folder behind."""
    made = here.main and (fresh or not (folder / CONFIG).is_file())
    try:
        return _train_in(config, folder, data_dir, here, limits, quiet, fresh, callback)
    except UserError:
        if made and (folder / CONFIG).is_file() and not _began(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _train_in(
    config: Config,
    folder: Path,
    data_dir: Path,
    here: runtime.Runtime,
    limits: Limits,
    quiet: bool,
    fresh: bool,
    callback: Callback | None,
) -> Outcome:
    check_trackers(config)
    if here.main and not fresh:
        open_folder(folder, config)
    if here.local_rank == 0:  # once on each node: they may share a disk or not
        _built(config, data_dir, quiet or not here.main)
    here.barrier()
    dataset_path = data.folder_for(data_dir, config.data)
    dataset = data.Dataset.open(dataset_path)
    if here.main:
        if fresh:
            clear(folder)
            open_folder(folder, config)
        dataset.check_hashes()
        about = {"data": str(dataset_path), "data_hash": dataset.hash, "ranks": here.world, **runtime.environment()}
        _same_data(folder, dataset)
        files.write_json(folder / ENVIRONMENT, about)
    trackers = open_trackers(config, folder) if here.main else []
    view = Tracked(view_for(quiet or not here.main), trackers, callback if here.main else None)
    stop = Stop()
    caught = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()  # Python allows it only there
    before = {s: signal.signal(s, lambda *_: setattr(stop, "asked", True)) for s in caught}
    try:
        outcome = train(config, folder, dataset, here, view, limits, stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        view.close()
    if outcome.finished and here.main:
        finish(folder, config, dataset)
    return outcome


def _built(config: Config, data_dir: Path, quiet: bool) -> Path:
    from ponder.base.console import Bar
    from ponder.domains.contract import silent

    with Bar() as bar:
        return data.build(config.data, data_dir, data.default_workers(), silent if quiet else bar)


def clear(folder: Path) -> None:
    """Delete a run. What is not a run folder is left alone."""
    if folder.exists() and not (folder / CONFIG).is_file() and any(folder.iterdir()):
        raise UserError(f"{folder} is not a run folder, so --fresh leaves it alone: choose another --out")
    shutil.rmtree(folder, ignore_errors=True)


def _began(folder: Path) -> bool:
    """Whether anything was trained here."""
    return bool(checkpoint.listed(folder / "checkpoints") or read_log(folder / "metrics.jsonl"))


def _same_data(folder: Path, dataset: data.Dataset) -> None:
    """A run goes on with the very data it began with."""
    try:
        before = files.read_json(folder / ENVIRONMENT)["data_hash"]
    except (OSError, ValueError, KeyError):
        return
    if before != dataset.hash and _began(folder):
        raise UserError(
            f"{folder} was trained on other data (hash {before[:12]}) than {dataset.path} holds now "
            f"({dataset.hash[:12]}): give --data-dir, or --fresh to start over"
        )


def open_folder(folder: Path, config: Config) -> None:
    """Make the run folder, or make sure that what is in it is this run."""
    if (folder / CONFIG).is_file():
        there = read_config(folder)
        if there.key() != config.key():
            changed = ", ".join(f"{k} {a!r} -> {b!r}" for k, (a, b) in differences(there, config).items())
            raise UserError(
                f"{folder} holds a run of another configuration ({changed}): choose --out, or --fresh to delete it"
            )
        return
    if folder.exists() and any(not files.unfinished(path) for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and is not a run folder: choose another --out")
    try:
        files.write_json(folder / CONFIG, config.flat())
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another --out") from None


def read_config(folder: Path) -> Config:
    try:
        return configuration.from_flat(files.read_json(folder / CONFIG))
    except FileNotFoundError:
        raise UserError(f"{folder} is not a run folder (it has no {CONFIG})") from None
    except json.JSONDecodeError:
        raise UserError(f"{folder / CONFIG} is damaged") from None


def finish(folder: Path, config: Config, dataset: data.Dataset) -> None:
    """result.json and curves.png, from the log alone."""
    from ponder.training.curves import draw_curves

    rows = read_log(folder / "metrics.jsonl")
    result = {
        "config": config.flat(),
        "key": config.key(),
        "data_hash": dataset.hash,
        "environment": runtime.environment(),
        **summary(rows, config.eval.select),
    }
    files.write_json(folder / RESULT, result)
    draw_curves(rows, folder / "curves.png", f"{config.model.name} on {config.preset}, seed {config.seed}")
