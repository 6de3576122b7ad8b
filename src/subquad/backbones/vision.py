"""Vision transformers of timm, with attentions of this package in the place of their own."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, AttentionFactory, Carry
from subquad.errors import UserError
from subquad.specs import ImageSpec, Masks, Pattern, Site

PyramidName = Literal[
    "pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5",
    "twins_svt_small", "twins_svt_base", "twins_svt_large",
]  # fmt: skip


def swap_attention(model: nn.Module, spec: ImageSpec, factories: Sequence[AttentionFactory]) -> None:
    """Replaces every attention of a timm model; `factories` has one for each stage, a plain ViT is one stage.

    Works on whatever calls `block.attn(x, ...)`: VisionTransformer (`blocks`), PVTv2 (`stages`) and Twins (`blocks` of
    `blocks`). Width, heads and dropout of a site are those of the module that goes; its tokens and their grid are those
    that an image of `spec.side` brings there. The grid is None where a class token stands beside the image's tokens.
    `site.layer` and `site.layers` count the blocks of a stage: what a layer hands to the next (`carry`) has its width.
    The new attentions keep the weights they were made with.
    """
    stages = _stages(model)
    calls = _calls(model, spec, [block.attn for blocks in stages for block in blocks])
    for blocks, factory in zip(stages, factories, strict=True):
        thread = _Thread()
        for layer, block in enumerate(blocks):
            own = block.attn
            tokens, dim, grid = calls[own]
            site = Site(
                pattern=Pattern.SELF, dim=dim, heads=own.num_heads, query_len=tokens, context_len=tokens,
                layer=layer, layers=len(blocks), grid=grid, dropout=own.attn_drop.p,
            )  # fmt: skip
            block.attn = _Swapped(factory(site=site), thread, own.proj_drop)


def _stages(model: Any) -> list[list[Any]]:
    """The blocks of each stage."""
    if hasattr(model, "stages"):
        return [list(stage.blocks) for stage in model.stages]
    if isinstance(model.blocks[0], nn.ModuleList):
        return [list(stage) for stage in model.blocks]
    return [list(model.blocks)]


def _calls(
    model: Any, spec: ImageSpec, attentions: Sequence[nn.Module]
) -> dict[nn.Module, tuple[int, int, tuple[int, int] | None]]:
    """Tokens, width and grid that each attention is called with, from one pass of an image without numbers."""
    found = {}

    def note(attention: nn.Module, args: tuple[Any, ...]) -> None:
        _, tokens, dim = args[0].shape
        height, width = args[1] if len(args) > 1 else model.patch_embed.grid_size
        found[attention] = (tokens, dim, (height, width) if height * width == tokens else None)

    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    state = {name: tensor.to("meta") for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    try:
        with torch.no_grad():
            image = torch.empty(1, spec.channels, spec.side, spec.side, device="meta")
            torch.func.functional_call(model, state, (image,))
    finally:
        for hook in hooks:
            hook.remove()
    return found


class _Thread:
    """Holds the carry between two layers of a stage, and nothing between two forward passes."""

    def __init__(self) -> None:
        self.carry: Carry = None


class _Swapped(nn.Module):
    """Is called as timm's blocks call their attention, with the size of the grid or with masks that are None."""

    def __init__(self, attention: Attention, thread: _Thread, dropout: nn.Module) -> None:
        super().__init__()
        self.attention, self.thread, self.dropout = attention, thread, dropout

    def forward(
        self, x: Float[Tensor, "b n d"], size: Any = None, *, attn_mask: None = None, is_causal: bool = False
    ) -> Float[Tensor, "b n d"]:
        site = self.attention.site
        y, carry = self.attention(x, x, Masks(), self.thread.carry if site.layer else None)
        self.thread.carry = carry if site.layer < site.layers - 1 else None
        return self.dropout(y)


