"""The Pathfinder folders of the Long Range Arena release, read with a check of every image, and synthetic data.

`imgs/<batch>/sample_<i>.png`: 8-bit grey. `metadata/<batch>.npy`: a text file, despite its name, with one line for each
image, whose first four fields are the sub-folder, the file name, the number in the batch and the label.

Source: google-research/long-range-arena, archive `lra_release`, folders `pathfinder{32,64,128,256}`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from subquad.data.parallel import in_order, progress
from subquad.data.pathfinder.contours import SETTINGS, draw
from subquad.utils.errors import UserError

SYNTHETIC_BATCHES, SYNTHETIC_BATCH_SIZE = 2, 20


def metadata_files(folder: Path) -> list[Path]:
    """The metadata files in the order of their batch numbers. Raises UserError if there are none."""
    files = [path for path in (folder / "metadata").glob("*.npy") if path.stem.isdigit()]
    if not files:
        raise UserError(
            f"{folder} has no metadata/<number>.npy; set data.release_dir to a folder curv_contour_length_14 of the "
            "lra_release archive (google-research/long-range-arena), or use data.source=generated: no download needed."
        )
    return sorted(files, key=lambda path: int(path.stem))


def read_release(
    folder: Path, size: int, sizes: Mapping[str, int], split_seed: int, workers: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images uint8 [n, size, size] and labels of each split.

    All rows are split 80 : 10 : 10 by a seeded permutation (torch's random_split, as in S4), and the first
    `sizes[split]` rows of each split are read. Raises UserError, with the name of the file, for a malformed line, a
    missing, damaged or wrongly sized image, and too few rows.
    """
    rows = [row for path in metadata_files(folder) for row in _rows(path, folder)]
    indices = _split(len(rows), split_seed)
    splits, done = {}, 0
    with progress("Pathfinder: reading the release", sum(sizes.values())) as show:
        for name, count in sizes.items():
            chosen = [rows[i] for i in indices[name][:count]]
            if len(chosen) < count:
                raise UserError(
                    f"{folder} has {len(chosen)} rows for {name} where {count} are wanted; unpack the archive "
                    "again or set data.sizes."
                )
            images = np.empty((count, size, size), np.uint8)
            for number, image in enumerate(in_order(lambda row: _image(row[0], size), chosen, workers)):
                images[number] = image
                show(done + number + 1)
            done += count
            splits[name] = images, np.array([label for _, label in chosen], np.int64)
    return splits


def write_synthetic(folder: Path, size: int) -> Path:
    """Writes two batches of 20 generated images in the layout of the release to `folder`, and returns it."""
    for batch in range(SYNTHETIC_BATCHES):
        (folder / "imgs" / str(batch)).mkdir(parents=True, exist_ok=True)
        lines = []
        for number in range(SYNTHETIC_BATCH_SIZE):
            image, label = draw(SETTINGS[size], 1, batch * SYNTHETIC_BATCH_SIZE + number)
            Image.fromarray(image).save(folder / "imgs" / str(batch) / f"sample_{number}.png")
            s = SETTINGS[size]
            numbers = (s.continuity, s.length, s.distractor_length, s.paddle, s.thickness, s.margins[0], 1)
            lines.append(" ".join(map(str, [f"imgs/{batch}", f"sample_{number}.png", number, label, *numbers])))
        (folder / "metadata").mkdir(exist_ok=True)
        (folder / "metadata" / f"{batch}.npy").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _rows(path: Path, folder: Path) -> list[tuple[Path, int]]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError:
        raise UserError(
            f"{path} is not text; the release holds one line for each image, the public generator's own files do not."
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        fields = line.split(" ")
        inside = len(fields) >= 4 and ".." not in Path(fields[0]).parts and not Path(fields[0]).is_absolute()
        if not inside or Path(fields[1]).name != fields[1] or fields[3] not in ("0", "1"):
            raise UserError(f"{path}, line {number}: not `folder file number label ...`; unpack the archive again.")
        rows.append((folder / fields[0] / fields[1], int(fields[3])))
    return rows


def _split(rows: int, seed: int) -> dict[str, list[int]]:
    import torch  # the published split uses torch's permutation

    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    val = test = rows // 10
    train = rows - val - test
    return {"train": order[:train], "val": order[train : train + val], "test": order[train + val :]}


def _image(path: Path, size: int) -> np.ndarray:
    try:
        with Image.open(path) as file:
            image = np.asarray(file.convert("L"))
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} cannot be read ({error}); unpack the archive again.") from None
    if image.shape != (size, size):
        raise UserError(f"{path} is {image.shape[1]} x {image.shape[0]} pixels where data.size={size} is wanted.")
    return image
