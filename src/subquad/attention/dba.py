"""DBA: dynamic bilinear low-rank attention (Qin et al. 2022, https://arxiv.org/abs/2211.16368, Eq. 8-14)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.errors import UserError, at_least_one
from subquad.ops.bilinear import bilinear
from subquad.ops.dropout import drop
from subquad.ops.heads import split_heads
from subquad.ops.masking import count, masked_softmax
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class DBA(Attention):
    """Y = W'_r softmax((W_r Q R)(W_c K R)ᵀ / √d_in) (W'_cᵀ V) W_O: n tokens are compressed to d_p, width d to d_in.

    W_r = softmax(Z Qᵀ), W_c = softmax(Z Kᵀ) over the tokens; W'_r, W'_c = linear maps of X to d_p; R: d -> d_in.
    Cross-attention (Eq. 14): C = softmax(Z (X_2 W_Q)ᵀ) X_2 gives K_2, V_2 and Z_1 = Linear(C), which compresses Q_1.

    Nothing of size n x d is formed but the input and the output. Since rows of W_r sum to 1 and maps are linear,

        Z Qᵀ = (Z W_Qᵀ) Xᵀ + const,   W_r Q = (W_r X) W_Q + b_Q,   W'_cᵀ V = (W'_cᵀ X) W_V + (W'_cᵀ 1) b_Vᵀ,

    X is multiplied by one matrix of 4 d_p rows (the logits of W_r and W_c, and W'_c, W'_r), then compressed by three of
    them, and the d_p rows are projected; W_O acts on d_p rows before W'_r expands them to n.

    Where the paper leaves a choice, a key takes it; docs/deviations.md has the reasons:
        z_mode: "shared" one Z in all layers; "propagate" Z ← LayerNorm(Z + W_r X) from layer to layer; "per_layer" a Z
            of its own.
        compress_heads: "shared" W matrices for all heads, or "per_head".
        phi_scale: "none" or "sqrt_d", the scale of the logits Z Qᵀ.
        recon_source: W'_r, W'_c are maps of the layer input "x" or of the queries and keys "qk".
        recon_norm: "none"; "inv_len" divides W'_c by the number of tokens; "softmax" makes the rows of W'_cᵀ and W'_r
            sum to 1.
        mask: "logits" hides padding everywhere; "none" ignores it, as a batch without padding would.
        d_in_mode: d_in is the "total" over heads, the width of each head "per_head", or of one map "single_map".
        scale: √ of the width of a head ("per_head") or of all ("total").
        r_shared, r_bias, r_init: one R for queries and keys; its bias; "unbiased" N(0, 1/d_in), "printed" N(0, 1/d),
            "xavier".
        out_proj: whether there is a W_O.
        optimize_n, optimize_d: False are the paper's ablations "w/o optimize n" (no compression of tokens) and
            "w/o optimize d" (no R).

    Released code: for time series only, another function than the text's (attention=dba_released).
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d_p d + d_p² d_in), memory O(n (d + d_p))"

    def __init__(
        self,
        site: Site,
        d_p: int = 16,
        d_in: int = 24,
        z_mode: Literal["shared", "propagate", "per_layer"] = "shared",
        compress_heads: Literal["shared", "per_head"] = "shared",
        phi_scale: Literal["none", "sqrt_d"] = "none",
        recon_source: Literal["x", "qk"] = "x",
        recon_norm: Literal["none", "inv_len", "softmax"] = "softmax",
        mask: Literal["logits", "none"] = "logits",
        d_in_mode: Literal["total", "per_head", "single_map"] = "total",
        scale: Literal["per_head", "total"] = "per_head",
        r_shared: bool = True,
        r_bias: bool = False,
        r_init: Literal["unbiased", "printed", "xavier"] = "unbiased",
        out_proj: bool = True,
        optimize_n: bool = True,
        optimize_d: bool = True,
    ) -> None:
        super().__init__(site)
        at_least_one("DBA", d_p=d_p, d_in=d_in)
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
        owns = z_mode == "per_layer" or site.layer == 0
        self.latent = nn.Parameter(torch.randn(d_p, dim) / math.sqrt(dim)) if owns else None
        hands_on = z_mode == "propagate" and site.layer < site.layers - 1
        self.norm = nn.LayerNorm(dim) if hands_on else None

    def forward(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks, carry: Carry = None
    ) -> tuple[Float[Tensor, "b n d"], Carry]:
        self.check_lengths(x, context)
        if self.mask == "none":
            masks = Masks()
        if not self.optimize_n:
            return self._full_length(x, context, masks), carry
        z = self._latent(carry)
        y, compressed = (self._cross if self.cross else self._self)(x, context, masks, z)
        if self.z_mode == "per_layer":
            return y, carry
        return y, z if self.norm is None else self.norm(z + compressed)

    def compression(
        self, context: Float[Tensor, "b m d"], masks: Masks, carry: Carry, keys: bool = False
    ) -> Float[Tensor, "b gp m"]:
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
        return self.latent.clone()[None]  # a carry is no parameter

    def _self(self, x: Tensor, _: Tensor, masks: Masks, z: Tensor) -> tuple[Tensor, Tensor]:
        """Self-attention of x [b, n, d] with Z [1 or b, d_p, d]; also returns W_r X [b, d_p, d]."""
        if self.out is not None and self._plain(x):
            maps = (self.query, self.key, self.value, self.contract, self.expand, self.out)
            noise = None
            if self.training and self.site.dropout > 0:
                noise = drop(x.new_ones(len(x), self.maps, self.d_p, self.d_p), self.site.dropout, training=True)
            return bilinear(
                x, z, masks.context, [(m.weight, m.bias) for m in maps], self.r_query.weight, noise,
                heads=self.maps, logit_scale=self.phi_scale, scale=self.scale,
            )  # fmt: skip
        f_c, c_bias = self._reconstructor(self.contract, self.key)
        f_r, r_bias = self._reconstructor(self.expand, self.query)
        g_r, g_c = self._compressor(z, self.query), self._compressor(z, self.key)
        rows = torch.cat([g_r, g_c, f_c.expand(len(z), -1, -1), f_r.expand(len(z), -1, -1)], 1).expand(len(x), -1, -1)
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
        """Whether `bilinear` is for these keys and for the way in which this is called."""
        return (
            self.groups == 1
            and self.recon_from_x
            and self.recon_norm == "softmax"
            and self.optimize_d
            and self.r_key is self.r_query
            and self.r_query.bias is None
            and not self.per_head_r
            and not torch.compiler.is_compiling()  # the compiler has derivatives of its own
            and not torch.is_autocast_enabled(x.device.type)
        )

    def _cross(self, x: Tensor, context: Tensor, masks: Masks, z: Tensor) -> tuple[Tensor, Tensor]:
        """Queries x [b, n, d] read context [b, m, d]; also returns C = W_r2 X_2 [b, d_p, d]."""
        c_2 = self._pooled(self.compression(context, masks, z) @ context)
        f_r, r_bias = self._reconstructor(self.expand, self.query)
        g_r = self._compressor(self.guide(c_2), self.query)
        r, recon_r = torch.bmm(torch.cat([g_r, f_r.expand(len(x), -1, -1)], 1), x.mT).chunk(2, 1)
        keep_1 = None if masks.query is None else masks.query[:, None, :]
        q = self._project(torch.bmm(masked_softmax(r, keep_1), x), self.query)
        y = self._expand(self._mix(q, self.key(c_2), self.value(c_2)), recon_r + r_bias[:, None])
        return y, c_2

    def _full_length(self, x: Tensor, context: Tensor, masks: Masks) -> Tensor:
        """ "w/o optimize n": softmax((Q R)(K R)ᵀ / √d_in) V over all tokens."""
        keys = None if masks.context is None else masks.context[:, None, None, :]
        q, k = self._reduce(self.query(x), key=False), self._reduce(self.key(context), key=True)
        v = split_heads(self.value(context), self.maps)
        dropout = self.site.dropout if self.training else 0.0
        y = softmax_attention(q, k, v, attn_mask=keys, dropout_p=dropout, scale=self.scale)
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
        """Weight and bias of the map from x to W', through the queries or keys where those are the source."""
        if self.recon_from_x:
            return linear.weight, linear.bias
        return linear.weight @ source.weight, linear.weight @ source.bias + linear.bias

    def _weights(
        self, w: Float[Tensor, "b r n"], mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b r n"], Float[Tensor, "b gp 1"] | None]:
        """W_r, W_c and W'_cᵀ of their logits, 0 at padding; row sums of W'_cᵀ, or None where they are 1."""
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
        """d_p compressed rows through a linear map; `bias_weight` [b, gp, 1] where compressions do not sum to 1."""
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
        u = drop(p, self.site.dropout, self.training) @ split_heads(v, self.maps)
        u = u.transpose(1, 2).flatten(-2)
        if self.groups == 1:
            return u if self.out is None else F.linear(u, self.out.weight, self._shared_bias)
        blocks = split_heads(u, self.groups)
        if self.out is None:
            eye = torch.eye(self.site.dim, dtype=u.dtype, device=u.device)
            return (blocks @ eye.view(self.groups, -1, self.site.dim)).flatten(1, 2)
        u = (blocks @ self.out.weight.mT.view(self.groups, -1, self.site.dim)).flatten(1, 2)
        return u if self._shared_bias is None else u + self._shared_bias / self.groups

    @property
    def _shared_bias(self) -> Tensor | None:
        """b_O where the rows of W'_r sum to 1, so that W'_r (U + 1 b_Oᵀ) = W'_r U + b_O."""
        return self.out.bias if self.out is not None and self.recon_norm == "softmax" else None

    def _expand(self, u: Float[Tensor, "b gp d"], w_r: Float[Tensor, "b gp n"]) -> Float[Tensor, "b n d"]:
        """Y = W'_r U + b_O."""
        if self.recon_norm == "softmax":
            parts = w_r if self.groups == 1 else w_r.unflatten(1, (self.groups, -1))
            return torch.bmm(parts.softmax(-2).view_as(w_r).mT, u)
        return torch.bmm(w_r.mT, u) if self.out is None else torch.baddbmm(self.out.bias, w_r.mT, u)

    def _reduce(self, x: Float[Tensor, "b n d"], key: bool) -> Float[Tensor, "b h n e"]:
        """Q R or K R, cut into heads."""
        if not self.optimize_d:
            return split_heads(x, self.maps)
        r = self.r_key if key else self.r_query
        return r(split_heads(x, self.maps)) if self.per_head_r else split_heads(r(x), self.maps)

    def _pooled(self, rows: Float[Tensor, "b gp d"]) -> Float[Tensor, "b p d"]:
        """W_r X; with W_r per head, each head's rows hold that head's part of the width."""
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
