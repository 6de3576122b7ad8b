"""The time-series transformer of Zerveas et al. 2021 (https://arxiv.org/abs/2010.02803, released code)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import AttentionFactory, Carry
from subquad.backbones.encoder import Encoder
from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.embeddings import LearnedPositions, SeriesEmbedding, SinusoidalPositions
from subquad.blocks.head import flatten_tokens
from subquad.blocks.layer import TransformerLayer
from subquad.ops.batch_statistics import moments, several_processes, update_running
from subquad.specs import DataSpec, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import BelowOne, Count


class TokenBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d of each channel over batch and time, including padding, as in the released code.

    Where several processes share a batch, the statistics are those of the whole batch.
    """

    def forward(self, x: Tokens) -> Tokens:
        rows = x.flatten(0, 1)
        if not (self.training and several_processes()):
            return super().forward(rows).view_as(x)
        mean, variance, count = moments(rows)
        update_running(self, mean, variance, count)
        weight = self.weight * torch.rsqrt(variance + self.eps)
        return torch.addcmul(self.bias - mean * weight, x, weight).to(x.dtype)


class MVTSEncoder(Encoder):
    """Maps series `[b, n, channels]` to `[b, outputs]`: class logits, or one value.

    A linear map times √d, positions and dropout; post-norm layers; GELU and dropout; padding set to 0; a linear map of
    all steps. norm: "batch", as in the paper, or "layer". final_norm: adds a LayerNorm after the last layer.
    """

    def __init__(
        self, spec: DataSpec, attention: AttentionFactory | None, layers: Count, dim: Count, heads: Count, ffn: Count,
        dropout: BelowOne = 0.1, norm: Literal["batch", "layer"] = "batch",
        position: Literal["learned", "sinusoidal"] = "learned", final_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if spec.channels is None:
            raise UserError(
                "The backbone mvts reads real-valued series, and these data are tokens; choose backbone=sequence."
            )
        self.max_len = spec.max_len
        self.embed = SeriesEmbedding(spec.channels, dim)
        # The released code draws learned positions from U(-0.02, 0.02); this standard deviation is that distribution's.
        learned = LearnedPositions(spec.max_len, dim, std=0.02 / math.sqrt(3))
        self.position = learned if position == "learned" else SinusoidalPositions(spec.max_len, dim)
        self.dropout = Dropout(dropout)

        def layer(number: int) -> TransformerLayer:
            site = Site(
                pattern=Pattern.SELF, dim=dim, heads=heads, query_len=spec.max_len, context_len=spec.max_len,
                layer=number, layers=layers, dropout=dropout,
            )  # fmt: skip
            made = None if attention is None else attention(site=site)
            return TransformerLayer(
                made, dim, ffn, dropout, "post", TokenBatchNorm if norm == "batch" else nn.LayerNorm
            )

        self.layers = nn.ModuleList(layer(i) for i in range(layers))
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.feature_dim = spec.max_len * dim
        self.head = nn.Linear(self.feature_dim, spec.outputs)

    def features(self, inputs: Float[Tensor, "b n c"], valid: Mask) -> Float[Tensor, "b f"]:
        x = self.dropout(self.position(self.embed(inputs)))
        carry: Carry = None
        for layer in self.layers:
            x, carry = layer(x, Masks(valid, valid), carry)
        return flatten_tokens(self.dropout(F.gelu(self.norm(x))), valid, self.max_len)
