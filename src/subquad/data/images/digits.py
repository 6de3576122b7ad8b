"""The handwritten digits of scikit-learn: 1,797 grey images of 8 x 8 pixels, which need no download.

Source: Alpaydin and Kaynak 1998, https://archive.ics.uci.edu/dataset/80 (its test part; CC BY 4.0).
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import Dataset

from subquad.data.images.images import EvalImages, ImageSplit
from subquad.data.images.pixels import PixelData, lay_flat
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData, majority_class
from subquad.specs import ImageBatch, ImageSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed

SIDE, CLASSES = 8, 10
_SIZES = {"train": 1200, "val": 297, "test": 300}
_SYNTHETIC_SIZES = {"train": 60, "val": 20, "test": 20}


class Digits(CachedData):
    """The splits of the digits in a cache."""

    task = "digits"

    def _choose(self, root: str, split_seed: int, synthetic: bool) -> None:
        self.root, self.split_seed, self.sizes = Path(root), split_seed, _SYNTHETIC_SIZES if synthetic else _SIZES

    @property
    def cache_folder(self) -> Path:
        return self.root / "cache" / "digits" / f"{sum(self.sizes.values())}-split{self.split_seed}"

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        images, labels = genuine()
        total = sum(self.sizes.values())
        order = np.random.default_rng(self.split_seed).permutation(total)
        indices = np.split(order, np.cumsum(list(self.sizes.values()))[:-1])
        splits = {name: lay_flat(images[rows], labels[rows]) for name, rows in zip(self.sizes, indices, strict=True)}
        return splits, {"split_seed": self.split_seed}


class DigitImages(Digits):
    """Images of digits, split 1,200 / 297 / 300 by a seeded permutation; brightness 0..16 becomes -1..1.

    There is no published split, so both protocols use this one. size: pixels per side after bilinear resizing; pyramids
    need 32. synthetic: uses the first 100 rows only.
    """

    def __init__(
        self, *, root: str, size: Count = SIDE, split_seed: Seed = 42, synthetic: bool = False, **batching: Any
    ) -> None:
        super().__init__(**batching)
        self.size = size
        self._choose(root, split_seed, synthetic)

    @property
    def spec(self) -> ImageSpec:
        return ImageSpec(side=self.size, channels=1, classes=CLASSES)

    def load(self) -> tuple[dict[str, ImageSplit], str]:
        splits = {name: _Grey(rows) for name, rows in self._cache.splits.items()}
        return {
            name: ImageSplit(rows, np.arange(len(rows.labels)), self.size**2) for name, rows in splits.items()
        }, self._cache.fingerprint

    def batched(self, split: str) -> Dataset[ImageBatch]:
        """Batches of images, in training too without augmentation."""
        return EvalImages(self.splits[split], partial(normalised, size=self.size))

    def baselines(self) -> dict[str, float]:
        """The accuracy of the most frequent class of the training split."""
        return majority_class(self.splits["train"].targets, self.splits["test"].targets)


class DigitPixels(Digits, PixelData):
    """The digits with the same splits as sequences of 64 pixels, row by row; brightness 0..16 becomes 0..255."""

    side = SIDE
    classes = CLASSES

    def __init__(self, *, root: str, split_seed: Seed = 42, synthetic: bool = False, **pixels: Any) -> None:
        super().__init__(**pixels)
        self._choose(root, split_seed, synthetic)


class _Grey:
    """Rows of pixels as uint8 [8, 8]."""

    def __init__(self, rows: Ragged) -> None:
        self.images, self.labels = rows.values.reshape(len(rows), SIDE, SIDE), rows.targets

    def __getitem__(self, i: int) -> np.ndarray:
        return self.images[i]


def genuine() -> tuple[np.ndarray, np.ndarray]:
    """All images uint8 [1797, 8, 8], 0..255, and their labels; raises UserError if scikit-learn's data differ."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images, digits.target.astype(np.int64)
    if images.shape != (1797, SIDE, SIDE) or images.min() < 0 or images.max() != 16 or set(labels) != set(range(10)):
        raise UserError(
            f"scikit-learn's digits are not the known 1,797 images of 8 x 8 (they have shape {images.shape}); "
            "install scikit-learn again."
        )
    return np.round(images * (255 / 16)).astype(np.uint8), labels


def normalised(image: np.ndarray, size: int = SIDE) -> Float[Tensor, "1 s s"]:
    """Scales uint8 [8, 8] to -1..1 and resizes to `size` x `size` pixels."""
    pixels = torch.from_numpy(image[None].astype(np.float32) / 127.5 - 1)
    return pixels if size == SIDE else F.interpolate(pixels[None], (size, size), mode="bilinear", antialias=True)[0]
