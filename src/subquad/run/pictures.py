"""Pictures and the numbers behind them, on disk."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def save(figure: Any, numbers: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Writes <name>.png, .svg and .json into a folder, each appearing whole; numbers get six digits."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg", "json")]
    staged = [path.with_name(f".{os.getpid()}{path.suffix}") for path in paths]
    for place in staged[:2]:
        figure.savefig(place, dpi=130)
    staged[2].write_text(json.dumps(_rounded(numbers), indent=1))
    for place, path in zip(staged, paths, strict=True):
        os.replace(place, path)
    return paths


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value
