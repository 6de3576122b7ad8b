"""Groups of parameters for the optimiser: which ones have a learning rate or a weight decay of their own."""

import abc
from collections.abc import Iterator
from typing import Any

from torch import nn


class Tuned(abc.ABC):
    """A module some of whose parameters want other settings than the optimiser's."""

    @abc.abstractmethod
    def settings(self) -> Iterator[tuple[nn.Parameter, dict[str, float]]]:
        """Parameters with the settings that differ: "lr", "weight_decay"."""


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Every parameter once, in groups as torch's optimisers take them; the first has the optimiser's own settings.

    What a `Tuned` module asks for holds. Of the rest, biases, weights of normalisations and embeddings are not decayed.
    A schedule multiplies the rate of each group.
    """
    asked = {id(p): own for module in network.modules() if isinstance(module, Tuned) for p, own in module.settings()}
    groups: dict[tuple[tuple[str, float], ...], list[nn.Parameter]] = {(): []}
    seen = set()
    for module in network.modules():
        spared = isinstance(module, (nn.Embedding, nn.LayerNorm, nn.BatchNorm1d))
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            default = {"weight_decay": 0.0} if spared or name == "bias" else {}
            key = tuple(sorted(asked.get(id(parameter), default).items()))
            groups.setdefault(key, []).append(parameter)
    return [{"params": parameters, **dict(key)} for key, parameters in groups.items() if parameters]
