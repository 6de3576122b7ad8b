"""The tables of settings in the generated pages: defaults, types with ranges, meanings."""

import ast
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from hydra.utils import get_object
from omegaconf import OmegaConf

from subquad.config import run_settings
from subquad.config.choices import file_of, options
from subquad.config.compose import compose_run
from subquad.utils.setting_types import argument_types, described

PAGE = """# Settings

Written by `make docs` from the annotations that the checks read; a test compares the two. A value of another type or
range ends a command with a sentence that names the setting and what it accepts. Whole numbers of models and data are
below 2³¹; numbers are finite. `python train.py --help` shows all defaults. The settings of each attention are on
[its page](attentions.md).
"""
HEAD = "| setting | default | values | meaning |\n|---|---|---|---|\n"
_BUILT = ("spec", "site", "attention", "exact", "encoder", "backbone", "optimizer", "scheduler", "self", "total_steps")
"""Arguments that are no settings: they are built from other groups."""


def settings_page() -> str:
    """Settings outside of classes of this package, then those of each class that a group chooses."""
    parts = [PAGE]
    plain = OmegaConf.to_container(compose_run([]), resolve=False)
    texts = _sentences(Path(inspect.getfile(run_settings)))
    for section, owner in run_settings.SECTIONS.items():
        node: Any = plain.get(section, {}) if section and isinstance(plain, dict) else plain
        rows = [
            row(f"{section}.{name}".lstrip("."), _default(node, name), described(hint), texts[owner.__name__, name])
            for name, hint in get_type_hints(owner, include_extras=True).items()
        ]
        parts.append(f"## {owner.__doc__}\n\n{HEAD}" + "\n".join(rows) + "\n")
    for group, title in (("runtime", "Kernels and memory formats"), ("scheduler", "Schedules of the learning rate")):
        parts.append(_group(group, title))
    return "\n".join([*parts, _group("backbone", "Backbones"), _group("task", "Data", "data")])


def _group(group: str, title: str, section: str = "") -> str:
    """The classes or functions that the files of a group choose, each once."""
    owners: dict[Any, list[str]] = {}
    for name in options(group):
        node = OmegaConf.load(file_of(group, name) or "")
        for parent in [*node.get("defaults", []), name]:
            if isinstance(parent, str) and (file := file_of(group, parent.removeprefix(f"/{group}/"))) is not None:
                target = OmegaConf.select(OmegaConf.load(file), f"{section}._target_".lstrip("."))
                if target is not None:
                    owners.setdefault(get_object(target), []).append(name)
    lines = []
    for owner, names in owners.items():
        hints, meanings = argument_types(owner)[0], _meanings(owner)
        rows = [
            row(f"{section or group}.{name}", _argument(owner, name), described(hint), meanings.get(name, ""))
            for name, hint in hints.items()
            if name not in _BUILT and hint is not Any
        ]
        if rows:
            chosen = ", ".join(f"`{group}={name}`" for name in dict.fromkeys(names))
            lines.append(f"### {owner.__name__}\n\n{chosen}\n\n{HEAD}" + "\n".join(rows) + "\n")
    return f"## {title}\n\n" + "\n".join(lines)


def row(name: str, default: str, values: str, meaning: str) -> str:
    """A row of a table of settings."""
    return f"| `{name}` | {default} | {escaped(values)} | {escaped(meaning)} |"


def escaped(text: str) -> str:
    """Escapes text for a Markdown table: `<` outside of backticks would begin a tag, and `|` would end the cell."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _default(node: Any, name: str) -> str:
    return f"`{json.dumps(node[name])}`" if name in node and not isinstance(node[name], str) else (
        f"`{node[name]}`" if name in node else ""
    )  # fmt: skip


def _argument(owner: Callable[..., Any], name: str) -> str:
    """The default of an argument of a class, of its parents, or of a function."""
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        parameter = inspect.signature(place).parameters.get(name)
        if parameter is not None and parameter.default is not parameter.empty:
            value = parameter.default
            return f"`{value if isinstance(value, str) else json.dumps(value, default=list)}`"
    return ""


def _meanings(owner: Callable[..., Any]) -> dict[str, str]:
    """The sentences "name: text" of the docstrings of a class and its parents."""
    found: dict[str, str] = {}
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        if not place.__module__.startswith("subquad"):
            continue
        text = inspect.cleandoc(place.__doc__ or "")
        for names, meaning in re.findall(r"(?m)^ *((?:\w+)(?:, \w+)*): (.+(?:\n +\S.*|\n(?! *[\w, ]+: )\S.*)*)", text):
            for name in names.split(", "):
                found.setdefault(name, " ".join(meaning.split()))
    return found


def _sentences(file: Path) -> dict[tuple[str, str], str]:
    """The string below each annotated name of each class in a file."""
    found = {}
    for owner in ast.parse(file.read_text()).body:
        if isinstance(owner, ast.ClassDef):
            for line, text in zip(owner.body, owner.body[1:], strict=False):
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[owner.name, ast.unparse(line.target)] = ast.literal_eval(text.value)
    return found
