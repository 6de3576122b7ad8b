"""The identity of a run: settings that determine the result (paths, hardware and logging do not).

This module does not import torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, MissingMandatoryValue

from subquad import records
from subquad.config.choices import file_of, of_training
from subquad.config.own_code import own_code
from subquad.config.run_settings import Limits, check_run
from subquad.records import FOLDER, fingerprint
from subquad.utils.display import as_typed, command_line
from subquad.utils.errors import UserError, first_line

_KEPT = ("task", "data", "trainer", "callbacks", "protocol", "scale", "recipe", "ckpt_path")
_KNOWN: dict[str, dict[str, Any]] = {}
"""Identities by configuration. Every path of a run refers to its fingerprint, and resolving a configuration is slow."""

NOT_IDENTITY = {
    "trainer": (
        "accelerator", "devices", "num_nodes", "strategy", "callbacks", "logger", "default_root_dir", "profiler",
        "log_every_n_steps", "enable_progress_bar", "enable_model_summary", "plugins", "accumulate_grad_batches",
    ),
    "callbacks": ("estimate", "progress", "cores", "refresh", "ends"),
    "data": ("root", "num_workers", "workers", "eval_batch_size", "release_dir"),
    "recipe": ("sizes", "size", "kind", "model", "float32_precision"),
}  # fmt: skip
_AS_SHIPPED = {
    "refresh": {"_target_": "subquad.training.callbacks.refresh.RefreshAttention"},
    "ends": {"_target_": "subquad.training.callbacks.guards.ValidateFirstAndLast"},
}
"""Callbacks that decide numbers. They are part of an identity only where they are changed or left out."""


def identity(config: DictConfig) -> dict[str, Any]:
    """The resolved settings that determine a run's result: mechanism, model, data, training, protocol and scale.

    Excluded are paths, loggers, device, display, tags and the seed, and settings that distribute the work or trade time
    for memory, which affect only rounding and dropout masks. Precision is included, that of float32 only where it is
    set: by default it follows the device and the recipe. The optimiser and the mechanism are
    included where the task's module and backbone refer to them, so that an unused choice has no effect. Initial weights
    in a file are identified by `weights_name`, and classes of the user's by their code too (`own_code`). The returned
    object is cached and must not be changed.
    """
    plain = _plain(config)
    start = plain["ckpt_path"] and weights_name(Path(plain["ckpt_path"])), _pretrained(config)
    choices = dict(HydraConfig.get().runtime.choices) if HydraConfig.initialized() else None
    key = json.dumps([plain, start, choices], sort_keys=True, default=str)
    if key not in _KNOWN:
        _KNOWN[key] = _resolved(config, plain)
    return with_code(_KNOWN[key])


def name_of(config: DictConfig) -> str:
    """The name of the folder that a run has unless `paths.run` is set."""
    return records.run_name(fingerprint(identity(config)), config.seed)


def finished(config: DictConfig) -> records.Record | None:
    """The record of a run; None where it has not finished. Raises UserError where its folder holds another run."""
    folder = Path(config.paths.run)
    record = records.read(folder)
    if record is not None:
        remedy = "leave paths.run out, or choose another folder"
        records.check_owner(folder / records.RESULT, record.name, name_of(config), remedy)
    return record


def with_code(settings: dict[str, Any]) -> dict[str, Any]:
    """Resolved settings with the hash of the code of each of the user's classes in them, if there are any."""
    code = own_code(settings)
    return settings | {"code": code} if code else settings


def _resolved(config: DictConfig, plain: dict[str, Any]) -> dict[str, Any]:
    """The identity of a configuration: its keys that `plain` has, resolved."""
    with without_paths(config, plain):
        kept: dict[str, Any] = {key: config[key] for key in _KEPT}
        kept |= {k: OmegaConf.to_container(node, resolve=True) for k, node in kept.items() if OmegaConf.is_config(node)}
        precision = config.runtime.float32_precision
    kept["callbacks"] = dict.fromkeys(plain["callbacks"]) | kept["callbacks"]  # one that is left out is null
    kept["task"]["module"] = {k: v for k, v in kept["task"]["module"].items() if k != "compile_model"}
    kept["recipe"] = {k: v for k, v in kept["recipe"].items() if k not in NOT_IDENTITY["recipe"]}
    if precision != "auto":
        kept["runtime"] = {"float32_precision": precision}
    if (weights := _pretrained(config)) is not None:
        kept["task"]["module"]["backbone"] |= {"pretrained": weights}
    kept["ckpt_path"] = None if kept["ckpt_path"] is None else weights_name(Path(kept["ckpt_path"]))
    return kept


