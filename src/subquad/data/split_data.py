"""The base classes of all data: three splits, batches in a seeded order, baseline scores."""

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from subquad.data import ragged
from subquad.data.batches import EvalBatches, Rows, TrainBatches
from subquad.data.loader_workers import Loader
from subquad.data.microbatches import MicrobatchDataset, MicrobatchLoader
from subquad.data.ragged import Cache, Ragged
from subquad.data.synthetic import written_once
from subquad.specs import Batch, DataSpec, SequenceBatch
from subquad.utils.cores import cores_of_process
from subquad.utils.errors import UserError
from subquad.utils.setting_types import CheckedSettings, Count, Natural, Seed


class Split(Protocol):
    """One split of a data set. Batches are bucketed by the lengths of its rows."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens, time steps or pixels of each row."""


class SplitData(CheckedSettings, abc.ABC):
    """Three splits of any kind of rows.

    A subclass implements `prepare_data` (reads or generates the data, once per machine), `load` (opens the prepared
    data), `batched` (rows to batches), `spec` and `baselines`.

    eval_batch_size: rows per process in an evaluation batch; by default as many as in a training microbatch, on a GPU
    twice as many. Without a backward pass these need less memory than the microbatch, and fewer launches.
    """

    section = "data"

    trainer: Any = None
    """Lightning's trainer, once attached; batches are divided among its processes."""

    eval_limit: int | None = None
    """Rows of an evaluation batch that the memory allows, if these are fewer than the settings say."""

    reading_of_further: ClassVar[tuple[str, ...]] = ()
    """Settings that may differ between the files of training and those of further rows."""

    given_facts: Mapping[str, Any] | None = None
    """The `portable_facts` of the training data, where their files are not here: then there is no split."""

    def __init__(
        self, *, batch_size: Count, seed: Seed, steps_per_epoch: Count | None = None,
        eval_batch_size: Count | None = None, num_workers: Natural | Literal["auto"] = 0,
    ) -> None:  # fmt: skip
        self.batch_size, self.seed, self.steps_per_epoch = batch_size, seed, steps_per_epoch
        self._eval_batch_size = eval_batch_size
        self.num_workers = num_workers

    def fetch(self) -> None:
        """Downloads missing files. Called by `scripts/prepare.py`, never by a training run."""

    def require(self) -> None:
        """Raises UserError, with instructions, if files are missing that `prepare_data` reads."""

    def prepare_data(self) -> None:
        """Creates the caches that `load` opens, once per machine; raises UserError if files are missing."""

    @abc.abstractmethod
    def load(self) -> tuple[Mapping[str, Split], str]:
        """The splits `train`, `val` and `test`, and a fingerprint of the data."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The description of the data that a model is built for; available after `prepare_data`."""

    @property
    def planned_spec(self) -> Any:
        """The `spec` as far as it is known before `prepare_data`; otherwise raises as `spec` does."""
        return self.spec

    @property
    def planned_rows(self) -> int | None:
        """The number of training rows, or more, as far as it is known before `prepare_data`."""
        return None

    @abc.abstractmethod
    def batched(self, split: str) -> Dataset[Any]:
        """A dataset that turns lists of indices of a split into batches.

        In training the list is a `Rows`, whose `place` and `position` seed random augmentation.
        """

    @abc.abstractmethod
    def baselines(self) -> dict[str, float]:
        """Baseline scores on the test split, by name: scores of trivial predictions that need no model."""

    def unlabelled(self, place: Path) -> tuple[Any, list[str]]:
        """Further rows of the user without labels, prepared as the test rows are: a split, and the name of each row.

        Raises UserError where these data are not the user's own, and for files that cannot be read.
        """
        raise UserError(
            f"{type(self).__name__} takes no further rows; predictions are those of runs on your own texts, tokens or "
            "images, or on series in .ts files."
        )

    def portable_facts(self) -> dict[str, Any]:
        """What `spec`, `class_names` and `unlabelled` need to know of the training data, JSON-serialisable.

        Empty where these data take no further rows. Raises as `load` does.
        """
        return {}

    @property
    def class_names(self) -> list[str]:
        """The classes of series and of the user's own data in the order of a model's outputs; otherwise empty."""
        return []

    def test_on(self, rows: Split) -> None:
        """Puts these rows in the place of the test split."""
        self._loaded = {**self.splits, "test": rows}, self.fingerprint

    @cached_property
    def _loaded(self) -> tuple[Mapping[str, Split], str]:
        return self.load() if self.given_facts is None else ({}, "")

    @property
    def splits(self) -> Mapping[str, Any]:
        """The three splits, opened on first use."""
        return self._loaded[0]

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the data; stored in every record."""
        return self._loaded[1]

    @property
    def bucketed_lengths(self) -> np.ndarray:
        """int64 [N]: the lengths by which training rows are grouped; a batch holds rows of similar length."""
        return self.splits["train"].lengths

    def train_dataloader(self) -> DataLoader[Batch]:
        lengths = self.bucketed_lengths
        if not len(lengths):
            raise UserError("No row is left to train on; raise limits.cases or lower data.val_fraction.")
        batches = TrainBatches(
            lengths, self.batch_size, self.seed, self.steps_per_epoch, rank=self._rank, world_size=self._world
        )
        return self._train_loader(batches)

    def place(self, epoch: int, batch: int) -> tuple[int, int]:
        """The index of the pass over the training rows that a batch of an epoch belongs to, and its index in the pass.

        An epoch of `steps_per_epoch` batches ends with a validation; a pass may be longer or shorter.
        """
        per_pass = -(-len(self.splits["train"]) // self.batch_size)
        return divmod(epoch * (self.steps_per_epoch or per_pass) + batch, per_pass)

    def whole_batch(self, rows: Rows) -> Batch:
        """A training batch, not divided among processes."""
        return self.batched("train").__getitems__(rows)  # type: ignore[attr-defined]

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._eval_loader("test")

    def _eval_loader(self, split: str) -> DataLoader[Batch]:
        lengths = self.splits[split].lengths
        batches = EvalBatches(lengths, self.eval_batch_size, self._rank, self._world)
        return self._loader(self.batched(split), batches)

    def _train_loader(self, batches: TrainBatches) -> Any:
        """A loader of batches, or of microbatches with several processes or gradient accumulation."""
        if self._accumulated * self._world == 1:
            return self._loader(self.batched("train"), batches)
        microbatches = MicrobatchDataset(self.batched("train"), self._accumulated)
        return MicrobatchLoader(self._loader(microbatches, batches), self._accumulated)

    def _loader(self, batched: Dataset[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
        # Without its own generator a loader draws from torch's, and dropout would depend on the number of workers.
        return Loader(
            batched, batch_sampler=batches, collate_fn=_whole_batch,
            num_workers=self.loading_processes, persistent_workers=self.loading_processes > 0,
            pin_memory=torch.cuda.is_available(), generator=torch.Generator(),
            at_sigterm=self._end_where_the_trainer_ends,
        )  # fmt: skip

    def _end_where_the_trainer_ends(self) -> None:
        if self.trainer is not None and self.trainer.received_sigterm:
            from pytorch_lightning.utilities.exceptions import SIGTERMException  # loaded, since there is a trainer

            raise SIGTERMException

    @property
    def loading_processes(self) -> int:
        """Processes that make batches; 0 if this process makes them.

        With `auto`, a run on a GPU has up to 8, no more than its share of the cores. A run on a CPU has none, because
        they would compete with the model for its cores.
        """
        if self.num_workers != "auto":
            return self.num_workers
        if not self._on_gpu:
            return 0
        return min(8, cores_of_process(self.trainer.num_devices))

    @property
    def eval_batch_size(self) -> int:
        """Rows per process in an evaluation batch."""
        microbatch = max(1, self.batch_size // (self._world * self._accumulated))
        rows = self._eval_batch_size or (2 * microbatch if self._on_gpu else microbatch)
        return min(rows, self.eval_limit or rows)

    @property
    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type != "cpu"

    @property
    def _accumulated(self) -> int:
        return self.trainer.accumulate_grad_batches if self.trainer else 1

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer else 0

    @property
    def _world(self) -> int:
        return self.trainer.world_size if self.trainer else 1


class CachedData(SplitData):
    """Data that are read or generated once, into a memory-mapped cache.

    A subclass sets `root`, the folder of all data, and `synthetic`, whether its files are replaced by synthetic ones;
    it implements `cache_folder` and `_make`.
    """

    task: str
    """The `task=` that prepares the data, for messages."""
    root: Path
    synthetic: bool = False
    synthetic_home: Path
    """The folder of the synthetic files, which `write_synthetic(folder)` writes."""
    write_synthetic: Any

    @property
    @abc.abstractmethod
    def cache_folder(self) -> Path:
        """The folder of the cache, named by the files and all settings that affect it; raises as `require` does."""

    @abc.abstractmethod
    def _make(self) -> tuple[Mapping[str, Ragged], Mapping[str, Any]]:
        """The content of the cache: sequences by name, and JSON-serialisable facts."""

    def _source(self, given: str | None, default: str, synthetic: str) -> Path:
        """Where the files are: the given place, or a default below `root`, or that of the synthetic files below it."""
        self.synthetic_home = self.root / "synthetic" / synthetic
        return self.synthetic_home if self.synthetic else Path(given) if given else self.root / default

    def require(self) -> None:
        _ = self.cache_folder

    def prepare_data(self) -> None:
        if self.synthetic:
            self._synthesise()
        ragged.prepare(self.cache_folder, self._make)

    def _synthesise(self) -> None:
        written_once(self.synthetic_home, self.write_synthetic)

    def load(self) -> tuple[Mapping[str, Any], str]:
        return self._cache.splits, self._cache.fingerprint

    @property
    def _scratch(self) -> Path | None:
        """The folder of temporary files: beside the cache, else the system's."""
        return self.cache_folder.parent if self.given_facts is None else None

    @cached_property
    def _cache(self) -> Cache:
        return ragged.read_prepared(self.cache_folder, self.task)


