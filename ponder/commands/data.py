"""`ponder data`: build a preset's dataset, look at an example, verify what is stored, write ARC's held-out tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from ponder.base.console import Bar, plain_table
from ponder.base.errors import UserError
from ponder.data import Dataset, open_named, verify

console = Console(highlight=False)


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="ponder data", description="Build, look at and verify datasets.")
    parser.add_argument(
        "action",
        choices=("build", "show", "verify", "challenges"),
        help="make it, look at an example, check what is stored; ARC: write the held-out tasks as the competition does",
    )
    parser.add_argument("what", metavar="PRESET_OR_PATH", help="a preset, or the folder of a dataset")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where datasets are")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; changes nothing but the time")
    parser.add_argument("--split", default="train", help="show: of which split")
    parser.add_argument("--index", type=int, default=0, metavar="I", help="show: which of its examples")
    parser.add_argument("--subsample", type=int, metavar="N", help="keep this many training examples (seeded)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="challenges: where the two files go")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="show: also write the picture")
    known, overrides = parser.parse_known_args(args)
    if known.action == "verify":
        verify_dataset(Path(known.what))
        return
    if known.subsample is not None:
        overrides = [*overrides, "--data.subsample", str(known.subsample)]
    dataset = open_named(known.what, overrides, known.data_dir, known.workers)
    if known.action == "build":
        print_dataset(dataset)
    elif known.action == "challenges":
        from ponder.evaluation.arc import write_challenges  # imports torch

        print(write_challenges(dataset, known.out or Path()))
    else:
        show_example(dataset, known.split, known.index, known.svg)


def print_dataset(dataset: Dataset) -> None:
    path = dataset.path
    domain = dataset.domain
    size = sum(f.stat().st_size for f in path.iterdir())
    console.print(
        f"[bold]{path}[/]  {domain.seq_len} tokens, {len(domain.vocab)} symbols, {size / 1e6:.1f} MB, "
        f"hash {dataset.hash}"
    )
    table = plain_table("split", "examples", "role", "what it is", right=("examples",))
    for split in dataset.counts:
        info = domain.splits[split]
        table.add_row(split, f"{len(dataset.source(split)):,}", info.role, info.about)
    console.print(table)


def show_example(dataset: Dataset, split: str, index: int, svg: Path | None) -> None:
    source = dataset.source(split)
    if not 0 <= index < len(source):
        raise UserError(f"--index {index} is outside {split}: it has examples 0 to {len(source) - 1}")
    batch = dataset.examples(split, np.array([index]))
    inputs, labels = batch.inputs[0], batch.labels[0]
    domain = dataset.domain
    console.print(f"[dim]{dataset.path.name}, {split} {index}[/]")
    console.print(domain.render(inputs))
    console.print("[dim]answer[/]")
    console.print(domain.render(inputs, labels))
    console.print(f"[dim]as text[/]  {domain.format(inputs)}  ->  {domain.format_answer(inputs, labels)}", markup=True)
    if svg is not None:
        svg.write_text(domain.svg(inputs, labels), encoding="utf-8")
        console.print(f"wrote {svg}")


def verify_dataset(path: Path) -> None:
    with Bar() as bar:
        result = verify(path, progress=bar)
    checked = ", ".join(f"{split} {n}" for split, n in result.checked.items())
    console.print(f"{path}: {result.files} files match their hashes; labels accepted by the checker: {checked}")
