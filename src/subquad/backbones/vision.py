"""Vision transformers of timm with the attentions of this package."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subquad.attention.base import Attention, AttentionFactory
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.backbones.encoder import Pretrainable
from subquad.backbones.pretrained import (
    TransferLog,
    adapt_state_dict,
    fitting,
    maps_of,
    published,
    resampled,
    transfer_weights,
)
from subquad.specs import ImageSpec, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import BelowOne, CheckedSettings, Count

PyramidName = Literal[
    "pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5",
    "twins_svt_small", "twins_svt_base", "twins_svt_large",
]  # fmt: skip

_LEAST_SIDE = 32


def swap_attention(
    model: nn.Module, spec: ImageSpec, factories: Sequence[AttentionFactory | None], copy_maps: bool = False
) -> None:
    """Replaces every attention of a timm model; `factories` has one factory a stage, and a plain ViT is one stage.

    Supports models that call `block.attn(x, ...)`: VisionTransformer (`blocks`), PVTv2 (`stages`), Twins (`blocks` of
    `blocks`). Width, heads and dropout of a site are those of the replaced module, tokens and grid those of an image
    of `spec.side`. The grid is None where there is a class token beside the image's tokens. `site.layer` and
    `site.layers` count the blocks of a stage, since `carry` has the width of the stage. The new attentions keep their
    initial weights; with `copy_maps` the maps that both have (`Attention.softmax_maps`) are copied and logged. A stage
    whose factory is None has neither attention nor the norm in front of it.
    """
    stages = stages_of(model)
    sizes = calls_of(model, spec.channels, (spec.side, spec.side))
    transfers = TransferLog()
    for stage, (blocks, factory) in enumerate(zip(stages, factories, strict=True)):
        slot = CarrySlot()
        for layer, block in enumerate(blocks):
            own = block.attn
            if factory is None:
                block.attn, block.norm1 = _Nothing(), nn.Identity()
                continue
            tokens, dim, grid = sizes[own]
            site = Site(
                pattern=Pattern.SELF, dim=dim, heads=own.num_heads, query_len=tokens, context_len=tokens,
                layer=layer, layers=len(blocks), stage=stage, grid=grid, dropout=own.attn_drop.p,
            )  # fmt: skip
            attention = factory(site=site)
            if copy_maps:
                transfers.note(attention, *transfer_weights(maps_of(own), attention))
            block.attn = InBlock(attention, slot, own.proj_drop)
    transfers.log()


def stages_of(model: Any) -> list[list[Any]]:
    """The blocks of each stage."""
    if hasattr(model, "stages"):
        return [list(stage.blocks) for stage in model.stages]
    if isinstance(model.blocks[0], nn.ModuleList):
        return [list(stage) for stage in model.blocks]
    return [list(model.blocks)]


def calls_of(
    model: Any, channels: int, size: tuple[int, int]
) -> dict[nn.Module, tuple[int, int, tuple[int, int] | None]]:
    """Tokens, width and grid that each attention is called with, from one pass on the meta device."""
    blocks = [block for stage in stages_of(model) for block in stage]
    attentions = [block.attn for block in blocks]
    try:
        for block in blocks:
            block.attn = _Noted()
        state = {name: tensor.to("meta") for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        with torch.no_grad(), _ShapesOnly():
            image = torch.empty(1, channels, *size, device="meta", dtype=next(model.parameters()).dtype)
            torch.func.functional_call(model, state, (image,))
        return {own: block.attn.call(model) for own, block in zip(attentions, blocks, strict=True)}
    finally:
        for own, block in zip(attentions, blocks, strict=True):
            block.attn = own


class _Noted(nn.Module):
    """Stands for an attention and notes what it is called with, because not all compute on the device "meta"."""

    def forward(self, x: Tensor, size: Any = None, **ignored: Any) -> Tensor:
        self.shape, self.size = x.shape, size
        return x

    def call(self, model: Any) -> tuple[int, int, tuple[int, int] | None]:
        """Tokens, width and grid of the call."""
        if len(self.shape) != 3:
            raise UserError(
                f"{type(model).__name__} passes {list(self.shape)} to its attentions, and attentions here take "
                "[batch, tokens, width]."
            )
        height, width = self.size or getattr(getattr(model, "patch_embed", None), "grid_size", (0, 0))
        _, tokens, dim = self.shape
        return tokens, dim, (height, width) if height * width == tokens else None


class _Nothing(nn.Module):
    """Adds nothing to the residual in place of an attention."""

    def forward(self, x: Tensor, *_: Any, **ignored: Any) -> Tensor:
        return torch.zeros_like(x)


class _ShapesOnly(TorchFunctionMode):
    """Computes only shapes for the operators that are slow on the device "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.layer_norm, F.gelu):
            return args[0]
        if func is F.linear and len(args) > 1:
            return args[0].new_empty(*args[0].shape[:-1], len(args[1]))
        return func(*args, **(kwargs or {}))


