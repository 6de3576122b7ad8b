"""Attention between many tokens and few rows without projecting tokens: `compress` to rows, `expand` to tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.ops.dropout import dropout
from subquad.ops.masks import masked_softmax
from subquad.ops.softmax_attention import fused_attention
from subquad.specs import Context, ContextMask, Tokens
from subquad.utils.devices import at_once

_CHUNK = 1024


def compress(queries: Float[Tensor, "b r d"], x: Context, mask: ContextMask) -> Float[Tensor, "b r d"]:
    """softmax(queries xᵀ) x over the real tokens; 0 if there are none."""
    if not torch.is_grad_enabled():
        real = None if mask is None else mask[:, None, None]
        x = x[:, None]
        return fused_attention(queries[:, None], x, x, attn_mask=real, scale=1.0).squeeze(1)
    return masked_softmax(queries @ x.mT, None if mask is None else mask[:, None]) @ x


def expand(
    x: Tokens, keys: Float[Tensor, "b h r d"], bias: Float[Tensor, "b h r"], values: Float[Tensor, "b h r d"],
    out_bias: Float[Tensor, " d"], mask: Bool[Tensor, "c r"] | None, dropout_p: float,
) -> Tokens:  # fmt: skip
    """Σ_h softmax(x keys_hᵀ + bias_h) values_h + out_bias over the real rows; `dropout_p` acts on the weights.

    On a CPU, long inputs are processed in chunks of tokens, so that logits and weights stay in the cache.
    """
    parts = []
    for part in x.split(at_once(x, _CHUNK, bias.numel()), 1):
        logits = torch.baddbmm(bias.flatten(1)[:, None], part, keys.flatten(1, 2).mT).unflatten(-1, bias.shape[1:])
        weights = masked_softmax(logits, None if mask is None else mask[:, None, None])
        weights = dropout(weights, dropout_p, dropout_p > 0).flatten(2)
        parts.append(torch.baddbmm(out_bias, weights, values.flatten(1, 2)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def rows_of_heads(linear: nn.Linear, heads: int) -> Float[Tensor, "h e d"]:
    """The weight of a linear map to all heads, split into the rows of each head."""
    return linear.weight.view(heads, -1, linear.in_features)


def columns_of_heads(linear: nn.Linear, heads: int) -> Float[Tensor, "h e d"]:
    """The weight of a linear map from all heads, split into the columns of each head and transposed."""
    return linear.weight.mT.unflatten(0, (heads, -1))
