"""Linear attention with weights q·k cos(a - b), where a and b are angles of the positions of query and key.

cos(a - b) = cos a cos b + sin a sin b, so all queries share two sums over the keys, one with cos b and one with sin b.
A wave is [cos, sin] of the angle of each position.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.kernels.cosine_attention_kernel import reads, sums_up, wave_read, wave_state
from subquad.ops.linear_attention import head_dot
from subquad.utils.derivatives import by_torch, first_order


def kv_state(
    k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h c"], wave: Float[Tensor, "m 2"]
) -> tuple[Float[Tensor, "b h e f"], Float[Tensor, "b h 2 e"]]:
    """S = Σ_j k_j [v_j cos_j | v_j sin_j]ᵀ and T = Σ_j [cos_j, sin_j] k_j in each head."""
    if sums_up(k, v, wave):
        return wave_state(k, v, wave)
    wave = wave.to(v.dtype)
    spread = _spread if by_torch() else _Spread.apply
    sums = k.permute(0, 2, 3, 1) @ spread(v, wave[:, None, :, None]).transpose(1, 2)
    return sums, (wave.mT @ k.flatten(-2)).unflatten(-1, (k.shape[2], -1)).transpose(1, 2)


def expand(
    q: Float[Tensor, "b n h e"], wave: Float[Tensor, "n 2"], state: Float[Tensor, "b h e f"],
    total: Float[Tensor, "b h 2 e"], least: float,
) -> Float[Tensor, "b n h c"]:  # fmt: skip
    """y = (A cos + B sin) / w with [A | B] = qᵀ S, w = max(q · (T₁ cos + T₂ sin), least), in the wave's precision."""
    if reads(q, wave, state, total):
        return wave_read(q, wave, state, total, least)
    sums = torch.cat([head_dot(q, total[:, :, 0]), head_dot(q, total[:, :, 1])], -1)
    weight = (sums * wave[:, None]).sum(-1, keepdim=True).clamp(min=least)
    rows = (q.transpose(1, 2) @ state).transpose(1, 2)
    if by_torch():
        return _combine(rows, wave[:, None, :, None]) / weight
    y: Tensor = _Expand.apply(rows, wave[:, None, :, None], weight)
    return y


def _spread(x: Float[Tensor, "b n h c"], wave: Float[Tensor, "..."]) -> Float[Tensor, "b n h f"]:
    """[x cos | x sin]."""
    return (x[..., None, :] * wave).flatten(-2)


def _combine(x: Float[Tensor, "b n h f"], wave: Float[Tensor, "..."]) -> Float[Tensor, "b n h c"]:
    """a cos + b sin of x = [a | b]."""
    a, b = x.chunk(2, -1)
    if torch.compiler.is_compiling() or by_torch():  # a compiler would ignore the strides of `out`
        return (a * wave[..., 0, :] + b * wave[..., 1, :]).contiguous()
    # Contiguous heads, as linear maps need them, for any strides of x.
    out = torch.empty(a.shape, device=x.device, dtype=torch.promote_types(a.dtype, wave.dtype))
    return torch.mul(a, wave[..., 0, :], out=out).addcmul_(b, wave[..., 1, :])


class _Spread(torch.autograd.Function):
    """[x cos | x sin], linear in x, so the backward pass does not need x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor) -> Tensor:
        ctx.save_for_backward(wave)
        return _spread(x, wave)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _combine(gradient, *ctx.saved_tensors), None


class _Expand(torch.autograd.Function):
    """y = (a cos + b sin) / weight of x = [a | b]; the derivative by the weight is -y / weight, so x is not saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor, weight: Tensor) -> Tensor:
        wave = wave / weight[..., None]
        y = _combine(x, wave)
        ctx.save_for_backward(y, wave, weight)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        y, wave, weight = ctx.saved_tensors
        return _spread(gradient, wave), None, -(gradient * y).sum(-1, keepdim=True) / weight
