"""The best checkpoint of a finished run, evaluated again."""

import subquad.torchvision_shim  # noqa: F401  before pytorch_lightning

# isort: split
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from subquad import records
from subquad.cores import usable_cores
from subquad.errors import UserError
from subquad.run.quiet import quieten
from subquad.tasks.supervised import Supervised


def evaluate(run: Path, split: str) -> tuple[str, float, float | None]:
    """Returns the metric's name, its value now and the value in the record (None where the record has none).

    Raises UserError when the folder holds no finished run, or its best checkpoint is gone.
    """
    record = records.read(run)
    checkpoint = run / "checkpoints" / "best.ckpt"
    if record is None or not checkpoint.exists():
        missing = run / records.RESULT if record is None else checkpoint
        raise UserError(
            f"There is no finished run to evaluate: {missing} does not exist; give run= a folder that holds both."
        )
    if split not in ("val", "test"):
        raise UserError(f'There is no split "{split}" to evaluate; choose test or val.')
    quieten()
    torch.set_num_threads(usable_cores())
    config = OmegaConf.create(record.config)
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    if data.fingerprint != record.data_fingerprint:
        raise UserError(
            f"The data differ from those the run was trained on (fingerprint {data.fingerprint}, recorded "
            f"{record.data_fingerprint}); restore the old files, or train again."
        )
    module: Supervised = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    trainer = pl.Trainer(
        accelerator=config.trainer.accelerator, devices=1, precision=config.trainer.precision, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    run_split = trainer.test if split == "test" else trainer.validate
    [metrics] = run_split(module, datamodule=data, ckpt_path=checkpoint, verbose=False, weights_only=True)
    name = f"{split}/{module.metric_name}"
    return name, metrics[name], record.metrics.get(name)
