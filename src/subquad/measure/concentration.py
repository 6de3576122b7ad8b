"""How DBA's compression W_r spreads over the tokens, layer by layer: over all of them, or on one token a row."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.dba import DBA
from subquad.errors import UserError
from subquad.specs import Masks


@torch.no_grad()
def concentration(network: nn.Module, inputs: Iterable[tuple[Any, ...]]) -> dict[str, list[float]]:
    """Means over sequences and rows of W_r, one value for each layer in the order in which layers run.

    entropy: the entropy of a row over the logarithm of the number of real tokens; 1 where all have the same weight, 0
        where one token has all of it. largest: the largest weight of a row.

    Sequences of one real token are left out. Raises UserError where nothing is left, or where no layer compresses.
    """
    found: list[tuple[Tensor, Tensor]] = []

    def read(layer: DBA, arguments: tuple[Tensor, Tensor, Masks, Tensor | None]) -> None:
        _, context, masks, carry = arguments
        weights = layer.compression(context, masks, carry).double()
        real = torch.ones(context.shape[:2], dtype=torch.bool, device=context.device)
        if masks.context is not None and layer.mask == "logits":
            real = masks.context
        tokens = real.sum(-1, keepdim=True).expand(weights.shape[:2])
        used = tokens > 1
        found.append(((torch.special.entr(weights).sum(-1) / tokens.log())[used], weights.amax(-1)[used]))

    hooks = [
        module.register_forward_pre_hook(read)
        for module in network.modules()
        if isinstance(module, DBA) and module.optimize_n
    ]
    by_layer: list[list[tuple[Tensor, Tensor]]] = []
    try:
        for batch in inputs:
            found.clear()
            network(*batch)
            by_layer = by_layer or [[] for _ in found]
            for seen, values in zip(by_layer, found, strict=True):
                seen.append(values)
    finally:
        for hook in hooks:
            hook.remove()
    layers = [[torch.cat(values) for values in zip(*seen, strict=True)] for seen in by_layer]
    if not layers or not len(layers[0][0]):
        raise UserError(
            "W_r is read from attention=dba with attention.optimize_n=true, on sequences of at least two tokens."
        )
    return {"entropy": [float(e.mean()) for e, _ in layers], "largest": [float(w.mean()) for _, w in layers]}
