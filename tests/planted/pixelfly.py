"""Planted bugs of PixelFly's attention."""

from planted import Bug

BUGS = [
    Bug("partners are neighbours", "attention/pixelfly.py", "own ^ 2**s for s", "own + 2**s for s"),
    Bug(
        "one factor too few",
        "attention/pixelfly.py",
        "for s in range(self.factors)",
        "for s in range(self.factors - 1)",
    ),
    Bug(
        "global queries see few",
        "attention/pixelfly.py",
        "if first := self.global_blocks * self.block:",
        "if first := 0:",
    ),
    Bug(
        "global queries forget the mask",
        "attention/pixelfly.py",
        "None if mask is None else mask[:, None, None]",
        "None",
    ),
    Bug("on a GPU all distances are butterflies", "attention/pixelfly.py", "(apart & (apart - 1)) == 0", "apart >= 0"),
    Bug("on a GPU a factor too many", "attention/pixelfly.py", "apart < 2**self.factors", "apart <= 2**self.factors"),
]
