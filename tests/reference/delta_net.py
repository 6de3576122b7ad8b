"""Yang et al. 2024, https://arxiv.org/abs/2412.06464, Eq. 8, token by token, from either end."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def read(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_gate: Tensor) -> Tensor:
    """y of one head in one direction."""
    state, rows, eye = q.new_zeros(k.shape[1], v.shape[1]), [], torch.eye(k.shape[1], dtype=k.dtype)
    for i in range(len(q)):
        kept = log_gate[i].exp() * (eye - beta[i] * torch.outer(k[i], k[i]))
        state = kept @ state + beta[i] * torch.outer(k[i], v[i])
        rows.append(q[i] @ state / q.shape[1] ** 0.5)
    return torch.stack(rows)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    p, parts = attention.projections, []
    maps = [m(x) for m in (p.query, p.key, p.value)]
    for i, taps in enumerate(attention.taps):
        maps[i] = F.silu(F.conv1d(maps[i].T, taps, padding=taps.shape[2] // 2, groups=len(taps)).T)
    beta, log_gate = attention.strength(x).sigmoid(), torch.zeros(len(x), 2 * heads, dtype=x.dtype)
    if attention.decay is not None:
        log_gate = -attention.log_rate.exp() * (attention.decay(x) + attention.step_bias).exp().log1p()
    for h, (q, k, v) in enumerate(zip(*(m.chunk(heads, 1) for m in maps), strict=True)):
        q, k = (t / (t.square().sum(1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
        left = read(q, k, v, beta[:, h], log_gate[:, h])
        other = (t.flip(0) for t in (q, k, v, beta[:, heads + h], log_gate[:, heads + h]))
        y = (left + read(*other).flip(0)) / 2
        parts.append(y / (y.square().mean(1, keepdim=True) + 1e-5).sqrt() * attention.norm.weight)
    y = torch.cat(parts, 1)
    if attention.gate is not None:
        y = y * F.silu(attention.gate(x))
    return p.out(y), carry
