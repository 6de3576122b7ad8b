"""What happens to images in training: timm's transforms and mixing, drawn from a seed of each batch."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.utils.errors import UserError

Transform = Callable[[Any], Tensor]
"""A picture to a normalised tensor `[c, h, w]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """How training sees a set of pictures; all of it is timm's.

    crop: "resized" takes a random part (8 % of the area or more) to the full size; "random" brings the shorter edge to
        size · 256/224 and cuts the size out; "padded" pads by an eighth of the size and cuts the size out again;
        "none" sees what evaluation sees.
    flip: left and right, in half of the cases.
    auto_augment: timm's word for a policy, such as rand-m9-mstd0.5-inc1; colours are then not jittered, as in timm.
    color_jitter: strength of changes of brightness, contrast and saturation.
    erasing: share of images that lose a rectangle to noise.
    mixup, cutmix: α of the Beta distribution of the share of the other image; 0 leaves it out, with both one of the
        two is drawn for each batch. Targets then are weights of classes.
    repeats: times that a picture stands in a row in the stream of training, each time drawn anew (Hoffer et al. 2020,
        https://arxiv.org/abs/1901.09335).
    """

    crop: Literal["resized", "random", "padded", "none"] = "none"
    flip: bool = False
    auto_augment: str | None = None
    color_jitter: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    repeats: int = 1

    def __post_init__(self) -> None:
        strengths = (self.color_jitter, self.erasing, self.mixup, self.cutmix)
        crops = ("resized", "random", "padded", "none")
        if self.crop not in crops or min(strengths) < 0 or self.erasing > 1 or self.repeats < 1:
            raise UserError(
                "data.augment needs a crop of resized, random, padded or none, strengths of at least 0, an erasing of "
                f"at most 1 and repeats of at least 1; got {self}."
            )

    def training(self, size: int) -> Transform:
        """The transform of training, to `size` x `size` pixels; it draws from the generators of the process."""
        from timm.data import create_transform
        from torchvision import transforms

        try:
            drawn = create_transform(
                size, is_training=True, interpolation="bicubic", hflip=0.5 * self.flip,
                color_jitter=self.color_jitter or None, auto_augment=self.auto_augment,
                re_prob=self.erasing, re_mode="pixel",
            )  # fmt: skip
        except (AssertionError, ValueError, KeyError) as error:
            raise UserError(
                f"timm knows no policy {self.auto_augment} ({error or 'malformed'}); set data.augment.auto_augment to "
                "a word such as rand-m9-mstd0.5-inc1, or to null."
            ) from None
        if self.crop == "none":
            drawn.transforms[:1] = evaluation(size).transforms[:2]
        if self.crop == "random":
            drawn.transforms[:1] = [evaluation(size, 224 / 256).transforms[0], transforms.RandomCrop(size)]
        if self.crop == "padded":
            drawn.transforms[:1] = [*evaluation(size, 1.0).transforms[:2], transforms.RandomCrop(size, size // 8)]
        return drawn

    def mix(
        self, images: Float[Tensor, "b c h w"], target: Int[Tensor, " b"], classes: int
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"] | Int[Tensor, " b"]]:
        """Each image mixed with the one at the mirrored place of the batch; the last of an odd number stays itself."""
        if not (self.mixup or self.cutmix):
            return images, target
        from timm.data.mixup import Mixup

        mixing = Mixup(self.mixup, self.cutmix, label_smoothing=0.0, num_classes=classes)
        even = len(images) - len(images) % 2
        weights = torch.nn.functional.one_hot(target, classes).float()
        if even:
            images[:even], weights[:even] = mixing(images[:even], target[:even])
        return images, weights


def evaluation(size: int, share: float | None = None) -> Any:
    """The transform of evaluation: the middle `share` of a picture, along the shorter edge, as `size` x `size` pixels.

    None takes 224/256, and all of pictures of up to 32 pixels.
    """
    from timm.data import create_transform

    return create_transform(size, interpolation="bicubic", crop_pct=share or (224 / 256 if size > 32 else 1.0))


@contextmanager
def drawn_from(seed: Sequence[int]) -> Iterator[None]:
    """Inside the block the generators of Python, NumPy and torch (CPU) start at `seed`; after it they are as before.

    timm draws from all three. A GPU's generators are left alone.
    """
    words = np.random.SeedSequence(seed).generate_state(3)
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.default_generator.manual_seed(int(words[2]))  # torch.manual_seed would seed GPUs as well
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
