"""Results and runs whose key has changed since they were made, given the names they have now. Nothing is deleted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.errors import UserError
from ponder.config.resolve import from_flat
from ponder.studies.result import VERSION
from ponder.studies.store import Store

KEY = 12
"""Letters of a key; what follows names the threads."""


def migrate(store: Store) -> Iterator[str]:
    """Yields what is to be said of it. The files as they were are in `old` beside the new ones."""
    renamed: list[dict[str, Any]] = []
    old = store.root / "old"
    for path in sorted(store.root.glob("*.json")):
        try:
            result = files.read_json(path)
            key = from_flat(result["config"]).key() + path.stem[KEY:]
        except (UserError, ValueError, KeyError, TypeError) as error:
            yield f"{path} cannot be read ({str(error) or type(error).__name__}): move it elsewhere"
            continue
        if key != path.stem or result.get("version") != VERSION:
            renamed.append({"version": VERSION, **result, "key": key})
            old.mkdir(exist_ok=True)
            path.rename(old / path.name)
    for result in sorted(renamed, key=_depth, reverse=True):
        path = store.path(result["key"])
        if path.exists():
            kept = files.read_json(path)["label"]
            yield f"{result['label']} is the same training as {kept}, which was measured deeper and is kept"
        else:
            whole = files.sealed(result) if files.SEAL in result else result
            files.write(path, json.dumps(whole, separators=(",", ":")) + "\n")
    runs = sum(_move_run(store, path) for path in sorted(store.runs.glob("*/config.json")))
    yield f"{len(renamed)} results in {store.root} and {runs} runs in {store.runs} have new names"
    if renamed:
        yield f"{old} has the results as they were: delete it when you have seen the new ones"


def _depth(result: dict[str, Any]) -> tuple[int, int, bool]:
    """How much was measured after training."""
    after = result["after"]
    return after["steps"], len(after), after["policies"] is not None


def _move_run(store: Store, config: Path) -> bool:
    """A run folder with its log; one that is being worked on, or whose new name is taken, stays."""
    old = config.parent.name
    new = from_flat(files.read_json(config)).key() + old[KEY:]
    if new == old or store.folder(new).exists() or files.holder(store.lock(old)) is not None:
        return False
    for of in (store.log, store.folder):
        if of(old).exists():
            of(old).rename(of(new))
    return True
