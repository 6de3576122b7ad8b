"""Data of a run as a LightningDataModule."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from subquad.data.microbatches import Microbatch
from subquad.data.split_data import SplitData
from subquad.specs import Batch, ImageBatch
from subquad.training.runtime import Runtime


class TrainedOn(pl.LightningDataModule):
    """Wraps a `SplitData` for Lightning. The data do not import Lightning, so that checking for their files is fast."""

    def __init__(self, data: SplitData, runtime: Runtime | None = None, run: str = "") -> None:
        self.data, self.runtime, self.run = data, runtime or Runtime(), run
        super().__init__()

    @property
    def trainer(self) -> pl.Trainer | None:
        """The trainer that these data are attached to."""
        return self.data.trainer

    @trainer.setter
    def trainer(self, trainer: pl.Trainer | None) -> None:
        self.data.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The name of the run and the fingerprint of its data, which Lightning stores in every checkpoint."""
        return {"run": self.run, "fingerprint": self.data.fingerprint}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch on the device, in the form that the runtime settings give it.

        The copy does not wait for the device; Lightning's own would, because a batch is not a tensor.
        """
        on_device = batch.to(device, non_blocking=True)
        if isinstance(on_device, Microbatch):
            return dataclasses.replace(on_device, batch=self._formed(on_device.batch))
        return self._formed(on_device)

    def _formed(self, batch: Batch) -> Batch:
        if self.runtime.channels_last is True and isinstance(batch, ImageBatch):
            return dataclasses.replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))
        if isinstance(self.runtime.pad_lengths, int):
            return batch.padded(self.runtime.pad_lengths, self.data.spec)
        return batch

    def train_dataloader(self) -> DataLoader[Batch]:
        return self.data.train_dataloader()

    def val_dataloader(self) -> DataLoader[Batch]:
        return self.data.val_dataloader()

    def test_dataloader(self) -> DataLoader[Batch]:
        return self.data.test_dataloader()

    def predict_dataloader(self) -> Iterable[Batch]:
        return _Batches(self.data.test_dataloader())


@dataclasses.dataclass(frozen=True)
class _Batches:
    """The batches of a loader as they are: Lightning builds the loader that it predicts with anew, by rows."""

    loader: DataLoader[Batch]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
