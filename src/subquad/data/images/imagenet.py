"""ImageNet-1k: 1,281,167 photographs to train on and 50,000 to test on, in 1,000 classes.

Source: Russakovsky et al. 2015, https://arxiv.org/abs/1409.0575.
"""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from subquad.data import ragged
from subquad.data.images import imagenet_files
from subquad.data.images.imagenet_files import Files, Shards
from subquad.data.images.images import ImageData, Pictures
from subquad.data.ragged import Cache
from subquad.data.synthetic import written_once
from subquad.utils.errors import UserError


class ImageNet(ImageData):
    """The published training set, tested on the published validation set, as all papers do: test labels are secret.

    files: "folder" reads train/<class>/*.JPEG and val/<class>/*.JPEG below `folder` and caches a list of them;
    "parquet" reads Hugging Face's shards (train-*.parquet, validation-*.parquet) below it. folder: `root`/imagenet
    unless given. Images are decoded when they are asked for; a damaged one ends the run with its name.
    The licence allows research and teaching that is not commercial; everyone has to ask for the images.
    """

    classes = imagenet_files.CLASSES

    def __init__(
        self, *, root: str, files: Literal["folder", "parquet"] = "folder", folder: str | None = None,
        synthetic: bool = False, **images: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, synthetic=synthetic, **images)
        if files not in ("folder", "parquet"):
            raise UserError(f"data.files is {files}; ImageNet is read from folder or parquet.")
        self.files, self.home = files, Path(folder) if folder else self.root / "imagenet"
        if synthetic:
            self.home = self.root / "synthetic" / "imagenet"

    def require(self) -> None:
        """Raises UserError where the images are missing."""
        for split in imagenet_files.ROWS:
            if self.files == "folder":
                imagenet_files.class_folders(self.home, split)
            else:
                imagenet_files.shards(self.home, split)

    def prepare_data(self) -> None:
        """Lists or copies the images once; a second process meanwhile waits and finds it done."""
        if self.synthetic:
            written_once(self.home, imagenet_files.write_synthetic)
        if self.files == "folder":
            ragged.prepare(self.cache_folder, self._make)
            return
        self.arrow.mkdir(parents=True, exist_ok=True)
        with FileLock(self.arrow / ".lock"):
            self._copied()

    def opened(self) -> tuple[Pictures, Pictures, str]:
        if self.files == "folder":
            cache = self._cache
            return Files(self.home, cache.splits["train"]), Files(self.home, cache.splits["val"]), cache.fingerprint
        train, val = self._copied()
        labels = hashlib.sha256(train.labels.tobytes() + val.labels.tobytes()).hexdigest()
        return train, val, ragged.state_of(train.files + val.files) + labels[:8]

    @property
    def cache_folder(self) -> Path:
        """Where the list of files lies; the name tells apart folders that differ."""
        folders = [
            path for split in imagenet_files.ROWS
            for path in imagenet_files.class_folders(self.home, split, not self.synthetic)
        ]  # fmt: skip
        return self.root / "cache" / "imagenet" / f"folder-{ragged.state_of(folders)}"

    @property
    def arrow(self) -> Path:
        """Where `datasets` keeps the images of the shards."""
        return self.root / "cache" / "imagenet" / "arrow"

    @cached_property
    def _cache(self) -> Cache:
        return ragged.read_prepared(self.cache_folder, "imagenet")

    def _make(self) -> tuple[dict[str, ragged.Ragged], dict[str, Any]]:
        return {split: imagenet_files.index(self.home, split, not self.synthetic) for split in imagenet_files.ROWS}, {}

    def _copied(self) -> tuple[Shards, Shards]:
        found = [imagenet_files.shards(self.home, split, not self.synthetic) for split in imagenet_files.ROWS]
        train, val = (Shards(files, self.arrow) for files in found)
        return train, val
