"""Classification (UEA archive) and regression (TSER archive) of time series, read from .ts files."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.ragged import Ragged
from subquad.data.sampling import proportional
from subquad.data.split_data import CachedData, SequenceData
from subquad.data.synthetic import written_once
from subquad.data.time_series.download import fetch
from subquad.data.time_series.sets import SETS, check_size
from subquad.data.time_series.ts_files import (
    Kind,
    Source,
    find,
    home,
    parse,
    read_unlabelled,
    task_of,
    write_synthetic,
)
from subquad.specs import DataSpec
from subquad.utils.display import counted
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Share

log = logging.getLogger(__name__)

Protocol = Literal["paper", "clean"]
Normalization = Literal["standardization", "minmax", "per_sample_std", "per_sample_minmax"]
MaxLenFrom = Literal["train", "all"]
Pad = Literal["max_len", "batch"]


class TimeSeries(CachedData, SequenceData):
    """One data set of the UEA or the TSER archive, or any other pair of .ts files.

    dataset, kind: the archive's name, such as "JapaneseVowels", and the kind of its targets.
    root, folder: <dataset>_TRAIN.ts and <dataset>_TEST.ts are read from `folder` if given, else from root/uea/<dataset>
        (classification) or root/tser/<dataset> (regression), else from the installed sktime. Without `folder` their
        sizes must be the archive's. They are parsed once into root/cache/time_series.
    protocol: "clean" holds out `val_fraction` of TRAIN for validation and uses TEST only at the end. The split is that
        of mvts (a stratified shuffle split; not stratified for regression; seed `split_seed`). If classes are too small
        for it - a class with one case, or fewer cases than classes on one side - the training side gets a proportional
        share with at least one case of every class where possible, and validation gets the rest.
        "paper" is the protocol of the published results: validation *is* TEST, and the best epoch is selected on it
        (the commands of mvts pass `--val_pattern TEST`; Flowformer's README says that the best accuracy is reported).
        These results are too good: AppliancesEnergy has RMSE 3.12 with selection on a held-out fifth of TRAIN, and 2.72
        with selection on TEST.
    normalization: names as in mvts. "standardization" (x - mean) / sample standard deviation and "minmax"
        (x - min) / (max - min), per channel over all steps of the training split only; "per_sample_..." the same
        within each case. A constant channel is only shifted. A channel without any value in a case is filled with its
        training mean, which "standardization" maps to 0.
    max_len_from: "all" takes the longest case of both files, as in Time-Series-Library: no case is clipped, and only a
        length is taken from TEST. "train" takes the longest of TRAIN and clips longer cases, as in mvts.
    subsample_factor: keeps every k-th step.
    max_cases: maximum number of cases of TRAIN (before the split) and of TEST, drawn with `split_seed` in proportion to
        the classes, at least one of every class where possible. Lengths and classes stay those of the full set.
    pad: "max_len" pads every batch to `spec.max_len` as in mvts, whose BatchNorm includes padding; "batch" pads to the
        longest row of the batch.
    synthetic: synthetic series of three channels in place of the archive's files.

    Targets are class numbers (int64, sorted labels of TRAIN) or raw values (float32). `fingerprint` identifies the
    parsed files; the settings above are part of a run's configuration and do not affect it.
    Raises UserError for files that are missing, damaged or of the wrong size, and for unknown values of settings.
    """

    write_synthetic = staticmethod(write_synthetic)

    def __init__(
        self, *, root: str, dataset: str, kind: Kind, protocol: Protocol = "clean", folder: str | None = None,
        val_fraction: Share = 0.2, split_seed: Seed = 1337, normalization: Normalization = "standardization",
        max_len_from: MaxLenFrom = "all", subsample_factor: Count = 1, max_cases: Count | None = None,
        pad: Pad = "max_len", synthetic: bool = False, **loader: Any,
    ) -> None:  # fmt: skip
        super().__init__(**loader)
        self.root, self.folder, self.synthetic = Path(root), Path(folder).expanduser() if folder else None, synthetic
        if synthetic:
            self.folder = self.root / "synthetic" / kind / dataset
        self.dataset, self.kind, self.protocol, self.task = dataset, kind, protocol, task_of(dataset, kind)
        self.val_fraction, self.split_seed = val_fraction, split_seed
        self.normalization, self.max_len_from = normalization, max_len_from
        self.subsample_factor, self.max_cases, self.pad = subsample_factor, max_cases, pad

    def fetch(self) -> None:
        try:
            _ = self._files
        except UserError:
            if self.folder is not None or self.dataset not in SETS:
                raise
            fetch(self.dataset, home(self.root, self.dataset, self.kind))

    def require(self) -> None:
        _ = self._files

    def _synthesise(self) -> None:
        assert self.folder is not None
        written_once(self.folder, partial(write_synthetic, dataset=self.dataset, kind=self.kind, train=24, test=24))

    def load(self) -> tuple[dict[str, Ragged], str]:
        raw = self._raw()
        normalise = _normaliser(_statistics(raw["train"], self.normalization), self.normalization)
        splits = {name: _each(rows, normalise) for name, rows in raw.items()}
        splits.setdefault("val", splits["test"])
        return splits, self._cache.fingerprint

    def unlabelled(self, place: Path) -> tuple[Ragged, list[str]]:
        cases = read_unlabelled(place)
        rows = ragged.lay_out(cases, np.zeros(len(cases), np.int64), np.float32)
        if (channels := rows.values.shape[1]) != self.spec.channels:
            raise UserError(f"{place} has {channels} channels and the model {self.spec.channels}; give it the same.")
        if long := int((-(-rows.lengths // self.subsample_factor) > self._max_len).sum()):
            steps = self._max_len * self.subsample_factor
            log.warning("Longer than the %s steps of the model, and cut: %s.", steps, counted(long, "case"))
        statistics = self.portable_facts()["statistics"]
        normalise = _normaliser([np.array(one) for one in statistics], self.normalization)
        return _each(rows, lambda case: normalise(self._cut(case))), [str(i + 1) for i in range(len(cases))]

    def portable_facts(self) -> dict[str, Any]:
        if self.given_facts is not None:
            return dict(self.given_facts)
        statistics = _statistics(self._raw()["train"], self.normalization)
        return {**self._facts, "statistics": [one.tolist() for one in statistics]}

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        """The classes, the number of channels and the steps of the longest case before any are left out."""
        if self.given_facts is not None:
            return self.given_facts
        splits = self._cache.splits
        names = ("train",) if self.max_len_from == "train" else ("train", "test")
        longest = max(int(splits[name].lengths.max()) for name in names)
        return {"classes": self._cache.facts["labels"], "channels": splits["train"].values.shape[1], "steps": longest}

    @property
    def class_names(self) -> list[str]:
        return list(self._facts["classes"])

    def _raw(self) -> dict[str, Ragged]:
        """The splits before they are normalised; with protocol=paper, val is test."""
        train, test = (self._some_cases(self._cache.splits[name]) for name in ("train", "test"))
        if self.protocol == "clean":
            fit, held_out = self._split(train.targets)
            raw = {"train": train.take(fit), "val": train.take(held_out), "test": test}
        else:
            raw = {"train": train, "test": test}
        return {name: _each(rows, self._cut) for name, rows in raw.items()}

    def _cut(self, case: np.ndarray) -> np.ndarray:
        return case[:: self.subsample_factor][: self._max_len]

    @property
    def spec(self) -> DataSpec:
        classes = len(self.class_names) or None
        return DataSpec(max_len=self._max_len, channels=self._facts["channels"], classes=classes)

    @property
    def planned_spec(self) -> DataSpec:
        """The description of an archive's data set; `spec` for the user's own files, which must be read first."""
        known = SETS.get(self.dataset)
        if known is None or self.folder is not None or self.max_len_from != "all":
            return self.spec
        steps = -(-known.steps // self.subsample_factor)
        return DataSpec(max_len=steps, channels=known.channels, classes=known.classes)

    @property
    def planned_rows(self) -> int | None:
        """The cases of TRAIN of an archive's data set, before any are held out; None for the user's own files."""
        known = SETS.get(self.dataset)
        if known is None or self.folder is not None or known.counts_from_memory:
            return None
        return min(known.train, self.max_cases or known.train)

    @property
    def pad_to(self) -> int | None:
        """The length in steps to which every batch is padded; None pads to the longest row of the batch."""
        return self._max_len if self.pad == "max_len" else None

    @cached_property
    def _files(self) -> Source:
        return find(self.root, self.dataset, self.kind, self.folder)

    @cached_property
    def cache_folder(self) -> Path:
        return self.root / "cache" / "time_series" / f"{self.dataset}-{self.kind}-{self._files.digest}"

    @cached_property
    def _cache(self) -> ragged.Cache:
        cache = ragged.read_prepared(self.cache_folder, self.task)
        self._check_size(cache.splits, cache.facts["labels"])
        return cache

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        splits, labels = parse(self._files, self.kind, strict=self.folder is not None)
        self._check_size(splits, labels)
        return splits, {"dataset": self.dataset, "kind": self.kind, "labels": labels}

    def _check_size(self, splits: dict[str, Ragged], labels: list[str]) -> None:
        if self.folder is None:
            check_size(self.dataset, splits, labels, self._files.train.parent)

    @property
    def _max_len(self) -> int:
        return -(-int(self._facts["steps"]) // self.subsample_factor)

    def _some_cases(self, rows: Ragged) -> Ragged:
        if self.max_cases is None or len(rows) <= self.max_cases:
            return rows
        return rows.take(proportional(self._strata(rows.targets), self.max_cases, self.split_seed))

    def _strata(self, targets: np.ndarray) -> np.ndarray:
        return targets if self.kind == "classification" else np.zeros(len(targets), np.int64)

    def _split(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit  # imported here because it is slow

        held_out = int(np.ceil(self.val_fraction * len(targets)))
        if not 0 < held_out < len(targets):
            raise UserError(
                f"val_fraction={self.val_fraction} of {len(targets)} training cases leaves one side empty; "
                "give a fraction between 0 and 1 and enough cases, or protocol=paper."
            )
        strata = self._strata(targets)
        sizes = np.unique(strata, return_counts=True)[1]
        if self.kind == "classification" and (sizes.min() < 2 or min(held_out, len(targets) - held_out) < len(sizes)):
            fit = proportional(strata, len(targets) - held_out, self.split_seed)
            return fit, np.setdiff1d(np.arange(len(targets)), fit)
        splitter = StratifiedShuffleSplit if self.kind == "classification" else ShuffleSplit
        fit, val = next(splitter(1, test_size=self.val_fraction, random_state=self.split_seed).split(strata, strata))
        return np.sort(fit), np.sort(val)


def _each(rows: Ragged, change: Callable[[np.ndarray], np.ndarray]) -> Ragged:
    return ragged.lay_out([change(rows[i]) for i in range(len(rows))], rows.targets)


def _statistics(train: Ragged, method: Normalization) -> list[np.ndarray]:
    """The mean of each channel over `train`, and what is subtracted and divided by; float64 [channels] each."""
    cases = [train[i] for i in range(len(train))]
    known = np.maximum(sum((~np.isnan(case)).sum(axis=0) for case in cases), 1)
    mean = sum(np.nansum(case, axis=0, dtype=np.float64) for case in cases) / known
    shift, scale = mean, np.ones_like(mean)
    if method == "standardization":
        scale = np.sqrt(sum(np.nansum((case - mean) ** 2, axis=0) for case in cases) / np.maximum(known - 1, 1))
    elif method == "minmax":
        shift = np.nan_to_num(np.fmin.reduce(train.values, axis=0).astype(np.float64))
        scale = np.nan_to_num(np.fmax.reduce(train.values, axis=0).astype(np.float64)) - shift
    return [mean, shift, scale]


def _normaliser(statistics: Sequence[np.ndarray], method: Normalization) -> Callable[[np.ndarray], np.ndarray]:
    """A function that normalises one case [steps, channels] with the `_statistics` of the training cases."""
    mean, shift, scale = statistics

    def normalise(case: np.ndarray) -> np.ndarray:
        filled = np.where(np.isnan(case), mean, case)
        if method == "per_sample_std":
            centre, spread = filled.mean(axis=0), filled.std(axis=0, ddof=min(1, len(filled) - 1))
        elif method == "per_sample_minmax":
            centre, spread = filled.min(axis=0), np.ptp(filled, axis=0)
        else:
            centre, spread = shift, scale
        constant = spread <= np.finfo(np.float32).eps * np.abs(centre)  # rounding errors of the stored values
        return ((filled - centre) / np.where(constant, 1.0, spread)).astype(np.float32)

    return normalise
