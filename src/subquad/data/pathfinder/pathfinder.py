"""Pathfinder of the Long Range Arena: images of 32 x 32 to 256 x 256 (Path-X: 128).

The label is 1 if one contour joins the two discs, else 0. Images are generated here (`contours`), or read from the
archive of the release.

Source: Tay et al. 2021, https://arxiv.org/abs/2011.04006; drewlinsley/pathfinder.
"""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.images.pixels import PixelData, lay_flat
from subquad.data.parallel import in_processes, progress
from subquad.data.pathfinder.contours import SETTINGS, VERSION, draw
from subquad.data.pathfinder.pathfinder_release import metadata_files, read_release, write_synthetic
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Sizes

SPLITS = ("train", "val", "test")
_CHUNK = 250


class Pathfinder(CachedData, PixelData):
    """Generated (`source="generated"`) or released (`source="release"`) Pathfinder, cached under `root`/pathfinder.

    size: 32, 64, 128 or 256. sizes: rows of train, val and test; of a release the first rows of each split are read.
    release_dir: the folder curv_contour_length_14 (the "hard" set, used by the task), with imgs/ and metadata/.
    data_seed applies to generated images, split_seed to the split of the release (42 in S4 and Mega). workers: the
    number of processes that generate images (None: one per usable core); it does not affect the images. synthetic: 40
    synthetic images in the layout of the release. Raises UserError for impossible settings.
    """

    classes = 2

    def __init__(
        self, *, root: str, size: Count = 32, source: Literal["generated", "release"] = "generated",
        release_dir: str | None = None, sizes: Sizes = (160_000, 20_000, 20_000), data_seed: Seed = 0,
        split_seed: Seed = 42, workers: Count | None = None, synthetic: bool = False, **pixels: Any,
    ) -> None:  # fmt: skip
        super().__init__(**pixels)
        if size not in SETTINGS:
            raise UserError(f"Pathfinder has images of {', '.join(map(str, SETTINGS))} pixels; got data.size={size}.")
        if source == "release" and release_dir is None:
            raise UserError(
                "data.source=release needs data.release_dir, the folder curv_contour_length_14 of the lra_release."
            )
        self.root, self.size, self.synthetic, self.task = Path(root), size, synthetic, f"lra/pathfinder{size}"
        self.synthetic_home = self.root / "synthetic" / f"pathfinder{size}"
        if synthetic:
            source, release_dir = "release", str(self.synthetic_home)
            sizes = [min(rows, most) for rows, most in zip(sizes, (32, 4, 4), strict=True)]
        self.source, self.release_dir = source, Path(release_dir or "")
        self.sizes = dict(zip(SPLITS, sizes, strict=True))
        self.data_seed, self.split_seed, self.workers = data_seed, split_seed, workers or usable_cores()

    @property
    def side(self) -> int:
        return self.size

    @property
    def cache_folder(self) -> Path:
        rows = "-".join(map(str, self.sizes.values()))
        home = self.root / "pathfinder"
        if self.source == "generated":
            return home / f"generated-v{VERSION}-{self.size}-seed{self.data_seed}-{rows}"
        state = ragged.state_of(metadata_files(self.release_dir))
        return home / f"release-{state}-{self.size}-split{self.split_seed}-{rows}"

    def write_synthetic(self, root: Path) -> Path:
        """Writes 40 images in the layout of the release to `root`, and returns it for use as `release_dir`."""
        return write_synthetic(root, self.size)

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        if self.source == "release":
            arrays = read_release(self.release_dir, self.size, self.sizes, self.split_seed, self.workers)
        else:
            arrays = self._draw()
        splits = {name: lay_flat(images, labels) for name, (images, labels) in arrays.items()}
        return splits, {"source": self.source, "size": self.size, "seed": self.data_seed}

    def _draw(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        total = sum(self.sizes.values())
        images, labels = np.empty((total, self.size, self.size), np.uint8), np.empty(total, np.int64)
        starts = range(0, total, _CHUNK)
        draw_chunk = partial(draw_many, self.size, self.data_seed, total)
        with progress(f"Pathfinder: drawing {self.size} x {self.size} images", total) as show:
            for start, chunk in zip(starts, in_processes(draw_chunk, starts, self.workers), strict=True):
                end = start + len(chunk[1])
                images[start:end], labels[start:end] = chunk
                show(end)
        ends = np.cumsum(list(self.sizes.values()))
        cuts = {name: slice(end - self.sizes[name], end) for name, end in zip(SPLITS, ends, strict=True)}
        return {name: (images[cut], labels[cut]) for name, cut in cuts.items()}


def draw_many(size: int, seed: int, total: int, start: int) -> tuple[np.ndarray, list[int]]:
    """The images `start`, `start` + 1, ... of one chunk, and their labels."""
    drawn = [draw(SETTINGS[size], seed, number) for number in range(start, min(start + _CHUNK, total))]
    return np.stack([image for image, _ in drawn]), [label for _, label in drawn]
