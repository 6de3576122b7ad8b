"""Parameter groups of the optimiser: parameters with a learning rate or weight decay of their own."""

import abc
from collections.abc import Iterator
from typing import Any

from torch import nn


class Tuned(abc.ABC):
    """A module with parameters whose optimiser settings differ from the default."""

    @abc.abstractmethod
    def settings(self) -> Iterator[tuple[nn.Parameter, dict[str, float]]]:
        """Yields parameters with their settings that differ: "lr", "weight_decay"."""


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimiser; the first has the optimiser's own settings.

    Without a `Tuned` module there is no other group. Parameters of a `Tuned` module have the settings that it gives. Of
    the others, biases, normalisation weights and embeddings have no weight decay. A schedule multiplies the learning
    rate of each group.
    """
    if not any(isinstance(module, Tuned) for module in network.modules()):
        return [{"params": list(network.parameters())}]
    tuned = {id(p): own for module in network.modules() if isinstance(module, Tuned) for p, own in module.settings()}
    groups: dict[tuple[tuple[str, float], ...], list[nn.Parameter]] = {(): []}
    grouped = set()
    for module in network.modules():
        without_decay = isinstance(module, (nn.Embedding, nn.LayerNorm, nn.BatchNorm1d))
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in grouped:
                continue
            grouped.add(id(parameter))
            default = {"weight_decay": 0.0} if without_decay or name == "bias" else {}
            key = tuple(sorted(tuned.get(id(parameter), default).items()))
            groups.setdefault(key, []).append(parameter)
    return [{"params": parameters, **dict(key)} for key, parameters in groups.items() if parameters]
