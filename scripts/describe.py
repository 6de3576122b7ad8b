"""Generates pages of docs/ from classes and configurations.

These are attentions.md, a page for each mechanism in attentions/, settings.md, tasks.md, tables.md, differences.md,
api.md, a table of library.md and of CONTRIBUTING.md, and from docs/results results.md, the answers of arena.md, and the
README's counts and table of results.
"""

import inspect
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, get_type_hints

import subquad
from subquad.cli.command import answer_help, prepare_process
from subquad.config.choices import CONFIGS, options
from subquad.config.compose import load_attention, load_factory, standalone_backbones

answer_help(__doc__)
prepare_process()

from describe_parts import rooms, ways_in  # noqa: E402  after prepare_process
from describe_settings import HEAD, escaped, in_yaml, row, settings_page  # noqa: E402  after prepare_process

from subquad.attention.base import Attention, Discrete, Refreshable, SurrogateGradient  # noqa: E402  after prepare_process
from subquad.config.task_metadata import FACTS, about_task, opening_comment  # noqa: E402
from subquad.measure.scaling import stated_complexity  # noqa: E402
from subquad.report.answers_text import answers_text  # noqa: E402
from subquad.report.differences_page import differences_page  # noqa: E402
from subquad.report.project_page import caption, counts, draw, headline, results_page  # noqa: E402
from subquad.results.benches import read_benches  # noqa: E402
from subquad.results.cells import load_table  # noqa: E402
from subquad.results.collect import all_tables, gather_project  # noqa: E402
from subquad.results.footnotes import notes  # noqa: E402
from subquad.specs import Pattern  # noqa: E402
from subquad.utils.errors import UserError  # noqa: E402
from subquad.utils.setting_types import described  # noqa: E402

ATTENTIONS = """# Attentions

Written by `make docs` from the classes and from `configs/`; a test compares the two. Each page has the mechanism's
formula, its choices of `attention=` or `backbone=`, its settings, and where released code differs.

n: tokens, d: width, h: heads.
"""

FAMILIES = {
    "Softmax over all tokens": ("softmax", "attention_bn", "attention_sh", "conv"),
    "Few rows in place of all tokens": ("linformer", "nystromformer", "luna", "dba", "dba_released", "agent", "flare"),
    "Kernels: sums over the keys first": (
        "linear", "linear_bn_sh", "performer", "cosformer", "flowformer", "ecoformer", "ecoformer_variants", "yoso",
        "flatten", "inline", "xca",
    ),
    "Recurrences in both directions": ("lion", "hydra", "delta_net"),
    "Patterns, buckets and spans of tokens": (
        "local", "longformer", "bigbird", "pixelfly", "sparse", "sparse_bn_sh", "reformer", "sinkhorn", "combiner",
        "mega",
    ),
    "Two of these together": ("scatterbrain", "transformer_ls"),
    "Without queries and keys": ("synthesizer", "fnet"),
    "Backbones with a mechanism of their own (`backbone=`)": ("s4", "s4_dba", "s5", "tlb", "blrp"),
}  # fmt: skip
"""Modules by the idea that reduces their cost; modules that are not listed are shown last."""


@dataclass(frozen=True)
class Choice:
    """One option of a configuration group, and the factory that it builds."""

    group: str
    name: str
    factory: Any

    @property
    def mechanism(self) -> type:
        """The class that the factory builds."""
        mechanism: type = self.factory.func
        return mechanism

    @property
    def text(self) -> str:
        """The opening comment of its configuration file."""
        return " ".join(opening_comment(CONFIGS / self.group / f"{self.name}.yaml"))

    @property
    def wirings(self) -> str:
        """Self-attention, cross-attention, or both; empty for a backbone."""
        patterns: frozenset[Pattern] = getattr(self.mechanism, "patterns", frozenset())
        return ", ".join(sorted(pattern.value for pattern in patterns))

    @property
    def changed(self) -> str:
        """Settings that differ from the defaults of the constructor."""
        parameters = inspect.signature(self.mechanism).parameters
        given = {key: value for key, value in self.factory.keywords.items() if key in parameters}
        return ", ".join(
            f"`{k}={in_yaml(value)}`"
            for k, value in given.items()
            if parameters[k].default not in (value, inspect.Parameter.empty)
        )


