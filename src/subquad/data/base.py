"""What all sequence data share: three splits, length-bucketed batches in a seeded order, trivial baselines."""

import abc
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from subquad.data.ragged import Ragged
from subquad.errors import UserError
from subquad.specs import DataSpec, SequenceBatch


class SequenceDataset(Dataset[SequenceBatch]):
    """Turns lists of indices into padded batches; `pad_to` fixes the padded length, else the longest row sets it."""

    def __init__(self, sequences: Ragged, pad_to: int | None = None) -> None:
        self.sequences = sequences
        self.pad_to = pad_to

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitems__(self, indices: list[int]) -> SequenceBatch:
        rows = [self.sequences[i] for i in indices]
        lengths = np.array([len(row) for row in rows])
        longest = self.pad_to or int(lengths.max())
        real = np.issubdtype(self.sequences.values.dtype, np.floating)
        inputs = np.zeros((len(rows), longest, *self.sequences.values.shape[1:]), np.float32 if real else np.int64)
        for padded, row in zip(inputs, rows, strict=True):
            padded[: len(row)] = row
        valid = torch.from_numpy(np.arange(longest) < lengths[:, None]) if (lengths < longest).any() else None
        return SequenceBatch(torch.from_numpy(inputs), valid, torch.from_numpy(self.sequences.targets[indices]))


class TrainBatches(Sampler[list[int]]):
    """Batches of one epoch, a pure function of (seed, epoch): a resumed run sees exactly what an undisturbed one sees.

    Passes over the data follow one another without end; an epoch is the next `steps` batches of that stream (or one
    pass when None). Within a pass rows are shuffled, cut into pools of `pool` batches, and sorted by length inside each
    pool so that a batch holds rows of similar length. The last, smaller batch of a pass is kept.
    Under DDP each rank takes its share of every batch.
    """

    def __init__(
        self, lengths: np.ndarray, batch_size: int, seed: int, steps: int | None = None, pool: int = 50,
        rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        if batch_size % world_size:
            raise UserError(
                f"A batch of {batch_size} cannot be shared by {world_size} processes; choose a multiple of it."
            )
        self.lengths, self.batch_size, self.seed, self.pool = lengths, batch_size, seed, pool
        self.rank, self.world_size = rank, world_size
        self.per_pass = -(-len(lengths) // batch_size)
        self.steps = steps or self.per_pass
        self.epoch = 0

    def __len__(self) -> int:
        return self.steps

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this at the start of each epoch."""
        self.epoch = epoch

    @property
    def sampler(self) -> "TrainBatches":
        """Where Lightning looks for `set_epoch`."""
        return self

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps
        for number in range(first, first + self.steps):
            batch = self._pass(number // self.per_pass)[number % self.per_pass]
            yield batch[self.rank :: self.world_size]

    def _pass(self, number: int) -> list[list[int]]:
        if getattr(self, "_cached", (None,))[0] != number:
            self._cached = (number, self._shuffled(np.random.default_rng([self.seed, number])))
        return self._cached[1]

    def _shuffled(self, rng: np.random.Generator) -> list[list[int]]:
        order = rng.permutation(len(self.lengths))
        batches: list[list[int]] = []
        span = self.pool * self.batch_size
        for start in range(0, len(order), span):
            rows = order[start : start + span]
            rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            cut = [rows[i : i + self.batch_size].tolist() for i in range(0, len(rows), self.batch_size)]
            batches += [cut[i] for i in rng.permutation(len(cut))]
        return batches


class EvalBatches(Sampler[list[int]]):
    """Every row once, sorted by length, in a fixed order; under DDP rank r takes every world_size-th row."""

    def __init__(self, lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        order = np.argsort(lengths, kind="stable")[rank::world_size]
        self.batches = [order[i : i + batch_size].tolist() for i in range(0, len(order), batch_size)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class SequenceData(pl.LightningDataModule, abc.ABC):
    """Three splits of labelled sequences.

    A family writes `prepare_data` (fetch or make, once per machine), `load` (open what `prepare_data` left) and, where
    it knows a shortcut worth beating, `baselines`.
    """

    def __init__(
        self, *, batch_size: int, seed: int, steps_per_epoch: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(batch_size, eval_batch_size or 1, steps_per_epoch or 1) < 1 or num_workers < 0:
            raise UserError(
                "data.batch_size, data.eval_batch_size and data.steps_per_epoch must be at least 1, "
                "data.num_workers at least 0."
            )
        self.batch_size, self.seed, self.steps_per_epoch = batch_size, seed, steps_per_epoch
        self.eval_batch_size = eval_batch_size or batch_size
        self.num_workers = num_workers

    def fetch(self) -> None:
        """Brings missing files over the network; `scripts/prepare.py` calls it, a training run never does."""

    @abc.abstractmethod
    def load(self) -> tuple[dict[str, Ragged], str]:
        """Returns the splits `train`, `val`, `test` and a fingerprint of the data they came from."""

    @property
    @abc.abstractmethod
    def spec(self) -> DataSpec:
        """What a model must know; available after `prepare_data`."""

    @property
    def pad_to(self) -> int | None:
        """Every batch is padded to this length; None pads to the longest row of the batch."""
        return None

    @cached_property
    def _loaded(self) -> tuple[dict[str, Ragged], str]:
        return self.load()

    @property
    def splits(self) -> dict[str, Ragged]:
        """The three splits, opened on first use."""
        return self._loaded[0]

    @property
    def fingerprint(self) -> str:
        """Identifies the bytes the splits came from; stored in every record."""
        return self._loaded[1]

    def baselines(self) -> dict[str, float]:
        """Scores on the test split that need no model: what a reader must see beside a result."""
        train, test = self.splits["train"].targets, self.splits["test"].targets
        if self.spec.classes is None:
            return {"train mean (RMSE)": float(np.sqrt(np.mean((test - train.mean()) ** 2)))}
        return {"majority class": float(np.mean(test == np.bincount(train).argmax()))}

    def train_dataloader(self) -> DataLoader[SequenceBatch]:
        rows = self.splits["train"]
        batches = TrainBatches(
            rows.lengths, self.batch_size, self.seed, self.steps_per_epoch, rank=self._rank, world_size=self._world
        )
        return self._loader(rows, batches)

    def val_dataloader(self) -> DataLoader[SequenceBatch]:
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader[SequenceBatch]:
        return self._eval_loader("test")

    def _eval_loader(self, split: str) -> DataLoader[SequenceBatch]:
        rows = self.splits[split]
        return self._loader(rows, EvalBatches(rows.lengths, self.eval_batch_size, self._rank, self._world))

    def batched(self, rows: Ragged) -> Dataset[SequenceBatch]:
        """What turns lists of indices of a split into batches."""
        return SequenceDataset(rows, self.pad_to)

    def _loader(self, rows: Ragged, batches: Sampler[list[int]]) -> DataLoader[SequenceBatch]:
        # A generator of its own: without one a loader draws from torch's, and dropout depends on the number of workers.
        return DataLoader(
            self.batched(rows), batch_sampler=batches, collate_fn=_whole_batch,
            num_workers=self.num_workers, persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(), generator=torch.Generator(),
        )  # fmt: skip

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer else 0

    @property
    def _world(self) -> int:
        return self.trainer.world_size if self.trainer else 1


def _whole_batch(batch: Any) -> SequenceBatch:
    """The dataset returns a batch for a list of indices, so there is nothing left to collate."""
    return batch
