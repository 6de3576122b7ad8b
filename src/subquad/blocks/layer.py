"""The transformer layer: attention and feed-forward net, each with residual and normalisation."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from subquad.attention.base import Affine, Attention, Carry
from subquad.blocks.dropout_layer import Dropout
from subquad.specs import Masks, Tokens
from subquad.utils.devices import at_once

Norm = Callable[[int], nn.Module]
"""Makes the normalisation for a width, such as nn.LayerNorm."""

_CHUNK = 1024
"""Tokens that a feed-forward net processes at a time in inference on a CPU."""


class FeedForward(nn.Sequential):
    """Linear, GELU (or another `activation`), dropout, linear, for each token.

    Without gradients, long inputs are processed in chunks of tokens on a CPU: the hidden activations, the largest
    tensors of a model without n x n weights, then fit into the cache.
    """

    def __init__(self, dim: int, hidden: int, dropout: float, activation: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__(Affine(dim, hidden), activation(), Dropout(dropout), Affine(hidden, dim))
        self.hidden = hidden

    def forward(self, x: Tokens) -> Tokens:
        chunk = at_once(x, _CHUNK, x.shape[0] * self.hidden)
        if torch.is_grad_enabled() or x.shape[1] <= chunk:
            return super().forward(x)
        return torch.cat([super(FeedForward, self).forward(part) for part in x.split(chunk, 1)], 1)


class Layer(nn.Module):
    """A layer of a model, the unit of activation checkpointing and of sharding.

    It is called as a whole and gets all its inputs as arguments.
    """


class TransformerLayer(Layer):
    """post: x ← norm(x + f(x)), as printed in Vaswani et al. 2017; pre: x ← x + f(norm(x)).

    f is attention, then the feed-forward net. `attention=None` leaves the attention out: the time of that model is a
    lower bound for models with attention.

    A token that `masks` marks as a class token is not normalised before the attention, as in the released code of
    Transformer-LS.
    """

    def __init__(
        self, attention: Attention | None, dim: int, ffn: int, dropout: float, order: Literal["pre", "post"],
        norm: Norm = nn.LayerNorm,
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.Identity() if attention is None else norm(dim)
        self.feed_forward = FeedForward(dim, ffn, dropout)
        self.feed_forward_norm = norm(dim)
        self.dropout = Dropout(dropout)
        self.pre = order == "pre"

    def forward(self, x: Tokens, masks: Masks, carry: Carry = None) -> tuple[Tokens, Carry]:
        if self.attention is not None:
            x, carry = self._attend(self.attention, x, masks, carry)
        return self._feed(x), carry

    def _attend(self, attention: Attention, x: Tokens, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        source = self.attention_norm(x) if self.pre else x
        if self.pre and masks.class_token:
            source = torch.cat([x[:, :1], source[:, 1:]], 1)
        y, carry = attention(source, source, masks, carry)
        x = x + self.dropout(y)
        return x if self.pre else self.attention_norm(x), carry

    def _feed(self, x: Tokens) -> Tokens:
        y = self.feed_forward(self.feed_forward_norm(x) if self.pre else x)
        x = x + self.dropout(y)
        return x if self.pre else self.feed_forward_norm(x)
