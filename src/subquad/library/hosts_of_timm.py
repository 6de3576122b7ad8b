"""Self-attentions in models of timm."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.backbones.vision import InBlock, calls_of, stages_of
from subquad.library.host import Host
from subquad.library.projections import Projected, projected
from subquad.library.rotary import Rotating
from subquad.specs import Masks, Tokens
from subquad.utils.errors import UserError, first_line


class InTimm(InBlock, Rotating):
    """Adapts an attention to the call of timm's blocks; rotates as EVA's attention does."""

    def __init__(self, attention: Attention, slot: CarrySlot, own: Any, after: nn.Module, rotary: bool) -> None:
        self.rotary = rotary
        super().__init__(attention, slot, after)
        # Tokens before the patches, which have no position; how sines and cosines are laid out.
        self.before, self.halves = getattr(own, "num_prefix_tokens", 0), getattr(own, "rotate_half", False)

    def forward(
        self, x: Tokens, size: Any = None, *, attn_mask: Any = None, is_causal: bool = False,
        rope: Tensor | None = None, **given: Any,
    ) -> Tokens:  # fmt: skip
        if odd := [name for name, value in given.items() if value is not None]:
            raise UserError(f"The model passes {', '.join(odd)} to its attentions, which no attention here reads.")
        if rope is None or attn_mask is not None or is_causal:
            return super().forward(x, size, attn_mask=attn_mask, is_causal=is_causal)

        def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            return self._rotated(q, rope), self._rotated(k, rope)

        return self.dropout(self.attend_rotated(x, Masks(), rotate))

    def _rotated(self, x: Float[Tensor, "b h n e"], rope: Tensor) -> Float[Tensor, "b h n e"]:
        from timm.layers import apply_rot_embed_cat

        first, rest = x[:, :, : self.before], x[:, :, self.before :]
        return torch.cat([first, apply_rot_embed_cat(rest, rope, half=self.halves)], 2).type_as(x)


def is_rotary(own: Any, model: Any) -> bool:
    """Whether a model of timm passes rotary positions to an attention."""
    return "rope" in inspect.signature(own.forward).parameters and getattr(model, "rope", None) is not None


def hosts_of_timm(model: Any, image_size: int | None) -> Iterator[Host]:
    """The self-attentions of models whose blocks call `attn`; `image_size` replaces that of the model."""
    blocks = [(number, block) for number, stage in enumerate(_stages(model)) for block in stage]
    if other := {type(block).__name__ for _, block in blocks if not hasattr(block, "attn")}:
        raise UserError(f"{', '.join(other)} has no attention of its own that can be replaced.")
    names = {id(part): name for name, part in model.named_modules()}
    found = [
        (stage, block, block.attn, _projected(names[id(block.attn)], block.attn))
        for stage, block in blocks if not isinstance(block.attn, Carrying)
    ]  # fmt: skip
    if not found:
        return
    stated = (part.img_size for part in model.modules() if getattr(part, "img_size", None))
    side = image_size or next((size if isinstance(size, int) else size[0] for size in stated), None)
    if side is None:
        raise UserError(f"{type(model).__name__} does not say how large its images are; pass it, as image_size=224.")
    channels = next((part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d)), 3)
    try:
        sizes = calls_of(model, channels, (side, side))
    except AssertionError as error:
        reason = first_line(error)
        raise UserError(f"{type(model).__name__} does not read images of {side} x {side} ({reason}).") from None
    for stage, block, own, parts in found:
        tokens, dim, grid = sizes[own]

        def install(
            attention: Attention, slot: CarrySlot, block: Any = block, own: Any = own, parts: Projected = parts
        ) -> None:
            block.attn = InTimm(attention, slot, own, parts.after, is_rotary(own, model))

        yield Host(
            name=names[id(own)], module=own, dim=dim, heads=parts.heads, max_len=tokens, grid=grid, stage=stage,
            dropout=parts.dropout, maps=parts.maps, install=install, rotary=is_rotary(own, model),
            lost=tuple(name for name, _ in own.named_parameters() if name.partition(".")[0] in parts.quirk.lost),
        )  # fmt: skip


def _projected(name: str, own: nn.Module) -> Projected:
    if (parts := projected(name, own)) is None:
        raise UserError(f"{name} is of class {type(own).__name__}, whose queries, keys and values are not known.")
    return parts


def _stages(model: Any) -> list[list[Any]]:
    """The blocks of each stage, none if the model has none or is not of timm."""
    if not any(base.__module__.startswith("timm.") for base in type(model).__mro__):
        return []
    staged = hasattr(model, "stages") and all(hasattr(stage, "blocks") for stage in model.stages)
    return stages_of(model) if staged or hasattr(model, "blocks") else []
