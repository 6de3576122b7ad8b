"""YOSO: You Only Sample (Almost) Once (Zeng et al. 2021, https://arxiv.org/abs/2111.09714, Sections 3 and 4)."""

import math
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from subquad.attention.base import Discrete, Projections, Redrawn, StatelessAttention, SurrogateGradient, copy_drawn
from subquad.ops.binary_codes import code
from subquad.ops.masks import zero_padding
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.unit import unit
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import by_torch, first_order
from subquad.utils.devices import at_once, fused
from subquad.utils.setting_types import Count

Bits = Annotated[int, Field(ge=1, le=15, description="a whole number from 1 to 15")]

_BLOCK, _TOKENS = 1 << 20, 512
"""Weights of a block of queries, and tokens that are hashed at a time, on a CPU: few enough for the cache."""


class YOSO(StatelessAttention, SurrogateGradient):
    """y_i = ℓ2(Σ_j w_ij v_j) in each head, w_ij = (1 - arccos(q_i·k_j) / π)^τ, q and k of unit length, ℓ2(y) = y / ‖y‖.

    w_ij is the probability that τ random hyperplanes do not separate q_i from k_j: the expectation of `SampledYOSO`.

    Args:
        bits: number τ of hyperplanes.

    Backward: ∂w/∂q is replaced by its lower bound (τ/2) w k, and ∂w/∂k by (τ/2) w q, which stay finite where q = k.

    Padded values are 0. The weights are not normalised over the keys, so `site.dropout` is unused. Blocks of queries
    are computed one after another, forward and backward, so that n x m weights never exist.

    Examples:
        >>> import torch
        >>> from subquad import YOSO
        >>> layer = YOSO(dim=64, heads=4, bits=6)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: multiplies the cosines by a constant below 1 in one version, and can add a convolution of the values;
    transformers' classes ignore the padding mask.
    """

    patterns = frozenset(Pattern)
    cannot_export = frozenset({"onnx"})
    complexity = "time O(n²d), memory O(n d)"

    def __init__(self, site: Site, bits: Bits = 8) -> None:
        super().__init__(site)
        self.bits = bits
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        values = p.split(zero_padding(p.value(context), masks.context))
        q, k = p.split(p.query(x)), p.split(p.key(context))
        with without_autocast(x):
            precise = torch.promote_types(values.dtype, torch.float32)
            q, k = unit(q.to(precise)), unit(k.to(precise))
            y = unit(self._weigh(q, k, values.to(precise)))
        return p.merge(y.to(values.dtype))

    def _weigh(
        self, q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h m e"], v: Float[Tensor, "b h m e"]
    ) -> Float[Tensor, "b h n e"]:
        """Σ_j w_ij v_j."""
        return _weighed(q, k, v, self.bits)


