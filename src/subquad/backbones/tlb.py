"""TLB: temporal latent bottleneck (Didolkar et al. 2022, https://arxiv.org/abs/2205.14794, Section 2)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.segment_recurrence import Pass, SegmentEncoder, Segments, mapped
from subquad.blocks.embeddings import SinusoidalPositions
from subquad.blocks.multihead import CrossBlock, SelfBlock
from subquad.specs import DataSpec
from subquad.utils.setting_types import BelowOne, Count, NonNegative


class TLBEncoder(SegmentEncoder):
    """Reads a sequence segment by segment into l latent rows, which are 0 at first:

        L ← L + positions;   X̃_i = Θ_X(Θ_SELF(X_i), L);   L ← Θ_L(L, X̃_i)      for i = 1 ... ⌈n/t⌉

    and predicts from the mean of LayerNorm(L) through one hidden layer. Θ_SELF is attention inside a segment
    (`self_layers` layers), Θ_X lets a segment read the latents, Θ_L lets the latents read the segment; all are pre-norm
    blocks with a feed-forward net, and share their weights over the segments. Queries, keys and values have no bias.

    Θ_SELF does not read the latents, so that all segments are one batch for it; only Θ_X and Θ_L are sequential.
    A segment of padding does not change the latents, and n need not be a multiple of t.

    Released code: the same blocks and sizes. It requires n to be a multiple of t, adds positions to the latents even at
    segments of padding, and on Pathfinder counts positions over the whole sequence.

    Args:
        dim: width of the model, d.
        heads: attention heads of each block.
        ffn: hidden width of the feed-forward nets.
        dropout: probability of dropping an output of a block, or an embedding.
        attention_dropout: probability of dropping an attention weight.
        segment: tokens of a segment, t.
        latents: latent rows, l.
        self_layers: blocks of Θ_SELF.
        position: positions of tokens inside a segment.
        token_std: standard deviation of the initial token embeddings.
        bias: whether the maps to queries, keys and values have a bias.
        scale: logits are divided by the root of the width of a head, or of the model.
        pool: how the latent rows become one vector.
        head_hidden: hidden width of the head; null: no hidden layer.
    """

    complexity = "time O(n (t + l) d + n d²), memory O(n d + n l d / t), ⌈n/t⌉ steps one after another"

    def __init__(
        self, spec: DataSpec, dim: Count, heads: Count, ffn: Count, dropout: BelowOne = 0.0,
        attention_dropout: BelowOne = 0.0, segment: Count = 100, latents: Count = 100, self_layers: Count = 2,
        position: Literal["sinusoidal", "learned"] = "sinusoidal", token_std: NonNegative = 1.0, bias: bool = False,
        scale: Literal["d_head", "d_model"] = "d_head", pool: Literal["mean", "flatten", "first"] = "mean",
        head_hidden: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec, dim, segment, latents, dropout, position, token_std, pool, head_hidden)
        sizes = (dim, heads, ffn, dropout, attention_dropout, bias, scale)
        layers = nn.ModuleList(SelfBlock(*sizes) for _ in range(self_layers))
        self.blocks = Pass(layers, CrossBlock(*sizes), CrossBlock(*sizes))
        self.latent_position: nn.Module = SinusoidalPositions(latents, dim)

    def latents_of(self, raw: Segments) -> Float[Tensor, "b l d"]:
        segments = mapped(mapped(raw, self.position), self.dropout)
        zeros = raw.x.new_zeros(len(raw.x), self.latent_len, raw.x.shape[-1])
        within = self.blocks.attend_within(segments)
        return self.blocks.sweep(within, segments, zeros, zeros, each_step=self.latent_position).latent