@cache
def modules() -> dict[str, list[Choice]]:
    """The choices by the module of their class, each module's most general choice first."""
    by_module = defaultdict(list)
    choices = [Choice("attention", name, load_attention(name)) for name in options("attention")]
    choices += [Choice("backbone", name, load_factory(f"backbone={name}")) for name in standalone_backbones()]
    for choice in choices:
        by_module[choice.mechanism.__module__.rpartition(".")[2]].append(choice)
    return {module: sorted(by_module[module], key=lambda choice: choice.name != module) for module in sorted(by_module)}


def attentions() -> str:
    """The overview page: one row for each module, by family."""
    listed = {module for family in FAMILIES.values() for module in family}
    families = FAMILIES | {"Others": tuple(module for module in modules() if module not in listed)}
    parts = [ATTENTIONS]
    for family, members in families.items():
        if not members:
            continue
        parts.append(f"\n## {family}\n\n| mechanism | what it is | cost |\n|---|---|---|\n")
        for module in members:
            first = modules()[module][0]
            title = _opening(first.mechanism)[0].partition(":")[0]
            text = escaped(re.split(r"(?<!\.)\. |\.$", first.text)[0].rpartition(": ")[2])
            parts.append(f"| [{title}](attentions/{module}.md) | {text} | {stated_complexity(first.factory)} |\n")
    return "".join(parts)


def attention_page(module: str) -> str:
    """The page of a module: its paper, its formula in code, then each class with its settings and choices."""
    choices = modules()[module]
    classes = list(dict.fromkeys(choice.mechanism for choice in choices))
    code = inspect.getmodule(classes[0])
    assert code is not None
    title, source = _opening(classes[0])
    path = Path(inspect.getfile(classes[0])).relative_to(CONFIGS.parent)
    parts = [
        f"# {title}",
        "Written by `make docs`; a test compares this page with the class.",
        f"Paper: {source}." if source else "",
        f"Code: [{path}](../../{path}).",
        f"```bash\npython train.py task=digits {choices[0].group}={choices[0].name}\n```",
    ]
    if naive := [
        function for name, function in inspect.getmembers(code, inspect.isfunction) if name.startswith("naive_")
    ]:
        naive.sort(key=lambda function: inspect.getsourcelines(function)[1])
        sources = "\n\n\n".join(inspect.getsource(function).rstrip() for function in naive)
        parts.append(f"## Equations\n\nTests compare the fast code with these functions.\n\n```python\n{sources}\n```")
    for mechanism in classes:
        parts += _class_sections(mechanism, [choice for choice in choices if choice.mechanism is mechanism])
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(mechanism: type) -> tuple[str, str]:
    """The name of a mechanism and its source, from the first line of its module: "name (source)."."""
    line = (sys.modules[mechanism.__module__].__doc__ or "").splitlines()[0]
    title, _, source = line.rstrip(".").partition(" (")
    return title, source.replace(")", "", 1) if source.count(")") > source.count("(") else source


MODEL = """As a model ([library.md](../library.md)):

```pycon
>>> import torch
>>> from subquad import DataSpec, build_model
>>> model = build_model("{}", DataSpec(max_len=128, vocab=20, classes=10), dim=32)
>>> model(torch.randint(1, 20, (3, 128)), None).shape
torch.Size([3, 10])
```"""


def _class_sections(mechanism: type, choices: list[Choice]) -> list[str]:
    text, meanings, examples, released = split_docstring(mechanism)
    rows = [
        f"| `{choice.name}` | {choice.wirings or 'none'} | {choice.changed or 'the defaults'} | "
        f"{escaped(choice.text)} |"
        for choice in choices
    ]
    costs = "; ".join(dict.fromkeys(stated_complexity(choice.factory) for choice in choices))
    parts = [
        f"## {mechanism.__name__}\n\n```text\n{text}\n```",
        f"Cost: {costs}.",
        f"| `{choices[0].group}=` | wirings | settings | what it is |\n|---|---|---|---|\n" + "\n".join(rows),
    ]
    hints, settings = get_type_hints(mechanism.__init__, include_extras=True), []  # type: ignore[misc]
    for name, parameter in inspect.signature(mechanism).parameters.items():
        if name not in ("site", "spec"):
            default = "" if parameter.default is parameter.empty else f"`{in_yaml(parameter.default)}`"
            kind = described(hints[name]) if name in hints else ""
            settings.append(row(name, default, kind, meanings.get(name, "")))
    if settings:
        parts.append(HEAD + "\n".join(settings))
    if examples:
        parts.append(f"As a layer ([library.md](../library.md)):\n\n{examples}")
    if choices[0].group == "backbone":
        parts.append(MODEL.format(choices[0].name))
    parts.append(_measured(choices))
    return [*parts, _limits(mechanism), f"Released code: {escaped(released)}" if released else ""]


