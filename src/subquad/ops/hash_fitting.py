"""Fits kernelised hash functions to similarity labels, bit by bit, without n x n matrices.

The objective is ‖H Hᵀ - b Y‖² (Liu et al. 2022, https://arxiv.org/abs/2209.09004, Eq. 12-14; Liu et al. 2012, KSH).
attention/ecoformer.py has it as naive functions. Here the residual S = b Y - Σ_t h_t h_tᵀ is never formed: Y is sparse,
and a product with S is S y = b Y y - Σ_t h_t (h_tᵀ y).
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_BLOCK = 2**21
"""Similarities in memory at a time while labels are chosen."""
_GROUP = 16
"""Similarities in a group; `_extremes` first compares the extremes of groups."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The entries of each row of Y as columns and values: +1, -1, or 0 for no entry."""

    columns: Int[Tensor, "h b n l"]
    values: Float[Tensor, "h b n l"]

    def dense(self) -> Float[Tensor, "h b n n"]:
        """Y as a dense matrix."""
        n = self.columns.shape[2]
        return self.values.new_zeros(*self.columns.shape[:3], n).scatter_add_(3, self.columns, self.values)


def labels(q: Float[Tensor, "h b n e"], mask: Bool[Tensor, "b n"], count: int) -> Labels:
    """For each real token, by cosine of unit vectors: +1 at the `count` nearest real tokens, -1 at the farthest.

    A token is one of its own nearest. A row of N real tokens has min(count, N - 1) of each; a token that is both
    gets -1.
    """
    h, b, n, _ = q.shape
    most = max(1, min(count, n - 1))
    limit = (mask.sum(1) - 1).clamp(0, most)
    size = max(1, _BLOCK // (h * b * n))
    near, far = [], []
    hidden = None if mask.all() else torch.where(mask, 0.0, math.inf).to(q.dtype)[:, None]
    keys = q.mT.contiguous()
    for start in range(0, n, size):
        cosine = q[:, :, start : start + size] @ keys
        cosine.diagonal(start, 2, 3).fill_(2.0)  # above all cosines: each token is its own nearest
        near.append(_extremes(cosine if hidden is None else cosine - hidden, most, largest=True))
        far.append(_extremes(cosine if hidden is None else cosine + hidden, most, largest=False))
    nearest, farthest = torch.cat(near, 2), torch.cat(far, 2)
    real = (torch.arange(most, device=q.device) < limit[:, None])[:, None] & mask[..., None]
    both = (nearest[..., None] == farthest.masked_fill(~real, -1)[..., None, :]).any(-1)
    values = torch.cat([(real & ~both).to(q.dtype), -real.expand_as(farthest).to(q.dtype)], -1)
    return Labels(torch.cat([nearest, farthest], -1), values)


def _extremes(x: Float[Tensor, "*r n"], count: int, largest: bool) -> Int[Tensor, "*r count"]:
    """Columns of the `count` largest or smallest of each row, in that order.

    They lie in the `count` groups of columns with the largest maxima (or smallest minima), so only these are sorted.
    """
    groups = x.shape[-1] // _GROUP
    if groups < 4 * count:
        return x.topk(count, -1, largest=largest).indices
    body = x[..., : _GROUP * groups].unflatten(-1, (_GROUP, groups))
    leading = (body.amax(-2) if largest else body.amin(-2)).topk(count, -1, largest=largest, sorted=False).indices
    members = (leading[..., None] + groups * torch.arange(_GROUP, device=x.device)).flatten(-2)
    rest = torch.arange(_GROUP * groups, x.shape[-1], device=x.device).expand(*x.shape[:-1], -1)
    candidates = torch.cat([members, rest], -1)
    return candidates.gather(-1, x.gather(-1, candidates).topk(count, -1, largest=largest).indices)


class _Residual:
    """The residual S = b Y - Σ_t h_t h_tᵀ of all rows and heads, as products with vectors."""

    def __init__(self, graph: Labels, bits: int) -> None:
        h, b, n, _ = graph.columns.shape
        self.labels = both_ways(graph, float(bits))
        self.codes = graph.values.new_empty(h * b, bits, n)
        self.taken = 0

    def __call__(self, y: Float[Tensor, "h bn"]) -> Float[Tensor, "h bn"]:
        """(S + Sᵀ) y."""
        product = self.labels.mv(y.flatten()).view(len(self.codes), 1, -1)
        if self.taken:
            codes = self.codes[:, : self.taken]
            inner = codes @ y.view_as(product).mT
            product = torch.baddbmm(product, inner.mT, codes, alpha=-2)
        return product.view_as(y)

    def within(self, k: Float[Tensor, "h m bn"], weight: Float[Tensor, " bn"]) -> Float[Tensor, "h m m"]:
        """Σ_rows weight · k (S + Sᵀ) kᵀ: the objective as a function of a, if codes were linear."""
        h, m, bn = k.shape
        total = (k * weight) @ (self.labels @ k.mT.reshape(h * bn, m)).view(h, bn, m)
        codes = self.codes[:, : self.taken].unflatten(0, (h, -1))
        inner = k.unflatten(-1, (codes.shape[1], -1)).transpose(1, 2) @ codes.mT
        share = weight.view(codes.shape[1], -1).amax(1)[:, None, None]
        return total - 2 * ((inner * share) @ inner.mT).sum(1)

    def take(self, code: Float[Tensor, "h bn"]) -> None:
        """Adds h hᵀ of the next code to the sum that is subtracted."""
        self.codes[:, self.taken] = code.view(len(self.codes), -1)
        self.taken += 1


def fit_planes(
    kernel: Float[Tensor, "h m b n"], graph: Labels, mask: Bool[Tensor, "b n"], planes: Float[Tensor, "h k m"],
    rule: Literal["released", "strong"],
) -> Float[Tensor, "h k m"]:  # fmt: skip
    """Rows a_1, a_2, ... of the hash sign(A κ), each fitted to the residual of the codes before it (Eq. 14).

    Args:
        kernel: centred similarities κ, 0 at padding.
        graph: the labels Y.
        planes: where the search starts. A new row replaces the old one, in each head, only if it lowers
            -Σ_rows hᵀ S h / (N b).
        rule: "released" is 100 steps of SGD at a rate of 5e-4, which hardly moves A. "strong" takes the best linear
            code (an eigenvector, as Liu et al. 2012), improves it by 30 steps at a rate of 10, and scales a_r so that
            a_rᵀ κ has a mean square of 1: codes do not change, and the hard tanh of sign(a_rᵀ κ) passes gradients.
    """
    bits = planes.shape[1]
    # Contiguous, because each step of SGD reads all of it twice.
    k, rows_real = kernel.flatten(2).contiguous(), mask.to(kernel.dtype)
    real, weight = rows_real.flatten(), (rows_real / (rows_real.sum(1, keepdim=True) * bits * len(mask))).flatten()
    residual = _Residual(graph, bits)

    def code(a: Float[Tensor, "h m"]) -> Float[Tensor, "h bn"]:
        return torch.where(_project(a, k) >= 0, real, -real)

    def loss(a: Float[Tensor, "h m"]) -> Float[Tensor, " h"]:
        y = code(a)
        return -(residual(y) * y * weight).sum(1) / 2

    rows = []
    for best in planes.unbind(1):
        candidate, least = best, loss(best)
        for step in range(1 if rule == "released" else 2):
            if rule == "released":
                candidate = _descend(candidate, k, weight / len(k), residual, steps=100, rate=5e-4)
            elif step == 0:
                candidate = _relaxed(k, residual.within(k, weight), real)
            else:
                candidate = _descend(candidate, k, weight, residual, steps=30, rate=10.0)
            new = loss(candidate)
            best, least = torch.where((new < least)[:, None], candidate, best), new.minimum(least)
        residual.take(code(best))
        rows.append(best)
    fitted = torch.stack(rows, 1)
    return fitted if rule == "released" else fitted / _size(fitted, k, real)


def _project(a: Float[Tensor, "h m"], k: Float[Tensor, "h m bn"]) -> Float[Tensor, "h bn"]:
    """aᵀ κ of every token, by matrix-vector products, which are much faster than products with a matrix of one row."""
    return torch.stack([columns.mT.mv(one) for one, columns in zip(a, k, strict=True)])


def _project_back(y: Float[Tensor, "h bn"], k: Float[Tensor, "h m bn"]) -> Float[Tensor, "h m"]:
    return torch.stack([columns.mv(one) for one, columns in zip(y, k, strict=True)])


def _descend(
    a: Float[Tensor, "h m"], k: Float[Tensor, "h m bn"], weight: Float[Tensor, " bn"], residual: _Residual,
    steps: int, rate: float,
) -> Float[Tensor, "h m"]:  # fmt: skip
    """SGD with Nesterov momentum 0.9 on the loss with y = 2 sigmoid(z) - 1 for sign(z)."""
    velocity, half = torch.zeros_like(a), weight / 2
    for _ in range(steps):
        y = _project(a, k).sigmoid_().mul_(2).sub_(1)
        # dy/dz = (1 - y²) / 2
        slope = torch.addcmul(half, y * half, y, value=-1)
        gradient = _project_back(residual(y).mul_(slope), k).neg_()
        velocity = gradient.add(velocity, alpha=0.9)
        a = a.sub(gradient.add(velocity, alpha=0.9), alpha=rate)
    return a


def _relaxed(
    k: Float[Tensor, "h m bn"], within: Float[Tensor, "h m m"], real: Float[Tensor, " bn"]
) -> Float[Tensor, "h m"]:
    """The a that maximises aᵀ (k S kᵀ) a for a given aᵀ k kᵀ a, scaled so that aᵀ κ has a mean square of 4."""
    # A generalised eigenproblem: with k kᵀ = L Lᵀ, a = L⁻ᵀ u for the leading eigenvector u of L⁻¹ (k S kᵀ) L⁻ᵀ.
    gram = k @ k.mT
    ridge = 1e-4 * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(k.dtype).tiny)
    root, _ = torch.linalg.cholesky_ex(gram + ridge[:, None, None] * torch.eye(k.shape[1], device=k.device).to(k))
    half = torch.linalg.solve_triangular(root, within, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.mT, upper=False)
    leading = torch.linalg.eigh((whitened + whitened.mT) / 2)[1][..., -1:]
    a = torch.linalg.solve_triangular(root.mT, leading, upper=True)[..., 0]
    return 2 * a / _size(a[:, None], k, real)[:, 0]


