"""Mean and variance of rows that several processes hold."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed


class _Sum(torch.autograd.Function):
    """The sum over processes; each of them adds its gradient to that of all terms."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.forward(ctx, grads[0].contiguous())


def over_processes(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"], Float[Tensor, ""]]:
    """Mean, variance (divided by the count) and count of the rows of all processes, in float32 or wider.

    Gradients reach the rows of every process, so all of them must call this, and go backwards, in the same order.
    """
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    total = _Sum.apply(torch.cat([wide.sum(0), wide.new_tensor([len(rows)])]))
    count = total[-1].detach()
    mean = total[:-1] / count
    return mean, _Sum.apply((wide - mean).square().sum(0)) / count, count
