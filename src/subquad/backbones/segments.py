"""What TLB and BLRP share: a sequence cut into segments, and latents that are carried from segment to segment."""

import abc
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.backbones.base import AttentionEncoder
from subquad.blocks.dropout import Dropout
from subquad.blocks.embeddings import embedding, positions
from subquad.blocks.head import output_head
from subquad.blocks.multihead import CrossBlock, SelfBlock
from subquad.errors import UserError
from subquad.ops.masking import zero_padding
from subquad.ops.pooling import window_mask, windows
from subquad.specs import DataSpec


class Segments(NamedTuple):
    """A batch cut into s segments of t tokens, the last one filled up.

    x: embeddings, 0 at padding. real: which tokens are real, with a batch axis of 1 where no row has padding.
    full: no token is padding or filling, so that no mask is needed.
    """

    x: Float[Tensor, "b s t d"]
    real: Bool[Tensor, "c s t"]
    full: bool


def mapped(segments: Segments, function: Callable[[Tensor], Tensor]) -> Segments:
    """The segments with a function of `[b·s, t, d]` applied to their embeddings."""
    x = segments.x
    return Segments(function(x.flatten(0, 1)).unflatten(0, x.shape[:2]), segments.real, segments.full)


def merged(segments: Segments) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "c n"] | None]:
    """The tokens in one row again, with their mask."""
    return segments.x.flatten(1, 2), None if segments.full else segments.real.flatten(1)


def steps_before(segments: Segments, backward: bool, pad_aware: bool) -> Int[Tensor, "c s"]:
    """How many segments of its row a pass has read before each one; with `pad_aware`, not counting padding."""
    some = segments.real.any(-1)
    steps = (some if pad_aware else torch.ones_like(some)).long()
    return steps.flip(1).cumsum(1).flip(1) - steps if backward else steps.cumsum(1) - steps


def _within(segments: Segments) -> Bool[Tensor, "bs t"] | None:
    """Masks of all segments in one batch. Padding sees itself where it is alone: nobody reads it."""
    if segments.full:
        return None
    seen = segments.real | ~segments.real.any(-1, keepdim=True)
    return seen.expand(len(segments.x), -1, -1).flatten(0, 1)


class Swept(NamedTuple):
    """What a sweep leaves: the last latents, all X̃_i, and Θ_L's keys and values of each of them."""

    latent: Tensor
    seen: list[Tensor]
    memories: list[Tensor]


class Pass(nn.Module):
    """One way through the segments. Θ_SELF: `self_blocks`; Θ_X: `segment` reads the latents; Θ_L: `latent` reads it."""

    def __init__(self, self_blocks: nn.ModuleList, segment: CrossBlock, latent: CrossBlock) -> None:
        super().__init__()
        self.self_blocks, self.segment, self.latent = self_blocks, segment, latent

    def attend_within(self, segments: Segments) -> Float[Tensor, "b s t d"]:
        """Θ_SELF of every segment, all of them in one batch: the latents have no part in it."""
        x, mask = segments.x.flatten(0, 1), _within(segments)
        for block in self.self_blocks:
            x = block(x, mask)
        return x.unflatten(0, segments.x.shape[:2])

    def sweep(
        self,
        within: Float[Tensor, "b s t d"],
        segments: Segments,
        start: Float[Tensor, "b l d"],
        initial: Float[Tensor, "b l d"],
        *,
        residual: bool = False,
        backward: bool = False,
        earlier: Sequence[Tensor] = (),
        each_step: Callable[[Tensor], Tensor] = lambda latent: latent,
        pad_aware: bool = True,
    ) -> Swept:
        """Carries the latents over the segments; only this part is sequential.

        X̃_i = Θ_X(X_i, L), where L is `initial` at the first step of a row and the latents of the step before later on;
        L ← Θ_L(L, [X̃_i ; earlier_i ; initial]), where L is `start` at the first step.

        `initial` is among the keys where `residual` is set, and not at the first step. `earlier` holds Θ_L's keys and
        values of the X̃_i of another sweep. `each_step` changes the latents before every step (TLB adds positions).
        A segment of padding is no step of its row: its latents pass unchanged, and the first step is the first segment
        that holds a token (without `pad_aware`: the first one of the batch).
        """
        order = list(range(segments.x.shape[1]))
        some = segments.real.any(-1)
        begun = steps_before(segments, backward, pad_aware) > 0
        keys = [segments.real, *([segments.real] if earlier else [])]
        if residual:
            keys.append(begun[..., None].expand(-1, -1, initial.shape[1]))
        mask = torch.cat(keys, 2) | ~some[..., None]
        # unbind, not indexing: the gradient of one step would else be as large as the whole sequence.
        parts, queries = within.unbind(1), self.segment.queries(within).unbind(1)
        constant = [self.latent.memory(initial)] if residual else []

        latent = start
        seen, memories = [within] * len(order), [within] * len(order)
        for i in reversed(order) if backward else order:
            read = latent if start is initial else torch.where(begun[:, i, None, None], latent, initial)
            x = self.segment(parts[i], queries[i], self.segment.memory(each_step(read)), None)
            memory = self.latent.memory(x)
            asking, keys_of = each_step(latent), [memory, *earlier[i : i + 1], *constant]
            new = self.latent(asking, self.latent.queries(asking), torch.cat(keys_of, 1), mask[:, i])
            latent = torch.where(some[:, i, None, None], new, latent)
            seen[i], memories[i] = x, memory
        return Swept(latent, seen, memories)


