"""What is evaluated on what: weights, data that fits them, examples; and where the result goes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder import data
from ponder.base import files, runtime
from ponder.base.errors import UserError, at_least
from ponder.base.runtime import Runtime
from ponder.config import resolve as configuration
from ponder.config.resolve import Config, DataConfig
from ponder.config.schema import ModelConfig
from ponder.data import Dataset
from ponder.domains.contract import Batch, Domain, Ints, Progress, silent
from ponder.evaluation.arc import arranged_table, with_identifiers
from ponder.evaluation.records import Settings, chosen_examples
from ponder.evaluation.schema import VERSION, Measurement, Origin
from ponder.inference.weights import Opened, open_weights, zoo_folders
from ponder.model.reasoner import Reasoner


@dataclass(frozen=True)
class EvalRequest:
    """What somebody wants to be evaluated. None: as the model's own configuration says."""

    checkpoint: str
    domain: str | None = None
    """A preset, for its data."""
    splits: tuple[str, ...] = ()
    weights: str = "ema"
    """ema, online or both."""
    steps: int | None = None
    batch: int | None = None
    limit: int | None = None
    data_dir: Path = Path("data")
    out: Path | None = None
    command: str = ""
    """To be written down."""

    def __post_init__(self) -> None:
        at_least(1, {"--steps": self.steps, "--batch": self.batch, "--limit": self.limit})


def settings_for(
    model: ModelConfig,
    defaults: Config,
    device: torch.device,
    steps: int | None = None,
    batch: int | None = None,
    limit: int | None = None,
) -> Settings:
    """How a model is run unless told otherwise: twice its training budget, with its configuration's batch."""
    return Settings(
        steps=1 if model.states == 0 else steps or 2 * model.max_steps,
        batch=batch or defaults.eval.batch,
        limit=limit,
        precision=runtime.precision_for(defaults.train.precision, device),
    )


# Weights and data -----------------------------------------------------------------------------------------------------


def weight_sets(request: EvalRequest, opened: Opened, device: torch.device) -> Iterator[tuple[str, Opened]]:
    """The weights asked for, one after the other, each under the name of what it is."""
    if opened.config is None:
        yield "published", opened
    elif opened.config.train.ema is None:
        yield "online", opened
    elif opened.update is None:  # a zoo model: its averaged weights, without the checkpoint around them
        if request.weights == "online":
            raise UserError(f"{request.checkpoint} holds its averaged weights only: leave out --weights online")
        yield "ema", opened
    elif request.weights == "both":
        yield "ema", opened
        yield "online", open_weights(request.checkpoint, "online", device)
    else:
        yield request.weights, opened


def choose_data(opened: Opened, preset: str | None) -> tuple[DataConfig, Config]:
    """The data to evaluate on, and the configuration that gives batch and precision. Refuses what cannot fit."""
    own = opened.config
    if preset is None:
        if opened.data is None:
            raise UserError(
                f"{opened.path} was imported and does not say what data it is for: add --domain PRESET, one of "
                f"{', '.join(configuration.preset_names())}"
            )
        if own is not None:
            return own.data, own
        nominal = {"preset": "imported", "scale": "paper", "data": opened.data.flat(), "train": {"updates": 1}}
        return _named_tasks(opened, opened.data), configuration.from_flat(nominal)
    chosen = configuration.resolve(preset)
    domain = chosen.data.make()
    model = opened.model
    if opened.domain is not None:
        what, fits = _described(opened.domain), _described(opened.domain) == _described(domain)
    else:
        what = f"{len(model.embed)} symbols, {model.tokens} tokens"
        fits = (len(model.embed), model.tokens) == (len(domain.vocab), domain.seq_len)
    if not fits:
        raise UserError(
            f"{opened.path} is a model for {what}; preset {preset} is {_described(domain)}: choose a --domain of the "
            f"same kind"
        )
    if own is None:
        return _named_tasks(opened, chosen.data), chosen
    if domain.task_ids > 1 and _task_names(own.data) != _task_names(chosen.data):
        raise UserError(
            f"{opened.path} has task ids of its own data; preset {preset} numbers other tasks or augmentations: leave "
            f"out --domain, or change nothing in it but eval_augmentations"
        )
    return chosen.data, own


