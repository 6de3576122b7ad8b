"""Planted bugs of Attention-Conv1D and Attention-Conv2D."""

from planted import Bug

FILE = "attention/conv.py"
BUGS = [
    Bug("padding is convolved", FILE, "zero_padding(y, masks.context)", "zero_padding(y, None)"),
    Bug(
        "tokens ahead of the grid are convolved",
        FILE,
        "self.leading = site.query_len - self.height * self.width",
        "self.leading = 0",
    ),
    Bug(
        "rows and columns of the grid are exchanged",
        FILE,
        "width = min(self.width, length)",
        "width = min(self.height if self.height > 1 else self.width, length)",
    ),
    Bug(
        "kernels of the heads are interleaved",
        FILE,
        "repeat_interleave(dim // len(self.kernel), 0)",
        "repeat(dim // len(self.kernel), 1, 1)",
    ),
    Bug("keys are not convolved", FILE, "(p.query(x), p.key(context))", "(p.query(x), x)"),
    Bug("values are convolved", FILE, "v = p.split(p.value(context))", "v = p.split(self._convolve(p.value(context)))"),
    Bug("middle of the other axis", FILE, "padding=middle", "padding=middle[::-1]"),
    Bug("kernel starts at its first tap", FILE, "[:, shape[0] // 2, shape[1] // 2]", "[:, 0, 0]"),
    Bug("even kernels are let in", FILE, "if kernel < 1 or kernel % 2 == 0:", "if kernel < 1:"),
    Bug("dropout acts in eval", FILE, "self.site.dropout if self.training else 0.0", "self.site.dropout"),
]
