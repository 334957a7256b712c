"""Domain -> arrays and a manifest on disk -> examples.

A dataset is a folder of `.npy` files, memory-mapped when read, and a `manifest.json` written last. The folder is built
under another name and renamed, so that one under its own name is complete.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from ponder.base import cores, files
from ponder.base.console import Bar
from ponder.base.errors import FULL, UserError, at_least, unknown
from ponder.config.resolve import DataConfig, parse_overrides, resolve
from ponder.config.schema import Frozen, parse
from ponder.domains.contract import Arrays, Batch, Domain, Ints, Progress, Source, silent

VERSION = 1
MANIFEST = "manifest.json"
AGAIN = "delete the folder and build again"


def folder_for(root: Path, config: DataConfig) -> Path:
    """Where a dataset belongs: its name says the domain and a hash of what determines its bytes."""
    identity = json.dumps(config.stored().flat(), sort_keys=True).encode()
    return root / f"{config.domain}-{hashlib.sha256(identity).hexdigest()[:10]}"


def build(config: DataConfig, root: Path, workers: int = 1, progress: Progress = silent) -> Path:
    """The dataset's folder, built if it is not there yet."""
    at_least(1, {"--workers": workers})
    path = folder_for(root, config)
    if (path / MANIFEST).is_file():
        return path
    domain = config.make()
    began = False
    try:
        with files.folder_aside(path, whole=MANIFEST) as aside:
            began = True
            splits = domain.build(config.seed, workers, progress)
            _write(aside, config, domain, splits, progress)
    except OSError as error:
        if not began:
            raise UserError(
                f"cannot write to {root} ({error.strerror}): choose another folder with --data-dir"
            ) from None
        if error.errno in FULL:
            raise UserError(f"the disk of {root} is full: free some space or choose --data-dir") from None
        raise
    return path


def _write(folder: Path, config: DataConfig, domain: Domain, splits: Mapping[str, Arrays], progress: Progress) -> None:
    listed: dict[str, Any] = {}
    arrays_of = [(split, name) for split, arrays in splits.items() for name in arrays]
    for done, (split, name) in enumerate(arrays_of):
        progress("writing", done, len(arrays_of))
        array = splits[split][name]
        file = f"{split}.{name}.npy"
        with (folder / file).open("wb") as out:
            np.save(Plain(out), array)
        listed.setdefault(split, {})[name] = {
            "file": file,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": files.sha256(folder / file),
        }
    progress("writing", len(arrays_of), len(arrays_of))
    manifest = {
        "version": VERSION,
        "data": config.stored().flat(),
        "vocab": list(domain.vocab),
        "seq_len": domain.seq_len,
        "counts": {split: len(arrays["inputs"]) for split, arrays in splits.items()},
        "splits": listed,
    }
    files.write_json(folder / MANIFEST, manifest)


