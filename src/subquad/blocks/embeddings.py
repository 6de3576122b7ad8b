"""Embeddings of token ids and of real-valued steps, and positions."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.masks import zero_padding
from subquad.specs import Context, DataSpec, Mask, Tokens
from subquad.utils.errors import UserError


class TokenEmbedding(nn.Embedding):
    """Maps token ids to vectors from N(0, std²); id 0 is padding and its vector is 0."""

    def __init__(self, vocab: int, dim: int, std: float) -> None:
        super().__init__(vocab, dim, padding_idx=0)
        with torch.no_grad():
            self.weight.normal_(std=std)[0] = 0


class SeriesEmbedding(nn.Linear):
    """A linear map of steps, times √d (Zerveas et al. 2021, https://arxiv.org/abs/2010.02803, released code)."""

    def forward(self, series: Float[Tensor, "b n c"]) -> Tokens:
        return super().forward(series) * math.sqrt(self.out_features)


def embedding(spec: DataSpec, dim: int, token_std: float) -> nn.Module:
    """The embedding for these data: of token ids where they have a vocabulary, else of real-valued steps."""
    if spec.vocab is not None:
        return TokenEmbedding(spec.vocab, dim, token_std)
    if spec.channels is not None:
        return SeriesEmbedding(spec.channels, dim)
    raise UserError("The data have neither a vocabulary nor channels, so there is nothing to embed.")


class LearnedPositions(nn.Module):
    """Adds one learned vector for each position, and refuses positions that have none."""

    def __init__(self, max_len: int, dim: int, std: float = 0.02) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_len, dim) * std)

    def forward(self, x: Tokens) -> Tokens:
        if x.shape[1] > len(self.table):
            raise UserError(
                f"This model learned {len(self.table)} positions and was given {x.shape[1]} tokens; shorten the input, "
                "build it for a larger length, or choose backbone.position=sinusoidal or none."
            )
        return x + self.table[: x.shape[1]]


class SinusoidalPositions(nn.Module):
    """Adds sines and cosines of geometric frequencies (Vaswani et al. 2017, Section 3.5), times `scale`."""

    table: Tensor

    def __init__(self, max_len: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("table", scale * _sinusoids(max_len, dim), persistent=False)

    def forward(self, x: Tokens) -> Tokens:
        if x.shape[1] > len(self.table):
            return x + self.scale * _sinusoids(*x.shape[1:]).to(x)
        return x + self.table[: x.shape[1]]


def _sinusoids(length: int, dim: int) -> Float[Tensor, "n d"]:
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :dim]


def positions(kind: Literal["learned", "sinusoidal", "none"], max_len: int, dim: int, scale: float) -> nn.Module:
    """Positions of one kind; `scale`: amplitude of sinusoids, or standard deviation of learned vectors."""
    match kind:
        case "learned":
            return LearnedPositions(max_len, dim, scale)
        case "sinusoidal":
            return SinusoidalPositions(max_len, dim, scale)
        case "none":
            return nn.Identity()


class NeighbourConvolution(nn.Module):
    """Adds to each token a learned linear map of the real tokens at most `width` // 2 places away."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(dim, dim, width, padding=width // 2)

    def forward(self, x: Tokens, valid: Mask) -> Tokens:
        return x + self.mix(zero_padding(x, valid).transpose(1, 2)).transpose(1, 2)


class ClassToken(nn.Module):
    """Puts a learned vector, never masked, in front of the tokens; the head reads its output."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tokens, valid: Tensor | None) -> tuple[Context, Tensor | None]:
        x = torch.cat([self.vector.expand(x.shape[0], 1, -1), x], 1)
        return x, valid if valid is None else nn.functional.pad(valid, (1, 0), value=True)
