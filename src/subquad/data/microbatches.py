"""Microbatches: the batch of an optimiser step divided among processes and among forward passes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from subquad.data.batches import Rows
from subquad.specs import Batch


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The rows of the batch of an optimiser step that one process computes in one forward pass.

    weight: their weight in the mean over that batch. It is 0 if no row was left for this microbatch, which then has a
    copy of another row, because all processes must take part in every forward pass. share: the summed weight of the
    microbatches of this process in the step. whole: indices of the whole batch. first: whether this is the first
    microbatch of the step.
    """

    batch: Batch
    weight: int
    share: int
    whole: Rows
    first: bool

    def __len__(self) -> int:
        return len(self.batch)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Microbatch":
        """A copy on another device; Lightning calls this."""
        return replace(self, batch=self.batch.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Microbatch":
        """A copy in page-locked memory; torch's DataLoader calls this."""
        return replace(self, batch=self.batch.pin_memory())


def cut(batch: Batch, rows: Rows, count: int) -> list[Microbatch]:
    """Divides a batch into `count` microbatches whose sizes differ by at most one.

    Args:
        batch: the batch of this process.
        rows: the indices of its rows.
        count: the number of microbatches.
    """
    size, rest = divmod(len(batch), count)
    ends = [size * number + min(number, rest) for number in range(count + 1)]
    spans = [slice(start, end) for start, end in pairwise(ends)]
    pieces = [batch.rows(span if span.stop > span.start else slice(1)) for span in spans]
    counted = [rows.counts and span.stop > span.start for span in spans]
    weights = [piece.weight if counts else 0 for piece, counts in zip(pieces, counted, strict=True)]
    return [
        Microbatch(piece, weight, sum(weights), rows.whole, first=number == 0)
        for number, (piece, weight) in enumerate(zip(pieces, weights, strict=True))
    ]


class MicrobatchDataset(Dataset[list[Microbatch]]):
    """The batches of another dataset, each as a list of `count` microbatches."""

    def __init__(self, batches: Any, count: int) -> None:
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return len(self.batches)

    def __getitems__(self, indices: list[int]) -> list[Microbatch]:
        assert isinstance(indices, Rows)
        return cut(self.batches.__getitems__(indices), indices, self.count)


class MicrobatchLoader:
    """Yields the microbatches of a `MicrobatchDataset` loader one by one; an optimiser step takes `count` of them."""

    def __init__(self, loader: DataLoader[Sequence[Microbatch]], count: int) -> None:
        self.loader, self.count = loader, count

    def __len__(self) -> int:
        return len(self.loader) * self.count

    def __iter__(self) -> Iterator[Microbatch]:
        for pieces in self.loader:
            yield from pieces

    @property
    def batch_sampler(self) -> Any:
        """The sampler of batches; Lightning looks for `set_epoch` here."""
        return self.loader.batch_sampler
