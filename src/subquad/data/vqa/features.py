"""Features of images, read from disk on access: grids (.pth), regions (.npz), or one HDF5 file per split.

Sources: facebookresearch/grid-feats-vqa (2020-07) writes `<split>/<image id>.pth`, a tensor [1, channels, height,
width]; OpenVQA (2021-09) reads `<split>/COCO_<split>_<image id>.jpg.npz`, whose "x" is [channels, regions].
"""

import abc
import hashlib
import os
import pickle
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from subquad.data.listing import is_data
from subquad.utils.errors import UserError, first_line

_FILE = re.compile(r"(?:.*_)?(\d+)(?:\.jpg)?(\.pth|\.npz)")
_NAME = re.compile(r"(?:.*_)?(\d+)(?:\.jpg)?")


class Features(abc.ABC):
    """The tokens of the images of one split.

    dim: width of a token; limit: the maximum number of tokens of an image.
    """

    def __init__(self, where: Path, names: dict[int, str], state: object, dim: int, limit: int) -> None:
        self.where, self.names, self.dim, self.limit = where, names, dim, limit
        self.fingerprint = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
        """Changes with the name or size of any file."""

    def __getitem__(self, image: int) -> np.ndarray:
        """The tokens of an image, float32 [n, dim]. Raises UserError for damaged features and for other shapes."""
        where = f"{self.where}/{self.names[image]}"
        try:
            tokens = self._read(self.names[image])
        except (
            OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile,
            pickle.UnpicklingError,
        ) as error:  # fmt: skip
            reason = first_line(error)
            raise UserError(
                f"{where} holds no features that can be read ({reason}); extract that image again."
            ) from None
        if tokens.ndim != 2 or tokens.shape[1] != self.dim or not 0 < len(tokens) <= self.limit:
            raise UserError(
                f"{where} holds features of shape {list(tokens.shape)} where at most {self.limit} tokens of {self.dim} "
                "numbers are expected; set data.image_len and data.image_dim, or extract them again."
            )
        if not np.issubdtype(tokens.dtype, np.floating) or not np.isfinite(tokens.sum(dtype=np.float64)):
            raise UserError(f"{where} holds values that are no real numbers; extract that image again.")
        return tokens.astype(np.float32, copy=False)

    @abc.abstractmethod
    def _read(self, name: str) -> np.ndarray:
        """The tokens of a file, [n, dim], of any type."""

    def require(self, images: Iterable[int]) -> None:
        """Raises UserError if an image has no features."""
        required = set(images)
        missing = sorted(required - self.names.keys())
        if missing:
            raise UserError(
                f"{len(missing):,} of {len(required):,} images have no features in {self.where}, the first is image "
                f"{missing[0]}; extract them too, or set limits.cases to need fewer."
            )


class GridFiles(Features):
    """One `.pth` file per image; only tensors are unpickled."""

    def _read(self, name: str) -> np.ndarray:
        grid: Any = torch.load(self.where / name, map_location="cpu", weights_only=True)
        if grid.ndim != 4 or len(grid) != 1:
            raise ValueError(f"shape {list(grid.shape)}, not [1, channels, height, width]")
        return grid[0].flatten(1).T.contiguous().numpy()


class RegionFiles(Features):
    """One `.npz` file per image, read without unpickling."""

    def _read(self, name: str) -> np.ndarray:
        # Opened here, because numpy does not close a damaged file.
        with (self.where / name).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return np.ascontiguousarray(arrays["x"].T)


class HDF5Features(Features):
    """One file per split, which each process opens separately.

    It has a dataset [n, dim] for each image, named by its id or its COCO file, or `features` in a group of that name.
    """

    _opened: tuple[int, Any] | None = None

    def _read(self, name: str) -> np.ndarray:
        import h5py

        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), h5py.File(self.where, "r"))
        node = self._opened[1][name]
        return np.asarray(node["features"] if isinstance(node, h5py.Group) else node)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


def open_features(folder: Path, split: str, dim: int, limit: int) -> Features:
    """The features of a split: `<split>.h5`, or the folder `<split>` with `.pth` or `.npz` files.

    Raises UserError, with instructions, if there are none.
    """
    packed = folder / f"{split}.h5"
    if packed.is_file():
        return HDF5Features(packed, *_members(packed), dim, limit)
    kinds: dict[str, type[Features]] = {".pth": GridFiles, ".npz": RegionFiles}
    names: dict[str, dict[int, str]] = {kind: {} for kind in kinds}
    state = []
    if (folder / split).is_dir():
        with os.scandir(folder / split) as entries:
            for entry in entries:
                if is_data(entry.name) and (match := _FILE.fullmatch(entry.name)):
                    names[match[2]][int(match[1])] = entry.name
                    state.append((entry.name, entry.stat().st_size))
    present = [kind for kind in kinds if names[kind]]
    if len(present) != 1:
        reason = "holds both .pth and .npz files" if present else "holds no features"
        raise UserError(
            f"{folder / split} {reason}; put there one <image id>.pth an image (grid features, [1, channels, height, "
            f"width]) or one .npz (region features, x [channels, regions]), or all of them into {packed}."
        )
    return kinds[present[0]](folder / split, names[present[0]], sorted(state), dim, limit)


def _members(path: Path) -> tuple[dict[int, str], object]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            names = {int(match[1]): name for name in file if (match := _NAME.fullmatch(name))}
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} is damaged ({first_line(error)}); extract the features again.") from None
    return names, (sorted(names.values()), path.stat().st_size)
