"""S4+DBA (Qin et al. 2022, https://arxiv.org/abs/2211.16368, Section 4.5, Appendix A.3 and Table 10)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.backbones.s4 import S4Encoder, choose
from subquad.errors import UserError, at_least_one
from subquad.ops.masking import masked_softmax
from subquad.specs import DataSpec


class S4DBAEncoder(S4Encoder):
    """S4 whose layers after the first run on d_p rows, made of the n tokens as DBA does and spread over them again:

        H = S4_1(X);   W_r = softmax over tokens of Z (H W_K)ᵀ;   Y = S4_L(... S4_2(W_r H));   H' = W'_r Y

    with Z learned and W'_r a linear map of H. Rows are d_p steps in time for the layers in between, but nothing in the
    formula gives them an order: `locality` adds -(s (t_j - r))²/2 to the logits of token j and row r of both weights,
    where t_j is the place of the token on the scale of the rows and s is learned and starts at 1.

    Keys besides those of S4, the likeliest reading first (docs/deviations.md has the reasons):
        d_p: rows; null: half the longest sequence, as in Table 10.
        locality: "learned", "none".
        restore_norm: "softmax" over the rows, or "none": W'_r as it is.
        heads, compress_heads: one W_r and W'_r for all heads ("shared") or for each ("per_head").
        mix: "none"; "attention" lets the rows attend to one another before S4_2, as in a DBA layer: heads of a width
            d_in in all (null: d/2, as in Table 10) for queries and keys.
        read_from: "tokens" restores before the read-out, "rows" reads the rows.
        residual: H' = H + W'_r Y.

    Z (H W_K)ᵀ = (Z W_K) Hᵀ: no token is projected. Time and memory grow with n d_p, so with n² where d_p is n/2.
    """

    complexity = "time O(n d_p d + (n + d_p) (d log n + d² + N d)), memory O(n d_p + n (d + N d)) in training"

    def __init__(
        self,
        spec: DataSpec,
        dim: int,
        d_p: int | None = None,
        locality: Literal["learned", "none"] = "learned",
        restore_norm: Literal["softmax", "none"] = "softmax",
        heads: int = 4,
        compress_heads: Literal["shared", "per_head"] = "shared",
        mix: Literal["none", "attention"] = "none",
        d_in: int | None = None,
        read_from: Literal["tokens", "rows"] = "tokens",
        residual: bool = False,
        **s4: Any,
    ) -> None:
        d_p = (spec.max_len + 1) // 2 if d_p is None else d_p
        at_least_one("S4+DBA", d_p=d_p, heads=heads)
        super().__init__(spec, dim, inner_len=d_p, **s4)
        choose("mix", mix, ("none", "attention"))
        choose("read_from", read_from, ("tokens", "rows"))
        groups = heads if compress_heads == "per_head" else 1
        self.compress = RowWeights(dim, d_p, groups, locality, guided=True)
        tokens = read_from == "tokens"
        self.restore = RowWeights(dim, d_p, groups, locality, guided=False) if tokens else None
        self.mix = RowAttention(dim, heads, dim // 2 if d_in is None else d_in) if mix == "attention" else None
        choose("restore_norm", restore_norm, ("softmax", "none"))
        choose("compress_heads", compress_heads, ("shared", "per_head"))
        choose("locality", locality, ("learned", "none"))
        self.normalised, self.residual = restore_norm == "softmax", residual

    def encoded(
        self, x: Float[Tensor, "b d n"], valid: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b d m"], Bool[Tensor, "b m"] | None]:
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
    """Logits of each token for each of d_p rows, from the token: `guided` by Z through W_K, or by a linear map."""

    def __init__(self, dim: int, rows: int, groups: int, locality: str, guided: bool) -> None:
        super().__init__()
        if dim % groups:
            raise UserError(
                f"A width of {dim} cannot be split into {groups} heads; choose attention.heads so that it divides it."
            )
        self.rows, self.groups = rows, groups
        self.latent = nn.Parameter(torch.randn(rows, dim) / math.sqrt(dim)) if guided else None
        self.map = nn.Linear(dim, dim, bias=False) if guided else nn.Linear(dim, groups * rows)
        self.log_sharpness = nn.Parameter(torch.zeros(1)) if locality == "learned" else None

    def forward(self, x: Float[Tensor, "b d n"], valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b g p n"]:
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
        """x times weights, the weights of each group for its part of the width."""
        return (x.unflatten(1, (self.groups, -1)) @ weights).flatten(1, 2)

    def _places(self, x: Tensor, valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "*b n"]:
        """Where each real token lies among the rows, from -1/2 to d_p - 1/2, if all n lie side by side."""
        if valid is None:
            rank, count = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device), x.shape[-1]
            return (rank + 0.5) * (self.rows / count) - 0.5
        rank = valid.cumsum(1).to(x.dtype) - 1
        return (rank + 0.5) * (self.rows / valid.sum(1, keepdim=True).clamp(min=1).to(x.dtype)) - 0.5


class RowAttention(nn.Module):
    """Attention among the rows, with queries and keys of a width d_in in all."""

    def __init__(self, dim: int, heads: int, d_in: int) -> None:
        super().__init__()
        if d_in < 1 or d_in % heads or dim % heads:
            raise UserError(
                f"{heads} heads cannot share queries of {d_in} and values of {dim} numbers; choose attention.heads so "
                "that it divides attention.d_in and the width."
            )
        self.heads = heads
        self.query, self.key = (nn.Linear(dim, d_in) for _ in range(2))
        self.value, self.out = (nn.Linear(dim, dim) for _ in range(2))

    def forward(self, rows: Float[Tensor, "b d p"]) -> Float[Tensor, "b d p"]:
        tokens = rows.mT
        q, k, v = (
            f(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(mixed).mT


def _guides(z: Float[Tensor, "p d"], weight: Float[Tensor, "d e"], groups: int) -> Float[Tensor, "gp e"]:
    """Z W_K for each group: multiplied with a token it is Z times the token's key."""
    parts = z.unflatten(1, (groups, -1)).transpose(0, 1)
    return (parts @ weight.unflatten(0, (groups, -1))).flatten(0, 1)
