"""Opening whatever holds trained weights: a zoo name, a run folder, a checkpoint in one, an imported folder, a model on
the Hub."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from ponder import checkpoint
from ponder.base import files, hub
from ponder.base.errors import UserError, unknown
from ponder.config import resolve as configuration
from ponder.config.resolve import Config, DataConfig
from ponder.config.schema import Frozen, ModelConfig, parse
from ponder.domains.contract import Domain

if TYPE_CHECKING:  # names and folders are asked for by commands that do without torch
    import torch

    from ponder.model.reasoner import Reasoner

ZOO = Path(__file__).parents[1] / "zoo"
"""The models that come with ponder."""


HUB = "hf://"
"""What an address on the Hugging Face Hub begins with: hf://OWNER/NAME, or hf://OWNER/NAME@REVISION."""
TRAVELS = {"config.json": 2**20, "card.json": 2**20, "weights.safetensors": 2**33}
"""What is fetched of a model on the Hub, and how many bytes it may have. None of it can run anything."""


WHOLE = "restore it from a copy, or put it there again with `ponder zoo add` or `ponder pull`"


def user_zoo() -> Path:
    """The user's own."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "ponder" / "zoo"


@dataclass(frozen=True)
class Opened:
    """Trained weights, ready to run. An imported checkpoint has no configuration of ours, and a domain where one was
    named when it was imported."""

    name: str
    path: Path
    model: "Reasoner"
    config: Config | None
    domain: Domain | None
    update: int | None
    sha256: str
    data: DataConfig | None = None
    kept: bool = False
    """Whether the folder is a cache, in which nothing else belongs."""

    def at(self, domain: Domain) -> "Opened":
        """The same weights on boards of another size, which no weight knows."""
        old = self.model
        model = _made(old.config, len(domain.vocab), domain.seq_len, len(old.table), domain.geometry)
        model.load_state_dict(old.state_dict())
        return replace(self, model=model.eval().requires_grad_(False).to(old.table.device), domain=domain)


def zoo_folders() -> dict[str, Path]:
    """Name -> folder of every model in the two zoos. No name of the user's hides one of ponder's."""
    paths = [*user_zoo().glob("[!.]*/config.json"), *ZOO.glob("[!.]*/config.json")]
    # The one before, where whoever was to exchange it was killed between its two renames.
    aside = {path.parent.name[1 : -len(".old")]: path.parent for path in user_zoo().glob(".*.old/config.json")}
    return {**aside, **{path.parent.name: path.parent for path in paths}}


def zoo_names() -> list[str]:
    return sorted(zoo_folders())


def open_weights(where: str | Path, weights: str = "ema", device: "torch.device | str | None" = None) -> Opened:
    """A zoo name, a run folder (its best checkpoint, else the newest), a checkpoint in one, an imported folder, or a
    model on the Hub."""
    from ponder.model.fit import check_sizes

    path, on_hub = Path(where), str(where).startswith(HUB)
    name = path.name  # of one on the Hub: with its revision, where one is given
    if on_hub:
        path = hub_folder(str(where))
    elif not path.exists():
        zoo = zoo_folders()
        if str(where) not in zoo:
            raise unknown("model", where, zoo) if "/" not in str(where) else UserError(f"there is no {where}")
        path = zoo[str(where)]
    run, saved = _locate(path)
    stored = settings(run)
    if saved is not None:
        chosen = "ema" if weights == "ema" and saved.has("ema") else "weights"
        tensors, sha256 = saved.tensors(chosen), saved.state["files"][f"{chosen}.safetensors"]
    else:
        file = run / "weights.safetensors"
        tensors, sha256 = checkpoint.read_tensors(file), files.sha256(file)
        as_carded(run, sha256)
    if isinstance(stored, Imported):
        config, data, domain = None, stored.data, stored.domain()
        check_sizes(stored.model, stored.vocab, stored.tokens, tensors)
        model = _made(stored.model, stored.vocab, stored.tokens, len(tensors["table"]))
    else:
        config, data = stored, stored.data
        domain = data.make()
        try:
            check_sizes(config.model, len(domain.vocab), domain.seq_len, tensors, domain.geometry)
        except UserError as error:
            raise UserError(f"{path} does not fit its own configuration: {error}") from None
        model = _made(config.model, len(domain.vocab), domain.seq_len, len(tensors["table"]), domain.geometry)
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    absent = [name for name in missing if not name.startswith("high.") or model.high is not model.low]
    if absent:
        raise UserError(f"{path} does not fit its own configuration: {absent[0]} is missing")
    model.eval().requires_grad_(False)
    if device is not None:
        model = model.to(device)
    update = saved.state["update"] if saved else None
    return Opened(name if on_hub else path.name, path, model, config, domain, update, sha256, data, kept=on_hub)


def _made(*sizes: Any) -> "Reasoner":
    """A model to load weights into. It draws some first, which is nobody else's affair."""
    import torch

    from ponder.model.reasoner import Reasoner

    with torch.random.fork_rng(devices=[]):
        return Reasoner(*sizes)


