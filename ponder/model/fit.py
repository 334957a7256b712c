"""Whether weights fit a configuration, found out before anything of the size that it names is made.

Both come from files, perhaps of strangers: a line of text may ask for more memory than there is.
"""

import re
from collections.abc import Collection, Mapping

import torch

from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import ModelConfig
from ponder.model.reasoner import Reasoner

LONGEST = 65_536
"""Positions of a puzzle, the prefix included. The longest of ours have 916."""


def expected(
    config: ModelConfig,
    vocab: int,
    tokens: int,
    task_ids: int,
    names: Collection[str],
    geometry: Geometry = NO_GEOMETRY,
) -> dict[str, torch.Size]:
    """The shapes of a Reasoner's tensors; refused where `names`, which are there, cannot be all of them."""
    for what, size in (("symbols", vocab), ("tokens", tokens), ("task ids", task_ids)):
        if type(size) is not int or size < 1:
            raise UserError(f"the model's configuration has {size!r} {what}: it should be a number from 1 on")
    if config.prefix + tokens > LONGEST:
        raise UserError(f"the configuration has {config.prefix} + {tokens} positions: at most {LONGEST} can be read")
    for block, wanted in (("low", config.layers), *((("high", config.layers_above),) if config.high_layers else ())):
        layers = {match[1] for name in names if (match := re.match(rf"{block}\.layers\.(\d+)\.", name))}
        if len(layers) < wanted:
            raise UserError(f"the configuration has {wanted} layers, the weights have {len(layers)}")
    try:
        with torch.device("meta"):
            model = Reasoner(config, vocab, tokens, task_ids, geometry)
        return {name: tensor.shape for name, tensor in model.state_dict().items()}
    except (RuntimeError, OverflowError, MemoryError, ValueError, TypeError) as error:
        raise UserError(f"no model has the sizes of this configuration: {str(error).splitlines()[0]}") from None


def check_sizes(
    config: ModelConfig,
    vocab: int,
    tokens: int,
    weights: Mapping[str, torch.Tensor],
    geometry: Geometry = NO_GEOMETRY,
) -> None:
    """That a Reasoner of this configuration would take these weights."""
    if "table" not in weights or weights["table"].dim() != 2:
        raise UserError("the weights have no puzzle table of rows and columns: is the file whole?")
    wanted = expected(config, vocab, tokens, len(weights["table"]), weights, geometry)
    for name, tensor in weights.items():
        if name not in wanted:
            raise UserError(f"tensor {name} {tuple(tensor.shape)} is not used by this configuration")
        if tensor.shape != wanted[name]:
            raise UserError(f"tensor {name} is {tuple(tensor.shape)}, the configuration says {tuple(wanted[name])}")
