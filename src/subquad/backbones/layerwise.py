"""Changes to every layer of a model: activation checkpointing, and sharding over processes (FSDP)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from subquad.backbones.vision import ImageBackbone
from subquad.blocks.layer import Layer
from subquad.blocks.multihead import CrossBlock


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Every `Layer` of a model and every block of a timm model; shared ones once."""
    layers: list[nn.Module] = []
    for part in network.modules():
        layers += part.blocks if isinstance(part, ImageBackbone) else [part] if isinstance(part, Layer) else []
    return layers


def recompute_layers(network: nn.Module) -> None:
    """Activation checkpointing: stores the input of each layer and recomputes the rest in the backward pass.

    Outputs, gradients, buffers and random states stay the same. Activations inside layers are not stored; a step
    takes about a third more time. Source: Chen et al. 2016, https://arxiv.org/abs/1604.06174.
    """
    for part in _recomputable(network):
        part.forward = _recomputed(part, part.forward)


def _recomputable(network: nn.Module) -> list[nn.Module]:
    return [*layers_of(network), *(part for part in network.modules() if isinstance(part, CrossBlock))]


@contextmanager
def recomputed(network: nn.Module, mode: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[None]:
    """`recompute_layers` inside the block only.

    Layers compute in a context of `mode`: torch switches its function modes off in backward passes.
    """
    before = [(part, vars(part).get("forward")) for part in network.modules()]
    for part in _recomputable(network):
        part.forward = _computed_in(mode, part.forward)
    recompute_layers(network)
    try:
        yield
    finally:
        for part, forward in before:
            vars(part).pop("forward", None)
            if forward is not None:
                part.forward = forward


def _computed_in(mode: Callable[[], AbstractContextManager[Any]], plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return plain(*args, **kwargs)

    return forward


def _recomputed(layer: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    norms = [part for part in layer.modules() if isinstance(part, _BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _same_statistics(norms)

    chosen: dict[str, Any] = {"context_fn": contexts} if norms else {}  # torch.compile does not support context_fn

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        return checkpoint(plain, *args, use_reentrant=False, **chosen, **kwargs)

    return forward


@contextmanager
def _same_statistics(norms: list[_BatchNorm]) -> Iterator[None]:
    """Keeps the running statistics as they are: they include this batch already."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    counts = [None if count is None else count.clone() for _, _, count in before]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for (norm, momentum, count), value in zip(before, counts, strict=True):
            norm.momentum = momentum
            if count is not None and value is not None:
                count.copy_(value)


def shard(network: nn.Module, mesh: Any, half: torch.dtype | None = None) -> None:
    """Shards the parameters of a model over the devices of a mesh; does nothing to a sharded model.

    With `half`, the parameters of layers are gathered in that type, which halves the traffic, and their gradients are
    summed in float32. Norms, and everything outside of layers (embeddings, the head, state spaces), stay in their own
    type: autocast computes with them in float32.
    """
    if isinstance(network, FSDPModule):
        return
    policy = MixedPrecisionPolicy(half, reduce_dtype=half and torch.float32, cast_forward_inputs=False)
    for layer in layers_of(network):
        norms: list[nn.Module] = [part for part in layer.modules() if isinstance(part, nn.LayerNorm | _BatchNorm)]
        if half and norms:
            fully_shard(norms, mesh=mesh)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh)
