"""What run folders say of themselves, without opening a model: for `ponder runs` and `ponder watch`."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder import checkpoint
from ponder.base import files
from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.training.log import read_log
from ponder.training.loop import total_updates
from ponder.training.runs import CONFIG, ENVIRONMENT, LOCK, LOG, RESULT, read_config


@dataclass(frozen=True)
class Listed:
    folder: Path
    preset: str
    model: str
    update: int
    updates: int | None
    """How many there will be; None where the dataset that says so is not here."""
    best: tuple[int, float] | None
    """The update chosen on val so far, and its score there."""
    measure: str
    age: float
    """Seconds since the run was last heard of."""
    state: str
    """finished, running (and by whom), or stopped."""

    @property
    def running(self) -> bool:
        return self.state.startswith("running")


def find_runs(folder: Path) -> list[Listed]:
    """The runs in a folder and in the folders of it (a study's cells), latest last."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the one that holds run folders")
    found = [path.parent for pattern in (CONFIG, f"*/{CONFIG}", f"*/*/{CONFIG}") for path in folder.glob(pattern)]
    listed = [read_run(each) for each in found if any((each / name).exists() for name in (ENVIRONMENT, LOG))]
    return sorted(listed, key=lambda run: -run.age)


def read_run(folder: Path) -> Listed:
    try:
        config: dict[str, Any] = files.read_json(folder / CONFIG)
        preset, model, train = config["preset"], config["model"]["name"], config["train"]
        measure = config["eval"]["select"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is not a run folder (it has no {CONFIG} that can be read)") from None
    rows = read_log(folder / LOG)
    scores = [(row["update"], row["ema"]["val"][measure]) for row in rows if row["kind"] == "eval"]
    updates = train["updates"] or _from_epochs(folder)
    owner = files.holder(folder / LOCK)
    state = "finished" if (folder / RESULT).is_file() else f"running: {owner}" if owner else "stopped"
    heard = max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=time.time())
    return Listed(
        folder=folder,
        preset=preset,
        model=model,
        update=max(rows[-1]["update"] if rows else 0, checkpoint.last_update(folder)),
        updates=updates,
        best=max(scores, key=lambda score: (score[1], score[0])) if scores else None,
        measure=measure,
        age=max(0.0, time.time() - heard),
        state=state,
    )


def _from_epochs(folder: Path) -> int | None:
    try:
        dataset = Dataset.open(Path(files.read_json(folder / ENVIRONMENT)["data"]))
        return total_updates(read_config(folder), len(dataset.source("train")))
    except (OSError, ValueError, KeyError, UserError):
        return None


def follow(folder: Path, pause: float = 1.0) -> Iterator[list[dict[str, Any]]]:
    """The rows of a run's log as they come, until nobody trains it any more. A resumed run, which drops the rows after
    its checkpoint, gives those again."""
    shown = 0
    while True:
        running = read_run(folder).running  # before the rows: the last ones are then there
        rows = read_log(folder / LOG)
        shown = min(shown, len(rows))
        yield rows[shown:]
        shown = len(rows)
        if not running:
            return
        time.sleep(pause)
