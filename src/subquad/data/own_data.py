"""Finds the task that reads a user's data, by looking at the files."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.data.images.own_folder import ENDINGS as IMAGES
from subquad.data.listing import files_below
from subquad.data.text.own_tables import ARRAY
from subquad.utils.display import counted
from subquad.utils.errors import UserError

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
SERIES = ("_train.ts", "_test.ts")
TAKES = (
    "it takes a folder of images with a folder for each class, a table of labelled texts "
    f"({', '.join(TABLES)}) or a folder of them, a folder with {ARRAY}, or <name>_TRAIN.ts beside <name>_TEST.ts"
)
"""What `task_of` knows, for messages and for --help."""


def task_of(place: Path) -> tuple[dict[str, str], str]:
    """The settings of train.py that read a file or folder (`task`, `data.folder`, ...), and what was seen there.

    Raises UserError, with what was seen, where no task reads it.
    """
    if not place.exists():
        raise UserError(f"data={place} does not exist; {TAKES}.")
    files = files_below(place) if place.is_dir() else [place]
    series, images, tables = (_ending(files, *endings) for endings in (SERIES, IMAGES, TABLES))
    if series:
        return _series(place, series)
    if any(path.name == ARRAY for path in files) and place.is_dir():
        return _of_splits("tokens", place), f"sequences of token ids ({ARRAY})"
    if place.is_dir() and len(images) > len(tables):
        return {"task": "images/custom", "data.folder": str(place)}, counted(len(images), "image")
    if tables:
        task = "tokens" if _has_lists(tables[0]) else "text"
        split = {"data.dataset": str(place)} if len(tables) > 1 else {"data.train": str(tables[0])}
        seen = f"{counted(len(tables), 'table')} of {'texts' if task == 'text' else 'token ids'}"
        return {"task": f"{task}/custom"} | split, seen
    endings = Counter(path.suffix.lower() or "no ending" for path in files)
    seen = ", ".join(f"{count} with {ending}" for ending, count in endings.most_common(3))
    raise UserError(f"data={place} has {counted(len(files), 'file')}{seen and f' ({seen})'}; {TAKES}.")


def _ending(files: Sequence[Path], *endings: str) -> list[Path]:
    return [path for path in files if path.name.lower().endswith(endings)]


def _of_splits(kind: str, place: Path) -> dict[str, str]:
    """The folder itself is the training split, or its folders train, val and test are the splits."""
    splits = {f"data.{name}": str(place / name) for name in ("train", "val", "test") if (place / name / ARRAY).exists()}
    return {"task": f"{kind}/custom"} | (splits or {"data.train": str(place)})


def _series(place: Path, files: Sequence[Path]) -> tuple[dict[str, str], str]:
    names = sorted({re.sub(r"_(train|test)$", "", path.stem, flags=re.IGNORECASE) for path in files})
    if len(names) > 1:
        raise UserError(
            f"data={place} has the series {', '.join(names)}; name one, as in data=.../{names[0]}_TRAIN.ts."
        )
    folder = files[0].parent
    if missing := [name for split in ("TRAIN", "TEST") if not (folder / (name := f"{names[0]}_{split}.ts")).exists()]:
        raise UserError(
            f"data={place} has {files[0].name}, but {folder} has no {' and no '.join(missing)}; split the cases into "
            f"{names[0]}_TRAIN.ts and {names[0]}_TEST.ts."
        )
    with (folder / f"{names[0]}_TRAIN.ts").open(encoding="utf-8-sig", errors="replace") as file:
        header = [line.split() for line in iter(lambda: file.readline().lower(), "") if line.startswith("@")]
    numbers = ["@targetlabel", "true"] in header
    task = {"task": f"{'tser' if numbers else 'uea'}/custom", "data.dataset": names[0], "data.folder": str(folder)}
    return task, f"series with {'numbers' if numbers else 'classes'}"


def _has_lists(table: Path) -> bool:
    """Whether the first row of a table has a list of whole numbers: tokens. A table that cannot be read has none."""
    if table.suffix.lower() == ".parquet":
        import pyarrow as arrow
        from pyarrow import parquet

        try:
            lists = [kind for kind in parquet.read_schema(table).types if hasattr(kind, "value_type")]
            return any(arrow.types.is_integer(kind.value_type) for kind in lists)
        except (arrow.ArrowInvalid, OSError):
            return False
    if not table.suffix.lower().startswith(".json"):
        return False
    with table.open(encoding="utf-8", errors="replace") as file:
        try:
            row = json.loads(file.readline())
        except ValueError:
            return False
    row = row[0] if isinstance(row, list) and row else row  # the rows of a .json file may be a list
    values = row.values() if isinstance(row, Mapping) else ()
    return any(isinstance(value, list) and value and {*map(type, value)} == {int} for value in values)
