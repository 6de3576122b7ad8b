"""Han et al. 2023, https://arxiv.org/abs/2312.08874, Section 4: two softmaxes with agents between them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.conv import naive_convolution


def bias(attention: nn.Module, side: str, head: int, n: int) -> Tensor | float:
    """[agents, n]: a map of 7 x 7 for each agent, interpolated to the grid, plus its row and its column."""
    if attention.grid is None:
        return 0.0
    table = getattr(attention, f"{side}_map")[head][None]
    whole = F.interpolate(table, size=attention.grid, mode="bilinear")[0]
    whole = whole + getattr(attention, f"{side}_rows")[head] + getattr(attention, f"{side}_columns")[head]
    return whole.flatten(1)[:, :n]


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    maps, n, grid, parts = attention.projections, len(x), attention.grid, []
    queries, keys, values = maps.query(x), maps.key(x), maps.value(x)
    side = math.isqrt(attention.agents)
    if grid is None:
        agents = F.adaptive_avg_pool1d(queries.T[None], attention.agents)[0].T
    else:
        agents = F.adaptive_avg_pool2d(queries.T.view(1, -1, *grid), (side, side))[0].flatten(1).T
    local = [
        naive_convolution(values[:, [c]], kernel, grid[1] if grid else n) + bias_
        for c, (kernel, bias_) in enumerate(zip(attention.local.weight[:, 0], attention.local.bias, strict=True))
    ]
    for h, (q, k, v, a) in enumerate(zip(*(t.chunk(heads, 1) for t in (queries, keys, values, agents)), strict=True)):
        scale = q.shape[1] ** -0.5
        encoded = (a @ k.T * scale + bias(attention, "encode", h, n)).softmax(1) @ v
        back = bias(attention, "decode", h, n)
        parts.append((q @ a.T * scale + (back.T if isinstance(back, Tensor) else back)).softmax(1) @ encoded)
    return maps.out(torch.cat(parts, 1) + torch.cat(local, 1)), carry
