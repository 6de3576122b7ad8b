"""Cross entropy over a large vocabulary, a few rows at a time."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from subquad.utils.derivatives import by_torch, first_order
from subquad.utils.devices import at_once

NUMBERS_AT_ONCE = 1 << 22
"""Logits processed at a time on a CPU: 16 MiB in float32."""


def summed_cross_entropy(logits: Float[Tensor, "m vocab"], target: Int[Tensor, " m"]) -> Float[Tensor, ""]:
    """The sum over the rows of -log softmax(logits)[target], computed in float32 at least.

    It stores the logits, their gradient and a few rows. `F.cross_entropy` also stores all log probabilities, and a
    float32 copy of logits in half precision.
    """
    if by_torch():
        return F.cross_entropy(_wide(logits), target, reduction="sum")
    total: Tensor = _Summed.apply(logits, target)
    return total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        norms = torch.cat([_wide(rows).logsumexp(1) for rows in logits.split(_rows(logits))])
        ctx.save_for_backward(logits, target, norms)
        return (norms - logits.gather(1, target[:, None])[:, 0]).sum()

    @staticmethod
    @first_order
    def backward(ctx: Any, d_sum: Tensor) -> tuple[Tensor, None]:
        logits, *by_row = ctx.saved_tensors
        d_logits, size = torch.empty_like(logits), _rows(logits)
        for rows, d_rows, target, norms in zip(*(x.split(size) for x in (logits, d_logits, *by_row)), strict=True):
            weights = (_wide(rows) - norms[:, None]).exp_()
            weights[torch.arange(len(weights), device=weights.device), target] -= 1
            d_rows.copy_(weights.mul_(d_sum))
        return d_logits, None


def _rows(logits: Tensor) -> int:
    return at_once(logits, max(1, NUMBERS_AT_ONCE // logits.shape[1]), logits.shape[1])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
