"""DBA's compression of the tokens: ranks (Qin et al. 2022, Section 3.1). https://arxiv.org/abs/2211.16368"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.dba import DBA
from subquad.measure.analysis.attention_matrix import square_site, value_weights
from subquad.measure.analysis.theorems.finding import Finding


def rank(matrix: Float[Tensor, "m n"], tolerance: float = 1e-9) -> int:
    """Number of singular values above `tolerance` times the largest."""
    return int(torch.linalg.matrix_rank(matrix, rtol=tolerance))


def softmax_ranks(n: int = 48, d: int = 4) -> tuple[int, int]:
    """Ranks of Q Kᵀ and of softmax(Q Kᵀ / √d) with N(0, 1) entries of Q and K [n, d]."""
    q, k = torch.randn(2, n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = q @ k.mT
    return rank(logits), rank((logits / math.sqrt(d)).softmax(-1))


def layer_rank(n: int = 32, d_p: int = 6, heads: int = 2) -> int:
    """Largest rank of the token mixing of a head of a DBA layer, computed from its outputs."""
    torch.manual_seed(0)
    layer = DBA(square_site(n, n, heads), d_p=d_p).double().eval()
    x = torch.randn(1, n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = value_weights(layer, x)
    assert weights is not None, "DBA is linear in its values"
    return max(rank(head) for head in weights)


def check() -> list[Finding]:
    """The rank of the logits, that of the attention matrix, and that of DBA's approximation of it."""
    torch.manual_seed(0)
    a, b = torch.randn(48, 4, dtype=torch.float64), torch.randn(48, 2, dtype=torch.float64).repeat(1, 2)
    logits, attention = softmax_ranks()
    mixing = layer_rank()
    return [
        Finding(
            paper="DBA", place="Eq. 5", statement="Rank(Q Kᵀ) <= max(Rank Q, Rank K) <= min(n, d)",
            verdict="misprinted",
            measured={"Rank Q Kᵀ": rank(a @ b.mT), "Rank Q": rank(a), "Rank K": rank(b)},
            note="True, and the sharp bound that the text means is the min of the two ranks.",
        ),
        Finding(
            paper="DBA", place="Eq. 6",
            statement="P_φ [n, n] is W'_r P'_φ W'_cᵀ without loss for some d_p <= min(n, d)", verdict="fails",
            measured={"Rank softmax(Q Kᵀ)": attention, "Rank Q Kᵀ": logits, "n": 48, "d": 4},
            note="Such a product has rank d_p at most, but the softmax of a matrix of rank d has a higher one. "
            "That Q Kᵀ determines P (Eq. 3) does not make P a product of these sizes.",
        ),
        Finding(
            paper="DBA", place="Eq. 8-10", statement="the layer mixes tokens by a matrix of rank d_p at most",
            verdict="holds", measured={"largest rank of a head": mixing, "d_p": 6, "n": 32},
        ),
    ]  # fmt: skip
