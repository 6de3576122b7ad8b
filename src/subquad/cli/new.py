"""Writes a runnable attention, task or table, to start from: into your own folder, or into the repository.

python scripts/new.py attention mean_value   # a class, its configuration and its tests
python scripts/new.py task parity            # data and their configuration
python scripts/new.py table mine/1           # two attentions, a counted and a trained column

Configurations go to the first folder that --config-dir, SUBQUAD_CONFIGS or [tool.subquad] of a pyproject.toml names. If
there is none, they go to subquad_configs/, which is then entered in the pyproject.toml of the working folder. Classes
and tests go to the working folder. In the folder of the repository, all go to the places of their kind, such as
src/subquad/attention/, configs/attention/ and tests/attention/. Existing files stay as they are.
"""

import importlib.util
import re
import sys
from keyword import iskeyword
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from subquad.config import choices
from subquad.utils.display import from_here, in_checkout
from subquad.utils.errors import UserError

FOLDER = "subquad_configs"
KINDS = {
    "attention": ("{module}.py", "test_{module}.py"),
    "task": ("{module}.py",),
    "table": (),
}
"""What can be made, and its files in the working folder; each also has a configuration."""
_MEANT = ("all", "base", "none", "null", "true", "false")
"""Names that mean something else to commands, or that files to inherit have."""
NEXT = {
    "attention": (
        "subquad check attention={name}", "subquad train attention={name} task=uea/basic_motions scale=laptop",
        "python -m pytest test_{module}.py",
    ),
    "task": ("subquad prepare task={name}", "subquad train task={name} attention=softmax"),
    "table": ("subquad plan table={name}", "subquad reproduce table={name}"),
}  # fmt: skip
NEXT_HERE = {
    "attention": (
        "fill in its formula, its source and naive_{module}, which tests ask for",
        "python scripts/check_attention.py attention={name}",
        "python -m pytest tests/attention/test_num_params.py --record-golden",
        "python -m tests.gpu.budgets {name} --record", "make docs",
        "python -m pytest tests -k '{module} or {class_name}' -m 'slow or not slow'",
    ),
    "task": (
        "python train.py task={name} attention=softmax", "add it to TASKS of tests/data/test_data_contract.py",
        "make docs", "python -m pytest tests -k {module} -m 'slow or not slow'",
    ),
    "table": ("python scripts/reproduce.py table={name} scale=smoke", "make docs"),
}  # fmt: skip
"""What follows in the repository: docs/adding.md explains it."""


def main() -> None:
    """Writes the files and prints their paths and the commands that use them."""
    kind, name = _arguments(sys.argv[1:])
    module = name.rpartition("/")[2]
    here = in_checkout()
    files = {_place(kind, name, file, here): _template(kind, file) for file in KINDS[kind]}
    _check(kind, name, None if here or not files else module, [*files])
    names = {
        "name": name, "module": module, "here": here,
        "class_name": "".join(part.capitalize() for part in module.split("_")),
        "package": ".".join(next(iter(files), Path(module)).with_suffix("").parts).removeprefix("src."),
    }  # fmt: skip
    files[(Path("configs") if here else _folder()) / kind / f"{name}.yaml"] = f"{kind}.yaml"
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(templates.get_template(template).render(names), encoding="utf-8")
        print(f"wrote {from_here(path)}")
    print("\n".join(["Then:", *(f"  {line.format(**names)}" for line in (NEXT_HERE if here else NEXT)[kind])]))


def _arguments(arguments: list[str]) -> tuple[str, str]:
    """The kind and the name; raises UserError for anything else."""
    if len(arguments) != 2 or arguments[0] not in KINDS:
        raise UserError(f"Say what to write and its name, as in: python scripts/new.py {' or '.join(KINDS)} my_name")
    kind, name = arguments
    parts = {"attention": r"[a-z]\w*", "task": r"(\w+/)*[a-z]\w*", "table": r"(\w+/)*\w+"}
    if not re.fullmatch(parts[kind], name, re.ASCII) or name != name.lower():
        raise UserError(f"{name} cannot be the name of a module; write it as my_{kind}: small letters, digits and _.")
    if iskeyword(last := name.rpartition("/")[2]) or last in _MEANT or last.startswith("_"):
        raise UserError(f"{name} would be no choice, because {last} has a meaning of its own; choose another name.")
    return kind, name


def _check(kind: str, name: str, module: str | None, files: list[Path]) -> None:
    """Raises UserError if something of this name exists."""
    taken = [choices.file_of(kind, name), *(file for file in files if file.exists())]
    if found := [file for file in taken if file is not None]:
        raise UserError(f"{found[0]} exists; choose another name.")
    if above := [folder for folder in map(str, Path(name).parents) if choices.file_of(kind, folder)]:
        raise UserError(f"{above[0]} is a choice of {kind}=, below which there are no others; choose another name.")
    if below := [other for other in choices.options(kind) if other.startswith(f"{name}/")]:
        raise UserError(f"{name} is the folder of {below[0]}; choose another name.")
    if module is not None and importlib.util.find_spec(module) is not None:
        raise UserError(f"{module} is the name of an installed module, which would be found first; choose another.")


def _place(kind: str, name: str, file: str, here: bool) -> Path:
    """Where a class or a test is written: in the working folder, or in the folder of its kind in the repository.

    Data lie in the folder of the first part of the task's name, if there is one.
    """
    path, family = Path(file.format(module=name.rpartition("/")[2])), Path(name).parent
    if not here:
        return path
    if path.name.startswith("test_"):
        return Path("tests") / kind / path
    if kind == "attention":
        return Path("src/subquad/attention") / path
    data = Path("src/subquad/data")
    return (data / family if (data / family / "__init__.py").exists() else data) / path


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
