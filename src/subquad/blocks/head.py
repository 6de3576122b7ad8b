"""Pooling of tokens and the output head."""

import itertools
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.masks import zero_padding
from subquad.specs import Mask, Tokens
from subquad.utils.errors import UserError


def flatten_tokens(x: Tokens, valid: Mask, max_len: int) -> Float[Tensor, "b m"]:
    """All tokens side by side, `[b, max_len * d]`; padding, and positions up to `max_len`, are 0."""
    if x.shape[1] > max_len:
        raise UserError(
            f"The head of this model reads {max_len} tokens side by side and was given {x.shape[1]}; shorten the "
            "input, build the model for a larger length, or choose backbone.pooling=mean."
        )
    return F.pad(zero_padding(x, valid), (0, 0, 0, max_len - x.shape[1])).flatten(1)


def output_head(
    features: int, outputs: int, hidden: int | None, layers: int = 1, activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Module:
    """A linear map; with `hidden`, after `layers` hidden layers, of which each is half as wide as the one before."""
    if hidden is None:
        return nn.Linear(features, outputs)
    widths = [features, *(max(1, hidden >> i) for i in range(layers))]
    parts = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*parts, nn.Linear(widths[-1], outputs))
