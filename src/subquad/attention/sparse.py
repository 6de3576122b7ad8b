"""Sparse transformer attention (Child et al. 2019, https://arxiv.org/abs/1904.10509, Section 4.2-4.3)."""

import math
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.blocks import around, around_mask, blocks, unblocks
from subquad.ops.dropout import drop
from subquad.ops.masking import masked_softmax
from subquad.ops.sparse import attend, flexible, runs_flexible
from subquad.specs import Masks, Pattern, Site

Mask: TypeAlias = Bool[Tensor, "b n"] | None


class Sparse(StatelessAttention):
    """y_i = Σ_{j ∈ A1_i ∪ A2_i} softmax(q_iᵀ k_j / √d_h) v_j in each head: both sets in one softmax.

    form "fixed":   A1_i = the block of b tokens that holds i, A2_i = {j : j mod b >= b - c}, the last c of every block;
    form "strided": A1_i = {j : |i - j| <= b}, A2_i = {j : (i - j) mod b = 0}.

    b is `block`, c is `summary` (fixed only). `causal` keeps j <= i in all sets, as the paper has it. Padded keys are
    hidden. With b near √n a query sees O(√n) keys.

    A key of both sets counts once. Fixed: a few blocks of queries at a time meet their own keys and the summary
    columns of all blocks. Strided: tokens of equal remainder are a short sequence of n / b; their logits and those of
    the window are written side by side, head by head.

    Released code: the paper's gives each head or layer one of the sets, or merges them as here, and is causal; Long
    Range Arena's merges them through a dense mask, with b = 50, c = 10 and column 0 of each block as well.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n √n d), memory O(n (d + √n))"

    def __init__(
        self,
        site: Site,
        form: str = "fixed",
        block: int = 64,
        summary: int = 8,
        causal: bool = False,
    ) -> None:
        super().__init__(site)
        if form not in ("fixed", "strided"):
            raise UserError(f"Sparse attention has no form {form!r}; choose attention.form=fixed or strided.")
        if block < 1 or not 0 < summary <= block:
            raise UserError(
                f"Sparse attention got blocks of {block} tokens, {summary} of them summaries; "
                "choose attention.block of at least 1 and attention.summary from 1 to that."
            )
        self.form, self.block, self.summary, self.causal = form, block, summary, causal
        self.projections = Projections(site.dim, site.heads)

    def visible(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether the query sees the key, both by their places."""
        b = self.block
        if self.form == "fixed":
            seen = (query // b == key // b) | (key % b >= b - self.summary)
        else:
            seen = ((query - key).abs() <= b) | ((query - key) % b == 0)
        return seen & (key <= query) if self.causal else seen

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p, heads = self.projections, self.site.heads
        q, k, v = p.query(x), p.key(context), p.value(context)
        if runs_flexible(q, heads, self._dropout):
            return p.out(flexible(q, k, v, masks.context, lambda _, *places: self.visible(*places), heads))
        if self.form == "fixed":
            return p.out(self._fixed(q, k, v, masks.context))
        of_heads = (x.unflatten(-1, (heads, -1)).unbind(2) for x in (q, k, v))
        parts = [self._strided(a, b, c, masks.context) for a, b, c in zip(*of_heads, strict=True)]
        return p.out(torch.cat(parts, -1))

    @property
    def _dropout(self) -> float:
        return self.site.dropout if self.training else 0.0

    def _fixed(
        self, q: Float[Tensor, "b n d"], k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"], mask: Mask
    ) -> Float[Tensor, "b n d"]:
        b, c, n = self.block, self.summary, q.shape[1]
        place = torch.arange(n, device=q.device)
        ends = torch.arange(b - c, b, device=q.device) + torch.arange(0, n, b, device=q.device)[:, None]
        ends = ends.flatten()[: self._ends_before(n)]
        far_k, far_v = k.index_select(1, ends), v.index_select(1, ends)
        chunk = b * max(1, round(len(ends) / (2 * b)))
        # A summary key of its own block would else be seen twice.
        near = (place[:chunk, None] // b == place[:chunk] // b) & (place[:chunk] % b < b - c)
        if self.causal:
            near = near & (place[:chunk] <= place[:chunk, None])
        parts = []
        for start, *own in zip(range(0, n, chunk), *(x.split(chunk, 1) for x in (q, k, v)), strict=True):
            stop = start + own[0].shape[1]
            size, count = stop - start, self._ends_before(stop) if self.causal else len(ends)
            far = ends[:count] <= (place[start:stop, None] if self.causal else n)
            seen = torch.cat([near[:size, :size], far.expand(size, count)], 1)[None, None]
            if mask is not None:
                seen = seen & torch.cat([mask[:, start:stop], mask[:, ends[:count]]], 1)[:, None, None]
            keys, values = (torch.cat(pair, 1) for pair in ((own[1], far_k[:, :count]), (own[2], far_v[:, :count])))
            parts.append(attend(own[0], keys, values, seen, self.site.heads, self._dropout))
        return torch.cat(parts, 1)

    def _ends_before(self, stop: int) -> int:
        """How many summary columns lie before a place."""
        return stop // self.block * self.summary + max(0, stop % self.block - (self.block - self.summary))

    def _strided(
        self, q: Float[Tensor, "b n e"], k: Float[Tensor, "b n e"], v: Float[Tensor, "b n e"], mask: Mask
    ) -> Float[Tensor, "b n e"]:
        b, (batch, n, width) = self.block, q.shape
        reach = (b - 1, 0 if self.causal else b - 1)
        q = q / math.sqrt(width)
        near = blocks(q, b) @ around(k, b, *reach).mT
        far = (_by_remainder(q, b) @ _by_remainder(k, b).mT).transpose(1, 2).flatten(0, 1)
        weights = masked_softmax(torch.cat([near, far], -1), self._seen_strided(mask, n, reach, q))
        weights = drop(weights, self._dropout, self.training)
        of_near, of_far = weights.split([near.shape[-1], far.shape[-1]], -1)
        y_far = of_far.unflatten(0, (batch, -1)).transpose(1, 2) @ _by_remainder(v, b)
        return unblocks(of_near @ around(v, b, *reach) + y_far.transpose(1, 2).flatten(0, 1), batch, n)

    def _seen_strided(self, mask: Mask, n: int, reach: tuple[int, int], like: Tensor) -> Bool[Tensor, "a q k"]:
        """What each token of a block sees in the window of the block and, behind that, among its equal remainders."""
        b, device = self.block, like.device
        query, place = torch.arange(b, device=device)[:, None], torch.arange(b + sum(reach), device=device)
        band = (place >= query) & (place <= query + sum(reach))
        near = band & around_mask(mask, n, b, *reach, device)[:, None]
        number = torch.arange(-(-n // b), device=device)
        # Distance 0 is in the window already.
        other = number < number[:, None] if self.causal else number != number[:, None]
        real = around_mask(mask, n, b, 0, 0, device).unflatten(0, (-1, len(number)))
        far = (other[:, None] & real.mT[:, None]).flatten(0, 1)
        seen = torch.cat([near, far], -1)
        return seen.repeat(len(like) * len(number) // len(seen), 1, 1)


def _by_remainder(x: Float[Tensor, "b n e"], size: int) -> Float[Tensor, "b s k e"]:
    """Tokens of equal remainder modulo `size` as sequences of their own; zeros at the end."""
    return blocks(x, size).unflatten(0, (len(x), -1)).transpose(1, 2)