class InBlock(Carrying):
    """Adapts an attention to the call of timm's blocks, which pass the size of the grid or masks that are None."""

    def __init__(self, attention: Attention, slot: CarrySlot, dropout: nn.Module) -> None:
        super().__init__(attention, slot)
        self.dropout = dropout

    def forward(self, x: Tokens, size: Any = None, *, attn_mask: Any = None, is_causal: bool = False) -> Tokens:
        if attn_mask is not None or is_causal:
            raise UserError("No attention of this package has a causal or other mask of pairs; pass no `attn_mask`.")
        return self.dropout(self.attend(x, Masks()))


class ImageBackbone(nn.Module, CheckedSettings, Pretrainable):
    """A timm model for images; maps `[b, c, h, w]` to `[b, classes]`.

    multiple: pixels; the sides of images of another size are multiples of them.
    pretrained: weights of the model with plain attention to start from: a file, "hub" (timm's weights for `name`),
    "hub:<name of a timm model>", or None. Learned positions are resampled for images of another size and for weights of
    another size, so that a trained model reads larger images if no part of its attentions depends on the length.
    """

    section = "backbone"

    def __init__(
        self, spec: ImageSpec, model: nn.Module, factories: Sequence[AttentionFactory | None],
        multiple: Count, pretrained: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.side, self.model, self.multiple = spec.side, model, multiple
        if pretrained is not None:
            weights = published(pretrained, name)
            model.load_state_dict(fitting(model, weights, pretrained))
        swap_attention(model, spec, factories, copy_maps=pretrained is not None)
        self.register_load_state_dict_pre_hook(_fit_positions)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        height, width = images.shape[2:]
        if (height, width) == (self.side, self.side):
            return self.model(images)
        if height % self.multiple or width % self.multiple or not height or not width:
            raise UserError(
                f"This model was built for images of {self.side} x {self.side}, and others have sides that are "
                f"multiples of {self.multiple}; these are {height} x {width}. Resize or pad them."
            )
        if fixed := next((type(a).__name__ for a in self.modules() if getattr(a, "fixed_grid", False)), None):
            raise UserError(
                f"{fixed} was built for images of {self.side} x {self.side}, whose rows it reads, and was given "
                f"{height} x {width}; resize them, or build the model for that size."
            )
        return torch.func.functional_call(self.model, self._positions(height, width), (images,))

    def _positions(self, height: int, width: int) -> dict[str, Tensor]:
        """The learned positions, if there are any, for images of another size."""
        if getattr(self.model, "pos_embed", None) is None:
            return {}
        from timm.layers import resample_abs_pos_embed

        grid = [height // self.multiple, width // self.multiple]
        extra = self.model.num_prefix_tokens
        return {"pos_embed": resample_abs_pos_embed(self.model.pos_embed, new_size=grid, num_prefix_tokens=extra)}

    @property
    def blocks(self) -> list[Any]:
        """The layers of the timm model in order."""
        return [block for stage in stages_of(self.model) for block in stage]

    def adapt_state_dict(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A state dict from a run with other attentions, another image size or other classes."""
        return adapt_state_dict(self, weights)


def _fit_positions(network: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state.update(resampled(network.get_submodule("model"), state, f"{prefix}model."))


class ViT(ImageBackbone):
    """The vision transformer of Dosovitskiy et al. 2021 (https://arxiv.org/abs/2010.11929), as timm builds it.

    A linear map of patches, learned positions, `layers` pre-norm blocks and a linear head.

    class_token: the head reads a learned token in front of the patches; without it the head reads the mean of the
        patches, and `Site.grid` is set.
    dropout: after the attention and in the feed-forward nets. drop_path: rate of stochastic depth in the last block,
        rising from 0 in the first.
    pretrained: see ImageBackbone. Weights do not state the number of heads: those of 3 heads load into 4 heads without
        an error and give another model.

    Patch 16, dim 192, 12 layers and 3 heads is DeiT-tiny.
    """

    def __init__(
        self, spec: ImageSpec, attention: AttentionFactory | None, layers: Count, dim: Count, heads: Count, ffn: Count,
        patch: Count, class_token: bool = False, dropout: BelowOne = 0.0, attention_dropout: BelowOne = 0.0,
        drop_path: BelowOne = 0.0, pretrained: str | None = None,
    ) -> None:  # fmt: skip
        _check_images(spec)
        if spec.side % patch:
            raise UserError(
                f"A ViT needs a backbone.patch that divides the image, and patches of {patch} do not divide "
                f"{spec.side} x {spec.side}; set backbone.patch, or data.size to enlarge the images."
            )
        if dim % heads:
            raise UserError(
                f"A width of {dim} cannot be split into {heads} heads; "
                "choose backbone.heads so that it divides backbone.dim."
            )
        from timm.models.vision_transformer import VisionTransformer

        model = VisionTransformer(
            img_size=spec.side, patch_size=patch, in_chans=spec.channels, num_classes=spec.classes, embed_dim=dim,
            depth=layers, num_heads=heads, mlp_ratio=(ffn + 0.5) / dim,  # timm cuts the product off to a whole number
            class_token=class_token, global_pool="token" if class_token else "avg",
            proj_drop_rate=dropout, attn_drop_rate=attention_dropout, drop_path_rate=drop_path,
        )  # fmt: skip
        model.patch_embed.strict_img_size = False
        super().__init__(spec, model, [attention], patch, pretrained)


class Pyramid(ImageBackbone):
    """PVTv2 (https://arxiv.org/abs/2106.13797) and Twins-SVT (https://arxiv.org/abs/2104.13840), as timm builds them.

    Four stages of fewer and wider tokens: 3136, 784, 196 and 49 at 224 x 224 pixels. The `stages` listed (from 1) get
    the attention under study, the others `exact`. The reduction of keys of PVTv2 and the windows of Twins are removed:
    with softmax everywhere this is the "MSA" baseline of EcoFormer (https://arxiv.org/abs/2209.09004).
    drop_path: rate of stochastic depth in the last block, rising from 0 in the first. pretrained: see ImageBackbone.
    """

    def __init__(
        self, spec: ImageSpec, attention: AttentionFactory | None, exact: AttentionFactory, model: PyramidName,
        stages: Sequence[Literal[1, 2, 3, 4]] = (1, 2, 3), dropout: BelowOne = 0.0, attention_dropout: BelowOne = 0.0,
        drop_path: BelowOne = 0.0, pretrained: str | None = None,
    ) -> None:  # fmt: skip
        _check_images(spec)
        if spec.side < _LEAST_SIDE:
            raise UserError(
                f"A pyramid halves the image five times, and images of {spec.side} x {spec.side} are too small; set "
                f"data.size={_LEAST_SIDE} or more to enlarge them, or choose backbone=vit."
            )
        import timm

        built = timm.create_model(
            model, num_classes=spec.classes, in_chans=spec.channels, sr_ratios=(1, 1, 1, 1),
            proj_drop_rate=dropout, attn_drop_rate=attention_dropout, drop_path_rate=drop_path,
        )  # fmt: skip
        factories = [attention if stage in stages else exact for stage in (1, 2, 3, 4)]
        super().__init__(spec, built, factories, _LEAST_SIDE, pretrained, model)


def _check_images(spec: object) -> None:
    if not isinstance(spec, ImageSpec):
        raise UserError("This backbone reads images, and these data are sequences; choose backbone=sequence.")
