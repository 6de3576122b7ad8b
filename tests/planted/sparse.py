"""Planted bugs of the sparse transformer's attention."""

from planted import Bug

BUGS = [
    Bug(
        "summary keys of the own block count twice",
        "attention/sparse.py",
        " & (place[:chunk] % b < b - c)",
        "",
    ),
    Bug("the fixed form forgets the mask", "attention/sparse.py", "if mask is not None:", "if False:"),
    Bug(
        "the mask of the summaries is that of the first tokens",
        "attention/sparse.py",
        "mask[:, ends[:count]]",
        "mask[:, :count]",
    ),
    Bug(
        "causal blocks see what follows",
        "attention/sparse.py",
        "near = near & (place[:chunk] <= place[:chunk, None])",
        "near = near & True",
    ),
    Bug(
        "an unfinished block has all its summaries",
        "attention/sparse.py",
        "+ max(0, stop % self.block - (self.block - self.summary))",
        "",
    ),
    Bug(
        "the query itself counts twice",
        "attention/sparse.py",
        "else number != number[:, None]",
        "else number == number",
    ),
    Bug(
        "the strided form forgets the mask",
        "attention/sparse.py",
        "real = around_mask(mask, n, b, 0, 0, device)",
        "real = around_mask(None, n, b, 0, 0, device)",
    ),
    Bug("the strided form is not scaled", "attention/sparse.py", "q = q / math.sqrt(width)", "q = q * 1"),
    Bug(
        "the strided form drops nothing",
        "attention/sparse.py",
        "weights = drop(weights, self._dropout, self.training)",
        "weights = weights * 1",
    ),
    Bug(
        "the pattern of a GPU is not causal",
        "attention/sparse.py",
        "return seen & (key <= query) if self.causal else seen",
        "return seen",
    ),
]
