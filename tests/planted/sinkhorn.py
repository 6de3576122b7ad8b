"""Planted bugs of sparse Sinkhorn attention."""

from planted import Bug

FILE = "attention/sinkhorn.py"

BUGS = [
    Bug(
        "padding enters the mixed blocks",
        FILE,
        "blocks(zero_padding(y, mask), self.block)",
        "blocks(y, self.block)",
    ),
    Bug(
        "heads read a part at a time are sorted by the first",
        FILE,
        "zip(q, k, v, sort,",
        "zip(q, k, v, sort[:1] * len(q),",
    ),
    Bug(
        "blocks of padding are sorted too",
        FILE,
        "None if mask is None else real, self.iterations",
        "None, self.iterations",
    ),
    Bug("means count padding", FILE, "mean_pool(context, mask, self.block)", "mean_pool(context, None, self.block)"),
    Bug("no temperature", FILE, "logits / self.temperature", "logits"),
    Bug("ends on a row", FILE, "s = logits.exp()", "s = logits.softmax(-1)"),
    Bug("noise in eval", FILE, "if self.gumbel and self.training:", "if self.gumbel:"),
    Bug(
        "sorts by the transpose",
        FILE,
        "mixed.baddbmm_(weights, own, beta=0)",
        "mixed.baddbmm_(weights.mT, own, beta=0)",
    ),
    Bug(
        "every place of a mixed block is seen", FILE, "own.any(1, keepdim=True).expand_as(own)", "torch.ones_like(own)"
    ),
    Bug(
        "gradient of the sorted blocks lost",
        FILE,
        "total = (weights.mT",
        "total = (0 * weights.mT",
    ),
]
