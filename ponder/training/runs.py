"""Run folders: opening one, training in it, and what it says when the training is over."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import current_thread, main_thread

from ponder import checkpoint, data
from ponder.base import files, native, runtime
from ponder.base.console import Bar
from ponder.base.errors import UserError, disk_in_words
from ponder.config import resolve as configuration
from ponder.config.resolve import Config, differences
from ponder.domains.contract import silent
from ponder.training.log import read_log, summary
from ponder.training.loop import Limits, Outcome, Stop, train
from ponder.training.micro import programmed
from ponder.training.trackers import Callback, Group, Tracked, check_trackers, open_trackers
from ponder.training.view import view_for

CONFIG, RESULT, ENVIRONMENT, LOG = "config.json", "result.json", "environment.json", "metrics.jsonl"
LOCK = ".lock"
"""Held by the one process that trains in a folder; its ranks are led by the first."""
PATIENCE = 0.5
"""Seconds to wait for it: somebody may just be looking who holds it."""


def default_folder(config: Config, model: str | None = None) -> Path:
    """Where a run belongs that nobody gave a place: runs/PRESET[-MODEL]-sSEED."""
    return Path("runs") / "-".join([config.preset, *([model] if model else []), f"s{config.seed}"])


@disk_in_words()
def train_in(
    config: Config,
    folder: Path,
    data_dir: Path,
    here: runtime.Runtime,
    limits: Limits,
    quiet: bool = False,
    fresh: bool = False,
    callback: Callback | None = None,
    group: Group | None = None,
    ranks: int | None = None,
    online: bool = False,
) -> Outcome:
    """Train `config` in `folder` (which may hold an interrupted run of the same configuration; a `fresh` one
    replaces what it holds). `callback` gets every row of the log. `ranks`: go on with so many, whatever the run
    began with. `online`: see `train`. A start that is refused leaves no folder behind."""
    with _held(folder, fresh) if here.main else nullcontext():
        check_trackers(config)
        if here.main and not fresh:
            open_folder(folder, config)
            checkpoint.restore(folder)
        if here.local_rank == 0:  # once on each node: they may share a disk or not
            with Bar() as bar:
                data.build(config.data, data_dir, data.default_workers(), silent if quiet or not here.main else bar)
        here.barrier()
        dataset_path = data.folder_for(data_dir, config.data)
        dataset = data.Dataset.open(dataset_path)
        if here.main:
            if fresh:
                clear(folder)
                open_folder(folder, config)
            dataset.check_hashes()
            about = {"data": str(dataset_path), "data_hash": dataset.hash, "ranks": here.world, **runtime.environment()}
            _nothing_lost(folder, config)
            _same_data(folder, dataset)
            if ranks != here.world:
                _same_shape(folder, here.world)
            files.write_json(folder / ENVIRONMENT, about)
        here.barrier()
        trackers = open_trackers(config, folder, group) if here.main else []
        view = Tracked(view_for(quiet or not here.main), trackers, callback if here.main else None)
        stop = Stop()
        # Python lets nobody but the main thread do it
        caught = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        before = {s: signal.signal(s, lambda *_: setattr(stop, "asked", True)) for s in caught}
        try:
            begun = checkpoint.newest(folder / "checkpoints")
            if begun is not None and not begun.state.get("kernels") and native.state():
                view.say("begun without kernels of our own, and goes on without, to the same bits; --fresh has them")
            with native.as_when(None if begun is None else begun.state), ExitStack() as ways:
                if here.device.type == "cpu" and programmed(config):
                    ways.enter_context(native.threads_to_ourselves())
                outcome = train(config, folder, dataset, here, view, limits, stop, online)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            view.close()
        if outcome.finished and here.main:
            finish(folder, config, dataset)
        return outcome


@contextmanager
def _held(folder: Path, fresh: bool) -> Iterator[None]:
    """The folder for ourselves. A start that is refused leaves none behind."""
    _refuse_foreign(folder, "--fresh leaves it alone: " if fresh else "")
    above = [parent for parent in folder.parents if not parent.exists()]
    with files.locked(folder / LOCK, PATIENCE) as ours:
        if not ours:
            by = files.holder(folder / LOCK) or "a process that just ended"
            raise UserError(f"{folder} is being trained by {by}: wait until it ends, or choose another --out")
        made = fresh or not (folder / CONFIG).is_file()
        try:
            yield
        except (UserError, OSError):
            if made and not _began(folder):
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    for parent in above:
                        parent.rmdir()
            raise


def clear(folder: Path) -> None:
    """Delete a run; the file that says what the folder is goes last, and its lock stays."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == CONFIG):
        if not path.name.startswith(LOCK):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _refuse_foreign(folder: Path, so: str = "") -> None:
    """What is neither empty nor a run folder is not ours to write in."""
    if not folder.exists() or (folder / CONFIG).is_file():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a run folder: choose another --out")
    if any(not files.unfinished(path) and not path.name.startswith(LOCK) for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and is not a run folder: {so}choose another --out")


def _began(folder: Path) -> bool:
    """Whether anything was trained here."""
    log = folder / LOG
    return bool(checkpoint.listed(folder / "checkpoints")) or (log.is_file() and log.stat().st_size > 0)


def _nothing_lost(folder: Path, config: Config) -> None:
    """A run that once had checkpoints still has some: it does not begin again unless it is told to."""
    if checkpoint.listed(folder / "checkpoints"):
        return
    saved = max(config.train.save_every, read_config(folder).train.save_every)
    if (folder / RESULT).is_file() or any(row["update"] > saved for row in read_log(folder / LOG)):
        raise UserError(f"the checkpoints of {folder} are gone: restore them from a copy, or start over with --fresh")


def _same_data(folder: Path, dataset: data.Dataset) -> None:
    """A run goes on with the very data it began with."""
    if not checkpoint.listed(folder / "checkpoints"):
        return
    known = checkpoint.recall(folder, "data_hash")
    if known is None:
        raise UserError(f"{folder / ENVIRONMENT} does not say what data this run began with: {checkpoint.RESTORE}")
    (before,) = map(str, known)
    if before != dataset.hash:
        raise UserError(
            f"{folder} was trained on other data (hash {before[:12]}) than {dataset.path} holds now "
            f"({dataset.hash[:12]}): give --data-dir, or --fresh to start over"
        )


def _same_shape(folder: Path, world: int) -> None:
    """A run goes on with as many ranks as it began with: others add up in another order, which gives other bits."""
    known = checkpoint.recall(folder, "ranks") if checkpoint.listed(folder / "checkpoints") else None
    if known is not None and known[0] != world:
        raise UserError(
            f"{folder} was trained by {known[0]} ranks until now and this is {world}: start {known[0]} to get the same "
            f"bits, or give `ponder train` --processes {world} to go on without"
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
    _refuse_foreign(folder)
    with disk_in_words():
        files.write_json(folder / CONFIG, config.flat())


def read_config(folder: Path) -> Config:
    try:
        return configuration.from_flat(files.read_object(folder / CONFIG, checkpoint.RESTORE))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} is not a run folder (it has no {CONFIG})") from None


def finish(folder: Path, config: Config, dataset: data.Dataset) -> None:
    """result.json and curves.png, from the log alone."""
    from ponder.training.curves import draw_curves

    rows = read_log(folder / LOG)
    result = {
        "config": config.flat(),
        "key": config.key(),
        "data_hash": dataset.hash,
        "environment": runtime.environment(),
        **summary(rows, config.eval.select),
    }
    files.write_json(folder / RESULT, result)
    draw_curves(rows, folder / "curves.png", f"{config.model.name} on {config.preset}, seed {config.seed}")
