"""Planted bugs of BigBird."""

from planted import Bug

BUGS = [
    Bug(
        "the last block is that of the padding",
        "attention/bigbird.py",
        "places if mask is None else places * mask",
        "places",
    ),
    Bug(
        "random blocks may be near",
        "attention/bigbird.py",
        "(own[:, None] - own).abs() > 1",
        "(own[:, None] - own).abs() > 0",
    ),
    Bug("random blocks may be global", "attention/bigbird.py", " & (own > 0)", ""),
    Bug("random blocks of block 0 for all", "attention/bigbird.py", "self.random[:, :count]", "self.random[:, :1]"),
    Bug("all layers draw the same", "attention/bigbird.py", "manual_seed(site.layer)", "manual_seed(0)"),
    Bug("too few free blocks are filled with others", "attention/bigbird.py", ".masked_fill(best.values < 0, -1)", ""),
    Bug(
        "queries of the first block see few", "attention/bigbird.py", "[top, mixed[:, 1:]", "[mixed[:, 0], mixed[:, 1:]"
    ),
    Bug(
        "queries that see all forget the mask",
        "attention/bigbird.py",
        "None if mask is None else mask[:, None, None]",
        "None",
    ),
    Bug(
        "padding is seen where there are few blocks", "attention/bigbird.py",
        "return seen if mask is None else seen &", "return seen if True else seen &",
    ),
    Bug("the band has one side", "attention/bigbird.py", "own - 1, own, own + 1]", "own - 1, own, own - 1]"),
    Bug(
        "on a GPU all heads see the blocks of the first",
        "attention/bigbird.py",
        "chosen[head, a]",
        "chosen[head * 0, a]",
    ),
]  # fmt: skip
