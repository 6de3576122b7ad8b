"""Planted bugs of softmax and linear attention."""

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
    Bug("linear attention forgets the mask", "attention/linear.py", "if masks.context is not None:", "if False:"),
    Bug("linear attention has no epsilon", "attention/linear.py", "denominator + self.eps", "denominator"),
    Bug(
        "rows of a batch are mixed",
        "attention/linear.py",
        "k.sum(-2)",
        "k.sum(-2).mean(0, keepdim=True).expand(len(k), -1, -1)",
    ),
    Bug(
        "training calls are counted in a Python attribute",
        "attention/linear.py",
        "q, k = F.elu(q) + 1, F.elu(k) + 1",
        'self.calls = getattr(self, "calls", 0) + self.training; q, k = F.elu(q) + 1 + self.calls, F.elu(k) + 1',
    ),
]
