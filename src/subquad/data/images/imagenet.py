"""ImageNet-1k: 1,281,167 training and 50,000 validation photographs in 1,000 classes.

Source: Russakovsky et al. 2015, https://arxiv.org/abs/1409.0575.
"""

import hashlib
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from subquad.data import ragged
from subquad.data.images import imagenet_files
from subquad.data.images.imagenet_files import Files, Shards
from subquad.data.images.images import Pictures, PublishedImages
from subquad.data.split_data import CachedData


class ImageNet(PublishedImages, CachedData):
    """The published training set, and the published validation set as test set, because test labels are not public.

    files: "folder" reads train/<class>/*.JPEG and val/<class>/*.JPEG below `folder` and caches a list of them;
    "parquet" reads Hugging Face's shards (train-*.parquet, validation-*.parquet) below it. folder: by default
    `root`/imagenet. Images are decoded on access; a damaged one raises UserError with its name.
    The licence allows non-commercial research and teaching; access to the images must be requested.
    """

    task = "imagenet"
    classes = imagenet_files.CLASSES
    write_synthetic = staticmethod(imagenet_files.write_synthetic)

    def __init__(
        self, *, root: str, files: Literal["folder", "parquet"] = "folder", folder: str | None = None,
        synthetic: bool = False, **images: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, synthetic=synthetic, **images)
        self.files, self.home = files, self._source(folder, "imagenet", "imagenet")

    def require(self) -> None:
        for split in imagenet_files.ROWS:
            if self.files == "folder":
                imagenet_files.class_folders(self.home, split)
            else:
                imagenet_files.shards(self.home, split)

    def prepare_data(self) -> None:
        if self.files == "folder":
            super().prepare_data()
            return
        if self.synthetic:
            self._synthesise()
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
        """The folder of the cached list of files, named by the state of the class folders."""
        folders = [
            path for split in imagenet_files.ROWS
            for path in imagenet_files.class_folders(self.home, split, not self.synthetic)
        ]  # fmt: skip
        return self.root / "cache" / "imagenet" / f"folder-{ragged.state_of(folders)}"

    @property
    def arrow(self) -> Path:
        """The folder in which `datasets` keeps the images of the shards."""
        return self.root / "cache" / "imagenet" / "arrow"

    def _make(self) -> tuple[dict[str, ragged.Ragged], dict[str, Any]]:
        return {split: imagenet_files.index(self.home, split, not self.synthetic) for split in imagenet_files.ROWS}, {}

    def _copied(self) -> tuple[Shards, Shards]:
        splits = [imagenet_files.shards(self.home, split, not self.synthetic) for split in imagenet_files.ROWS]
        train, val = (Shards(paths, self.arrow) for paths in splits)
        return train, val
