"""Writes the generated pages of docs/ from classes and configurations: docs/attentions.md."""

import inspect
import re
from pathlib import Path

from subquad.run.doors import CONFIGS, ROOT, answer_help, load_attention, options, prepare_process

answer_help(__doc__)
prepare_process()

from subquad.backbones.base import is_encoder  # noqa: E402  after prepare_process
from subquad.measure.scaling import stated_complexity  # noqa: E402

PAGE = ROOT / "docs" / "attentions.md"
HEAD = """# Attentions

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
        file = (CONFIGS / "attention" / f"{name}.yaml").read_text().removeprefix("# @package _global_\n")
        comment = re.match(r"# (.*?)\n(?!# )", file, re.DOTALL)
        assert comment is not None, f"configs/attention/{name}.yaml must open with a comment"
        text = re.sub(r"\n# ", " ", comment[1])
        rows.append(f"| `{name}` | {', '.join(sorted(wirings))} | {stated_complexity(factory)} | {text} |")
        classes[mechanism.__name__] = mechanism
    sections = [_section(mechanism) for _, mechanism in sorted(classes.items())]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def _section(mechanism: type) -> str:
    module = inspect.getmodule(mechanism)
    assert module is not None
    source = Path(inspect.getfile(mechanism)).relative_to(ROOT)
    title = (inspect.getdoc(module) or "").splitlines()[0]
    return f"## {mechanism.__name__}\n\n{title} ([{source}](../{source}))\n\n```text\n{inspect.getdoc(mechanism)}\n```"


if __name__ == "__main__":
    PAGE.write_text(attentions())
