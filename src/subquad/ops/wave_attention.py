"""Linear attention with weights q·k cos(a - b), where a and b are angles of the places of query and key.

cos(a - b) = cos a cos b + sin a sin b, so that sums over the keys, one with cos b and one with sin b, serve all
queries. A wave is [cos, sin] of the angle of each place.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.kernels.wave_attention import reads, sums_up, wave_read, wave_state
from subquad.ops.kernel_attention import head_dot


def state(
    k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h c"], wave: Float[Tensor, "m 2"]
) -> tuple[Float[Tensor, "b h e f"], Float[Tensor, "b h 2 e"]]:
    """S = Σ_j k_j [v_j cos_j | v_j sin_j]ᵀ and T = Σ_j [cos_j, sin_j] k_j in each head."""
    if sums_up(k, v, wave):
        return wave_state(k, v, wave)
    wave = wave.to(v.dtype)
    sums = k.permute(0, 2, 3, 1) @ _Spread.apply(v, wave[:, None, :, None]).transpose(1, 2)
    return sums, (wave.mT @ k.flatten(-2)).unflatten(-1, (k.shape[2], -1)).transpose(1, 2)


def read(
    q: Float[Tensor, "b n h e"],
    wave: Float[Tensor, "n 2"],
    state: Float[Tensor, "b h e f"],
    total: Float[Tensor, "b h 2 e"],
    least: float,
) -> Float[Tensor, "b n h c"]:
    """y = (A cos + B sin) / w with [A | B] = qᵀ S, w = max(q · (T₁ cos + T₂ sin), least), in the wave's precision."""
    if reads(q, wave, state, total):
        return wave_read(q, wave, state, total, least)
    sums = torch.cat([head_dot(q, total[:, :, 0]), head_dot(q, total[:, :, 1])], -1)
    weight = (sums * wave[:, None]).sum(-1, keepdim=True).clamp(min=least)
    y: Tensor = _Read.apply((q.transpose(1, 2) @ state).transpose(1, 2), wave[:, None, :, None], weight)
    return y


def _spread(x: Float[Tensor, "b n h c"], wave: Float[Tensor, "..."]) -> Float[Tensor, "b n h f"]:
    """[x cos | x sin]."""
    return (x[..., None, :] * wave).flatten(-2)


def _gather(x: Float[Tensor, "b n h f"], wave: Float[Tensor, "..."]) -> Float[Tensor, "b n h c"]:
    """a cos + b sin of x = [a | b]."""
    a, b = x.chunk(2, -1)
    if torch.compiler.is_compiling():  # makes one pass of it, and would take `out` to lie as x does
        return (a * wave[..., 0, :] + b * wave[..., 1, :]).contiguous()
    # Heads side by side, as the maps want them, however the heads of x lie.
    out = torch.empty(a.shape, device=x.device, dtype=torch.promote_types(a.dtype, wave.dtype))
    return torch.mul(a, wave[..., 0, :], out=out).addcmul_(b, wave[..., 1, :])


class _Spread(torch.autograd.Function):
    """[x cos | x sin], which is linear in x: x is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor) -> Tensor:
        ctx.save_for_backward(wave)
        return _spread(x, wave)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(gradient, *ctx.saved_tensors), None


class _Read(torch.autograd.Function):
    """y = (a cos + b sin) / weight of x = [a | b]; the derivative by the weight, -y / weight, needs y and not x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: Tensor, weight: Tensor) -> Tensor:
        wave = wave / weight[..., None]
        y = _gather(x, wave)
        ctx.save_for_backward(y, wave, weight)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        y, wave, weight = ctx.saved_tensors
        return _spread(gradient, wave), None, -(gradient * y).sum(-1, keepdim=True) / weight
