"""Flowformer's self-attention on a GPU in few operators, with its derivative written out.

Queries and keys are the halves of one tensor [φ(Q), φ(K)], so that each operator computes both directions of the flow.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.linear_attention_on_gpu import (
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


def flow_attention(x: Tokens, mask: Mask, weights: Sequence[Tensor], heads: int, eps: float) -> Tokens:
    """The output of `subquad.attention.flowformer.Flowformer` where x is its own context.

    The flows I and O are divided by the number of tokens, which half precision can hold.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
    """
    y: Tensor = _Flow.apply(recorded(x, weights), heads, eps, mask, x, *weights)
    return y


class _Flow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keep: bool, heads: int, eps: float, mask: Tensor | None, *tensors: Tensor) -> Tensor:
        x, w_q, b_q, w_k, b_k, *read_by = in_one_type(tensors[0], tensors[1:], keep)
        n, tiny, wide = x.shape[1], torch.finfo(x.dtype).tiny, torch.promote_types(x.dtype, torch.float32)
        hidden = None if mask is None else ~mask[..., None]
        real = n if mask is None else mask.sum(1, dtype=wide).clamp_(min=1)[:, None, None]
        with torch.autocast(x.device.type, enabled=False):
            features = projected(x, [(w_q, b_q), (w_k, b_k)]).sigmoid_()
            if hidden is not None:
                features.masked_fill_(hidden, 0)
            sums = _crossed(features, heads)
            flow = _dot(features, sums).add_(eps / n)  # [I, O] / n
            if eps / n < tiny:
                flow.clamp_(min=tiny)
            weighted = _crossed((by_head(features, heads) / flow[..., None]).flatten(-2), heads)
            conserved = _dot(features, weighted)  # [Î, Ô]
            gate, logits = conserved[0].sigmoid(), conserved[1]
            scales = torch.empty_like(conserved)  # [sigmoid(Î) m / I, n softmax(Ô)]
            torch.div(gate, flow[0], out=scales[0])
            if hidden is not None:
                scales[0].mul_(real / n)
                logits.masked_fill_(hidden, torch.finfo(logits.dtype).min)
            torch.mul(logits.softmax(1, dtype=wide), n, out=scales[1])
            scaled = by_head(features, heads)
            scaled = scaled * scales[..., None] if keep else scaled.mul_(scales[..., None])
            mean = x.new_empty(*scaled.shape[3:], len(x)).permute(2, 0, 1)
            torch.mean(scaled[1], 1, out=mean)
            u, k = scaled.flatten(-2)
            rows, *kept = state_rows(x, k, mean, read_by, heads)
            y = torch.baddbmm(read_by[-1], u, rows)
        if keep:
            ctx.heads, ctx.dtypes = heads, [t.dtype for t in tensors]
            flows = hidden, features, sums, flow, weighted, gate, scales
            ctx.save_for_backward(x, w_q, w_k, u, k, mean, *flows, rows, *kept)
        return y

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w_q, w_k, u, k, mean, hidden, features, sums, flow, weighted, gate, scales, *kept = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        heads, n = ctx.heads, x.shape[1]
        gradient = torch.empty_like(features)
        d_mean, d_summed, of_read = read_backward(dy.to(x.dtype), u, mean, kept, heads, gradient[0])
        del u, kept
        d_keys(x, d_mean, d_summed, gradient[1])
        # Gradients of the logarithms of the scales; by Î and Ô they are those of a sigmoid and of a softmax.
        of_logs = by_head(gradient * features, heads).sum(-1).mul_(scales)
        d_conserved = torch.empty_like(of_logs)
        torch.addcmul(of_logs[0], of_logs[0], gate, value=-1, out=d_conserved[0])
        total = of_logs[1].sum(1, keepdim=True)
        torch.addcmul(of_logs[1], scales[1], total, value=-1 / n, out=d_conserved[1])
        by_head(gradient, heads).mul_(scales[..., None])
        rows = features.flatten(0, 1)
        of_rows = gradient.flatten(0, 1)  # a view
        d_conserved = d_conserved.flatten(0, 1)
        of_rows.baddbmm_(d_conserved, weighted.flatten(0, 1).mT)
        d_weighted = diagonal(torch.bmm(rows.mT, d_conserved).view_as(weighted), heads)
        inverse = flow.reciprocal()
        crossed = torch.zeros_like(weighted)  # the gradient of [φ(Q) / I, φ(K) / O] times n, for all tokens of a row
        blocks = diagonal(crossed, heads)
        blocks[0], blocks[1] = d_weighted[1], d_weighted[0]
        crossed = crossed.flatten(0, 1)
        of_rows.baddbmm_(inverse.flatten(0, 1), crossed.mT, alpha=1 / n)
        minus_d_flow = torch.baddbmm(flow.new_empty(()), rows, crossed, beta=0, alpha=1 / n).view_as(flow).mul_(inverse)
        minus_d_flow[0] += of_logs[0]
        minus_d_flow = minus_d_flow.mul_(inverse).flatten(0, 1)
        of_rows.baddbmm_(minus_d_flow, sums.flatten(0, 1).mT, alpha=-1)
        of_keys, of_queries = diagonal(torch.bmm(rows.mT, minus_d_flow).view_as(sums), heads)
        by_head(gradient[0], heads).sub_(of_queries[:, None], alpha=1 / n)
        by_head(gradient[1], heads).sub_(of_keys[:, None], alpha=1 / n)
        if hidden is not None:  # not finite there where 1 / ε is not
            gradient.masked_fill_(hidden, 0)
        torch.ops.aten.sigmoid_backward.grad_input(gradient, features, grad_input=gradient)
        d_x, (d_wq, d_wk), (d_bq, d_bk) = maps_backward(gradient, x, (w_q, w_k), d_tokens(k, d_summed))
        del gradient, of_rows, features, rows
        return None, None, None, None, *cast(ctx.dtypes, [d_x, d_wq, d_bq, d_wk, d_bk, *of_read])


def _crossed(pair: Float[Tensor, "2 b n d"], heads: int) -> Float[Tensor, "2 b d h"]:
    """Means of keys, for the queries, and of queries, for the keys; each in the column of its head."""
    means = pair.new_zeros(2, pair.shape[1], pair.shape[3], heads)
    of_keys, of_queries = diagonal(means, heads)
    torch.mean(by_head(pair[0], heads), 1, out=of_queries)
    torch.mean(by_head(pair[1], heads), 1, out=of_keys)
    return means


def _dot(pair: Float[Tensor, "2 b n d"], columns: Float[Tensor, "2 b d h"]) -> Float[Tensor, "2 b n h"]:
    """Inner products with the vector of each head."""
    return torch.bmm(pair.flatten(0, 1), columns.flatten(0, 1)).unflatten(0, (2, -1))
