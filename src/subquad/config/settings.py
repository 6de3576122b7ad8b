"""Checks the values of a configuration against the types of constructor arguments, before instantiation."""

import difflib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_class
from pydantic import ConfigDict, TypeAdapter, ValidationError

from subquad.utils.errors import UserError


def check_settings(section: str, node: Mapping[str, Any]) -> None:
    """Raises UserError, with the key and its choices, for a value that the constructor of `_target_` does not accept.

    Without this check a misspelt mode could be taken for another one, and a fraction in place of an integer would fail
    only later. Unknown keys raise UserError as well. Nested nodes with a `_target_` are checked recursively.

    Args:
        section: the name of the node in the configuration, for the message.
        node: resolved settings with a `_target_`.
    """
    known, complete = _arguments(get_class(node["_target_"]))
    for key, value in node.items():
        if complete and key not in known and not key.startswith("_"):
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {section}.{close[0]}?" if close else f"it has {', '.join(sorted(known))}."
            raise UserError(f"{section} of {node['_target_'].rpartition('.')[2]} has no key {key}; {hint}")
        if isinstance(value, Mapping) and "_target_" in value:
            check_settings(f"{section}.{key}", value)
        elif key in known:
            try:
                _adapter(known[key]).validate_python(value)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Input should be ")
                raise UserError(f"{section}.{key} is {value}; it should be {reason}.") from None


def without_weights(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model without its pretrained weights, for when a checkpoint replaces all weights."""
    return {
        key: None if key == "pretrained" else without_weights(value) if isinstance(value, Mapping) else value
        for key, value in node.items()
    }


def _arguments(owner: type) -> tuple[dict[str, Any], bool]:
    """The types of a constructor's arguments by name, with those of its parents, and whether the list is complete.

    It is incomplete where a constructor passes keyword arguments on to something other than its parents.
    """
    types: dict[str, Any] = {}
    for parent in owner.__mro__:
        if "__init__" not in vars(parent):
            continue
        constructor = vars(parent)["__init__"]
        hints, arguments = (
            typing.get_type_hints(constructor, include_extras=True),
            inspect.signature(constructor).parameters.values(),
        )
        named = (p for p in arguments if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self")
        types = {p.name: hints.get(p.name, Any) for p in named} | types
        if not any(p.kind is p.VAR_KEYWORD for p in arguments):
            return types, True
    return types, False


def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