def as_carded(folder: Path, weights: str) -> None:
    """A model whose card says what its files are is that one. Most folders have no card."""
    if not (folder / "card.json").is_file():
        return
    card = files.read_object(folder / "card.json", WHOLE)
    known = card.get("files")
    said = {"weights.safetensors": card.get("sha256"), **(known if isinstance(known, dict) else {})}
    found = {"weights.safetensors": weights, "config.json": files.sha256(folder / "config.json")}
    for name, sha256 in found.items():
        if said.get(name) not in (None, sha256):
            raise UserError(f"{folder / name} is not what its card says (the sha256 differs): {WHOLE}")


# On the Hub -----------------------------------------------------------------------------------------------------------


def hub_address(text: str) -> tuple[str, str]:
    """(OWNER/NAME, revision) of an address with or without hf:// before it."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?", text.removeprefix(HUB), re.ASCII)
    if match is None or ".." in text:
        raise UserError(f"{text!r} is no address on the Hub: write OWNER/NAME or OWNER/NAME@REVISION (commit, tag)")
    return match[1], match[2] or hub.MAIN


def hub_folder(address: str, newest: bool = False) -> Path:
    """The folder of a model on the Hub: from the user's cache where this revision is in it, else fetched. `newest`: ask
    the Hub in any case. Each byte is what the card says it should be."""
    repo, revision = hub_address(address)
    instead = "give OWNER/NAME of a model that `ponder push` wrote, or a folder"
    found = None if newest else hub.cached("model", repo, revision, TRAVELS)
    if found is None:
        found = hub.fetched("model", repo, revision, TRAVELS, instead, TRAVELS)
    try:
        return _as_pushed(found, repo)
    except UserError:  # the cache was damaged, or whoever pushed it
        if not hub.online():
            raise
        return _as_pushed(hub.fetched("model", repo, revision, TRAVELS, instead, TRAVELS, anew=True), repo)


def _as_pushed(found: Mapping[str, Path], repo: str) -> Path:
    folder, *others = {path.parent for path in found.values()}
    if others:
        raise UserError(f"{repo} was changed while it was fetched: give the same command again")
    known = files.read_object(folder / "card.json", "ask its owner to push it again").get("files")
    for name in TRAVELS.keys() - {"card.json"}:
        said = known.get(name) if isinstance(known, dict) else None
        if said != files.sha256(folder / name):
            fault = "is not what its card says (the sha256 differs)" if said else "has no sha256 in its card"
            raise UserError(f"{name} of {repo}@{folder.name} {fault}: delete {folder}, or take another revision")
    return folder


class Imported(Frozen):
    """What the configuration of an imported folder says of its model."""

    model_config = ConfigDict(extra="ignore")

    model: ModelConfig
    vocab: int = Field(ge=1, strict=True)
    tokens: int = Field(ge=1, strict=True)
    task_ids: int = Field(ge=1, strict=True)
    data: DataConfig | None = None

    def domain(self) -> Domain | None:
        if self.data is None:
            return None
        domain = self.data.make()
        if (self.vocab, self.tokens) != (len(domain.vocab), domain.seq_len):
            raise UserError(
                f"a model of {self.vocab} symbols and {self.tokens} tokens cannot be one for {domain.name} of "
                f"{len(domain.vocab)} symbols and {domain.seq_len} tokens: name another --domain"
            )
        return domain


def settings(run: Path) -> "Imported | Config":
    stored = files.read_object(run / "config.json", "restore it from a copy")
    if stored.get("kind") == "imported":
        return parse(Imported, stored, str(run / "config.json"))
    return configuration.from_flat(stored)


def _locate(path: Path) -> tuple[Path, checkpoint.Checkpoint | None]:
    """(folder with config.json, checkpoint): the second is None where the weights lie beside the configuration."""
    if (path / "config.json").is_file():
        if (path / "weights.safetensors").is_file():
            return path, None
        if (path / "best").is_dir():
            return path, checkpoint.read(path / "best")
        saved = checkpoint.newest(path / "checkpoints")
        if saved is None:
            raise UserError(f"{path} holds no checkpoint yet: train it first")
        return path, saved
    if (path / checkpoint.STATE).is_file():
        run = path.parent if (path.parent / "config.json").is_file() else path.parent.parent
        return run, checkpoint.read(path)
    raise UserError(f"{path} is neither a run folder, a checkpoint, an imported model nor a zoo name")
