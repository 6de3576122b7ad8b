"""Attentions in models that pass nothing from layer to layer but tokens, such as those of timm and transformers."""

from typing import ClassVar, cast

from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.specs import Masks


class CarrySlot:
    """Holds the carry between two layers of a stage; empty between two forward passes."""

    def __init__(self) -> None:
        self.carry: Carry = None


class Carrying(nn.Module):
    """Calls an attention with the carry of a slot; subclasses have the `forward` that the model calls.

    The attention is the part `inner` of this module in state dicts.
    """

    inner: ClassVar[str] = "attention"

    def __init__(self, attention: Attention, slot: CarrySlot) -> None:
        super().__init__()
        self.put(attention, slot)

    def put(self, attention: Attention, slot: CarrySlot) -> None:
        """Replaces the attention and the slot."""
        self._modules[self.inner], self.slot = attention, slot

    @property
    def attention(self) -> Attention:
        """The attention that is called."""
        return cast(Attention, self._modules[self.inner])

    def attend(self, x: Float[Tensor, "b n d"], masks: Masks) -> Float[Tensor, "b n d"]:
        """Self-attention of the tokens."""
        site = self.attention.site
        y: Tensor
        y, carry = self.attention(x, x, masks, self.slot.carry if site.layer else None)
        self.slot.carry = carry if site.layer < site.layers - 1 else None
        return y
