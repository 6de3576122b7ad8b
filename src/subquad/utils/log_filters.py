"""Filters that silence uninformative log messages and warnings of Lightning."""

import logging
import warnings

_NOISE = {
    r"`isinstance\(treespec, LeafSpec\)`": FutureWarning,  # inside Lightning
    "Checkpoint directory .* exists and is not empty": UserWarning,  # in every resumed run
    r"`ModelCheckpoint\(monitor=.* could not find the monitored key": UserWarning,  # `train` is clearer
    r"You passed `Trainer\(accelerator='cpu', precision='16-mixed'\)`": UserWarning,  # `build_trainer` refuses it
    r"It is recommended to use `self\.log\(.*sync_dist=True": UserWarning,  # the tasks log values of all processes
    "The `srun` command is available on your system but is not used": UserWarning,  # a single process needs no srun
    "The '.*_dataloader' does not have many workers": UserWarning,  # the data are in memory, where workers are slower
}


def quieten() -> None:
    """Silences Lightning's messages about devices, and warnings that do not call for any action."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for message, category in _NOISE.items():
        warnings.filterwarnings("ignore", message, category)
