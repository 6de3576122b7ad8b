"""DBA's reduction of the width: random maps and inner products (Qin et al. 2022, Section 3.2 and Appendix A.1).

https://arxiv.org/abs/2211.16368
"""

import math
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.dba import DBA
from subquad.measure.analysis.theorems.finding import Finding
from subquad.specs import Masks, Pattern, Site

DIM, REDUCED, DRAWS = 64, 24, 4000
WIDTHS = (8, 16, 32, 64, 128, 256)


def bound(eps: float, d_in: int) -> float:
    """2 exp(-(ε² - ε³) d_in / 4): the largest share of failures that Eq. 15 allows."""
    return 2 * math.exp(-(eps**2 - eps**3) * d_in / 4)


def least_width(eps: float, d_p: int) -> float:
    """The d_in that the theorem requires: 10 ln d_p / (ε² - ε³)."""
    return 10 * math.log(d_p) / (eps**2 - eps**3)


def inner_products(
    x: Float[Tensor, " d"], y: Float[Tensor, " d"], d_in: int, variance: float, draws: int = DRAWS
) -> Float[Tensor, " k"]:
    """x R Rᵀ yᵀ for `draws` matrices R of N(0, variance)."""
    generator = torch.Generator().manual_seed(0)
    r = torch.randn(draws, len(x), d_in, generator=generator, dtype=x.dtype) * math.sqrt(variance)
    return ((x @ r) * (y @ r)).sum(-1)


def pair(cosine: float, dim: int) -> tuple[Tensor, Tensor]:
    """Two unit vectors with this cosine."""
    x, y = torch.eye(dim, dtype=torch.float64)[:2]
    return x, cosine * x + math.sqrt(1 - cosine**2) * y


@torch.no_grad()
def layer_errors(widths: tuple[int, ...] = WIDTHS, seeds: int = 8, dim: int = 128, n: int = 64) -> dict[int, float]:
    """Relative error of a DBA layer with R against the same layer without R, by d_in: root mean square over draws of R.

    Both divide their logits by √d: the printed √d_in would sharpen the softmax as d_in shrinks, without an error of R.
    """
    x = torch.randn(1, n, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    site = Site(pattern=Pattern.SELF, dim=dim, heads=1, query_len=n, context_len=n)
    errors: dict[int, list[float]] = {width: [] for width in widths}
    for seed in range(seeds):
        torch.manual_seed(seed)
        whole = DBA(site, optimize_d=False).double().eval()
        # Larger than at the start of training, so that the rows of W_r and W_c differ from a plain mean.
        whole.latent.data.mul_(math.sqrt(dim))  # type: ignore[union-attr]
        exact = whole(x, x, Masks())[0] - whole.out.bias  # type: ignore[union-attr]
        for width in widths:
            torch.manual_seed(100 + seed)
            small = DBA(site, d_in=width).double().eval()
            small.load_state_dict(whole.state_dict(), strict=False)
            small.scale = whole.scale
            y = small(x, x, Masks())[0] - whole.out.bias  # type: ignore[union-attr]
            errors[width].append(float((y - exact).square().sum() / exact.square().sum()))
    return {width: math.sqrt(sum(of_seeds) / len(of_seeds)) for width, of_seeds in errors.items()}


def _finding(place: str, statement: str, **rest: object) -> Finding:
    return Finding(paper="DBA", place=place, statement=statement, **rest)  # type: ignore[arg-type]


def check() -> list[Finding]:
    """The lemma as printed and mended, its constants, and the error of a layer against d_in."""
    x, _ = pair(1.0, DIM)
    printed, mended = (float(inner_products(x, x, REDUCED, v).mean()) for v in (1 / DIM, 1 / REDUCED))
    findings = [
        _finding(
            "Eq. 15", "x R Rᵀ y estimates x y where R has entries of N(0, 1/d)", verdict="misprinted",
            measured={"E[x R Rᵀ x] / x x, 1/d": printed, "the same, 1/d_in": mended, "d_in / d": REDUCED / DIM},
            note="The variance must be 1/d_in; the printed one shrinks inner products by d_in/d (attention.r_init).",
        )
    ]  # fmt: skip
    eps, d_in, cosine = 0.5, 128, 0.01
    draw = partial(inner_products, d_in=d_in, variance=1 / d_in)
    x, y = pair(cosine, DIM)
    error = (draw(x, y) - cosine).abs()
    same = (draw(x, x) - 1).abs()
    share, additive, equal = (float((e > eps * scale).double().mean()) for e, scale in (
        (error, cosine), (error, 1.0), (same, 1.0)))  # fmt: skip
    findings += [
        _finding(
            "Eq. 15", "|x R Rᵀ y - x y| <= ε |x y| for any x, y but for a share 2 exp(-(ε² - ε³) d_in / 4)",
            verdict="fails", measured={"failures": share, "allowed": bound(eps, d_in), "cosine": cosine, "ε": eps},
            note="Nearly orthogonal vectors break it: the error is about ‖x‖‖y‖/√d_in, whatever x y is.",
        ),
        _finding(
            "Eq. 15", "the same with ε ‖x‖ ‖y‖ in place of ε |x y|", verdict="holds",
            measured={"failures": additive, "failures, y = x": equal, "allowed": bound(eps, d_in), "ε": eps},
            note="The usual form of the lemma, and what the layer needs.",
        ),
    ]  # fmt: skip
    least = least_width(2 / 3, 16)
    findings.append(
        _finding(
            "Eq. 9 and Table 7", "d_in = 24 is enough for d_p = 16", verdict="fails",
            measured={"least d_in over all ε": least, "d_in": float(REDUCED)},
            note="d_in >= 10 ln d_p / (ε² - ε³) is smallest at ε = 2/3 and exceeds 24 there.",
        )
    )  # fmt: skip
    errors = layer_errors()
    slope = float(np.polyfit(np.log(list(errors)), np.log(list(errors.values())), 1)[0])
    findings.append(
        _finding(
            "Section 3.2", "a layer with R differs from one without by a small error that shrinks with d_in",
            verdict="holds",
            measured={**{f"error, d_in={w}": e for w, e in errors.items()}, "error ~ d_in^p, p": slope},
            note="Relative (Frobenius), d = 128, random weights and tokens, logits over √d; theory says p = -1/2.",
        )
    )  # fmt: skip
    return findings
