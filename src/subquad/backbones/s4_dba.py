"""S4+DBA (Qin et al. 2022, https://arxiv.org/abs/2211.16368, Section 4.5, Appendix A.3 and Table 10)."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.s4 import S4Encoder
from subquad.ops.masks import masked_softmax
from subquad.ops.softmax_attention import fused_attention
from subquad.specs import ContextMask, DataSpec, Mask
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count


class S4DBAEncoder(S4Encoder):
    """S4 whose layers after the first run on d_p rows, compressed from the n tokens and expanded again as in DBA:

        H = S4_1(X);   W_r = softmax over tokens of Z (H W_K)ᵀ;   Y = S4_L(... S4_2(W_r H));   H' = W'_r Y

    Z is learned and W'_r is a linear map of H. The layers in between read the rows as d_p steps in time, but nothing in
    the formula orders them: `locality` adds -(s (t_j - r))²/2 to the logits of token j and row r of both weights, where
    t_j is the position of the token on the scale of the rows and s is learned (1 at first).

    Z (H W_K)ᵀ = (Z W_K) Hᵀ, so that no token is projected. Time and memory grow with n d_p: with n² for d_p = n/2.
    docs/deviations.md gives the reasons for the defaults.

    Args:
        dim: width of the model, d.
        d_p: number of rows; null: half the longest sequence, as in Table 10.
        locality: "learned" adds the term above, "none" does not.
        restore_norm: normalisation of W'_r over the rows, softmax or none.
        heads: heads of W_r and W'_r, if `compress_heads` is per_head, and of `mix`.
        compress_heads: one W_r and W'_r for all heads (shared), or one for each.
        mix: attention applies attention among the rows before S4_2, as in a DBA layer.
        d_in: width of the queries and keys of `mix` over all heads; null: d/2, as in Table 10.
        read_from: the read-out reads the tokens, expanded from the rows, or the rows.
        residual: add H, so that H' = H + W'_r Y.
        s4: the settings of S4Encoder.
    """

    complexity = "time O(n d_p d + (n + d_p) (d log n + d² + N d)), memory O(n d_p + n (d + N d)) in training"

    def __init__(
        self, spec: DataSpec, dim: Count, d_p: Count | None = None, locality: Literal["learned", "none"] = "learned",
        restore_norm: Literal["softmax", "none"] = "softmax", heads: Count = 4,
        compress_heads: Literal["shared", "per_head"] = "shared", mix: Literal["none", "attention"] = "none",
        d_in: Count | None = None, read_from: Literal["tokens", "rows"] = "tokens", residual: bool = False, **s4: Any,
    ) -> None:  # fmt: skip
        d_p = (spec.max_len + 1) // 2 if d_p is None else d_p
        super().__init__(spec, dim, inner_len=d_p, **s4)
        groups = heads if compress_heads == "per_head" else 1
        self.compress = RowWeights(dim, d_p, groups, locality, guided=True)
        tokens = read_from == "tokens"
        self.restore = RowWeights(dim, d_p, groups, locality, guided=False) if tokens else None
        self.mix = RowAttention(dim, heads, dim // 2 if d_in is None else d_in) if mix == "attention" else None
        self.normalised, self.residual = restore_norm == "softmax", residual

    def encoded(self, x: Float[Tensor, "b d n"], valid: Mask) -> tuple[Float[Tensor, "b d m"], ContextMask]:
        first, *others = self.blocks
        tokens = first(x, valid)
        real = None if valid is None else valid[:, None, None]
        rows = self.compress.applied(tokens, masked_softmax(self.compress(tokens, valid), real).mT)
        some = None if valid is None else valid.any(1, keepdim=True).expand(-1, rows.shape[-1])
        if self.mix is not None:
            rows = rows + self.mix(rows)
        for block in others:
            rows = block(rows, some)
        if self.restore is None:
            return rows, some
        weights = self.restore(tokens, valid)
        restored = self.restore.applied(rows, weights.softmax(2) if self.normalised else weights)
        return (tokens + restored if self.residual else restored), valid


class RowWeights(nn.Module):
    """Logits of every token for each of d_p rows: from Z and W_K (`guided`), or from a linear map of the token."""

    def __init__(self, dim: int, rows: int, groups: int, locality: str, guided: bool) -> None:
        super().__init__()
        if dim % groups:
            raise UserError(
                f"A width of {dim} cannot be split into {groups} heads; choose backbone.heads so that it divides it."
            )
        self.rows, self.groups = rows, groups
        self.latent = nn.Parameter(torch.randn(rows, dim) / math.sqrt(dim)) if guided else None
        self.map = nn.Linear(dim, dim, bias=False) if guided else nn.Linear(dim, groups * rows)
        self.log_sharpness = nn.Parameter(torch.zeros(1)) if locality == "learned" else None

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b g p n"]:
        if self.latent is None:
            weight, bias = self.map.weight, self.map.bias
        else:
            weight, bias = _guides(self.latent, self.map.weight, self.groups), None
        logits = weight @ x
        if bias is not None:
            logits = logits + bias[:, None]
        logits = logits.unflatten(1, (self.groups, self.rows))
        if self.log_sharpness is None:
            return logits
        row = torch.arange(self.rows, dtype=logits.dtype, device=x.device)
        distance = self._places(x, valid)[..., None, :] - row[:, None]
        return logits - (0.5 * torch.exp(2 * self.log_sharpness) * distance.square())[..., None, :, :]

    def applied(self, x: Float[Tensor, "b d m"], weights: Float[Tensor, "b g m k"]) -> Float[Tensor, "b d k"]:
        """x times weights; each group of channels has its own weights."""
        return (x.unflatten(1, (self.groups, -1)) @ weights).flatten(1, 2)

    def _places(self, x: Tensor, valid: Mask) -> Float[Tensor, "*b n"]:
        """The position of each real token on the scale of the rows, evenly spaced from -1/2 to d_p - 1/2."""
        if valid is None:
            rank, count = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device), x.shape[-1]
            return (rank + 0.5) * (self.rows / count) - 0.5
        rank = valid.cumsum(1).to(x.dtype) - 1
        return (rank + 0.5) * (self.rows / valid.sum(1, keepdim=True).clamp(min=1).to(x.dtype)) - 0.5


class RowAttention(nn.Module):
    """Attention among the rows, with queries and keys of a total width of d_in."""

    def __init__(self, dim: int, heads: int, d_in: int) -> None:
        super().__init__()
        if d_in < 1 or d_in % heads or dim % heads:
            raise UserError(
                f"{heads} heads cannot share queries of {d_in} and values of {dim} numbers; choose backbone.heads so "
                "that it divides backbone.d_in and the width."
            )
        self.heads = heads
        self.query, self.key = (nn.Linear(dim, d_in) for _ in range(2))
        self.value, self.out = (nn.Linear(dim, dim) for _ in range(2))

    def forward(self, rows: Float[Tensor, "b d p"]) -> Float[Tensor, "b d p"]:
        tokens = rows.mT
        q, k, v = (
            f(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        mixed = fused_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(mixed).mT


def _guides(z: Float[Tensor, "p d"], weight: Float[Tensor, "d e"], groups: int) -> Float[Tensor, "gp e"]:
    """Z W_K for each group: its product with a token is Z times the key of the token."""
    parts = z.unflatten(1, (groups, -1)).transpose(0, 1)
    return (parts @ weight.unflatten(0, (groups, -1))).flatten(0, 1)
