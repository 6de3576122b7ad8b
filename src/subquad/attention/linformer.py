"""Linformer (Wang et al. 2020, https://arxiv.org/abs/2006.04768, Eq. 7 and Section 4)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry, Projections
from subquad.ops.linear_attention_on_gpu import weights_of
from subquad.ops.linformer_on_gpu import linformer
from subquad.ops.masks import zero_padding
from subquad.ops.pooling import max_pool, mean_pool, window_mask, windows
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import once
from subquad.utils.setting_types import Count

Sharing = Literal["none", "headwise", "kv", "layer"]
Projection = Literal["linear", "mean", "max", "conv"]


def naive_linformer(
    q: Float[Tensor, "n w"], k: Float[Tensor, "m w"], v: Float[Tensor, "m w"], e: Float[Tensor, "s m"],
    f: Float[Tensor, "s m"],
) -> Float[Tensor, "n w"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding; E and F compress m tokens to s slots."""
    keys, values = e @ k, f @ v
    return (q @ keys.T / math.sqrt(q.shape[1])).softmax(1) @ values  # Eq. 7


class Linformer(Attention):
    """head = softmax(Q (E K)ᵀ / √d_h) (F V); E and F compress the n tokens to k slots.

    Padded keys and values count as 0 in E and F, and all k slots stay in the softmax. A pooling window without a real
    token is no slot. A shorter input uses the first columns of E and F.

    Args:
        k: slots; a list gives one number for each layer, a list of lists one for each layer and head.
        sharing: which maps are shared (Section 4): "none" has an E and an F for each head, "headwise" one E and one F,
            "kv" E = F, "layer" one E for all layers, which the first layer owns and passes on as the carry.
        projection: how tokens are compressed (Section 4): "linear" by learned k x n matrices, "mean" and "max" by
            pooling over windows of ⌈n / k⌉ tokens, "conv" by a depthwise convolution with that kernel and stride.

    Why the fast path is equal: E K = E (X W + 1 bᵀ) = (E X) W + (E 1) bᵀ, so X is compressed first and only k rows are
    projected ("linear", "mean"). Where all heads together have more slots than there are tokens, the order is reversed.

    Examples:
        >>> import torch
        >>> from subquad import Linformer
        >>> layer = Linformer(dim=64, heads=4, max_len=512, k=32, sharing="kv")
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: fairseq's compresses the layer's input and adds the whole bias b afterwards, has no E for each head,
    and accepts a padding mask that it never uses. LRA's k is 16, one map serves keys and values, and masks are ignored.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n k d), memory O(n k)"

    def __init__(
        self, site: Site, k: Count | Sequence[Count] | Sequence[Sequence[Count]] = 256, sharing: Sharing = "headwise",
        projection: Projection = "linear",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.slots = _slots(k, site)
        self.sharing, self.projection = sharing, projection
        if len(set(self.slots)) > 1 and (sharing != "none" or projection != "linear"):
            raise UserError(
                "Linformer with a k for each head needs attention.sharing=none and attention.projection=linear."
            )
        if sharing == "layer" and isinstance(k, Sequence) and any(other != k[0] for other in k):
            raise UserError(
                "Linformer cannot share one projection between layers of different k; choose another attention.sharing."
            )
        self.projections = Projections(site.dim, site.heads)
        if projection in ("linear", "conv"):
            self.fix_length("the maps that compress keys and values")
            self.slots = [min(slots, site.context_len) for slots in self.slots]
        self.key_map, self.value_map = self._maps()

    def _maps(self) -> tuple[nn.ParameterList, nn.ParameterList]:
        """E and F, one of each for every head if nothing is shared; both empty if this layer owns none, F if F is E.

        E and F have names of their own, so that a checkpoint with both cannot be loaded as one with E alone.
        """
        if self.projection in ("mean", "max") or (self.sharing == "layer" and self.site.layer > 0):
            return nn.ParameterList(), nn.ParameterList()

        def one() -> nn.ParameterList:
            if self.projection == "conv":
                window = math.ceil(self.site.context_len / self.slots[0])
                return nn.ParameterList([torch.randn(self.site.dim, window) / math.sqrt(window)])
            slots, tokens = self.slots if self.sharing == "none" else self.slots[:1], self.site.context_len
            return nn.ParameterList(torch.randn(k, tokens) / math.sqrt(tokens) for k in slots)

        return one(), one() if self.sharing in ("none", "headwise") else nn.ParameterList()

    def attend_with_carry(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        self.check_lengths(x, context)
        key_map, value_map, carry = self._shared(carry)
        p = self.projections
        if self._few_operators(x, context, key_map):
            weights, maps = weights_of(p.query, p.key, p.value, p.out), [*key_map, *value_map]
            return linformer(x, context, masks.context, weights, maps, p.heads, self._dropout), carry
        keys, slots = self._compress(context, masks.context, key_map, p.key)
        values, _ = self._compress(context, masks.context, value_map or key_map, p.value)
        return p.merge(self._attend(p.split(p.query(x)), keys, values, slots)), carry

    def carry_of_weights(self) -> Carry:
        return self._shared(None)[2]

    def _few_operators(self, x: Tensor, context: Tensor, key_map: Sequence[Tensor]) -> bool:
        """Whether `linformer` supports these settings and this call."""
        equal = self.projection == "linear" and len(set(self.slots)) == 1
        return (
            eager_on_gpu(x)
            and x.shape[2] == self.site.dim
            and equal
            and sum(len(m) for m in key_map) <= context.shape[1]
        )

    def _shared(self, carry: Carry) -> tuple[Sequence[Tensor], Sequence[Tensor], Carry]:
        """E of each head or of all, the same of F, which is empty if F is E, and the carry."""
        if self.sharing != "layer" or self.projection in ("mean", "max"):
            return list(self.key_map), list(self.value_map), carry
        own = carry
        if len(self.key_map):
            own = once((self, "map"), self.key_map[0].clone, self.key_map[0])  # a carry is no parameter
        if own is None:
            raise UserError(
                f"Linformer in layer {self.site.layer} needs the projection of the first layer "
                "(attention.sharing=layer); use Linformer in all layers."
            )
        return [own], [], own

    def _compress(
        self, x: Context, mask: ContextMask, maps: Sequence[Tensor], linear: nn.Linear
    ) -> tuple[list[Float[Tensor, "b h k e"]], Bool[Tensor, "c k"] | None]:
        """Keys or values of the slots, as one tensor of all heads or one for each head, and which slots are real."""
        p, window = self.projections, math.ceil(self.longest(x, x)[1] / self.slots[0])
        if self.projection == "mean":
            pooled, real = mean_pool(x, mask, window)
            return [p.split(linear(pooled))], real
        if self.projection == "max":
            pooled, real = max_pool(linear(x), mask, window)
            return [p.split(pooled)], real
        if self.projection == "conv":
            cut = windows(zero_padding(linear(x), mask), window)
            real = window_mask(mask, x.shape[1], window, x.device).any(2)
            return [p.split(torch.einsum("bkwd,dw->bkd", cut, maps[0]))], real
        maps = [m[:, : x.shape[1]] for m in maps]
        # More slots in all than tokens: projecting the tokens costs less than projecting the slots.
        if sum(len(m) for m in maps) > x.shape[1]:
            rows = p.split(zero_padding(linear(x), mask))
            parts = rows.split(1, dim=1) if len(maps) > 1 else [rows]
            return [m @ part for m, part in zip(maps, parts, strict=True)], None
        x = zero_padding(x, mask)
        weights = linear.weight.view(p.heads, -1, x.shape[-1]) if len(maps) > 1 else linear.weight[None]
        biases = linear.bias.view(p.heads, -1) if len(maps) > 1 else linear.bias[None]
        heads = []
        for e, weight, bias in zip(maps, weights, biases, strict=True):
            # E 1 over the real tokens, the weight of the bias in each slot.
            total = e.sum(1) if mask is None else mask.to(e.dtype) @ e.mT
            rows = (e @ x) @ weight.mT + total[..., None] * bias
            heads.append(rows[:, None] if len(maps) > 1 else p.split(rows))
        return heads, None

    def _attend(
        self, q: Float[Tensor, "b h n e"], keys: list[Tensor], values: list[Tensor], slots: Bool[Tensor, "c k"] | None
    ) -> Float[Tensor, "b h n e"]:
        if len(set(self.slots)) == 1:
            k, v = torch.cat(keys, 1), torch.cat(values, 1)
            visible = None if slots is None else slots[:, None, None, :]
            return softmax_attention(q, k, v, attn_mask=visible, dropout_p=self._dropout)
        per_head = zip(q.split(1, dim=1), keys, values, strict=True)
        return torch.cat([softmax_attention(a, k, v, dropout_p=self._dropout) for a, k, v in per_head], 1)


def _slots(k: int | Sequence[int] | Sequence[Sequence[int]], site: Site) -> list[int]:
    """The compressed length of each head in this layer."""
    if isinstance(k, Sequence) and len(k) != site.layers:
        raise UserError(f"Linformer got {len(k)} values of k for {site.layers} layers; give one for each layer.")
    here: int | Sequence[int] = k[site.layer] if isinstance(k, Sequence) else k
    per_head = list(here) if isinstance(here, Sequence) else [here] * site.heads
    if len(per_head) != site.heads:
        raise UserError(f"Linformer needs a k for each of the {site.heads} heads; got {per_head}.")
    return per_head
