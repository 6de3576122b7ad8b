"""Han et al. 2023, https://arxiv.org/abs/2308.00442, Eq. 4-8: similarities of focused features as an n x n matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.conv import naive_convolution


def focused(x: Tensor, scale: Tensor, power: int, eps: float) -> Tensor:
    r = (x.relu() + eps) / F.softplus(scale)
    return r.norm(dim=1, keepdim=True) * r**power / (r**power).norm(dim=1, keepdim=True)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, width: int | None = None
) -> tuple[Tensor, Tensor | None]:
    maps, n, parts = attention.projections, len(x), []
    keys = maps.key(x) if attention.positions is None else maps.key(x) + attention.positions[:n]
    q, k = (focused(t, attention.scale, attention.power, attention.eps).chunk(heads, 1) for t in (maps.query(x), keys))
    for h, v in enumerate(maps.value(x).chunk(heads, 1)):
        similarity = q[h] @ k[h].T
        local = [
            naive_convolution(v[:, [c]], kernel, width or n) + bias
            for c, (kernel, bias) in enumerate(zip(attention.local.weight[:, 0], attention.local.bias, strict=True))
        ]
        parts.append(similarity / (similarity.sum(1, keepdim=True) + n * attention.eps) @ v + torch.cat(local, 1))
    return maps.out(torch.cat(parts, 1)), carry
