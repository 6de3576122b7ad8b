"""The ListOps files of the Long Range Arena release, read with a check of every row; synthetic files in their format.

`basic_train.tsv`, `basic_val.tsv`, `basic_test.tsv`: a header `Source<TAB>Target`, then rows of an expression in
release form (see `subquad.data.listops.grammar.to_release_text`), a tab and its value.

Source: google-research/long-range-arena, archive `lra_release`, folder `listops-1000`.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from subquad.data.listops.grammar import parse, to_release_text
from subquad.data.listops.trees import generate
from subquad.data.parallel import progress
from subquad.data.ragged import Ragged, lay_out
from subquad.utils.errors import UserError

SIZES = {"train": 96_000, "val": 2_000, "test": 2_000}
"""Rows of the published files."""

SYNTHETIC_SIZES = {"train": 64, "val": 16, "test": 16}

_HEADER = "Source\tTarget"


def release_files(folder: Path) -> dict[str, Path]:
    """The file of each split. Raises UserError if one is missing."""
    files = {split: folder / f"basic_{split}.tsv" for split in SIZES}
    for path in files.values():
        if not path.is_file():
            raise UserError(
                f"{path} is missing; set data.release_dir to the folder listops-1000 of the lra_release archive "
                "(google-research/long-range-arena), or use data.source=generated, which needs no download."
            )
    return files


def read_release(folder: Path, sizes: Mapping[str, int], max_length: int) -> dict[str, Ragged]:
    """The first `sizes[split]` rows of each split as uint8 token ids and int64 values.

    Raises UserError, with file and line, for another header, a truncated row, an unknown symbol, a misplaced bracket or
    parenthesis, a target that is not the value of its expression, and `max_length` or more tokens; and for fewer rows
    than `sizes`, or more if `sizes` is the number of published rows.
    """
    splits, before = {}, 0
    with progress("ListOps: reading the release", sum(sizes.values())) as show:
        for split, path in release_files(folder).items():
            rows, targets = [], []
            size = sizes[split]
            complete = size == SIZES[split]
            for ids, target in itertools.islice(_rows(path, max_length), size + complete):
                rows.append(ids)
                targets.append(target)
                show(before + len(rows))
            if len(rows) != size:
                count = "more" if len(rows) > size else f"only {len(rows)}"
                raise UserError(
                    f"{path} has {count} rows where {size} are wanted; use the published one or set data.sizes."
                )
            before += size
            splits[split] = lay_out(rows, np.array(targets, np.int64))
    return splits


def write_synthetic(folder: Path) -> Path:
    """Writes 64/16/16 rows of 21 to 199 tokens in the format of the release to `folder`, and returns it."""
    sequences, _ = generate(sum(SYNTHETIC_SIZES.values()), seed=0, min_length=20, max_length=200)
    folder.mkdir(parents=True, exist_ok=True)
    rows = zip((to_release_text(sequences[i]) for i in range(len(sequences))), sequences.targets, strict=True)
    for split, size in SYNTHETIC_SIZES.items():
        lines = [_HEADER, *(f"{text}\t{target}" for text, target in itertools.islice(rows, size))]
        (folder / f"basic_{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _rows(path: Path, max_length: int) -> Iterator[tuple[np.ndarray, int]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        if file.readline().rstrip("\n") != _HEADER:
            raise UserError(
                f"{path}, line 1: the header is not Source<TAB>Target; this is no file of the ListOps release."
            )
        for number, line in enumerate(file, 2):
            try:
                yield _row(line, max_length)
            except UserError as error:
                raise UserError(f"{path}, line {number}: {error}") from None


def _row(line: str, max_length: int) -> tuple[np.ndarray, int]:
    source, tab, target = line.rstrip("\n").partition("\t")
    if not tab or len(target) != 1 or target not in "0123456789":
        raise UserError(
            "The row is not an expression, a tab and a digit; the file may be cut off, use the published one."
        )
    ids, value = parse(source)
    if len(ids) >= max_length:
        raise UserError(f"The expression has {len(ids)} tokens; raise data.max_length, now {max_length}, above that.")
    if value != int(target):
        raise UserError(
            f"The expression evaluates to {value} but is labelled {target}; the file is damaged, use the published one."
        )
    return ids, value
