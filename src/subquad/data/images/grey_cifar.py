"""The Image task of the Long Range Arena: CIFAR-10 in grey, read pixel by pixel, 1,024 steps.

Source: Tay et al. 2021, https://arxiv.org/abs/2011.04006; Krizhevsky 2009 for the images.
"""

from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.images import cifar_files
from subquad.data.images.cifar_files import CIFARFiles
from subquad.data.images.pixels import PixelData, lay_flat
from subquad.data.ragged import Ragged
from subquad.utils.setting_types import Seed, Sizes

_WEIGHTS = np.array([0.2989, 0.5870, 0.1140], np.float32)
GENUINE = {"train": 45_000, "val": 5_000, "test": 10_000}


class GreyCIFAR(CIFARFiles, PixelData):
    """45,000 / 5,000 / 10,000 images; the last tenth of a seeded permutation of the training files is for validation.

    folder: contains cifar-10-batches-bin, by default `root`/cifar. sizes: uses the first rows of train, val and test
    only; None uses all. synthetic: synthetic images in place of the published ones.
    """

    task = "lra/image"
    classes = 10
    side = 32

    def __init__(
        self, *, root: str, folder: str | None = None, sizes: Sizes | None = None, split_seed: Seed = 42,
        synthetic: bool = False, **pixels: Any,
    ) -> None:  # fmt: skip
        super().__init__(**pixels)
        self.root, self.synthetic, self.split_seed = Path(root), synthetic, split_seed
        self.home = self._source(folder, "cifar", "cifar")
        self.sizes = None if sizes is None else dict(zip(GENUINE, sizes, strict=True))

    def load(self) -> tuple[dict[str, Ragged], str]:
        splits = self._cache.splits
        if self.sizes is not None:
            splits = {name: rows.take(np.arange(min(self.sizes[name], len(rows)))) for name, rows in splits.items()}
        return splits, self._cache.fingerprint

    @property
    def cache_folder(self) -> Path:
        return self.root / "cache" / "grey_cifar" / f"{self._state}-split{self.split_seed}"

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        files = cifar_files.files(self.home, "cifar10")
        rows = None if self.synthetic else cifar_files.ARCHIVES["cifar10"].rows
        images, labels = cifar_files.read(files["train"], "cifar10", rows)
        test = cifar_files.read(files["test"], "cifar10", rows)
        order = np.random.default_rng(self.split_seed).permutation(len(labels))
        train, val = np.split(order, [len(order) - len(order) // 10])
        colour = {"train": (images[train], labels[train]), "val": (images[val], labels[val]), "test": test}
        return {name: lay_flat(to_grey(x), y) for name, (x, y) in colour.items()}, {"split_seed": self.split_seed}


def to_grey(images: np.ndarray) -> np.ndarray:
    """uint8 [n, h, w, 3] to uint8 [n, h, w]: 0.2989 R + 0.5870 G + 0.1140 B in 0..1, times 255.5, rounded down."""
    return (images.astype(np.float32) / 255 @ _WEIGHTS * np.float32(255.5)).astype(np.uint8)
