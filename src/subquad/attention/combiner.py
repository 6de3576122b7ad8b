"""Combiner (Ren et al. 2021, https://arxiv.org/abs/2107.05768, Eq. 7-10 and Section 4), not causal."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import attend
from subquad.ops.blocks import blocks, unblocks
from subquad.ops.dropout import dropout
from subquad.ops.masks import masked_softmax
from subquad.ops.pooling import max_pool, mean_pool, window_mask, windows
from subquad.ops.softmax_attention import fused_attention
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count

Factorization = Literal["fixed", "logn", "axial"]
Pooling = Literal["max", "mean"]

SHORT = 16
"""Tokens of a span from which a GPU's fused kernel is faster than elementwise products; its tiles have 64 keys."""

QUERIES = 64
"""Queries of a binary tree that share one set of keys if leaves are smaller."""


def naive_combiner(
    q: Float[Tensor, "n e"], k: Float[Tensor, "n e"], v: Float[Tensor, "n e"], factorization: Factorization, span: int,
    pooling: Pooling = "max", size_offset: bool = False,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper (Eq. 7-10), for one sequence without padding: an expectation over tokens and spans."""
    scale, rows = math.sqrt(q.shape[1]), []
    pool = torch.amax if pooling == "max" else torch.mean
    for i in range(len(q)):
        direct, spans = naive_spans(i, len(q), factorization, span)
        # Direct expectation: p(j|i) of the tokens that query i sees one by one.
        logits, values = [q[i] @ k[j] / scale for j in direct], [v[j] for j in direct]
        for part in spans:
            # Local expectation: p(Ω_r|i) from the pooled key, and p(j|Ω_r) inside the span from the pooled query.
            logits.append(q[i] @ pool(k[part], 0) / scale + (math.log(len(part)) if size_offset else 0.0))
            values.append((k[part] @ pool(q[part], 0) / scale).softmax(0) @ v[part])
        rows.append(torch.stack(logits).softmax(0) @ torch.stack(values))  # one softmax over tokens and spans
    return torch.stack(rows)


def naive_spans(i: int, length: int, factorization: Factorization, span: int) -> tuple[list[int], list[list[int]]]:
    """The tokens that query i sees one by one, and the spans Ω_r of the others; each token is in one of them."""
    everything = range(length)
    if factorization == "fixed":  # Section 4.1
        direct = [j for j in everything if j // span == i // span]
        spans = [[j for j in everything if j // span == r] for r in range(-(-length // span)) if r != i // span]
    elif factorization == "logn":  # Section 4.2: the sibling of the node of i at each level of a binary tree
        direct = [j for j in everything if j // span == i // span]
        levels = range(max(-(-length // span) - 1, 0).bit_length())
        spans = [[j for j in everything if j // (span << level) == i // (span << level) ^ 1] for level in levels]
    else:  # Section 4.3: parts of the other columns above and below the row of i
        row, column = divmod(i, span)
        direct = [j for j in everything if j // span == row or j % span == column]
        columns = [range(c, length, span) for c in range(span) if c != column]
        spans = [[j for j in own if j // span < row] for own in columns]
        spans += [[j for j in own if j // span > row] for own in columns]
    return direct, [part for part in spans if part]


class Combiner(StatelessAttention):
    """y_i = Σ_{j∈Ω_i} p(j|i) v_j + Σ_r p(Ω_r|i) v̄_r: tokens near i one by one, all others through their spans Ω_r.

    One softmax in each head gives p from the logits q_iᵀk_j / √d_h and q_iᵀk̄_r / √d_h; k̄_r and q̄_r pool the keys and
    queries of the span, and v̄_r = Σ_{j∈Ω_r} softmax_j(q̄_rᵀk_j / √d_h) v_j. Own tokens and spans cover each token once.

    Spans pool real tokens only; a span without real tokens is hidden.

    Args:
        factorization: "fixed" has spans of `span` tokens, the own one exact. "logn" is a binary tree over leaves of
            `span` tokens: the own leaf is exact, and each level adds the sibling of the own node as one span (spans
            grow with the distance). "axial" has rows of `span` tokens: own row and own column are exact, and every
            other column is two spans, the parts above and below the own row.
        span: tokens of a span, leaf or row; null is ⌈√n⌉ of the longest sequence for "fixed", 2 for "logn", and the
            width of the image or ⌈√n⌉ for "axial".
        pooling: how keys and queries of a span are pooled, "max" or "mean".
        size_offset: add log |Ω_r| (real tokens) to the logit of a span; spans of equal keys then give exact softmax.

    Why the fast path is equal: it computes the same softmax for a block of queries at a time. Queries of a block share
    their keys: the tokens of the block, followed by the pooled keys of spans. A mask hides the keys that only other
    queries of the block see. Spans that are needed by several blocks are pooled once.

    Examples:
        >>> import torch
        >>> from subquad import Combiner
        >>> layer = Combiner(dim=64, heads=4, max_len=512, factorization="logn")
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: counts the own span a second time through its summary (fixed), and the own column (axial, as one
    part of a mixture of rows and columns); has no padding masks. The paper defers spans of bidirectional "logn" and
    "axial" to its appendix; here they are those of its Section 4 on both sides of i.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n √n d) fixed and axial, O(n log n d) logn; memory O(n (d + h √n)) and O(n (d + h log n))"
    approximates_softmax = True

    def __init__(
        self, site: Site, factorization: Factorization = "fixed", span: Count | None = None, pooling: Pooling = "max",
        size_offset: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.factorization, self.pooling, self.size_offset = factorization, pooling, size_offset
        if factorization == "axial" and span is None and site.grid:
            span = site.grid[1]
            self.fix_grid()
        self.span = span or (2 if factorization == "logn" else None)
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        q, k, v = p.query(x), p.key(context), p.value(context)
        y = {"fixed": self._fixed, "logn": self._logn, "axial": self._axial}[self.factorization](q, k, v, masks.context)
        return p.out(y)

    def _size(self, q: Tokens) -> int:
        """Tokens of a span, leaf or row."""
        longest = self.longest(q, q)[1]
        return min(self.span or math.isqrt(longest - 1) + 1, longest)

    def _heads(self, x: Float[Tensor, "*k w d"]) -> Float[Tensor, "*k h w e"]:
        return x.unflatten(-1, (self.site.heads, -1)).transpose(-3, -2)

    def _pooled(self, x: Tokens, mask: Mask, size: int) -> Float[Tensor, "b r d"]:
        return (max_pool if self.pooling == "max" else mean_pool)(x, mask, size)[0]

    def _pool_pairs(self, x: Float[Tensor, "b r d"], counts: Int[Tensor, "b r"]) -> Float[Tensor, "b s d"]:
        """Pools pairs of neighbouring spans, given each span's pooled row x and `counts`, its number of real tokens."""
        if self.pooling == "max":
            return max_pool(x, counts > 0, 2)[0]
        sums = windows(x * counts[..., None].to(x.dtype), 2).sum(2)
        return sums / counts.unflatten(1, (-1, 2)).sum(2).clamp(min=1)[..., None].to(x.dtype)

    def _values(
        self, queries: Float[Tensor, "b r d"], k: Tokens, v: Tokens, real: Bool[Tensor, "b r w"]
    ) -> Float[Tensor, "b r d"]:
        """v̄ of consecutive spans of equal size: attention of the span's pooled query to the span's tokens.

        real: which places of each span hold a real token.
        """
        size = real.shape[2]
        if _elementwise(queries, size):
            query, key, value = (
                t.unflatten(-1, (self.site.heads, -1))
                for t in (queries[:, :, None], windows(k, size), windows(v, size))
            )
            logits = (query * key).sum(-1, keepdim=True) / math.sqrt(query.shape[-1])
            return (masked_softmax(logits, real[..., None, None], 2) * value).sum(2).flatten(-2).to(v.dtype)
        # One query for each span, and spans are rows of the batch: mask [spans, heads, queries, keys].
        visible = real.flatten(0, 1)[:, None, None]
        values = attend(queries.flatten(0, 1)[:, None], blocks(k, size), blocks(v, size), visible, self.site.heads)
        return values.view_as(queries)

    def _mask_or_bias(self, visible: Bool[Tensor, "..."], tokens: Int[Tensor, "..."], dtype: torch.dtype) -> Tensor:
        """The mask `visible`; with `size_offset` a bias of the logits: log of `tokens`, or the minimum if hidden."""
        if not self.size_offset:
            return visible
        return tokens.clamp(min=1).to(dtype).log().masked_fill(~visible, torch.finfo(dtype).min)

    def _fixed(self, q: Tokens, k: Tokens, v: Tokens, mask: Mask) -> Tokens:
        """Every span is a block of queries, whose keys are the tokens of the span and then all pooled spans."""
        (batch, length, _), size = q.shape, self._size(q)
        real = window_mask(mask, length, size, q.device).expand(batch, -1, -1)
        span_keys, span_values = self._pooled(k, mask, size), self._values(self._pooled(q, mask, size), k, v, real)
        counts, number = real.sum(2), real.shape[1]
        # Columns of masks: the tokens of the own span, then all spans. The own span is hidden, as its tokens are seen.
        others = ~torch.eye(number, dtype=torch.bool, device=q.device)
        visible = torch.cat([real, (counts[:, None] > 0) & others], 2)
        tokens = torch.cat([torch.ones_like(real, dtype=counts.dtype), counts[:, None].expand(-1, number, -1)], 2)
        keys, values = (
            torch.cat([windows(t, size), spans[:, None].expand(-1, number, -1, -1)], 2).flatten(0, 1)
            for t, spans in ((k, span_keys), (v, span_values))
        )
        bias = self._mask_or_bias(visible, tokens, q.dtype).flatten(0, 1)[:, None, None]
        y = attend(blocks(q, size), keys, values, bias, self.site.heads, self._dropout)
        return unblocks(y, batch, length)

    def _logn(self, q: Tokens, k: Tokens, v: Tokens, mask: Mask) -> Tokens:
        """Keys of a block of queries: its tokens, the nodes inside the block, the far nodes that all its queries see.

        Node r of level l holds the leaves r 2^l to (r + 1) 2^l - 1, that is, `leaf << l` tokens.
        Token i lies in node i // (leaf << l), whose sibling has the same number with the last bit flipped: xor 1.
        """
        (batch, length, _), leaf, device = q.shape, self._size(q), q.device
        # Levels with a sibling, ⌈log2(number of leaves)⌉. Below level `inner`, nodes are smaller than a block.
        levels = max(math.ceil(length / leaf) - 1, 0).bit_length()
        inner = min(levels, max(math.ceil(QUERIES / leaf) - 1, 0).bit_length())
        block, whole = leaf << inner, leaf << levels  # tokens of a block and of the tree, filled up with padding
        real = window_mask(mask, length, whole, device)[:, 0].expand(batch, -1)
        q, k, v = (windows(t, whole)[:, 0] for t in (q, k, v))
        number, place = whole // block, torch.arange(block, device=device)
        keys, values = [windows(k, block)], [windows(v, block)]
        # For each key: how many real tokens it represents, [b, block, key], and which queries of the block may see it,
        # [query, key], which is the same for all blocks.
        tokens = [real.long().view(batch, number, block)]
        near = [place[:, None] // leaf == place // leaf]
        # Pooled queries and keys, and numbers of real tokens, of all nodes of a level; from leaves upwards by pairs.
        span_queries, span_keys = self._pooled(q, real, leaf), self._pooled(k, real, leaf)
        counts = real.unflatten(1, (-1, leaf)).sum(2)
        for level in range(levels):
            if level:
                span_queries, span_keys = (self._pool_pairs(t, counts) for t in (span_queries, span_keys))
                counts = counts.unflatten(1, (-1, 2)).sum(2)
            span_values = self._values(span_queries, k, v, real.unflatten(1, (-1, leaf << level)))
            if level < inner:  # nodes inside the block: each query sees the sibling of its own node
                # All nodes of the block, [block, node]; `node` numbers them within the block.
                pick = torch.arange(counts.shape[1], device=device).view(number, -1)
                node = place[: pick.shape[1]]
                near.append((place[:, None] // (leaf << level) ^ 1) == node)
            else:  # the block lies in one node, number >> (level - inner), and all its queries see the node's sibling
                pick = (torch.arange(number, device=device)[:, None] >> (level - inner)) ^ 1
                near.append(torch.ones_like(place[:, None], dtype=torch.bool))
            keys.append(span_keys[:, pick])
            values.append(span_values[:, pick])
            tokens.append(counts[:, pick])
        sizes = torch.cat(tokens, 2).flatten(0, 1)[:, None, None]
        bias = self._mask_or_bias((sizes > 0) & torch.cat(near, 1), sizes, q.dtype)
        key, value = (torch.cat(t, 2).flatten(0, 1) for t in (keys, values))
        return unblocks(attend(blocks(q, block), key, value, bias, self.site.heads, self._dropout), batch, length)

    def _axial(self, q: Tokens, k: Tokens, v: Tokens, mask: Mask) -> Tokens:
        """One softmax over own row, spans and own column, whose logits come from two products.

        Queries are batched by row for the own row and the spans, logits [b, row, h, column, key], and by column for the
        own column, logits [b, column, h, row, key], which are transposed to the first layout.
        """
        (batch, length, _), width = q.shape, self._size(q)
        real = window_mask(mask, length, width, q.device).expand(batch, -1, -1)
        q, k, v = (windows(t, width) for t in (q, k, v))
        above = self._above(q, k, v, real)
        # The part below a row is the part above it after the rows are reversed.
        below = (t.flip(1) for t in self._above(q.flip(1), k.flip(1), v.flip(1), real.flip(1)))
        span_keys, span_values, counts = (torch.cat(pair, 2) for pair in zip(above, below, strict=True))
        rows, scale = q.shape[1], math.sqrt(q.shape[-1] // self.site.heads)
        queries, columns = self._heads(q), self._heads(k.transpose(1, 2))
        of_row = queries @ self._heads(torch.cat([k, span_keys], 2)).mT / scale
        of_column = self._heads(q.transpose(1, 2)) @ columns.mT / scale
        logits = torch.cat([of_row, of_column.permute(0, 3, 2, 1, 4)], -1)

        # Keys: the own row (`width`), the parts above and below of all columns (2 `width`), the own column (`rows`).
        other_column = ~torch.eye(width, dtype=torch.bool, device=q.device).repeat(1, 2)
        other_row = ~torch.eye(rows, dtype=torch.bool, device=q.device)[:, None, None]
        visible = [
            real[:, :, None, None].expand(-1, -1, -1, width, -1),
            (counts > 0)[:, :, None, None] & other_column,  # the own column is seen token by token
            real.mT[:, None, None].expand(-1, rows, -1, -1, -1) & other_row,  # query i itself is part of the own row
        ]
        if self.size_offset:  # 0 for the tokens of the own row and column
            logits = logits + F.pad(counts.clamp(min=1).to(q.dtype).log(), (width, rows))[:, :, None, None]
        weights = dropout(masked_softmax(logits, torch.cat(visible, -1)), self._dropout, self.training)
        of_row, of_column = weights.split([3 * width, rows], -1)
        y = of_row @ self._heads(torch.cat([v, span_values], 2))
        by_column = of_column.permute(0, 3, 2, 1, 4) @ self._heads(v.transpose(1, 2))
        y = y + by_column.permute(0, 3, 2, 1, 4)
        return y.transpose(2, 3).flatten(-2).flatten(1, 2)[:, :length]

    def _above(
        self, q: Float[Tensor, "b r c d"], k: Float[Tensor, "b r c d"], v: Float[Tensor, "b r c d"],
        real: Bool[Tensor, "b r c"],
    ) -> tuple[Float[Tensor, "b r c d"], Float[Tensor, "b r c d"], Int[Tensor, "b r c"]]:  # fmt: skip
        """For each row and column: pooled key and value of the column's part above the row, and its real tokens."""
        # Exclusive sums along the rows: the tokens strictly above.
        counts = real.cumsum(1) - real.long()
        queries, keys = (self._pooled_above(t, real, counts) for t in (q, k))
        rows = torch.arange(q.shape[1], device=q.device)
        # Columns are rows of the batch: the pooled query of each row attends to the tokens of its column above the row.
        visible = (rows < rows[:, None]) & real.mT[:, :, None]
        of_queries, of_keys, of_values = (self._heads(t.transpose(1, 2).flatten(0, 1)) for t in (queries, k, v))
        values = fused_attention(of_queries, of_keys, of_values, attn_mask=visible.flatten(0, 1)[:, None])
        return keys, values.transpose(1, 2).flatten(-2).unflatten(0, (q.shape[0], -1)).transpose(1, 2), counts

    def _pooled_above(
        self, x: Float[Tensor, "b r c d"], real: Bool[Tensor, "b r c"], counts: Int[Tensor, "b r c"]
    ) -> Float[Tensor, "b r c d"]:
        """x pooled over the rows above each row, by cumulative sums or maxima; 0 if there are no real tokens."""
        hidden = ~real[..., None]
        if self.pooling == "mean":
            kept = x.masked_fill(hidden, 0)
            return (kept.cumsum(1) - kept) / counts.clamp(min=1).to(x.dtype)[..., None]
        tops = x.masked_fill(hidden, torch.finfo(x.dtype).min).cummax(1).values
        # Shifted down by one row: the maximum up to the row before.
        return F.pad(tops, (0, 0, 0, 0, 1, 0))[:, :-1].masked_fill(counts[..., None] == 0, 0)


def _elementwise(queries: Tensor, size: int) -> bool:
    """Whether spans of this size are read by elementwise products."""
    return queries.is_cuda and size < SHORT
