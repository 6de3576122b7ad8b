"""Han et al. 2024, https://arxiv.org/abs/2412.06590, Eq. 5-7: the n x n weights of injective linear attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.conv import naive_convolution


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, width: int | None = None
) -> tuple[Tensor, Tensor | None]:
    maps, n, parts = attention.projections, len(x), []
    q, k, v, mean = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(x), maps.value(x), x.mean(0, keepdim=True)))
    of_heads = [linear.weight.chunk(heads) for linear in (attention.hidden, attention.kernels)]
    biases = [linear.bias.chunk(heads) for linear in (attention.hidden, attention.kernels)]
    for h in range(heads):
        similarity = q[h] @ k[h].T / q[h].shape[1] ** 0.5
        weights = similarity / n + (1 - similarity.sum(1, keepdim=True) / n) / n
        hidden = F.gelu(mean[h] @ of_heads[0][h].T + biases[0][h])
        kernels = (hidden @ of_heads[1][h].T + biases[1][h]).view(-1, *attention.taps)
        local = [naive_convolution(v[h][:, [c]], kernel, width or n) for c, kernel in enumerate(kernels)]
        parts.append(weights @ v[h] + torch.cat(local, 1))
    return maps.out(torch.cat(parts, 1)), carry
