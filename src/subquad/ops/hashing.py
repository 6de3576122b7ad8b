"""Binary codes of tokens, and linear attention whose queries and keys have the same features."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.binary_codes import code
from subquad.ops.linear_attention import divisor, expand, head_dot, kv_state
from subquad.specs import Mask, Tokens
from subquad.utils.derivatives import by_torch

LEAST = 1e-6
"""Least norm and least mean distance; a zero vector is then orthogonal to all others."""


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(z.abs() < 1)
        return torch.where(z >= 0, 1.0, -1.0).to(z.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        (inside,) = ctx.saved_tensors
        return gradient * inside


def sign(z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """+1 where z >= 0, else -1. The gradient is that of the hard tanh: 1 where |z| < 1, else 0."""
    if by_torch():
        soft = z.clamp(-1, 1)
        return code(torch.where(z >= 0, 1.0, -1.0).to(z.dtype)) + (soft - soft.detach())
    return code(_Sign.apply(z))


def norms(q: Float[Tensor, "b n h e"]) -> Float[Tensor, "b n h"]:
    """Norms of vectors, at least `LEAST`."""
    return torch.linalg.vector_norm(q, dim=-1).clamp_min(LEAST)


def anchor_similarity(
    q: Float[Tensor, "b n h e"], anchors: Float[Tensor, "h m e"], mask: Mask
) -> tuple[Float[Tensor, "h b n m"], Float[Tensor, "h b"]]:
    """κ(q, s) = exp(-‖q - s‖² / 2σ) of normalised q to unit vectors s, and σ.

    σ is the mean squared distance of the real tokens of a row to the anchors. For unit vectors ‖q - s‖² = 2 - 2 qᵀs. q
    is divided by its norm after the product, so that no normalised copy of q is made.
    """
    b, n, h, _ = q.shape
    cosine = torch.bmm(q.flatten(0, 1).transpose(0, 1), anchors.mT).view(h, b, n, -1)
    cosine = cosine / norms(q).permute(2, 0, 1).unsqueeze(-1)
    if mask is None:
        mean = cosine.mean((2, 3))
    else:
        real = mask.to(cosine.dtype)
        mean = (cosine.mean(3) * real).sum(2) / real.sum(1).clamp_min(1)
    sigma = (2 - 2 * mean).clamp_min(LEAST)
    return ((cosine - 1) / sigma[..., None, None]).exp(), sigma


def power_bias(bits: int) -> int:
    """2^c with c = ⌈log2(bits + 1)⌉, which makes inner products of codes positive."""
    return 1 << int(bits).bit_length()  # torch.jit.trace passes sizes as tensors


def with_bias(codes: Float[Tensor, "b n h k"]) -> tuple[Float[Tensor, "b n h k+1"], Float[Tensor, " k+1"]]:
    """Codes with a last entry 1, and their scale for `shared_attention`, whose weights are then h_tᵀ h_i + 2^c."""
    bits = codes.shape[-1]
    return F.pad(codes, (0, 1), value=1.0), F.pad(codes.new_ones(bits), (0, 1), value=power_bias(bits))


def shared_attention(
    features: Float[Tensor, "b n h k"], x: Tokens, mask: Mask, value: nn.Linear, out: nn.Linear,
    scale: Float[Tensor, " k"], own_value: bool = False,
) -> Tokens:  # fmt: skip
    """`out` of Σ_i w_ti v_i / Σ_i w_ti in each head, over the real tokens i; w_ti = Σ_k scale_k f_tk f_ik.

    The normaliser is computed in the type of the features, the sums of values in that of x. Both are divided by the
    number of tokens, so that half precision does not overflow.

    Args:
        own_value: in the numerator the last feature, which is 1 in all tokens, adds scale_k v_t, not scale_k Σ_i v_i.
    """
    real = features.new_ones(1, x.shape[1], 1, 1) if mask is None else mask[..., None, None].to(features.dtype)
    number = real.sum(1, keepdim=True).clamp_min(1)
    keys = features * (real / number)
    normaliser = divisor(head_dot(features, keys.sum(1) * scale).clamp_min(LEAST), mask)
    # With `own_value` the last feature is left out of the sums and added for the own token below.
    summed = scale * (torch.arange(len(scale), device=x.device) < len(scale) - own_value)
    y = expand(
        (features / normaliser).to(x.dtype),
        kv_state(keys.to(x.dtype), x, value) * summed[:, None].to(x.dtype),
        out,
    )
    if own_value:
        share = (scale[-1] / (number * normaliser)).to(x.dtype)
        y = y + F.linear((value(x).unflatten(-1, (features.shape[2], -1)) * share).flatten(-2), out.weight)
    return y
