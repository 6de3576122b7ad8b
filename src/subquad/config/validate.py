"""Checks of overrides, for mistakes that Hydra ignores or explains badly."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import CompactHydraException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from subquad.config import choices
from subquad.config.choices import hint, is_option, options
from subquad.config.hydra_internals import wrap_loading
from subquad.utils.errors import UserError, end_if_interrupted, first_line

_CLASS = r"\w+(\.\w+)*\\?:\w+"
"""A class of the user's, as a choice of attention=: my.module:Mine; Hydra's sweeps write it my.module\\:Mine."""


def checked_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides with `group=glob(pattern)` expanded; raises UserError for a choice that does not exist.

    Hydra's own glob does not search folders (`task=glob(uea/*)`) and takes an empty match for an empty job list. With
    `hydra.searchpath=` only Hydra knows all choices, so that nothing but paths is checked.
    """
    _check_paths(overrides)
    if any(override.startswith("hydra.searchpath") for override in overrides):
        return list(overrides)
    checked = []
    known = choices.groups()
    _check_keys(overrides, sorted(known.union(_top_keys())))
    for override in overrides:
        key, equals, value = override.partition("=")
        group = key.partition("@")[0].lstrip("+")
        if equals and group.partition("/")[0] in known - {"hydra"}:
            if pattern := re.fullmatch(r"glob\(([^,()\[\]]+)\)", value):
                matches = fnmatch.filter(options(group), pattern[1])
                if not matches:
                    raise UserError(f"{override} selects nothing; the choices are {', '.join(options(group))}.")
                override = f"{key}={','.join(matches)}"
            else:
                _check_choices(group, value)
        checked.append(override)
    return checked


def _check_paths(overrides: Sequence[str]) -> None:
    """Raises UserError for an empty path, which would become the root of the file system or a folder named None."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if re.fullmatch(r"paths(\.\w+)?|data\.root", key) and value.strip(" '\"").lower() in ("", "null"):
            raise UserError(f"{override} names no folder; give a path, or leave the override out for the default.")


def _check_keys(overrides: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError for a misspelt group or setting; with the + that Hydra suggests it would have no effect."""
    for override in overrides:
        whole = override.partition("=")[0]
        key = whole.lstrip("+~").partition(".")[0]
        if "=" not in override or not re.fullmatch(r"\w+", key) or key in known:
            continue
        if close := difflib.get_close_matches(key, known, n=1, cutoff=0.75):
            raise UserError(f'There is no setting "{key}"; did you mean {close[0]}?')


@cache
def _top_keys() -> set[str]:
    """The settings outside of groups; cached, because a sweep composes hundreds of configurations."""
    return {str(key) for name in ("train", "eval") for key in OmegaConf.load(choices.CONFIGS / f"{name}.yaml")}


def check_sweep(overrides: Sequence[str]) -> None:
    """Raises UserError for a launcher without a sweep, which Hydra would ignore, and for a range without a search."""
    sweeps = {"-m", "--multirun", "hydra.mode=MULTIRUN"} & {*overrides}
    if any(override.startswith("hydra/launcher=") for override in overrides) and not sweeps:
        raise UserError("hydra/launcher= works in sweeps only, which may have a single run; add -m.")
    ranges = [o for o in overrides if re.match(r"[^=]+=(tag\(.*|int\(|float\()*interval\(", o)]
    sweeper = next((o.partition("=")[2] for o in overrides if o.startswith("hydra/sweeper=")), "basic")
    if ranges and (sweeper in ("basic", "job_list") or not sweeps):  # one of the user's may inherit optuna's
        raise UserError(f"{ranges[0]} is a range to search; add -m hydra/sweeper=optuna.")


class CompositionError(UserError, CompactHydraException):
    """Overrides that do not compose, explained in one sentence, which Hydra prints without a traceback."""


