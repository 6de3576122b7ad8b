"""EcoFormer's attention on a GPU in few operators, with its derivative written out.

Codes are halved, [±1/2, 1/2] with the constant entry, which one operator makes of the signs. Sums over the tokens and
what follows from them are those of `subquad.ops.linear_attention_on_gpu`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.hashing import LEAST
from subquad.ops.linear_attention_on_gpu import (
    block_diagonal_means,
    by_head,
    d_keys,
    d_tokens,
    diagonal,
    in_one_type,
    maps_backward,
    projected,
    read_backward,
    recorded,
    state_rows,
)  # fmt: skip
from subquad.ops.mixed_precision import cast, written_out
from subquad.specs import Mask, Tokens


def hashed_attention(
    x: Tokens, mask: Mask, weights: Sequence[Tensor], anchors: Float[Tensor, "h m e"], mean: Float[Tensor, "h m"],
    planes: Float[Tensor, "h k m"], bias: int,
) -> Tokens:  # fmt: skip
    """The output of `subquad.attention.ecoformer.EcoFormer` with read_out "paper".

    Args:
        weights: weight and bias of the shared map of queries and keys, W_V, b_V, W_O and b_O.
        bias: 2^c.
    """
    y: Tensor = _Hashed.apply(recorded(x, weights), mask, bias, anchors, mean, planes, x, *weights)
    return y


class _Hashed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keep: bool, mask: Tensor | None, bias: int, anchors: Tensor, mean: Tensor, planes: Tensor,
        *tensors: Tensor,
    ) -> Tensor:  # fmt: skip
        x, w_q, b_q, *read_by = in_one_type(tensors[0], tensors[1:], keep)
        heads, bits = planes.shape[:2]
        with torch.autocast(x.device.type, enabled=False):
            share = None if mask is None else mask.mean(1, dtype=anchors.dtype).clamp_(min=1 / x.shape[1])
            raw = by_head(projected(x, [(w_q, b_q)])[0], heads)
            *hashed, z = _hashed(raw, mask, share, anchors, mean, planes, keep)
            codes = x.new_full((*x.shape[:2], heads, bits + 1), 0.5)
            torch.copysign(codes[..., :bits], z.permute(1, 2, 0, 3), out=codes[..., :bits])
            if not keep:
                del raw, hashed, z
            keys = (codes if mask is None else codes * mask[..., None, None]).flatten(-2)
            sums, means = block_diagonal_means(keys, heads)
            if mask is not None:  # as if a row had one real token at least, so that w > 0
                means[..., -1].clamp_(min=0.5 / x.shape[1])
            rows, *kept = state_rows(x, keys, means, read_by, heads)
            u = codes.clone() if keep and mask is None else codes
            u[..., -1].mul_(bias)
            w = torch.bmm(u.flatten(-2), sums)
            u = u.div_(w[..., None]).flatten(-2)
            if not keep:
                del x, keys, codes
            y = torch.baddbmm(read_by[-1], u, rows)
        if keep:
            ctx.dtypes = [t.dtype for t in tensors]
            of_keys = x, w_q, u, keys, w, sums, means, rows, *kept
            ctx.save_for_backward(mask, share, anchors, planes, raw, *hashed, z, *of_keys)
        return y

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, because a recomputed layer gives each tensor once
        mask, share, anchors, planes, raw, *hashed, z, x, w_q, u, keys, w, sums, means = saved[:-6]
        kept = saved[-6:]
        del saved
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        heads, bits = planes.shape[:2]
        d_u = torch.empty_like(u)
        d_means, d_summed, of_read = read_backward(dy.to(x.dtype), u, means, kept, heads, d_u)
        del kept
        # With c = ⟨d_u, u⟩, the gradient of w is -c / w.
        c = by_head(d_u * u, heads).sum(-1)
        of_queries = by_head(d_u.baddbmm_(c, sums.mT, alpha=-1), heads).div_(w[..., None])
        of_keys = torch.empty_like(keys)
        d_keys(x, d_means - diagonal(torch.bmm(u.mT, c), heads), d_summed, of_keys)
        a, b = (t[..., :bits].permute(2, 0, 1, 3) for t in (of_queries, by_head(of_keys, heads)))
        d_codes = torch.empty_like(z)
        if mask is None:
            torch.add(a, b, out=d_codes)
        else:
            torch.addcmul(a, b, mask[..., None], out=d_codes)
        del u, d_u, of_queries, of_keys, a, b
        d_q = _hashed_backward(d_codes, z, raw, share, anchors, planes, *hashed)
        del d_codes, z, raw, hashed
        d_x, d_wq, d_bq = maps_backward(d_q[None].flatten(-2), x, [w_q], d_tokens(keys, d_summed))
        del d_q
        return None, None, None, None, None, None, *cast(ctx.dtypes, [d_x, d_wq[0], d_bq[0], *of_read])


def _hashed(
    q: Float[Tensor, "b n h e"], mask: Mask, share: Float[Tensor, " b"] | None, anchors: Tensor,
    mean: Tensor, planes: Tensor, keep: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """‖q‖, cos - 1 with the anchors, κ, the mean squared distance σ, and z = A (κ - μ).

    A padded token has an infinite norm, so that its cosines and gradients are 0.
    """
    b, n, heads, width = q.shape
    norm = torch.linalg.vector_norm(q, dim=-1, dtype=anchors.dtype).clamp_(min=LEAST)
    if mask is not None:
        norm.div_(mask[..., None])
    unit = (q / norm[..., None]).view(-1, heads, width).transpose(0, 1)
    cosine = torch.bmm(unit, anchors.mT).view(heads, b, n, -1)
    del unit
    average = cosine.mean((2, 3))
    if share is not None:
        average.div_(share)
    sigma = torch.rsub(average, 2, alpha=2).clamp_(min=LEAST)
    less_one, divisor = cosine.sub_(1), sigma[..., None, None]
    similarity = (less_one / divisor if keep else less_one.div_(divisor)).exp_()
    centre = torch.bmm(planes, mean[..., None]).mT
    z = torch.baddbmm(centre, similarity.flatten(1, 2), planes.mT, beta=-1)
    return norm.permute(2, 0, 1)[..., None], less_one, similarity, sigma, z.view(heads, b, n, -1)


def _hashed_backward(
    gradient: Float[Tensor, "h b n k"], z: Tensor, q: Tensor, share: Tensor | None, anchors: Tensor, planes: Tensor,
    norm: Tensor, less_one: Tensor, similarity: Tensor, sigma: Tensor,
) -> Float[Tensor, "b n h e"]:  # fmt: skip
    """The gradient of q, given that of the halved codes, which is passed on where |z| < 1."""
    heads, b, n, anchors_count = similarity.shape
    torch.ops.aten.hardtanh_backward.grad_input(gradient, z, -1, 1, grad_input=gradient)
    of_logs = torch.baddbmm(z.new_empty(()), gradient.flatten(1, 2), planes, beta=0, alpha=0.5)
    of_logs = of_logs.view_as(similarity).mul_(similarity)  # of (cos - 1) / σ
    # σ depends on all real tokens: its gradient is -Σ of_logs (cos - 1) / σ², and that of each cosine -2 / (N m) of it.
    total = torch.ops.aten.threshold_backward(of_logs.mul(less_one).sum((2, 3)), sigma, LEAST)
    divisor = sigma if share is None else sigma * share
    of_logs.addcdiv_(total[..., None, None], divisor[..., None, None], value=2 / (n * anchors_count))
    of_products = of_logs.div_(norm * sigma[..., None, None])
    of_norm = torch.addcmul(of_products, of_products, less_one).sum(-1, keepdim=True).div_(norm)
    d_q = q.new_empty(q.shape, dtype=anchors.dtype)
    torch.bmm(of_products.flatten(1, 2), anchors, out=d_q.view(b * n, heads, -1).transpose(0, 1))
    return torch.addcmul(d_q, q, of_norm.permute(1, 2, 0, 3), value=-1, out=torch.empty_like(q))
