"""What the framework costs: epochs of a run through it against the same model in a bare PyTorch loop, in one process.

    python scripts/bench_overhead.py                               # softmax on JapaneseVowels
    python scripts/bench_overhead.py attention=dba task=uea/basic_motions

Both sides train the same network on the same batches with the same optimiser and then go through the validation split;
the framework also clips, logs, checks for NaN, writes metrics.csv and checkpoints.
"""

import statistics
import sys
import tempfile
import time
from typing import Any

from rich.console import Console

from subquad.errors import UserError
from subquad.run.doors import answer_help, compose_run, prepare_process

answer_help(__doc__)
prepare_process()

import pytorch_lightning as pl  # noqa: E402
import torch  # noqa: E402
from hydra.utils import instantiate  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402

from subquad.cores import usable_cores  # noqa: E402
from subquad.tasks.trained_on import TrainedOn  # noqa: E402

EPOCHS, ROUNDS = 6, 4


class _EpochTimes(pl.Callback):
    """Seconds between the starts of epochs: training, validation, logs and checkpoints."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.starts.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.starts, self.starts[1:], strict=False)]


def main() -> None:
    """Alternates the two sides and prints the ratio of their median epochs."""
    torch.set_num_threads(usable_cores())
    bare: list[float] = []
    framework: list[float] = []
    for _ in range(ROUNDS):
        bare += _bare(_config())[1:]
        framework += _framework(_config())[1:]
    a, b = statistics.median(framework), statistics.median(bare)
    Console(soft_wrap=True).print(
        f"epoch: framework {a:.3f} s, bare loop {b:.3f} s, ratio {a / b:.3f} "
        f"({len(bare)} epochs each, {torch.get_num_threads()} threads)"
    )


def _config() -> DictConfig:
    words = ["attention=softmax", "task=uea/japanese_vowels", *sys.argv[1:], f"paths.outputs={tempfile.mkdtemp()}"]
    settings: Any = OmegaConf.to_container(compose_run([*words, f"limits.epochs={EPOCHS}"]), resolve=True)
    return OmegaConf.create(settings)


def _framework(config: DictConfig) -> list[float]:
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    module = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    trainer = instantiate(config.trainer, _convert_="all")
    clock = _EpochTimes()
    trainer.callbacks.insert(0, clock)
    trainer.fit(module, TrainedOn(data))
    return clock.seconds


def _bare(config: DictConfig) -> list[float]:
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    task = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    network, train, val = task.network, data.train_dataloader(), data.val_dataloader()
    optimizer = task.make_optimizer(network.parameters())
    seconds = []
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        train.batch_sampler.set_epoch(epoch)
        network.train()
        for batch in train:
            optimizer.zero_grad()
            task.loss(network(*batch.network_inputs), batch.target).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.trainer.gradient_clip_val)
            optimizer.step()
        network.eval()
        with torch.no_grad():
            right = sum((network(*batch.network_inputs).argmax(-1) == batch.target).sum().item() for batch in val)
        assert right >= 0
        seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
