"""Images as sequences of patches, for encoders that read sequences."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.encoder import EncoderFactory, is_standalone
from subquad.specs import DataSpec, ImageSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count


class PatchEncoder(nn.Module):
    """Maps images `[b, c, h, w]` to `[b, classes]`: `encoder` reads patches of `patch`² pixels in raster order.

    The pixels of a patch are the channels of a step, so that the encoder's linear map is the patch embedding of a ViT.
    Source: Leotescu et al. 2024 (BLRP), https://arxiv.org/abs/2404.05210, Section 4.
    """

    def __init__(self, spec: ImageSpec, encoder: EncoderFactory, patch: Count) -> None:
        super().__init__()
        if patch < 1 or spec.side % patch:
            raise UserError(
                f"Patches of {patch} do not fill images of {spec.side} x {spec.side}; set task.module.patch to a "
                "number that divides data.size."
            )
        self.patch = patch
        steps = DataSpec(max_len=(spec.side // patch) ** 2, channels=spec.channels * patch**2, classes=spec.classes)
        self.encoder = encoder(spec=steps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        return self.encoder(F.unfold(images, self.patch, stride=self.patch).mT, None)


def on_images(factory: Any, patch: int) -> Any:
    """A factory of models of images, which makes encoders of sequences read patches of `patch` x `patch` pixels."""
    return partial(PatchEncoder, encoder=factory, patch=patch) if is_standalone(factory) else factory
