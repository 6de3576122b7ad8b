"""Batch samplers: shuffled and bucketed by length for training, every row once for evaluation."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from subquad.utils.errors import UserError


class Rows(list[int]):
    """Row indices of one training batch, and its index `place` in the endless stream of batches.

    Random augmentation (crops, masked tokens) is seeded by `place` and `position`. It then does not depend on the
    number of workers or processes, and a resumed run draws the same numbers as an uninterrupted one.

    whole: the batch of the optimiser step, of which this process has every `world_size`-th row from number `rank`; None
    if this is the whole batch. counts: False if no row was left for this process, so that it has a copy of another row,
    which must not count.
    """

    def __init__(
        self, indices: list[int], place: int, rank: int = 0, world_size: int = 1, whole: "Rows | None" = None
    ) -> None:
        super().__init__(indices)
        self.place, self.rank, self.world_size = place, rank, world_size
        self.whole, self.counts = whole or self, True

    def position(self, number: int) -> int:
        """The position of row `number` in the whole batch."""
        return self.rank + number * self.world_size

    def share(self, rank: int, world_size: int) -> "Rows":
        """The rows of one of several processes, at least one; see `counts`."""
        if world_size == 1:
            return self
        mine = Rows(self[rank::world_size] or self[:1], self.place, rank, world_size, self)
        mine.counts = rank < len(self)
        return mine


class TrainBatches(Sampler[list[int]]):
    """Batches of one epoch as a pure function of (seed, epoch); a resumed run gets the same as an uninterrupted one.

    Passes over the data form an endless stream; an epoch is the next `steps` batches of that stream (one pass if None).
    Within a pass rows are shuffled, divided into pools of `pool` batches, and sorted by length within each pool, so
    that a batch holds rows of similar length. The last, smaller batch of a pass is kept.
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
        """This sampler; Lightning looks for `set_epoch` here."""
        return self

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps
        for number in range(first, first + self.steps):
            batch = self._pass(number // self.per_pass)[number % self.per_pass]
            yield Rows(batch, place=number).share(self.rank, self.world_size)

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
    """Every row once, sorted by length, in a fixed order; under DDP rank r takes every world_size-th row.

    All ranks have the same number of batches, because with sharded parameters every forward pass needs all ranks.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        if 0 < len(lengths) < world_size:
            raise UserError(
                f"{len(lengths)} rows to evaluate cannot be shared by {world_size} processes; lower trainer.devices."
            )
        order = np.argsort(lengths, kind="stable")[rank::world_size]
        ends = list(range(batch_size, len(order), batch_size))
        if world_size > 1 and len(lengths):
            most, least = -(-len(lengths) // world_size), len(lengths) // world_size
            count = min(-(-most // batch_size), least)
            ends = [len(order) * number // count for number in range(1, count)]
        self.batches = [part.tolist() for part in np.split(order, ends) if len(part)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)
