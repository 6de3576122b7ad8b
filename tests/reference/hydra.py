"""Hwang et al. 2024, https://arxiv.org/abs/2407.09941, Section 3: the two states, token by token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def states(c: Tensor, b: Tensor, step: Tensor, x: Tensor, decay: Tensor) -> Tensor:
    """s of one head; c and b `[n, s]`, step `[n]`, x `[n, e]`."""
    state, read = x.new_zeros(b.shape[1], x.shape[1]), []
    for i in range(len(x)):
        state = (step[i] * decay).exp() * state + torch.outer(b[i], step[i] * x[i])
        read.append(c[i] @ state)
    return torch.stack(read)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    inner, state = attention.inner, attention.state
    z, mixed, steps = attention.project_in(x).split([inner, inner + 4 * state, 2 * heads], 1)
    weight = attention.conv.weight
    mixed = F.conv1d(mixed.T, weight, attention.conv.bias, padding=weight.shape[2] // 2, groups=len(weight)).T
    values, b, c, b_right, c_right = (mixed * mixed.sigmoid()).split([inner, *[state] * 4], 1)
    parts = []
    for h, v in enumerate(values.chunk(heads, 1)):
        left, right = ((steps[:, side * heads + h] + attention.step_bias[h]).exp().log1p() for side in (0, 1))
        decay, none = -attention.log_decay[h].exp(), v.new_zeros(1, v.shape[1])
        f = states(c, b, left, v, decay)
        g = states(c_right.flip(0), b_right.flip(0), right.flip(0), v.flip(0), decay).flip(0)
        own = (values @ attention.diagonal.weight[h] + attention.diagonal.bias[h])[:, None] * v
        parts.append(torch.cat([none, f[:-1]]) + torch.cat([g[1:], none]) + own)
    y = torch.cat(parts, 1)
    y = y / (y.square().mean(1, keepdim=True) + 1e-5).sqrt() * attention.norm.weight
    return attention.project_out(y * z * z.sigmoid()), carry
