"""Padding masks in the forms of other libraries."""

import torch
from torch import Tensor

from subquad.utils.errors import UserError

_NO_PAIRS = (
    "The attentions of this package read padding masks only, and this attention mask differs between queries or has "
    "other values than 0 and large negative ones; pass a mask [batch, tokens]."
)
_ADDITIVE = "A mask [batch, tokens] is 1 at real tokens and 0 at padding; pass additive_mask > -1."


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
        if mask.is_floating_point():
            _require((mask >= 0).all(), _ADDITIVE)
        return mask.bool()
    real = mask[:, 0, 0] if mask.dtype == torch.bool else mask[:, 0, 0] >= -1
    if mask.shape[1:3] != (1, 1) and any(mask.stride()[1:3]):
        _require((mask == mask[:, :1, :1]).all(), _NO_PAIRS)
    check_plain(mask)
    return real


def real_tokens_of_window(mask: Tensor | None) -> Tensor | None:
    """Which tokens are real, from a mask in which each real token sees itself, such as that of a sliding window."""
    if not isinstance(mask, Tensor) or mask.dim() == 2:
        return real_tokens(mask)
    itself = mask[:, 0].diagonal(dim1=-2, dim2=-1)
    return itself if mask.dtype == torch.bool else itself >= -1


def check_plain(mask: Tensor) -> None:
    """Raises UserError for an additive mask with other values than 0 and large negative ones."""
    if mask.dtype != torch.bool:
        _require(((mask == 0) | (mask < -1e3)).all(), _NO_PAIRS)


def _require(holds: Tensor, message: str) -> None:
    """Raises UserError unless a mask is one of padding; a compiled model raises RuntimeError, where it runs."""
    if torch.compiler.is_exporting():  # an exported program has no checks of values
        return
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message)
    elif not bool(holds):
        raise UserError(message)
