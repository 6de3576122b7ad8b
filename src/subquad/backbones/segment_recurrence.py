"""The common part of TLB and BLRP: a sequence cut into segments, and latents carried from segment to segment."""

import abc
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.backbones.encoder import StandaloneEncoder
from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.embeddings import embedding, positions
from subquad.blocks.head import output_head
from subquad.blocks.multihead import CrossBlock
from subquad.ops.masks import zero_padding
from subquad.ops.pooling import window_mask, windows
from subquad.specs import DataSpec, Mask, Tokens
from subquad.utils.setting_types import BelowOne, Count, NonNegative


class Segments(NamedTuple):
    """A batch cut into s segments of t tokens; the last segment is padded.

    x: embeddings, 0 at padding. real: True at real tokens, with a batch axis of 1 where no row has padding.
    full: there is no padding at all, so that no mask is needed.
    """

    x: Float[Tensor, "b s t d"]
    real: Bool[Tensor, "c s t"]
    full: bool


def mapped(segments: Segments, function: Callable[[Tensor], Tensor]) -> Segments:
    """Applies a function of `[b·s, t, d]` to the embeddings of the segments."""
    x = segments.x
    return Segments(function(x.flatten(0, 1)).unflatten(0, x.shape[:2]), segments.real, segments.full)


def merged(segments: Segments) -> tuple[Tokens, Bool[Tensor, "c n"] | None]:
    """The tokens as one sequence again, with their mask."""
    return segments.x.flatten(1, 2), None if segments.full else segments.real.flatten(1)


def steps_before(segments: Segments, backward: bool, pad_aware: bool) -> Int[Tensor, "c s"]:
    """The number of segments that a pass has read before each segment; `pad_aware` does not count those of padding."""
    some = segments.real.any(-1)
    steps = (some if pad_aware else torch.ones_like(some)).long()
    return steps.flip(1).cumsum(1).flip(1) - steps if backward else steps.cumsum(1) - steps


def _within(segments: Segments) -> Bool[Tensor, "bs t"] | None:
    """Masks of all segments as one batch. A segment of padding attends to itself, and nothing reads the result."""
    if segments.full:
        return None
    visible = segments.real | ~segments.real.any(-1, keepdim=True)
    return visible.expand(len(segments.x), -1, -1).flatten(0, 1)


class Swept(NamedTuple):
    """The result of a pass: the last latents, all X̃_i, and their keys and values for Θ_L."""

    latent: Tensor
    outputs: list[Tensor]
    memories: list[Tensor]


