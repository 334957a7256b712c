"""`ponder export`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ponder.base.console import waiting
from ponder.base.errors import UserError
from ponder.inference.export import export


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder export",
        description="Write one ACT step of a model as an ONNX graph, with a description beside it (FILE.json).",
        epilog="Takes about half a minute. docs/onnx.md shows how to run the graph without PyTorch.",
    )
    parser.add_argument("checkpoint", help="a zoo name, a run folder, a checkpoint in one, or an imported folder")
    parser.add_argument("--onnx", required=True, type=Path, metavar="FILE", help="where to write the graph (.onnx)")
    parser.add_argument("--batch", default="dynamic", metavar="N", help="a fixed batch size (default: dynamic)")
    parser.add_argument("--int8", action="store_true", help="products with weights in 8 bits: faster, less exact")
    known = parser.parse_args(args)
    with waiting(f"tracing one ACT step of {known.checkpoint}: about half a minute"):
        about = export(known.checkpoint, known.onnx, _batch(known.batch), known.int8)
    size = known.onnx.stat().st_size / 1e6
    print(f"wrote {known.onnx} ({size:.1f} MB) and {known.onnx.name}.json: one ACT step of {about['model']}")
    for side in ("inputs", "outputs"):
        shapes = ", ".join(f"{name} {what['shape']}".replace("'", "") for name, what in about[side].items())
        print(f"  {side:<8} {shapes}")


def _batch(text: str) -> int | None:
    if text == "dynamic":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise UserError(f"--batch {text!r} is no batch size: give a number from 1, or dynamic")
