"""BLRP: bidirectional long-range parser (Leotescu et al. 2024, https://arxiv.org/abs/2404.05210, Section 3)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.segments import (
    Pass,
    SegmentEncoder,
    Segments,
    Swept,
    choose,
    mapped,
    merged,
    self_blocks,
    steps_before,
)
from subquad.blocks.dynamic_projection import DynamicProjection
from subquad.blocks.embeddings import SinusoidalPositions
from subquad.blocks.multihead import CrossBlock, SelfBlock
from subquad.specs import DataSpec

Init = Literal["phi_residual", "phi_init_only", "pos"]


class BLRPEncoder(SegmentEncoder):
    """Reads a sequence segment by segment, forwards and then backwards, into l latent rows:

        X̃F_i = Θ_X(Θ_SELF(X_i), LF_{i-1}),  LF_0 = I;   LF_i = Θ_L(LF_{i-1}, [X̃F_i ; I]),   without I for i = 1
        X̃B_i = Θ_X(Θ_SELF(X_i), LB_{i+1}),  X̃B_T reads I;   LB_i = Θ_L(LB_{i+1}, [X̃F_i ; X̃B_i ; I])
        LB_T = Θ_L(LF_T, [X̃F_T ; X̃B_T])

    and predicts from LB_1. I = Φ(X) is a dynamic projection of the whole sequence (softmax over tokens), one for each
    pass. Θ_SELF (`self_layers`), Θ_X and Θ_L are the pre-norm blocks of TLB. In print Θ_L(X, L) is used as Θ_L(L, X).

    Θ_SELF does not see the latents, so all segments go through it in one batch, as do the queries of Θ_X and the keys
    and values of X̃F_i and I in Θ_L, which are made once for both passes. Segments of padding are no steps: the last
    segment of a row that holds a token plays T (`pad_aware`; without it, the last one of the batch does).

    Keys, the paper's best or likeliest first (docs/deviations.md has the reasons):
        direction: "bi"; "fwd" predicts from LF_T; "bwd" starts at I and sees no X̃F.
        forward_init, backward_init: "phi_residual"; "phi_init_only" keeps I out of Θ_L; "pos" puts sinusoids in its
            place and keeps them out of Θ_L.  latent_pos: "pos" adds them "once", or to 0 and at "each_step" as TLB.
        phi: "per_head_value", "per_head", "single" (see DynamicProjection); phi_bias.
        phi_input: "raw" embeddings, or "with_pos".
        phi_share: "separate" Φ for each pass; "identical" I for both; "siamese" one Φ that reads the tokens with
            positions counted along the whole pass, so that the backward pass has its own I.
        share_directions: "all" weights but those of Φ; "latent_only" Θ_L; "none".
        scale: "d_head", "d_model".  pool: "mean", "flatten", "first".  position: "sinusoidal", "learned".

    Released code: none.
    """

    complexity = (
        "time O(n (t + l + l²/t) d + n d² + n h l d), memory O(n d + n l d / t), 2⌈n/t⌉ steps one after another"
    )

    def __init__(
        self,
        spec: DataSpec,
        dim: int,
        heads: int,
        ffn: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        segment: int = 100,
        latents: int = 100,
        self_layers: int = 2,
        direction: Literal["bi", "fwd", "bwd"] = "bi",
        forward_init: Init = "phi_residual",
        backward_init: Init = "phi_residual",
        latent_pos: Literal["once", "each_step"] = "once",
        phi: Literal["per_head_value", "per_head", "single"] = "per_head_value",
        phi_bias: bool = False,
        phi_input: Literal["raw", "with_pos"] = "raw",
        phi_share: Literal["separate", "identical", "siamese"] = "separate",
        share_directions: Literal["all", "latent_only", "none"] = "all",
        pad_aware: bool = True,
        position: Literal["sinusoidal", "learned"] = "sinusoidal",
        token_std: float = 1.0,
        bias: bool = True,
        scale: Literal["d_head", "d_model"] = "d_head",
        pool: Literal["mean", "flatten", "first"] = "mean",
        head_hidden: int | None = None,
    ) -> None:
        super().__init__(spec, dim, segment, latents, dropout, position, token_std, pool, head_hidden)
        choose("direction", direction, ("bi", "fwd", "bwd"))
        for key, value in (("forward_init", forward_init), ("backward_init", backward_init)):
            choose(key, value, ("phi_residual", "phi_init_only", "pos"))
        choose("latent_pos", latent_pos, ("once", "each_step"))
        choose("phi_input", phi_input, ("raw", "with_pos"))
        choose("phi_share", phi_share, ("separate", "identical", "siamese"))
        choose("share_directions", share_directions, ("all", "latent_only", "none"))
        self.phi_input, self.pad_aware, self.pos_each_step = phi_input, pad_aware, latent_pos == "each_step"
        sizes = (dim, heads, ffn, dropout, attention_dropout, bias, scale)
        within, cross = partial(self_blocks, self_layers, partial(SelfBlock, *sizes)), partial(CrossBlock, *sizes)
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
            memories = swept.memories if shared else [way.blocks.latent.memory(x) for x in swept.seen]
            swept = self._sweep(way, within, segments, start=swept.latent, initial=initial, earlier=memories)
        return swept.latent

    def _sweep(
        self,
        way: "_Way",
        within: Tensor,
        segments: Segments,
        start: Tensor,
        initial: Tensor,
        earlier: Sequence[Tensor] = (),
    ) -> Swept:
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
        """I of a pass."""
        if way.phi is None:
            zeros = source.x.new_zeros(len(source.x), self.latent_len, source.x.shape[-1])
            return zeros if self.pos_each_step else self.latent_position(zeros)
        if self.reading_position is not None:
            places = steps_before(source, way.backward, self.pad_aware)[..., None] * source.x.shape[2]
            places = places + torch.arange(source.x.shape[2], device=places.device)
            source = Segments(source.x + self.reading_position.table[places], source.real, source.full)
        return way.phi(*merged(source))


class _Way(nn.Module):
    """One direction: its blocks, its Φ (None where it starts from positions), the use of I, and where it goes."""

    def __init__(self, blocks: Pass, phi: DynamicProjection | None, init: Init, backward: bool) -> None:
        super().__init__()
        self.blocks, self.phi, self.init, self.backward = blocks, phi, init, backward
