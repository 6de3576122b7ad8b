"""Xiong et al. 2021, Eq. 11-14: three softmax matrices written out, the middle one inverted, and a convolution."""

import math

import torch
from torch import Tensor, nn


def means(rows: Tensor, segment: int) -> Tensor:
    """The mean of each segment of `segment` rows; the last one may be shorter."""
    return torch.stack([part.mean(0) for part in rows.split(segment)])


def inverse(a: Tensor, iterations: int | None) -> Tensor:
    """The pseudo-inverse: exact for None."""
    if iterations is None:
        return torch.linalg.pinv(a)
    eye = torch.eye(len(a), dtype=a.dtype)
    z = a.T / (a.sum(0).max() * a.sum(1).max())
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def filtered(rows: Tensor, taps: Tensor) -> Tensor:
    """out_i = Σ_t taps_t rows_{i + t - half}, rows outside counting as 0."""
    half = len(taps) // 2
    out = []
    for i in range(len(rows)):
        near = [(t, i + t - half) for t in range(len(taps)) if 0 <= i + t - half < len(rows)]
        out.append(sum(taps[t] * rows[j] for t, j in near))
    return torch.stack(out)


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    landmarks: int,
    query_len: int,
    context_len: int,
    iterations: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`iterations`: None for the exact pseudo-inverse."""
    maps = attention.projections
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        scale = math.sqrt(q[h].shape[1])
        q_means, k_means = means(q[h], -(-query_len // landmarks)), means(k[h], -(-context_len // landmarks))
        z = inverse((q_means @ k_means.T / scale).softmax(1), iterations)
        y = (q[h] @ k_means.T / scale).softmax(1) @ z @ (q_means @ k[h].T / scale).softmax(1) @ v[h]
        parts.append(y if attention.filters is None else y + filtered(v[h], attention.filters[h]))
    return maps.out(torch.cat(parts, 1)), carry
