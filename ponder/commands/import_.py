"""`ponder import`: a published checkpoint becomes a folder that evaluation and solving can open."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ponder.base import files
from ponder.base.errors import UserError


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder import",
        description="Convert a checkpoint that the authors' code of HRM, TRM or URM saved. Nothing in it is executed.",
    )
    parser.add_argument("kind", metavar="KIND", help="hrm, trm or urm")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="the file its authors' code saved")
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the all_config.yaml saved beside it"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--seq-len", type=int, metavar="N", help="tokens of a puzzle, where neither weights nor FILE say it"
    )
    parser.add_argument(
        "--identifiers", type=Path, metavar="FILE", help="ARC: the identifiers.json of the dataset it was trained on"
    )
    known = parser.parse_args(args)
    from ponder.config.resolve import read_yaml
    from ponder.model import published

    published.refuse_used(known.out)
    if not known.config.is_file():
        raise UserError(f"there is no configuration {known.config}: give the all_config.yaml saved with the checkpoint")
    config = published.with_tokens(read_yaml(known.config), known.seq_len)
    identifiers = None if known.identifiers is None else published.read_identifiers(known.identifiers)
    model = published.load_official(known.kind, config, published.read_checkpoint(known.checkpoint))
    source = {"kind": known.kind, "checkpoint": known.checkpoint.name, "sha256": files.sha256(known.checkpoint)}
    published.write_folder(model, known.out, source, identifiers)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{known.out}: {known.kind}, {parameters / 1e6:.2f}M parameters, {model.embed.shape[0]} symbols, "
        f"{model.tokens} tokens, {len(model.table)} task ids"
    )
