"""`ponder cost`: what a model takes to train and to run."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ponder.base.console import Bar
from ponder.base.errors import at_least, unknown
from ponder.base.geometry import NO_GEOMETRY, Geometry

if TYPE_CHECKING:
    from ponder.config.schema import ModelConfig
    from ponder.model.cost import Cost

SUDOKU = (11, 81)
"""Vocabulary and tokens of 9x9 Sudoku: what a model is measured on when no domain is named."""
PAPER_MODELS = ("dense", "hrm", "trm", "trm-mlp", "urm", "urm-one-state", "ponder")


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder cost",
        description="Parameters, layer applications, FLOPs and activation memory of a model.",
        epilog="Per example. Table: the puzzle embeddings. Dense passes: layer applications over the 8 of the paper's "
        "dense control. FLOP: a multiplication and an addition are two, element-wise work is not counted; an update is "
        "forward, backward within the horizon and, where there is a continue loss, the forward pass of its target. "
        "Bytes kept: for the backward pass, in float32, by the CPU's kernels.",
    )
    parser.add_argument("preset", help="a model (hrm, ponder, ...), a preset (sudoku-mini, ...), or all")
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens of a puzzle (default: the preset's, or 81)")
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps of one answer (default: the preset's)")
    known = parser.parse_args(args)
    print_cost(known.preset, known.seq_len, known.steps)


@dataclass(frozen=True)
class _Subject:
    """What a name on the command line stands for."""

    config: "ModelConfig"
    vocab: int
    tokens: int
    task_ids: int
    geometry: Geometry


def _subject(name: str) -> _Subject:
    from ponder.config.resolve import model_names, model_preset, preset_names, resolve
    from ponder.config.schema import ModelConfig

    if name in model_names() and not name.endswith("-mini"):
        return _Subject(ModelConfig(**model_preset(name, "paper")["model"]), *SUDOKU, 1, NO_GEOMETRY)
    if (model := name.removesuffix("-mini")) in model_names():
        config = resolve("sudoku-mini", model)  # a mini model takes its width from a domain's mini preset
    elif name in preset_names() or name.endswith((".yaml", ".yml")):
        config = resolve(name)
    else:
        raise unknown("preset", name, [*model_names(), *preset_names(), "all"])
    domain = config.data.make()
    return _Subject(config.model, len(domain.vocab), domain.seq_len, domain.task_ids, domain.geometry)


def print_cost(name: str, seq_len: int | None, steps: int | None) -> None:
    """A table of one preset's cost, or of all the paper's models beneath each other."""
    at_least(1, {"--seq-len": seq_len, "--steps": steps})
    from ponder.model.cost import cost

    names = PAPER_MODELS if name == "all" else (name,)
    subjects = [_subject(n) for n in names]
    rows = []
    with Bar() as bar:
        for done, s in enumerate(subjects):
            bar(f"measuring the memory of {names[done]}", done, len(names))
            rows.append(_cells(cost(s.config, s.vocab, seq_len or s.tokens, steps, s.task_ids, s.geometry)))
    title = f"{seq_len or subjects[0].tokens} tokens, {subjects[0].vocab} symbols"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    if name == "all":
        table.add_column("model", no_wrap=True)
        labels = [label for label in rows[0] if label != "table"]  # a model alone has none worth a column
        for label in labels:
            table.add_column(label, justify="right", min_width=max(map(len, label.split())))
        for each, row in zip(names, rows, strict=True):
            table.add_row(each, *(row[label] for label in labels))
    else:
        table.add_column("")
        table.add_column(name, justify="right")
        for label, cell in rows[0].items():
            table.add_row(label, cell)
    Console().print(table)


def _cells(c: "Cost") -> dict[str, str]:
    return {
        "params": _units(c.work.parameters),
        "table": _units(c.table),
        "layers per step": f"{c.applications}",
        "dense passes": f"{c.relative_per_step:g}" + ("T" if c.steps > 1 else ""),
        "T": f"{c.steps}",
        "FLOP per step": _units(c.work.inference),
        "FLOP per answer": _units(c.work.inference * c.steps),
        "FLOP per update": _units(c.work.training),
        "bytes kept": _units(c.activations),
    }


def _units(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"
