"""Operations under a padding mask: True is a real token, None means that there is no padding."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.specs import Mask, Tokens


def zero_padding(x: Tokens, mask: Mask) -> Tokens:
    """Sets padded rows to 0, also if they are not finite."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0)


def masked_softmax(logits: Tensor, mask: Bool[Tensor, "..."] | None, axis: int = -1) -> Tensor:
    """Softmax over the entries where `mask` (broadcast to `logits`) is True; 0 elsewhere and in rows without True."""
    if mask is None:
        return logits.softmax(axis)
    weights = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(axis)
    return weights.masked_fill(~mask, 0)


def count(mask: Mask, length: int) -> Tensor | int:
    """Number of real tokens of each row, at least 1: `[b, 1, 1]`, or `length` if there is no padding."""
    return length if mask is None else mask.sum(1).clamp(min=1)[:, None, None]


def masked_mean(x: Tokens, mask: Mask) -> Float[Tensor, "b 1 d"]:
    """Mean over the real tokens of each row; 0 if there are none."""
    return zero_padding(x, mask).sum(1, keepdim=True) / count(mask, x.shape[1])
