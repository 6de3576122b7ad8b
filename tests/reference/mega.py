"""Ma et al. 2022, https://arxiv.org/abs/2209.10655, Section 3: averages token by token, then chunks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def average(attention: nn.Module, x: Tensor, side: int) -> Tensor:
    """Eq. 3 to 5 in one direction."""
    alpha, delta = attention.inflow[side].sigmoid(), attention.damping[side].sigmoid()
    state, rows = torch.zeros_like(alpha), []
    for token in x:
        state = alpha * attention.into[side] * token[:, None] + (1 - alpha * delta) * state
        rows.append((attention.out_of[side] * state).sum(1) / math.sqrt(alpha.shape[1]))
    return torch.stack(rows)


def layer(attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
    moved = F.silu(average(attention, x, 0) + average(attention, x.flip(0), 1).flip(0) + attention.skip * x)
    gate, z, reset, hidden = attention.from_average(moved).split(attention.sizes, 1)
    q, k = (F.silu(z) * scale + shift for scale, shift in zip(attention.scale, attention.shift, strict=True))
    size, read, middle = attention.chunk or len(x), [], len(attention.bias) // 2
    for start in range(0, len(x), size):
        own = slice(start, min(start + size, len(x)))
        n = own.stop - own.start
        bias = torch.stack([torch.stack([attention.bias[middle + j - i] for j in range(n)]) for i in range(n)])
        if attention.function == "softmax":
            weights = (q[own] @ k[own].T / math.sqrt(q.shape[1]) + bias).softmax(1)
        else:
            logits = (q[own] @ k[own].T / n + bias - math.sqrt(0.5)) / math.sqrt(0.25 / math.pi)
            weights = torch.special.ndtr(logits)
        read.append(weights @ F.silu(attention.to_value(x[own])))
    hidden = F.silu(hidden + attention.from_values(torch.cat(read) * F.silu(reset)))
    return gate.sigmoid() * (hidden - x), carry
