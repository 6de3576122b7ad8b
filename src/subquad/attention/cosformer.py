"""cosFormer (Qin et al. 2022, https://arxiv.org/abs/2202.08791, Section 3)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.kernel_attention import head_dot
from subquad.ops.masking import zero_padding
from subquad.specs import Masks, Pattern, Site


class CosFormer(StatelessAttention):
    """y_i = Σ_j w_ij v_j / Σ_j w_ij in each head, with w_ij = ReLU(q_i)ᵀ ReLU(k_j) cos(π/2 · (i - j) / M).

    i and j count from 1, and M is the longest sequence of the site, so that no weight is negative and none depends on
    the padding of a batch. A sum of weights below `eps` counts as `eps`: a query whose features are all 0 reads 0.
    Padded keys get ReLU(k) = 0. No 1/√d scale; there are no weights to drop: `site.dropout` is unused.

    cos(a - b) = cos a cos b + sin a sin b, so each head has two states, Σ_j cos_j φ(k_j) v_jᵀ and the same with sin.
    Both are one product, and so is reading them; the weights cos_i, sin_i of a query meet what it has read.

    Released code: M is the padded length of the batch, and padding is not masked.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site, eps: float = 1e-6) -> None:
        super().__init__(site)
        if eps <= 0:
            raise UserError(f"CosFormer divides by sums that may be 0 and got eps {eps}; choose a positive one.")
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q = F.relu_(p.query(x)).unflatten(-1, (p.heads, -1))
        k = F.relu_(zero_padding(p.key(context), masks.context)).unflatten(-1, (p.heads, -1))
        v = p.value(context).unflatten(-1, (p.heads, -1))
        of_queries, of_keys = self._wave(q), self._wave(k)
        state = k.permute(0, 2, 3, 1) @ _spread(v, of_keys).transpose(1, 2)
        read = _gather((q.transpose(1, 2) @ state).transpose(1, 2), of_queries)
        total = (of_keys[:, 0, :, 0].mT @ k.flatten(-2)).unflatten(-1, (p.heads, -1))
        sums = torch.cat([head_dot(q, total[:, 0]), head_dot(q, total[:, 1])], -1)
        weight = (sums * of_queries[..., 0]).sum(-1, keepdim=True)
        return p.out((read * weight.clamp(min=self.eps).reciprocal()).flatten(-2))

    def _wave(self, x: Float[Tensor, "b n h e"]) -> Float[Tensor, "n 1 2 1"]:
        """[cos, sin] of π/2 · i / M."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        place = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=dtype)
        angle = place * (math.pi / 2 / max(self.site.query_len, self.site.context_len))
        return torch.stack([angle.cos(), angle.sin()], -1).to(x.dtype)[:, None, :, None]


def _spread(x: Float[Tensor, "b n h e"], wave: Float[Tensor, "n 1 2 1"]) -> Float[Tensor, "b n h f"]:
    """[x cos | x sin]."""
    y: Tensor = _Spread.apply(x, wave)
    return y


def _gather(x: Float[Tensor, "b n h f"], wave: Float[Tensor, "n 1 2 1"]) -> Float[Tensor, "b n h e"]:
    """a cos + b sin of x = [a | b]."""
    y: Tensor = _Gather.apply(x, wave)
    return y


class _Spread(torch.autograd.Function):
    """Linear in x, and the transpose of `_Gather`: each is the other's gradient, and neither keeps x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor) -> Tensor:
        ctx.save_for_backward(wave)
        return (x[..., None, :] * wave).flatten(-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(gradient, *ctx.saved_tensors), None


class _Gather(torch.autograd.Function):
    """The transpose of `_Spread`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor) -> Tensor:
        ctx.save_for_backward(wave)
        a, b = x.chunk(2, -1)
        return (a * wave[:, :, 0]).addcmul_(b, wave[:, :, 1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(gradient, *ctx.saved_tensors), None
