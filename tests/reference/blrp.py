"""Leotescu et al. 2024, Section 3, equation by equation with segments counted from 1, for one unpadded sequence."""

import torch
from torch import Tensor, nn

from reference.tlb import cross_block, norm, sinusoids, within


def project(phi: nn.Module, x: Tensor, *, heads: int, count: int, form: str) -> Tensor:
    """Φ: softmax over the tokens of their scores, head by head."""
    scores = phi.score(x).split(count, 1)
    if form == "single":
        return scores[0].softmax(0).T @ x
    values = phi.value(x) if form == "per_head_value" else x
    slices = values.tensor_split(heads, 1)
    mixed = torch.cat([s.softmax(0).T @ v for s, v in zip(scores, slices, strict=True)], 1)
    return norm(phi.norm, mixed) if form == "per_head_value" else mixed


def start_of(
    way: nn.Module, init: str, X: list[Tensor], form: str, *, heads: int, count: int, backward: bool, siamese: bool
) -> Tensor:
    """L_INIT: sinusoids, or Φ of the segments; siamese with the places of the order in which the pass reads them."""
    dim = X[0].shape[1]
    if init == "pos":
        return sinusoids(count, dim)
    if siamese:
        first = [len(X[0]) * (len(X) - 1 - i if backward else i) for i in range(len(X))]
        X = [part + sinusoids(len(part), dim, place) for part, place in zip(X, first, strict=True)]
    return project(way.phi, torch.cat(X), heads=heads, count=count, form=form)


def forward_pass(way: nn.Module, X: dict[int, Tensor], start: Tensor, again: list[Tensor], sizes: tuple):
    """LF_T and all X̃F_i."""
    local = {i: within(way.blocks, part, *sizes) for i, part in X.items()}
    XF = {1: cross_block(way.blocks.segment, local[1], start, *sizes)}
    LF = cross_block(way.blocks.latent, start, XF[1], *sizes)
    for i in range(2, len(X) + 1):
        XF[i] = cross_block(way.blocks.segment, local[i], LF, *sizes)
        LF = cross_block(way.blocks.latent, LF, torch.cat([XF[i], *again]), *sizes)
    return LF, XF


def backward_pass(
    way: nn.Module, X: dict[int, Tensor], start: Tensor, again: list[Tensor], sizes: tuple, LF: Tensor | None, XF: dict
) -> Tensor:
    """LB_1; alone (`LF` None) the pass starts from L_INIT and sees no X̃F."""
    T, seen = len(X), {i: [XF[i]] if XF else [] for i in X}
    XB = cross_block(way.blocks.segment, within(way.blocks, X[T], *sizes), start, *sizes)
    LB = cross_block(way.blocks.latent, start if LF is None else LF, torch.cat([*seen[T], XB]), *sizes)
    for i in range(T - 1, 0, -1):
        XB = cross_block(way.blocks.segment, within(way.blocks, X[i], *sizes), LB, *sizes)
        LB = cross_block(way.blocks.latent, LB, torch.cat([*seen[i], XB, *again]), *sizes)
    return LB


def latents(
    ways: list[nn.Module],
    x: Tensor,
    *,
    segment: int,
    count: int,
    heads: int,
    scale: float,
    direction: str = "bi",
    inits: tuple[str, str] = ("phi_residual", "phi_residual"),
    form: str = "per_head_value",
    phi_input: str = "raw",
    phi_share: str = "separate",
) -> Tensor:
    """L_FINAL for token embeddings x, `[n, d]`; `ways` holds the blocks and Φ of the passes that there are."""
    dim, parts, sizes = x.shape[1], list(x.split(segment)), (heads, scale)
    X = {i: part + sinusoids(len(part), dim) for i, part in enumerate(parts, start=1)}
    source = parts if phi_input == "raw" else list(X.values())
    starts, LF, XF = {"heads": heads, "count": count, "siamese": phi_share == "siamese"}, None, {}
    if direction != "bwd":
        start = start_of(ways[0], inits[0], source, form, **starts, backward=False)
        LF, XF = forward_pass(ways[0], X, start, [start] * (inits[0] == "phi_residual"), sizes)
        if direction == "fwd":
            return LF
    start = start_of(ways[0 if phi_share == "identical" else -1], inits[1], source, form, **starts, backward=True)
    return backward_pass(ways[-1], X, start, [start] * (inits[1] == "phi_residual"), sizes, LF, XF)
