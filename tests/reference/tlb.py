"""Didolkar et al. 2022 as a loop over segments, each block written out, for one sequence without padding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(count: int, dim: int, first: int = 0) -> Tensor:
    """Vaswani et al. 2017, Section 3.5, from the place `first` on."""
    table = torch.zeros(count, dim, dtype=torch.float64)
    for place in range(count):
        for i in range(dim):
            angle = (first + place) / 10_000 ** ((i - i % 2) / dim)
            table[place, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return table


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm."""
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def attend(maps: nn.Module, x: Tensor, context: Tensor, heads: int, scale: float) -> Tensor:
    """softmax(Q Kᵀ / scale) V W_O, head by head."""
    q, (k, v) = maps.query(x), maps.key_value(context).chunk(2, 1)
    width, parts = q.shape[1] // heads, []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        parts.append((q[:, own] @ k[:, own].T / scale).softmax(1) @ v[:, own])
    return maps.out(torch.cat(parts, 1))


def feed_forward(block: nn.Module, x: Tensor) -> Tensor:
    """x + W_2 gelu(W_1 norm(x))."""
    return x + block.feed_forward[3](F.gelu(block.feed_forward[0](norm(block.feed_forward_norm, x))))


def self_block(block: nn.Module, x: Tensor, heads: int, scale: float) -> Tensor:
    """Pre-norm self-attention."""
    source = norm(block.query_norm, x)
    return feed_forward(block, x + attend(block.attention, source, source, heads, scale))


def cross_block(block: nn.Module, x: Tensor, context: Tensor, heads: int, scale: float) -> Tensor:
    """Pre-norm cross-attention, queries and context with norms of their own."""
    context = norm(block.memory_norm, context)
    return feed_forward(block, x + attend(block.attention, norm(block.query_norm, x), context, heads, scale))


def within(blocks: nn.Module, segment: Tensor, heads: int, scale: float) -> Tensor:
    """Θ_SELF of one segment."""
    for block in blocks.self_blocks:
        segment = self_block(block, segment, heads, scale)
    return segment


def latents(blocks: nn.Module, x: Tensor, *, segment: int, count: int, heads: int, scale: float) -> Tensor:
    """The last latents for token embeddings x, `[n, d]`."""
    dim = x.shape[1]
    state = torch.zeros(count, dim, dtype=x.dtype)
    for part in x.split(segment):
        local = within(blocks, part + sinusoids(len(part), dim), heads, scale)
        state = state + sinusoids(count, dim)
        local = cross_block(blocks.segment, local, state, heads, scale)
        state = cross_block(blocks.latent, state, local, heads, scale)
    return state


def predict(model: nn.Module, state: Tensor) -> Tensor:
    """The head on the mean of the normalised latents."""
    return model.head(norm(model.norm, state).mean(0))
