"""Dynamic projection of a sequence to a few slots (Zhu et al. 2021, https://arxiv.org/abs/2107.02192, Section 3.2)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.ops.mixed_precision import without_autocast
from subquad.ops.softmax_attention import fused_attention
from subquad.specs import Tokens


class DynamicProjection(nn.Module):
    """Maps any number of tokens to l rows with P = softmax over the tokens of X W_P, l columns in each head.

    form "per_head_value": LayerNorm([P_1ᵀ X W_V,1 ; ... ; P_hᵀ X W_V,h]), heads side by side
         "per_head":       head i mixes its own slice of the width, [P_1ᵀ X_1 ; ... ; P_hᵀ X_h]
         "single":         Pᵀ X, one head

    Rows of Pᵀ sum to 1, so that Pᵀ(X W_V + b) = (Pᵀ X) W_V + b. The columns of W_P are then queries, the tokens keys
    and values, of one fused attention call, which makes no n x h·l weights. The softmax is in float32.

    `bias` adds a bias to X W_P. It is constant along the tokens, so that the softmax cancels it: it adds parameters
    and does not change the output. Where heads do not divide the width, the first heads are one channel wider.
    """

    def __init__(
        self, dim: int, heads: int, slots: int, form: Literal["per_head_value", "per_head", "single"], bias: bool
    ) -> None:
        super().__init__()
        self.heads, self.form = 1 if form == "single" else heads, form
        self.score = nn.Linear(dim, self.heads * slots, bias)
        self.value = nn.Linear(dim, dim) if form == "per_head_value" else None
        self.norm = nn.LayerNorm(dim) if form == "per_head_value" else nn.Identity()

    def forward(self, x: Tokens, mask: Bool[Tensor, "c n"] | None) -> Float[Tensor, "b l d"]:
        """Slots of the tokens where `mask` is True; rows whose mask is all False use all of their tokens."""
        with without_autocast(x):
            tokens = x.to(torch.promote_types(x.dtype, torch.float32))
            rows = self._rows(tokens, mask).unflatten(1, (self.heads, -1))
            rows = rows.squeeze(1) if self.form == "single" else self._merge(rows)
        return self.norm(rows.to(x.dtype))

    def _rows(self, x: Tokens, mask: Bool[Tensor, "c n"] | None) -> Float[Tensor, "b hl d"]:
        """Pᵀ X, with the heads along the rows."""
        dim, queries = x.shape[-1], self.score.weight
        if self.score.bias is not None:  # x W + b = [x, 1] [W, b]
            queries, x = torch.cat([queries, self.score.bias[:, None]], 1), F.pad(x, (0, 1), value=1.0)
        keys = None if mask is None else (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
        queries = queries.to(x.dtype).expand(x.shape[0], 1, -1, -1)
        rows = fused_attention(queries, x[:, None], x[:, None], attn_mask=keys, scale=1.0)
        return rows[:, 0, :, :dim]

    def _merge(self, rows: Float[Tensor, "b h l d"]) -> Float[Tensor, "b l d"]:
        """Concatenates the part of the width of each head."""
        if self.value is None:
            return torch.cat([rows[:, i].tensor_split(self.heads, -1)[i] for i in range(self.heads)], -1)
        weights = self.value.weight.to(rows.dtype).tensor_split(self.heads)
        return torch.cat([rows[:, i] @ w.mT for i, w in enumerate(weights)], -1) + self.value.bias.to(rows.dtype)
