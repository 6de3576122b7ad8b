"""DBA as released (Qin et al. 2022, https://arxiv.org/abs/2211.16368; code: BrightQin/DBA-Time-Series)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.ops.dropout import dropout
from subquad.ops.heads import split_heads
from subquad.ops.latent_attention import columns_of_heads, expand, rows_of_heads
from subquad.ops.masks import masked_softmax
from subquad.specs import Mask, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count


class DBAReleased(Attention):
    """Pools n tokens into d_p rows by cross-attention, mixes the rows by self-attention, and expands them to n again.

    In each head, with e = d_in / h and separate maps in every line:
        W_r  = softmax(Z A_q (X A_k)ᵀ / √e)         over the tokens; A_q, A_k: d -> d_in
        C    = W_r X A_v                             d_p rows of width d
        U    = softmax(C B_q (C B_k)ᵀ / √e) C B_v    over the rows; B_q, B_k: d -> d_in
        W'_r = softmax(X E)                          over the rows; E: d -> d_p
        Y    = W'_r LayerNorm(U) W_O                 LayerNorm over all heads
        carry: Z <- C

    The first layer owns Z, which starts at N(0, 1/d). Dropout acts on this Z and on the weights of all three softmaxes.

    Args:
        d_p: rows that the tokens are compressed to.
        d_in: width of queries and keys over all heads, rounded up to a multiple of the heads.

    Why the fast path is equal: no token is projected. Z A_q A_kᵀ multiplies X itself, W_r X is projected afterwards,
    and W_O acts on the d_p rows. Maps of keys have no bias, which would add the same number to all logits of a softmax.

    Examples:
        >>> import torch
        >>> from subquad import DBAReleased
        >>> layer = DBAReleased(dim=64, heads=4, d_p=8)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the same function, with biases of keys, d_p = 16 and d_in = 24; rows of padding alone give NaN there
    and C = 0 here. attention=dba is the paper's text; docs/deviations.md compares the two.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n h d_p d + d_p d²), memory O(n (d + h d_p))"

    def __init__(self, site: Site, d_p: Count = 16, d_in: Count = 24) -> None:
        super().__init__(site)
        dim, self.heads = site.dim, site.heads
        width = math.ceil(d_in / self.heads) * self.heads  # the heads share it evenly, as in attention=dba
        self.latent = nn.Parameter(torch.randn(d_p, dim) / math.sqrt(dim)) if site.layer == 0 else None
        self.latent_query, self.row_query = nn.Linear(dim, width), nn.Linear(dim, width)
        self.key, self.row_key = nn.Linear(dim, width, bias=False), nn.Linear(dim, width, bias=False)
        self.value, self.row_value, self.out = (nn.Linear(dim, dim) for _ in range(3))
        self.norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, self.heads * d_p)
        self.scale = (width // self.heads) ** -0.5

    def attend_with_carry(self, x: Tokens, context: Tokens, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        self.check_lengths(x, context)
        rows = self._compress(self._latent(carry, x.shape[0]), context, masks.context)
        return self._expand(x, self._mix(rows)), rows

    def _latent(self, carry: Carry, batch: int) -> Float[Tensor, "b p d"]:
        if carry is not None:
            return carry
        if self.latent is None:
            raise UserError(
                f"DBA in layer {self.site.layer} needs Z of the layer before it; use dba_released in all layers."
            )
        return self._drop(self.latent.expand(batch, -1, -1))

    def _compress(self, z: Float[Tensor, "b p d"], x: Tokens, mask: Mask) -> Float[Tensor, "b p d"]:
        """C; after dropout the rows of W_r do not sum to 1, so the bias of A_v is weighted by their sums."""
        queries = split_heads(self.latent_query(z), self.heads) * self.scale @ rows_of_heads(self.key, self.heads)
        logits = queries.flatten(1, 2) @ x.mT
        w_r = self._drop(masked_softmax(logits, None if mask is None else mask[:, None]))
        pooled, sums = (t.unflatten(1, (self.heads, -1)) for t in (w_r @ x, w_r.sum(-1, keepdim=True)))
        values = pooled @ rows_of_heads(self.value, self.heads).mT
        return _join(values + sums * self.value.bias.view(self.heads, 1, -1))

    def _mix(self, rows: Float[Tensor, "b p d"]) -> Float[Tensor, "b p d"]:
        """LayerNorm(U)."""
        q, k, v = (split_heads(m(rows), self.heads) for m in (self.row_query, self.row_key, self.row_value))
        return self.norm(_join(self._drop((q @ k.mT * self.scale).softmax(-1)) @ v))

    def _expand(self, x: Tokens, rows: Float[Tensor, "b p d"]) -> Tokens:
        """Y = W'_r LayerNorm(U) W_O."""
        keys = rows_of_heads(self.expand, self.heads).expand(x.shape[0], -1, -1, -1)
        bias = self.expand.bias.view(self.heads, -1).expand(x.shape[0], -1, -1)
        values = split_heads(rows, self.heads) @ columns_of_heads(self.out, self.heads)
        return expand(x, keys, bias, values, self.out.bias, None, self._dropout)

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.site.dropout, self.training)


def _join(x: Float[Tensor, "b h p e"]) -> Float[Tensor, "b p d"]:
    return x.transpose(1, 2).flatten(-2)
