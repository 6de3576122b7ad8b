"""Reformer: LSH attention (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451, Section 2 and Appendix A)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from subquad.attention.base import Affine, Discrete, Maps, StatelessAttention
from subquad.ops.softmax_attention import fused_attention
from subquad.ops.unit import unit
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import by_torch, first_order, one_at_a_time
from subquad.utils.devices import at_once, fused
from subquad.utils.setting_types import Count, Even

ALONE = -1e5
"""Logit of a token with itself: its weight is 0 unless the token sees no other."""


class Reformer(Discrete, StatelessAttention):
    """Tokens attend to the tokens of their own hash bucket, found by sorting; queries are keys, k_j = q_j / ‖q_j‖.

    hash:    h(q) = argmax [q R; -q R] with R ~ N(0, 1), in each of `hashes` rounds and in each head
    sort:    tokens by (bucket, position), cut into chunks of `chunk`; a chunk sees itself and the chunk before it
    round r: o_i^r = Σ_{j ∈ P_i^r} exp(a_ij - z_i^r) v_j  with  z_i^r = log Σ_{j ∈ P_i^r} exp a_ij
             and  a_ij = q_iᵀk_j / √d_h - m_ij
    all:     o_i = Σ_r exp(z_i^r - z_i) o_i^r  with  z_i = log Σ_r exp z_i^r

    P_i^r are the tokens of i's bucket that the chunk of i sees. m_ij is log N_ij, where i sees j in N_ij rounds, so
    that a token seen twice counts once; for i = j it is 10⁵ more, so that a token attends to itself only if it is
    alone.

    R is redrawn in every training call and fixed in eval mode. Padding has a bucket of its own after all others, and
    the first chunk does not see the last one, so that chunks of real tokens do not depend on padding.

    Args:
        hashes: rounds of hashing.
        chunk: tokens of a chunk.
        buckets: number of buckets, even; null is 2 · longest input / `chunk`, so that a bucket fills half a chunk.
            With a number, the input may have any length.
        across_buckets: attend to all tokens that the chunk sees, of any bucket.
        duplicates: omit log N_ij, so that a token seen in two rounds counts twice.
        scaled: divide the logits by √d_h.

    Examples:
        >>> import torch
        >>> from subquad import Reformer
        >>> layer = Reformer(dim=64, heads=4, max_len=512, hashes=2, chunk=32)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: keys of length √d_h undo the division by √d_h (`scaled=false`); the first chunk of a round sees the
    last of the round before. Ports read across buckets and count duplicates (`across_buckets`, `duplicates`).
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length", "onnx"})
    complexity = "time O(r n (c + b) d + r n log n), memory O(r n (d + h (c + b)))"

    def __init__(
        self, site: Site, hashes: Count = 4, chunk: Count = 64, buckets: Even | None = None,
        across_buckets: bool = False, duplicates: bool = False, scaled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(site)
        if buckets is None:
            self.fix_length("its hash functions (without attention.buckets)")
        self.hashes, self.chunk = hashes, chunk
        self.buckets = 2 * math.ceil(site.context_len / chunk) if buckets is None else buckets
        self.across_buckets, self.duplicates = across_buckets, duplicates
        width = site.dim // site.heads
        self.scale = width**-0.5 if scaled else 1.0
        # One product for both; the rows of each head lie side by side, [q_h | v_h], and are sorted as one.
        self.query_value = Affine(site.dim, 2 * site.dim)
        self.out = Affine(site.dim, site.dim)
        self.rotations: Tensor
        self.register_buffer("rotations", torch.randn(site.heads, width, hashes, self.buckets // 2))

    def softmax_maps(self) -> Maps:
        """The query is the key too; it and the value lie side by side in each head."""
        weight = self.query_value.weight.unflatten(0, (self.site.heads, 2, -1))
        bias = self.query_value.bias.unflatten(0, (self.site.heads, 2, -1))
        joint = {name: (weight[:, part], bias[:, part]) for part, name in enumerate(("query", "value"))}
        return {**joint, "out": (self.out.weight, self.out.bias)}

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        length = x.shape[1]
        filling = -length % self.chunk
        real = x.new_ones(1, length, dtype=torch.bool) if masks.context is None else masks.context
        filled = F.pad(x, (0, 0, 0, filling)) if filling else x
        rows = self.query_value(filled).unflatten(-1, (self.site.heads, -1))
        codes = self._hash(rows.detach().chunk(2, -1)[0]).masked_fill(~F.pad(real, (0, filling))[:, None], self.buckets)
        orders = codes.sort(stable=True).indices
        seats = orders.argsort(-1)
        groups = (codes == self.buckets).int() if self.across_buckets else codes.int()
        # Bucket and chunk in one number: i sees j where the place of i is that of j, or one more.
        places = groups * (codes.shape[-1] // self.chunk + 2) + seats.int() // self.chunk
        # Weights of one round: each token sees two chunks.
        step = at_once(x, 1, codes[0].numel() * 2 * self.chunk)
        rounds = [
            self._rounds(rows, orders[some], seats[some], self._bias(groups, places, orders, some, rows.dtype))
            for some in (slice(start, start + step) for start in range(0, self.hashes, step))
        ]
        return self.out(_combined(rounds)[:, :length].flatten(-2))

    def _hash(self, q: Float[Tensor, "b n h e"]) -> Int[Tensor, "r b h n"]:
        """The bucket of each token: where [q R; −q R] is largest."""
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        rotated = (q.transpose(1, 2) @ rotations.flatten(-2).to(q.dtype)).unflatten(-1, (self.hashes, -1))
        largest = rotated.abs().argmax(-1, keepdim=True)
        codes = largest + (rotated.gather(-1, largest) < 0) * (self.buckets // 2)
        return codes.squeeze(-1).permute(3, 0, 1, 2)

    def _bias(
        self, groups: Int[Tensor, "r b h n"], places: Int[Tensor, "r b h n"], orders: Int[Tensor, "r b h n"],
        some: slice, dtype: torch.dtype,
    ) -> Float[Tensor, "g k c w"]:  # fmt: skip
        """−m_ij in the orders of some rounds: −log N_ij, with 10⁵ less at i = j, and −∞ at what i does not see."""
        alone = max(ALONE, torch.finfo(dtype).min / 2)
        itself = F.pad(torch.eye(self.chunk, dtype=dtype, device=groups.device) * alone, (self.chunk, 0))
        counted = self.hashes > 1 and not self.duplicates
        # The places in the other rounds, which follow on each other.
        others = [places.roll(-r, 0)[some] for r in range(1, self.hashes)] if counted else []
        pairs = [self._pairs(numbers.gather(-1, orders[some])) for numbers in (groups[some], *others)]
        of_queries, of_keys = zip(*pairs, strict=True)
        return _bias(itself, of_queries, of_keys)

    def _pairs(self, of_tokens: Int[Tensor, "r b h n"]) -> tuple[Int[Tensor, "g k c 1"], Int[Tensor, "g k 1 w"]]:
        """Numbers of the sorted tokens, arranged as queries in chunks and as keys in windows of two chunks."""
        of_tokens = of_tokens.flatten(0, 2)
        keys = F.pad(of_tokens, (self.chunk, 0), value=-2).unfold(-1, 2 * self.chunk, self.chunk)
        return of_tokens.unflatten(-1, (-1, self.chunk))[..., None], keys[..., None, :]

    def _rounds(
        self, rows: Float[Tensor, "b n h w"], orders: Int[Tensor, "r b h n"], seats: Int[Tensor, "r b h n"],
        bias: Float[Tensor, "g k c s"],
    ) -> tuple[Float[Tensor, "r b n h e"], Float[Tensor, "r b n h 1"] | None]:  # fmt: skip
        """Some rounds: the outputs of each token, in the order of the tokens, and z if there are several rounds."""
        count, batch, heads, length = orders.shape
        row = torch.arange(batch * heads, device=rows.device).view(batch, heads, 1)
        group = torch.arange(count * batch * heads, device=rows.device).view(count, batch, heads, 1)
        source = (row // heads * length + orders) * heads + row % heads
        target = (group * length + seats).mT
        # An additional chunk that no token sees precedes the sorted rows, so that the first chunk has a predecessor.
        behind = target + (group.mT + 1) * self.chunk
        moved = _moved(rows.flatten(0, 2), F.pad(source, (self.chunk, 0)).flatten(), behind.flatten(1))
        q, v = moved.unflatten(0, (group.numel(), -1)).chunk(2, -1)
        k, v = (_windows(t, self.chunk) for t in (_unit(q), v))
        q = q[:, self.chunk :].unflatten(1, (-1, self.chunk))

        y: Tensor
        z: Tensor | None
        if self.hashes == 1:
            y, z = fused_attention(q, k, v, bias, self._dropout, scale=self.scale), None
        else:
            keep = F.dropout(torch.ones_like(bias), self._dropout) if self._dropout else None
            attend = _attend if by_torch() else _Attend.apply
            y, z = attend(q, k, v, bias, keep, self.scale)
        back = source + torch.arange(count, device=rows.device)[:, None, None, None] * source[0].numel()
        restore, shape = (target.flatten(), back.flatten()[None]), (count, batch, length, heads, -1)
        y = _moved(y.flatten(0, 2), *restore).view(shape)
        return y, None if z is None else _moved(z.flatten(0, 2), *restore).view(shape)


def _combined(parts: list[tuple[Tensor, Tensor | None]]) -> Float[Tensor, "b n h e"]:
    """Σ_r exp(z^r − z) o^r."""
    outputs = [output for some, _ in parts for output in some]
    if len(outputs) == 1:
        return outputs[0]
    weights = torch.cat([z for _, z in parts if z is not None]).softmax(0)
    return sum(w * o for w, o in zip(weights, outputs, strict=True))


@fused
def _bias(
    itself: Float[Tensor, "c w"],
    of_queries: Sequence[Int[Tensor, "g k c 1"]],
    of_keys: Sequence[Int[Tensor, "g k 1 w"]],
) -> Float[Tensor, "g k c w"]:
    """−m_ij from numbers of queries and keys: equal if i sees j, and then, for each other round, at most 1 apart."""
    visible = of_queries[0] == of_keys[0]
    bias = itself
    if len(of_queries) > 1:
        meetings = visible.short()
        for of_query, of_key in zip(of_queries[1:], of_keys[1:], strict=True):
            meetings += (of_query - of_key) >> 1 == 0
        # CUDA's autocast takes logarithms in float32.
        bias = bias - meetings.clamp(min=1).to(bias.dtype).log().to(bias.dtype)
    return torch.where(visible, bias, -math.inf)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keep: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """`_Attend` as torch differentiates it."""
    logits = q @ k.mT * scale + bias
    weights = logits.softmax(-1).to(v.dtype)
    return (weights if keep is None else weights * keep) @ v, logits.logsumexp(-1, keepdim=True)


class _Attend(torch.autograd.Function):
    """softmax(q kᵀ · scale + bias) v and the logarithm z of the softmax's denominator; saves only the weights."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keep: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        weights, z = _softmax(q @ k.mT, bias, scale, v.dtype)
        y = (weights if keep is None else weights * keep) @ v
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, weights, keep, y)
        return y, z

    @staticmethod
    @first_order
    def backward(ctx: Any, of_y: Tensor, of_z: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, keep, y = ctx.saved_tensors
        # Σ_j w_ij ∂w_ij = y_i · ∂y_i, and ∂z_i adds w_ij to the gradient of each logit.
        shift = (of_y * y).sum(-1, keepdim=True) - of_z
        of_logits = _of_logits(of_y @ v.mT, keep, shift, weights, ctx.scale)
        of_v = (weights if keep is None else weights * keep).mT @ of_y
        return of_logits @ k, of_logits.mT @ q, of_v, None, None, None


@fused
def _unit(x: Float[Tensor, "*g e"]) -> Float[Tensor, "*g e"]:
    """x / ‖x‖."""
    return unit(x).to(x.dtype)


@fused
def _softmax(products: Tensor, bias: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """softmax(products · scale + bias) and the logarithm of its denominator."""
    logits = torch.add(bias, products, alpha=scale)
    weights = logits.softmax(-1)
    z = logits.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
    return weights.to(dtype), z


@fused
def _of_logits(of_weights: Tensor, keep: Tensor | None, shift: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The gradient of q kᵀ."""
    of_weights = of_weights if keep is None else of_weights * keep
    return ((of_weights - shift) * weights).to(weights.dtype) * scale


def _moved(rows: Float[Tensor, "g e"], index: Int[Tensor, " m"], back: Int[Tensor, "r g"]) -> Float[Tensor, "m e"]:
    moved: Tensor = rows.index_select(0, index) if by_torch() else _Moved.apply(rows, index, back)
    return moved


class _Moved(torch.autograd.Function):
    """Rows in another order. `back` holds inverse orders, one for each time that all rows occur among the moved rows.

    The backward pass gathers by them; torch would scatter.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, index)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        grads = grad.index_select(0, back.flatten()).unflatten(0, back.shape)
        return grads[0] if len(grads) == 1 else grads.sum(0), None, None


def _windows(x: Float[Tensor, "g n e"], chunk: int) -> Float[Tensor, "g k w e"]:
    cut: Tensor = x.unfold(1, 2 * chunk, chunk).mT if by_torch() else _Windows.apply(x, chunk)
    return cut


class _Windows(torch.autograd.Function):
    """Each chunk but the first, with the chunk before it, as a view. Backward adds slices; torch's adds elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chunk: int) -> Tensor:
        ctx.chunk = chunk
        return x.unfold(1, 2 * chunk, chunk).mT

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        before, own = grad.split(ctx.chunk, 2)
        total = F.pad(own, (0, 0, 0, 0, 1, 0))
        total[:, :-1] += before
        return total.flatten(1, 2), None
