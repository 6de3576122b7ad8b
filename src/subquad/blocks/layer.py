"""One transformer layer: attention and feed-forward, each with its residual and normalisation."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.specs import Masks

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of a width, such as nn.LayerNorm."""


class FeedForward(nn.Sequential):
    """Linear, GELU, dropout, linear."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim))


class TransformerLayer(nn.Module):
    """post: x ← norm(x + f(x)), as printed in Vaswani et al. 2017; pre: x ← x + f(norm(x)).

    f is attention, then the feed-forward net. With `attention=None` the first step is left out: what is left is the
    ceiling that every attention is measured against.
    """

    def __init__(
        self,
        attention: Attention | None,
        dim: int,
        ffn: int,
        dropout: float,
        order: Literal["pre", "post"],
        norm: Norm = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = None if attention is None else norm(dim)
        self.feed_forward = FeedForward(dim, ffn, dropout)
        self.feed_forward_norm = norm(dim)
        self.dropout = nn.Dropout(dropout)
        self.pre = order == "pre"

    def forward(
        self, x: Float[Tensor, "b n d"], masks: Masks, carry: Carry = None
    ) -> tuple[Float[Tensor, "b n d"], Carry]:
        if self.attention is not None and self.attention_norm is not None:
            source = self.attention_norm(x) if self.pre else x
            y, carry = self.attention(source, source, masks, carry)
            x = x + self.dropout(y)
            x = x if self.pre else self.attention_norm(x)
        if self.pre:
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x))), carry
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), carry
