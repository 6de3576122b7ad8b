"""FLARE: fast low-rank attention routing (Puri et al. 2025, https://arxiv.org/abs/2508.12594, Section 3)."""

import torch
from torch import nn

from subquad.attention.base import Affine, StatelessAttention
from subquad.ops.heads import split_heads
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count


class FLARE(StatelessAttention):
    """Z = softmax(L Kᵀ) V and Y = softmax(K Lᵀ) Z in each head, with m learned latents L.

    Encoding and decoding have the same logits, whose softmax is over the tokens and over the latents. There are no
    queries and no scale. Padded tokens are hidden from the first softmax.

    Args:
        latents: m, the rows of L.

    Examples:
        >>> import torch
        >>> from subquad import FLARE
        >>> layer = FLARE(dim=64, heads=4, latents=16)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: keys and values are residual networks of several layers, where these are linear maps; padded tokens
    see no latent, so that their outputs are not finite.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n m d + n d²), memory O(n (d + h m))"

    def __init__(self, site: Site, latents: Count = 64) -> None:
        super().__init__(site)
        self.heads = site.heads
        self.latent = nn.Parameter(0.1 * torch.randn(site.heads, latents, site.dim // site.heads))
        self.key, self.value, self.out = (Affine(site.dim, site.dim) for _ in range(3))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        k, v = split_heads(self.key(context), self.heads), split_heads(self.value(context), self.heads)
        latent = self.latent.to(k.dtype).expand(x.shape[0], -1, -1, -1)
        real = None if masks.context is None else masks.context[:, None, None, :]
        z = softmax_attention(latent, k, v, attn_mask=real, dropout_p=self._dropout, scale=1.0)
        y = softmax_attention(k, latent, z, dropout_p=self._dropout, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(-2))