class SampledYOSO(YOSO, Redrawn, Discrete):
    """YOSO with w_ij replaced by the share of m hashes in which q_i and k_j fall into the same of 2^τ buckets.

    A hash is τ random hyperplanes for each head. Values are added to the bucket of their key, and each query takes the
    sum of its bucket. New hyperplanes are drawn before every training step.

    Args:
        bits: number τ of hyperplanes of a hash.
        hashes: number m of hashes.

    Backward is the surrogate of `YOSO` with these shares as weights, which are counted in blocks of n x m. Tables would
    hold d_h² numbers for each bucket. Measured, their O(n m d_h) steps for each channel cost more than n² counts below
    about 10⁵ tokens.

    Examples:
        >>> import torch
        >>> from subquad import SampledYOSO
        >>> layer = SampledYOSO(dim=64, heads=4, hashes=8)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: such tables, in CUDA only; new hyperplanes in every call, in evaluation too, by Hadamard transforms.
    """

    cannot_export = frozenset({"onnx"})
    complexity = "time O(n m d) for m hashes, backward O(n² (d + m)), memory O(n (d + m) + 2^τ d)"

    def __init__(self, site: Site, bits: Bits = 8, hashes: Count = 32) -> None:
        super().__init__(site, bits)
        self.planes: Tensor
        self.register_buffer("planes", torch.randn(site.heads, site.dim // site.heads, hashes, bits))

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return True

    def redraw(self) -> None:
        copy_drawn(self.planes, torch.randn(self.planes.shape, dtype=self.planes.dtype))

    def _weigh(
        self, q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h m e"], v: Float[Tensor, "b h m e"]
    ) -> Float[Tensor, "b h n e"]:
        return _weighed(q, k, v, self.bits, (self._codes(q), self._codes(k)))

    @torch.no_grad()
    def _codes(self, x: Float[Tensor, "b h n e"]) -> Int[Tensor, "s b*h n"]:
        """The bucket of each vector in each hash."""
        planes = self.planes.to(x.dtype)
        powers = 2 ** torch.arange(self.bits, device=x.device, dtype=x.dtype)
        parts = []
        step = at_once(x, _TOKENS, x.shape[0] * planes.numel() // planes.shape[1])
        for part in x.split(step, 2):
            signs = (part @ planes.flatten(2)).unflatten(-1, planes.shape[2:]) > 0
            parts.append((code(signs.to(x.dtype)) @ powers).to(torch.int16).flatten(0, 1))
        return torch.cat(parts, 1).permute(2, 0, 1).contiguous()


def _weighed(
    q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h m e"], v: Float[Tensor, "b h m e"], bits: int,
    codes: tuple[Int[Tensor, "s b*h n"], Int[Tensor, "s b*h m"]] | None = None,
) -> Float[Tensor, "b h n e"]:  # fmt: skip
    """Σ_j w_ij v_j with the surrogate gradient; `codes`, where given, are those of the hashes of queries and keys.

    Where torch differentiates, w_ij exp(τ/2 (c - c')) has the value and the surrogate gradient of w_ij, if c is the
    cosine and c' the same number as a constant.
    """
    shape, (q, k, v) = q.shape, (t.flatten(0, 1) for t in (q, k, v))
    if not by_torch():
        y: Tensor = _Weighed.apply(q, k, v, bits, *(codes or (None, None)))
        return y.view(shape)
    cosines = q @ k.mT
    known = cosines.detach()
    weights = _expected(known.clone(), bits) if codes is None else _shared(*codes, k.dtype)
    return ((weights * (bits / 2 * (cosines - known)).exp()) @ v).view(shape)


class _Weighed(torch.autograd.Function):
    """`_weighed` in blocks of queries; codes are int16."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bits: int, q_codes: Tensor | None, k_codes: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, q_codes, k_codes)
        ctx.bits = bits
        if q_codes is not None and k_codes is not None:
            return _read_tables(q_codes, k_codes, v, bits)
        return torch.cat([_expected(part @ k.mT, bits) @ v for part in q.split(_rows(k), 1)], 1)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, q_codes, k_codes = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        # A compiler differentiates under the precision of the forward pass.
        with without_autocast(grad):
            for start in range(0, q.shape[1], _rows(k)):
                block = slice(start, start + _rows(k))
                if q_codes is None:
                    weights = _expected(q[:, block] @ k.mT, ctx.bits)
                else:
                    weights = _shared(q_codes[:, :, block], k_codes, k.dtype)
                d_v.baddbmm_(weights.mT, grad[:, block])
                slopes = _slopes(weights, grad[:, block] @ v.mT, ctx.bits)
                d_q[:, block] = slopes @ k
                d_k.baddbmm_(slopes.mT, q[:, block])
        return d_q, d_k, d_v, None, None, None


def _rows(k: Float[Tensor, "r m e"]) -> int:
    """Queries of a block."""
    weights = k.shape[0] * k.shape[1]
    return at_once(k, max(1, _BLOCK // max(1, weights)), weights)


@fused
def _expected(cosines: Float[Tensor, "r n m"], bits: int) -> Float[Tensor, "r n m"]:
    """(1 - arccos(cosine) / π)^bits, in the memory of the cosines and at most one other buffer."""
    power = cosines.clamp_(-1, 1).acos_().mul_(-1 / math.pi).add_(1)
    base = power.clone() if bits & (bits - 1) else power
    for place in reversed(range(bits.bit_length() - 1)):
        power.mul_(power)
        if bits >> place & 1:
            power.mul_(base)
    return power


@fused
def _slopes(weights: Float[Tensor, "r n m"], of_weights: Float[Tensor, "r n m"], bits: int) -> Float[Tensor, "r n m"]:
    """The surrogate's gradient of the cosines, in the memory of the weights."""
    return weights.mul_(of_weights).mul_(bits / 2)


@fused
def _shared(q_codes: Int[Tensor, "s r n"], k_codes: Int[Tensor, "s r m"], dtype: torch.dtype) -> Float[Tensor, "r n m"]:
    """The share of hashes in which query and key fall into the same bucket."""
    count = (q_codes[0, :, :, None] == k_codes[0, :, None]).to(torch.int16)
    for of_queries, of_keys in zip(q_codes[1:], k_codes[1:], strict=True):
        count += of_queries[:, :, None] == of_keys[:, None]
    return count.to(dtype).div_(len(q_codes))


def _read_tables(
    q_codes: Int[Tensor, "s r n"], k_codes: Int[Tensor, "s r m"], v: Float[Tensor, "r m e"], bits: int
) -> Float[Tensor, "r n e"]:
    """Σ_j b_ij v_j, b_ij the share of hashes in which i and j meet; each row has 2^bits buckets of its own."""
    total = v.new_zeros(q_codes.shape[1:] + v.shape[-1:])
    step = at_once(v, 1, v.numel() + total.numel() + (v.shape[0] << bits) * v.shape[-1])
    for of_queries, of_keys in zip(q_codes.split(step), k_codes.split(step), strict=True):
        hashes = len(of_keys)
        first = (torch.arange(hashes * v.shape[0], device=v.device) << bits).view(hashes, -1, 1)
        values = v.expand(hashes, -1, -1, -1).flatten(0, 2)
        table = v.new_zeros(hashes * v.shape[0] << bits, v.shape[-1]).index_add_(0, (of_keys + first).flatten(), values)
        rows = table.index_select(0, (of_queries + first).flatten()).view(hashes, *total.shape)
        total += rows[0] if hashes == 1 else rows.sum(0)
    return total.div_(len(q_codes))
