"""Planted bugs of Combiner."""

from planted import Bug

FILE = "attention/combiner.py"

BUGS = [
    Bug("the own span counts twice", FILE, "(counts[:, None] > 0) & others", "(counts[:, None] > 0) & (others | True)"),
    Bug("spans of padding are seen", FILE, "(counts[:, None] > 0) & others", "(counts[:, None] >= 0) & others"),
    Bug("summaries average padding", FILE, "seen = real.flatten(0, 1)[:, None, None]", "seen = None"),
    Bug("the own node instead of its sibling", FILE, ">> (level - inner)) ^ 1", ">> (level - inner))"),
    Bug("the own inner node instead of its sibling", FILE, "// (leaf << level) ^ 1)", "// (leaf << level))"),
    Bug(
        "whole blocks of the tree are exact",
        FILE,
        "place[:, None] // leaf == place // leaf",
        "place[:, None] >= 0 * place",
    ),
    Bug(
        "the own column counts twice",
        FILE,
        "(counts > 0)[:, :, None, None] & other_column",
        "(counts > 0)[:, :, None, None].expand(-1, -1, -1, width, -1)",
    ),
    Bug(
        "the own token counts twice",
        FILE,
        ".expand(-1, rows, -1, -1, -1) & other_row",
        ".expand(-1, rows, -1, width, -1)",
    ),
    Bug("columns pool padding", FILE, "x.masked_fill(hidden, torch.finfo(x.dtype).min)", "x"),
    Bug(
        "sizes of spans include padding",
        FILE,
        "counts, number = real.sum(2), real.shape[1]",
        "counts, number = real.sum(2) * 0 + size, real.shape[1]",
    ),
]
