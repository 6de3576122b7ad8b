"""Flowformer (Wu et al. 2022, https://arxiv.org/abs/2202.06258, Section 3.2)."""

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.flow_attention_on_gpu import flow_attention
from subquad.ops.linear_attention import divisor, expand, head_dot, kv_state
from subquad.ops.linear_attention_on_gpu import use_gpu_path, weights_of
from subquad.ops.masks import masked_softmax, zero_padding
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import NonNegative


class Flowformer(StatelessAttention):
    """Y = sigmoid(Î n/m) ⊙ (φ(Q) / I) (φ(K)ᵀ V̂) in each head, with V̂ = m softmax(Ô) ⊙ V and φ = sigmoid.

    Keys are sources and queries are sinks of a flow. The flow of one side is fixed to compute that of the other:

        I_i = φ(q_i) · Σ_j φ(k_j)          Ô_j = φ(k_j) · Σ_i φ(q_i) / I_i     competition, a softmax over the keys
        O_j = φ(k_j) · Σ_i φ(q_i)          Î_i = φ(q_i) · Σ_j φ(k_j) / O_j     allocation, a gate of each query

    so that Σ_i Î_i = m and Σ_j Ô_j = n, the numbers of real context and query tokens. Padded queries and keys get
    φ = 0, and padded keys are hidden from the softmax. `site.dropout` is unused, because no attention
    weights exist.

    Args:
        eps: added to I and O.

    Why the fast path is equal: competition, gate and normaliser are one number for each token and head. They scale φ(Q)
    and φ(K), and the rest is linear attention: φ(K)ᵀ V = (φ(K)ᵀ C) W_V + (φ(K)ᵀ 1) b_V, and W_O acts on this state.

    Examples:
        >>> import torch
        >>> from subquad import Flowformer
        >>> layer = Flowformer(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: no padding masks; the core file clamps Ô to [-1, 1], the one for time series does not, nor does this.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site, eps: NonNegative = 1e-6) -> None:
        super().__init__(site)
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        one_mask = self.site.pattern is Pattern.SELF and (masks.query is None) == (masks.context is None)
        if one_mask and use_gpu_path(x, context):
            return flow_attention(x, masks.context, weights_of(p.query, p.key, p.value, p.out), p.heads, self.eps)
        q = zero_padding(p.query(x, "sigmoid"), masks.query).unflatten(-1, (p.heads, -1))
        k = zero_padding(p.key(context, "sigmoid"), masks.context).unflatten(-1, (p.heads, -1))
        gate, competition = self._flows(q, k, masks)
        return expand(_scaled(q, gate), kv_state(_scaled(k, competition), context, p.value), p.out)

    def _flows(
        self, q: Float[Tensor, "b n h e"], k: Float[Tensor, "b m h e"], masks: Masks
    ) -> tuple[Float[Tensor, "b n h 1"], Float[Tensor, "b m h 1"]]:
        """sigmoid(Î n/m) / I of the queries and m softmax(Ô) of the keys.

        In float32 at least: flows are sums over all tokens, and those of padding are eps, whose inverse half precision
        cannot hold.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        least = torch.finfo(wide).tiny
        incoming = divisor(head_dot(q, k.sum(1)) + self.eps, masks.context).clamp(min=least).reciprocal()
        outgoing = (head_dot(k, q.sum(1)) + self.eps).clamp(min=least).reciprocal()
        conserved_in = head_dot(q, (k * outgoing).sum(1))
        conserved_out = head_dot(k, (q * incoming).sum(1))
        n, m = _count(masks.query, q), _count(masks.context, k)
        share = masked_softmax(conserved_out, None if masks.context is None else masks.context[..., None, None], 1)
        return (conserved_in * n / m).sigmoid() * incoming, share * m


def _scaled(x: Float[Tensor, "b n h e"], by: Float[Tensor, "b n h 1"]) -> Float[Tensor, "b n h e"]:
    """Each token's vector times its number, in place where no gradient needs the vector."""
    return (x * by).to(x.dtype) if torch.is_grad_enabled() else x.mul_(by)


def _count(mask: Mask, x: Float[Tensor, "b n h e"]) -> Tensor | int:
    """Real tokens of each row, at least 1."""
    return x.shape[1] if mask is None else mask.sum(1).clamp(min=1)[:, None, None, None]
