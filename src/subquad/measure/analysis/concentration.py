"""How evenly the rows of DBA's compression W_r spread over the tokens, layer by layer."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.dba import DBA
from subquad.specs import Masks
from subquad.utils.errors import UserError


@torch.no_grad()
def concentration(network: nn.Module, inputs: Iterable[tuple[Any, ...]]) -> dict[str, list[float]]:
    """Means over sequences, one value for each layer in the order in which layers run.

    entropy: the entropy of a row of W_r over the logarithm of the number of real tokens; 1 if all have the same
        weight, 0 if one token has all of it. largest: the largest weight of a row. distinct: the number of rows
        that differ, exp(entropy of the mean row - mean entropy of the rows); 1 if all rows are equal, d_p if
        no two of them share a token.

    Sequences of one real token are left out. Raises UserError if no sequence is left, or if no layer compresses.
    """
    of_layers: list[dict[str, Tensor]] = []

    def note(layer: DBA, arguments: tuple[Tensor, Tensor, Masks, Tensor | None]) -> None:
        _, context, masks, carry = arguments
        weights = layer.compression(context, masks, carry).double().unflatten(1, (layer.groups, -1))
        real = torch.ones(context.shape[:2], dtype=torch.bool, device=context.device)
        if masks.context is not None and layer.mask == "logits":
            real = masks.context
        tokens = real.sum(-1)
        rows, mean_row = torch.special.entr(weights).sum(-1), torch.special.entr(weights.mean(2)).sum(-1)
        values = {
            "entropy": rows.mean((1, 2)) / tokens.log(),
            "largest": weights.amax(-1).mean((1, 2)),
            "distinct": (mean_row - rows.mean(2)).exp().mean(1),
        }
        of_layers.append({name: value[tokens > 1] for name, value in values.items()})

    hooks = [
        module.register_forward_pre_hook(note)
        for module in network.modules()
        if isinstance(module, DBA) and module.optimize_n
    ]
    batches: list[list[dict[str, Tensor]]] = []
    try:
        for batch in inputs:
            of_layers.clear()
            network(*batch)
            batches.append(of_layers.copy())
    finally:
        for hook in hooks:
            hook.remove()
    layers = [
        {name: torch.cat([values[name] for values in layer]) for name in layer[0]}
        for layer in zip(*batches, strict=True)
    ]
    if not layers or not len(layers[0]["entropy"]):
        raise UserError(
            "W_r is read from attention=dba with attention.optimize_n=true, on sequences of at least two tokens."
        )
    return {name: [float(layer[name].mean()) for layer in layers] for name in layers[0]}
