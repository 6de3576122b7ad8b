"""YOSO: You Only Sample (Almost) Once (Zeng et al. 2021, https://arxiv.org/abs/2111.09714, Sections 3 and 4)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.attention.base import Discrete, Projections, Refreshable, StatelessAttention, SurrogateGradient
from subquad.errors import UserError
from subquad.ops.masking import zero_padding
from subquad.specs import Masks, Pattern, Site

_BLOCK = 1 << 19


class YOSO(StatelessAttention, SurrogateGradient):
    """y_i = ℓ2(Σ_j w_ij v_j) in each head, w_ij = (1 - arccos(q_i·k_j) / π)^τ, q and k of unit length, ℓ2(y) = y / ‖y‖.

    w_ij is the probability that τ random hyperplanes do not separate q_i from k_j: the expectation of `SampledYOSO`.
    bits: τ.

    Backward: ∂w/∂q is replaced by its lower bound (τ/2) w k, and ∂w/∂k by (τ/2) w q, which stay finite where q = k.

    Padded values are 0; no normaliser runs over the keys. There are no normalised weights to drop: `site.dropout` is
    unused. Blocks of queries are weighed one after another, forward and backward, so that n x m weights never exist.
    1 - arccos(c) / π = atan2(√(1 - c²), -c) / π, which needs no care at |c| = 1.

    Released code: multiplies the cosines by a constant below 1 in one version, and can add a convolution of the values;
    transformers' classes ignore the padding mask.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n d)"

    def __init__(self, site: Site, bits: int = 8) -> None:
        super().__init__(site)
        if not 1 <= bits <= 20:
            raise UserError(f"YOSO's hash codes have 1 to 20 bits, not {bits}; change attention.bits.")
        self.bits = bits
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        values = p.split(zero_padding(p.value(context), masks.context))
        q, k = p.split(p.query(x)), p.split(p.key(context))
        with torch.autocast(x.device.type, enabled=False):
            precise = torch.promote_types(values.dtype, torch.float32)
            q, k = F.normalize(q.to(precise), dim=-1), F.normalize(k.to(precise), dim=-1)
            y = F.normalize(self._weigh(q, k, values.to(precise)), dim=-1)
        return p.merge(y.to(values.dtype))

    def _weigh(
        self, q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h m e"], v: Float[Tensor, "b h m e"]
    ) -> Float[Tensor, "b h n e"]:
        """Σ_j w_ij v_j."""
        rows = (t.flatten(0, 1) for t in (q, k, v))
        return _Expectation.apply(*rows, self.bits).view_as(q)


