"""Cost of runs (steps, time and checkpoints), estimated from finished runs and measured steps only."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.config.compositions import Compositions
from subquad.config.settings import without_weights
from subquad.config.task_metadata import about_task
from subquad.records import Record, fingerprint
from subquad.utils.display import counted
from subquad.utils.errors import UserError

FLOAT_BYTES = 4
_IGNORED_IN_FAMILY = (
    "root", "num_workers", "workers", "eval_batch_size", "release_dir", "protocol", "val_fraction", "test_fraction",
    "split_seed", "seed", "data_seed", "max_cases", "cases", "sizes", "steps_per_epoch",
)  # fmt: skip
_REPRESENTATIVE = 0.1
"""A finished run needs at least this fraction of the planned steps: shorter runs mostly start up and evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A configuration without its seed.

    Attributes:
        overrides: overrides of train.py.
        precision: that of the trainer.
        family: key for what determines the time of a step: model, batch and precision (see `family_of`).
        steps: optimiser steps; None if they depend on an unknown number of training rows.
        rows: training rows; None if they are unknown.
        weights_only: number of checkpoints without optimiser state that a finished run keeps.
        with_states: number of checkpoints with optimiser state that a finished run keeps.
        data: settings of the data.
        module: settings of the task's module.
    """

    overrides: tuple[str, ...]
    task: str
    attention: str
    precision: str
    family: str
    steps: int | None
    rows: int | None
    weights_only: int
    with_states: int
    data: Mapping[str, Any]
    module: Mapping[str, Any]

    @property
    def batch(self) -> int:
        """Rows of an optimiser step: all training rows where these are fewer than a batch."""
        size = int(self.data["batch_size"])
        return min(size, self.rows or size)


@dataclass(frozen=True, slots=True)
class Device:
    """Device of a measurement: the name of a GPU, or of a CPU with its number of threads."""

    name: str
    gpu: bool

    @classmethod
    def of(cls, machine: Mapping[str, Any], accelerator: str | None = None) -> "Device":
        """Device of a record or measurement, from its `machine` facts and the trainer's accelerator."""
        if machine["gpu"] is not None and accelerator != "cpu":
            return cls(str(machine["gpu"]), True)
        return cls(f"{machine['cpu']}, {counted(machine['threads'], 'thread')}", False)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step on a device.

    Attributes:
        whole: True if derived from a finished run, including its evaluations; False for training steps only.
        steps: number of steps that were timed.
        kept: True if the run is one that the project keeps (docs/results).
    """

    seconds: float
    device: Device
    whole: bool
    steps: int
    parameters: int
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Median seconds of `steps` training steps on one device, with the run's batch size and no padding.

    The attributes are the keys of the JSON file; `overrides` are those of the run. `memory` is what made the step fit
    the memory, empty if nothing was done.
    """

    family: str
    seconds: float
    steps: int
    batch_size: int
    parameters: int
    overrides: list[str]
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    finished: str
    memory: str = ""


def measured_steps(outputs: Path) -> Iterator[StepTime]:
    """Reads all stored measurements; raises UserError at a file that is not a measurement."""
    for path in sorted((outputs / "measured" / "steps").glob("*.json")):
        try:
            yield StepTime(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} is no measurement of this version ({error}); delete it.") from None


def pace(measured: StepTime) -> Pace:
    """Converts a measurement to a `Pace`."""
    return Pace(measured.seconds, Device.of(measured.machine), False, measured.steps, measured.parameters)


def setting_of(overrides: Iterable[str], compositions: Compositions) -> Setting:
    """The `Setting` of overrides without a seed."""
    overrides = tuple(overrides)
    composition = compositions[overrides]
    plain = composition.identity
    savers = [c for c in plain["callbacks"].values() if c and c["_target_"].endswith(".ModelCheckpoint")]
    weights = [saver for saver in savers if saver.get("save_weights_only")]
    return Setting(
        overrides=overrides,
        task=plain["task"]["name"],
        attention=composition.attention,
        precision=str(plain["trainer"]["precision"]),
        family=family_of(plain),
        steps=_steps(plain),
        rows=_rows(plain),
        weights_only=sum(saver["save_top_k"] for saver in weights),
        with_states=sum(saver["save_top_k"] for saver in savers if saver not in weights),
        data=composition.data,
        module=composition.module,
    )


