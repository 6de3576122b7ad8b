"""Puri et al. 2025, https://arxiv.org/abs/2508.12594, Section 3: the n x n product of the two softmaxes."""

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    parts = []
    for latent, k, v in zip(
        attention.latent, attention.key(x).chunk(heads, 1), attention.value(x).chunk(heads, 1), strict=True
    ):
        logits = latent @ k.T
        parts.append(logits.T.softmax(1) @ logits.softmax(1) @ v)
    return attention.out(torch.cat(parts, 1)), carry