class SampledYOSO(YOSO, Refreshable, Discrete):
    """YOSO with w_ij replaced by the share of m hashes in which q_i and k_j fall into the same of 2^τ buckets.

    hashes: m. bits: τ. A hash is τ random hyperplanes for each head: values are added to the bucket of their key, and
    each query reads the bucket that it falls into. New hyperplanes are drawn before every training step.

    Backward is the surrogate of `YOSO` with these shares for weights, by tables of the products v_j k_jᵀ.

    Released code: draws new hyperplanes in every call, in evaluation too, and can rotate by Hadamard transforms.
    """

    complexity = "time O(n m d) for m hashes, O(n m d d_h) in the backward pass, memory O(n d + 2^τ d)"

    def __init__(self, site: Site, bits: int = 8, hashes: int = 32) -> None:
        super().__init__(site, bits)
        if hashes < 1:
            raise UserError(f"YOSO needs at least 1 hash, not {hashes}; raise attention.hashes.")
        self.planes: Tensor
        self.register_buffer("planes", torch.randn(hashes, site.heads, site.dim // site.heads, bits))

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return True

    def refresh(self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks) -> None:
        self.planes.normal_()

    def _weigh(
        self, q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h m e"], v: Float[Tensor, "b h m e"]
    ) -> Float[Tensor, "b h n e"]:
        rows = (t.flatten(0, 1) for t in (q, k, v))
        return _Sampled.apply(*rows, self._codes(q), self._codes(k), self.bits).view_as(q)

    @torch.no_grad()
    def _codes(self, x: Float[Tensor, "b h n e"]) -> Int[Tensor, "s b*h*n"]:
        """The bucket of each vector in each hash; every row and head has buckets of its own."""
        places = 2 ** torch.arange(self.bits, device=x.device, dtype=x.dtype)
        codes = torch.stack([((x @ planes.to(x.dtype)) > 0).to(x.dtype) @ places for planes in self.planes])
        tables = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(x.shape[:2])
        return (codes.int() + (tables << self.bits).int()[..., None]).flatten(1)


def _weights(q: Float[Tensor, "r n e"], k: Float[Tensor, "r m e"], bits: int) -> Float[Tensor, "r n m"]:
    """Probabilities that τ hyperplanes separate no pair, in as few passes over n x m as there are."""
    negated = -q @ k.mT
    x = torch.addcmul(negated.new_ones(()), negated, negated, value=-1).clamp_min_(0).sqrt_()
    x.atan2_(negated).mul_(1 / math.pi)
    power = x
    for bit in f"{bits:b}"[1:]:
        power = power.square()
        if bit == "1":
            power.mul_(x)
    return power


def _blocks(q: Float[Tensor, "r n e"], k: Float[Tensor, "r m e"]) -> int:
    """Queries of a block whose weights stay in the cache."""
    return max(1, _BLOCK // max(1, len(k) * k.shape[1]))


class _Expectation(torch.autograd.Function):
    """Σ_j w_ij v_j with the surrogate gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bits: int) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.bits = bits
        return torch.cat([_weights(part, k, bits) @ v for part in q.split(_blocks(q, k), 1)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        of_q, of_k, of_v = [], torch.zeros_like(k), torch.zeros_like(v)
        size = _blocks(q, k)
        for part, above in zip(q.split(size, 1), grad.split(size, 1), strict=True):
            weights = _weights(part, k, ctx.bits)
            of_v.baddbmm_(weights.mT, above)
            slopes = weights.mul_(above @ v.mT).mul_(ctx.bits / 2)
            of_q.append(slopes @ k)
            of_k.baddbmm_(slopes.mT, part)
        return torch.cat(of_q, 1), of_k, of_v, None


def _collected(
    read: Int[Tensor, " i"], write: Int[Tensor, " j"], rows: Float[Tensor, "j c"], buckets: int
) -> Float[Tensor, "i c"]:
    """The sum of the rows that were written where each reader reads."""
    return rows.new_zeros(buckets, rows.shape[1]).index_add_(0, write, rows)[read]


class _Sampled(torch.autograd.Function):
    """Σ_j b_ij v_j with the surrogate gradient, b_ij the share of hashes in which i and j meet."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, q_codes: Tensor, k_codes: Tensor, bits: int) -> Tensor:
        ctx.save_for_backward(q, k, v, q_codes, k_codes)
        ctx.bits = bits
        y = torch.zeros_like(q).flatten(0, 1)
        for read, write in zip(q_codes, k_codes, strict=True):
            y += _collected(read, write, v.flatten(0, 1), len(q) << bits)
        return (y / len(q_codes)).view_as(q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q, k, v, q_codes, k_codes = ctx.saved_tensors
        buckets = len(q) << ctx.bits
        q_rows, k_rows, v_rows, above = (t.flatten(0, 1) for t in (q, k, v, grad))
        of_q, of_k, of_v = (torch.zeros_like(t) for t in (q_rows, k_rows, v_rows))
        for of_queries, of_keys in zip(q_codes, k_codes, strict=True):
            of_v += _collected(of_keys, of_queries, above, buckets)
            _add_slopes(of_q, above, of_queries, of_keys, v_rows, k_rows, buckets)
            _add_slopes(of_k, v_rows, of_keys, of_queries, above, q_rows, buckets)
        share = 1 / len(q_codes)
        slope = share * ctx.bits / 2
        return (of_q * slope).view_as(q), (of_k * slope).view_as(k), (of_v * share).view_as(v), None, None, None


def _add_slopes(
    total: Float[Tensor, "i e"],
    x: Float[Tensor, "i e"],
    read: Int[Tensor, " i"],
    write: Int[Tensor, " j"],
    y: Float[Tensor, "j e"],
    other: Float[Tensor, "j e"],
    buckets: int,
) -> None:
    """Adds Σ_j (x_i·y_j) other_j over the j that i meets: tables of y_j ⊗ other_j, a few of y's columns at a time."""
    size = max(1, _BLOCK // (len(other) * other.shape[1]))
    for x_part, y_part in zip(x.split(size, 1), y.split(size, 1), strict=True):
        products = (y_part[..., None] * other[:, None]).flatten(1)
        met = _collected(read, write, products, buckets).unflatten(1, (-1, other.shape[1]))
        total += (x_part[:, None] @ met).squeeze(1)
