"""Choromanski et al. 2020, Eq. 5 and Lemma 1: random features, their n x m inner products divided by row sums."""

import torch
from torch import Tensor, nn


def softmax_features(x: Tensor, directions: Tensor) -> Tensor:
    """exp(wᵀx - ‖x‖²/2) / √M of scaled rows."""
    x = x / x.shape[1] ** 0.25
    return (x @ directions.T - x.square().sum(1, keepdim=True) / 2).exp() / len(directions) ** 0.5


def relu_features(x: Tensor, directions: Tensor, eps: float = 1e-3) -> Tensor:
    """ReLU(wᵀx) + eps of scaled rows."""
    return (x / x.shape[1] ** 0.25 @ directions.T).relu() + eps


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, feature_map: str
) -> tuple[Tensor, Tensor | None]:
    maps, directions = attention.projections, attention.directions
    features = {"softmax": softmax_features, "relu": relu_features}[feature_map]
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        weights = features(q[h], directions) @ features(k[h], directions).T
        parts.append(weights / weights.sum(1, keepdim=True) @ v[h])
    return maps.out(torch.cat(parts, 1)), carry
