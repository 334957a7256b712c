"""Checkpoints as the authors of HRM, TRM and URM save them, loaded into a Reasoner."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ponder import checkpoint
from ponder.base import files
from ponder.base.errors import UserError, unknown
from ponder.config.schema import ModelConfig
from ponder.model.fit import expected
from ponder.model.reasoner import Reasoner

# What every published model lacks of ours.
_PLAIN: dict[str, Any] = {
    "learned_init": False,
    "bound": None,
    "gate": False,
    "post_norm": False,
    "key_mask": False,
}

_LAYER = {
    "self_attn.qkv_proj.weight": "attention.qkv.weight",
    "self_attn.o_proj.weight": "attention.out.weight",
    "mlp_t.gate_up_proj.weight": "tokens.up.weight",
    "mlp_t.down_proj.weight": "tokens.down.weight",
    "mlp.gate_up_proj.weight": "mlp.up.weight",
    "mlp.down_proj.weight": "mlp.down.weight",
    "mlp.dwconv.weight": "mlp.conv.weight",
    "mlp.dwconv.bias": "mlp.conv.bias",
}

_PLACE = {
    "embed_tokens.embedding_weight": "embed",
    "embed_pos.embedding_weight": "position",
    "lm_head.weight": "head.weight",
    "puzzle_emb.weights": "table",
    "q_head.weight": "q_head.weight",
    "q_head.bias": "q_head.bias",
    "H_init": "init_h",
    "L_init": "init_l",
    "init_hidden": "init_h",
}

# The module of ours that each of their modules becomes. A name outside its kind's entry is not that kind's.
_MODULES = {"hrm": {"H_level.": "high", "L_level.": "low"}, "trm": {"L_level.": "low"}, "urm": {"": "low"}}

KINDS = tuple(_MODULES)


def official_config(kind: str, config: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for one of theirs (the `arch` section of their YAML, or the whole file)."""
    if kind not in KINDS:
        raise unknown("kind of checkpoint", kind, KINDS)
    theirs = _flat(config)
    try:
        width = int(theirs["hidden_size"])
        cycles: dict[str, Any] = {"h_cycles": int(theirs["H_cycles"]), "l_cycles": int(theirs["L_cycles"])}
        layers = int(theirs["num_layers"] if kind == "urm" else theirs["L_layers"])
        separate = kind == "hrm"
        above = int(theirs["H_layers"]) if separate else layers
        ndim = int(theirs.get("puzzle_emb_ndim", width))
        prefix = int(theirs.get("puzzle_emb_len") or max(1, -(-ndim // width)))
        if ndim != width:
            raise UserError(f"puzzle_emb_ndim {ndim} differs from hidden_size {width}: only equal ones can be loaded")
        return ModelConfig(
            name=kind,
            states=1 if kind == "urm" else 2,
            modules="separate" if separate else "shared",
            layers=layers,
            high_layers=None if above == layers else above,
            width=width,
            heads=int(theirs["num_heads"]),
            expansion=float(theirs["expansion"]),
            **cycles,
            h_horizon=1,
            l_horizon=1 if separate else cycles["l_cycles"],
            mixer="mlp" if theirs.get("mlp_t") else "attention",
            mlp_conv=kind == "urm",
            positions=theirs["pos_encodings"],
            prefix=prefix,
            halting="halt+continue" if kind == "hrm" or not theirs.get("no_ACT_continue", True) else "halt",
            max_steps=int(theirs.get("loops" if kind == "urm" else "halt_max_steps", 16)),
            **_PLAIN,
        )
    except KeyError as error:
        raise UserError(f"the {kind} configuration lacks {error.args[0]!r}: give the file saved beside it") from None
    except ValidationError as error:
        raise UserError(f"the {kind} configuration is not usable: {error.errors()[0]['msg']}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"the {kind} configuration is not usable: {error}") from None


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Their settings on one level, with `${.hidden_size}` and the like, which the unresolved files hold, filled in."""
    arch = config.get("arch")
    theirs = {**arch, **config} if isinstance(arch, Mapping) else dict(config)
    for key, value in theirs.items():
        if isinstance(value, str) and (match := re.fullmatch(r"\$\{\.(\w+)\}", value)):
            theirs[key] = theirs.get(match[1])
    return theirs


def our_name(kind: str, name: str) -> str | None:
    """The name of one of their tensors in a Reasoner; None for names that are not theirs."""
    short = _short(name)
    if short in _PLACE:
        return _PLACE[short]
    match = re.fullmatch(r"((?:[HL]_level\.)?)layers\.(\d+)\.(.+)", short)
    if match is None or match[1] not in _MODULES[kind] or match[3] not in _LAYER:
        return None
    return f"{_MODULES[kind][match[1]]}.layers.{match[2]}.{_LAYER[match[3]]}"


def _short(name: str) -> str:
    """Without what compiling and the loss's module put before it."""
    return re.sub(r"^(_orig_mod\.|model\.|inner\.)+", "", name)


def load_official(
    kind: str, config: Mapping[str, Any], state_dict: Mapping[str, Tensor], symbols: Sequence[int] | None = None
) -> Reasoner:
    """A Reasoner with a published model's weights. Every tensor must find its place, and every place its tensor.

    `symbols`: which of its tokens ours are, in our order; all of them, where it is left out.
    """
    ours = official_config(kind, config)
    named: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in state_dict.items():
        place = our_name(kind, name)
        if place is None:
            if re.search(r"(rotary_emb\.|local_weights|local_ids)", name):
                continue  # caches that some versions save, not weights
            raise UserError(
                f"tensor {name} {tuple(tensor.shape)} has no place in a {kind} model: is it one of another kind "
                f"({', '.join(k for k in KINDS if k != kind)})?"
            )
        if place in named:
            raise UserError(f"tensors {named[place][0]} and {name} are both {place}: keep one of them")
        named[place] = (name, tensor)
    if "embed" not in named:
        raise UserError("the checkpoint has no tensor embed_tokens.embedding_weight: is it the whole model?")
    if symbols is not None:
        for place in {"embed", "head.weight"} & named.keys():
            named[place] = (named[place][0], named[place][1][list(symbols)])
    vocab = named["embed"][1].shape[0]
    tokens = _tokens(config, ours, named)
    rows = named["table"][1].shape[0] if "table" in named else 1
    shapes = expected(ours, vocab, tokens, rows, named)
    for place, (name, tensor) in named.items():
        if place not in shapes:
            raise UserError(f"tensor {name} {tuple(tensor.shape)} is not used by this {kind} configuration")
        if shapes[place] != tensor.shape:
            raise UserError(
                f"tensor {name} has shape {tuple(tensor.shape)}, this configuration expects {tuple(shapes[place])}"
            )
    missing = [p for p in shapes if p not in named and not (p.startswith("high.") and ours.modules == "shared")]
    if missing and missing != ["table"]:
        raise UserError(f"the checkpoint has no tensor for {missing[0]} {tuple(shapes[missing[0]])}")
    model = Reasoner(ours, vocab, tokens, rows)
    weights = {place: tensor.to(torch.float32) for place, (_, tensor) in named.items()}
    model.load_state_dict(weights, strict=False)
    return model.eval()


def _tokens(config: Mapping[str, Any], ours: ModelConfig, named: Mapping[str, tuple[str, Tensor]]) -> int:
    """Tokens of a puzzle: from the weights where they show it, else from the configuration."""
    for place, axis in (("position", 0), ("low.layers.0.tokens.up.weight", 1)):
        if place in named:
            return named[place][1].shape[axis] - ours.prefix
    tokens = _flat(config).get("seq_len")
    if tokens is None:
        raise UserError("the configuration lacks 'seq_len': give the tokens of a puzzle, --seq-len 81 for 9x9 Sudoku")
    return int(tokens)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Their file (torch.save of a state dict, or safetensors). Never runs code from it."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    try:
        if path.suffix == ".safetensors":
            loaded: Any = load_file(path)
        else:
            if is_zipfile(path) and sum(each.file_size for each in ZipFile(path).infolist()) > path.stat().st_size:
                raise ValueError("it unpacks to more than it is, and torch packs nothing")
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file makes the readers raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a file of plain weights, and was not run to find out more: {reason}") from None
    for wrapper in ("model_state_dict", "state_dict", "model"):  # URM and TRM save optimisers beside the weights
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = _averaged(loaded[wrapper], loaded.get("ema_helper"))
            break
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise UserError(f"{path} holds no state dict of tensors")
    refuse_repeated(path, loaded)
    return loaded


def _averaged(weights: dict[str, Any], ema: Any) -> dict[str, Any]:
    """The weights, and in their place the averaged ones, which TRM evaluates with, where there are any."""
    shadow = ema.get("shadow", ema) if isinstance(ema, dict) else {}
    names = {_short(name): name for name in weights}
    return {**weights, **{names.get(_short(name), name): tensor for name, tensor in shadow.items()}}


def refuse_repeated(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A saved tensor may show few numbers many times (a stride of 0), or several show the same: a small file that would
    become a large model."""
    stored: dict[int, int] = {}
    for name, tensor in tensors.items():
        shown = tensor.numel() * tensor.element_size()
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise UserError(f"tensor {name} in {path} is not stored as plain numbers")
        storage = tensor.untyped_storage()
        if shown > storage.nbytes():
            raise UserError(f"tensor {name} in {path} shows {shown} bytes of which the file holds {storage.nbytes()}")
        stored[storage.data_ptr()] = storage.nbytes()
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > 2 * sum(stored.values()):
        raise UserError(f"the tensors in {path} show the same numbers many times over: is it a whole model?")


# The published configurations name their dataset but not its length.
_TOKENS = {"sudoku": 81, "maze": 900, "arc": 900}


def with_tokens(config: Mapping[str, Any], seq_len: int | None, of_domain: int | None = None) -> dict[str, Any]:
    """Their configuration with the length of a puzzle in it: as given, as it says, as the domain has it, or as its
    dataset's name tells."""
    if seq_len is not None:
        if seq_len < 1:
            raise UserError(f"--seq-len {seq_len} is too small: give the tokens of a puzzle, 81 for 9x9 Sudoku")
        return {**config, "seq_len": seq_len}
    arch = config.get("arch")
    if "seq_len" in config or (isinstance(arch, Mapping) and "seq_len" in arch):
        return dict(config)
    if of_domain is not None:
        return {**config, "seq_len": of_domain}
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


# A folder of ours -----------------------------------------------------------------------------------------------------


def weights_of(model: Reasoner) -> dict[str, Tensor]:
    """The state dict with each tensor under one name, as safetensors wants it: a shared module is `low` only."""
    shared = model.high is model.low
    return {k: v for k, v in model.state_dict().items() if not (shared and k.startswith("high."))}


def write_folder(
    model: Reasoner,
    folder: Path,
    source: Mapping[str, str],
    identifiers: list[str] | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """A folder that evaluation and solving can open: `config.json`, which names the `data` it is for where that is
    known, `weights.safetensors` and, where it was given, the published `identifiers.json`. Written aside, it gets its
    name when it is whole."""
    refuse_used(folder)
    about = {
        "kind": "imported",
        "model": model.config.model_dump(mode="json"),
        "vocab": model.embed.shape[0],
        "tokens": model.tokens,
        "task_ids": len(model.table),
        "source": dict(source),
        "data": data,
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
            files.write_json(aside / "config.json", about)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder} ({error}): free some space or choose another folder with -o") from None


def refuse_used(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise UserError(f"{folder} exists and is not an empty folder: choose another with -o, or delete it")
