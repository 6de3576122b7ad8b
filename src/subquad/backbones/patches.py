"""Images for encoders of sequences: patches in raster order."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.base import EncoderFactory
from subquad.errors import UserError
from subquad.specs import DataSpec, ImageSpec


class PatchEncoder(nn.Module):
    """Cuts `[b, c, h, w]` into patches of `patch` x `patch` pixels, row after row, which `encoder` reads as steps.

    The pixels of a patch are its channels, so that the encoder's linear map of steps is the patch embedding of a ViT:
    the images of BLRP (Leotescu et al. 2024, https://arxiv.org/abs/2404.05210, Section 4). Maps to `[b, classes]`.
    """

    def __init__(self, spec: ImageSpec, encoder: EncoderFactory, patch: int) -> None:
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
