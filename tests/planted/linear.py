"""Planted bugs of linear attention."""

from planted import Bug

BUGS = [
    Bug("linear attention forgets the mask", "attention/linear.py", "k = zero_padding(k, masks.context)", "k = k * 1"),
    Bug("linear attention has no epsilon", "attention/linear.py", "k.sum(1)) + self.eps", "k.sum(1))"),
    Bug(
        "rows of a batch are mixed",
        "attention/linear.py",
        "k.sum(1)) + self.eps",
        "k.sum(1).mean(0, keepdim=True).expand(len(k), -1, -1)) + self.eps",
    ),
    Bug(
        "training calls are counted in a Python attribute",
        "attention/linear.py",
        "k = zero_padding(k, masks.context)",
        'self.calls = getattr(self, "calls", 0) + self.training; k = zero_padding(k + self.calls, masks.context)',
    ),
    Bug("derivative of exp on both sides", "attention/linear.py", "features.clamp(max=1).mul_", "features.mul"),
    Bug("heads of queries are not normalised", "attention/linear.py", "q * normaliser.reciprocal()", "q"),
]
