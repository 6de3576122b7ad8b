"""Attentions in models that rotate queries and keys by their positions."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from subquad.attention.base import Attention, StatelessAttention
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.library.of_heads import attend_heads, core_of, reads_heads
from subquad.ops.heads import split_heads
from subquad.specs import Masks, Tokens

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Queries and keys [b, h, n, e], rotated by their positions."""


def turns(attention: Attention) -> bool:
    """Whether the queries and keys of an attention can be rotated: it computes from them, and has no carry."""
    return isinstance(attention, StatelessAttention) and reads_heads(attention)


class Rotating(Carrying):
    """Rotates the queries and keys of attentions that have such; others read the tokens alone.

    `rotary` says whether the model has rotary positions; subclasses set it before this constructor runs.
    """

    rotary = False

    def put(self, attention: Attention, slot: CarrySlot) -> None:
        super().put(attention, slot)
        # In a tuple, because it shares parts with `attention` and is none itself.
        self.core = (core_of(attention),) if self.rotary and turns(attention) else None

    def attend_rotated(self, x: Tokens, masks: Masks, rotate: Rotate | None) -> Tokens:
        """Self-attention of the tokens, with rotated queries and keys where the attention has them."""
        if self.core is None or rotate is None:
            return self.attend(x, masks)
        [core], maps, dim = self.core, self.attention.softmax_maps(), self.attention.site.dim
        core.training = self.attention.training

        def mapped(role: str, tokens: Tensor) -> Tensor:
            weight, bias = maps[role]
            return F.linear(tokens, weight.reshape(dim, dim), None if bias is None else bias.reshape(dim))

        # Queries are the keys too where the attention has one map for both.
        q, k, v = (
            split_heads(mapped(role, x), core.site.heads)
            for role in ("query", "key" if "key" in maps else "query", "value")
        )
        q, k = rotate(q, k)
        return mapped("out", attend_heads(core, q, k, v, masks))
