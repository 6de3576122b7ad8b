"""DBA: dynamic bilinear low-rank attention (Qin et al. 2022, https://arxiv.org/abs/2211.16368, Eq. 8-14)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.ops.bilinear import bilinear
from subquad.ops.dropout import dropout
from subquad.ops.heads import split_heads
from subquad.ops.masks import count, masked_softmax
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import seen_by_torch
from subquad.utils.devices import on_cpu
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import once
from subquad.utils.setting_types import Count


def naive_self_attention(m: "DBA", z: Float[Tensor, "p d"], x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Self-attention as in the paper, for one sequence without padding; `m` holds the parameters.

    The choices that the paper leaves open have their default values.
    """
    assert m.out is not None
    q, k, v = m.query(x), m.key(x), m.value(x)
    q_l, k_l = naive_compression(z, q, q), naive_compression(z, k, k)  # W_r Q and W_c K of Eq. 7
    v_dba = m.contract(x).softmax(0).T @ v  # Eq. 8, with W'_c of X (Section 3.3)
    mixed = naive_mixing(m.r_query(q_l), m.r_key(k_l), v_dba, m.maps, m.scale)
    return m.out(m.expand(x).softmax(1) @ mixed)  # Eq. 10, with W'_r of X (Section 3.3)


def naive_cross_attention(
    m: "DBA", z: Float[Tensor, "p d"], x_1: Float[Tensor, "n d"], x_2: Float[Tensor, "m d"]
) -> Float[Tensor, "n d"]:
    """Cross-attention of the queries of x_1 to x_2 as in the paper."""
    assert m.out is not None
    pooled = naive_compression(z, m.query(x_2), x_2)  # W_r2 X_2, the source of Z_1, K_2 and V_2 (Section 3.4)
    q = m.query(x_1)
    q_l = naive_compression(m.guide(pooled), q, q)  # Eq. 14
    mixed = naive_mixing(m.r_query(q_l), m.r_key(m.key(pooled)), m.value(pooled), m.maps, m.scale)
    return m.out(m.expand(x_1).softmax(1) @ mixed)


def naive_compression(
    z: Float[Tensor, "p d"], scored: Float[Tensor, "n d"], rows: Float[Tensor, "n c"]
) -> Float[Tensor, "p c"]:
    """φ(Z Sᵀ) X: d_p weighted means of the rows, where φ is the softmax over the tokens."""
    return (z @ scored.T).softmax(1) @ rows  # Eq. 11 (S = Q), Eq. 12 (S = K)


def naive_mixing(
    q: Float[Tensor, "n i"], k: Float[Tensor, "m i"], v: Float[Tensor, "m d"], heads: int, scale: float
) -> Float[Tensor, "n d"]:
    """P' V_DBA in each head, of queries and keys that R has reduced to d_in; `scale` is 1 / √d_in of a head."""
    parts = zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), strict=True)
    return torch.cat([(a @ b.T * scale).softmax(1) @ c for a, b, c in parts], 1)  # Eq. 10


