"""Data of a run as a LightningDataModule."""

from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from subquad.data.split_data import SplitData
from subquad.specs import Batch


class TrainedOn(pl.LightningDataModule):
    """Wraps a `SplitData` for Lightning. The data do not import Lightning, so that checking for their files is fast."""

    def __init__(self, data: SplitData) -> None:
        self.data = data
        super().__init__()

    @property
    def trainer(self) -> pl.Trainer | None:
        """The trainer that these data are attached to."""
        return self.data.trainer

    @trainer.setter
    def trainer(self, trainer: pl.Trainer | None) -> None:
        self.data.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The fingerprint of the data, which Lightning stores in every checkpoint."""
        return {"fingerprint": self.data.fingerprint}

    def train_dataloader(self) -> DataLoader[Batch]:
        return self.data.train_dataloader()

    def val_dataloader(self) -> DataLoader[Batch]:
        return self.data.val_dataloader()

    def test_dataloader(self) -> DataLoader[Batch]:
        return self.data.test_dataloader()
