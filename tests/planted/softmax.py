"""Planted bugs of softmax attention."""

from planted import Bug

BUGS = [
    Bug("fused softmax forgets the mask", "attention/softmax.py", "attn_mask=keys, ", ""),
    Bug(
        "dropout acts in eval",
        "attention/softmax.py",
        "self.site.dropout if self.training else 0.0",
        "self.site.dropout",
    ),
    Bug("scale of the whole width", "attention/softmax.py", "math.sqrt(q.shape[-1])", "math.sqrt(self.site.dim)"),
]