def _named_tasks(opened: Opened, data: DataConfig) -> DataConfig:
    return with_identifiers(data, opened.path) if data.make().task_ids > 1 else data


def _described(domain: Domain) -> str:
    symbols = "".join(domain.vocab[1:])
    shown = symbols if len(symbols) <= 24 else f"{symbols[:24]}..."
    return f"{domain.name} ({len(domain.vocab)} symbols, {shown!r} and padding; {domain.seq_len} tokens)"


def _task_names(config: DataConfig) -> dict[str, Any]:
    """What determines which task id means what."""
    return {key: value for key, value in config.flat().items() if key != "eval_augmentations"}


def open_data(config: DataConfig, folder: Path, here: Runtime, progress: Progress = silent) -> Dataset:
    """The dataset, built by the first rank where it is missing."""
    if here.main:
        data.build(config, folder, data.default_workers(), progress)
    here.barrier()
    return Dataset.open(data.folder_for(folder, config))


def arrange_table(opened: Opened, dataset: Dataset, splits: tuple[str, ...]) -> None:
    """A published table has its rows in an order of its own."""
    if opened.config is None and dataset.domain.task_ids > 1:
        opened.model.table = arranged_table(opened.model.table, opened.path, dataset, splits)


# One checkpoint on some examples of one split -------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A checkpoint and the examples it is measured on."""

    opened: Opened
    domain: Domain
    split: str
    index: Ints
    """The examples' numbers in their split."""
    batch: Batch
    data_hash: str
    precision: str = "float32"

    @property
    def model(self) -> Reasoner:
        return self.opened.model

    def measurement(self, protocol: str) -> dict[str, Any]:
        """What ties a score to its origin, by the names of `Measurement`."""
        config = self.opened.config
        return {
            "version": VERSION,
            "protocol": protocol,
            "checkpoint": origin(self.opened),
            "config": None if config is None else config.flat(),
            "data_hash": self.data_hash,
            "split": self.split,
            "n": len(self.index),
            "precision": self.precision,
            "environment": runtime.environment(),
        }


def origin(opened: Opened) -> Origin:
    return Origin(name=opened.name, path=str(opened.path), update=opened.update, sha256=opened.sha256)


def subject(
    opened: Opened, dataset: Dataset, split: str | None = None, limit: int | None = None, precision: str = "float32"
) -> Subject:
    """`limit` examples spread evenly over a split; by default the first one that is neither train nor val."""
    if split is None:
        split = next(name for name in dataset.counts if dataset.domain.splits[name].role not in ("train", "val"))
    source = dataset.source(split)
    index = chosen_examples(len(source), limit)
    batch = source.fetch(index, np.zeros_like(index))
    return Subject(opened, dataset.domain, split, index, batch, dataset.hash, precision)


def open_subject(request: EvalRequest, here: Runtime, progress: Progress = silent) -> Subject:
    """The first split asked for."""
    opened = open_weights(request.checkpoint, request.weights, here.device)
    config, defaults = choose_data(opened, request.domain)
    dataset = open_data(config, request.data_dir, here, progress)
    precision = runtime.precision_for(defaults.train.precision, here.device)
    what = subject(opened, dataset, next(iter(request.splits), None), request.limit, precision)
    arrange_table(opened, dataset, (what.split,))
    return what


# Where results go -----------------------------------------------------------------------------------------------------


def default_folder(opened: Opened) -> Path:
    path = opened.path
    if opened.kept or path.resolve() in [folder.resolve() for folder in zoo_folders().values()]:
        return Path(f"eval-{opened.name}")
    if (path / "config.json").is_file():
        return path / "eval"
    run_folder = path.parent if (path.parent / "config.json").is_file() else path.parent.parent
    return run_folder / f"eval-{path.name}"


def write_result(result: Measurement, what: Subject, name: str, out: Path | None) -> Path:
    """NAME.json in the folder asked for, or beside where `ponder eval` puts its own; returns the file."""
    beside = default_folder(what.opened)
    folder = out or beside.parent
    file = folder / f"{name if out else beside.name.replace('eval', name, 1)}.json"
    try:
        files.write_json(file, result.as_data())
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another --out") from None
    return file
