"""BLRP: bidirectional long-range parser (Leotescu et al. 2024, https://arxiv.org/abs/2404.05210, Section 3)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.segment_recurrence import (
    Pass,
    SegmentEncoder,
    Segments,
    Swept,
    mapped,
    merged,
    steps_before,
)
from subquad.blocks.dynamic_projection import DynamicProjection
from subquad.blocks.embeddings import SinusoidalPositions
from subquad.blocks.multihead import CrossBlock, SelfBlock
from subquad.specs import DataSpec
from subquad.utils.setting_types import BelowOne, Count, NonNegative

Init = Literal["phi_residual", "phi_init_only", "pos"]


class BLRPEncoder(SegmentEncoder):
    """Reads a sequence segment by segment, forwards and then backwards, into l latent rows:

        X̃F_i = Θ_X(Θ_SELF(X_i), LF_{i-1}),  LF_0 = I;   LF_i = Θ_L(LF_{i-1}, [X̃F_i ; I]),   without I for i = 1
        X̃B_i = Θ_X(Θ_SELF(X_i), LB_{i+1}),  X̃B_T reads I;   LB_i = Θ_L(LB_{i+1}, [X̃F_i ; X̃B_i ; I])
        LB_T = Θ_L(LF_T, [X̃F_T ; X̃B_T])

    and predicts from LB_1. I = Φ(X) is a dynamic projection of the whole sequence (softmax over tokens); each pass has
    its own. Θ_SELF (`self_layers`), Θ_X and Θ_L are the pre-norm blocks of TLB. The printed Θ_L(X, L) is Θ_L(L, X).

    Θ_SELF does not read the latents, so that all segments are one batch for it. The queries of Θ_X, and the keys and
    values of X̃F_i and I in Θ_L, are also computed in one batch, once for both passes. Segments of padding are skipped:
    T is the last segment of a row that holds a token (`pad_aware`; without it, the last segment of the batch).

    The paper leaves most settings open; docs/deviations.md gives the reasons for the defaults.

    Args:
        dim: width of the model, d.
        heads: attention heads of each block.
        ffn: hidden width of the feed-forward nets.
        dropout: probability of dropping an output of a block, or an embedding.
        attention_dropout: probability of dropping an attention weight.
        segment: tokens of a segment, t.
        latents: latent rows, l.
        self_layers: blocks of Θ_SELF.
        direction: bi, or one pass: fwd predicts from LF_T; bwd starts at I and does not read X̃F.
        forward_init: phi_residual as above; phi_init_only leaves I out of Θ_L; pos starts from sinusoids, not I.
        backward_init: the same for the backward pass.
        latent_pos: with pos, latents start as sinusoids (once), or as 0 with sinusoids added at each step as in TLB.
        phi: heads and values of the dynamic projection (see DynamicProjection).
        phi_bias: whether Φ's linear map has a bias.
        phi_input: Φ reads the embeddings without positions (raw), or with positions.
        phi_share: each pass has its own Φ (separate), both use one I (identical), or one Φ reads the tokens with
            positions counted along the whole pass, so that the backward pass has its own I (siamese).
        share_directions: the passes share all weights except Φ's, those of Θ_L only, or none.
        pad_aware: whether segments of padding are skipped.
        position: positions of tokens inside a segment.
        token_std: standard deviation of the initial token embeddings.
        bias: whether the maps to queries, keys and values have a bias.
        scale: logits are divided by the root of the width of a head, or of the model.
        pool: how the latent rows become one vector.
        head_hidden: hidden width of the head; null: no hidden layer.
    """

    complexity = (
        "time O(n (t + l + l²/t) d + n d² + n h l d), memory O(n d + n l d / t), 2⌈n/t⌉ steps one after another"
    )

    def __init__(
        self, spec: DataSpec, dim: Count, heads: Count, ffn: Count, dropout: BelowOne = 0.0,
        attention_dropout: BelowOne = 0.0, segment: Count = 100, latents: Count = 100, self_layers: Count = 2,
        direction: Literal["bi", "fwd", "bwd"] = "bi", forward_init: Init = "phi_residual",
        backward_init: Init = "phi_residual", latent_pos: Literal["once", "each_step"] = "once",
        phi: Literal["per_head_value", "per_head", "single"] = "per_head_value", phi_bias: bool = False,
        phi_input: Literal["raw", "with_pos"] = "raw",
        phi_share: Literal["separate", "identical", "siamese"] = "separate",
        share_directions: Literal["all", "latent_only", "none"] = "all", pad_aware: bool = True,
        position: Literal["sinusoidal", "learned"] = "sinusoidal", token_std: NonNegative = 1.0, bias: bool = True,
        scale: Literal["d_head", "d_model"] = "d_head", pool: Literal["mean", "flatten", "first"] = "mean",
        head_hidden: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec, dim, segment, latents, dropout, position, token_std, pool, head_hidden)
        self.phi_input, self.pad_aware, self.pos_each_step = phi_input, pad_aware, latent_pos == "each_step"
        sizes = (dim, heads, ffn, dropout, attention_dropout, bias, scale)
        cross = partial(CrossBlock, *sizes)

        def within() -> nn.ModuleList:
            return nn.ModuleList(SelfBlock(*sizes) for _ in range(self_layers))

        first = second = Pass(within(), cross(), cross())
        if direction == "bi" and share_directions == "latent_only":
            second = Pass(within(), cross(), first.latent)
        if direction == "bi" and share_directions == "none":
            second = Pass(within(), cross(), cross())

        project = partial(DynamicProjection, dim, heads, latents, phi, phi_bias)
        ways = []
        if direction != "bwd":
            ways.append(_Way(first, None if forward_init == "pos" else project(), forward_init, backward=False))
        if direction != "fwd":
            ways.append(_Way(second, None if backward_init == "pos" else project(), backward_init, backward=True))
        if phi_share != "separate" and all(way.phi for way in ways):
            ways[-1].phi = ways[0].phi
        self.ways = nn.ModuleList(ways)
        self.latent_position = SinusoidalPositions(latents, dim)
        whole = math.ceil(spec.max_len / segment) * segment
        self.reading_position = SinusoidalPositions(whole, dim) if phi_share == "siamese" else None

    def latents_of(self, raw: Segments) -> Float[Tensor, "b l d"]:
        placed = mapped(raw, self.position)
        segments, source = mapped(placed, self.dropout), placed if self.phi_input == "with_pos" else raw
        first, *others = cast("list[_Way]", list(self.ways))
        within, initial = first.blocks.attend_within(segments), self._initial(first, source)
        swept = self._sweep(first, within, segments, start=initial, initial=initial)
        for way in others:
            if way.blocks.self_blocks is not first.blocks.self_blocks:
                within = way.blocks.attend_within(segments)
            if way.phi is None or way.phi is not first.phi or self.reading_position is not None:
                initial = self._initial(way, source)
            shared = way.blocks.latent is first.blocks.latent
            memories = swept.memories if shared else [way.blocks.latent.memory(x) for x in swept.outputs]
            swept = self._sweep(way, within, segments, start=swept.latent, initial=initial, earlier=memories)
        return swept.latent

    def _sweep(
        self, way: "_Way", within: Tensor, segments: Segments, start: Tensor, initial: Tensor,
        earlier: Sequence[Tensor] = (),
    ) -> Swept:  # fmt: skip
        return way.blocks.sweep(
            within,
            segments,
            start,
            initial,
            earlier=earlier,
            residual=way.init == "phi_residual",
            backward=way.backward,
            each_step=self.latent_position if way.init == "pos" and self.pos_each_step else nn.Identity(),
            pad_aware=self.pad_aware,
        )

    def _initial(self, way: "_Way", source: Segments) -> Float[Tensor, "b l d"]:
        """The initial latents I of a pass."""
        if way.phi is None:
            zeros = source.x.new_zeros(len(source.x), self.latent_len, source.x.shape[-1])
            return zeros if self.pos_each_step else self.latent_position(zeros)
        if self.reading_position is not None:
            places = steps_before(source, way.backward, self.pad_aware)[..., None] * source.x.shape[2]
            places = places + torch.arange(source.x.shape[2], device=places.device)
            source = Segments(source.x + self.reading_position.table[places], source.real, source.full)
        return way.phi(*merged(source))


class _Way(nn.Module):
    """One direction: its blocks, its Φ (None where it starts from positions), and how it uses I."""

    def __init__(self, blocks: Pass, phi: DynamicProjection | None, init: Init, backward: bool) -> None:
        super().__init__()
        self.blocks, self.phi, self.init, self.backward = blocks, phi, init, backward
