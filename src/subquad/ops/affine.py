"""Linear maps with an optional activation, in one oneDNN kernel on a CPU.

In single precision on a CPU, `F.linear` calls a BLAS library that is slow on some processors, and adds bias and
activation in separate passes. oneDNN, which is part of torch, computes the three in one pass.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.utils.derivatives import first_order, seen_by_torch

Activation = Literal["none", "relu", "sigmoid"]

_WORTH = 1 << 24
"""Least number of multiplications for which the oneDNN kernel is faster."""

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def affine(
    x: Float[Tensor, "*b d"], weight: Float[Tensor, "e d"], bias: Float[Tensor, " e"] | None,
    activation: Activation = "none",
) -> Float[Tensor, "*b e"]:  # fmt: skip
    """activation(x Wᵀ + b); the two kernels differ by rounding only."""
    if _fused(x, weight, bias):
        y: Tensor = _Affine.apply(x, weight, bias, activation)
        return y
    y = F.linear(x, weight, bias)
    if activation == "none":
        return y
    return y.relu_() if activation == "relu" else y.sigmoid_()


def _fused(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the oneDNN kernel is faster and right: it reads a bias as if its numbers were adjacent in memory."""
    return (
        _onednn is not None
        and not seen_by_torch()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * len(weight) >= _WORTH
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


class _Affine(torch.autograd.Function):
    """Saves the output for the activation: the derivatives of ReLU and sigmoid are functions of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
        ctx.activation = activation
        ctx.save_for_backward(x, weight, None if activation == "none" else y)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, y = ctx.saved_tensors
        if ctx.activation == "relu":
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        elif ctx.activation == "sigmoid":
            gradient = torch.ops.aten.sigmoid_backward(gradient, y)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            torch.ops.mkldnn._linear_pointwise(gradient, weight.mT, None, "none", [], "") if needs_x else None,
            rows.mT @ x.flatten(0, -2) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
            None,
        )
