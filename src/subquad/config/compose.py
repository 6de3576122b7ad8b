"""Composes the configuration of a run, as `python train.py` would."""

import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from subquad.config import choices, fingerprint
from subquad.config.parsing import parse_files_once
from subquad.config.validate import checked_overrides, explain_compositions
from subquad.utils.errors import UserError


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The configuration that `python train.py <overrides>` would run, without running it.

    Raises UserError for overrides that do not compose.
    """
    parse_files_once()
    explain_compositions()
    fingerprint.register()
    try:
        with initialize_config_dir(str(choices.CONFIGS), version_base="1.3"):
            config = compose("train", checked_overrides(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error)) from None
    OmegaConf.set_struct(config, None)
    if OmegaConf.is_interpolation(config.paths, "root"):  # unless given; the working folder may change later
        config.paths.root = str(Path.cwd())
    hydra = config._get_node("hydra")
    # As HydraConfig.set_config, which copies the node; its parent stays the configuration of the run.
    held = OmegaConf.create({}, flags={"no_deepcopy_set_nodes": True})
    held["hydra"] = hydra
    OmegaConf.set_readonly(held.hydra, True)
    held.hydra._set_parent(config)
    HydraConfig.instance().cfg = held  # type: ignore[assignment]
    del config["hydra"]
    return config


def standalone_backbones() -> list[str]:
    """The backbones that take no attention."""
    return [
        name for name in choices.options("backbone") if "attention" not in compose_run([f"backbone={name}"]).backbone
    ]


def load_attention(name: str, overrides: Sequence[str] = ()) -> Any:
    """The factory of configs/attention/<name>.yaml as it is passed to a backbone, without dropout."""
    return load_factory(f"attention={name}", overrides)


def load_own_attention(name: str) -> Any:
    """The factory of a choice of `attention=`, or a class or factory of the user's, written as `module:name`.

    Commands find the modules of the working folder (`find_own_folders`).
    """
    if ":" not in name:
        return load_attention(name)
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"attention={name}: {error}; write it as my_package.my_module:MyAttention.") from None


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
