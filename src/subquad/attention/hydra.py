"""Hydra: bidirectional Mamba-2 (Hwang et al. 2024, https://arxiv.org/abs/2407.09941, Section 3)."""

import torch
import torch.nn.functional as F
from torch import nn

from subquad.attention.base import Affine, StatelessAttention
from subquad.ops.chunked_scan import both_ways, gated_scan, step_biases
from subquad.ops.depthwise import depthwise
from subquad.ops.heads import split_heads
from subquad.ops.masks import zero_padding
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Odd


class Hydra(StatelessAttention):
    """A quasiseparable matrix: two selective state space models that leave out the diagonal, which is separate.

        [z, x, B, C, B', C', Δ, Δ'] = W u,   [x, B, C, B', C'] ← SiLU(conv(·)),   Δ ← softplus(Δ + b)
        s_i = Σ_{j≤i} exp(a Σ_{t=j+1..i} Δ_t) (C_i · B_j) Δ_j x_j   in each head, a < 0; s'_i likewise from the right
        y_i = s_{i-1} + s'_{i+1} + (w · x_i + D) x_i
        out = W_O (RMSNorm(y) ⊙ SiLU(z))

    x and z are `expand` d wide. The heads share B and C, one of each for both directions. The shift comes after the
    sum: token i is read with C_{i-1} and C_{i+1}. Padding is 0 before the convolution and has Δ = 0, so that it leaves
    every state as it is, whatever the convolution makes of it. `site.dropout` is unused.

    Args:
        expand: width of x and z as a multiple of d.
        state: width of B and C, the rows of a head's state.
        kernel: taps of the depthwise convolution, odd.

    Why the fast path is equal: sums inside a chunk are products of matrices, and one state is passed on to the next.

    Examples:
        >>> import torch
        >>> from subquad import Hydra
        >>> layer = Hydra(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: needs a GPU; no padding masks; heads are 64 features wide whatever the model's are.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d (d + s)), memory O(n (d + s))"

    def __init__(self, site: Site, expand: Count = 2, state: Count = 64, kernel: Odd = 7) -> None:
        super().__init__(site)
        inner, heads = expand * site.dim, site.heads
        self.inner, self.state = inner, state
        self.project_in = Affine(site.dim, 2 * inner + 4 * state + 2 * heads, bias=False)
        self.conv = nn.Conv1d(inner + 4 * state, inner + 4 * state, kernel, groups=inner + 4 * state)
        self.step_bias = nn.Parameter(step_biases(heads))
        self.log_decay = nn.Parameter(torch.zeros(heads))
        self.diagonal = nn.Linear(inner, heads)
        nn.init.ones_(self.diagonal.bias)
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.project_out = Affine(inner, site.dim, bias=False)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        heads, real, sizes = self.site.heads, masks.context, [self.state] * 4
        z, mixed, steps = self.project_in(zero_padding(x, real)).split(
            [self.inner, self.inner + sum(sizes), 2 * heads], -1
        )
        mixed = F.silu(depthwise(mixed, self.conv.weight, self.conv.bias))
        values, *maps = mixed.split([self.inner, *sizes], -1)
        steps = steps.to(torch.promote_types(steps.dtype, torch.float32)).unflatten(-1, (2, heads))
        steps = zero_padding(F.softplus(steps + self.step_bias).flatten(-2), real).mT.unflatten(1, (2, heads))
        v = split_heads(values, heads)
        b, c, b_right, c_right = (t[:, None] for t in maps)
        written = tuple(step[..., None] * v for step in steps.unbind(1))
        gates = tuple(-self.log_decay.exp()[:, None] * step for step in steps.unbind(1))
        left, right = both_ways(gated_scan, (c, c_right), (b, b_right), written, gates, axes=(-2, -2, -2, -1))
        y = F.pad(left, (0, 0, 1, -1)) + F.pad(right, (0, 0, -1, 1)) + self.diagonal(values).mT[..., None] * v
        y = self.norm(y.transpose(1, 2).flatten(-2).to(self.norm.weight.dtype))
        return self.project_out((y * F.silu(z)).to(x.dtype))
