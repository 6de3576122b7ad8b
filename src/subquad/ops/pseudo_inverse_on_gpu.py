"""The iterative pseudo-inverse of Nyströmformer on a GPU in few operators, with its derivative written out.

With S = 3 A Z - 7, the step Z ← ¼ Z (13 - A Z (15 - A Z (7 - A Z))) is Z ← (92 Z + Z S (12 - S²)) / 108: without a
square term, S² and Z S are one product of the rows [S; Z], and three operators compute a step. In the limit S = -4, so
that products in TF32 are exact there.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.mixed_precision import written_out
from subquad.utils.fixed_weights import once

Parts = tuple[Tensor, ...]

_KEEP, _CHANGE = 92 / 108, 1 / 108


def pseudo_inverse(a: Float[Tensor, "b s r"], iterations: int, zeros: bool = True) -> Float[Tensor, "b r s"]:
    """Z after these steps from Aᵀ / ‖A‖₁.

    Args:
        a: its entries are not negative, and its rows sum to 1 or 0.
        zeros: whether a matrix may have only zeros. Its Z is 0, and its gradient is not finite.
    """
    if torch.is_grad_enabled() and a.requires_grad:
        z: Tensor = _Inverse.apply(a, iterations, zeros)
        return z
    (rows, *_), eye, size = _start(a, 1, zeros), _eye(a), a.shape[1]
    [w], [factors] = _parts(rows, size), _parts(torch.empty_like(rows), size)
    result = a.new_empty(len(a), a.shape[2], size)
    for left in reversed(range(iterations)):
        _step(a, eye, w, factors, w[2] if left else result)
    return result


def _start(
    a: Tensor, steps: int, zeros: bool
) -> tuple[Float[Tensor, "b rows k s"], Float[Tensor, "b r"], Float[Tensor, "b 1"]]:
    """Memory for [S; Z] of each step, with the first Z; the sums of the columns of A, and the largest of them."""
    (b, s, r), sums = a.shape, a.sum(1)
    largest = sums.amax(1, keepdim=True)
    if zeros:
        largest.clamp_(min=torch.finfo(a.dtype).tiny)
    rows = a.new_empty(b, s + r, steps, s)
    torch.div(a.mT, largest[..., None], out=rows[:, s:, 0])
    return rows, sums, largest


def _eye(a: Tensor) -> Parts:
    """The identity above zeros, and alone."""
    (_, s, r), dtype, device = a.shape, a.dtype, a.device
    eye = once(("eye", s, r, dtype, device), lambda: torch.eye(s + r, s, dtype=dtype, device=device))
    return eye, eye[:s]


def _parts(x: Float[Tensor, "b rows k s"], size: int) -> list[Parts]:
    """For each step the whole, the upper rows and the others."""
    return list(zip(x.unbind(2), x[:, :size].unbind(2), x[:, size:].unbind(2), strict=True))


def _step(a: Tensor, eye: Parts, w: Parts, factors: Parts, out: Float[Tensor, "b r s"]) -> None:
    """Of w = [S; Z], whose Z is given, computes S, the factors [12 - S²; -Z S], and the next Z."""
    rows, shifted, z = w
    both, square, product = factors
    torch.baddbmm(eye[1], a, z, beta=-7, alpha=3, out=shifted)
    torch.baddbmm(eye[0], rows, shifted, beta=12, alpha=-1, out=both)
    torch.baddbmm(z, product, square, beta=_KEEP, alpha=-_CHANGE, out=out)


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, iterations: int, zeros: bool) -> Tensor:
        (rows, sums, largest), eye, size = _start(a, iterations, zeros), _eye(a), a.shape[1]
        factors, result = torch.empty_like(rows), a.new_empty(len(a), a.shape[2], size)
        steps = _parts(rows, size)
        results = [*(z for _, _, z in steps[1:]), result]
        for w, of_step, out in zip(steps, _parts(factors, size), results, strict=True):
            _step(a, eye, w, of_step, out)
        ctx.save_for_backward(a, rows, factors, sums, largest)
        return result

    @staticmethod
    @written_out
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        a, rows, factors, sums, largest = ctx.saved_tensors
        size, empty, transposed = a.shape[1], a.new_empty(()), a.mT
        d_rows = a.new_zeros(len(a), rows.shape[1], size)  # of [S; Z]; S has no gradient by a later step
        d_z, d_shifted = d_rows[:, size:].copy_(gradient), a.new_empty(len(a), size, rows.shape[2], size)
        d_factors, d_w = torch.empty_like(d_rows), torch.empty_like(d_rows)
        (d_square, d_product), (d_w_shifted, d_w_z) = (t.tensor_split([size], 1) for t in (d_factors, d_w))
        for (both, shifted, _), (_, square, product), d_s in reversed(
            [*zip(_parts(rows, size), _parts(factors, size), d_shifted.unbind(2), strict=True)]
        ):
            torch.baddbmm(empty, product.mT, d_z, beta=0, alpha=-_CHANGE, out=d_square)
            torch.baddbmm(empty, d_z, square.mT, beta=0, alpha=-_CHANGE, out=d_product)
            torch.baddbmm(d_rows, d_factors, shifted.mT, beta=_KEEP, alpha=-1, out=d_w)
            torch.baddbmm(d_w_shifted, both.mT, d_factors, alpha=-1, out=d_s)
            torch.baddbmm(d_w_z, transposed, d_s, alpha=3, out=d_z)
        start = d_z.mT / largest[..., None]
        d_a = start.baddbmm_(d_shifted.flatten(2), rows[:, size:].flatten(2).mT, alpha=3)
        # The gradient of the largest sum is shared by the columns that have it.
        top = torch.eq(sums, largest, out=torch.empty_like(sums))
        share = (d_z * rows[:, size:, 0]).sum((1, 2))[:, None] / (top.sum(1, keepdim=True) * largest)
        return d_a.addcmul_(top[:, None], share[..., None], value=-1), None, None
