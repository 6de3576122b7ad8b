"""Planted bugs of sparse Sinkhorn attention."""

from planted import Bug

FILE = "attention/sinkhorn.py"

BUGS = [
    Bug(
        "padding enters the mixed blocks",
        FILE,
        "blocks(zero_padding(x, mask), self.block)",
        "blocks(x, self.block)",
    ),
    Bug("every head is sorted as the first", FILE, "(sort.to(x.dtype) @ rows)", "(sort[:1].to(x.dtype) @ rows)"),
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
    Bug("sorts by the transpose", FILE, "sort.to(x.dtype) @ rows", "sort.mT.to(x.dtype) @ rows"),
    Bug(
        "every place of a mixed block is seen", FILE, "own.any(1, keepdim=True).expand_as(own)", "torch.ones_like(own)"
    ),
    Bug("gradient of the sorted blocks lost", FILE, "mixed = (sort.to", "mixed = (sort.detach().to"),
]
