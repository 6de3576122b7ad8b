"""Finds and reads a user's images: a folder for each class, in train/, val/ and test/ or all together."""

import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from subquad.data.images.imagenet_files import decoded
from subquad.data.listing import files_below, is_data
from subquad.data.own_rows import SPLITS, digest
from subquad.data.parallel import in_order, progress
from subquad.data.ragged import Ragged
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

Fit = Literal["crop", "pad", "stretch"]

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
"""Names of files that are read as images."""
_READ = ", ".join(ENDINGS)
_LAYOUT = "<folder>/<class>/*.jpg, or in <folder>/train/<class> and <folder>/test/<class>"


class Listed(NamedTuple):
    """An image of a folder: its split, its class and its file."""

    split: str
    label: str
    path: Path


def listed(home: Path) -> list[Listed]:
    """All images, sorted by path. Folders train, val and test are splits if train holds folders.

    Raises UserError for an image outside of a class, a class without images, and fewer than two classes.
    """
    if not home.is_dir():
        raise UserError(f"data.folder={home} is no folder; images are read from {_LAYOUT}.")
    splits = [(SPLITS[path.name.lower()], path) for path in _folders(home) if path.name.lower() in SPLITS]
    if not any(split == "train" and _folders(path) for split, path in splits):
        splits = [("train", home)]
    elif others := [path.name for path in _folders(home) if path.name.lower() not in SPLITS]:
        log.warning("Of %s only train, val and test are read, not %s.", home, ", ".join(others))
    images = [image for split, folder in splits for image in _of_split(split, folder)]
    if len(names := {image.label for image in images}) == 1:
        [inner] = [folder for _, folder in splits if _folders(folder)][:1]
        deeper = _folders(inner)[0]
        hint = f"; did you mean data.folder={deeper}?" if _folders(deeper) else f"; images are read from {_LAYOUT}."
        raise UserError(f"{inner} has one class, {min(names)}{hint}")
    return images


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and is_data(path.name))


def _of_split(split: str, place: Path) -> list[Listed]:
    if stray := sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS and is_data(path.name)):
        raise UserError(f"{stray[0]} is in no class ({len(stray)} such images); images are read from {_LAYOUT}.")
    if not (folders := _folders(place)):
        raise UserError(f"{place} has no folders; images are read from {_LAYOUT}.")
    images = []
    for folder in folders:
        files = files_below(folder)
        paths = [path for path in files if path.suffix.lower() in ENDINGS]
        if not paths:
            found = f"only files such as {files[0].name}" if files else "nothing"
            raise UserError(
                f"{folder} has {found} where images of the class {folder.name} are expected ({_READ}); "
                "add some, or delete the folder."
            )
        if broken := [path for path in paths if not path.exists()]:
            raise UserError(f"{broken[0]} is a link to a file that does not exist; mend or delete it.")
        if others := len(files) - len(paths):
            log.warning("%s files in %s are not read, because they end in none of %s.", others, folder, _READ)
        images += [Listed(split, folder.name, path) for path in paths]
    return images


def images_below(folder: Path) -> list[Path]:
    """All images of a folder and its subfolders; raises UserError if there are none."""
    paths = [path for path in files_below(folder) if path.suffix.lower() in ENDINGS]
    if not paths:
        raise UserError(f"{folder} has no images ({_READ}); name another folder.")
    return paths


def squared(path: Path, side: int, fit: Fit) -> np.ndarray:
    """The image as uint8 [side, side, 3]; raises UserError if it cannot be read."""
    from PIL import Image, ImageOps

    image, size, method = decoded(path, path, least=side), (side, side), Image.Resampling.BICUBIC
    if fit == "stretch":
        return np.asarray(image.resize(size, method))
    return np.asarray((ImageOps.fit if fit == "crop" else ImageOps.pad)(image, size, method))


def read(paths: list[Path], side: int, fit: Fit, scratch: Path | None) -> tuple[Ragged, list[str]]:
    """The pixels of all images, [N · 3 · side²] in a file of the folder `scratch`, and a digest of each.

    Raises UserError with the names of the images that cannot be read.
    """
    digests, errors = [], []
    with (
        tempfile.TemporaryFile(dir=scratch) as file,
        progress(f"Reading {len(paths):,} images", len(paths)) as show,
    ):
        for number, pixels in enumerate(in_order(partial(_tried, side=side, fit=fit), paths, usable_cores()), 1):
            show(number)
            if isinstance(pixels, UserError):
                errors.append(str(pixels))
                continue
            file.write(content := pixels.tobytes())
            digests.append(digest(content))
        if errors:
            count = f"{len(errors)} of {len(paths)} images cannot be read: " if len(errors) > 1 else ""
            raise UserError(count + " ".join(errors[:3]))
        file.flush()
        values = np.memmap(file, np.uint8, "r")
    return Ragged(values, np.arange(len(paths) + 1) * 3 * side**2, np.zeros(len(paths), np.int64)), digests


def _tried(path: Path, side: int, fit: Fit) -> Any:
    try:
        return squared(path, side, fit)
    except UserError as error:
        return error


def write_synthetic(folder: Path) -> None:
    """Writes 12 small images of each of three classes, which differ in brightness."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, name in enumerate(("dark", "grey", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 60, (40, 50, 3)) + label * 90
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
