"""Linear attention: weights are inner products of features, and sums over the keys are taken first.

Features have the layout `[b, n, h, f]` of the projections, so that no transposed copy is made.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.affine import affine
from subquad.specs import Context, ContextMask, Tokens


def head_dot(x: Float[Tensor, "b n h f"], vector: Float[Tensor, "b h f"]) -> Float[Tensor, "b n h 1"]:
    """Inner product of each token with one vector of its row and head."""
    return (x * vector[:, None]).sum(-1, keepdim=True)


def summable(k: Float[Tensor, "b m f"]) -> Float[Tensor, "b m f"]:
    """Features of keys whose sums over the tokens float16 can hold: k / m. A common factor cancels in the weights."""
    return k / k.shape[1] if k.dtype is torch.float16 else k


def divisor(normaliser: Float[Tensor, "b n h 1"], mask: ContextMask) -> Float[Tensor, "b n h 1"]:
    """The normaliser, but 1 in rows without a real key, whose sums are 0: half precision cannot hold 1 / ε."""
    return normaliser if mask is None else normaliser.masked_fill(~mask.any(1)[:, None, None, None], 1)


def kv_state(k: Float[Tensor, "b m h f"], context: Context, value: nn.Linear) -> Float[Tensor, "b h f e"]:
    """Σ_j k_j v_jᵀ in each head, where v_j is the value of context token j.

    kᵀ (C W_V + 1 b_V) = (kᵀ C) W_V + (kᵀ 1) b_V; if that is cheaper, no values of single tokens are formed.
    """
    heads, features = k.shape[2:]
    if not _pays(k.shape[1], heads, features, value.out_features):
        return k.permute(0, 2, 3, 1) @ value(context).unflatten(-1, (heads, -1)).transpose(1, 2)
    summed = (k.flatten(-2).mT @ context).unflatten(1, (heads, features))
    bias = k.sum(1)[..., None] * value.bias.view(heads, 1, -1)
    return summed @ value.weight.view(heads, -1, value.in_features).mT + bias


def expand(q: Float[Tensor, "b n h f"], state: Float[Tensor, "b h f e"], out: nn.Linear) -> Tokens:
    """The output map of the heads q_i S with S = `state`.

    Σ_h (q_h S_h) W_O,h = Σ_h q_h (S_h W_O,h); if that is cheaper, the output map acts on the states.
    """
    heads, features = q.shape[2:]
    if not _pays(q.shape[1], heads, features, out.in_features):
        return out((q.transpose(1, 2) @ state).transpose(1, 2).flatten(-2))
    rows = (state @ out.weight.view(-1, heads, state.shape[-1]).permute(1, 2, 0)).flatten(1, 2)
    if q.shape[0] == 1:  # one map for all tokens (`len` would fix the batch of an exported program)
        return affine(q.flatten(-2), rows[0].mT, out.bias)
    return torch.baddbmm(out.bias, q.flatten(-2), rows)


def _pays(tokens: int, heads: int, features: int, dim: int) -> bool:
    """Whether a d x d map needs fewer multiplications on the state, of h·f rows, than on the tokens."""
    if torch.compiler.is_exporting():  # one program for all lengths: the choice for many tokens
        return heads * features < dim + features
    on_state = heads * features * (tokens * dim + dim * dim // heads)
    on_tokens = tokens * (dim * dim + features * dim)
    return on_state < on_tokens
