"""Planted bugs of cosFormer."""

from planted import Bug

BUGS = [
    Bug(
        "cosFormer forgets the mask",
        "attention/cosformer.py",
        'zero_padding(p.key(context, "relu"), mask)',
        'p.key(context, "relu")',
    ),
    Bug(
        "M is the padded length",
        "attention/cosformer.py",
        "max(self.site.query_len, self.site.context_len)",
        "x.shape[1]",
    ),
    Bug(
        "M is the length of the queries",
        "attention/cosformer.py",
        "max(self.site.query_len, self.site.context_len)",
        "self.site.query_len",
    ),
    Bug("queries without ReLU", "attention/cosformer.py", 'p.query(x, "relu")', "p.query(x)"),
    Bug(
        "eps is added, not a floor",
        "attention/cosformer.py",
        "weight.clamp(min=self.eps)",
        "(weight + self.eps)",
    ),
    Bug(
        "normaliser of the cosines only",
        "attention/cosformer.py",
        "head_dot(q, total[:, 1])",
        "0 * head_dot(q, total[:, 1])",
    ),
    Bug(
        "gradient of the reading is not its transpose",
        "attention/cosformer.py",
        "return _spread(gradient, wave), None",
        "return _spread(gradient, wave.flip(-2)), None",
    ),
    Bug(
        "no gradient through the normaliser",
        "attention/cosformer.py",
        "-(gradient * y).sum(-1, keepdim=True)",
        "0 * (gradient * y).sum(-1, keepdim=True)",
    ),
    Bug(
        "values are spread by the wrong places in the gradient",
        "attention/cosformer.py",
        "_gather(gradient, *ctx.saved_tensors)",
        "_gather(gradient, ctx.saved_tensors[0].flip(-2))",
    ),
    Bug(
        "chunks of queries read the places of the first",
        "attention/cosformer.py",
        "zip(x.split(_CHUNK, 1), queries.split(_CHUNK), y.split(_CHUNK, 1), strict=True)",
        "((part, queries[: part.shape[1]], rows) for part, rows in zip(x.split(_CHUNK, 1), y.split(_CHUNK, 1)))",
    ),
    Bug(
        "chunks of keys forget the mask",
        "attention/cosformer.py",
        "repeat(None) if masks.context is None else masks.context.split(_CHUNK, 1)",
        "repeat(None)",
    ),
]
