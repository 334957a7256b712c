"""`ponder import`: a published checkpoint becomes a folder that evaluation and solving can open."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ponder.base import files
from ponder.base.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.domains.contract import Domain


def _symbols(domain: "Domain", weights: Mapping[str, "Tensor"]) -> list[int] | None:
    """The tokens of a checkpoint that are the domain's symbols, in the domain's order."""
    count = next((len(tensor) for name, tensor in weights.items() if name.endswith("embed_tokens.embedding_weight")), 0)
    if count == len(domain.published):
        return [domain.published.index(symbol) for symbol in domain.vocab]
    if count and count != len(domain.vocab):
        raise UserError(
            f"the checkpoint has {count} symbols, {domain.name} at these parameters {len(domain.vocab)}: choose "
            f"another --domain"
        )
    return None


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
        "--domain", metavar="PRESET", help="the puzzles it was trained on, as this preset's data; it can solve then"
    )
    parser.add_argument(
        "--identifiers", type=Path, metavar="FILE", help="ARC: the identifiers.json of the dataset it was trained on"
    )
    known = parser.parse_args(args)
    from ponder.config.resolve import read_yaml, resolve
    from ponder.model import published

    published.refuse_used(known.out)
    if not known.config.is_file():
        raise UserError(f"there is no configuration {known.config}: give the all_config.yaml saved with the checkpoint")
    data = None if known.domain is None else resolve(known.domain).data
    domain = None if data is None else data.make()
    config = published.with_tokens(read_yaml(known.config), known.seq_len, None if domain is None else domain.seq_len)
    identifiers = None if known.identifiers is None else published.read_identifiers(known.identifiers)
    weights = published.read_checkpoint(known.checkpoint)
    symbols = None if domain is None else _symbols(domain, weights)
    model = published.load_official(known.kind, config, weights, symbols)
    if domain is not None and model.tokens != domain.seq_len:
        raise UserError(
            f"{known.checkpoint} reads {model.tokens} tokens, preset {known.domain} has {domain.seq_len}: choose "
            f"another --domain"
        )
    source = {"kind": known.kind, "checkpoint": known.checkpoint.name, "sha256": files.sha256(known.checkpoint)}
    published.write_folder(model, known.out, source, identifiers, None if data is None else data.flat())
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{known.out}: {known.kind}, {parameters / 1e6:.2f}M parameters, {model.embed.shape[0]} symbols, "
        f"{model.tokens} tokens, {len(model.table)} task ids"
    )
