"""Planted bugs of local attention."""

from planted import Bug

BUGS = [
    Bug("half a window too wide", "attention/local.py", "half = self.window // 2", "half = (self.window + 1) // 2"),
    Bug(
        "nothing behind the query",
        "attention/local.py",
        "before=half, after=half, dropout=dropout",
        "before=half, after=0, dropout=dropout",
    ),
    Bug(
        "blocks forget the mask",
        "attention/local.py",
        "within_blocks(q, k, v, masks.context, size",
        "within_blocks(q, k, v, None, size",
    ),
    Bug("the pattern of a GPU is strided", "attention/local.py", "query // self.window ==", "query % self.window =="),
    Bug("a window of nothing is accepted", "attention/local.py", "if window < blockwise:", "if window < 0:"),
]
