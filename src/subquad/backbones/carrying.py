"""Attentions in models that pass nothing from layer to layer but tokens, such as those of timm and transformers.

Gradient checkpointing calls layers again within the backward pass, in another order, and several passes may wait for
their backward pass. A layer that is called again needs the carry of its first call in this pass. That call left it in a
node of the graph, which lies before the one that is differentiated now.
"""

import weakref
from collections import deque
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from subquad.attention.base import Attention, Carry
from subquad.specs import Masks, Tokens
from subquad.utils.derivatives import transformed
from subquad.utils.errors import UserError


class CarrySlot:
    """Holds the carry between two layers of a stage; empty between two forward passes.

    `first` is the first attention of the stage, `recorded` whether the graph of the carry was recorded, and `passes`
    whether layers of this stage pass anything on.
    """

    def __init__(self) -> None:
        self.carry: Carry = None
        self.first: Attention | None = None
        self.recorded = self.passes = False


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
        if attention.site.layer == 0:
            slot.first = attention

    @property
    def attention(self) -> Attention:
        """The attention that is called."""
        return cast(Attention, self._modules[self.inner])

    def attend(self, x: Tokens, masks: Masks) -> Tokens:
        """Self-attention of the tokens."""
        site, slot = self.attention.site, self.slot
        again = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1  # in a backward pass
        before = self._before(again) if site.layer else None
        y: Tensor
        y, carry = self.attention(x, x, masks, before)
        if not again:
            slot.carry = carry if site.layer < site.layers - 1 else None
            slot.recorded, slot.passes = torch.is_grad_enabled(), carry is not None
        if before is None or not y.requires_grad or torch.compiler.is_compiling() or transformed():
            return y
        marked: Tensor = _Kept.apply(y, before, weakref.ref(self))
        return marked

    def _before(self, again: bool) -> Carry:
        """The carry of the layer before in this pass.

        Raises UserError where its gradient would be lost: with `use_reentrant=True`, checkpointed layers record no
        graph in the forward pass.
        """
        slot = self.slot
        if not again and (slot.recorded or not torch.is_grad_enabled()):
            return slot.carry
        kept = self._kept() if again else None
        if kept is None and slot.passes and slot.first is not None:
            kept = slot.first.carry_of_weights()
        if kept is None and slot.passes:
            raise UserError(
                f"{type(self.attention).__name__} passes a tensor from layer to layer, whose gradient this kind of "
                "gradient checkpointing loses; checkpoint with use_reentrant=False, in transformers "
                'gradient_checkpointing_enable({"use_reentrant": False}).'
            )
        return kept

    def _kept(self) -> Carry:
        """What `attend` kept in the nearest node before the one that is differentiated now."""
        start: Any = torch._C._current_autograd_node()
        if start is None or start.name() == "CheckpointFunctionBackward":  # use_reentrant=True
            return None
        seen, front = {start}, deque([start])
        while front:
            node = front.popleft()
            if getattr(node, "owner", None) is not None and node.owner() is self:
                return cast(Tensor, node.carry)
            new = {other for other, _ in node.next_functions if other is not None} - seen
            seen |= new
            front.extend(new)
        return None


class _Kept(torch.autograd.Function):
    """Returns the output of an attention, and keeps its carry in the graph.

    The carry is saved, too: where a checkpointed part ends with an attention, reading it is what calls the part again.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, carry: Tensor, owner: Any) -> Tensor:
        ctx.carry, ctx.owner = carry, owner
        ctx.save_for_backward(carry)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        _ = ctx.saved_tensors
        return gradient, None, None