class Pass(nn.Module):
    """One pass over the segments. Θ_SELF: `self_blocks`; Θ_X: `segment`, reads the latents; Θ_L: `latent`, reads X̃."""

    def __init__(self, self_blocks: nn.ModuleList, segment: CrossBlock, latent: CrossBlock) -> None:
        super().__init__()
        self.self_blocks, self.segment, self.latent = self_blocks, segment, latent

    def attend_within(self, segments: Segments) -> Float[Tensor, "b s t d"]:
        """Θ_SELF of all segments in one batch; it does not read the latents."""
        x, mask = segments.x.flatten(0, 1), _within(segments)
        for block in self.self_blocks:
            x = block(x, mask)
        return x.unflatten(0, segments.x.shape[:2])

    def sweep(
        self, within: Float[Tensor, "b s t d"], segments: Segments, start: Float[Tensor, "b l d"],
        initial: Float[Tensor, "b l d"], *, residual: bool = False, backward: bool = False,
        earlier: Sequence[Tensor] = (), each_step: Callable[[Tensor], Tensor] = lambda latent: latent,
        pad_aware: bool = True,
    ) -> Swept:  # fmt: skip
        """Carries the latents over the segments; only this part is sequential.

        X̃_i = Θ_X(X_i, L), where L is `initial` at the first step of a row and the latents of the step before later on;
        L ← Θ_L(L, [X̃_i ; earlier_i ; initial]), where L is `start` at the first step.

        With `residual`, `initial` is among the keys from the second step on. `earlier` holds the keys and values, for
        Θ_L, of the X̃_i of another pass. `each_step` is applied to the latents before every step (TLB adds positions).
        A segment of padding does not change the latents of its row, and the first step is the first segment that holds
        a token (without `pad_aware`: the first segment of the batch).
        """
        order = list(range(segments.x.shape[1]))
        some = segments.real.any(-1)
        # False at the first step of a row, which reads `initial`.
        begun = steps_before(segments, backward, pad_aware) > 0
        keys = [segments.real, *([segments.real] if earlier else [])]
        if residual:
            keys.append(begun[..., None].expand(-1, -1, initial.shape[1]))
        # A segment without tokens reads everything, so that its softmax is finite; the result is dropped below.
        mask = torch.cat(keys, 2) | ~some[..., None]
        # unbind, not indexing: the gradient of one step would else be as large as the whole sequence.
        parts, queries = within.unbind(1), self.segment.queries(within).unbind(1)
        constant = [self.latent.memory(initial)] if residual else []

        latent = start
        outputs, memories = [within] * len(order), [within] * len(order)
        for i in reversed(order) if backward else order:
            read = latent if start is initial else torch.where(begun[:, i, None, None], latent, initial)
            x = self.segment(parts[i], queries[i], self.segment.memory(each_step(read)), None)
            memory = self.latent.memory(x)
            asking, keys_of = each_step(latent), [memory, *earlier[i : i + 1], *constant]
            new = self.latent(asking, self.latent.queries(asking), torch.cat(keys_of, 1), mask[:, i])
            latent = torch.where(some[:, i, None, None], new, latent)
            outputs[i], memories[i] = x, memory
        return Swept(latent, outputs, memories)


class SegmentEncoder(StandaloneEncoder):
    """Embedding, positions within each segment, latents, norm, read-out and a head with one hidden layer.

    segment: t, the tokens of a segment. latents: l, the number of latents. Subclasses define `latents_of`.
    position: "sinusoidal" or "learned", one table of t rows for all segments. token_std: standard deviation of token
    embeddings. pool: what the head reads: the "mean" of the latents, the "first", or all of them ("flatten").
    """

    def __init__(
        self, spec: DataSpec, dim: Count, segment: Count, latents: Count, dropout: BelowOne = 0.0,
        position: Literal["sinusoidal", "learned"] = "sinusoidal", token_std: NonNegative = 1.0,
        pool: Literal["mean", "flatten", "first"] = "mean", head_hidden: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec)
        self.segment_len, self.latent_len, self.pool = segment, latents, pool
        self.embed = embedding(spec, dim, token_std)
        self.position = positions(position, segment, dim, 1.0 if position == "sinusoidal" else 0.02)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)
        self.feature_dim = latents * dim if pool == "flatten" else dim
        self.head = output_head(self.feature_dim, spec.outputs, head_hidden)

    def features(self, inputs: Tensor, valid: Mask) -> Float[Tensor, "b f"]:
        self.check_length(inputs)
        latent = self.norm(self.latents_of(self.cut(self.embed(inputs), valid)))
        match self.pool:
            case "mean":
                return latent.mean(1)
            case "first":
                return latent[:, 0]
        return latent.flatten(1)

    @abc.abstractmethod
    def latents_of(self, raw: Segments) -> Float[Tensor, "b l d"]:
        """The last latents; `raw` has the embeddings without positions."""

    def cut(self, x: Tokens, valid: Mask) -> Segments:
        """Cuts a batch into segments of t tokens, or of n where n < t."""
        size = min(self.segment_len, x.shape[1])
        real = window_mask(valid, x.shape[1], size, x.device)
        return Segments(windows(zero_padding(x, valid), size), real, valid is None and x.shape[1] % size == 0)
