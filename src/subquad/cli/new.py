"""Writes a runnable attention, task or table into your own folder, to start from.

python scripts/new.py attention mean_value   # a class, its configuration and its tests
python scripts/new.py task parity            # data and their configuration
python scripts/new.py table mine/1           # two attentions, a counted and a trained column

Configurations go to the first folder that --config-dir, SUBQUAD_CONFIGS or [tool.subquad] of a pyproject.toml names. If
there is none, they go to subquad_configs/, which is then entered in the pyproject.toml of the working folder. Classes
and tests go to the working folder. Existing files stay as they are.
"""

import importlib.util
import re
import sys
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from subquad.config import choices
from subquad.utils.display import CHECKOUT
from subquad.utils.errors import UserError

FOLDER = "subquad_configs"
KINDS = {
    "attention": ("{module}.py", "test_{module}.py"),
    "task": ("{module}.py",),
    "table": (),
}
"""What can be made, and its files in the working folder; each also has a configuration."""
NEXT = {
    "attention": (
        "subquad check attention={name}", "subquad train attention={name} task=uea/basic_motions scale=laptop",
        "python -m pytest test_{module}.py",
    ),
    "task": ("subquad prepare task={name}", "subquad train task={name} attention=softmax"),
    "table": ("subquad plan table={name}", "subquad reproduce table={name}"),
}  # fmt: skip


def main() -> None:
    """Writes the files and prints their paths and the commands that use them."""
    kind, name = _arguments(sys.argv[1:])
    module = name.rpartition("/")[2]
    names = {"name": name, "module": module, "class_name": "".join(part.capitalize() for part in module.split("_"))}
    files = {Path(file.format(module=module)): _template(kind, file) for file in KINDS[kind]}
    _check(kind, name, module if files else None, [*files])
    files[_folder() / kind / f"{name}.yaml"] = f"{kind}.yaml"
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(templates.get_template(template).render(names), encoding="utf-8")
        print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    print("\n".join(["Then:", *(f"  {line.format(**names)}" for line in NEXT[kind])]))


def _arguments(arguments: list[str]) -> tuple[str, str]:
    """The kind and the name; raises UserError for anything else."""
    if len(arguments) != 2 or arguments[0] not in KINDS:
        raise UserError(f"Say what to write and its name, as in: python scripts/new.py {' or '.join(KINDS)} my_name")
    kind, name = arguments
    parts = {"attention": r"[a-z]\w*", "task": r"(\w+/)*[a-z]\w*", "table": r"(\w+/)*\w+"}
    if not re.fullmatch(parts[kind], name, re.ASCII) or name != name.lower():
        raise UserError(f"{name} cannot be the name of a module; write it as my_{kind}: small letters, digits and _.")
    return kind, name


def _check(kind: str, name: str, module: str | None, files: list[Path]) -> None:
    """Raises UserError if something of this name exists, or if the working folder is the repository."""
    if CHECKOUT is not None and Path.cwd() == CHECKOUT:
        raise UserError("This is the repository of Subquad; run it in a folder of your own (see docs/adding.md).")
    taken = [choices.file_of(kind, name), *(file for file in files if file.exists())]
    if found := [file for file in taken if file is not None]:
        raise UserError(f"{found[0]} exists; choose another name.")
    if module is not None and importlib.util.find_spec(module) is not None:
        raise UserError(f"{module} is the name of an installed module, which would be found first; choose another.")


def _folder() -> Path:
    """The user's folder of configurations, which is made and entered in pyproject.toml if there is none."""
    if own := choices.folders()[:-1]:
        return own[0]
    if (project := choices.project()) is not None:
        raise UserError(f'[tool.subquad] of {project / "pyproject.toml"} names no folder; add configs = "{FOLDER}".')
    file = Path("pyproject.toml")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    before = f"{text.rstrip()}\n\n" if text else ""
    file.write_text(f'{before}[tool.subquad]\nconfigs = "{FOLDER}"\n', encoding="utf-8")
    print(f"entered {FOLDER} in {file}")
    return Path(FOLDER)


def _template(kind: str, file: str) -> str:
    """The name of a template: test_attention.py.txt for test_{module}.py of an attention."""
    return f"{file.format(module=kind)}.txt"