def explain_compositions() -> None:
    """Makes later compositions of this process raise CompositionError for errors that Hydra explains badly.

    They also know classes of the user's as choices of attention=, with their default settings.
    For a misspelt setting of a group Hydra suggests a +; for a name used as an index of a list it prints a traceback.
    """
    wrap_loading(_explained)


def _explained(load: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    @wraps(load)
    def load_configuration(*args: Any, **more: Any) -> DictConfig:
        for override in more.get("overrides", args[2] if len(args) > 2 else ()):
            group, _, name = override.partition("=")
            if group.partition("@")[0] == "attention" and re.fullmatch(_CLASS, name):
                name = name.replace("\\", "")
                known = {"_target_": name.replace(":", "."), "_partial_": True}
                node = OmegaConf.create(known, flags={"struct": False})  # settings need no +, as those of a file
                ConfigStore.instance().store(name, node, group="attention")
        try:
            config = load(*args, **more)
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, LookupError, AttributeError) as error:
            end_if_interrupted(error)
            if (cause := explain_composition_error(error)) is None:
                raise
            raise CompositionError(str(cause)) from None
        _check_folders(config)
        return config

    return load_configuration


def _check_folders(config: DictConfig) -> None:
    """Raises CompositionError for folders whose name Hydra would resolve once more, so that a run would have two."""
    for key in ("paths.data", "paths.outputs"):
        if "${" in (folder := str(OmegaConf.select(config, key))):
            raise CompositionError(f"{key} is {folder}; choose a folder without ${{ in its name.")


def explain_composition_error(error: Exception) -> UserError | None:
    """Explains a setting or choice that does not exist, or that has a + and exists; None for any other error."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        return UserError(
            f"{error.override} cannot be read ({first_line(error)}); a value with other characters than letters of "
            f"ASCII, digits and . / : - _ is written in quotes: '{key}=\"{value}\"'"
        )
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        own = " A class of your own is written my_module:Mine." if group == "attention" and "." in name else ""
        return UserError(f'There is no {group} "{name}"; {hint(name, [str(option) for option in error.options])}{own}')
    if found := re.search(r"Could not append to config.*\n.*remove \+ prefix: '(.*)'", str(error)):
        return UserError(f"{found[1].partition('=')[0]} is there already; leave the + out: {found[1]}")
    if not isinstance(error, HydraException | OmegaConfBaseException | ValueError):
        return UserError(f"Hydra cannot compose these overrides ({first_line(error)}); write them as key=value.")
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return UserError(
            f"The entries of a list have no names ({error}); write the whole list, as in data.sizes=[9,3,3]."
        )
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConfigAttributeError | ConfigKeyError):
        cause = cause.__cause__
    if cause is None or not isinstance(cause.parent_node, DictConfig):
        return None
    group, _, name = str(cause.full_key).rpartition(".")
    known = [str(key) for key in cause.parent_node if not str(key).startswith("_")]
    message = f'There is no setting "{name}"{group and f" in {group}"}' + (f"; {hint(name, known)}" if known else ".")
    if group and "did you mean" not in message:
        message += f" +{cause.full_key}= adds a further argument of its class."
    return UserError(message)


def _check_choices(group: str, value: str) -> None:
    """Raises UserError for a name that is no choice of the group; leaves Hydra's own syntax to Hydra."""
    if value in ("", "null"):
        raise UserError(f"{group}={value} chooses nothing; leave it out for the default, or choose a file of {group}.")
    if value == "all" or re.search(r"[()\[\]{}$?'\"]", value):
        return
    for name in value.split(","):
        if not is_option(group, name) and not (group == "attention" and re.fullmatch(_CLASS, name)):
            groups = [
                f"{other}={name}" for other in ("attention", "backbone", "task", "recipe") if is_option(other, name)
            ]
            advice = f"choose it as {groups[0]}." if groups else hint(name, options(group))
            raise UserError(f'There is no {group} "{name}"; {advice}')
