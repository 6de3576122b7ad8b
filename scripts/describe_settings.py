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
range ends a command with a sentence that names the setting and what it accepts. Whole numbers are below 2⁶³;
numbers are finite. `python train.py --help` shows all defaults. The settings of each attention are on
[its page](attentions.md).
"""
HEAD = "| setting | default | values | meaning |\n|---|---|---|---|\n"
_BUILT = ("spec", "site", "attention", "exact", "encoder", "backbone", "optimizer", "scheduler", "self", "total_steps")
"""Arguments that are no settings: they are built from other groups."""

COMMON = {
    "albert": "folder of the ALBERT that embeds questions.",
    "attention_dropout": "dropout of the attention weights.",
    "augment": "random changes of training images: data.augment.crop, flip, erasing, mixup and others.",
    "batch_size": "rows of a training batch, over all processes and microbatches; recipe.batch_size sets it.",
    "cases": "rows of train and of test at most, drawn at random; null: all. limits.cases sets it.",
    "centre": "is subtracted from a pixel in 0..1 where data.pixels=real.",
    "column": "column of the data set that holds the text.",
    "data_seed": "seed of generated data.",
    "dataset": "name of the data set.",
    "dim": "width of the model.",
    "document": "whether each file or each paragraph is a document.",
    "drop_path": "largest probability of leaving out a layer's branch (stochastic depth).",
    "dropout": "dropout of the layers.",
    "drops": "epochs, from 0, that begin with a drop of the learning rate.",
    "embed_norm": "normalise the embeddings.",
    "epochs": "number of epochs that the schedule spans; limits.epochs sets it.",
    "evaluator": "how answers are scored.",
    "every": "steps between two multiplications by gamma; null: none.",
    "ffn": "hidden width of the feed-forward nets.",
    "final_lr": "learning rate at the end.",
    "final_norm": "normalise after the last layer.",
    "folder": "folder of the files; null: a folder of data.root.",
    "gamma": "factor of a drop of the learning rate.",
    "glove": "text file of GloVe vectors; null: word embeddings start at random.",
    "heads": "number of heads; it divides the width.",
    "image_dim": "width of an image's features.",
    "image_len": "tokens of an image at most.",
    "init_std": "standard deviation of the first weights of linear maps; null: torch's.",
    "kept": "fraction of the chosen tokens that stay as they are.",
    "layers": "number of layers.",
    "masked": "fraction of tokens that are chosen to be predicted.",
    "max_depth": "greatest depth of a generated expression.",
    "max_len": "tokens of a row at most; longer rows are truncated.",
    "max_length": "generated expressions are shorter than this.",
    "min_length": "generated expressions are longer than this.",
    "model": "timm's name of the pyramid.",
    "multiply": "copies of each test expression that are joined to one longer expression of the same value.",
    "norm": "batch or layer normalisation.",
    "num_workers": "processes that load batches; auto: up to 8 on a GPU, none on a CPU.",
    "patch": "pixels of the side of a patch; it divides the side of the image.",
    "position": "embeddings of positions.",
    "protocol": "whether the published selection or a held-out split chooses the best epoch; protocol sets it.",
    "release_dir": "folder of the released files, where data.source=release.",
    "root": "folder of all data; paths.data sets it.",
    "seed": "seed of the order of batches and of augmentation; seed sets it.",
    "size": "pixels of the side of an image.",
    "sizes": "rows of train, val and test.",
    "source": "where the data come from.",
    "split_seed": "seed of held-out rows and of subsets.",
    "spread": "divides a pixel after data.centre is subtracted.",
    "stages": "stages of the pyramid that have the attention under study; the others keep exact attention.",
    "start_lr": "learning rate before the first step.",
    "steps_per_epoch": "steps between two validations; null: a pass over the training rows.",
    "studied": "places that have the attention under study; null: all.",
    "subset": "name of a part of the data set.",
    "swapped": "fraction of the chosen tokens that become random tokens.",
    "synthetic": "generated rows in the format of the real files; data=synthetic sets it.",
    "test_fraction": "fraction of documents held out for the test.",
    "text_len": "tokens of a question at most.",
    "token_std": "standard deviation of the first token embeddings.",
    "tokenizer": "folder or name of a tokenizer; null: one is trained on the training texts.",
    "val_fraction": "fraction of the training rows held out for validation.",
    "vocab": "entries of a tokenizer that is trained.",
    "warmup": "steps (of the schedule by epochs: epochs) until the full learning rate.",
    "warmup_epochs": "epochs until the full learning rate.",
    "workers": "processes or threads that make the data; null: one per core.",
}
"""Meanings of settings that several classes share, where the docstring has no sentence of its own."""


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
        parts.append(f"## {str(owner.__doc__).removesuffix('.')}\n\n{HEAD}" + "\n".join(rows) + "\n")
    for group, title in (("runtime", "Kernels and memory formats"), ("scheduler", "Schedules of the learning rate")):
        parts.append(_group(group, title))
    return "\n".join([*parts, _group("backbone", "Backbones"), _group("task", "Data", "data")])


def _group(group: str, title: str, section: str = "") -> str:
    """The classes or functions that the files of a group choose, each once."""
    owners: dict[Any, list[str]] = {}
    for name in options(group):
        node: Any = OmegaConf.load(file_of(group, name) or "")
        for parent in [*node.get("defaults", []), name]:
            if isinstance(parent, str) and (file := file_of(group, parent.removeprefix(f"/{group}/"))) is not None:
                target = OmegaConf.select(OmegaConf.load(file), f"{section}._target_".lstrip("."))
                if target is not None:
                    owners.setdefault(get_object(target), []).append(name)
    lines = []
    for owner, names in owners.items():
        hints, meanings = argument_types(owner)[0], _meanings(owner)
        rows = [
            row(
                f"{section or group}.{name}",
                _argument(owner, name),
                described(hint),
                meanings.get(name) or COMMON.get(name, ""),
            )
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


def in_yaml(value: Any) -> str:
    """A value as written in YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=list)


def _default(node: Any, name: str) -> str:
    return f"`{in_yaml(node[name])}`" if name in node else ""


def _argument(owner: Callable[..., Any], name: str) -> str:
    """The default of an argument of a class, of its parents, or of a function."""
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        parameter = inspect.signature(place).parameters.get(name)
        if parameter is not None and parameter.default is not parameter.empty:
            return f"`{in_yaml(parameter.default)}`"
    return ""


def _meanings(owner: Callable[..., Any]) -> dict[str, str]:
    """The sentences "name: text" of the docstrings of a class and its parents."""
    found: dict[str, str] = {}
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        if not place.__module__.startswith("subquad"):
            continue
        text = inspect.cleandoc(place.__doc__ or "")
        for names, meaning in re.findall(r"(?m)^ *(\w+(?:, \w+)*): (.+(?:\n(?! *\w+(?:, \w+)*: ) *\S.*)*)", text):
            for name in names.split(", "):
                found.setdefault(name, " ".join(meaning.split()))
    return found


def _sentences(file: Path) -> dict[tuple[str, str], str]:
    """The string below each annotated name of each class in a file."""
    found = {}
    for owner in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(owner, ast.ClassDef):
            for line, text in zip(owner.body, owner.body[1:], strict=False):
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[owner.name, ast.unparse(line.target)] = ast.literal_eval(text.value)
    return found
