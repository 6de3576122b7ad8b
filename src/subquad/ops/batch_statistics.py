"""Mean and variance over the real rows of all processes."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed, nn

from subquad.utils.derivatives import first_order


class _Sum(torch.autograd.Function):
    """The sum over processes; the gradient of each term is the sum of the gradients in all processes."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.forward(ctx, grads[0].contiguous())


def several_processes() -> bool:
    """Whether several processes train one model."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def moments(
    rows: Float[Tensor, "n d"], real: Bool[Tensor, " n"] | None = None
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"], Float[Tensor, ""]]:
    """Mean, variance (divided by the count) and count of the real rows of all processes, in float32 or wider.

    Gradients are summed over processes too, so all processes must run forward and backward passes in the same order.
    """
    add = _Sum.apply if several_processes() else Tensor.clone
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    here = wide.new_tensor([len(rows)]) if real is None else real.sum().to(wide.dtype)[None]
    kept = wide if real is None else wide.masked_fill(~real[:, None], 0)
    total = add(torch.cat([kept.sum(0), here]))
    count = total[-1].detach().clamp(min=1)
    mean = total[:-1] / count
    centred = wide - mean if real is None else (wide - mean).masked_fill(~real[:, None], 0)
    return mean, add(centred.square().sum(0)) / count, count


@torch.no_grad()
def update_running(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Moves the running statistics of a BatchNorm towards those of a batch, from `moments`, as torch does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    unbiased = variance * (count / (count - 1).clamp(min=1))
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
    norm.num_batches_tracked.add_(1)
