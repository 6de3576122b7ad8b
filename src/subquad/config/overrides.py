"""Values in the grammar of Hydra's command line."""

import json
import os
import re
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString


def as_override(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_override(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_override, value)) + "]"
    if isinstance(value, str | Path) and not re.fullmatch(r"[\w./-]+", str(value), re.ASCII):
        return QuotedString(str(value), Quote.single).with_quotes()
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def with_path(override: str) -> str:
    """The override `key=value` with a path written as the grammar wants it: ~ as a home, and what exists in quotes."""
    key, equals, value = override.partition("=")
    if not equals or re.fullmatch(r"[\w./-]*", value, re.ASCII):
        return override
    path = Path(value)
    if value == "~" or value.startswith("~/"):
        path = path.expanduser()
    elif not os.path.exists(value):  # false also for what is too long for a path
        return override
    return f"{key}={as_override(path)}"


def for_yaml(override: str) -> str:
    """The override of `with_path` for commands that read values as YAML, whose quotes have no backslash before them."""
    key, _, value = override.partition("=")
    if not re.fullmatch(r"'.*\\'.*", value):
        return override
    return f"{key}={json.dumps(OverridesParser.create().parse_override(override).value(), ensure_ascii=False)}"
