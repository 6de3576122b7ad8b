"""Padding masks in the forms of other libraries."""

import torch
from torch import Tensor

from subquad.utils.errors import UserError

_NO_PAIRS = (
    "The attentions of this package read padding masks only, and this attention mask differs between queries or has "
    "other values than 0 and large negative ones; pass a mask [batch, tokens]."
)


def real_tokens(mask: Tensor | None) -> Tensor | None:
    """Which tokens are real, from any mask that transformers makes of a padding mask.

    It is [b, n] with 1 at real tokens, or [b, 1, q, n] with True or 0 at real tokens and False or large negative
    numbers at padding. Raises UserError if it is not the same for all queries.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise UserError("Masks of flex attention cannot be read; call model.set_attn_implementation('sdpa').")
    if mask.dim() == 2:
        if mask.is_floating_point() and not torch.compiler.is_compiling() and bool((mask < 0).any()):
            raise UserError("A mask [batch, tokens] is 1 at real tokens and 0 at padding; pass additive_mask > -1.")
        return mask.bool()
    real = mask[:, 0, 0] if mask.dtype == torch.bool else mask[:, 0, 0] >= -1
    if torch.compiler.is_compiling():  # values are not known
        return real
    same = mask.shape[1:3] == (1, 1) or not any(mask.stride()[1:3]) or bool((mask == mask[:, :1, :1]).all())
    if not same:
        raise UserError(_NO_PAIRS)
    check_plain(mask)
    return real


def real_tokens_of_window(mask: Tensor | None) -> Tensor | None:
    """Which tokens are real, from a mask in which each real token sees itself, such as that of a sliding window."""
    if not isinstance(mask, Tensor) or mask.dim() == 2:
        return real_tokens(mask)
    itself = mask[:, 0].diagonal(dim1=-2, dim2=-1)
    return itself if mask.dtype == torch.bool else itself >= -1


def check_plain(mask: Tensor) -> None:
    """Raises UserError for an additive mask with other values than 0 and large negative ones, if they are known."""
    known = mask.dtype != torch.bool and not torch.compiler.is_compiling()
    if known and not bool(((mask == 0) | (mask < -1e3)).all()):
        raise UserError(_NO_PAIRS)