def _size(a: Float[Tensor, "h k m"], k: Float[Tensor, "h m bn"], real: Float[Tensor, " bn"]) -> Float[Tensor, "h k 1"]:
    """Root mean square of aᵀ κ over the real tokens."""
    return ((a @ k).square().sum(-1, keepdim=True) / real.sum()).sqrt().clamp_min(1e-12)


def both_ways(graph: Labels, factor: float) -> Tensor:
    """factor · (Y + Yᵀ), block-diagonal over rows and heads, in compressed sparse rows.

    Entries of tokens that label each other are added, which saves a third of the product.
    """
    columns, values = graph.columns.flatten(0, 2), factor * graph.values.flatten(0, 2)
    size, n = len(columns), graph.columns.shape[2]
    token = torch.arange(size, device=columns.device)[:, None]
    kept = values != 0
    rows, columns, values = token.expand_as(columns)[kept], (columns + token // n * n)[kept], values[kept]
    # Faster than torch's coalesce by a factor of two.
    places, entry = torch.unique(torch.cat([rows * size + columns, columns * size + rows]), return_inverse=True)
    entries = values.new_zeros(len(places)).index_add_(0, entry, torch.cat([values, values]))
    starts = torch.searchsorted(places, size * torch.arange(size + 1, device=places.device))
    with warnings.catch_warnings():  # torch warns that sparse rows are in beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            starts.int(), (places % size).int(), entries, (size, size), check_invariants=False
        )


