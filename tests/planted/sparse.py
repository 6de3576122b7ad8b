"""Planted bugs of the sparse transformer's attention."""

from planted import Bug

OPS = "ops/sparse_patterns.py"
BUGS = [
    Bug("summary keys of the own block count twice", OPS, " & (key % block < first)", ""),
    Bug("the fixed form forgets the mask", OPS, "if mask is not None:", "if False:"),
    Bug("the mask of the summaries is that of the first tokens", OPS, "mask[:, ends[:count]]", "mask[:, :count]"),
    Bug("causal blocks see what follows", OPS, "near = near & (key <= window)", "near = near & True"),
    Bug("an unfinished block has all its summaries", OPS, "+ max(0, stop % block - (block - summary))", ""),
    Bug(
        "queries of a window see what their place sees",
        OPS,
        "device=q.device)[:, None] // stride",
        "device=q.device)[:, None]",
    ),
    Bug("summaries are not scaled", OPS, "math.ceil(summary / stride)", "min(summary, math.ceil(block / stride))"),
    Bug("the query itself counts twice", OPS, "else number != number[:, None]", "else number == number"),
    Bug(
        "the strided form forgets the mask",
        OPS,
        "real = around_mask(mask, m, block, 0, 0, device)",
        "real = around_mask(None, m, block, 0, 0, device)",
    ),
    Bug("the strided form is not scaled", OPS, "q = q / math.sqrt(width)", "q = q * 1"),
    Bug("the strided form drops nothing", OPS, "drop(weights, dropout, True)", "weights"),
    Bug("one form for both", "attention/sparse.py", "form=self.form", 'form="fixed"'),
    Bug("causal is forgotten", "attention/sparse.py", "causal=self.causal, ", ""),
    Bug("padding is read", "attention/sparse.py", "q, k, v, masks.context, form", "q, k, v, None, form"),
    Bug(
        "the pattern of a GPU is not causal",
        "attention/sparse.py",
        "return seen & (key <= query) if self.causal else seen",
        "return seen",
    ),
    Bug("strided blocks need summaries", OPS, 'form == "fixed" and not', "not", "tests/attention/test_sparse.py"),
]
