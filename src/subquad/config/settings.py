"""Checks the values of a configuration against the types of constructor arguments, before instantiation."""

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hydra.utils import get_object

from subquad.utils.errors import UserError, explain, first_line
from subquad.utils.setting_types import SettingType, argument_types, check, shown


def check_settings(section: str, node: Mapping[str, Any]) -> None:
    """Raises UserError, with the key and what it accepts, for a value that the constructor of `_target_` does not take.

    Without this check a misspelt mode could be taken for another one, and a fraction in place of an integer would fail
    only later. Unknown keys raise UserError as well. Nested nodes with a `_target_` are checked recursively.

    Args:
        section: the name of the node in the configuration, for the message.
        node: resolved settings with a `_target_`.
    """
    target = node.get("_target_") if isinstance(node, Mapping) else None
    if not isinstance(target, str):
        raise UserError(f"{section} has no class; choose one by its group, or set {section}._target_ to its full name.")
    if type(node.get("_partial_", False)) is not bool:
        raise UserError(f"{section}._partial_ is {shown(node['_partial_'])}; choose true or false.")
    known, complete = _types(_found(section, target))
    for key, value in node.items():
        if complete and key not in known and not str(key).startswith("_"):
            names = sorted(known.keys() - {"site", "spec"})  # which the model and the data give
            close = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {section}.{close[0]}?" if close else f"it has {', '.join(names) or 'none'}."
            raise UserError(f"{section} of {target.rpartition('.')[2]} has no key {key}; {hint}")
        if isinstance(value, Mapping) and "_target_" in value:
            check_settings(f"{section}.{key}", value)
        elif (kind := known.get(key)) is not None and not _has_classes(value):
            check(f"{section}.{key}", value, kind)


def check_each(section: str, node: Mapping[str, Any]) -> None:
    """`check_settings` of each of the nodes in a group that has several by name, such as callbacks."""
    for name, one in node.items():
        if one is not None:
            check_settings(f"{section}.{name}", one)


def _has_classes(value: Any) -> bool:
    """Whether this is a list of nodes with a `_target_`, such as the trainer's callbacks."""
    return isinstance(value, list) and any(isinstance(one, Mapping) and "_target_" in one for one in value)


def _found(section: str, target: str) -> Callable[..., Any]:
    try:
        found = get_object(target)
    except (ImportError, ValueError, AttributeError) as error:
        about = f"{section}._target_ is {shown(target)}, which cannot be imported ({first_line(error)})."
        raise explain(error) or UserError(about) from error
    if not callable(found):
        raise UserError(f"{section}._target_ is {shown(target)}, which is no class or function.")
    return found


@cache
def _types(owner: Callable[..., Any]) -> tuple[dict[str, SettingType | None], bool]:
    """The types of arguments by name, None where nothing is known of them, and whether the list is complete."""
    try:
        hints, complete = argument_types(owner)
    except (NameError, ValueError, TypeError):  # another package's annotations that only a type checker can read
        return {}, False
    return {name: None if hint is Any else SettingType(hint) for name, hint in hints.items()}, complete


def without_weights(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model without its pretrained weights, for when a checkpoint replaces all weights."""
    return {
        key: None if key == "pretrained" else without_weights(value) if isinstance(value, Mapping) else value
        for key, value in node.items()
    }
