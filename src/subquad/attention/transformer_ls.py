"""Transformer-LS, long-short attention (Zhu et al. 2021, https://arxiv.org/abs/2107.02192, Sections 3.1-3.3)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Affine, Projections, StatelessAttention
from subquad.ops.blocks import around, around_mask, blocks, unblocks, visible_in_windows
from subquad.ops.masks import masked_softmax, zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Natural, Odd

QUERIES = 64
"""Queries that share one window of keys: fewer leave the products too small, more multiply masked keys."""


class TransformerLS(StatelessAttention):
    """y_i = softmax(q_i [K̄; K_i]ᵀ / √d_h) [V̄; V_i]: r summaries of the sequence and the neighbourhood of token i.

    K̄ = LN_s(Pᵀ K), V̄ = LN_s(Pᵀ V) in each head, P = softmax over the tokens of X W_P (dynamic projection).
    K_i, V_i: the tokens of i's segment of `window` tokens and window / 2 more (at least one) on each side of it.
    K = LN_l(X W_k), V = LN_l(X W_v): each LayerNorm serves keys and values (DualLN) and spans all heads.

    Args:
        window: tokens of a segment.
        rank: number r of summaries; 0 gives local attention.
        scores: input of W_P, the layer's "input" or the projected "keys"; the paper writes K W_P.
        kernel: taps of a convolution of V along the tokens, odd, one filter for each head, which starts at zero and is
            added to y; null for none.

    A class token c (`Masks.class_token`) is kept apart from the tokens after it, whose segments start at the first of
    them. LN_s(c W_k) and LN_s(c W_v) join the summaries, so that every token sees c. With O the outputs of the tokens
    before the convolution and the output map, c reads softmax(c W_q [c W_k; O]ᵀ / √d_h) [c W_v; O] in each head.

    Padded tokens have no weight in P and in the softmax and count as 0 in the convolution. W_P has no bias: the softmax
    over tokens would cancel it.

    Why the fast path is equal: segments of fewer than 64 tokens share their products: a block of whole segments attends
    to one window of keys through a mask that is the same for all blocks. LayerNorm lies between projection and
    compression, so K and V must exist at full length.

    Examples:
        >>> import torch
        >>> from subquad import TransformerLS
        >>> layer = TransformerLS(dim=64, heads=4, window=16, rank=8)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: as here with scores=input; W_P has a bias, and rows without a visible key become 0. The weights
    of the class token are not dropped, there and here.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n (r + w) d), memory O(n (r + d)) for windows of w tokens"

    def __init__(
        self, site: Site, window: Count = 8, rank: Natural = 32, scores: Literal["input", "keys"] = "input",
        kernel: Odd | None = None,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.window, self.rank, self.scores = window, rank, scores
        self.projections = Projections(site.dim, site.heads)
        self.norm_tokens = nn.LayerNorm(site.dim)
        self.compress = Affine(site.dim, site.heads * rank, bias=False) if rank else None
        self.norm_slots = nn.LayerNorm(site.dim) if rank else None
        self.filters = nn.Parameter(torch.zeros(site.heads, kernel)) if kernel else None

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, mask = self.projections, masks.context
        if not masks.class_token:
            rows, values = self._read(x, context, mask)
            return p.out(self._filtered(rows, values, mask))
        if self.norm_slots is None:
            raise UserError(
                "Transformer-LS gives a class token the norm of its summaries and has none with attention.rank=0; set "
                "attention.rank to at least 1 or choose another backbone.pooling."
            )
        token, x, context = x[:, :1], x[:, 1:], context[:, 1:]
        of_tokens = None if mask is None else mask[:, 1:]
        key, value = p.key(token), p.value(token)
        rows, values = self._read(x, context, of_tokens, (key, value))
        own = softmax_attention(
            p.split(p.query(token)),
            p.split(torch.cat([key, rows], 1)),
            p.split(torch.cat([value, rows], 1)),
            attn_mask=None if mask is None else mask[:, None, None],
        )
        return p.out(torch.cat([own.transpose(1, 2).flatten(-2), self._filtered(rows, values, of_tokens)], 1))

    def _read(
        self, x: Tokens, context: Context, mask: ContextMask,
        token: tuple[Float[Tensor, "b 1 d"], Float[Tensor, "b 1 d"]] | None = None,
    ) -> tuple[Tokens, Context]:  # fmt: skip
        """Outputs of all heads and the normalised values; `token`: key and value of a class token."""
        p = self.projections
        raw = p.key(context)
        weights = self._weights(context if self.scores == "input" else raw, mask)
        extra_key, extra_value = token or (None, None)
        keys = self._rows(self.norm_tokens(raw), weights, extra_key)
        # Here and below, `del` frees memory.
        del raw
        values = self.norm_tokens(p.value(context))
        y = softmax_attention(
            p.split(blocks(p.query(x), self._sizes(x)[2])),
            keys,
            self._rows(values, weights, extra_value),
            attn_mask=self._visible(mask, context, self.rank + (token is not None)),
            dropout_p=self._dropout,
        )
        del keys
        return unblocks(y.transpose(1, 2).flatten(-2), *x.shape[:2]), values

    def _sizes(self, x: Context) -> tuple[int, int, int]:
        """Tokens of a segment, no longer than the longest sequence, of its neighbours, and of a block of queries."""
        window = min(self.window, self.longest(x, x)[1])
        return window, max(window // 2, 1), window * math.ceil(QUERIES / window)

    def _weights(self, x: Context, mask: ContextMask) -> Float[Tensor, "b h r m"] | None:
        """Pᵀ, normalised at least in single precision."""
        if self.compress is None:
            return None
        scores = self.compress(x)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = masked_softmax(scores, None if mask is None else mask[..., None], 1)
        return weights.to(x.dtype).unflatten(-1, (self.site.heads, -1)).permute(0, 2, 3, 1)

    def _rows(
        self, x: Context, weights: Float[Tensor, "b h r m"] | None, token: Float[Tensor, "b 1 d"] | None = None
    ) -> list[Float[Tensor, "blocks h _ e"]]:
        """The rows of x that a block of queries sees: class token, summaries, and the window around the block."""
        split = self.projections.split
        _, beside, block = self._sizes(x)
        windows = split(around(x, block, beside, beside))
        if weights is None or self.norm_slots is None:
            return [windows]
        slots = (weights.to(x.dtype) @ split(x)).transpose(1, 2).flatten(-2)
        slots = self.norm_slots(slots if token is None else torch.cat([token, slots], 1)).to(x.dtype)
        count = windows.shape[0] // x.shape[0]
        return [split(slots)[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1), windows]

    def _visible(self, mask: ContextMask, context: Context, seen_by_all: int) -> Bool[Tensor, "blocks 1 w v"]:
        """[block, 1, query, key]: whether the query sees the key; the first keys are seen by all queries."""
        device, (window, beside, block) = context.device, self._sizes(context)
        segment = torch.arange(block, device=device)[:, None] // window * window
        place = torch.arange(block + 2 * beside, device=device) - segment
        band = (place >= 0) & (place < window + 2 * beside)
        real = around_mask(mask, context.shape[1], block, beside, beside, device)
        # Padding these small masks is cheaper than padding their product.
        band, real = (F.pad(part, (seen_by_all, 0), value=True) for part in (band, real))
        real = real if mask is not None else real.repeat(context.shape[0], 1)
        return visible_in_windows(band, real)[:, None]

    def _filtered(self, rows: Tokens, values: Tokens, mask: Mask) -> Tokens:
        """The rows, and each head's values filtered along the tokens where there are filters."""
        if self.filters is None:
            return rows
        values = zero_padding(values, mask)
        taps = self.filters.repeat_interleave(values.shape[-1] // len(self.filters), 0)[:, None, :, None]
        # An image of width 1 in channels-last order: torch's one-dimensional convolution is several times slower.
        y = F.conv2d(values.mT[..., None], taps.to(values.dtype), padding=(taps.shape[2] // 2, 0), groups=len(taps))
        return rows + y.squeeze(-1).mT