class ImageBackbone(nn.Module):
    """A timm model on images of one size; maps `[b, c, h, w]` to `[b, classes]`. `model` is timm's."""

    def __init__(self, spec: ImageSpec, model: nn.Module, factories: Sequence[AttentionFactory]) -> None:
        super().__init__()
        self.side, self.model = spec.side, model
        swap_attention(model, spec, factories)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        if images.shape[2:] != (self.side, self.side):
            raise UserError(
                f"This model was built for images of {self.side} x {self.side} and was given "
                f"{images.shape[2]} x {images.shape[3]}; build it with data.size of the images."
            )
        return self.model(images)

    @property
    def blocks(self) -> list[Any]:
        """timm's layers, from the first to the last."""
        return [block for stage in _stages(self.model) for block in stage]


class ViT(ImageBackbone):
    """The vision transformer of Dosovitskiy et al. 2021 (https://arxiv.org/abs/2010.11929), as timm builds it.

    A linear map of patches, learned positions, `layers` pre-norm blocks, a linear head. class_token: the head reads a
    learned token put before the patches; without it the mean of the patches, and attentions know the grid.
    dropout: after the attention and in the feed-forward nets; drop_path: rate of left-out branches in the last block,
    rising from 0 in the first. With patch 16, dim 192, 12 layers and 3 heads this is DeiT-tiny.
    """

    def __init__(
        self,
        spec: ImageSpec,
        attention: AttentionFactory,
        layers: int,
        dim: int,
        heads: int,
        ffn: int,
        patch: int,
        class_token: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        _check_images(spec)
        if layers < 1 or patch < 1 or spec.side % patch:
            raise UserError(
                "A ViT needs backbone.layers of at least 1 and a backbone.patch that divides the image; got "
                f"{layers} layers and patches of {patch} for images of {spec.side} x {spec.side}."
            )
        if heads < 1 or dim % heads:
            raise UserError(
                f"A width of {dim} cannot be split into {heads} heads; "
                "choose backbone.heads so that it divides backbone.dim."
            )
        import subquad.torchvision_shim  # noqa: F401  before timm

        # isort: split
        from timm.models.vision_transformer import VisionTransformer

        model = VisionTransformer(
            img_size=spec.side, patch_size=patch, in_chans=spec.channels, num_classes=spec.classes, embed_dim=dim,
            depth=layers, num_heads=heads, mlp_ratio=(ffn + 0.5) / dim,  # timm cuts the product off to a whole number
            class_token=class_token, global_pool="token" if class_token else "avg",
            proj_drop_rate=dropout, attn_drop_rate=attention_dropout, drop_path_rate=drop_path,
        )  # fmt: skip
        super().__init__(spec, model, [attention])


class Pyramid(ImageBackbone):
    """PVTv2 (https://arxiv.org/abs/2106.13797) and Twins-SVT (https://arxiv.org/abs/2104.13840), as timm builds them.

    Four stages of fewer and wider tokens: at 224 x 224 pixels 3136, 784, 196 and 49. `stages` are those (from 1) that
    get the attention under study; others get `exact`. Nothing stays of the reduction of keys in PVTv2 or of Twins's
    windows: with softmax everywhere this is the "MSA" baseline of EcoFormer (https://arxiv.org/abs/2209.09004).
    drop_path: rate of left-out branches in the last block, rising from 0 in the first.
    """

    def __init__(
        self,
        spec: ImageSpec,
        attention: AttentionFactory,
        exact: AttentionFactory,
        model: PyramidName,
        stages: Sequence[int] = (1, 2, 3),
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        _check_images(spec)
        if not set(stages) <= {1, 2, 3, 4}:
            raise UserError(f"There are stages 1 to 4, and backbone.stages is {list(stages)}.")
        import subquad.torchvision_shim  # noqa: F401  before timm

        # isort: split
        import timm

        built = timm.create_model(
            model, num_classes=spec.classes, in_chans=spec.channels, sr_ratios=(1, 1, 1, 1),
            proj_drop_rate=dropout, attn_drop_rate=attention_dropout, drop_path_rate=drop_path,
        )  # fmt: skip
        super().__init__(spec, built, [attention if stage in stages else exact for stage in (1, 2, 3, 4)])


def _check_images(spec: object) -> None:
    if not isinstance(spec, ImageSpec):
        raise UserError("This backbone reads images, and these data are sequences; choose backbone=sequence.")
