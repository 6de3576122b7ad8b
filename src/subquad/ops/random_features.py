"""Random features of the softmax kernel (Choromanski et al. 2020, https://arxiv.org/abs/2009.14794)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def orthogonal_directions(count: int, width: int) -> Float[Tensor, "f e"]:
    """Rows that have Gaussian marginals and are orthogonal within each group of `width` rows."""
    q, r = torch.linalg.qr(torch.randn(math.ceil(count / width), width, width))
    # Without these signs the first component of the first row would always be negative, and the rotations not uniform.
    rotations = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
    norms = torch.randn(count, width).norm(dim=1, keepdim=True)
    return rotations.mT.flatten(0, 1)[:count] * norms
