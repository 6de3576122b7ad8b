"""EcoFormer's binary codes: Hamming distances, inner products, the bias 2^c and the objective of a bit.

Liu et al. 2022, Section 4, https://arxiv.org/abs/2209.09004
"""

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.measure.analysis.theorems.finding import Finding
from subquad.ops.hashing import power_bias, shared_attention, with_bias

BITS = range(1, 65)


def codes(n: int, bits: int, seed: int = 0) -> Float[Tensor, "n b"]:
    """Random codes of ±1."""
    return 2.0 * torch.randint(2, (n, bits), generator=torch.Generator().manual_seed(seed)).double() - 1


def affinity_error(n: int = 64, bits: int = 16) -> float:
    """Largest |h_tᵀ h_i - (b - 2 D_H)| over all pairs, D_H counted bit by bit."""
    h = codes(n, bits)
    distance = (h[:, None] != h[None]).sum(-1)
    return float((h @ h.mT - (bits - 2 * distance)).abs().max())


def least_weight(bits: int) -> float:
    """h_tᵀ h_i + 2^c for opposite codes, the smallest there is."""
    return power_bias(bits) - bits


def association_error(n: int = 20, bits: int = 16) -> float:
    """Largest difference of the linear form of Eq. 9 to the quadratic one, computed by the layer's own function."""
    h = codes(n, bits)
    x = torch.randn(1, n, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.manual_seed(0)
    value, out = (torch.nn.Linear(8, 8).double() for _ in range(2))
    features, scale = with_bias(h[None, :, None])
    weights = h @ h.mT + power_bias(bits)
    quadratic = out(weights / weights.sum(1, keepdim=True) @ value(x))
    return float((shared_attention(features, x, None, value, out, scale) - quadratic).detach().abs().max())


def objective_constants(n: int = 32) -> tuple[float, float, float]:
    """‖h hᵀ - Ŷ‖² + 2 hᵀ Ŷ h for one bit, (hᵀh)² + ‖Ŷ‖²_F, and the printed (hᵀh)² + tr Ŷ."""
    h = codes(n, 1)[:, 0]
    y = torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = y + y.mT
    left = (torch.outer(h, h) - y).square().sum() + 2 * h @ y @ h
    return float(left), float((h @ h) ** 2 + y.square().sum()), float((h @ h) ** 2 + y.trace())


def check() -> list[Finding]:
    """The identities of Section 4 that the layer and its fitting use."""
    left, mended, printed = objective_constants()
    return [
        Finding(
            paper="EcoFormer", place="Eq. 6-7", statement="h_tᵀ h_i = b - 2 D_H(h_t, h_i)", verdict="holds",
            measured={"largest difference": affinity_error()},
        ),
        Finding(
            paper="EcoFormer", place="Eq. 9", statement="h_tᵀ h_i + 2^c > 0 with c = ⌈log2(b + 1)⌉", verdict="holds",
            measured={"least weight, b = 1..64": min(map(least_weight, BITS)), "b = 16": least_weight(16)},
            note="Weights lie between 2^c - b and 2^c + b: at b = 16 between 16 and 48, so attention is never sharper "
            "than 3 to 1 between two tokens.",
        ),
        Finding(
            paper="EcoFormer", place="Eq. 9", statement="sums of codes and values can be taken first", verdict="holds",
            measured={"largest difference": association_error()},
        ),
        Finding(
            paper="EcoFormer", place="Eq. 14", statement="‖h hᵀ - Ŷ‖² = -2 hᵀ Ŷ h + (hᵀh)² + tr Ŷ",
            verdict="misprinted",
            measured={"difference, tr Ŷ": abs(left - printed), "difference, ‖Ŷ‖²": abs(left - mended)},
            note="The constant holds tr(Ŷ Ŷᵀ), the squared norm of Ŷ; the minimiser is the same.",
        ),
    ]  # fmt: skip
