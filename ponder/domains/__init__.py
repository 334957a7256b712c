"""What a puzzle is. A domain of your own starts from the names here (docs/domains.md)."""

from ponder.domains.contract import PAD, Bools, Domain, Params, Sizes, Split, Tokens, Tool, Wording
from ponder.domains.grid import GridDomain, SequenceDomain

__all__ = [
    "PAD",
    "Bools",
    "Domain",
    "GridDomain",
    "Params",
    "SequenceDomain",
    "Sizes",
    "Split",
    "Tokens",
    "Tool",
    "Wording",
]
