"""Grey images as sequences of pixels, row by row, as in the image tasks of the Long Range Arena."""

import abc
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data.ragged import Ragged
from subquad.data.split_data import SequenceData
from subquad.specs import DataSpec, SequenceBatch
from subquad.utils.setting_types import Positive

Pixels = Literal["token", "real"]


class PixelData(SequenceData):
    """Images of `side` x `side` as sequences of side² steps without padding.

    pixels: "token" brightness 0..255 as the ids 1..256 (0 is padding); "real" one channel,
        (brightness / 255 - centre) / spread.
    """

    def __init__(
        self, *, pixels: Pixels = "token", centre: float = 0.0, spread: Positive = 1.0, **batching: Any
    ) -> None:
        super().__init__(**batching)
        self.pixels, self.centre, self.spread = pixels, centre, spread

    @property
    @abc.abstractmethod
    def side(self) -> int:
        """Pixels per side."""

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """Number of classes."""

    @property
    def spec(self) -> DataSpec:
        steps = self.side**2
        if self.pixels == "token":
            return DataSpec(max_len=steps, vocab=257, classes=self.classes)
        return DataSpec(max_len=steps, channels=1, classes=self.classes)

    def batched(self, split: str) -> Dataset[SequenceBatch]:
        """Batches of pixels."""
        scale = None if self.pixels == "token" else (self.centre, self.spread)
        return PixelDataset(self.splits[split], self.side, scale)


class PixelDataset(Dataset[SequenceBatch]):
    """Turns lists of indices into batches; `scale` is (centre, spread) for real pixels and None for tokens."""

    def __init__(self, rows: Ragged, side: int, scale: tuple[float, float] | None) -> None:
        self.images = rows.values.reshape(len(rows), side**2)
        self.targets, self.scale = rows.targets, scale

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: list[int]) -> SequenceBatch:
        images = self.images[indices]
        if self.scale is None:
            inputs = torch.from_numpy(images.astype(np.int64) + 1)
        else:
            centre, spread = self.scale
            inputs = torch.from_numpy((images.astype(np.float32) / 255 - centre) / spread)[..., None]
        return SequenceBatch(inputs, None, torch.from_numpy(self.targets[indices]))


def lay_flat(images: np.ndarray, labels: np.ndarray) -> Ragged:
    """Flattens labelled uint8 images [n, side, side] to sequences of pixels."""
    steps = images[0].size if len(images) else 1
    return Ragged(images.reshape(-1), np.arange(len(images) + 1, dtype=np.int64) * steps, labels.astype(np.int64))
