"""The table of docs/library.md that says where each mechanism can stand."""

from collections import defaultdict

from subquad.config.choices import options
from subquad.library.building import attention_factory
from subquad.library.implementations import PREFIX, simplest, unfit
from subquad.library.rotary import turns

HEAD = """| mechanism | layer | `swap` | `attn_implementation` |
|---|---|---|---|
"""


def ways_in() -> str:
    """One row for each class, in the order of its name."""
    rows = defaultdict(list)
    for name in options("attention"):
        factory, sizes = attention_factory(name), {"dim": 32, "heads": 4, "max_len": 64, "grid": (8, 8)}
        built, simple = factory(**sizes), simplest(factory, **sizes)
        rows[type(built).__name__].append((name, turns(built), unfit(simple)))
    lines = []
    for kind, choices in sorted(rows.items()):
        turned = "yes" if all(turned for _, turned, _ in choices) else "not rotated"
        names = ", ".join(f"`{PREFIX}{name}`" for name, _, reason in choices if reason is None)
        reasons = " or ".join(sorted({reason.partition(" (")[0] for _, _, reason in choices if reason is not None}))
        lines.append(f"| {kind} | yes | {turned} | {names or f'no: it {reasons}'} |")
    return HEAD + "\n".join(lines)
