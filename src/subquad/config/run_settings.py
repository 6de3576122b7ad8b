"""Types, ranges and meanings of the settings of a run that no class of this package takes.

They are checked before the folder of the run is created and before torch is imported. The settings of attentions,
backbones, data and the like are stated by the constructors of their classes (`subquad.config.settings`).
"""

import difflib
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from subquad.utils.errors import UserError
from subquad.utils.setting_types import BelowOne, Count, Fraction, Natural, NonNegative, Seed, SettingType, check, shown


class Top:
    """Settings outside of groups."""

    seed: Seed
    """Seed of weights, order of batches, dropout and augmentation."""
    ckpt_path: str | None
    """Checkpoint whose weights the run starts from."""
    evaluate: Sequence[Mapping[str, Any]]
    """Changed settings of the data for further evaluations of the best weights."""
    compile_model: bool | str
    """torch.compile: true, or the name of a mode of it."""
    checkpoint_activations: bool
    """Recompute each layer in the backward pass: less memory, a third more time."""
    tags: Sequence[str | int | float] | str | int | float | None
    """Labels, stored in the record and sent to the loggers."""
    protocol: str
    """How the best epoch is selected."""
    scale: str
    """Size and length of training."""


class Sweep:
    """Settings of a sweep (-m)."""

    workers: Count | Literal["auto"]
    """Runs of a sweep at the same time: auto is one per core or GPU; a number counts runs, or runs per GPU."""


class Limits:
    """How long a run trains, and on how much data."""

    cases: Count | None
    """Rows of data that are used at most; null: all."""
    epochs: Count | Literal[-1]
    """Passes over the training data; -1: the recipe counts steps."""
    steps: Count | Literal[-1]
    """Steps of the optimiser; -1: the recipe counts epochs."""


class Optimizer:
    """Arguments of torch's optimisers."""

    lr: NonNegative
    """Learning rate, which the scheduler multiplies."""
    betas: Sequence[BelowOne]
    """Decay of the means of gradients and of their squares."""
    eps: NonNegative
    """Is added to the root of the mean square."""
    weight_decay: NonNegative
    """Decoupled weight decay."""
    foreach: bool | None
    """One kernel call for all parameters."""


class Trainer:
    """Arguments of Lightning's trainer."""

    devices: Count | Literal["auto", -1] | Sequence[Natural] | str
    """Number of devices, or a list of their indices."""
    num_nodes: Count
    """Number of machines."""
    precision: str | Literal[16, 32, 64]
    """32-true, bf16-mixed or 16-mixed."""
    max_epochs: Count | Literal[-1] | None
    """Set by limits.epochs."""
    max_steps: Count | Literal[-1]
    """Set by limits.steps."""
    gradient_clip_val: NonNegative | None
    """Largest norm of the gradient; null: any."""
    accumulate_grad_batches: Count | str
    """Microbatches per batch: a number, auto, or the memory that a step may use, such as 24GB."""
    num_sanity_val_steps: Literal[0]
    """Validation before training, which would change the random numbers of the run."""
    check_val_every_n_epoch: Count | None
    """Epochs between validations."""
    log_every_n_steps: Natural
    """Steps between the records of a logger; 0: once an epoch."""
    limit_train_batches: Count | Fraction
    """Batches of an epoch at most, or their fraction."""
    limit_val_batches: Count | Fraction
    """Batches of a validation at most, or their fraction."""
    limit_test_batches: Count | Fraction
    """Batches of the test at most, or their fraction."""
    overfit_batches: Natural | Fraction
    """Train on the same few batches."""


class Task:
    """Names of the task and of its metric."""

    name: str
    """Folder of the runs."""
    monitor: str
    """Validation metric that selects the best epoch."""
    mode: Literal["min", "max"]
    """Whether a lower or a higher value is better."""


SECTIONS: dict[str, type] = {
    "": Top, "sweep": Sweep, "limits": Limits, "optimizer": Optimizer, "trainer": Trainer, "task": Task,
}  # fmt: skip
_GROUPS = (
    "paths", "exact", "backbone", "optimizer", "scheduler", "trainer", "runtime", "callbacks", "logger", "recipe",
    "task", "data", "task.module",
)  # fmt: skip
"""Nodes that every run has and that hold settings by name."""


def check_run(config: DictConfig, seed: bool = True) -> None:
    """Raises UserError, with the key and what it accepts, for a setting (`seed`: or a seed) outside of its range."""
    for group in _GROUPS:
        node = OmegaConf.select(config, group)
        if not isinstance(node, DictConfig):
            raise UserError(
                f"{group} is {shown(node)}; it holds settings by name, leave it out or choose a file of it."
            )
    for section, kinds in _kinds().items():
        node = OmegaConf.select(config, section) if section else config
        for name, kind in kinds.items():
            if name == "seed" and not seed:
                continue
            if isinstance(node, DictConfig) and name in node and not OmegaConf.is_missing(node, name):
                value = node[name]
                value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
                check(f"{section}.{name}".lstrip("."), value, kind)
    _check_names(config)
    betas = OmegaConf.select(config, "optimizer.betas")
    if betas is not None and len(betas) != 2:
        raise UserError(f"optimizer.betas is {shown(list(betas))}; choose two numbers from 0 up to 1.")


def _check_names(config: DictConfig) -> None:
    """Raises UserError for a misspelt +limits.epoch=, which would have no effect: no class takes these sections."""
    for section in ("limits", "sweep"):
        for name in OmegaConf.select(config, section) or {}:
            close = difflib.get_close_matches(str(name), known := [*_kinds()[section]], n=1, cutoff=0.75)
            if close and name not in known:
                raise UserError(f'There is no setting "{name}" in {section}; did you mean {section}.{close[0]}?')


def stated_elsewhere(section: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a section whose types are stated by its class and not here."""
    return {name: value for name, value in node.items() if name not in _kinds().get(section, ())}


@cache
def _kinds() -> dict[str, dict[str, SettingType]]:
    return {
        section: {name: SettingType(hint) for name, hint in typing.get_type_hints(owner, include_extras=True).items()}
        for section, owner in SECTIONS.items()
    }
