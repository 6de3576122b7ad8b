"""What runs would cost: steps, time and checkpoints, from finished runs and measured steps; nothing is guessed."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.config.compositions import Compositions
from subquad.config.task_metadata import about_task
from subquad.records import Record, fingerprint
from subquad.utils.errors import UserError

FLOAT_BYTES = 4
_NOT_FAMILY = (
    "root", "num_workers", "workers", "eval_batch_size", "release_dir", "protocol", "val_fraction", "test_fraction",
    "split_seed", "seed", "data_seed", "max_cases", "cases", "sizes", "steps_per_epoch",
)  # fmt: skip
_REPRESENTATIVE = 0.1
"""Of the steps that are planned: shorter runs spend too much of their time on starting and evaluating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A configuration without its seed. `family` names what decides the time of a step: model, batch, precision.

    steps: of the optimiser, None where they follow from rows that nobody has counted here. weights_only, with_states:
    how many checkpoints are kept at the end without and with the state of the optimiser. data, module: their settings.
    """

    words: tuple[str, ...]
    task: str
    attention: str
    family: str
    steps: int | None
    weights_only: int
    with_states: int
    data: Mapping[str, Any]
    module: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Device:
    """Where a time was measured: the name of a GPU or of a CPU with its cores."""

    name: str
    gpu: bool

    @classmethod
    def of(cls, machine: Mapping[str, Any]) -> "Device":
        """That of a record's or measurement's machine."""
        if machine["gpu"] is not None:
            return cls(str(machine["gpu"]), True)
        return cls(f"{machine['cpu']}, {machine['threads']} threads", False)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step on a device. `whole`: of a finished run, with its evaluations; else of training steps alone."""

    seconds: float
    device: Device
    whole: bool
    steps: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Median seconds of `steps` training steps of a batch of the run's size, nothing padded, on one device."""

    family: str
    seconds: float
    steps: int
    batch_size: int
    parameters: int
    words: list[str]
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    finished: str


def measured_steps(outputs: Path) -> Iterator[StepTime]:
    """What was measured before; raises UserError at a file that is no measurement."""
    for path in sorted((outputs / "measured" / "steps").glob("*.json")):
        try:
            yield StepTime(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} is no measurement of this version ({error}); delete it.") from None


def pace(found: StepTime) -> Pace:
    """A measurement as plans take it."""
    return Pace(found.seconds, Device.of(found.machine), False, found.steps, found.parameters)


def setting_of(words: Iterable[str], compositions: Compositions) -> Setting:
    """What is known of a configuration before it runs; `words` have no seed."""
    every = tuple(words)
    found = compositions[every]
    plain = found.identity
    savers = [c for c in plain["callbacks"].values() if c and c["_target_"].endswith(".ModelCheckpoint")]
    weights = [saver for saver in savers if saver.get("save_weights_only")]
    return Setting(
        words=every,
        task=plain["task"]["name"],
        attention=found.attention,
        family=family_of(plain),
        steps=_steps(plain),
        weights_only=sum(saver["save_top_k"] for saver in weights),
        with_states=sum(saver["save_top_k"] for saver in savers if saver not in weights),
        data=found.data,
        module=found.module,
    )


def family_of(settings: Mapping[str, Any]) -> str:
    """Names what decides the time of a step and the number of parameters, whatever the seed, length or place of a run.

    Takes resolved settings: `identity` of a configuration, or the `config` of a record.
    """
    module = {key: value for key, value in settings["task"]["module"].items() if key != "compile_model"}
    kept = {
        "module": module,
        "data": {key: value for key, value in settings["data"].items() if key not in _NOT_FAMILY},
        "precision": str(settings["trainer"]["precision"]),
    }
    text = json.dumps(kept, sort_keys=True, default=str)
    for place in sorted(set(settings.get("paths", {}).values()), key=lambda place: -len(str(place))):
        text = text.replace(str(place), "")
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
    """Number of training rows that the task states, less what other settings leave out; None where it is unknown."""
    data = plain["data"]
    if data.get("synthetic") or data.get("folder") or not (rows := about_task(plain["task"]["name"]).get("train_rows")):
        return None
    if sizes := data.get("sizes"):
        rows = sizes[0]
    rows = min(rows, data.get("max_cases") or data.get("cases") or rows)
    return round(rows * (1 - data["val_fraction"])) if data.get("protocol") == "clean" else rows


class Paces:
    """How long steps take, by family: from finished runs, and from steps that were measured for their own sake."""

    def __init__(self, records: Iterable[Record], measured: Mapping[str, Iterable[Pace]]) -> None:
        self.known: dict[str, list[Pace]] = defaultdict(list)
        for family, paces in measured.items():
            self.known[family] += paces
        for record in records:
            gpus = _gpus(record.config["trainer"])
            if record.steps and gpus is not None:
                seconds = record.wall_seconds / record.steps * (gpus if record.machine["gpu"] else 1)
                pace = Pace(seconds, Device.of(record.machine), True, record.steps, record.parameters)
                self.known[family_of(record.config)].append(pace)

    def of(self, setting: Setting, here: Device | None) -> Pace | None:
        """The one to plan with: on this device rather than on another, of whole runs rather than of steps alone.

        A run that is much shorter than the planned one does not count.
        """
        steps = setting.steps
        found = [
            pace
            for pace in self.known.get(setting.family, ())
            if not pace.whole or (steps is not None and pace.steps >= _REPRESENTATIVE * steps)
        ]
        return max(found, key=lambda pace: (pace.device == here, pace.whole, pace.steps), default=None)

    def parameters(self, setting: Setting) -> int | None:
        """How many numbers the model has, where one of its family was built before."""
        return next((pace.parameters for pace in self.known.get(setting.family, ())), None)


def _gpus(trainer: Mapping[str, Any]) -> int | None:
    """Devices that a run took together; None where that was left to the machine."""
    devices, nodes = trainer["devices"], trainer["num_nodes"]
    return devices * nodes if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 else None


def optimizer_states(factory: Mapping[str, Any]) -> int:
    """Numbers that an optimiser keeps for each parameter: it is asked to take one step."""
    import torch
    from hydra.utils import instantiate

    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    optimizer = instantiate(factory, _convert_="all")([parameter])
    optimizer.step()
    return (
        sum(
            value.numel() for state in optimizer.state.values() for value in state.values() if getattr(value, "ndim", 0)
        )
        // parameter.numel()
    )
