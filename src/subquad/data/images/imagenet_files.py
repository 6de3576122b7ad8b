"""ImageNet-1k on disk: folders of JPEG files, or the parquet shards of Hugging Face.

Classes are numbered by the sorted names of their WordNet folders, n01440764 to n15075141; the shards number them alike.

Source: Russakovsky et al. 2015, https://arxiv.org/abs/1409.0575; https://huggingface.co/datasets/ILSVRC/imagenet-1k.
"""

import glob
import io
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.listing import files_below, is_data
from subquad.data.ragged import Ragged, lay_out
from subquad.utils.errors import UserError

ROWS = {"train": 1_281_167, "val": 50_000}
CLASSES = 1000
PREFIX = {"train": "train", "val": "validation"}
"""The prefix of the file names of a split's shards."""

_ENDINGS = (".jpeg", ".jpg", ".png")


@cache
def wnids() -> tuple[str, ...]:
    """The names of the 1,000 class folders, sorted."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def class_folders(home: Path, split: str, genuine: bool = True) -> list[Path]:
    """The sorted class folders of a split. Raises UserError for a missing folder and for one that is not a class.

    Synthetic data (`genuine` is False) may lack classes.
    """
    folder = home / split
    if not folder.is_dir():
        raise UserError(
            f"{folder} is missing; ImageNet-1k has to be asked for at https://image-net.org and unpacked to "
            f"{home / 'train'}/<class>/*.JPEG and {home / 'val'}/<class>/*.JPEG (or set data.files=parquet)."
        )
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and is_data(path.name))
    known = set(wnids())
    if wrong := [path.name for path in folders if path.name not in known]:
        raise UserError(f"{folder / wrong[0]} is no class of ImageNet-1k (such as n01440764); move it out of {folder}.")
    lost = known - {path.name for path in folders}
    if not folders or (lost and genuine):
        raise UserError(
            f"{folder} lacks {len(lost)} of 1,000 classes ({min(lost)}, ...); sort its images into one folder a class, "
            "named as n01440764."
        )
    return folders


def index(home: Path, split: str, genuine: bool = True) -> Ragged:
    """The paths of all images of a split below `home`, as bytes, with their classes.

    Raises UserError if the folders or the number of images differ from ImageNet's.
    """
    number = {name: label for label, name in enumerate(wnids())}
    paths, labels = [], []
    for folder in class_folders(home, split, genuine):
        names = sorted(name for name in os.listdir(folder) if is_data(name) and name.lower().endswith(_ENDINGS))
        paths += [np.frombuffer(os.fsencode(f"{split}/{folder.name}/{name}"), np.uint8) for name in names]
        labels += [number[folder.name]] * len(names)
    _check_rows(len(paths), split, home / split, genuine)
    return lay_out(paths, np.array(labels, np.int64))


class Files:
    """Images of separate files, decoded on access."""

    def __init__(self, home: Path, rows: Ragged) -> None:
        self.home, self.rows, self.labels = home, rows, rows.targets

    def __getitem__(self, i: int) -> Any:
        path = self.home / os.fsdecode(self.rows[i].tobytes())
        return decoded(path, path)


def shards(home: Path, split: str, genuine: bool = True) -> list[Path]:
    """The sorted parquet files of a split; only their metadata are read.

    Raises UserError for missing or damaged files, missing columns and a wrong number of rows.
    """
    import pyarrow
    from pyarrow import parquet

    paths = [path for path in files_below(home, ".parquet") if path.name.startswith(f"{PREFIX[split]}-")]
    if not paths:
        raise UserError(
            f"There is no {PREFIX[split]}-*.parquet in {home}; download the shards of ILSVRC/imagenet-1k from "
            "Hugging Face, which asks for agreement to its terms, and put them there (or set data.files=folder)."
        )
    rows = 0
    for path in paths:
        try:
            meta = parquet.read_metadata(path)
        except (OSError, pyarrow.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"{path} is damaged ({reason}); use the published one.") from None
        if not {"image", "label"} <= set(meta.schema.to_arrow_schema().names):
            raise UserError(f"{path} has no columns image and label, so it is no shard of ImageNet; move it away.")
        rows += meta.num_rows
    _check_rows(rows, split, home, genuine)
    return paths


class Shards:
    """Images of parquet shards.

    Rows of a parquet file cannot be read one by one, so `datasets` first copies the encoded images to memory-mapped
    files in `cache`, which take as much space as the shards. Raises UserError if that fails.
    """

    def __init__(self, paths: list[Path], cache: Path) -> None:
        import datasets
        import pyarrow

        quiet = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            table = datasets.Dataset.from_parquet([glob.escape(str(path)) for path in paths], cache_dir=str(cache))
        except (OSError, pyarrow.ArrowException, datasets.exceptions.DatasetsError) as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise UserError(
                f"The shards in {paths[0].parent} could not be copied to {cache} ({reason}); free some space, or "
                "replace the damaged ones."
            ) from None
        finally:
            if not quiet:
                datasets.enable_progress_bars()
        if isinstance(table.features["image"], datasets.Image):
            table = table.cast_column("image", datasets.Image(decode=False))
        self.table, self.files, self.home = table, paths, paths[0].parent
        self.labels = table.data["label"].to_numpy().astype(np.int64)
        if len(self.labels) and (self.labels.min() < 0 or self.labels.max() >= CLASSES):
            raise UserError(
                f"The shards in {self.home} hold labels from {self.labels.min()} to {self.labels.max()} where 0 to 999 "
                "are expected; put only the shards of train and validation there (the test set has labels of -1)."
            )

    def __getitem__(self, i: int) -> Any:
        image = self.table[i]["image"]
        return decoded(io.BytesIO(image["bytes"]), f"{self.home}: {image['path'] or f'row {i}'}")


def decoded(source: Any, name: object, least: int | None = None) -> Any:
    """The image in RGB, transparent parts white; raises UserError with the name of a damaged one.

    least: turns a photograph as its camera says, and reads one that is much larger at a size of `least` or more pixels,
    which is faster.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(source) as file:
            image: Image.Image = file
            if least is not None:
                file.draft("RGB", (least, least))
                image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I"):  # 16 bits, of which `convert` would cut off all above the first 8
                levels = np.asarray(image)
                if 0 < levels.max() < 4096:
                    raise UserError(
                        f"{name} has values up to {levels.max()} of the 65535 of an image with 16 bits, which would be "
                        "nearly black; stretch its values, or save it with 8 bits."
                    )
                return Image.fromarray((levels // 257).clip(0, 255).astype(np.uint8)).convert("RGB")
            if image.mode == "F":
                raise ValueError("real numbers; 8 or 16 bits are expected")
            if image.has_transparency_data:
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            return image.convert("RGB")
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{name} is no readable image ({error}); replace it with a fresh copy.") from None


def write_synthetic(root: Path, classes: int = 8) -> None:
    """Writes small JPEG images of the first classes in both forms: folders train and val, and shards in `data`."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(wnids())}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    (root / "data").mkdir(parents=True, exist_ok=True)
    for split, each in (("train", 4), ("val", 2)):
        images, labels = [], []
        for label, name in enumerate(wnids()[:classes]):
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(each):
                height, width = rng.integers(40, 80, 2)
                pixels = rng.integers(0, 60, (height, width, 3)) + label * 195 // classes
                path = root / split / name / f"{name}_{number}.JPEG"
                Image.fromarray(pixels.astype(np.uint8)).save(path, "JPEG")
                images.append({"bytes": path.read_bytes(), "path": path.name})
                labels.append(label)
        table = pyarrow.table({"image": images, "label": labels}).replace_schema_metadata(about)
        parquet.write_table(table, root / "data" / f"{PREFIX[split]}-00000-of-00001.parquet")


def _check_rows(rows: int, split: str, place: Path, genuine: bool) -> None:
    if genuine and rows != ROWS[split]:
        raise UserError(
            f"{place} has {rows:,} images for {split} where ImageNet-1k has {ROWS[split]:,}; unpack or download it "
            "again."
        )
