"""Softmax attention of queries that see few keys: blocks and windows on a CPU, flex attention on a GPU.

Each pattern is implemented twice. A CPU computes blocks of queries and keys. A GPU compiles the predicate `Visible`
into a kernel (`flex`). Tests compare the blocks with the predicate as a dense mask.
"""

from collections.abc import Callable, Hashable
from copy import copy
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention, noop_mask

from subquad.ops.blocks import around, around_mask, blocks, unblocks, visible_in_windows
from subquad.ops.heads import split_heads
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Mask, Tokens
from subquad.utils.devices import at_once

QUERIES_AT_ONCE = 512
"""Queries whose keys `block_sparse` copies at a time on a CPU: the copies take a few MiB, which are reused."""

MASKS_OF_A_LAYER = 32
"""Lengths whose block masks a layer keeps, at most 4 MiB each at 16,384 tokens."""

_BLOCK_MASKS: WeakKeyDictionary[nn.Module, dict[Hashable, BlockMask]] = WeakKeyDictionary()

Visible: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps indices (row of the batch, head, query, key), which broadcast, to whether the query sees the key."""


def attend(
    q: Tokens, k: Context, v: Float[Tensor, "b m c"], visible: Shaped[Tensor, "#b #h #n #m"] | None, heads: int,
    dropout: float = 0.0,
) -> Float[Tensor, "b n c"]:  # fmt: skip
    """Softmax attention in each head; queries that see no key get zeros.

    Args:
        visible: Boolean mask, True at the keys that a query sees; or numbers that are added to the logits.
    """
    y = softmax_attention(
        split_heads(q, heads), split_heads(k, heads), split_heads(v, heads), attn_mask=visible, dropout_p=dropout
    )
    return y.transpose(1, 2).flatten(2)


def sliding_window(
    q: Tokens, k: Context, v: Float[Tensor, "b m c"], mask: ContextMask, *, heads: int, before: int, after: int,
    stride: int = 1, first: int = 0, dropout: float = 0.0,
) -> Float[Tensor, "b n c"]:  # fmt: skip
    """Query i sees the keys j with i // stride - before <= j <= i // stride + after, and those with j < first.

    One softmax in each head over the visible real keys (`mask`, None if all are real). Queries that see no key get
    zeros. With `stride` s, keys are pooled: key j stands for the tokens s j to s j + s - 1, and m = ⌈n / s⌉. Blocks of
    queries share one strided window of keys, so no n x m weights exist: time O(n w d), memory O(n (d + w)) for
    w = before + 1 + after.
    """
    n, m = q.shape[1], k.shape[1]
    keys = _keys_of_block(before + 1 + after, stride)
    if m <= keys + before + after:  # one window would hold all keys: a mask of n x m costs less
        key = torch.arange(m, device=q.device)
        distance = key - torch.arange(n, device=q.device)[:, None] // stride
        visible = (distance >= -before) & (distance <= after) | (key < first)
        return attend(q, k, v, visible[None, None] if mask is None else visible & mask[:, None, None], heads, dropout)
    # Each block of `keys` keys is preceded by a copy of the `first` keys, so that every window holds these. A block has
    # `step` places, and the window extends further on each side by the copies that lie within it.
    step, ahead, behind = keys + first, before + first * (max(before - 1, 0) // keys), after + first * -(-after // keys)
    real = _real(mask, m, keys, first, q.device)
    real = around_mask(real, m if real is None else real.shape[1], step, ahead, behind, q.device)
    real = real if mask is not None else real.repeat(q.shape[0], 1)
    band = _band(keys, stride, before, after, first, (ahead, behind), q.device)
    visible = visible_in_windows(band, real)
    if first:
        k, v = (_each_block_after(x[:, :first], x, keys) for x in (k, v))
    key_windows, value_windows = (around(x, step, ahead, behind) for x in (k, v))
    y = attend(blocks(q, keys * stride), key_windows, value_windows, visible[:, None], heads, dropout)
    return unblocks(y, q.shape[0], n)


def within_blocks(
    q: Tokens, k: Tokens, v: Float[Tensor, "b n c"], mask: Mask, *, size: int, heads: int, dropout: float = 0.0
) -> Float[Tensor, "b n c"]:
    """Softmax attention inside each block of `size` tokens, over its real keys."""
    batch, length = q.shape[:2]
    size = min(size, length)
    visible = None
    if mask is not None or length % size:
        visible = around_mask(mask, length, size, 0, 0, q.device)[:, None, None]
        visible = visible if mask is not None else visible.repeat(batch, 1, 1, 1)
    return unblocks(attend(blocks(q, size), blocks(k, size), blocks(v, size), visible, heads, dropout), batch, length)


def block_sparse(
    q: Tokens, k: Tokens, v: Tokens, mask: Mask, key_blocks: Int[Tensor, "c g a s"], *, block: int, heads: int,
    dropout: float = 0.0,
) -> Float[Tensor, "b aw d"]:  # fmt: skip
    """Softmax attention of blocks of queries to listed blocks of keys. Memory O(n s d).

    The last block is padded, so the output has more than n rows; the caller removes them.

    Args:
        key_blocks: number of the key block in each slot s, for each row c (1 or the batch), head g (1 or the heads) and
            query block a. Numbers that do not exist, or that an earlier slot has, are hidden.
    """
    batch, count = q.shape[0], key_blocks.shape[2]
    # Contiguous, because torch.compile assumes wrong strides of `real[...]` otherwise.
    numbers = key_blocks.transpose(1, 2).expand(batch, -1, -1, -1).contiguous()
    repeated = (numbers[..., None] == numbers[..., None, :]).tril(-1).any(-1)  # an earlier slot has the same number
    exists = (numbers >= 0) & (numbers < count) & ~repeated
    numbers = numbers.clamp(0, count - 1)
    real = around_mask(mask, q.shape[1], block, 0, 0, q.device).unflatten(0, (-1, count)).expand(batch, -1, -1)
    visible = real[torch.arange(batch, device=q.device)[:, None, None, None], numbers] & exists[..., None]
    keys, values = (_rows(x, block, numbers.shape[2]) for x in (k, v))
    parts = []
    step = at_once(q, max(1, QUERIES_AT_ONCE // block), batch * key_blocks.shape[3] * block * q.shape[2])
    steps = zip(*(x.split(step, 1) for x in (_cut(q, block), numbers, visible)), strict=True)
    for queries, wanted, shown in steps:
        y = softmax_attention(
            split_heads(queries.flatten(0, 1), heads),
            _take(keys, wanted, block, count, heads),
            _take(values, wanted, block, count, heads),
            attn_mask=shown.flatten(3)[..., None, :].flatten(0, 1),
            dropout_p=dropout,
        )
        parts.append(y.transpose(1, 2).flatten(2).unflatten(0, (batch, -1)).flatten(1, 2))
    return torch.cat(parts, 1)


def _cut(x: Tokens, block: int) -> Float[Tensor, "b a w d"]:
    return blocks(x, block).unflatten(0, (x.shape[0], -1))


def _rows(x: Tokens, block: int, groups: int) -> Float[Tensor, "bag wd"]:
    """Each block of each group of heads as one row of memory: batch b, block a, group g is row (b A + a) G + g."""
    return _cut(x, block).unflatten(-1, (groups, -1)).transpose(2, 3).flatten(0, 2).flatten(1)


def _take(
    rows: Float[Tensor, "bag wd"], numbers: Int[Tensor, "b c g s"], block: int, count: int, heads: int
) -> Float[Tensor, "bc h sw e"]:
    """The key blocks `numbers` for c blocks of queries, concatenated."""
    batch, chunk, groups, slots = numbers.shape
    start = torch.arange(batch, device=numbers.device)[:, None, None, None] * count
    group = torch.arange(groups, device=numbers.device)[:, None]
    taken = rows.index_select(0, ((start + numbers) * groups + group).flatten())
    return taken.view(batch * chunk, groups, slots * block, heads // groups, -1).transpose(2, 3).flatten(1, 2)


def _keys_of_block(span: int, stride: int) -> int:
    """Keys at the centre of a window; a block of queries is about as long as a window, 8 to 128 queries."""
    queries = min(max(1 << (span * stride).bit_length() - 1, 8), 128)
    return max(1, queries // stride)


def _each_block_after(
    first: Shaped[Tensor, "b g d"], x: Shaped[Tensor, "b m d"], size: int
) -> Shaped[Tensor, "b agm d"]:
    """The blocks of x in order, each preceded by the rows `first`, so that windows contain these rows."""
    cut = blocks(x, size).unflatten(0, (x.shape[0], -1))
    return torch.cat([first[:, None].expand(-1, cut.shape[1], -1, -1), cut], 2).flatten(1, 2)


def _band(
    keys: int, stride: int, before: int, after: int, first: int, reach: tuple[int, int], device: torch.device
) -> Bool[Tensor, "q w"]:
    """Which positions of its window each query of a block sees; of the first keys, the copies of its own block."""
    query = torch.arange(keys * stride, device=device)[:, None] // stride
    place = torch.arange(-reach[0], keys + first + reach[1], device=device)  # from the start of the own block
    number, offset = place // (keys + first), place % (keys + first)  # block, and place in it: the copies come first
    distance = number * keys + offset - first - query
    near = (offset >= first) & (distance >= -before) & (distance <= after)
    return near | ((number == 0) & (offset < first))


def _real(mask: ContextMask, length: int, keys: int, first: int, device: torch.device) -> Bool[Tensor, "c am"] | None:
    """Which keys and copies are real; the first keys are hidden where they are no copies, so that none counts twice."""
    if not first:
        return mask
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    others = real & (torch.arange(length, device=device) >= first)
    return _each_block_after(real[:, :first, None], others[..., None], keys)[..., 0]


def runs_flex(q: Tokens, heads: int, dropout: float) -> bool:
    """Whether flex attention supports this call: on a GPU, heads of at least 16 channels, no dropout."""
    return q.is_cuda and q.shape[-1] // heads >= 16 and dropout == 0


def flex(
    q: Tokens, k: Context, v: Context, mask: ContextMask, visible: Visible, heads: int, layer: nn.Module,
    state: Tensor | None = None,
) -> Tokens:  # fmt: skip
    """Softmax attention to the real keys that `visible` shows, by flex attention, compiled on a GPU.

    Block masks, which list the blocks with visible keys, are built for the first call of each length.

    Args:
        visible: the same for all rows, and without `state` for all heads.
        layer: the mechanism, with which its block masks are discarded.
        state: a buffer that `visible` reads and that may change.
    """
    make, run = _compiled() if q.is_cuda else (create_block_mask, flex_attention)

    # Lambdas, because flex attention counts the arguments of its function and so accepts no bound method.
    if mask is None:
        shown = lambda row, head, i, j: visible(row, head, i, j)  # noqa: E731
    else:
        shown = lambda row, head, i, j: visible(row, head, i, j) & mask[row, j]  # noqa: E731

    def made() -> BlockMask:
        with torch.inference_mode(False):  # kept masks serve training too
            found = make(
                lambda row, head, i, j: visible(row, head, i, j), None, None if state is None else heads, q.shape[1],
                k.shape[1], device=q.device,
            )  # fmt: skip
            return found if mask is None else _without_full_blocks(found)

    if torch.compiler.is_compiling():
        block_mask = made()
    else:
        known = _BLOCK_MASKS.setdefault(layer, {})
        key = (q.shape[1], k.shape[1], q.device, mask is None, None if state is None else state._version)
        if key not in known:
            if len(known) == MASKS_OF_A_LAYER:
                del known[next(iter(known))]
            known[key] = made()
            known[key].mask_mod = noop_mask  # a function of the layer would keep the layer alive
        block_mask = copy(known[key])
    block_mask.mask_mod = shown
    y = run(split_heads(q, heads), split_heads(k, heads), split_heads(v, heads), block_mask=block_mask)
    return y.transpose(1, 2).flatten(2)


def _without_full_blocks(mask: BlockMask) -> BlockMask:
    """The same blocks, none of them exempt from the function of the mask: padding may hide keys of any."""
    blocks = mask.to_dense().bool()
    order = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    lengths: Any = mask.seq_lengths
    return BlockMask.from_kv_blocks(
        blocks.sum(-1, dtype=torch.int32), order, BLOCK_SIZE=mask.BLOCK_SIZE, mask_mod=mask.mask_mod,
        seq_lengths=lengths,
    )  # fmt: skip


@cache
def _compiled() -> tuple[Any, Any]:
    """Compiled at the first call on a GPU."""
    return torch.compile(create_block_mask), torch.compile(flex_attention)
