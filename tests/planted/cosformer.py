"""Planted bugs of cosFormer."""

from planted import Bug

BUGS = [
    Bug(
        "cosFormer forgets the mask",
        "attention/cosformer.py",
        "zero_padding(p.key(context), masks.context)",
        "p.key(context)",
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
    Bug("queries without ReLU", "attention/cosformer.py", "F.relu_(p.query(x))", "p.query(x)"),
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
        "return _Spread.apply(gradient, *ctx.saved_tensors), None",
        "return _Spread.apply(gradient, ctx.saved_tensors[0].flip(2)), None",
    ),
]