class Plain:
    """A file that numpy does not know for one: it would write around Python, and not say that the disk got full."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


class Entry(Frozen):
    """An array as the manifest describes it."""

    file: str = Field(pattern=r"^[^/\\\\]+$")
    shape: list[int]
    dtype: str
    sha256: str


class Manifest(Frozen):
    """What a manifest holds, at least."""

    model_config = ConfigDict(extra="ignore")

    data: dict[str, Any]
    vocab: list[str]
    seq_len: int
    counts: dict[str, int]
    splits: dict[str, dict[str, Entry]]


@dataclass(frozen=True)
class Dataset:
    path: Path
    config: DataConfig
    manifest: Mapping[str, Any]

    @staticmethod
    def open(path: Path) -> "Dataset":
        """Open a built dataset. Fails in one line where the manifest is missing, broken or does not match the files."""
        try:
            manifest = files.read_object(path / MANIFEST, AGAIN)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{path} holds no dataset (no {MANIFEST}): build one with `ponder data build PRESET`"
            ) from None
        except OSError as error:
            raise UserError(f"cannot read {path / MANIFEST}: {error.strerror}") from None
        if manifest.get("version") != VERSION:
            raise UserError(f"{path} has format {manifest.get('version')}, this ponder reads {VERSION}: build it again")
        try:
            parse(Manifest, manifest)
            dataset = Dataset(path, parse(DataConfig, manifest["data"]), manifest)
        except UserError as error:
            raise UserError(f"{path / MANIFEST} is damaged ({error}): {AGAIN}") from None
        domain = dataset.domain
        if not manifest["splits"].keys() == manifest["counts"].keys() == domain.splits.keys():
            raise UserError(f"{path / MANIFEST} is damaged (its splits are not {', '.join(domain.splits)}): {AGAIN}")
        if list(domain.vocab) != manifest["vocab"] or domain.seq_len != manifest["seq_len"]:
            raise UserError(
                f"{path} was built with {len(manifest['vocab'])} symbols and {manifest['seq_len']} tokens, its "
                f"parameters now mean {len(domain.vocab)} and {domain.seq_len}: build it again"
            )
        for split in manifest["splits"]:
            dataset.arrays(split)
        return dataset

    @cached_property
    def domain(self) -> Domain:
        return self.config.make()

    @property
    def hash(self) -> str:
        """One hash over all files' hashes: what a result is tied to."""
        hashes = [entry["sha256"] for split in self.manifest["splits"].values() for entry in split.values()]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]

    @property
    def counts(self) -> Mapping[str, int]:
        counts: Mapping[str, int] = self.manifest["counts"]
        return counts

    def arrays(self, split: str) -> Mapping[str, npt.NDArray[Any]]:
        if split not in self.manifest["splits"]:
            raise unknown(f"split of {self.config.domain}", split, self.manifest["splits"])
        out = {}
        for name, entry in self.manifest["splits"][split].items():
            file = self.path / entry["file"]
            try:
                if not file.is_file():  # a pipe would keep us waiting
                    raise FileNotFoundError
                with warnings.catch_warnings(action="ignore"):  # numpy's, of a header that Python 2 might have written
                    array = np.load(file, mmap_mode="r")
            except Exception:  # a damaged header goes through Python's own tokenizer, whose errors are of many kinds
                raise UserError(f"{file} is missing or damaged: delete {self.path} and build again") from None
            if not isinstance(array, np.ndarray):
                raise UserError(f"{file} holds no array: delete {self.path} and build again")
            if list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
                raise UserError(
                    f"{file} has shape {list(array.shape)} {array.dtype}, the manifest says {entry['shape']} "
                    f"{entry['dtype']}: delete {self.path} and build again"
                )
            out[name] = array
        for name in ("inputs", "labels"):  # of every domain; what else there is, is its own
            if name not in out or out[name].ndim != 2 or out[name].dtype.kind not in "iu":
                raise UserError(f"{self.path} has no rows of whole numbers as {split}.{name}: {AGAIN}")
            if len(out[name]) != self.counts[split]:
                raise UserError(
                    f"{self.path} has {len(out[name])} rows of {split}.{name}, the manifest says {self.counts[split]}: "
                    f"{AGAIN}"
                )
        return out

    def examples(self, split: str, index: Ints) -> Batch:
        """Some examples of a split, made sure to be tokens."""
        batch = self.source(split).fetch(index, np.zeros_like(index))
        for name, rows in (("inputs", batch.inputs), ("labels", batch.labels)):
            shape = (len(index), self.domain.seq_len)
            if rows.shape != shape or (rows.size and not 0 <= rows.min() <= rows.max() < len(self.domain.vocab)):
                raise UserError(
                    f"{self.path}: {split} {name} are not {self.domain.seq_len} tokens of {len(self.domain.vocab)} "
                    f"symbols each: {AGAIN}"
                )
        return batch

    def source(self, split: str) -> Source:
        return self.domain.source(split, self.arrays(split), self.config.seed)

    def check_hashes(self, progress: Progress = silent) -> int:
        """Recompute every file's hash; returns how many files there are."""
        entries = [entry for split in self.manifest["splits"].values() for entry in split.values()]
        for done, entry in enumerate(entries):
            progress("hashing", done, len(entries))
            found = files.sha256(self.path / entry["file"])
            if found != entry["sha256"]:
                raise UserError(
                    f"{self.path / entry['file']} was changed (sha256 {found[:12]}, manifest {entry['sha256'][:12]}): "
                    f"delete {self.path} and build again"
                )
        progress("hashing", len(entries), len(entries))
        return len(entries)


def open_named(name: str, overrides: Sequence[str], root: Path, workers: int | None = None) -> "Dataset":
    """A preset's dataset, built if need be before the reader's eyes; or the folder of one that exists."""
    if (Path(name) / MANIFEST).is_file():
        return Dataset.open(Path(name))
    config = resolve(name, None, parse_overrides(overrides))
    with Bar() as bar:
        return Dataset.open(build(config.data, root, default_workers() if workers is None else workers, bar))


@dataclass(frozen=True)
class Verified:
    files: int
    checked: dict[str, int]
    """Split -> examples whose label the domain's checker accepted."""


def verify(path: Path, sample: int = 200, progress: Progress = silent) -> Verified:
    """Recompute every hash and put a sample of each split before the domain's checker."""
    dataset = Dataset.open(path)
    files = dataset.check_hashes(progress)
    checked = {}
    for split in dataset.manifest["splits"]:
        source = dataset.source(split)
        index = np.unique(np.linspace(0, len(source) - 1, min(sample, len(source))).astype(np.int64))
        batch = dataset.examples(split, index)
        if dataset.domain.checkable:
            accepted = dataset.domain.check(batch.inputs, batch.labels)
            for row in np.flatnonzero(~accepted)[:1]:
                why = dataset.domain.explain(batch.inputs[row], batch.labels[row])
                raise UserError(f"{path}: the label of {split} example {index[row]} is wrong: {why}")
        checked[split] = len(index)
    return Verified(files, checked)


def default_workers() -> int:
    return cores.usable()