def objective(codes: Float[Tensor, "h k b n"], graph: Labels) -> Float[Tensor, ""]:
    """‖H Hᵀ - b Y‖² summed over rows and heads; codes are 0 at padding."""
    bits = codes.shape[1]
    rows = codes.permute(0, 2, 3, 1)
    agreement = both_ways(graph, float(bits)) @ rows.reshape(-1, bits)
    gram = rows.mT @ rows
    return gram.square().sum() - (agreement.view_as(rows) * rows).sum() + (bits * graph.values).square().sum()


def kulis_grauman(anchors: Float[Tensor, "h m e"], sigma: Float[Tensor, " h"], bits: int) -> Float[Tensor, "h k m"]:
    """Rows K^(-1/2) (e_T / t - 1 / m) with K the similarity of unit anchors and T random t = ⌈m / 4⌉ of them.

    Kernelised locality-sensitive hashing (Kulis and Grauman 2011): random hyperplanes in the feature space of κ.
    """
    h, m, _ = anchors.shape
    gram = ((anchors @ anchors.mT - 1) / sigma[:, None, None]).exp()
    centre = torch.eye(m, dtype=gram.dtype, device=gram.device) - 1 / m
    values, vectors = torch.linalg.eigh(centre @ gram @ centre)
    kept = values > 1e-6 * values[:, -1:]
    root = (vectors * torch.where(kept, values, 1).rsqrt()[:, None] * kept[:, None]) @ vectors.mT
    chosen = torch.rand(h, bits, m).argsort(-1).to(gram.device) < math.ceil(m / 4)
    return (chosen / math.ceil(m / 4) - 1 / m).to(gram.dtype) @ root
