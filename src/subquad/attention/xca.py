"""XCA: cross-covariance attention of XCiT (El-Nouby et al. 2021, https://arxiv.org/abs/2106.09681, Eq. 1)."""

import torch
from torch import nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.dropout import dropout
from subquad.ops.masks import zero_padding
from subquad.ops.unit import unit
from subquad.specs import Context, Masks, Pattern, Site, Tokens


class XCA(StatelessAttention):
    """Y_h = V_h softmax(τ_h K̂_hᵀ Q̂_h) in each head: features attend to features, and tokens are not mixed otherwise.

    The softmax is over the features of the keys. Each column of K̂ and Q̂, one feature of all real tokens, has length 1;
    τ_h is learned. What a token learns of the others are the d_h x d_h weights of a head: sums over all tokens.

    Examples:
        >>> import torch
        >>> from subquad import XCA
        >>> layer = XCA(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: as the paper, without padding masks. XCiT adds depthwise convolutions after it (local patch
    interaction), which are not part of the attention.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.projections = Projections(site.dim, site.heads)
        self.temperature = nn.Parameter(torch.ones(site.heads, 1, 1))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        q, k = (p.split(zero_padding(t, masks.context)).mT for t in (p.query(x), p.key(context)))
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = (unit(t.to(wide)).to(t.dtype) for t in (q, k))
        weights = (q @ k.mT * self.temperature).softmax(-1)
        weights = dropout(weights, self.site.dropout, self.training)
        v = p.split(p.value(context))
        return p.merge(v @ weights.to(v.dtype).mT)
