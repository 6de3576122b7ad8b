"""Keeps Lightning from talking about itself; what a user can mend still comes through."""

import logging
import warnings

_NOISE = {
    r"`isinstance\(treespec, LeafSpec\)`": FutureWarning,  # inside Lightning
    "Checkpoint directory .* exists and is not empty": UserWarning,  # what going on with a run looks like
    r"`ModelCheckpoint\(monitor=.* could not find the monitored key": UserWarning,  # said better by `train`
    "The '.*_dataloader' does not have many workers": UserWarning,  # the data are in memory: workers are slower
}


def quieten() -> None:
    """Silences Lightning's notes on devices, and warnings that nobody can do anything about."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for message, category in _NOISE.items():
        warnings.filterwarnings("ignore", message, category)
