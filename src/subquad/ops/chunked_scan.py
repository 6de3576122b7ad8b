"""Linear recurrences of matrix states, in chunks: products inside a chunk, and one state passed from chunk to chunk.

Time and memory are linear in the tokens. All is float32 at least, and no exponent is positive: pairs that are left out
are set to -∞ before the exponential, because after it the gradient would be 0 · ∞. A token with k = v = β = 0 and a log
gate of 0 changes no state, which is how padding is left out.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.mixed_precision import without_autocast


def gated_scan(
    q: Float[Tensor, "*a n e"], k: Float[Tensor, "*a n e"], v: Float[Tensor, "*b n c"], log_gate: Float[Tensor, "*b n"],
    chunk: int | None = None,
) -> Float[Tensor, "*b n c"]:  # fmt: skip
    """y_i = q_iᵀ S_i with S_i = exp(g_i) S_{i-1} + k_i v_iᵀ, where g = `log_gate` is at most 0.

    y_i = Σ_{j≤i} exp(G_i - G_j) (q_iᵀ k_j) v_j with G the cumulative sum of g. Queries and keys that all heads share
    have one head, and their products are computed once. Source: Dao and Gu 2024, https://arxiv.org/abs/2405.21060,
    Section 6.
    """
    length = q.shape[-2]
    with without_autocast(q):
        q, k, v, total = _chunks(q, k, v, log_gate, chunk=chunk)
        inside = q @ k.mT * _decays(total) @ v
        # What a chunk adds to the state at its end. The gates are at the values, which the heads do not share.
        states = k.mT @ ((total[..., -1:] - total).exp()[..., None] * v)
        before = q @ _passed(states, total[..., -1]) * total.exp()[..., None]
    return (inside + before).flatten(-3, -2)[..., :length, :]


def gated_delta_scan(
    q: Float[Tensor, "*b n e"], k: Float[Tensor, "*b n e"], v: Float[Tensor, "*b n c"], beta: Float[Tensor, "*b n"],
    log_gate: Float[Tensor, "*b n"], chunk: int | None = None,
) -> Float[Tensor, "*b n c"]:  # fmt: skip
    """y_i = q_iᵀ S_i with S_i = exp(g_i) (I - β_i k_i k_iᵀ) S_{i-1} + β_i k_i v_iᵀ.

    What a token writes is u_i = β_i (v_i - exp(g_i) S_{i-1}ᵀ k_i). Inside a chunk these are the solution of a
    triangular system, (I + L) U = β ⊙ V - W S with L_ij = β_i exp(G_i - G_j) k_iᵀ k_j for j < i, W = β ⊙ exp(G) ⊙ K
    and S the state before the chunk. Sources: Yang et al. 2024, https://arxiv.org/abs/2406.06484, Eq. 10-11, and
    https://arxiv.org/abs/2412.06464, Eq. 8-10.
    """
    length = q.shape[-2]
    with without_autocast(q):
        q, k, v, total, beta = _chunks(q, k, v, log_gate, beta[..., None], chunk=chunk)
        written, decays = beta * k, _decays(total)
        system = written @ k.mT * decays  # whose diagonal nothing reads
        forms = torch.cat([beta * v, written * total.exp()[..., None]], -1)
        solved = torch.linalg.solve_triangular(system, forms, upper=False, unitriangular=True)
        own, read = solved.split([v.shape[-1], k.shape[-1]], -1)
        inside, reading = q @ k.mT * decays, q * total.exp()[..., None]
        writing = (k * (total[..., -1:] - total).exp()[..., None]).mT
        state, outputs = q.new_zeros(*k.shape[:-3], k.shape[-1], v.shape[-1]), []
        # A chunk's tensors by unbind: the gradient of one index would be as large as all chunks.
        of_chunks = (t.unbind(-3) for t in (own, read, reading, inside, writing, total[..., -1:, None].exp()))
        for own_i, read_i, reading_i, inside_i, writing_i, kept_i in zip(*of_chunks, strict=True):
            new = own_i - read_i @ state
            outputs.append(reading_i @ state + inside_i @ new)
            state = kept_i * state + writing_i @ new
    return torch.cat(outputs, -2)[..., :length, :]


def step_biases(count: int) -> Float[Tensor, " c"]:
    """Initial biases b of steps softplus(x + b), as Mamba-2: at x = 0, steps are log-uniform between 0.001 and 0.1."""
    steps = torch.exp(math.log(0.001) + torch.rand(count) * math.log(100))
    return steps + torch.log(-torch.expm1(-steps))  # the inverse of softplus


def both_ways(scan: Callable[..., Tensor], *pairs: Sequence[Tensor], axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Runs a scan from the first token and one from the last, in one call on twice as many rows.

    Args:
        pairs: for each argument of `scan`, what the first and what the second reads, in the order of the tokens.
        axes: the axis of the tokens in each argument.

    Returns:
        The results of the two, in the order of the tokens.
    """
    given = (torch.cat([one, other.flip(axis)]) for (one, other), axis in zip(pairs, axes, strict=True))
    y, rows = scan(*given), pairs[0][0].shape[0]
    return y[:rows], y[rows:].flip(-2)


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, *others: Tensor, chunk: int | None
) -> tuple[Tensor, ...]:
    """All in chunks `[*b, c, l, _]`, filled with tokens that change nothing; log gates as sums from a chunk's start."""
    length = q.shape[-2]
    if torch.compiler.is_exporting():  # one size for all lengths
        size = 64
    else:  # near the width of a state
        width = q.shape[-1]
        size = min(chunk or (64 if width > 32 else 32 if width > 16 else 16), max(length, 1))
    wide = torch.promote_types(q.dtype, torch.float32)
    missing = -length % size
    given = (t.to(wide) for t in (q, k, v, log_gate[..., None], *others))
    if torch.compiler.is_exporting() or missing:  # 0 rows would still be a copy
        given = (F.pad(t, (0, 0, 0, missing)) for t in given)
    q, k, v, gate, *rest = (t.unflatten(-2, (-1, size)) for t in given)
    return q, k, v, gate.squeeze(-1).cumsum(-1), *rest


def _decays(total: Float[Tensor, "*b l"]) -> Float[Tensor, "*b l l"]:
    """exp(G_i - G_j) for j ≤ i, and 0 for other j."""
    size = total.shape[-1]
    hidden = total.new_full((size, size), -torch.inf).triu(1)
    return (total[..., :, None] + -total[..., None, :]).add_(hidden).exp_()


def _passed(states: Float[Tensor, "*b c e f"], log_kept: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c e f"]:
    """The state before each chunk, from what each chunk adds and how much of the state it keeps."""
    if torch.compiler.is_exporting():  # any number of chunks in one program, whose time is quadratic in that number
        shifted = F.pad(states, (0, 0, 0, 0, 1, -1)).flatten(-2)
        kept = F.pad(log_kept, (1, -1)).cumsum(-1)
        return (_decays(kept) @ shifted).unflatten(-1, states.shape[-2:])
    before = [torch.zeros_like(states[..., 0, :, :])]
    for kept_i, state in zip(log_kept.exp()[..., :-1, None, None].unbind(-3), states.unbind(-3), strict=False):
        before.append(kept_i * before[-1] + state)
    return torch.stack(before, -3)
