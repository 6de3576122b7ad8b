"""Writes figures to disk, with the numbers that they show."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subquad.utils.atomic import whole


def save(figure: Any, numbers: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Writes <name>.png, <name>.svg and <name>.json to a folder, atomically; numbers are rounded to six digits."""
    *drawn, written = paths = [folder / f"{name}.{kind}" for kind in ("png", "svg", "json")]
    for path in drawn:
        with whole(path, several=True) as place:
            figure.savefig(place, dpi=130, format=path.suffix[1:])
    with whole(written, several=True) as place:
        place.write_text(json.dumps(_rounded(numbers), indent=1))
    return paths


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value