def split_docstring(mechanism: type) -> tuple[str, dict[str, str], str, str]:
    """Splits a docstring into text, meanings of settings (`Args:`), examples as Markdown, and "Released code:"."""
    text, meanings, examples, released = [], {}, "", ""
    docstring = inspect.getdoc(mechanism) or ""
    if found := re.search(r"Examples:\n((?: {4}.*\n|\n(?= {4}))+)", docstring):
        docstring = docstring.replace(found[0], "")
        examples = re.sub(r"(?m)(?:^(?:>>>|\.\.\.).*\n(?:\S.*\n)*)+", r"```pycon\n\g<0>```\n", dedent(found[1])).strip()
    for paragraph in docstring.split("\n\n"):
        head, _, body = paragraph.partition("\n")
        if head == "Args:":
            for entry in re.split(r"\n(?=    \w)", f"\n{body}")[1:]:
                name, _, meaning = " ".join(entry.split()).partition(": ")
                meanings[name] = meaning
        elif paragraph.strip().startswith("Released code: "):
            released = " ".join(paragraph.strip().removeprefix("Released code: ").split())
        else:
            text.append(paragraph)
    return "\n\n".join(text), meanings, examples, released


def _measured(choices: list[Choice]) -> str:
    """The rows for these choices of the table in docs/measuring.md that compares layers with public code."""
    tables = (part.splitlines() for part in (DOCS / "measuring.md").read_text().split("\n\n"))
    head, *lines = next(lines for lines in tables if lines[0].startswith("| `attention=` | public code |"))
    rows = [line for line in lines if any(line.startswith(f"| `{choice.name}` | ") for choice in choices)]
    if not rows:
        return "Measured speed: not measured."
    return (
        "Measured speed, as the time of a layer divided by that of a softmax layer, in brackets that of public code "
        f"([measuring.md](../measuring.md#beside-public-code)):\n\n{head}\n|{'---|' * head.count(' | ')}---|\n"
        + "\n".join(rows)
    )


LIMITS = {
    Refreshable: "Part of its state is fitted to data or drawn anew in training. Here a callback does this; in a "
    "training loop of your own, call `refresh(x, x, Masks())` of the layer with its input.",
    Discrete: "It computes hash codes, so outputs jump where a code changes, more often in low precision.",
    SurrogateGradient: "By design, its gradients are not the derivative of its outputs.",
}
"""What classes with these bases are known for."""


def _limits(mechanism: type) -> str:
    """What the mechanism cannot do, or does differently from softmax attention."""
    patterns: frozenset[Pattern] = getattr(mechanism, "patterns", frozenset(Pattern))
    parts = [f"There is no {pattern.value}-attention form." for pattern in Pattern if pattern not in patterns]
    cannot: frozenset[str] = getattr(mechanism, "cannot_export", frozenset())
    if axes := " and the ".join(sorted(cannot - {"onnx"})):
        parts.append(f"`torch.export` and ONNX fix the {axes} to that of the example, or to a range around it.")
    if "onnx" in cannot:
        parts.append("ONNX does not support its operators.")
    parts += [text for base, text in LIMITS.items() if issubclass(mechanism, base)]
    return f"Limits: {' '.join(parts)}" if parts else ""


TASKS = """# Tasks

Written by `make docs` from the comments of `configs/task/`; a test compares the two. See [data.md](data.md) for how
data are found, generated and cached.

| `task=` | what it is | train / val / test | metric | source |
|---|---|---|---|---|
"""


def tasks() -> str:
    """The page of tasks: one row for each task, then their files, licences and protocols."""
    rows, shared = [], defaultdict(list)
    for name in options("task"):
        facts = about_task(name)
        cells = (escaped(facts[fact]) for fact in ("what", "splits", "metric", "source"))
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
        shared[tuple(facts[fact] for fact in FACTS[2:])].append(f"`{name}`")
    files = [
        f"### {', '.join(names)}\n\n"
        + "\n".join(f"- {fact.capitalize()}: {escaped(text)}" for fact, text in zip(FACTS[2:], texts, strict=True))
        for texts, names in shared.items()
    ]
    return TASKS + "\n".join(rows) + "\n\n## Files, licences, protocols\n\n" + "\n\n".join(files) + "\n"


