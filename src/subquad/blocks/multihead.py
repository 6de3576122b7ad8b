"""Pre-norm blocks with softmax attention, whose queries, keys and values can be computed once and reused."""

import math
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.layer import FeedForward, Layer
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Tokens


class MultiHead(nn.Module):
    """softmax(Q Kᵀ / s) V W_O in each head, by a fused kernel.

    A head is ⌈dim / heads⌉ wide, so that any number of heads is possible. scale: s is the root of the width of a head
    ("d_head") or of the model ("d_model"). Maps are Xavier-uniform at first, biases 0.
    """

    def __init__(
        self, dim: int, heads: int, dropout: float = 0.0, bias: bool = True,
        scale: Literal["d_head", "d_model"] = "d_head",
    ) -> None:  # fmt: skip
        super().__init__()
        head_dim = math.ceil(dim / heads)
        self.heads, self.dropout = heads, dropout
        self.scale = 1 / math.sqrt(head_dim if scale == "d_head" else dim)
        inner = heads * head_dim
        self.query = nn.Linear(dim, inner, bias)
        self.key_value = nn.Linear(dim, 2 * inner, bias)
        self.out = nn.Linear(inner, dim, bias)
        for weight in (self.query.weight, *self.key_value.weight.chunk(2), self.out.weight):
            nn.init.xavier_uniform_(weight.data)
        for linear in (self.query, self.key_value, self.out):
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(
        self, queries: Float[Tensor, "b n w"], memory: Float[Tensor, "b m two_w"], mask: Bool[Tensor, "c m"] | None
    ) -> Tokens:
        """Attention of `queries` (from `query`) to `memory` (from `key_value`) where `mask` is True."""
        q = queries.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = memory.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys = None if mask is None else mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        y = softmax_attention(q, k, v, attn_mask=keys, dropout_p=dropout, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(-2))


class _PreNorm(nn.Module):
    """Base of the blocks: x ← x + dropout(gathered), then x ← x + dropout(feed-forward(norm(x)))."""

    def __init__(
        self, dim: int, heads: int, ffn: int, dropout: float = 0.0, attention_dropout: float = 0.0, bias: bool = True,
        scale: Literal["d_head", "d_model"] = "d_head",
    ) -> None:  # fmt: skip
        super().__init__()
        self.query_norm = nn.LayerNorm(dim)
        self.attention = MultiHead(dim, heads, attention_dropout, bias, scale)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, ffn, dropout)
        self.dropout = Dropout(dropout)

    def _after(self, x: Tokens, gathered: Tokens) -> Tokens:
        x = x + self.dropout(gathered)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class SelfBlock(_PreNorm, Layer):
    """x ← x + MHA(norm(x)), then the feed-forward net."""

    def forward(self, x: Tokens, mask: Bool[Tensor, "c n"] | None) -> Tokens:
        source = self.query_norm(x)
        return self._after(x, self.attention(self.attention.query(source), self.attention.key_value(source), mask))


class CrossBlock(_PreNorm):
    """x ← x + MHA(norm_q(x), norm_kv(context)), then the feed-forward net.

    `queries` depends on x alone and `memory` on the context alone, so that callers can compute either in advance.
    """

    def __init__(
        self, dim: int, heads: int, ffn: int, dropout: float = 0.0, attention_dropout: float = 0.0, bias: bool = True,
        scale: Literal["d_head", "d_model"] = "d_head",
    ) -> None:  # fmt: skip
        super().__init__(dim, heads, ffn, dropout, attention_dropout, bias, scale)
        self.memory_norm = nn.LayerNorm(dim)

    def queries(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n w"]:
        """Queries of x."""
        return self.attention.query(self.query_norm(x))

    def memory(self, context: Context) -> Float[Tensor, "b m two_w"]:
        """Keys and values of the context, side by side."""
        return self.attention.key_value(self.memory_norm(context))

    def forward(
        self, x: Tokens, queries: Float[Tensor, "b n w"], memory: Float[Tensor, "b m two_w"],
        mask: Bool[Tensor, "c m"] | None,
    ) -> Tokens:  # fmt: skip
        return self._after(x, self.attention(queries, memory, mask))
