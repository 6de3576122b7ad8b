"""The base classes of image data sets."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from subquad.data.batches import Rows, TrainBatches
from subquad.data.images.augment import Augment, Transform, centre_share, drawn_from, evaluation
from subquad.data.sampling import kept_apart, some
from subquad.data.split_data import SplitData, majority_class
from subquad.specs import Batch, ImageBatch, ImageSpec
from subquad.utils.setting_types import Count, Seed, Share

Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps the images and classes of a batch to mixed images with classes or class probabilities."""


class Pictures(Protocol):
    """Labelled pictures that are decoded on access."""

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]: class of each picture."""

    def __getitem__(self, i: int) -> Any:
        """One picture in a form that the transforms accept. Raises UserError with the name of a damaged file."""


@dataclass(frozen=True, slots=True)
class ImageSplit:
    """The pictures of a split: those of `indices`, which become images of `pixels` pixels."""

    pictures: Pictures
    indices: np.ndarray
    pixels: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Any:
        return self.pictures[int(self.indices[i])]

    @property
    def targets(self) -> np.ndarray:
        """int64 [N]: class of each picture."""
        return self.pictures.labels[self.indices]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: pixels of each image, all equal."""
        return np.full(len(self), self.pixels)


class EvalImages(Dataset[ImageBatch]):
    """Turns lists of indices into batches of images."""

    def __init__(self, split: ImageSplit, transform: Transform) -> None:
        self.split, self.transform, self.targets = split, transform, split.targets

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: list[int]) -> ImageBatch:
        images = torch.stack([self.transform(self.split[i]) for i in indices])
        return ImageBatch(images, torch.from_numpy(self.targets[indices]))


class TrainImages(EvalImages):
    """Training batches. Augmentation of an image is seeded by (seed, index of the batch, position in the batch).

    `mix` maps the images and classes of this process to those to train on; it is seeded by (seed, index of the batch).
    """

    def __init__(self, split: ImageSplit, transform: Transform, seed: int, mix: Mix) -> None:
        super().__init__(split, transform)
        self.seed, self.mix = seed, mix

    def __getitems__(self, indices: list[int]) -> ImageBatch:
        assert isinstance(indices, Rows)
        images = []
        for number, i in enumerate(indices):
            with drawn_from([self.seed, indices.place, indices.position(number)]):
                images.append(self.transform(self.split[i]))
        with drawn_from([self.seed, indices.place]):
            return ImageBatch(*self.mix(torch.stack(images), torch.from_numpy(self.targets[list(indices)])))


class RepeatedBatches(TrainBatches):
    """Repeats each picture `repeats` times in a row. A pass keeps its number of rows and so has fewer pictures.

    As in DeiT's sampler, each process gets a different augmentation of a picture.
    """

    def __init__(self, *batches: Any, repeats: int, **places: Any) -> None:
        super().__init__(*batches, **places)
        self.repeats = repeats

    def _shuffled(self, rng: np.random.Generator) -> list[list[int]]:
        rows = np.repeat(rng.permutation(len(self.lengths)), self.repeats)[: len(self.lengths)]
        return [rows[i : i + self.batch_size].tolist() for i in range(0, len(rows), self.batch_size)]


class ImageData(SplitData):
    """Labelled pictures, augmented in training.

    size: pixels per side after resizing.
    protocol: "paper" validates on the test pictures, as all papers on published data do; "clean" holds out
        `val_fraction` of the training pictures by `split_seed`.
    cases: the maximum number of pictures of train and of test; limits.cases sets it.
    synthetic: synthetic pictures in place of the real ones.

    Colours are normalised by the mean and standard deviation of ImageNet, or those of `colours`.
    """

    colours: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, *, root: str, size: Count, augment: Augment, protocol: Literal["paper", "clean"] = "paper",
        val_fraction: Share = 0.1, split_seed: Seed = 42, cases: Count | None = None, synthetic: bool = False,
        **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        self.root, self.size, self.augment, self.synthetic = Path(root), size, augment, synthetic
        self.protocol, self.val_fraction, self.split_seed, self.cases = protocol, val_fraction, split_seed, cases

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """Number of classes."""

    @property
    def spec(self) -> ImageSpec:
        return ImageSpec(side=self.size, channels=3, classes=self.classes)

    @property
    def centre(self) -> float:
        """The part of the shorter edge that evaluation reads."""
        return centre_share(self.size)

    def batched(self, split: str) -> Dataset[ImageBatch]:
        """Batches of images, augmented in training."""
        if split == "train":
            mix = partial(self.augment.mix, classes=self.classes)
            transform = self.augment.training(self.size, self.centre, **self.colours)
            return TrainImages(self.splits[split], transform, self.seed, mix)
        return EvalImages(self.splits[split], evaluation(self.size, self.centre, **self.colours))

    def train_dataloader(self) -> DataLoader[Batch]:
        if self.augment.repeats == 1:
            return super().train_dataloader()
        batches = RepeatedBatches(
            self.splits["train"].lengths, self.batch_size, self.seed, self.steps_per_epoch,
            rank=self._rank, world_size=self._world, repeats=self.augment.repeats,
        )  # fmt: skip
        return self._train_loader(batches)

    def baselines(self) -> dict[str, float]:
        """The accuracy of the most frequent class of the training split."""
        return majority_class(self.splits["train"].targets, self.splits["test"].targets)


class PublishedImages(ImageData):
    """Labelled pictures with a published training and test set."""

    @abc.abstractmethod
    def opened(self) -> tuple[Pictures, Pictures, str]:
        """The prepared pictures of train and of test, and the fingerprint of the data."""

    def load(self) -> tuple[dict[str, ImageSplit], str]:
        train, test, fingerprint = self.opened()
        fit, test_split = self._chosen(train, 0), ImageSplit(test, self._chosen(test, 1), self.size**2)
        if self.protocol == "paper":
            return {"train": ImageSplit(train, fit, self.size**2), "val": test_split, "test": test_split}, fingerprint
        fit, val = kept_apart(fit, self.val_fraction, self.split_seed)
        splits = {name: ImageSplit(train, rows, self.size**2) for name, rows in (("train", fit), ("val", val))}
        return splits | {"test": test_split}, fingerprint

    def _chosen(self, pictures: Pictures, stream: int) -> np.ndarray:
        return some(len(pictures.labels), self.cases, [self.split_seed, stream])
