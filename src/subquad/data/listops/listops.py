"""ListOps of the Long Range Arena: expressions of 501 to 1999 tokens, classified by their value 0..9.

Generated here from the published distribution, or read from the files of the release, which cannot be generated again
because its generator had no seed. The first token alone allows 36.2 % accuracy; see `baselines`. On the 2,000 test rows
of the release a score has a standard error of 1.1 points, more than most published differences, so `configs/` generates
20,000.

Source: Tay et al., "Long Range Arena" (2021), section 3.1; google-research/long-range-arena.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.listops.grammar import CLOSE, MAX, VOCAB
from subquad.data.listops.listops_release import SIZES, SYNTHETIC_SIZES, read_release, release_files, write_synthetic
from subquad.data.listops.trees import VERSION, generate
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData, SequenceData
from subquad.specs import DataSpec
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Natural, Seed, Sizes

_PUBLISHED_SIZES = tuple(SIZES.values())
_PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)


class ListOps(CachedData, SequenceData):
    """Generated (`source="generated"`) or released (`source="release"`) ListOps, cached under `root`/listops.

    Lengths count tokens: one per digit, two per operator; min_length < length < max_length. `sizes` are the rows of
    train, val and test. Generated train, val and the first 2,000 test rows do not depend on the number of further test
    rows. Of the release the first rows are read, at most those of the published files, which must then be complete.
    `release_dir` holds `basic_{train,val,test}.tsv`. `min_length`, `max_depth` and `data_seed`, which is independent of
    the training seed, apply to generated data only; `workers` is the number of threads that generate it (None: one per
    usable core) and does not affect the data. `synthetic` reads synthetic files in the format of the release.
    `multiply` replaces each expression e of the test split by [MAX e e ... ] with that many copies, which keeps its
    value and makes it longer than the training data (1 to 4 in Leotescu et al. 2024, Table 5); see `multiplied`.
    `batching` are arguments of `SequenceData`. Raises UserError for impossible settings.
    """

    task = "lra/listops"
    write_synthetic = staticmethod(write_synthetic)

    def __init__(
        self, *, root: str, source: Literal["generated", "release"] = "generated", release_dir: str | None = None,
        sizes: Sizes = _PUBLISHED_SIZES, min_length: Natural = 500, max_length: Count = 2000,
        max_depth: Count = 10, data_seed: Seed = 0, multiply: Count = 1, workers: Count | None = None,
        synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if source == "release" and release_dir is None:
            raise UserError("data.source=release needs data.release_dir, the folder of basic_{train,val,test}.tsv.")
        if not min_length < max_length - 1:
            raise UserError(f"ListOps needs data.min_length < data.max_length - 1; got {min_length} and {max_length}.")
        self.root, self.synthetic = Path(root), synthetic
        self.synthetic_home = self.root / "synthetic" / "listops"
        if synthetic:
            source, release_dir = "release", str(self.synthetic_home)
            max_length = max(max_length, 200)  # the maximum of the synthetic files
        if source == "release":
            most = SYNTHETIC_SIZES if synthetic else SIZES
            sizes = [min(rows, limit) for rows, limit in zip(sizes, most.values(), strict=True)]
        self.source, self.release_dir = source, Path(release_dir or "")
        self.sizes = dict(zip(SIZES, sizes, strict=True))
        self.min_length, self.max_length, self.max_depth = min_length, max_length, max_depth
        self.data_seed, self.multiply, self.workers = data_seed, multiply, workers or usable_cores()

    @property
    def spec(self) -> DataSpec:
        longest = self.max_length - 1
        return DataSpec(max_len=_length(longest, self.multiply), vocab=VOCAB, classes=10)

    def load(self) -> tuple[dict[str, Ragged], str]:
        test = multiplied(self._cache.splits["test"], self.multiply)
        return self._cache.splits | {"test": test}, self._cache.fingerprint

    @property
    def facts(self) -> dict[str, Any]:
        """The settings of the data, and for each split the result of `describe`."""
        return self._cache.facts

    def baselines(self) -> dict[str, float]:
        return shortcuts(self.splits["train"], self.splits["test"])

    @property
    def cache_folder(self) -> Path:
        sizes = "-".join(map(str, self.sizes.values()))
        if self.source == "generated":
            limits = f"len{self.min_length}-{self.max_length}-depth{self.max_depth}"
            return self.root / "listops" / f"generated-v{VERSION}-seed{self.data_seed}-{limits}-{sizes}"
        state = ragged.state_of(release_files(self.release_dir).values())
        return self.root / "listops" / f"release-{state}-len{self.max_length}-{sizes}"

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        splits, facts = self._made()
        return splits, facts | {split: describe(rows, splits["train"]) for split, rows in splits.items()}

    def _made(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        if self.source == "release":
            return read_release(self.release_dir, self.sizes, self.max_length), {"source": self.source}
        limits = {"min_length": self.min_length, "max_length": self.max_length, "max_depth": self.max_depth}
        more = max(0, self.sizes["test"] - SIZES["test"])
        sequences, acceptance = generate(
            sum(self.sizes.values()) - more, more=more, seed=self.data_seed, workers=self.workers, **limits
        )
        ends = np.cumsum(list(self.sizes.values()))
        splits = {split: _cut(sequences, end - self.sizes[split], end) for split, end in zip(SIZES, ends, strict=True)}
        return splits, {"source": self.source, "data_seed": self.data_seed, "acceptance": acceptance, **limits}


def shortcuts(train: Ragged, test: Ragged) -> dict[str, float]:
    """The accuracy on `test` of the most frequent value of `train`, overall and for each root operator."""
    counts = np.zeros((VOCAB, 10), np.int64)
    np.add.at(counts, (_roots(train), train.targets), 1)
    return {
        "majority class": float(np.mean(test.targets == counts.sum(axis=0).argmax())),
        "root operator only": float(np.mean(test.targets == counts.argmax(axis=1)[_roots(test)])),
    }


def describe(rows: Ragged, train: Ragged) -> dict[str, Any]:
    """Statistics for comparison with published ones.

    Frequencies of the values 0..9, lengths in tokens, operators per expression, arguments per operator, and the
    `shortcuts` learned on `train`.
    """
    lengths, operators = rows.lengths, int(np.count_nonzero(rows.values == CLOSE))
    return {
        "labels": (np.bincount(rows.targets, minlength=10) / len(rows)).tolist(),
        "length mean": float(lengths.mean()),
        "length percentiles": dict(
            zip(map(str, _PERCENTILES), np.percentile(lengths, _PERCENTILES).tolist(), strict=True)
        ),
        "operators": operators / len(rows),
        # All nodes but the root are arguments, and an operator has two tokens.
        "arguments": (len(rows.values) - operators - len(rows)) / max(operators, 1),
        **shortcuts(train, rows),
    }


def multiplied(rows: Ragged, copies: int) -> Ragged:
    """Replaces each expression e by [MAX e e ... ], which has `copies` |e| + 2 tokens and the same value.

    With one copy the expressions are unchanged.

    Source: Leotescu et al. 2024, https://arxiv.org/abs/2404.05210, Table 5, "self-concatenating via the MAX operator".
    """
    if copies == 1:
        return rows
    opened, closed = (np.array([token], rows.values.dtype) for token in (MAX, CLOSE))
    longer = [np.concatenate([opened, *[rows[i]] * copies, closed]) for i in range(len(rows))]
    return ragged.lay_out(longer, rows.targets)


def _length(tokens: int, copies: int) -> int:
    return tokens if copies == 1 else copies * tokens + 2


def _roots(rows: Ragged) -> np.ndarray:
    return rows.values[rows.offsets[:-1]]


def _cut(rows: Ragged, start: int, stop: int) -> Ragged:
    offsets = rows.offsets[start : stop + 1]
    return Ragged(rows.values[offsets[0] : offsets[-1]], offsets - offsets[0], rows.targets[start:stop])
