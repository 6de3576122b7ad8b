"""The LayerNorm of MCAN."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class UnbiasedLayerNorm(nn.Module):
    """g (x - mean) / (s + ε) + b with the unbiased standard deviation s, as in the code of Yu et al. 2019.

    torch's LayerNorm divides by √(variance + ε) with the biased variance; s is √(d / (d - 1)) times larger.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        std, mean = torch.std_mean(x, -1, keepdim=True)
        return self.weight * (x - mean) / (std + self.eps) + self.bias
