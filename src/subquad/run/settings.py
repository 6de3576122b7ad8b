"""Values of a configuration against the types of the class that they go to, before anything is built."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_class
from pydantic import ConfigDict, TypeAdapter, ValidationError

from subquad.errors import UserError


def check_settings(section: str, node: Mapping[str, Any]) -> None:
    """Raises UserError, naming the key and its choices, at a value that the constructor of `_target_` does not take.

    A misspelt mode would otherwise count as one of the others, and a half in place of a whole number fail deep inside.
    Nodes inside the node that have a `_target_` of their own are checked likewise.
    """
    constructor = inspect.getattr_static(get_class(node["_target_"]), "__init__")
    hints = typing.get_type_hints(constructor)
    known = inspect.signature(constructor).parameters
    for key, value in node.items():
        if isinstance(value, Mapping) and "_target_" in value:
            check_settings(f"{section}.{key}", value)
        elif key in known and key in hints:
            try:
                _adapter(hints[key]).validate_python(value)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Input should be ")
                raise UserError(f"{section}.{key} is {value}; it should be {reason}.") from None


def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
