"""Planted bugs of Longformer."""

from planted import Bug

BUGS = [
    Bug("nobody sees the global tokens", "attention/longformer.py", "first=first, dropout", "first=0, dropout"),
    Bug(
        "global queries forget the mask",
        "attention/longformer.py",
        "None if mask is None else mask[:, None, None]",
        "None",
    ),
    Bug("global queries are not scaled", "attention/longformer.py", " / math.sqrt(key.shape[1])", ""),
    Bug("bias of the global values lost", "attention/longformer.py", " + self.global_value.bias", ""),
    Bug(
        "global queries through the ordinary map",
        "attention/longformer.py",
        "self.global_query(x)",
        "self.projections.query(x)",
    ),
    Bug(
        "on a GPU nobody sees the global tokens",
        "attention/longformer.py",
        " | (key < self.global_tokens)",
        "",
    ),
]
