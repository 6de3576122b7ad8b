"""How the weights of a model begin."""

from torch import nn

from subquad.attention.base import Attention


def draw_linear_maps(model: nn.Module, std: float) -> None:
    """Weights from N(0, std²) and biases 0, as BERT, in every linear map outside the attention, which draws its own."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    own = {part for attention in attentions for part in attention.modules()}
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in own:
            nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)
