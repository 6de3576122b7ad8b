"""Linear attention of a GPU in few operators, with its derivative written out.

It serves self-attention of more tokens than channels. All maps that act on the sums over the keys, W_V and W_O, are
applied to them. Sums over tokens are stored as means, which half precision can hold. The sums of a head's features are
the columns of a block-diagonal matrix `[b, h, f, h]`, so that one product gives the inner products in all heads.
Under autocast, one operator casts all operands, and all that follows is in its data type.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.mixed_precision import cast, product_type, written_out
from subquad.specs import Mask, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.fixed_weights import keeps_products, once

elu_backward = torch.ops.aten.elu_backward.grad_input


def use_gpu_path(x: Tokens, context: Tensor) -> bool:
    """Whether x is on a GPU, is its own context and is long enough, and nothing traces or transforms the operators."""
    return eager_on_gpu(x) and context is x and x.shape[1] > x.shape[2]  # in this order: lengths guard an export


def weights_of(*linears: nn.Linear) -> list[Tensor]:
    """Weight and bias of each map."""
    return [t for linear in linears for t in (linear.weight, linear.bias)]


def in_one_type(x: Tensor, weights: Sequence[Tensor], keep: bool) -> tuple[Tensor, ...]:
    """The operands in the data type of autocast where it is on.

    Args:
        keep: whether there will be a backward pass.
    """
    x, dtype = x.contiguous(), product_type(x)
    with torch.no_grad():
        if keep or not keeps_products():
            return cast([dtype] * (1 + len(weights)), [x, *weights])
        return *cast([dtype], [x]), *once((weights[0], dtype), partial(cast, [dtype] * len(weights), weights), *weights)


def linear_attention(
    x: Tokens, mask: Mask, weights: Sequence[Tensor], heads: int, eps: float, wave: Float[Tensor, "n 2"] | None = None
) -> Tokens:
    """y_i = W_O (φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / w_i) in each head with w_i = φ(q_i)ᵀ Σ_j φ(k_j).

    φ(x) = elu(x) + 1 and ε is added to w_i. With the wave [cos, sin] of each position, φ(x) = [relu(x) cos | relu(x)
    sin], and ε is the least w_i.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
    """
    y: Tensor = _Linear.apply(recorded(x, weights), heads, eps, None if mask is None else ~mask, wave, x, *weights)
    return y


def recorded(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether there will be a backward pass."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keep: bool, heads: int, eps: float, hidden: Tensor | None, wave: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        x, w_q, b_q, w_k, b_k, *read_by = in_one_type(tensors[0], tensors[1:], keep)
        with torch.autocast(x.device.type, enabled=False):
            if keep:
                raw, (q, k) = _features(x, [(w_q, b_q), (w_k, b_k)], hidden, wave, heads)
            else:  # one at a time, which takes less memory
                k = _features(x, [(w_k, b_k)], hidden, wave, heads)[1][0]
            sums, mean = block_diagonal_means(k, heads)
            rows, *kept = state_rows(x, k, mean, read_by, heads)
            if not keep:
                del k, kept
                q = _features(x, [(w_q, b_q)], None, wave, heads)[1][0]
            least = eps / x.shape[1]
            if wave is not None:
                w = torch.bmm(q, sums).clamp_(min=least)
            elif hidden is not None:  # without a real key, w = 1 + ε: half precision cannot hold 1 / ε
                w = torch.baddbmm(hidden.prod(1, dtype=x.dtype).add_(least)[:, None, None], q, sums)
            else:
                new = partial(x.new_full, (1,), least)
                w = torch.baddbmm(new() if keep else once((tensors[1], x.dtype, least), new, tensors[1]), q, sums)
            u = by_head(q, heads).div_(w[..., None]).flatten(-2)
            y = torch.baddbmm(read_by[-1], u, rows)
        if keep:
            ctx.heads, ctx.least, ctx.dtypes = heads, least, [t.dtype for t in tensors]
            ctx.save_for_backward(x, w_q, w_k, raw, u, k, wave, w, sums, mean, rows, *kept)
        return y

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w_q, w_k, raw, u, k, wave, w, sums, mean, *kept = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        d_u, d_k = d_features = x.new_empty(2, *k.shape)
        d_mean, d_summed, of_read = read_backward(dy.to(x.dtype), u, mean, kept, ctx.heads, d_u)
        del kept
        # With c = ⟨d_u, u⟩, the gradient of w is -c / w.
        c = by_head(torch.mul(d_u, u, out=d_k), ctx.heads).sum(-1)  # in memory that is not in use yet
        if wave is not None:
            c.mul_(w > ctx.least)
        by_head(d_u.baddbmm_(c, sums.mT, alpha=-1), ctx.heads).div_(w[..., None])
        d_keys(x, d_mean - diagonal(torch.bmm(u.mT, c), ctx.heads), d_summed, d_k)
        del u, d_u, d_k
        d_raw = _features_backward(d_features, raw, wave, ctx.heads)
        del raw, d_features
        d_x, (d_wq, d_wk), (d_bq, d_bk) = maps_backward(d_raw, x, (w_q, w_k), d_tokens(k, d_summed))
        del d_raw
        return None, None, None, None, None, *cast(ctx.dtypes, [d_x, d_wq, d_bq, d_wk, d_bk, *of_read])


def projected(x: Tokens, maps: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, "k b n d"]:
    """x by several maps, given by weight and bias."""
    y = x.new_empty(len(maps), *x.shape)
    for part, (weight, bias) in zip(y, maps, strict=True):
        torch.addmm(bias, x.view(-1, x.shape[2]), weight.mT, out=part.view(-1, x.shape[2]))
    return y


def _features(
    x: Tensor, maps: Sequence[tuple[Tensor, Tensor]], hidden: Tensor | None, wave: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """The projected tokens, or their ReLU where there is a wave, and φ of them; of the last map 0 where hidden."""
    raw = projected(x, maps)
    if hidden is not None:
        raw[-1].masked_fill_(hidden[..., None], -math.inf)
    if wave is None:  # (max(x, 0) + 1) exp(min(x, 0)), of which one factor is 1
        features = raw.relu().add_(1)
        return raw, elu_backward(features, 1, 1, 1, False, raw, grad_input=features)
    raw.relu_()
    features = x.new_empty(*raw.shape[:3], heads, 2, x.shape[2] // heads)
    torch.mul(by_head(raw, heads)[..., None, :], wave[:, None, :, None], out=features)
    return raw, features.flatten(-3)


def _features_backward(gradient: Tensor, raw: Tensor, wave: Tensor | None, heads: int) -> Tensor:
    if wave is None:
        return elu_backward(gradient, 1, 1, 1, False, raw, grad_input=gradient)
    a, b = gradient.unflatten(-1, (heads, 2, -1)).unbind(-2)
    cosine, sine = wave[:, None, :, None].unbind(-2)
    of_raw = torch.empty_like(raw)
    torch.mul(a, cosine, out=by_head(of_raw, heads)).addcmul_(b, sine)
    return torch.ops.aten.threshold_backward.grad_input(of_raw, raw, 0, grad_input=of_raw)


def by_head(x: Float[Tensor, "*b d"], heads: int) -> Float[Tensor, "*b h e"]:
    """A view."""
    return x.unflatten(-1, (heads, -1))


def diagonal(x: Float[Tensor, "*b c h"], heads: int) -> Float[Tensor, "*b h f"]:
    """The blocks of the diagonal, as a view."""
    return x.unflatten(-2, (heads, -1)).diagonal(dim1=-3, dim2=-1).mT


def block_diagonal_means(
    features: Float[Tensor, "b n c"], heads: int
) -> tuple[Float[Tensor, "b c h"], Float[Tensor, "b h f"]]:
    """Means over the tokens, each in the column of its head, and a view of them."""
    sums = features.new_zeros(features.shape[2], features.shape[0], heads).transpose(0, 1)
    mean = diagonal(sums, heads)
    torch.mean(by_head(features, heads), 1, out=mean)
    return sums, mean


def features_first(mean: Float[Tensor, "b h f"]) -> Float[Tensor, "h f*b 1"]:
    """A view of the means, whose memory has the order [h, f, b]."""
    return mean.permute(1, 2, 0).flatten(1)[..., None]


def state_rows(
    x: Tokens, k: Float[Tensor, "b n c"], mean: Tensor, weights: Sequence[Tensor], heads: int
) -> tuple[Tensor, ...]:
    """The means of k_j v_jᵀ over the tokens, each multiplied by the rows of W_O of its head, `[b, c, d]`.

    Also returns what the backward pass needs. Features come before the batch in memory, so that one product with the
    weights of each head serves all rows of the batch.

    Args:
        mean: of k over the tokens, in memory [h, f, b].
        weights: W_V, b_V, W_O and b_O.
    """
    w_v, b_v, w_o, _ = weights
    b, n, d = x.shape
    summed = x.new_empty(k.shape[2], b, d)
    summed.transpose(0, 1).baddbmm_(k.mT, x, beta=0, alpha=1 / n)
    summed, w_v, w_o = summed.view(heads, -1, d), w_v.view(heads, -1, d), w_o.view(d, heads, -1).permute(1, 2, 0)
    b_v = b_v.view(heads, 1, -1)
    state = torch.bmm(summed, w_v.mT).addcmul_(features_first(mean), b_v)
    return torch.bmm(state, w_o).view(-1, b, d).transpose(0, 1), summed, w_v, b_v, state, w_o


def read_backward(
    dy: Tensor, u: Tensor, mean: Tensor, kept: Sequence[Tensor], heads: int, d_u: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Writes the gradient of u to `d_u`. Returns those of the mean key, of the mean of k xᵀ, and of the weights."""
    rows, summed, w_v, b_v, state, w_o = kept
    b, _, d = dy.shape
    torch.bmm(dy, rows.mT, out=d_u)
    d_rows = rows.new_empty(u.shape[2], b, d)
    torch.bmm(u.mT, dy, out=d_rows.transpose(0, 1))
    d_rows = d_rows.view(heads, -1, d)
    d_state = torch.bmm(d_rows, w_o.mT)
    d_wo = rows.new_empty(d, d)
    torch.bmm(state.mT, d_rows, out=d_wo.view(d, heads, -1).permute(1, 2, 0))
    d_wv = torch.bmm(d_state.mT, summed).view(d, d)
    d_summed = torch.bmm(d_state, w_v).view(-1, b, d).transpose(0, 1)
    d_mean = torch.bmm(d_state, b_v.mT).view(heads, -1, b).permute(2, 0, 1)
    d_bv = torch.bmm(features_first(mean).mT, d_state).flatten()
    return d_mean, d_summed, (d_wv, d_bv, d_wo, dy.sum((0, 1)))


