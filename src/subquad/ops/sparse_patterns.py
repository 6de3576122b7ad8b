"""The patterns of the sparse transformer (Child et al. 2019, https://arxiv.org/abs/1904.10509, Section 4.2-4.3).

"fixed":   token i sees the block of b tokens that holds it and the last c tokens of every block;
"strided": token i sees the tokens j with |i - j| <= b or (i - j) mod b = 0.

Both sets of keys are in one softmax, and a key of both counts once.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.block_sparse import attend
from subquad.ops.blocks import around, around_mask, blocks, unblocks
from subquad.ops.dropout import dropout
from subquad.ops.masks import masked_softmax
from subquad.specs import Context, ContextMask, Tokens
from subquad.utils.devices import at_once
from subquad.utils.errors import UserError


def check_pattern(form: str, block: int, summary: int) -> None:
    """Raises UserError where a block has fewer tokens than summaries, which are used by "fixed" only."""
    if form == "fixed" and summary > block:
        raise UserError(
            f"attention.summary is {summary}; blocks of {block} tokens have from 1 to {block} summaries. Set "
            "attention.summary or attention.block."
        )


def sparse_pattern(
    q: Tokens, k: Context, v: Context, mask: ContextMask, *, form: str, block: int, summary: int, heads: int,
    stride: int = 1, causal: bool = False, dropout: float = 0.0,
) -> Tokens:  # fmt: skip
    """Softmax attention in each head over the real keys (`mask`, None if all are real) that the pattern shows.

    With `stride` s, keys are pooled: key j stands for the tokens s j to s j + s - 1, and m = ⌈n / s⌉. The pattern then
    applies to the m windows, with blocks of ⌈b / s⌉ windows and ⌈c / s⌉ summaries, and a query sees what its window
    sees. If s divides b, these are the windows with a token that the pattern shows to a query of the same window.
    `causal` hides the keys after the query; it needs a stride of 1.
    """
    block, summary = math.ceil(block / stride), math.ceil(summary / stride)
    if form == "fixed":
        return _fixed(q, k, v, mask, block, summary, heads, stride, causal, dropout)
    near, far = 3 * block, math.ceil(k.shape[1] / block)  # keys of a query, at most
    count = at_once(q, 1, q.shape[0] * q.shape[1] * (near + far))
    of_heads = (x.unflatten(-1, (heads, -1)).split(count, 2) for x in (q, k, v))
    parts = (_strided(a, b, c, mask, block, stride, causal, dropout) for a, b, c in zip(*of_heads, strict=True))
    return torch.cat(list(parts), -1)


def _fixed(
    q: Tokens, k: Context, v: Context, mask: ContextMask, block: int, summary: int, heads: int, stride: int,
    causal: bool, dropout: float,
) -> Tokens:  # fmt: skip
    """A few blocks of queries at a time attend to their own keys and to the summary keys of all blocks."""
    m = k.shape[1]
    first = block - summary  # place in a block of its first summary key
    ends = torch.arange(first, block, device=q.device) + torch.arange(0, m, block, device=q.device)[:, None]
    ends = ends.flatten()[: _ends_before(m, block, summary)]  # positions of all summary keys
    far_k, far_v = k.index_select(1, ends), v.index_select(1, ends)
    # Own keys of a chunk, of which a query sees one block only: about half as many as summary keys.
    chunk = block * max(1, round(len(ends) / (2 * block)))
    # Places in the chunk; a query sees what the pooled key at its own position (`window`) may see.
    key = torch.arange(chunk, device=q.device)
    window = torch.arange(chunk * stride, device=q.device)[:, None] // stride
    # Keys of the own block, without its summary keys: these are in `ends`.
    near = (window // block == key // block) & (key % block < first)
    if causal:
        near = near & (key <= window)
    parts = []
    pieces = zip(range(0, m, chunk), q.split(chunk * stride, 1), k.split(chunk, 1), v.split(chunk, 1), strict=True)
    for start, queries, own_k, own_v in pieces:
        size, stop = queries.shape[1], start + own_k.shape[1]
        count = _ends_before(stop, block, summary) if causal else len(ends)  # later ones are hidden from the chunk
        far = ends[:count] <= (start + window[:size] if causal else m)
        visible = torch.cat([near[:size, : stop - start], far.expand(size, count)], 1)[None, None]
        if mask is not None:
            visible = visible & torch.cat([mask[:, start:stop], mask[:, ends[:count]]], 1)[:, None, None]
        keys, values = (torch.cat(pair, 1) for pair in ((own_k, far_k[:, :count]), (own_v, far_v[:, :count])))
        parts.append(attend(queries, keys, values, visible, heads, dropout))
    return torch.cat(parts, 1)


def _ends_before(stop: int, block: int, summary: int) -> int:
    """Number of summary keys before position `stop`."""
    return stop // block * summary + max(0, stop % block - (block - summary))


def _strided(
    q: Float[Tensor, "b n h e"], k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h e"], mask: ContextMask,
    block: int, stride: int, causal: bool, dropout_p: float,
) -> Float[Tensor, "b n he"]:  # fmt: skip
    """Some heads. Keys of equal remainder modulo `block` form a short sequence of m / block keys.

    Their logits and those of the neighbourhood are in one softmax. The key at distance `block` has an equal remainder,
    so the neighbourhood ends before it and no key is in both.
    """
    batch, n, heads, width = q.shape
    reach = (block - 1, 0 if causal else block - 1)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q / math.sqrt(width), k, v))  # heads as rows of the batch
    mask = None if mask is None else mask.repeat_interleave(heads, 0)
    far_k, far_v = (_by_remainder(x, block).repeat_interleave(stride, 1) for x in (k, v))
    # Logits [blocks, query, key]: keys around the block of the query, and one key of each block.
    near = blocks(q, block * stride) @ around(k, block, *reach).mT
    far = (_by_remainder(q, block * stride) @ far_k.mT).transpose(1, 2).flatten(0, 1)
    visible = _visible_strided(mask, k.shape[1], block, stride, causal, reach, q.device)
    weights = masked_softmax(torch.cat([near, far], -1), visible.repeat(near.shape[0] // visible.shape[0], 1, 1))
    of_near, of_far = dropout(weights, dropout_p, training=True).split([near.shape[-1], far.shape[-1]], -1)
    y_far = of_far.unflatten(0, (q.shape[0], -1)).transpose(1, 2) @ far_v
    y = unblocks(of_near @ around(v, block, *reach) + y_far.transpose(1, 2).flatten(0, 1), q.shape[0], n)
    return y.unflatten(0, (batch, heads)).transpose(1, 2).flatten(2)


def _visible_strided(
    mask: ContextMask, m: int, block: int, stride: int, causal: bool, reach: tuple[int, int], device: torch.device
) -> Bool[Tensor, "ck q s"]:
    """The mask of each query of a block: the keys around the block, followed by those of equal remainder."""
    window = torch.arange(block * stride, device=device)[:, None] // stride
    place = torch.arange(block + sum(reach), device=device)  # from the first key around the block
    band = (place >= window) & (place <= window + sum(reach))
    near = band & around_mask(mask, m, block, *reach, device)[:, None]
    number = torch.arange(-(-m // block), device=device)
    # The key of the own block has distance 0, which is part of the neighbourhood.
    other = number < number[:, None] if causal else number != number[:, None]
    real = around_mask(mask, m, block, 0, 0, device).unflatten(0, (-1, len(number)))
    far = (other[:, None] & real.mT.repeat_interleave(stride, 1)[:, None]).flatten(0, 1)
    return torch.cat([near, far], -1)


def _by_remainder(x: Float[Tensor, "b n e"], size: int) -> Float[Tensor, "b s k e"]:
    """Tokens of equal remainder modulo `size` as separate sequences, filled with zeros."""
    return blocks(x, size).unflatten(0, (x.shape[0], -1)).transpose(1, 2)
