"""Checkpoints that survive a power cut: written aside, hashed, renamed; the newest complete one wins."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from ponder.base import files
from ponder.base.errors import UserError

if TYPE_CHECKING:  # where a checkpoint lies is asked by commands that do without torch
    from torch import Tensor

STATE = "state.json"
OWN = "sha256"
"""Where the state holds its own hash, taken of all the rest."""
RESTORE = "restore it from a copy, or start over with --fresh"
"""What to do about a part of a run that is lost."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]
    """Plain data: update, metrics so far, ... and `files`, the hashes of the tensors' files."""

    def tensors(self, name: str) -> "dict[str, Tensor]":
        if not self.has(name):
            raise UserError(f"checkpoint {self.path} is incomplete (it has no {name}.safetensors)")
        return read_tensors(self.path / f"{name}.safetensors")

    def has(self, name: str) -> bool:
        return f"{name}.safetensors" in self.state["files"]


def write_tensors(folder: Path, name: str, tensors: "Mapping[str, Tensor]") -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.safetensors"
    try:
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, file)
        files.to_disk(file)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot write {file} ({reason}): make room, then give the same command again") from None


def read_tensors(file: Path) -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    try:
        loaded: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({str(error).splitlines()[0]}): restore it from a copy") from None
    return loaded


def aside(target: Path) -> Path:
    """Where a checkpoint is assembled before it gets its name."""
    return target.with_name(f".{target.name}.part")


def complete(target: Path, state: Mapping[str, Any]) -> None:
    """Hash what was written aside, write the state last, and give the folder its name."""
    part = aside(target)
    hashes = {f.name: files.sha256(f) for f in sorted(part.glob("*.safetensors"))}
    files.write_json(part / STATE, files.sealed({**state, "files": hashes}, OWN))
    files.put_folder(part, target)


def read(path: Path) -> Checkpoint:
    """A checkpoint whose every byte is what was written; otherwise an error that names the file."""
    files.restore(path)
    try:
        state = files.read_json(path / STATE)
        hashes = {str(name): str(known) for name, known in state["files"].items() if Path(name).name == name}
        _ = int(state["update"])
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"checkpoint {path} is incomplete ({STATE} is missing or damaged)") from None
    if not files.intact(state, OWN):
        raise UserError(f"checkpoint file {path / STATE} was edited (its hash does not match)")
    for name, expected in hashes.items():
        file = path / name
        if not file.is_file():
            raise UserError(f"checkpoint {path} is incomplete ({name} is missing)")
        if files.sha256(file) != expected:
            raise UserError(f"checkpoint file {file} was truncated or edited (its hash does not match)")
    return Checkpoint(path, state)


def newest(folder: Path, complain: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all. Broken ones are named to `complain` and
    passed over; that all are broken is an error."""
    broken = list[UserError]()
    for path in reversed(listed(folder)):
        try:
            saved = read(path)
        except UserError as error:
            broken.append(error)
            continue
        if complain is not None:
            for each in broken:
                complain(f"{each}; using the one before")
        return saved
    if broken:
        raise UserError(f"no checkpoint in {folder} is whole ({'; '.join(map(str, broken))}): {RESTORE}")
    return None


def restore(run: Path) -> None:
    """Undo in a run folder what was killed between two renames: `best` and the checkpoints get their names back."""
    for old in (*run.glob(".best.old"), *(run / "checkpoints").glob(".u*.old")):
        files.restore(old.with_name(old.name[1 : -len(".old")]))


def recall(run: Path, *names: str) -> tuple[Any, ...] | None:
    """What a run knows of its surroundings, from its newest checkpoint. An older ponder left it to environment.json."""
    for file in (*(path / STATE for path in reversed(listed(run / "checkpoints"))), run / "environment.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = files.read_json(file)
            return tuple(known[name] for name in names)
    return None


def listed(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("u*") if p.is_dir())


def last_update(run: Path) -> int:
    """The update of a run's newest checkpoint, from its name; 0 where there is none."""
    return max((int(path.name[1:]) for path in listed(run / "checkpoints")), default=0)


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest few, and leftovers of writes that never finished."""
    for path in listed(folder)[:-keep]:
        files.remove_folder(path)
    for leftover in (*folder.glob(".*.part"), *folder.glob(".*.old")):
        shutil.rmtree(leftover, ignore_errors=True)