@contextmanager
def without_paths(config: DictConfig, kept: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Inside the block, the configuration has no paths and the seed 0. kept: the only keys that it has then.

    A copy would take longer to make than to resolve.
    """
    given: Any = OmegaConf.create({"paths": dict.fromkeys(config.paths, ""), "seed": 0})
    changed = [(config, kept), *((config[section], kept[section]) for section in NOT_IDENTITY if kept)]
    contents = [vars(node)["_content"] for node, _ in changed]
    try:
        for (node, keys), content in zip(changed, contents, strict=True):
            vars(node)["_content"] = {key: child for key, child in content.items() if keys is None or key in keys}
        for key in given:
            vars(config)["_content"][key] = given._get_node(key)
            given._get_node(key)._set_parent(config)
        yield
    finally:
        for (node, _), content in zip(changed, contents, strict=True):
            vars(node)["_content"] = content


def _plain(config: DictConfig) -> dict[str, Any]:
    """The unresolved configuration without the settings that do not determine a run's result."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    plain = {key: value for key, value in plain.items() if key not in ("hydra", "logger", "tags")}
    plain["paths"] = dict.fromkeys(plain["paths"], "")
    plain["seed"] = 0
    own = plain["callbacks"]
    changed = {name: own.get(name) for name, shipped in _AS_SHIPPED.items() if own.get(name) != shipped}
    for section, keys in NOT_IDENTITY.items():
        plain[section] = {k: v for k, v in plain[section].items() if k not in keys or section == "recipe"}
    plain["callbacks"] |= changed
    return {str(key): value for key, value in plain.items()}


def weights_name(checkpoint: Path) -> str:
    """Identifies the weights of a file: `<fingerprint>-s<seed>/best.ckpt` of a run, else a hash of the file.

    The path where there is no file that can be read; a run that starts from it will fail.
    """
    if (run := run_of(checkpoint)) is not None:
        return f"{run.name}/{checkpoint.name}"
    try:
        state = checkpoint.stat()
        return _hash(checkpoint, state.st_size, state.st_mtime_ns)
    except OSError:
        return str(checkpoint)


def _pretrained(config: DictConfig) -> str | None:
    """The name of the weights of a file that a backbone starts from; None for published weights, and without any."""
    source = config.backbone.get("pretrained")
    return weights_name(Path(source)) if is_file(source) else None


def is_file(source: Any) -> bool:
    """Whether `backbone.pretrained` names a file."""
    return isinstance(source, str) and source.partition(":")[0] != "hub"


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to, by its path; None for other files."""
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name == "checkpoints" and FOLDER.fullmatch(run.name) else None


@lru_cache
def _hash(path: Path, size: int, changed: int) -> str:
    """The hash of a file's bytes, read again only when the size or the modification time changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def smaller_run(*, _root_: DictConfig) -> str | None:
    """The command for the same run at scale=laptop; None unless this run is at scale=paper."""
    hydra = HydraConfig.get()
    if hydra.runtime.choices.get("scale") != "paper":
        return None
    group = "attention" if "attention" in _root_.backbone else "backbone"
    own = {name: hydra.runtime.choices[name] for name in (group, "task")}
    kept = [o for o in hydra.overrides.task if o.partition("=")[0] not in ("scale", *own)]
    return command_line(
        "python train.py", [*(f"{name}={choice}" for name, choice in own.items()), *kept, "scale=laptop"]
    )


ANY = "<attention>"
"""Stands for the name and the settings of an attention; see `subquad.config.compositions`."""


def mechanism(config: DictConfig) -> str:
    """The choice of attention, or of the backbone where the backbone takes no attention; runs are named after it.

    "none" where the backbone takes attention and backbone.attention=null leaves it out. Raises UserError if ~attention
    does.
    """
    if "attention" in config.backbone and config.backbone._get_node("attention")._is_none():
        return "none"
    choices = HydraConfig.get().runtime.choices
    if config.get("attention") == ANY and "attention" in config.backbone:
        return ANY
    if "attention" not in config.backbone:
        return str(choices["backbone"])
    if "attention" not in choices:
        raise UserError(f"backbone={choices['backbone']} needs attention=; for none, set backbone.attention=null.")
    return str(choices["attention"])


def _fingerprint(*, _root_: DictConfig) -> str:
    """The fingerprint of a run.

    Hydra resolves it first, for the output folder, so an incomplete configuration ends the process here with a message.
    """
    unused = [text for text in HydraConfig.get().overrides.task if text.startswith(("attention=", "attention."))]
    if unused and "attention" not in _root_.backbone:
        raise SystemExit(
            f"{unused[0]} has no effect on backbone={mechanism(_root_)}, which has a mechanism of its own; leave "
            "one of the two out."
        )
    try:
        check_run(_root_, seed=False)  # a seed out of range ends its own run, not the others of a sweep
        _refuse_unused(_root_)
        return fingerprint(identity(_root_))
    except UserError as error:
        raise SystemExit(str(error)) from None
    except MissingMandatoryValue as error:
        raise SystemExit(f"A setting has no value yet ({first_line(error)}); give it on the command line.") from None
    except (InterpolationResolutionError, TypeError, LookupError, AttributeError) as error:
        if not isinstance(error, InterpolationKeyError):
            raise SystemExit(f"The configuration cannot be resolved ({first_line(error)}); correct the key.") from None
        recipe, reason = _root_.recipe.name, first_line(error)
        known = ", ".join(_root_.recipe.sizes)
        raise SystemExit(
            f"The recipe {recipe} does not fit this task ({reason}); leave recipe= out to get the task's own, or add a "
            f"row for the task to the recipe's sizes, which has {known}."
        ) from None


def acting_limits(config: DictConfig) -> set[str]:
    """The names of the limits that settings of this task and recipe refer to."""
    return _acting(config, "limits")


def _acting(config: DictConfig, section: str) -> set[str]:
    """The settings of a section that others refer to."""
    return set(re.findall(rf"\$\{{[^}}]*\b{section}\.(\w+)", OmegaConf.to_yaml(config)))


def _refuse_unused(config: DictConfig) -> None:
    """Raises UserError for a given limit, length, schedule or share of validation rows that does not act."""
    for text in HydraConfig.get().overrides.task:
        chosen = file_of("scheduler", text.removeprefix("scheduler="))
        if text.startswith("scheduler=") and chosen is not None:
            target = OmegaConf.select(OmegaConf.load(chosen), "_target_")
            if target != config.scheduler.get("_target_"):
                raise UserError(f"{text} has no effect beside this recipe and scale; add scheduler._target_={target}.")
        if text.startswith("data.val_fraction=") and config.data.get("protocol") == "paper":
            raise UserError(f"{text} has no effect with protocol=paper, which validates on test; add protocol=clean.")
        length = text.removeprefix("recipe.").partition("=")[0]
        if text.startswith("recipe.") and length in ("epochs", "steps") and length not in _acting(config, "recipe"):
            raise UserError(
                f"{text} has no effect at scale={config.scale}, which sets the length of training itself; set "
                f"limits.{text.removeprefix('recipe.')}."
            )
        name = text.removeprefix("limits.").partition("=")[0]
        if text.startswith("limits.") and name in Limits.__annotations__:
            acting = acting_limits(config)
            if name not in acting:
                others = ", ".join(f"limits.{other}" for other in sorted(acting))
                raise UserError(
                    f"{text} has no effect on task={config.task.name} with this recipe; what acts is {others}."
                )


def register() -> None:
    """Registers the OmegaConf resolvers fingerprint, mechanism, smaller_run, choices, cwd, first_of and as_typed.

    cwd replaces `${hydra:runtime.cwd}`, because a sweep resolves its folder before Hydra's own values exist.
    """
    OmegaConf.register_new_resolver("as_typed", as_typed, replace=True)
    OmegaConf.register_new_resolver("choices", of_training, use_cache=False, replace=True)
    OmegaConf.register_new_resolver("cwd", os.getcwd, use_cache=False, replace=True)
    OmegaConf.register_new_resolver("first_of", lambda *values: next(filter(None, values), None), replace=True)
    OmegaConf.register_new_resolver("fingerprint", _fingerprint, use_cache=False, replace=True)
    OmegaConf.register_new_resolver("mechanism", lambda *, _root_: mechanism(_root_), use_cache=False, replace=True)
    OmegaConf.register_new_resolver("smaller_run", smaller_run, use_cache=False, replace=True)
