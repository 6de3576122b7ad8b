"""Data augmentation of images: timm's transforms and mixing, seeded for each batch."""

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
from subquad.utils.setting_types import Count, Fraction, NonNegative

Transform = Callable[[Any], Tensor]
"""Maps a picture to a normalised tensor `[c, h, w]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Settings of timm's data augmentation.

    crop: "resized" resizes a random crop (8 % of the area or more) to the full size; "random" resizes the shorter edge
        to size · 256/224 and takes a random crop; "padded" pads by an eighth of the size and takes a random crop;
        "none" uses the transform of evaluation.
    flip: flips horizontally with probability 1/2.
    auto_augment: timm's name of a policy, such as rand-m9-mstd0.5-inc1; it turns off colour jitter, as in timm.
    color_jitter: strength of changes of brightness, contrast and saturation.
    erasing: probability of random erasing (a rectangle is replaced by noise).
    mixup, cutmix: α of the Beta distribution of mixup and CutMix, 0 for none; if both are set, one of the two is drawn
        for each batch. Targets are then class probabilities.
    repeats: how often each picture is repeated in succession, each time augmented anew (Hoffer et al. 2020,
        https://arxiv.org/abs/1901.09335).
    """

    crop: Literal["resized", "random", "padded", "none"] = "none"
    flip: bool = False
    auto_augment: str | None = None
    color_jitter: NonNegative = 0.0
    erasing: Fraction = 0.0
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    repeats: Count = 1

    def training(self, size: int, share: float | None = None, **colours: Any) -> Transform:
        """The training transform to `size` x `size` pixels; it uses the random generators of the process.

        share: as of `evaluation`. colours: `mean` and `std` of the normalisation, by default those of ImageNet.
        """
        from timm.data import create_transform
        from torchvision import transforms

        try:
            transform = create_transform(
                size, is_training=True, interpolation="bicubic", hflip=0.5 * self.flip,
                color_jitter=self.color_jitter or None, auto_augment=self.auto_augment,
                re_prob=self.erasing, re_mode="pixel", **colours,
            )  # fmt: skip
        except (AssertionError, ValueError, KeyError) as error:
            raise UserError(
                f"timm knows no policy {self.auto_augment} ({error or 'malformed'}); set data.augment.auto_augment to "
                "a name such as rand-m9-mstd0.5-inc1, or to null."
            ) from None
        if self.crop == "none":
            transform.transforms[:1] = evaluation(size, share).transforms[:2]
        if self.crop == "random":
            transform.transforms[:1] = [evaluation(size, 224 / 256).transforms[0], transforms.RandomCrop(size)]
        if self.crop == "padded":
            transform.transforms[:1] = [*evaluation(size, 1.0).transforms[:2], transforms.RandomCrop(size, size // 8)]
        return transform

    def mix(
        self, images: Float[Tensor, "b c h w"], target: Int[Tensor, " b"], classes: int
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"] | Int[Tensor, " b"]]:
        """Mixes a batch with its reverse; of an odd number of images the last stays unmixed."""
        if not (self.mixup or self.cutmix):
            return images, target
        from timm.data.mixup import Mixup

        mixing = Mixup(self.mixup, self.cutmix, label_smoothing=0.0, num_classes=classes)
        even = len(images) - len(images) % 2
        weights = torch.nn.functional.one_hot(target, classes).float()
        if even:
            images[:even], weights[:even] = mixing(images[:even], target[:even])
        return images, weights


def evaluation(size: int, share: float | None = None, **colours: Any) -> Any:
    """The evaluation transform: a centre crop of `share` of the shorter edge, resized to `size` x `size` pixels.

    By default `share` is `centre_share`; `colours` are those of `Augment.training`.
    """
    from timm.data import create_transform

    return create_transform(size, interpolation="bicubic", crop_pct=share or centre_share(size), **colours)


def centre_share(size: int) -> float:
    """The part of the shorter edge that evaluation at `size` pixels reads, as is common: 224/256 above 32 pixels."""
    return 224 / 256 if size > 32 else 1.0


@contextmanager
def drawn_from(seed: Sequence[int]) -> Iterator[None]:
    """Seeds the generators of Python, NumPy and torch (CPU) inside the block and restores them afterwards.

    timm uses all three. Generators of GPUs are not changed.
    """
    seeds = np.random.SeedSequence(seed).generate_state(3)
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    torch.default_generator.manual_seed(int(seeds[2]))  # torch.manual_seed would seed GPUs as well
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
