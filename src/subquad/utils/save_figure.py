"""Writes figures to disk, with the numbers that they show."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subquad.utils.atomic import atomic_write


def save(figure: Any, numbers: Mapping[str, Any], folder: Path, name: str, dpi: int = 130) -> list[Path]:
    """Writes <name>.png, <name>.svg and <name>.json to a folder; numbers are rounded to six digits.

    Letters of the SVG are drawn as shapes, so that no font is missing elsewhere.
    """
    *images, data = paths = [folder / f"{name}.{kind}" for kind in ("png", "svg", "json")]
    for path in images:
        with atomic_write(path, several=True) as temporary:
            figure.savefig(temporary, dpi=dpi, format=path.suffix[1:])
    with atomic_write(data, several=True) as temporary:
        temporary.write_text(json.dumps(_rounded(numbers), indent=1), encoding="utf-8")
    return paths


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
