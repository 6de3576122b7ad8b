"""Planted bugs of Flowformer."""

from planted import Bug

BUGS = [
    Bug(
        "Flowformer forgets the mask of keys",
        "attention/flowformer.py",
        'zero_padding(p.key(context, "sigmoid"), masks.context)',
        'p.key(context, "sigmoid")',
    ),
    Bug(
        "padded queries take in flow",
        "attention/flowformer.py",
        'zero_padding(p.query(x, "sigmoid"), masks.query)',
        'p.query(x, "sigmoid")',
    ),
    Bug(
        "padding competes",
        "attention/flowformer.py",
        "masked_softmax(conserved_out, None if masks.context is None else masks.context[..., None, None], 1)",
        "conserved_out.softmax(1)",
    ),
    Bug(
        "padded tokens are counted",
        "attention/flowformer.py",
        "mask.sum(1).clamp(min=1)[:, None, None, None]",
        "x.shape[1]",
    ),
    Bug("no epsilon on the outgoing flow", "attention/flowformer.py", "q.sum(1)) + self.eps", "q.sum(1))"),
    Bug("gate without n/m", "attention/flowformer.py", "(conserved_in * n / m)", "conserved_in"),
    Bug("keys compete within a head's width", "attention/flowformer.py", "share * m", "share"),
]
