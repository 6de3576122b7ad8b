"""DBA with every setting that the paper leaves open, around Eq. 10-12 of attention/dba.py.

`Choices` has the settings of attention.dba.DBA under the same names.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subquad.attention.dba import naive_compression, naive_mixing


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings."""

    heads: int
    d_in: int
    z_mode: str
    compress_heads: str
    phi_scale: str
    recon_source: str
    recon_norm: str
    d_in_mode: str
    scale: str
    r_shared: bool
    out_proj: bool
    optimize_n: bool
    optimize_d: bool

    @property
    def groups(self) -> int:
        """How many parts of the width have compressions of their own."""
        return self.heads if self.compress_heads == "per_head" else 1


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, cross: bool, last: bool, c: Choices
) -> tuple[Tensor, Tensor | None]:
    """`last`: the layer hands no new Z on."""
    m = attention
    q = m.query(x)
    if not c.optimize_n:
        y = mixed(m, q, m.key(context), m.value(context), c)
        return (m.out(y) if c.out_proj else y), carry
    z = m.latent if carry is None or c.z_mode == "per_layer" else carry
    if cross:
        pooled = compressed(z, m.query(context), context, c)
        k, v = m.key(pooled), m.value(pooled)
        q_rows = compressed(m.guide(pooled), q, q, c)
    else:
        pooled = compressed(z, q, x, c)
        k_tokens = m.key(context)
        q_rows, k = compressed(z, q, q, c), compressed(z, k_tokens, k_tokens, c)
        v = contracted(m, context, k_tokens, c)
    y = expanded(m, x, q, mixed(m, q_rows, k, v, c), c)
    y = m.out(y) if c.out_proj else y
    if c.z_mode == "per_layer":
        return y, carry
    return y, m.norm(z + pooled) if c.z_mode == "propagate" and not last else z


def compressed(z: Tensor, scored: Tensor, rows: Tensor, c: Choices) -> Tensor:
    """softmax(Z Sᵀ) rows, over the tokens, in each group."""
    parts = []
    for z_g, s_g, rows_g in zip(z.chunk(c.groups, 1), scored.chunk(c.groups, 1), rows.chunk(c.groups, 1), strict=True):
        parts.append(naive_compression(z_g / z_g.shape[1] ** 0.5 if c.phi_scale == "sqrt_d" else z_g, s_g, rows_g))
    return torch.cat(parts, 1)


def contracted(m: nn.Module, context: Tensor, keys: Tensor, c: Choices) -> Tensor:
    """W'_cᵀ V."""
    w = m.contract(context if c.recon_source == "x" else keys)
    if c.recon_norm == "inv_len":
        w = w / len(context)
    if c.recon_norm == "softmax":
        w = w.softmax(0)
    v = m.value(context)
    return torch.cat([a.T @ b for a, b in zip(w.chunk(c.groups, 1), v.chunk(c.groups, 1), strict=True)], 1)


def expanded(m: nn.Module, x: Tensor, queries: Tensor, u: Tensor, c: Choices) -> Tensor:
    """W'_r U."""
    w = m.expand(x if c.recon_source == "x" else queries)
    parts = []
    for w_g, u_g in zip(w.chunk(c.groups, 1), u.chunk(c.groups, 1), strict=True):
        parts.append((w_g.softmax(1) if c.recon_norm == "softmax" else w_g) @ u_g)
    return torch.cat(parts, 1)


def mixed(m: nn.Module, q: Tensor, k: Tensor, v: Tensor, c: Choices) -> Tensor:
    """softmax((Q R)(K R)ᵀ / √d_in) V over the heads that P' has."""
    maps = 1 if c.d_in_mode == "single_map" else c.heads
    if c.optimize_d:
        q, k = reduced(m.r_query, q, maps, c), reduced(m.r_query if c.r_shared else m.r_key, k, maps, c)
    width = q.shape[1]
    return naive_mixing(q, k, v, maps, (width if c.scale == "total" else width // maps) ** -0.5)


def reduced(r: nn.Linear, rows: Tensor, maps: int, c: Choices) -> Tensor:
    """Rows times R; the width that comes out is d_in, rounded up to a multiple of the heads where they share it."""
    if c.d_in_mode == "per_head":
        return torch.cat([r(part) for part in rows.chunk(c.heads, 1)], 1)
    assert r.out_features == math.ceil(c.d_in / maps) * maps
    return r(rows)