TABLES = """# Tables

Written by `make docs` from `configs/table/`; a test compares the two. `python scripts/reproduce.py table=dba/2` runs
the cells of a table and shows them beside the printed numbers.

Trained cells are means over seeds of runs of `train.py`. Cells in two steps need runs that start from other runs or are
evaluated on other data. Measured cells are counted or timed. Empty cells are empty in the paper, or cannot be filled by
this package for the reasons below. All other cells are means.

| `table=` | what it shows | rows x columns | trained | in two steps | measured | empty |
|---|---|---|---|---|---|---|
"""


def tables() -> str:
    """The page of tables: one row for each table, then the notes on their cells."""
    rows, sections = [], []
    for name in sorted(
        options("table"), key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    ):
        table = load_table(name)
        counts = [
            sum(cell.trained and not cell.chained for cell in table), sum(cell.chained for cell in table),
            sum(bool(cell.measure and not cell.mean and not cell.unavailable) for cell in table),
            sum(bool(cell.unavailable) for cell in table),
        ]  # fmt: skip
        size = f"{len(table.rows)} x {len(table.columns)}"
        rows.append(f"| `{name}` | {table.title} | {size} | {' | '.join(str(count or '') for count in counts)} |")
        if remarks := notes(table):
            lines = "\n".join(f"- {places}: {escaped(text)}" for places, text in remarks)
            sections.append(f"### {name}\n\n{lines}")
    return TABLES + "\n".join(rows) + "\n\n## Notes\n\n" + "\n\n".join(sections) + "\n"


API = """# API reference

Written by `make docs`; a test compares it with the package. `from subquad import <name>` imports each of these; other
modules may change between versions. The site shows their docstrings here. [library.md](library.md) shows how to use
them.
"""


def api() -> str:
    """The page of public names, which mkdocstrings replaces by their docstrings."""
    groups: dict[str, list[str]] = {"Functions": [], "Attentions": [], "Types": []}
    for name in subquad.__all__:
        item = getattr(subquad, name)
        concrete = isinstance(item, type) and issubclass(item, Attention) and not inspect.isabstract(item)
        group = "Attentions" if concrete else "Types" if isinstance(item, type) else "Functions"
        groups[group].append(f"### {name}\n\n::: {item.__module__}.{name}")
    return "\n".join([API, *(f"## {group}\n\n" + "\n\n".join(names) + "\n" for group, names in groups.items())])


DOCS = CONFIGS.parent / "docs"


README = CONFIGS.parent / "README.md"
LIBRARY = DOCS / "library.md"
CONTRIBUTING = CONFIGS.parent / "CONTRIBUTING.md"
PICTURE = DOCS / "images" / "speed.png"


def measured() -> dict[Path, str]:
    """The texts with numbers that the project has measured: docs/results.md, parts of docs/arena.md and the README."""
    tables, runs = gather_project()
    benches = read_benches()
    readme = _replaced(
        README.read_text(), {"counts": counts(tables), "results": headline(tables), "speed": caption(benches)}
    )
    arena = answers_text(next(table for table in tables if table.table.name == "arena"), benches)
    return {
        DOCS / "results.md": results_page(tables, runs, benches), README: readme,
        DOCS / "arena.md": _replaced((DOCS / "arena.md").read_text(), arena),
    }  # fmt: skip


def _replaced(text: str, parts: dict[str, str]) -> str:
    """The text with new paragraphs behind comments such as `<!-- make docs: results -->`."""
    for name, part in parts.items():
        before, after = text.split(f"<!-- make docs: {name} -->\n\n")
        rest = after.partition("\n\n")[2]
        text = f"{before}<!-- make docs: {name} -->\n\n{part}\n\n{rest}"
    return text


def pages() -> dict[Path, str]:
    """Every generated page and its text, but those with measured numbers."""
    overviews = {
        DOCS / "attentions.md": attentions(), DOCS / "tasks.md": tasks(), DOCS / "tables.md": tables(),
        DOCS / "differences.md": differences_page([load_table(name) for name in all_tables()]),
        DOCS / "api.md": api(), DOCS / "settings.md": settings_page(),
        LIBRARY: _replaced(LIBRARY.read_text(), {"ways": ways_in()}),
        CONTRIBUTING: _replaced(CONTRIBUTING.read_text(), {"rooms": rooms()}),
    }  # fmt: skip
    return overviews | {DOCS / "attentions" / f"{module}.md": attention_page(module) for module in modules()}


if __name__ == "__main__":
    try:
        generated = pages() | measured()
    except UserError as error:
        sys.exit(str(error))
    for old in set((DOCS / "attentions").glob("*.md")) - generated.keys():
        old.unlink()
    for page, text in generated.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    draw(read_benches()[0], PICTURE)
