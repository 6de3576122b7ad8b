"""Synthesizer (Tay et al. 2021, https://arxiv.org/abs/2005.00743, Sections 3.1-3.3)."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Affine, StatelessAttention
from subquad.ops.dropout import dropout
from subquad.ops.heads import split_heads
from subquad.ops.masks import masked_softmax
from subquad.ops.softmax_attention import fused_attention
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

Part = Literal["dense", "factorized_dense", "random", "fixed", "factorized_random", "dot"]


class Synthesizer(StatelessAttention):
    """Y = softmax(Σ S(X)) V in each head: logits that need no keys, alone or in a sum.

    dense:             S = relu(X W_1 + b_1) W_2 + b_2, one column for each place of the context
    factorized_dense:  S_ij = A_i,j div b · B_i,j mod b, with A and B maps of relu(X W_1 + b_1) to about √m columns each
    random:            S = R, learned; the same for all inputs
    fixed:             S = R as it was drawn
    factorized_random: S = R_1 R_2ᵀ, both of `rank` columns
    dot:               S = Q Kᵀ / √d_h, the ordinary attention

    Logits belong to positions: a shorter input uses the first rows and columns. Padded keys are hidden from the
    softmax. R and R_1 R_2ᵀ start with variance 1.

    Args:
        parts: terms of the sum, of the names above.
        rank: columns of R_1 and R_2.

    Why the fast path is equal: dense, factorized_random and dot are inner products of a vector of the query and one of
    the key (of the columns of W_2, the rows of R_2), so that any sum of them is one fused attention that never holds
    the logits. R alone has one softmax A for the whole batch, and with padding Y = A V / A 1 over the real tokens
    (dropped weights are then the same in all rows). Other sums are written out, or go to the fused kernel as its bias.

    Examples:
        >>> import torch
        >>> from subquad import Synthesizer
        >>> layer = Synthesizer(dim=64, heads=4, max_len=512, parts=["dense"])
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the paper weights the parts of a sum by a learned softmax; LRA's code just adds them, as here, since
    R and W_Q absorb such weights. LRA's dense mode shares W_2 among heads and confuses the axes of heads and tokens in
    a reshape; without a dot product its padding is not hidden.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n²) with random, fixed or factorized_dense, O(n d) without"

    def __init__(self, site: Site, parts: Sequence[Part] = ("random",), rank: Count = 8) -> None:
        super().__init__(site)
        if not parts or len(set(parts)) < len(parts):
            raise UserError(
                f"attention.parts is {list(parts)}; Synthesizer needs different parts, at least one of "
                f"{', '.join(get_args(Part))}."
            )
        self.parts = frozenset(parts)
        dim, heads, n, m = site.dim, site.heads, site.query_len, site.context_len
        width = dim // heads
        if self.parts - {"dot"}:
            self.fix_length("its tables of logits")
        self.value, self.out = Affine(dim, dim), Affine(dim, dim)
        if "dot" in parts:
            self.query, self.key = Affine(dim, dim), Affine(dim, dim)
        if "dense" in parts:
            self.hidden = Affine(dim, dim)
            self.columns, self.column_bias = _maps(heads, m, width)
        if "factorized_dense" in parts:
            self.factors = math.ceil(math.sqrt(m)), math.ceil(m / math.ceil(math.sqrt(m)))
            self.factor_hidden = Affine(dim, dim)
            self.factor_columns, self.factor_bias = _maps(heads, sum(self.factors), width)
        if "random" in parts:
            self.random = nn.Parameter(torch.randn(heads, n, m))
        if "fixed" in parts:
            self.fixed: Tensor
            self.register_buffer("fixed", torch.randn(heads, n, m))
        if "factorized_random" in parts:
            self.rows, self.row_keys = (nn.Parameter(torch.randn(heads, k, rank) * rank**-0.25) for k in (n, m))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        v = self.value(context).unflatten(-1, (self.site.heads, -1))
        table = self._table(x.shape[1], context.shape[1])
        if self.parts <= {"random", "fixed"}:
            assert table is not None
            return self.out(self._shared(table, v, masks.context).flatten(-2))
        if "factorized_dense" in self.parts:
            products = self._products(x, context.shape[1])
            table = products if table is None else products + table
        keys = None if masks.context is None else masks.context[:, None, None, :]
        y = self._own(table, *self._vectors(x, context), v.transpose(1, 2), keys)
        return self.out(y.transpose(1, 2).flatten(-2))

    def _table(self, n: int, m: int) -> Float[Tensor, "h n m"] | None:
        """The logits that are the same for all inputs."""
        tables: list[Tensor] = [getattr(self, part) for part in ("random", "fixed") if part in self.parts]
        return sum((table[:, :n, :m] for table in tables[1:]), tables[0][:, :n, :m]) if tables else None

    def _products(self, x: Tokens, m: int) -> Float[Tensor, "b h n m"]:
        """The logits of factorized_dense: products of each entry of A with all entries of B."""
        hidden = self._split(F.relu(self.factor_hidden(x)))
        a, b = (hidden @ self.factor_columns.mT + self.factor_bias[:, None]).split(self.factors, -1)
        return (a[..., :, None] * b[..., None, :]).flatten(-2)[..., :m]

    def _vectors(
        self, x: Tokens, context: Context
    ) -> tuple[Float[Tensor, "b h n w"] | None, Float[Tensor, "b h m w"] | None]:
        """Vectors of queries and keys whose inner products are the logits of dense, factorized_random and dot."""
        (batch, n, _), m = x.shape, context.shape[1]
        pairs: list[tuple[Tensor, Tensor]] = []
        if "dot" in self.parts:
            q = self._split(self.query(x))
            pairs.append((q * q.shape[-1] ** -0.5, self._split(self.key(context))))
        if "dense" in self.parts:
            # The column of ones multiplies the bias of each place.
            q = F.pad(self._split(F.relu(self.hidden(x))), (0, 1), value=1)
            pairs.append((q, torch.cat([self.columns, self.column_bias[..., None]], -1)[:, :m]))
        if "factorized_random" in self.parts:
            pairs.append((self.rows[:, :n], self.row_keys[:, :m]))
        if not pairs:
            return None, None
        q, k = (torch.cat([t.expand(batch, -1, -1, -1) for t in side], -1) for side in zip(*pairs, strict=True))
        return q, k

    def _shared(
        self, table: Float[Tensor, "h n m"], v: Float[Tensor, "b m h e"], mask: ContextMask
    ) -> Float[Tensor, "b n h e"]:
        """Weights that all rows of the batch share, divided by their sum over the real tokens of each row."""
        if mask is not None:
            v = v.masked_fill(~mask[..., None, None], 0)
        weights = table.softmax(-1)
        summed = dropout(weights, self.site.dropout, self.training) @ v.permute(2, 1, 0, 3).flatten(-2)
        y = summed.unflatten(-1, (v.shape[0], -1)).permute(2, 1, 0, 3)
        if mask is None:
            return y
        total = (weights @ mask.mT.to(weights.dtype)).permute(2, 1, 0)
        return y / total.masked_fill(total == 0, 1)[..., None]

    def _own(
        self, table: Float[Tensor, "*b h n m"] | None, q: Float[Tensor, "b h n w"] | None,
        k: Float[Tensor, "b h m w"] | None, v: Float[Tensor, "b h m e"], keys: Bool[Tensor, "b 1 1 m"] | None,
    ) -> Float[Tensor, "b h n e"]:  # fmt: skip
        """Weights of each row of the batch."""
        if q is None or k is None:
            assert table is not None
            return dropout(masked_softmax(table, keys), self._dropout, self.training) @ v
        bias = keys if table is None else table if keys is None else table.masked_fill(~keys, -math.inf)
        # The fused kernels take vectors of one width only.
        width = max(q.shape[-1], v.shape[-1])
        q, k, v_wide = (F.pad(t, (0, width - t.shape[-1])) for t in (q, k, v))
        return fused_attention(q, k, v_wide, bias, self._dropout, scale=1.0)[..., : v.shape[-1]]

    def _split(self, x: Tokens) -> Float[Tensor, "b h n e"]:
        return split_heads(x, self.site.heads)


def _maps(heads: int, columns: int, width: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and bias of a linear map for each head, with torch's default initialisation."""
    bound = width**-0.5
    weight, bias = torch.empty(heads, columns, width), torch.empty(heads, columns)
    return nn.Parameter(weight.uniform_(-bound, bound)), nn.Parameter(bias.uniform_(-bound, bound))