def family_of(settings: Mapping[str, Any]) -> str:
    """Fingerprint of the settings that determine the time of a step and the number of parameters.

    It does not depend on the seed, the length or the paths of a run.

    Args:
        settings: resolved settings: `identity` of a configuration, or the `config` of a record.
    """
    module = {k: v for k, v in without_weights(settings["task"]["module"]).items() if k != "compile_model"}
    kept = {
        "module": module,
        "data": {key: value for key, value in settings["data"].items() if key not in _IGNORED_IN_FAMILY},
        "precision": str(settings["trainer"]["precision"]),
    }
    if "code" in settings:
        kept["code"] = settings["code"]
    text = json.dumps(kept, sort_keys=True, default=str)
    for path in sorted(set(settings.get("paths", {}).values()), key=lambda path: -len(str(path))):
        text = text.replace(str(path), "")
    return fingerprint({"family": text})


def _steps(plain: Mapping[str, Any]) -> int | None:
    trainer, data = plain["trainer"], plain["data"]
    limits = [trainer["max_steps"]] if trainer["max_steps"] >= 0 else []
    if trainer["max_epochs"] >= 0:
        per_epoch = data.get("steps_per_epoch")
        if per_epoch is None:
            rows = _rows(plain)
            per_epoch = None if rows is None else -(-rows // data["batch_size"])
        if per_epoch is None:
            return None
        limits.append(trainer["max_epochs"] * per_epoch)
    return min(limits) if limits else None


def _rows(plain: Mapping[str, Any]) -> int | None:
    """Number of training rows, from the task's metadata and the settings that reduce it; None if it is unknown."""
    data = plain["data"]
    if data.get("synthetic") or data.get("folder") or not (rows := about_task(plain["task"]["name"]).get("train_rows")):
        return None
    if sizes := data.get("sizes"):
        rows = sizes[0]
    rows = min(rows, data.get("max_cases") or data.get("cases") or rows)
    return round(rows * (1 - data["val_fraction"])) if data.get("protocol") == "clean" else rows


class Paces:
    """Times of steps by family, from finished runs and from measured steps.

    `kept`: runs that the project keeps, with their families.
    """

    def __init__(
        self, records: Iterable[Record], measured: Mapping[str, Iterable[Pace]],
        kept: Iterable[tuple[str, Record]] = (),
    ) -> None:  # fmt: skip
        self.known: dict[str, list[Pace]] = defaultdict(list)
        for family, paces in measured.items():
            self.known[family] += paces
        for record in records:
            self._add(family_of(record.config), record, kept=False)
        for family, record in kept:
            self._add(family, record, kept=True)

    def _add(self, family: str, record: Record, kept: bool) -> None:
        if (pace := _pace_of(record, kept)) is not None:
            self.known[family].append(pace)

    def of(self, setting: Setting, here: Device | None) -> Pace | None:
        """The pace to plan a setting with; prefers this device, then what was run here, whole runs, and more steps.

        Runs that are much shorter than the planned one are ignored.
        """
        steps = setting.steps
        usable = [
            pace
            for pace in self.known.get(setting.family, ())
            if not pace.whole or (steps is not None and pace.steps >= _REPRESENTATIVE * steps)
        ]
        return max(usable, key=lambda pace: (pace.device == here, not pace.kept, pace.whole, pace.steps), default=None)

    def parameters(self, setting: Setting) -> int | None:
        """Number of parameters of the model, known from runs or measurements of its family; None if there are none."""
        return next((pace.parameters for pace in self.known.get(setting.family, ())), None)


def _pace_of(record: Record, kept: bool) -> Pace | None:
    gpus = _gpus(record.config["trainer"])
    if not record.steps or gpus is None:
        return None
    device = Device.of(record.machine, record.config["trainer"].get("accelerator"))
    seconds = record.wall_seconds / record.steps * (gpus if device.gpu else 1)
    return Pace(seconds, device, True, record.steps, record.parameters, kept)


def pace_of_others(setting: Setting, kept: Iterable[Record]) -> Pace | None:
    """The median pace of the kept runs that differ from a setting in the attention, the rate or the length only."""
    own = _without_attention(setting.overrides)
    paces = [_pace_of(record, kept=True) for record in kept if _without_attention(record.overrides) == own]
    known = sorted((pace for pace in paces if pace is not None), key=lambda pace: pace.seconds)
    return known[len(known) // 2] if known else None


def _without_attention(overrides: Iterable[str]) -> set[str]:
    return {o for o in overrides if not re.match(r"\+?(attention\b|optimizer\.lr=|limits\.)", o)}


def _gpus(trainer: Mapping[str, Any]) -> int | None:
    """Number of devices of a run; None if its settings leave it to the machine."""
    devices, nodes = trainer["devices"], trainer["num_nodes"]
    return devices * nodes if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 else None


def optimizer_states(factory: Mapping[str, Any]) -> int:
    """Number of values that an optimiser stores for each parameter, found by running one step."""
    from hydra.utils import instantiate

    from subquad.measure.step_memory import states_of

    return states_of(instantiate(factory, _convert_="all"))
