"""The choices of configuration groups: the names of their files."""

import difflib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from subquad.utils.display import CHECKOUT

CONFIGS = (CHECKOUT or Path(__file__).parents[1]) / "configs"
"""The folder of all configurations: configs/ of a checkout, or the installed package subquad.configs."""


def options(group: str) -> list[str]:
    """Every choice of a config group, nested ones as family/name.

    Excluded are shared files, whose names begin with an underscore, and refinements of a choice for one task, which lie
    in a folder named like the choice (`scale/laptop/lra/listops.yaml`).
    """
    files = (file.relative_to(CONFIGS / group) for file in (CONFIGS / group).rglob("*.yaml"))
    return sorted(name for file in files if is_option(group, name := str(file.with_suffix(""))))


def is_option(group: str, name: str) -> bool:
    """Whether `options` lists a name; faster than listing, because only the file of the name is looked up."""
    path = PurePosixPath(name)
    if str(path) != name or ".." in path.parts or path.is_absolute() or path.name.startswith("_"):
        return False
    refined = any((CONFIGS / group / f"{folder}.yaml").is_file() for folder in path.parents)
    return not refined and (CONFIGS / group / f"{name}.yaml").is_file()


def hint(name: str, known: Sequence[str]) -> str:
    """The end of an error message on an unknown name: similar names where there are any, or all names."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}."