class DBA(Attention):
    """Y = W'_r softmax((W_r Q R)(W_c K R)ᵀ / √d_in) (W'_cᵀ V) W_O: n tokens are compressed to d_p, width d to d_in.

    W_r = softmax(Z Qᵀ), W_c = softmax(Z Kᵀ) over the tokens; W'_r, W'_c = linear maps of X to d_p; R: d -> d_in.
    Cross-attention (Eq. 14): C = softmax(Z (X_2 W_Q)ᵀ) X_2 gives K_2, V_2 and Z_1 = Linear(C), which compresses Q_1.

    The paper leaves most settings open; docs/deviations.md gives the reasons for the defaults. Presets set several of
    them at once: `attention=dba_printed`, `dba_propagate`, `dba_per_head`, `dba_full_n`, `dba_full_d`.

    Args:
        d_p: rows that the tokens are compressed to.
        d_in: width that queries and keys are reduced to.
        z_mode: "shared" has one Z in all layers; "propagate" updates Z ← LayerNorm(Z + W_r X) from layer to layer;
            "per_layer" has a Z in each layer.
        compress_heads: W_r, W_c, W'_r and W'_c are "shared" by all heads, or each head has its own ("per_head").
        phi_scale: scale of the logits Z Qᵀ and Z Kᵀ: "none", or "sqrt_d" divides them by √d.
        recon_source: W'_r and W'_c are linear maps of the layer input ("x") or of the queries and keys ("qk").
        recon_norm: "none"; "inv_len" divides W'_c by the number of tokens; "softmax" makes the rows of W'_cᵀ and W'_r
            sum to 1.
        mask: "logits" hides padding everywhere; "none" treats padding as tokens.
        d_in_mode: d_in is the "total" over all heads, the width of each head ("per_head"), or the width of the only
            map ("single_map": P' has one head).
        scale: the softmax of P' divides by √ of the width of a head ("per_head") or of all heads ("total").
        r_shared: use one R for queries and keys.
        r_bias: give R a bias.
        r_init: first values of R: "unbiased" N(0, 1/d_in), "printed" N(0, 1/d), or "xavier".
        out_proj: apply the output map W_O.
        optimize_n: compress the tokens; false is the paper's ablation "w/o optimize n".
        optimize_d: reduce the width by R; false is the paper's ablation "w/o optimize d".

    Why the fast path is equal: rows of W_r sum to 1 and the maps are affine, so

        Z Qᵀ = (Z W_Qᵀ) Xᵀ + const,   W_r Q = (W_r X) W_Q + b_Q,   W'_cᵀ V = (W'_cᵀ X) W_V + (W'_cᵀ 1) b_Vᵀ.

    X is multiplied by one matrix of 4 d_p rows, which gives the logits of W_r and W_c and W'_c and W'_r. Three of these
    compress X, and the d_p rows are projected. W_O acts on d_p rows before W'_r expands them to n. So input and output
    are the only tensors of n x d numbers.

    Examples:
        >>> import torch
        >>> from subquad import DBA, Masks
        >>> x, mask = torch.randn(2, 300, 64), torch.arange(300) < torch.tensor([[200], [300]])
        >>> DBA(dim=64, heads=4, d_p=8)(x, mask=mask).shape
        torch.Size([2, 300, 64])

        In a stack, the first layer owns Z and the others get it as the carry:

        >>> layers = [DBA(dim=64, heads=4, layer=i, layers=3) for i in range(3)]
        >>> y, carry = x, None
        >>> for layer in layers:
        ...     change, carry = layer(y, y, Masks(mask, mask), carry)
        ...     y = y + change

    Released code: for time series only, and another function than that of the paper's text (attention=dba_released).
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d_p d + d_p² d_in), memory O(n (d + d_p))"

    def __init__(
        self, site: Site, d_p: Count = 16, d_in: Count = 24,
        z_mode: Literal["shared", "propagate", "per_layer"] = "shared",
        compress_heads: Literal["shared", "per_head"] = "shared", phi_scale: Literal["none", "sqrt_d"] = "none",
        recon_source: Literal["x", "qk"] = "x", recon_norm: Literal["none", "inv_len", "softmax"] = "softmax",
        mask: Literal["logits", "none"] = "logits", d_in_mode: Literal["total", "per_head", "single_map"] = "total",
        scale: Literal["per_head", "total"] = "per_head", r_shared: bool = True, r_bias: bool = False,
        r_init: Literal["unbiased", "printed", "xavier"] = "unbiased", out_proj: bool = True, optimize_n: bool = True,
        optimize_d: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(site)
        dim, heads = site.dim, site.heads
        self.cross = site.pattern is Pattern.CROSS
        self.d_p, self.z_mode, self.recon_norm, self.mask = d_p, z_mode, recon_norm, mask
        self.recon_from_x = recon_source == "x"
        self.groups = heads if compress_heads == "per_head" else 1
        self.phi_scale = 1.0 if phi_scale == "none" else (dim // self.groups) ** -0.5
        self.maps = 1 if d_in_mode == "single_map" else heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim) if out_proj else None
        self.per_head_r = d_in_mode == "per_head"
        self.optimize_n = optimize_n
        width = dim
        if optimize_d:
            # Rounded up so that the heads share d_in evenly (24 over 16 heads becomes 32).
            width = d_in * heads if self.per_head_r else math.ceil(d_in / self.maps) * self.maps
            source, target = (dim // heads, d_in) if self.per_head_r else (dim, width)
            self.r_query = _reduction(source, target, r_bias, r_init)
            self.r_key = self.r_query if r_shared else _reduction(source, target, r_bias, r_init)
        self.optimize_d = optimize_d
        self.scale = (width if scale == "total" else width // self.maps) ** -0.5
        if not optimize_n:
            self.complexity = "time O(n² (d_in + d)), memory O(n d)"
            return
        rows = self.groups * d_p
        self.expand = nn.Linear(dim, rows)
        if self.cross:
            self.guide = nn.Linear(dim, dim)
        else:
            self.contract = nn.Linear(dim, rows)
        # The settings that `bilinear` supports.
        self.plain_keys = (
            self.groups == 1 and self.recon_from_x and recon_norm == "softmax" and out_proj and optimize_d and r_shared
            and not r_bias and not self.per_head_r and not self.cross
        )  # fmt: skip
        owns = z_mode == "per_layer" or site.layer == 0
        self.latent = nn.Parameter(torch.randn(d_p, dim) / math.sqrt(dim)) if owns else None
        updates = z_mode == "propagate" and site.layer < site.layers - 1
        self.norm = nn.LayerNorm(dim) if updates else None

    def attend_with_carry(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        self.check_lengths(x, context)
        if self.mask == "none":
            masks = Masks()
        if not self.optimize_n:
            return self._full_length(x, context, masks), carry
        z = self._latent(carry)
        y, compressed = (self._cross if self.cross else self._self)(x, context, masks, z)
        if self.z_mode == "per_layer":
            return y, carry
        return y, z if self.norm is None else self.norm(z + compressed[:, : self.d_p])

    def carry_of_weights(self) -> Carry:
        return self._latent(None) if self.optimize_n and self.z_mode == "shared" else None

    def compression(self, context: Context, masks: Masks, carry: Carry, keys: bool = False) -> Float[Tensor, "b gp m"]:
        """W_r of the context tokens (W_r2 in cross-attention), or W_c with `keys`; 0 at padding."""
        keep = None if masks.context is None or self.mask == "none" else masks.context[:, None, :]
        logits = self._compressor(self._latent(carry), self.key if keys else self.query) @ context.mT
        return masked_softmax(logits, keep)

    def _latent(self, carry: Carry) -> Float[Tensor, "#b p d"]:
        """Z, with a batch axis of 1 as long as it is the same for all rows of the batch."""
        if carry is not None and self.z_mode != "per_layer":
            return carry
        if self.latent is None:
            raise UserError(
                f"DBA in layer {self.site.layer} needs Z of the layer before it; "
                "use DBA in all layers or attention.z_mode=per_layer."
            )
        return once((self, "latent"), self.latent[None].clone, self.latent)  # a carry is no parameter

    def _self(self, x: Tensor, _: Tensor, masks: Masks, z: Tensor) -> tuple[Tensor, Tensor]:
        """Self-attention of x [b, n, d] with Z [1 or b, d_p, d]; also returns rows of which the first d_p are W_r X."""
        if self._plain(x):
            assert self.out is not None
            maps = (self.query, self.key, self.value, self.contract, self.expand, self.out)
            return bilinear(
                x, z, masks.context, [(m.weight, m.bias) for m in maps], self.r_query.weight,
                dropout_p=self._dropout,
                heads=self.maps, logit_scale=self.phi_scale, scale=self.scale,
            )  # fmt: skip
        f_c, c_bias = self._reconstructor(self.contract, self.key)
        f_r, r_bias = self._reconstructor(self.expand, self.query)
        g_r, g_c = self._compressor(z, self.query), self._compressor(z, self.key)
        # One product with X gives the logits of W_r and W_c, and W'_cᵀ and W'_r; the last two have biases.
        rows = torch.cat([g_r, g_c, f_c.expand(z.shape[0], -1, -1), f_r.expand(z.shape[0], -1, -1)], 1).expand(
            x.shape[0], -1, -1
        )
        bias = F.pad(torch.cat([c_bias, r_bias]), (2 * self.groups * self.d_p, 0))
        s = torch.baddbmm(bias[:, None], rows, x.mT)
        w, w_r = s.split([3 * self.groups * self.d_p, self.groups * self.d_p], 1)
        w, sums = self._weights(w, masks.context)
        x_r, x_c, x_v = torch.bmm(w, x).split(self.groups * self.d_p, 1)
        q = self._project(x_r, self.query)
        k = self._project(x_c, self.key)
        v = self._project(x_v, self.value, sums)
        return self._expand(self._mix(q, k, v), w_r), self._pooled(x_r)

    def _plain(self, x: Tensor) -> bool:
        """Whether `bilinear` supports these settings and this call."""
        return self.plain_keys and not seen_by_torch() and not (on_cpu(x) and torch.is_autocast_enabled("cpu"))

    def _cross(self, x: Tensor, context: Tensor, masks: Masks, z: Tensor) -> tuple[Tensor, Tensor]:
        """Queries x [b, n, d] read context [b, m, d]; also returns C = W_r2 X_2 [b, d_p, d]."""
        c_2 = self._pooled(self.compression(context, masks, z) @ context)
        f_r, r_bias = self._reconstructor(self.expand, self.query)
        g_r = self._compressor(self.guide(c_2), self.query)
        r, recon_r = torch.bmm(torch.cat([g_r, f_r.expand(x.shape[0], -1, -1)], 1), x.mT).chunk(2, 1)
        keep_1 = None if masks.query is None else masks.query[:, None, :]
        q = self._project(torch.bmm(masked_softmax(r, keep_1), x), self.query)
        y = self._expand(self._mix(q, self.key(c_2), self.value(c_2)), recon_r + r_bias[:, None])
        return y, c_2

    def _full_length(self, x: Tensor, context: Tensor, masks: Masks) -> Tensor:
        """ "w/o optimize n": softmax((Q R)(K R)ᵀ / √d_in) V over all tokens."""
        keys = None if masks.context is None else masks.context[:, None, None, :]
        q, k = self._reduce(self.query(x), key=False), self._reduce(self.key(context), key=True)
        v = split_heads(self.value(context), self.maps)
        y = softmax_attention(q, k, v, attn_mask=keys, dropout_p=self._dropout, scale=self.scale)
        y = y.transpose(1, 2).flatten(-2)
        return y if self.out is None else self.out(y)

    def _compressor(self, z: Float[Tensor, "b p d"], linear: nn.Linear) -> Float[Tensor, "b gp d"]:
        """G = Z W: multiplied with Xᵀ it gives Z Qᵀ up to a constant along the tokens."""
        if self.groups == 1:
            g = z @ linear.weight
        else:
            g = (split_heads(z, self.groups) @ linear.weight.view(self.groups, -1, self.site.dim)).flatten(1, 2)
        return g if self.phi_scale == 1 else g * self.phi_scale

    def _reconstructor(
        self, linear: nn.Linear, source: nn.Linear
    ) -> tuple[Float[Tensor, "gp d"], Float[Tensor, " gp"]]:
        """Weight and bias of the map from x to W', through the queries or keys if `recon_source` is "qk"."""
        if self.recon_from_x:
            return linear.weight, linear.bias
        return linear.weight @ source.weight, linear.weight @ source.bias + linear.bias

    def _weights(
        self, w: Float[Tensor, "b r n"], mask: Mask
    ) -> tuple[Float[Tensor, "b r n"], Float[Tensor, "b gp 1"] | None]:
        """W_r, W_c and W'_cᵀ from their logits, 0 at padding; and row sums of W'_cᵀ, or None if they are 1."""
        keep = None if mask is None else mask[:, None, :]
        if self.recon_norm == "softmax":
            return masked_softmax(w, keep), None
        w, w_c = w.split([2 * self.groups * self.d_p, self.groups * self.d_p], 1)
        if keep is not None:
            w_c = w_c.masked_fill(~keep, 0)
        if self.recon_norm == "inv_len":
            w_c = w_c / count(mask, w_c.shape[-1])
        return torch.cat([masked_softmax(w, keep), w_c], 1), w_c.sum(-1, keepdim=True)

    def _project(
        self, rows: Float[Tensor, "b gp d"], linear: nn.Linear, bias_weight: Tensor | None = None
    ) -> Float[Tensor, "b p d"]:
        """Applies a linear map to compressed rows; `bias_weight` [b, gp, 1]: sums of their weights if not 1."""
        if self.groups == 1:
            return linear(rows) if bias_weight is None else rows @ linear.weight.mT + bias_weight * linear.bias
        weight = linear.weight.view(self.groups, -1, self.site.dim)
        bias = linear.bias.view(self.groups, 1, -1)
        if bias_weight is not None:
            bias = bias_weight.unflatten(1, (self.groups, -1)) * bias
        return (rows.unflatten(1, (self.groups, -1)) @ weight.mT + bias).transpose(1, 2).flatten(-2)

    def _mix(
        self, q: Float[Tensor, "b p d"], k: Float[Tensor, "b p d"], v: Float[Tensor, "b p d"]
    ) -> Float[Tensor, "b gp d"]:
        """U = P' V_DBA W_O, one block of d_p rows for each group."""
        p = (self._reduce(q, key=False) @ self._reduce(k, key=True).mT * self.scale).softmax(-1)
        u = dropout(p, self.site.dropout, self.training) @ split_heads(v, self.maps)
        u = u.transpose(1, 2).flatten(-2)
        if self.groups == 1:
            return u if self.out is None else F.linear(u, self.out.weight, self._shared_bias)
        blocks = split_heads(u, self.groups)
        if self.out is None:
            # Without W_O each group keeps its own part of the width, as if W_O were the identity.
            eye = torch.eye(self.site.dim, dtype=u.dtype, device=u.device)
            return (blocks @ eye.view(self.groups, -1, self.site.dim)).flatten(1, 2)
        u = (blocks @ self.out.weight.mT.view(self.groups, -1, self.site.dim)).flatten(1, 2)
        return u if self._shared_bias is None else u + self._shared_bias / self.groups

    @property
    def _shared_bias(self) -> Tensor | None:
        """b_O if the rows of W'_r sum to 1, so that W'_r (U + 1 b_Oᵀ) = W'_r U + b_O."""
        return self.out.bias if self.out is not None and self.recon_norm == "softmax" else None

    def _expand(self, u: Float[Tensor, "b gp d"], w_r: Float[Tensor, "b gp n"]) -> Tokens:
        """Y = W'_r U + b_O."""
        if self.recon_norm == "softmax":
            parts = w_r if self.groups == 1 else w_r.unflatten(1, (self.groups, -1))
            return torch.bmm(parts.softmax(-2).view_as(w_r).mT, u)
        return torch.bmm(w_r.mT, u) if self.out is None else torch.baddbmm(self.out.bias, w_r.mT, u)

    def _reduce(self, x: Tokens, key: bool) -> Float[Tensor, "b h n e"]:
        """Q R or K R, split into heads."""
        if not self.optimize_d:
            return split_heads(x, self.maps)
        r = self.r_key if key else self.r_query
        return r(split_heads(x, self.maps)) if self.per_head_r else split_heads(r(x), self.maps)

    def _pooled(self, rows: Float[Tensor, "b gp d"]) -> Float[Tensor, "b p d"]:
        """W_r X; with a W_r for each head, each part of the width is taken from its head's rows."""
        if self.groups == 1:
            return rows
        parts = rows.unflatten(1, (self.groups, -1)).unflatten(-1, (self.groups, -1))
        return parts.diagonal(dim1=1, dim2=3).movedim(-1, 2).flatten(-2)


def _reduction(source: int, target: int, bias: bool, init: str) -> nn.Linear:
    """R. N(0, 1/d_in) keeps inner products unbiased (E[R Rᵀ] = I); the paper prints N(0, 1/d)."""
    r = nn.Linear(source, target, bias=bias)
    if init == "xavier":
        nn.init.xavier_uniform_(r.weight)
    else:
        nn.init.normal_(r.weight, std=(target if init == "unbiased" else source) ** -0.5)
    return r
