"""CIFAR-10 and CIFAR-100 as colour images.

Source: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data.images import cifar_files
from subquad.data.images.cifar_files import CIFARFiles
from subquad.data.images.images import PublishedImages
from subquad.data.images.pixels import lay_flat
from subquad.data.ragged import Ragged

GENUINE = {"train": 50_000, "test": 10_000}


class CIFAR(PublishedImages, CIFARFiles):
    """50,000 training and 10,000 test images of 32 x 32 pixels in 10 or 100 classes, in a memory-mapped cache.

    dataset: "cifar10" or "cifar100" (the fine classes). folder: contains cifar-10-batches-bin or cifar-100-binary, by
    default `root`/cifar.
    """

    def __init__(
        self, *, dataset: Literal["cifar10", "cifar100"], root: str, folder: str | None = None, synthetic: bool = False,
        **images: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, synthetic=synthetic, **images)
        self.task, self.dataset = f"cifar/{dataset}", dataset
        self.home = self._source(folder, "cifar", dataset)

    @property
    def classes(self) -> int:
        return cifar_files.ARCHIVES[self.dataset].classes

    def opened(self) -> tuple["Pixels", "Pixels", str]:
        return Pixels(self._cache.splits["train"]), Pixels(self._cache.splits["test"]), self._cache.fingerprint

    @property
    def cache_folder(self) -> Path:
        return self.root / "cache" / "cifar" / f"{self.dataset}-{self._state}"

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        files = cifar_files.files(self.home, self.dataset)
        rows = {split: None if self.synthetic else GENUINE[split] // len(paths) for split, paths in files.items()}
        splits = {split: lay_flat(*cifar_files.read(files[split], self.dataset, rows[split])) for split in files}
        return splits, {}


class Pixels:
    """Rows of 3 · side² bytes as pictures."""

    def __init__(self, rows: Ragged, side: int = 32) -> None:
        self.images, self.labels = rows.values.reshape(len(rows), side, side, 3), rows.targets

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        return Image.fromarray(np.asarray(self.images[i]))
