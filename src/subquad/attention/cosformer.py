"""cosFormer (Qin et al. 2022, https://arxiv.org/abs/2202.08791, Section 3)."""

import math
from itertools import repeat, starmap
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.kernel_attention import head_dot
from subquad.ops.masking import zero_padding
from subquad.specs import Masks, Pattern, Site

_CHUNK = 1024
"""Tokens of a chunk where no gradient is asked for."""


class CosFormer(StatelessAttention):
    """y_i = Σ_j w_ij v_j / Σ_j w_ij in each head, with w_ij = ReLU(q_i)ᵀ ReLU(k_j) cos(π/2 · (i - j) / M).

    i and j count from 1, and M is the longest sequence of the site, so that no weight is negative and none depends on
    the padding of a batch. A sum of weights below `eps` counts as `eps`: a query whose features are all 0 reads 0.
    Padded keys get ReLU(k) = 0. No 1/√d scale; there are no weights to drop: `site.dropout` is unused.

    cos(a - b) = cos a cos b + sin a sin b, so each head has two states, Σ_j cos_j φ(k_j) v_jᵀ and the same with sin.
    Both are one product, and so is reading them; what a query has read meets its weights cos_i and sin_i, divided by
    Σ_j w_ij.

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
        keys, queries = self._wave(context), self._wave(x)
        if torch.is_grad_enabled():
            state, total = self._state(context, keys, masks.context)
            y = _Read.apply(*self._read(x, queries, state, total))
        else:
            # In chunks nothing but y is as long as the sequence, and what is between stays in the cache.
            real = repeat(None) if masks.context is None else masks.context.split(_CHUNK, 1)
            parts = zip(context.split(_CHUNK, 1), keys.split(_CHUNK), real, strict=False)
            state, total = (torch.stack(sums).sum(0) for sums in zip(*starmap(self._state, parts), strict=True))
            y = torch.empty(*x.shape[:2], *state.shape[1:3], device=x.device, dtype=queries.dtype)
            for part, places, rows in zip(x.split(_CHUNK, 1), queries.split(_CHUNK), y.split(_CHUNK, 1), strict=True):
                read, wave, weight = self._read(part, places, state, total)
                _gather(read, wave / weight[..., None], out=rows)
        # In float32 until here: 1 / eps is beyond float16.
        return self.projections.out(y.flatten(-2).to(state.dtype))

    def _state(
        self, context: Float[Tensor, "b m d"], wave: Float[Tensor, "m 1 2 1"], mask: Bool[Tensor, "b m"] | None
    ) -> tuple[Float[Tensor, "b h e f"], Float[Tensor, "b 2 h e"]]:
        """Σ_j φ(k_j) [v_j cos_j | v_j sin_j]ᵀ and Σ_j [cos_j, sin_j] φ(k_j)."""
        p = self.projections
        k = zero_padding(p.key(context, "relu"), mask).unflatten(-1, (p.heads, -1))
        v = p.value(context).unflatten(-1, (p.heads, -1))
        wave = wave.to(v.dtype)
        state = k.permute(0, 2, 3, 1) @ _Spread.apply(v, wave).transpose(1, 2)
        return state, (wave[:, 0, :, 0].mT @ k.flatten(-2)).unflatten(-1, (p.heads, -1))

    def _read(
        self,
        x: Float[Tensor, "b n d"],
        wave: Float[Tensor, "n 1 2 1"],
        state: Float[Tensor, "b h e f"],
        total: Float[Tensor, "b 2 h e"],
    ) -> tuple[Float[Tensor, "b n h f"], Float[Tensor, "n 1 2 1"], Float[Tensor, "b n h 1"]]:
        """What the queries read from the sums over the keys, where it goes to y, and the sums of weights."""
        p = self.projections
        q = p.query(x, "relu").unflatten(-1, (p.heads, -1))
        sums = torch.cat([head_dot(q, total[:, 0]), head_dot(q, total[:, 1])], -1)
        weight = (sums * wave[..., 0]).sum(-1, keepdim=True)
        return (q.transpose(1, 2) @ state).transpose(1, 2), wave, weight.clamp(min=self.eps)

    def _wave(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "n 1 2 1"]:
        """[cos, sin] of π/2 · i / M."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        place = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=dtype)
        angle = place * (math.pi / 2 / max(self.site.query_len, self.site.context_len))
        return torch.stack([angle.cos(), angle.sin()], -1)[:, None, :, None]


def _spread(x: Float[Tensor, "b n h e"], wave: Float[Tensor, "..."]) -> Float[Tensor, "b n h f"]:
    """[x cos | x sin]."""
    return (x[..., None, :] * wave).flatten(-2)


def _gather(
    x: Float[Tensor, "b n h f"], wave: Float[Tensor, "..."], out: Float[Tensor, "b n h e"] | None = None
) -> Float[Tensor, "b n h e"]:
    """a cos + b sin of x = [a | b]."""
    a, b = x.chunk(2, -1)
    if out is None and torch.compiler.is_compiling():  # makes one pass of it, and would take `out` to lie as x does
        return (a * wave[..., 0, :] + b * wave[..., 1, :]).contiguous()
    if out is None:  # heads side by side, as the maps want them, however the heads of x lie
        out = torch.empty(a.shape, device=x.device, dtype=torch.promote_types(a.dtype, wave.dtype))
    return torch.mul(a, wave[..., 0, :], out=out).addcmul_(b, wave[..., 1, :])


class _Spread(torch.autograd.Function):
    """[x cos | x sin], which is linear in x: x is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor) -> Tensor:
        ctx.save_for_backward(wave)
        return _spread(x, wave)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(gradient, *ctx.saved_tensors), None


class _Read(torch.autograd.Function):
    """y = (a cos + b sin) / weight of x = [a | b]; the derivative by the weight, -y / weight, needs y and not x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor, weight: Tensor) -> Tensor:
        wave = wave / weight[..., None]
        y = _gather(x, wave)
        ctx.save_for_backward(y, wave, weight)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        y, wave, weight = ctx.saved_tensors
        return _spread(gradient, wave), None, -(gradient * y).sum(-1, keepdim=True) / weight
