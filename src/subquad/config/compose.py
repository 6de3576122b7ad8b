"""Composes the configuration of a run, as `python train.py` would."""

import inspect
import pickle
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from subquad.config import choices, fingerprint
from subquad.config.hydra_internals import parse_files_once
from subquad.config.own_code import own_code
from subquad.config.validate import checked_overrides, explain_compositions
from subquad.utils.errors import UserError


def _compose(overrides: Sequence[str]) -> DictConfig:
    return hydra.compose("train", list(overrides), return_hydra_config=True)


def compose_run(overrides: Sequence[str], compose: Callable[[Sequence[str]], DictConfig] = _compose) -> DictConfig:
    """The configuration that `python train.py <overrides>` would run, without running it.

    compose: composes in place of Hydra, see `from_choices`. Raises UserError for overrides that do not compose.
    """
    parse_files_once()
    explain_compositions()
    fingerprint.register()
    try:
        with initialize_config_dir(str(choices.CONFIGS), version_base="1.3"):
            config = compose(checked_overrides(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error)) from None
    OmegaConf.set_struct(config, None)
    if OmegaConf.is_interpolation(config.paths, "root"):  # unless given; the working folder may change later
        config.paths.root = str(Path.cwd())
    own = config._get_node("hydra")
    # As HydraConfig.set_config, which copies the node; its parent stays the configuration of the run.
    held = OmegaConf.create({}, flags={"no_deepcopy_set_nodes": True})
    held["hydra"] = own
    OmegaConf.set_readonly(held.hydra, True)
    held.hydra._set_parent(config)
    HydraConfig.instance().cfg = held  # type: ignore[assignment]
    del config["hydra"]
    return config


def from_choices(overrides: Sequence[str]) -> DictConfig:
    """What Hydra composes, from a kept composition of the choices alone, which many cells of tables share.

    Hydra sets single values after it has merged the files of all choices, so they can be set in a copy of the result.
    `forget_choices` where files may have changed.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [
        o for o in parsed if o.type == OverrideType.CHANGE and re.fullmatch(r"(?!hydra\.)\w+\.[\w.]+", o.key_or_group)
    ]
    added = [o.key_or_group for o in parsed if o.type != OverrideType.CHANGE]
    if any(_overlap(o.key_or_group, key) for o in values for key in added):
        return _compose(overrides)  # their order matters
    try:
        config: DictConfig = pickle.loads(_of_choices(tuple(str(o.input_line) for o in parsed if o not in values)))
        for override in values:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    except (HydraException, OmegaConfBaseException):
        return _compose(overrides)  # its errors name the override
    config.hydra.overrides.task = list(overrides)
    return config


def _overlap(key: str, other: str) -> bool:
    """Whether one of two keys is the other or a part of it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


@cache
def _of_choices(choices: tuple[str, ...]) -> bytes:
    return pickle.dumps(_compose(choices))


forget_choices = _of_choices.cache_clear


def compose_choice(overrides: Sequence[str]) -> DictConfig:
    """The node of a group as its files set it, without a run around it. overrides: the choice, then its settings."""
    parse_files_once()
    explain_compositions()
    choice, *values = checked_overrides(overrides)
    with initialize_config_dir(str(choices.CONFIGS), version_base="1.3"):
        config = hydra.compose(overrides=[f"+{choice}", *values])
    [group] = config
    node: DictConfig = config[group]
    return node


def standalone_backbones() -> list[str]:
    """The backbones that take no attention."""
    return [
        name for name in choices.options("backbone") if "attention" not in compose_run([f"backbone={name}"]).backbone
    ]


def load_attention(name: str, overrides: Sequence[str] = ()) -> Any:
    """The factory of configs/attention/<name>.yaml as it is passed to a backbone, without dropout."""
    return load_factory(f"attention={name}", overrides)


def load_own_attention(name: str, overrides: Sequence[str] = ()) -> Any:
    """The factory of a choice of `attention=`, or a class or factory of the user's, written as `module:name`.

    Commands find the modules of the working folder (`find_own_folders`). overrides: settings of it.
    """
    if ":" not in name:
        return load_attention(name, overrides)
    own_code({"_target_": name.replace(":", ".")})  # what is changed after this is refused
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"attention={name}: {error}; write it as my_package.my_module:MyAttention.") from None
    from subquad.attention.base import Attention

    whole = hasattr(found, "patterns") and not inspect.isabstract(found)
    if isinstance(found, type) and not (issubclass(found, Attention) and whole):
        raise UserError(
            f"attention={name} is no attention; derive it from subquad.StatelessAttention or subquad.Attention, with "
            "patterns and attend (docs/adding.md)."
        )
    factory = load_attention(name, overrides) if overrides else found
    parameters = inspect.signature(factory).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if missing := [p.name for p in needed if p.name != "site"]:
        raise UserError(f"attention={name} needs {' and '.join(missing)}; add attention.{missing[0]}=<value>.")
    return factory


def load_factory(choice: str, overrides: Sequence[str] = ()) -> Any:
    """The factory of `attention=<name>` or `backbone=<name>`, without dropout.

    Raises UserError for a backbone that takes an attention, because it cannot be measured without one.
    """
    from hydra.utils import instantiate

    from subquad.config.settings import check_settings

    group = choice.partition("=")[0]
    node = OmegaConf.to_container(compose_run([choice, "backbone.dropout=0.0", *overrides])[group], resolve=True)
    assert isinstance(node, dict)
    if "attention" in node:
        raise UserError(f"{choice} takes its mechanism from attention=; choose attentions, or a backbone without them.")
    check_settings(group, {str(key): value for key, value in node.items()})
    return instantiate(node, _convert_="all")
