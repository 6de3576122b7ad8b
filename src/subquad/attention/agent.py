"""Agent attention (Han et al. 2023, https://arxiv.org/abs/2312.08874, Section 4)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.depthwise import depthwise
from subquad.ops.masks import zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Odd


class Agent(StatelessAttention):
    """y = softmax(Q Aᵀ / √d_h + B_2) softmax(A Kᵀ / √d_h + B_1) V + DWC(V) in each head, with agents A = pool(Q).

    The m agents are means of the queries of m equal parts of the real tokens, cut as in adaptive average pooling (parts
    may overlap). DWC is a depthwise convolution of the values. If there is a `site.grid`, parts are rectangles, the
    convolution is over the grid, and the logits have learned biases B: a 7 x 7 map for each agent, interpolated to the
    grid, plus one number for each row and each column. Otherwise parts and convolution are along the tokens, and there
    are no biases.

    Args:
        agents: m; with a grid, a square number.
        kernel: taps of DWC along each axis, odd.

    Examples:
        >>> import torch
        >>> from subquad import Agent
        >>> layer = Agent(dim=64, heads=4, agents=16)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: square images only, no padding masks; a class token has biases of its own and is in no agent. Grids
    here have no class token.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n m d + n d²), memory O(n (d + h m))"

    def __init__(self, site: Site, agents: Count = 49, kernel: Odd = 3) -> None:
        super().__init__(site)
        self.agents, self.grid = agents, site.grid
        self.projections = Projections(site.dim, site.heads)
        if site.grid:
            if math.isqrt(agents) ** 2 != agents:
                raise UserError(f"attention.agents is {agents}; on a grid choose a square number, such as 16 or 49.")
            self.fix_grid()
            height, width = site.grid
            sizes = {"map": (7, 7), "rows": (height, 1), "columns": (1, width)}
            for side in ("encode", "decode"):
                for name, size in sizes.items():
                    table = nn.init.trunc_normal_(torch.empty(site.heads, agents, *size), std=0.02)
                    self.register_parameter(f"{side}_{name}", nn.Parameter(table))
        self.local = nn.Conv2d(site.dim, site.dim, (kernel, kernel) if site.grid else (1, kernel), groups=site.dim)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, real = self.projections, masks.context
        q, v = zero_padding(p.query(x), real), zero_padding(p.value(context), real)
        parts = self._parts(real, q)
        pooled = parts.to(q.dtype) @ q / parts.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)
        agents, queries, keys, values = (p.split(t) for t in (pooled, q, p.key(context), v))
        encoded = softmax_attention(agents, keys, values, self._encoding(real, q), self._dropout)
        bias = self._bias("decode", q)
        y = softmax_attention(queries, agents, encoded, None if bias is None else bias.mT, self._dropout)
        local = depthwise(v, self.local.weight[:, 0], self.local.bias, self.grid[1] if self.grid else None)
        return p.out(y.transpose(1, 2).flatten(-2) + local)

    def _parts(self, real: Mask, q: Tokens) -> Bool[Tensor, "c m n"]:
        """Which real tokens an agent is the mean of."""
        places = torch.arange(q.shape[1], device=q.device)
        if self.grid:
            side, (height, width) = math.isqrt(self.agents), self.grid
            rows, columns = (
                _windows(i[None], n, side) for i, n in ((places // width, height), (places % width, width))
            )
            parts = (rows[:, :, None] & columns[:, None]).flatten(1, 2)
            return parts if real is None else parts & real[:, None]
        if real is None:
            return _windows(places[None], q.shape[1], self.agents)
        return _windows(real.cumsum(1) - 1, real.sum(1)[:, None, None], self.agents) & real[:, None]

    def _encoding(self, real: Mask, q: Tokens) -> Tensor | None:
        """The mask of the first softmax, or its biases with the mask in them."""
        bias, seen = self._bias("encode", q), None if real is None else real[:, None, None, :]
        if bias is None or seen is None:
            return seen if bias is None else bias
        return torch.where(seen, bias, torch.finfo(bias.dtype).min)

    def _bias(self, side: str, q: Tokens) -> Float[Tensor, "1 h m n"] | None:
        if self.grid is None:
            return None
        table, rows, columns = (getattr(self, f"{side}_{name}") for name in ("map", "rows", "columns"))
        bias = F.interpolate(table, size=self.grid, mode="bilinear") + rows + columns
        return bias.flatten(2)[None, ..., : q.shape[1]].to(q.dtype)


def _windows(places: Tensor, length: Tensor | int, parts: int) -> Bool[Tensor, "b m n"]:
    """Which part of ⌊a n / m⌋ ... ⌈(a + 1) n / m⌉ - 1 each place is in; parts of fewer than m tokens overlap."""
    part = torch.arange(parts, device=places.device)[:, None]
    first, beyond = part * length // parts, -(-(part + 1) * length // parts)
    return (places[:, None] >= first) & (places[:, None] < beyond)
