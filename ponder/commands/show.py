"""What the commands about presets and data print."""

from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from ponder.base.console import Bar
from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.data import Dataset, verify
from ponder.domains import registry

console = Console(highlight=False)


def print_domains() -> None:
    table = Table(box=None, padding=(0, 2))
    for column in ("domain", "what it is", "presets"):
        table.add_column(column)
    for name, domain in registry.every().items():
        presets = [p for p in configuration.preset_names() if p == name or p.startswith(f"{name}-")]
        table.add_row(f"[bold]{name}[/]", domain.title, "\n".join(presets))
    console.print(table)


def print_presets() -> None:
    table = Table(box=None, padding=(0, 2))
    for column in ("preset", "scale", "about"):
        table.add_column(column)
    for name in configuration.preset_names():
        config = configuration.resolve(name)
        table.add_row(f"[bold]{name}[/]", config.scale, config.about)
    console.print(table)
    models = [m for m in configuration.model_names() if not m.endswith("-mini")]
    console.print(f"\nmodels (--model): [bold]{', '.join(models)}[/]; at mini scale each in its mini form")


def print_preset(name: str, model: str | None, overrides: list[str]) -> None:
    config = configuration.resolve(name, model, configuration.parse_overrides(overrides))
    print(yaml.safe_dump(config.flat(), sort_keys=False, default_flow_style=None, width=110), end="")


def print_dataset(dataset: Dataset) -> None:
    path = dataset.path
    domain = dataset.domain
    size = sum(f.stat().st_size for f in path.iterdir())
    console.print(
        f"[bold]{path}[/]  {domain.seq_len} tokens, {len(domain.vocab)} symbols, {size / 1e6:.1f} MB, "
        f"hash {dataset.hash}"
    )
    table = Table(box=None, padding=(0, 2))
    table.add_column("split")
    table.add_column("examples", justify="right")
    table.add_column("role")
    table.add_column("what it is")
    for split in dataset.counts:
        info = domain.splits[split]
        table.add_row(split, f"{len(dataset.source(split)):,}", info.role, info.about)
    console.print(table)


def show_example(dataset: Dataset, split: str, index: int, svg: Path | None) -> None:
    source = dataset.source(split)
    if not 0 <= index < len(source):
        raise UserError(f"--index {index} is outside {split}: it has examples 0 to {len(source) - 1}")
    batch = source.fetch(np.array([index]), np.array([0]))
    inputs, labels = batch.inputs[0], batch.labels[0]
    domain = dataset.domain
    console.print(f"[dim]{dataset.path.name}, {split} {index}[/]")
    console.print(domain.render(inputs))
    console.print("[dim]answer[/]")
    console.print(domain.render(inputs, labels))
    console.print(f"[dim]as text[/]  {domain.format(inputs)}  ->  {domain.format_answer(inputs, labels)}", markup=True)
    if svg is not None:
        svg.write_text(domain.svg(inputs, labels))
        console.print(f"wrote {svg}")


def verify_dataset(path: Path) -> None:
    with Bar() as bar:
        result = verify(path, progress=bar)
    checked = ", ".join(f"{split} {n}" for split, n in result.checked.items())
    console.print(f"{path}: {result.files} files match their hashes; labels accepted by the checker: {checked}")
