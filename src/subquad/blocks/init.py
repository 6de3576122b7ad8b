"""Initial weights of a model."""

from torch import nn

from subquad.attention.base import Attention


def draw_linear_maps(model: nn.Module, std: float) -> None:
    """Draws weights from N(0, std²) and sets biases to 0, as in BERT, in every linear map outside attentions."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    inside = {part for attention in attentions for part in attention.modules()}
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in inside:
            nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)