class SequenceData(SplitData):
    """Three splits of labelled sequences, each a `Ragged`."""

    @property
    @abc.abstractmethod
    def spec(self) -> DataSpec:
        """The description of the data that a model is built for; available after `prepare_data`."""

    @property
    def pad_to(self) -> int | None:
        """The length to which every batch is padded; None pads to the longest row of the batch."""
        return None

    @property
    def bucketed_lengths(self) -> np.ndarray:
        """All equal if every batch is padded to one length: bucketing would then save no time but bias the batches."""
        lengths = super().bucketed_lengths
        return lengths if self.pad_to is None else np.full_like(lengths, self.pad_to)

    def batched(self, split: str) -> Dataset[SequenceBatch]:
        """Batches of padded sequences."""
        return SequenceDataset(self.splits[split], self.pad_to)

    def baselines(self) -> dict[str, float]:
        """The RMSE of the mean target of the training split, or the accuracy of its most frequent class."""
        train, test = self.splits["train"].targets, self.splits["test"].targets
        if self.spec.classes is None:
            return {"train mean (RMSE)": float(np.sqrt(np.mean((test - train.mean()) ** 2)))}
        return majority_class(train, test)


class SequenceDataset(Dataset[SequenceBatch]):
    """Turns lists of indices into batches, padded to `pad_to` or else to the longest row."""

    def __init__(self, sequences: Ragged, pad_to: int | None = None) -> None:
        self.sequences = sequences
        self.pad_to = pad_to

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitems__(self, indices: list[int]) -> SequenceBatch:
        rows = [self.sequences[i] for i in indices]
        inputs, valid = padded(rows, self.pad_to)
        return SequenceBatch(inputs, valid, torch.from_numpy(self.sequences.targets[indices]))


def padded(rows: Sequence[np.ndarray], length: int | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pads rows [n] of tokens or [n, channels] of real steps with 0 on the right; returns them with the padding mask.

    length: of the padded rows, by default that of the longest. The mask is True at real positions, or None if there is
    no padding. Tokens become int64, steps float32.
    """
    longest = length or max(map(len, rows))
    real = np.issubdtype(rows[0].dtype, np.floating)
    filled = np.zeros((len(rows), longest, *rows[0].shape[1:]), np.float32 if real else np.int64)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    lengths = np.array([len(row) for row in rows])
    valid = torch.from_numpy(np.arange(longest) < lengths[:, None]) if (lengths < longest).any() else None
    return torch.from_numpy(filled), valid


def majority_class(train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """The accuracy on the labels `test` of always predicting the most frequent label of `train`."""
    return {"majority class": float(np.mean(test == np.bincount(train).argmax()))}


def _whole_batch(batch: Any) -> Batch:
    """Collates nothing: the dataset already returns a batch for a list of indices."""
    return batch
