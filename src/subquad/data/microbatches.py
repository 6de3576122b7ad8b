"""A batch cut up: over the processes that train together, and over the forward passes of one optimiser step."""

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
    """The rows that one process computes at once of the batch of an optimiser step.

    weight: what they count in the mean over that batch, 0 where they only stand in because no row was left (a process
    that computes nothing would keep the others waiting). share: the weight of all parts of this process in the step.
    whole: indices of the whole batch. first: whether this is the first part of the step.
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


def cut(batch: Batch, rows: Rows, parts: int) -> list[Microbatch]:
    """So many parts of the batch of these rows, of sizes that differ by one at most."""
    size, rest = divmod(len(batch), parts)
    ends = [size * number + min(number, rest) for number in range(parts + 1)]
    spans = [slice(start, end) for start, end in pairwise(ends)]
    pieces = [batch.rows(span if span.stop > span.start else slice(1)) for span in spans]
    counted = [rows.counts and span.stop > span.start for span in spans]
    weights = [piece.weight if counts else 0 for piece, counts in zip(pieces, counted, strict=True)]
    return [
        Microbatch(piece, weight, sum(weights), rows.whole, first=number == 0)
        for number, (piece, weight) in enumerate(zip(pieces, weights, strict=True))
    ]


class MicrobatchDataset(Dataset[list[Microbatch]]):
    """Batches of another dataset, each as a list of parts."""

    def __init__(self, batches: Any, parts: int) -> None:
        self.batches, self.parts = batches, parts

    def __len__(self) -> int:
        return len(self.batches)

    def __getitems__(self, indices: list[int]) -> list[Microbatch]:
        assert isinstance(indices, Rows)
        return cut(self.batches.__getitems__(indices), indices, self.parts)


class MicrobatchLoader:
    """Yields the microbatches of a `MicrobatchDataset` loader one by one; an optimiser step takes `parts` of them."""

    def __init__(self, loader: DataLoader[Sequence[Microbatch]], parts: int) -> None:
        self.loader, self.parts = loader, parts

    def __len__(self) -> int:
        return len(self.loader) * self.parts

    def __iter__(self) -> Iterator[Microbatch]:
        for pieces in self.loader:
            yield from pieces

    @property
    def batch_sampler(self) -> Any:
        """Where Lightning looks for `set_epoch`."""
        return self.loader.batch_sampler
