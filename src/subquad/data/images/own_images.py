"""The user's own images, classified by their folders."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from subquad.data import ragged
from subquad.data.images import own_folder
from subquad.data.images.cifar import Pixels
from subquad.data.images.images import ImageData, ImageSplit
from subquad.data.images.own_folder import Fit, Listed
from subquad.data.own_rows import Division, OwnRows, facts
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData
from subquad.utils.errors import UserError
from subquad.utils.setting_types import NonNegative, Positive, Share

Mean = Annotated[Sequence[NonNegative], Field(min_length=3, max_length=3, description="three numbers from 0")]
Spread = Annotated[Sequence[Positive], Field(min_length=3, max_length=3, description="three numbers above 0")]


class OwnImages(ImageData, CachedData):
    """Images of a folder with a folder for each class, in folders train, val and test or all together.

    Every image is read once, turned as its camera says, made a square of RGB, and kept in a memory-mapped cache at the
    resolution that evaluation at `size` pixels needs.

    folder: the images, in a folder for each class.
    fit: crop the centre, pad with black, or stretch, to make a square.
    mean, std: of the normalisation of red, green and blue, 0..1; null: those of ImageNet, with which most of timm's
        weights were trained.
    val_fraction: fraction of the training images that replaces a missing folder val.
    test_fraction: fraction of the training images that replaces a missing folder test. Images are drawn by `split_seed`
        in proportion to the classes, equal images on one side.
    protocol: "clean" selects on validation images, "paper" on the test images.
    cases: the maximum number of images of each split; limits.cases sets it.

    `images` are arguments of `ImageData`. Raises UserError, with the file, for what cannot be read; images that are in
    two splits or classes are logged.
    """

    write_synthetic = staticmethod(own_folder.write_synthetic)

    def __init__(
        self, *, root: str, folder: str | None = None, fit: Fit = "crop", mean: Mean | None = None,
        std: Spread | None = None, val_fraction: Share = 0.2, test_fraction: Share = 0.2,
        protocol: Literal["paper", "clean"] = "clean", **images: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, val_fraction=val_fraction, protocol=protocol, **images)
        self.synthetic_home = self.root / "synthetic" / "own_images"
        if self.synthetic:
            folder = str(self.synthetic_home)
        self.folder, self.fit = None if folder is None else Path(folder).expanduser(), fit
        self.task = f"images/custom data.folder={self.folder}"
        given = {"mean": mean, "std": std}
        self.colours = {name: tuple(values) for name, values in given.items() if values is not None}
        self.division = Division(val_fraction, test_fraction, self.split_seed, self.cases, self.protocol)

    def unlabelled(self, place: Path) -> tuple[ImageSplit, list[str]]:
        paths = [place] if place.is_file() else own_folder.images_below(place)
        pixels, _ = own_folder.read(paths, self._side, self.fit, self._scratch)
        names = [str(path.relative_to(place) if place.is_dir() else path) for path in paths]
        return ImageSplit(Pixels(pixels, self._side), np.arange(len(paths)), self.size**2), names

    def portable_facts(self) -> dict[str, Any]:
        return {"classes": self.class_names}

    @property
    def class_names(self) -> list[str]:
        return list((self._cache.facts if self.given_facts is None else self.given_facts)["classes"])

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def load(self) -> tuple[dict[str, ImageSplit], str]:
        rows, paths = self._cache.splits["all"], self._cache.facts["paths"]
        members, fingerprint = self.division.opened(self._cache, lambda i: str(self.home / paths[i]))
        pictures = Pixels(rows, self._side)
        return {name: ImageSplit(pictures, indices, self.size**2) for name, indices in members.items()}, fingerprint

    @property
    def home(self) -> Path:
        """The folder. Raises UserError if it is not set."""
        if self.folder is None:
            raise UserError("task=images/custom needs data.folder=<folder with a folder of images for each class>.")
        return self.folder

    @property
    def cache_folder(self) -> Path:
        """The folder of the cached pixels, named by the state of the files and the settings of their size."""
        state = ragged.state_of((image.path for image in self._listed), self.home)
        return self.root / "cache" / "own_images" / f"{state}-{self._side}-{self.fit}"

    @property
    def centre(self) -> float:
        return super().centre if self.fit == "crop" else 1.0  # the others promise the borders

    @property
    def _side(self) -> int:
        return int(self.size / self.centre)

    @cached_property
    def _listed(self) -> list[Listed]:
        return own_folder.listed(self.home)

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        splits, labels, paths = zip(*self._listed, strict=True)
        names = [str(path.relative_to(self.home)) for path in paths]
        pixels, digests = own_folder.read(list(paths), self._side, self.fit, self.cache_folder.parent)
        rows = OwnRows(splits, labels, digests, lambda i: str(paths[i]))
        targets, classes = rows.targets("classification")
        return {"all": dataclasses.replace(pixels, targets=targets)}, {**facts(rows, classes), "paths": names}
