"""Writes the generated pages of docs/ from classes and configurations: attentions.md, tasks.md and tables.md."""

import inspect
import re
from collections import defaultdict
from pathlib import Path

from subquad.run.doors import CONFIGS, ROOT, answer_help, load_attention, options, prepare_process

answer_help(__doc__)
prepare_process()

from subquad.backbones.base import is_encoder  # noqa: E402  after prepare_process
from subquad.measure.scaling import stated_complexity  # noqa: E402
from subquad.run.cells import load_table  # noqa: E402
from subquad.run.facts import FACTS, opening_comment, task_facts  # noqa: E402
from subquad.tables.notes import notes  # noqa: E402

ATTENTIONS = """# Attentions

Written by `make docs` from the classes and from `configs/attention/`; a test compares the two.
Wirings: a sequence to itself (self), one sequence to another (cross), or a whole encoder that takes the place of the
backbone (encoder).

| `attention=` | wirings | complexity | what it is |
|---|---|---|---|
"""


def attentions() -> str:
    """The page: one row for each choice, then each class's formula and keys."""
    rows, classes = [], {}
    for name in options("attention"):
        factory = load_attention(name)
        mechanism = factory.func
        wirings = ["encoder"] if is_encoder(factory) else [pattern.value for pattern in mechanism.patterns]
        text = " ".join(opening_comment(CONFIGS / "attention" / f"{name}.yaml"))
        rows.append(f"| `{name}` | {', '.join(sorted(wirings))} | {stated_complexity(factory)} | {text} |")
        classes[mechanism.__name__] = mechanism
    sections = [_section(mechanism) for _, mechanism in sorted(classes.items())]
    return ATTENTIONS + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def _section(mechanism: type) -> str:
    module = inspect.getmodule(mechanism)
    assert module is not None
    source = Path(inspect.getfile(mechanism)).relative_to(ROOT)
    title = (inspect.getdoc(module) or "").splitlines()[0]
    return f"## {mechanism.__name__}\n\n{title} ([{source}](../{source}))\n\n```text\n{inspect.getdoc(mechanism)}\n```"


TASKS = """# Tasks

Written by `make docs` from the comments of `configs/task/`; a test compares the two. [data.md](data.md) tells how data
are found, made and cached.

| `task=` | what it is | train / val / test | metric | source |
|---|---|---|---|---|
"""


def tasks() -> str:
    """The page: one row for each choice, then what tasks have in common about files, licences and protocols."""
    rows, shared = [], defaultdict(list)
    for name in options("task"):
        facts = task_facts(name)
        cells = (_escaped(facts[fact]) for fact in ("What", "Splits", "Metric", "Source"))
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
        shared[tuple(facts[fact] for fact in FACTS[2:])].append(f"`{name}`")
    files = [
        f"### {', '.join(names)}\n\n"
        + "\n".join(f"- {fact}: {_escaped(text)}" for fact, text in zip(FACTS[2:], said, strict=True))
        for said, names in shared.items()
    ]
    return TASKS + "\n".join(rows) + "\n\n## Files, licences, protocols\n\n" + "\n\n".join(files) + "\n"


def _escaped(text: str) -> str:
    """Markdown takes <name> for a tag, except between backticks."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


TABLES = """# Tables

Written by `make docs` from `configs/table/`; a test compares the two. `python scripts/reproduce.py table=dba/2` runs
the cells of a table and shows them beside the printed numbers.

Trained cells are filled by runs of `train.py` (means over seeds), those in two steps by runs that start from other runs
or are evaluated on other data, measured ones by counting or timing; the rest are means. Empty are cells that the paper
leaves empty, and those that this package cannot fill, for the reasons below.

| `table=` | what it shows | rows x columns | trained | in two steps | measured | empty |
|---|---|---|---|---|---|---|
"""


def tables() -> str:
    """The page: one row for each table, then the notes on its cells."""
    rows, sections = [], []
    for name in sorted(
        options("table"), key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    ):
        table = load_table(name)
        counts = [
            sum(cell.trained for cell in table), sum(cell.chained for cell in table),
            sum(bool(cell.measure and not cell.mean and not cell.missing) for cell in table),
            sum(bool(cell.missing) for cell in table),
        ]  # fmt: skip
        size = f"{len(table.rows)} x {len(table.columns)}"
        rows.append(f"| `{name}` | {table.title} | {size} | {' | '.join(str(count or '') for count in counts)} |")
        if said := notes(table):
            lines = "\n".join(f"- {places}: {_escaped(text)}" for places, text in said)
            sections.append(f"### {name}\n\n{lines}")
    return TABLES + "\n".join(rows) + "\n\n## Notes\n\n" + "\n\n".join(sections) + "\n"


PAGES = {
    ROOT / "docs" / "attentions.md": attentions,
    ROOT / "docs" / "tasks.md": tasks,
    ROOT / "docs" / "tables.md": tables,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        page.write_text(write())