class SegmentEncoder(AttentionEncoder):
    """Embedding, segments with positions of their own, latents, norm, read-out and a hidden layer in the head.

    segment: t, tokens in a segment. latents: l. Subclasses write `latents_of`.
    position: "sinusoidal" or "learned", one table of t rows for all segments. token_std: of token embeddings.
    pool: what the head reads of the latents: their "mean", the "first", or all of them ("flatten").
    """

    def __init__(
        self,
        spec: DataSpec,
        dim: int,
        segment: int,
        latents: int,
        dropout: float = 0.0,
        position: Literal["sinusoidal", "learned"] = "sinusoidal",
        token_std: float = 1.0,
        pool: Literal["mean", "flatten", "first"] = "mean",
        head_hidden: int | None = None,
    ) -> None:
        super().__init__(spec)
        if segment < 1 or latents < 1:
            raise UserError(f"A segment and the latents need at least 1 row; got {segment} and {latents}.")
        choose("pool", pool, ("mean", "flatten", "first"))
        choose("position", position, ("sinusoidal", "learned"))
        self.segment_len, self.latent_len, self.pool = segment, latents, pool
        self.embed = embedding(spec, dim, token_std)
        self.position = positions(position, segment, dim, 1.0 if position == "sinusoidal" else 0.02)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)
        self.feature_dim = latents * dim if pool == "flatten" else dim
        self.head = output_head(self.feature_dim, spec.outputs, head_hidden)

    def features(self, inputs: Tensor, valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b f"]:
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
        """The last latents, from the segments' embeddings without positions."""

    def cut(self, x: Float[Tensor, "b n d"], valid: Bool[Tensor, "b n"] | None) -> Segments:
        """Segments of t tokens, or of n where the batch is shorter."""
        size = min(self.segment_len, x.shape[1])
        real = window_mask(valid, x.shape[1], size, x.device)
        return Segments(windows(zero_padding(x, valid), size), real, valid is None and x.shape[1] % size == 0)


def self_blocks(count: int, make: Callable[[], SelfBlock]) -> nn.ModuleList:
    """Θ_SELF; raises UserError where a sequence would have none."""
    if count < 1:
        raise UserError(f"Segments need at least one layer of self-attention; attention.self_layers is {count}.")
    return nn.ModuleList(make() for _ in range(count))


def choose(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises UserError at a word that is none of the choices of a key."""
    if value not in choices:
        raise UserError(f'There is no attention.{key} "{value}"; choose {", ".join(choices[:-1])} or {choices[-1]}.')
