"""The folders of configurations, and the choices of their groups: the names of their files.

A user's own folders are named by `--config-dir`, by the environment variable SUBQUAD_CONFIGS (several are separated as
in PATH), or by the nearest pyproject.toml, from the working folder upwards, that has

    [tool.subquad]
    configs = "configs"  # or a list of folders, relative to that file
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from textwrap import fill
from typing import Any

from subquad.utils.display import CHECKOUT
from subquad.utils.errors import UserError

CONFIGS = (CHECKOUT or Path(__file__).parents[1]) / "configs"
"""The folder of Subquad's configurations: configs/ of a checkout, or the installed package subquad.configs."""

OWN = "SUBQUAD_CONFIGS"


def folders() -> tuple[Path, ...]:
    """The user's folders of configurations, then Subquad's.

    Raises UserError for a folder that does not exist, that holds the working folder, or that has a file of the same
    name as another one: two choices of one name would make results ambiguous.
    """
    return _folders(Path.cwd(), os.environ.get(OWN, ""), CONFIGS)


@cache
def _folders(here: Path, variable: str, shipped: Path) -> tuple[Path, ...]:
    named = [(here / name, f"--config-dir or {OWN}") for name in variable.split(os.pathsep) if name]
    if (found := _project(here)) is not None:
        file, names = found
        named += [(file.parent / name, str(file)) for name in names]
    own: list[Path] = []
    for path, source in named:
        folder = path.resolve()
        if not folder.is_dir():
            raise UserError(f"{path} is no folder, and {source} names it as one; create it, or correct the name.")
        if here.resolve().is_relative_to(folder):
            raise UserError(
                f"{folder}, which {source} names, holds the working folder with its data and outputs; give "
                "configurations a folder of their own."
            )
        for file in folder.rglob("*.yaml"):
            if clash := [
                other for other in (*own, shipped) if other != folder and (other / file.relative_to(folder)).exists()
            ]:
                raise UserError(f"{file} has the name of a file in {clash[0]}; rename it.")
        if folder not in (*own, shipped.resolve()):
            own.append(folder)
    return (*own, shipped)


def project() -> Path | None:
    """The folder of the nearest pyproject.toml with a table [tool.subquad], from the working folder upwards."""
    found = _project(Path.cwd())
    return found and found[0].parent


@cache
def _project(here: Path) -> tuple[Path, list[str]] | None:
    """The file and the folders that it names."""
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("subquad")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read ({error}); mend it.") from None
        if table is not None:
            names = table.get("configs", []) if isinstance(table, dict) and {*table} <= {"configs"} else None
            names = [names] if isinstance(names, str) else names
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UserError(f'[tool.subquad] of {file} takes configs = "<folder>", or a list of folders, only.')
            return file, names
    return None


def options(group: str) -> list[str]:
    """Every choice of a config group, nested ones as family/name, with the user's own.

    Excluded are files to inherit, which are named `base` in the folder of their family (`task/uea/base.yaml`) or begin
    with an underscore, and refinements of a choice for one task, which lie in a folder named like the choice
    (`scale/laptop/lra/listops.yaml`).
    """
    return sorted(name for name in _names(group) if is_option(group, name))


def _names(group: str) -> Iterator[str]:
    for folder in folders():
        for file in (folder / group).rglob("*.yaml"):
            yield file.relative_to(folder / group).with_suffix("").as_posix()


def is_option(group: str, name: str) -> bool:
    """Whether `options` lists a name; faster than listing, because only the file of the name is looked up."""
    path = PurePosixPath(name)
    if str(path) != name or ".." in path.parts or path.is_absolute() or path.name.startswith("_"):
        return False
    if path.name == "base" and len(path.parts) > 1:
        return False
    if (file := file_of(group, name)) is None:
        return False
    places = {file.parents[len(path.parts) - 1], CONFIGS / group}  # a file of the user hides nothing that is shipped
    return not any(os.path.isfile(place / f"{folder}.yaml") for folder in path.parents for place in places)


def file_of(group: str, name: str) -> Path | None:
    """The file of a choice."""
    files = (folder / group / f"{name}.yaml" for folder in folders())
    return next((file for file in files if os.path.isfile(file)), None)


def groups() -> set[str]:
    """The names of the groups at the top level."""
    return {path.name for folder in folders() for path in folder.iterdir() if path.is_dir()}


def of_training() -> str:
    """What can be chosen on the command line of train.py: a paragraph for each group."""
    return "\n".join(
        fill(f"{group}= {', '.join(options(group))}", 118, subsequent_indent="    ", break_on_hyphens=False)
        for group in sorted(groups() - {"figure", "hydra", "paths", "table"})
    )


def hint(name: str, known: Sequence[str]) -> str:
    """The end of an error message on an unknown name: similar names where there are any, or all names."""
    by_lower = {one.lower(): one for one in known}
    close = [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}."
