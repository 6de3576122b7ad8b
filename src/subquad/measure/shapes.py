"""Runs models on fake tensors, which have shapes but no data: size costs neither time nor memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from subquad.measure.memory import LiveTensors


def peak_of_shapes(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Peak memory of one forward pass on a CPU in bytes, without weights and inputs; nothing is allocated.

    Weights and inputs may lie on the device "meta".
    """
    with fake_tensors(model, inputs) as fakes, torch.no_grad(), LiveTensors() as memory:
        model(*fakes)
    return memory.peak


@contextmanager
def fake_tensors(
    model: nn.Module, inputs: tuple[Any, ...], gradients: bool = False, device: str = "cpu"
) -> Iterator[tuple[Any, ...]]:
    """Replaces the model's weights by fake tensors on a device inside the block; yields fake inputs."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: Any, grad: bool) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        with mode:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return empty.requires_grad_(grad and (tensor.is_floating_point() or tensor.is_complex()))

    weights = {id(p): fake(p, p.requires_grad and gradients) for p in model.parameters()}
    weights |= {id(b): fake(b, False) for b in model.buffers()}
    holders: list[dict[str, Any]] = [part for m in model.modules() for part in (m._parameters, m._buffers)]
    own = [dict(holder) for holder in holders]
    try:
        for holder in holders:
            holder.update({name: weights[id(tensor)] for name, tensor in holder.items() if tensor is not None})
        with mode:
            yield tree_map(lambda part: fake(part, gradients), inputs)
    finally:
        for holder, tensors in zip(holders, own, strict=True):
            holder.update(tensors)
