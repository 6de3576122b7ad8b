"""Normalisation of sequences in the layout `[b, d, n]`, channels before tokens."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.batch_statistics import moments, several_processes, update_running
from subquad.specs import Mask


class ChannelBatchNorm(nn.BatchNorm1d):
    """BatchNorm of each channel over the real tokens of the batch: mean and variance exclude padding.

    Where several processes share a batch, the statistics are those of the whole batch.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask = None) -> Float[Tensor, "b d n"]:
        if not self.training or (valid is None and not several_processes()):
            return super().forward(x)
        mean, variance, count = moments(x.mT.flatten(0, 1), None if valid is None else valid.flatten())
        update_running(self, mean, variance, count)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return ((x - mean[:, None]) * scale[:, None] + self.bias[:, None]).to(x.dtype)


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm of each token."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask = None) -> Float[Tensor, "b d n"]:
        return super().forward(x.mT).mT


NORMS: dict[str, type[ChannelBatchNorm] | type[ChannelLayerNorm]] = {
    "batch": ChannelBatchNorm,
    "layer": ChannelLayerNorm,
}
