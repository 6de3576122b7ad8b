"""Liu et al. 2022: codes, weights and labels as n x n matrices, distances of every pair, residuals written out."""

import torch
from torch import Tensor, nn


def unit(q: Tensor) -> Tensor:
    return q / q.norm(dim=1, keepdim=True)


def kernel(q: Tensor, anchors: Tensor) -> Tensor:
    """κ of unit q and the anchors, σ their mean squared distance."""
    distance = (q[:, None] - anchors).square().sum(-1)
    return (-distance / (2 * distance.mean())).exp()


def hard(z: Tensor) -> Tensor:
    """Sign with sign(0) = 1 and the gradient of the hard tanh, whose slope at ±1 is 0."""
    slope = torch.where(z.abs() < 1, z, z.detach())
    return slope + (torch.where(z >= 0, 1.0, -1.0) - slope).detach()


def codes(attention: nn.Module, q: Tensor, head: int) -> Tensor:
    similarity = kernel(unit(q), attention.anchors[head]) - attention.mean[head]
    return hard(similarity @ attention.planes[head].T)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, read_out: str = "paper"
) -> tuple[Tensor, Tensor | None]:
    """Eq. 9 and 11, or with the numerator of the released code."""
    bits = attention.planes.shape[1]
    bias = {16: 32, 6: 8}[bits] if read_out == "paper" else bits + 1
    q, v = attention.shared(x).chunk(heads, 1), attention.value(x).chunk(heads, 1)
    parts = []
    for head in range(heads):
        h = codes(attention, q[head], head)
        weights = h @ h.T + bias
        numerator = weights @ v[head] if read_out == "paper" else h @ h.T @ v[head] + bias * v[head]
        parts.append(numerator / weights.sum(1, keepdim=True))
    return attention.out(torch.cat(parts, 1)), carry


def labels(q: Tensor, count: int) -> Tensor:
    """Y of one row and head: +1 for the nearest, then -1 for the farthest, which may overwrite."""
    cosine, y = q @ q.T, torch.zeros(len(q), len(q), dtype=q.dtype)
    count = min(count, len(q) - 1)
    for i, row in enumerate(cosine):
        order = row.argsort()
        y[i, order[len(q) - count :]] = 1
        y[i, order[:count]] = -1
    return y


def objective(h: Tensor, y: Tensor) -> Tensor:
    """‖H Hᵀ - b Y‖² of codes [n, b]."""
    return (h @ h.T - h.shape[1] * y).square().sum()


def fit(kappa: Tensor, y: Tensor, planes: Tensor, heads: int) -> Tensor:
    """The released rule for the rows [b, n, m] of one of the heads, with residual matrices and autograd's gradients."""
    residual, rows = planes.shape[0] * y, []
    scale = heads * len(kappa) * kappa.shape[1] * planes.shape[0]

    def loss(codes: Tensor) -> Tensor:
        return -torch.einsum("bn,bnk,bk->", codes, residual, codes) / scale

    for start in planes:
        a = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([a], lr=5e-4, momentum=0.9, nesterov=True)
        for _ in range(100):
            optimiser.zero_grad()
            loss((kappa @ a / 2).tanh()).backward()
            optimiser.step()
        with torch.no_grad():
            found, old = hard(kappa @ a), hard(kappa @ start)
            rows.append(a.detach() if loss(found) < loss(old) else start)
            best = hard(kappa @ rows[-1])
            residual = residual - best[:, :, None] * best[:, None]
    return torch.stack(rows)
