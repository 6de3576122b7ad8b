"""Linformer's theorems: the attention matrix is low-rank, and E and F exist (Wang et al. 2020, Section 3 and 4).

https://arxiv.org/abs/2006.04768
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.linformer import Linformer
from subquad.measure.analysis.attention_matrix import softmax_like, square_site
from subquad.measure.analysis.theorems.finding import Finding
from subquad.specs import Masks

EPS, DIM = 0.5, 64
LENGTHS = (64, 128, 256, 512)


def attention_matrix(n: int, dim: int = DIM, sharpness: float = 1.0, seed: int = 0) -> Float[Tensor, "n n"]:
    """softmax(sharpness Q Kᵀ / √d) with N(0, 1) entries of Q and K."""
    q, k = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (sharpness * q @ k.mT / math.sqrt(dim)).softmax(-1)


def least_rank(p: Float[Tensor, "n n"], eps: float) -> int:
    """The smallest rank of a matrix with ‖P̃ - P‖_F <= ε ‖P‖_F (Eckart and Young: the truncated SVD)."""
    energy = torch.linalg.svdvals(p).square()
    lost = 1 - energy.cumsum(0) / energy.sum()
    return int((lost > eps**2).sum()) + 1


def projected_rank(n: int, eps: float = EPS) -> int:
    """k = 5 ln n / (ε² - ε³), the rank that the proof of Theorem 1 takes."""
    return math.ceil(5 * math.log(n) / (eps**2 - eps**3))


def projection_errors(n: int, w: Float[Tensor, " n"], draws: int = 20) -> Float[Tensor, " k"]:
    """‖P Rᵀ R w - P w‖ / ‖P w‖ for R [k, n] of N(0, 1/k), with the k of the proof."""
    k, p = projected_rank(n), attention_matrix(n)
    r = torch.randn(draws, k, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / math.sqrt(k)
    estimate = (p @ (r.mT @ (r @ w)[..., None]))[..., 0]
    return (estimate - p @ w).norm(dim=-1) / (p @ w).norm()


def lipschitz_step(n: int, k: int = 64) -> float:
    """‖exp(δ x R) - exp(δ x) R‖ / ‖exp(δ x)‖ of Eq. 23 with δ = 1/n, x of N(0, 1), R [n, k] of N(0, 1/k)."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    r = torch.randn(n, k, generator=generator, dtype=torch.float64) / math.sqrt(k)
    return float(((x @ r / n).exp() - (x / n).exp() @ r).norm() / (x / n).exp().norm())


@torch.no_grad()
def identity_error(n: int = 16, dim: int = 16, heads: int = 2) -> float:
    """Largest difference between a Linformer layer with k = n and E = F = I and softmax attention."""
    torch.manual_seed(0)
    site = square_site(n, dim, heads)
    layer = Linformer(site, k=n).double().eval()
    for e in (layer.key_map[0], layer.value_map[0]):
        e.data.copy_(torch.eye(n))
    x = torch.randn(1, n, dim, dtype=torch.float64)
    return float((layer(x, x, Masks())[0] - softmax_like(layer, site)(x, x, Masks())[0]).abs().max())


def check() -> list[Finding]:
    """Ranks needed for an error, the two vectors w of the proof, its last step, and the exact limit."""
    n = LENGTHS[-1]
    generator = torch.Generator().manual_seed(3)
    random, constant = torch.randn(n, generator=generator, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    errors, aligned = projection_errors(n, random), projection_errors(n, constant)
    ranks = {length: least_rank(attention_matrix(length, sharpness=3.0), 0.1) for length in LENGTHS}
    growth = float(np.polyfit(np.log(LENGTHS), np.log(list(ranks.values())), 1)[0])
    flat = least_rank(attention_matrix(n, sharpness=0.3), 0.1)
    return [
        Finding(
            paper="Linformer", place="Theorem 1",
            statement="‖P Rᵀ R w - P w‖ <= ε ‖P w‖ with k = 5 ln n / (ε² - ε³), for any w", verdict="fails",
            measured={
                "median error, random w": float(errors.median()), "ε": EPS, "k": projected_rank(n), "n": n,
                "share of draws within ε": float((errors <= EPS).double().mean()),
            },
            note="The lemma bounds the error by ε ‖p‖ ‖w‖, and P averages a w of both signs to less than that.",
        ),
        Finding(
            paper="Linformer", place="Theorem 1", statement="the same for a w that P does not average away (w = 1)",
            verdict="holds",
            measured={"median error": float(aligned.median()), "ε": EPS,
                      "share of draws within ε": float((aligned <= EPS).double().mean())},
        ),
        Finding(
            paper="Linformer", place="Theorem 1", statement="rank(P̃) = Θ(log n) is enough for an error ε",
            verdict="fails",
            measured={**{f"rank for 0.1, n={length}": r for length, r in ranks.items()}, "rank ~ n^p, p": growth,
                      f"rank for 0.1, flat P, n={n}": flat},
            note="Best approximations, random Q and K, d = 64, logits of standard deviation 3 (flat: 0.3): sharp "
            "attention needs a rank that grows as a power of n, flat attention hardly any. Low rank is a property of "
            "trained attention, not of every Q and K: figure linformer/1 measures it.",
        ),
        Finding(
            paper="Linformer", place="Theorem 2, Eq. 23",
            statement="‖exp(δ x R) - exp(δ x) R‖ = o(‖exp(δ x)‖) for δ = θ(1/n)", verdict="fails",
            measured={f"ratio, n={length}": lipschitz_step(length) for length in LENGTHS},
            note="For small δ the left side tends to ‖1 - 1 R‖. This refutes the proof's E and F, not that some exist.",
        ),
        Finding(
            paper="Linformer", place="Eq. 7", statement="k = n and E = F = I give softmax attention", verdict="holds",
            measured={"largest difference": identity_error()},
            note="E and F must be k x n; the text of Section 4 says n x k.",
        ),
    ]  # fmt: skip
