"""Chen et al. 2021, Algorithm 1: the n x n matrix of estimates, exact where the window is, its rows normalised."""

import torch
from torch import Tensor, nn


def features(x: Tensor, directions: Tensor) -> Tensor:
    """φ of every row, with both signs of every direction."""
    x = x / x.shape[1] ** 0.25
    along = x @ directions.T
    both = torch.cat([along, -along], 1)
    return (both - x.square().sum(1, keepdim=True) / 2).exp() / both.shape[1] ** 0.5


def performer(q: Tensor, k: Tensor, v: Tensor, directions: Tensor) -> Tensor:
    """Attention with the estimates alone."""
    estimates = features(q, directions) @ features(k, directions).T
    return estimates / estimates.sum(1, keepdim=True) @ v


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, window: int
) -> tuple[Tensor, Tensor | None]:
    maps, parts = attention.projections, []
    heads_of = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    places = torch.arange(len(x))
    offset = places - places[:, None]
    inside = (offset >= -(window // 2)) & (offset < (window + 1) // 2)
    for q, k, v in zip(*heads_of, strict=True):
        estimates = features(q, attention.directions) @ features(k, attention.directions).T
        weights = torch.where(inside, (q @ k.T / q.shape[1] ** 0.5).exp(), estimates)
        parts.append(weights / weights.sum(1, keepdim=True) @ v)
    return maps.out(torch.cat(parts, 1)), carry