def d_keys(x: Tokens, d_mean: Float[Tensor, "b h f"], d_summed: Float[Tensor, "b c d"], out: Tensor) -> None:
    """Writes the gradient of the keys by their mean and the mean of k xᵀ."""
    share = 1 / x.shape[1]
    torch.baddbmm(d_mean.reshape(len(x), 1, -1), x, d_summed.mT, beta=share, alpha=share, out=out)


def d_tokens(k: Float[Tensor, "b n c"], d_summed: Float[Tensor, "b c d"]) -> Tokens:
    """The gradient of x by the mean of k xᵀ."""
    return torch.baddbmm(k.new_empty(()), k, d_summed, beta=0, alpha=1 / k.shape[1])


def maps_backward(
    gradient: Float[Tensor, "k b n d"], x: Tokens, weights: Sequence[Tensor], d_x: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, added to `d_x`, of the weights and of the biases of k maps of x."""
    rows, tokens = gradient.flatten(1, 2), x.view(-1, x.shape[2])
    d_x = torch.mm(rows[0], weights[0]) if d_x is None else d_x.view_as(tokens).addmm_(rows[0], weights[0])
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        d_x.addmm_(row, weight)
    return d_x.view_as(x), torch.bmm(rows.mT, tokens.expand(len(rows), -1, -1)), rows.sum(1)


def in_half(x: Tensor) -> bool:
    """Whether products with x are in float16."""
    return product_type(x) is torch.float16
