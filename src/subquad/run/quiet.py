"""Keeps Lightning from talking about itself; what a user can mend still comes through."""

import logging
import warnings

_NOISE = {
    r"`isinstance\(treespec, LeafSpec\)`": FutureWarning,  # inside Lightning
    "Checkpoint directory .* exists and is not empty": UserWarning,  # what going on with a run looks like
    r"`ModelCheckpoint\(monitor=.* could not find the monitored key": UserWarning,  # said better by `train`
    r"You passed `Trainer\(accelerator='cpu', precision='16-mixed'\)`": UserWarning,  # refused by `made_trainer`
    r"It is recommended to use `self\.log\(.*sync_dist=True": UserWarning,  # logged values are those of all processes
    "The `srun` command is available on your system but is not used": UserWarning,  # one process needs no srun
    "The '.*_dataloader' does not have many workers": UserWarning,  # the data are in memory: workers are slower
}


def quieten() -> None:
    """Silences Lightning's notes on devices, and warnings that nobody can do anything about."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for message, category in _NOISE.items():
        warnings.filterwarnings("ignore", message, category)
