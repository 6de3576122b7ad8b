"""Numbers of bytes as text."""

import re
from typing import Any

from subquad.utils.errors import UserError

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_of(size: Any, setting: str) -> int:
    """The bytes of a size such as 80GB, in decimal units; raises UserError, which names the setting, if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(MB|GB|TB)", str(size))
    if match is None or not float(match[1]):
        raise UserError(f"{setting} is {size}; it takes a size, such as 80GB.")
    return int(float(match[1]) * _UNITS[match[2]])


def readable_bytes(count: float) -> str:
    """A number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB" if count < 999.5 else f"{count:,.0f} TB"
