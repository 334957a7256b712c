"""`ponder import`: a published checkpoint becomes a folder that evaluation and solving can open.

The folder holds `config.json`, `weights.safetensors` and, where it was given, the published `identifiers.json`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from ponder import checkpoint
from ponder.base import files
from ponder.base.errors import UserError
from ponder.config.resolve import read_yaml
from ponder.model.published import KINDS, load_official, read_checkpoint
from ponder.model.reasoner import Reasoner

# The published configurations name their dataset but not its length.
_TOKENS = {"sudoku": 81, "maze": 900, "arc": 900}


def weights_of(model: Reasoner) -> dict[str, Tensor]:
    """The state dict with each tensor under one name: a shared module appears as `low` only."""
    shared = model.high is model.low
    return {k: v for k, v in model.state_dict().items() if not (shared and k.startswith("high."))}


def write(model: Reasoner, folder: Path, source: Mapping[str, str], identifiers: list[str] | None = None) -> None:
    """Write the folder aside and give it its name when it is whole."""
    refuse_used(folder)
    said = {
        "kind": "imported",
        "model": model.config.model_dump(mode="json"),
        "vocab": model.embed.shape[0],
        "tokens": model.tokens,
        "task_ids": len(model.table),
        "source": dict(source),
    }
    if identifiers is not None and len(identifiers) != len(model.table):
        raise UserError(
            f"the identifiers name {len(identifiers)} rows, the checkpoint's puzzle table has {len(model.table)}: "
            f"give the identifiers.json of the dataset it was trained on"
        )
    try:
        with files.folder_aside(folder) as aside:
            checkpoint.write_tensors(aside, "weights", weights_of(model))
            if identifiers is not None:
                files.write(aside / "identifiers.json", json.dumps(identifiers))
            files.write_json(aside / "config.json", said)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder} ({error}): free some space or choose another folder with -o") from None


def refuse_used(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise UserError(f"{folder} exists and is not an empty folder: choose another with -o, or delete it")


def import_main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder import",
        description="Convert a checkpoint that the authors' code of HRM, TRM or URM saved. Nothing in it is executed.",
    )
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the all_config.yaml saved beside it"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seq-len", type=int, help="tokens of a puzzle, where neither weights nor FILE say it")
    parser.add_argument(
        "--identifiers", type=Path, metavar="FILE", help="ARC: the identifiers.json of the dataset it was trained on"
    )
    known = parser.parse_args(args)
    refuse_used(known.out)
    if not known.config.is_file():
        raise UserError(f"there is no configuration {known.config}: give the all_config.yaml saved with the checkpoint")
    config = with_tokens(read_yaml(known.config), known.seq_len)
    identifiers = None if known.identifiers is None else read_identifiers(known.identifiers)
    model = load_official(known.kind, config, read_checkpoint(known.checkpoint))
    source = {"kind": known.kind, "checkpoint": known.checkpoint.name, "sha256": files.sha256(known.checkpoint)}
    write(model, known.out, source, identifiers)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{known.out}: {known.kind}, {parameters / 1e6:.2f}M parameters, {model.embed.shape[0]} symbols, "
        f"{model.tokens} tokens, {len(model.table)} task ids"
    )


def with_tokens(config: Mapping[str, Any], seq_len: int | None) -> dict[str, Any]:
    """Their configuration with the length of a puzzle in it: as given, as it says, or as its dataset's name tells."""
    if seq_len is not None:
        if seq_len < 1:
            raise UserError(f"--seq-len {seq_len} is too small: give the tokens of a puzzle, 81 for 9x9 Sudoku")
        return {**config, "seq_len": seq_len}
    arch = config.get("arch")
    if "seq_len" in config or (isinstance(arch, Mapping) and "seq_len" in arch):
        return dict(config)
    paths = config.get("data_paths") or [config.get("data_path")]
    names = [Path(str(path)).name.lower() for path in paths] if isinstance(paths, list) else []
    found = {tokens for word, tokens in _TOKENS.items() for name in names if name.startswith(word)}
    return {**config, "seq_len": found.pop()} if len(found) == 1 else dict(config)


def read_identifiers(path: Path) -> list[str]:
    try:
        names = files.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a published identifiers.json ({error}): give a JSON list of names") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} is not a published identifiers.json: give a JSON list of names, one for each row")
    return names
