"""Data of a run as Lightning's trainer takes them."""

from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from subquad.data.split_data import SplitData
from subquad.specs import Batch


class TrainedOn(pl.LightningDataModule):
    """Hands a `SplitData` to Lightning, which the data themselves do not import: a look for their files is quick."""

    def __init__(self, data: SplitData) -> None:
        self.data = data
        super().__init__()

    @property
    def trainer(self) -> pl.Trainer | None:
        """The one that these data are attached to."""
        return self.data.trainer

    @trainer.setter
    def trainer(self, trainer: pl.Trainer | None) -> None:
        self.data.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """What Lightning keeps of the data in every checkpoint."""
        return {"fingerprint": self.data.fingerprint}

    def train_dataloader(self) -> DataLoader[Batch]:
        return self.data.train_dataloader()

    def val_dataloader(self) -> DataLoader[Batch]:
        return self.data.val_dataloader()

    def test_dataloader(self) -> DataLoader[Batch]:
        return self.data.test_dataloader()
