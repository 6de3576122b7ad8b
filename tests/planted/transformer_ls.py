"""Planted bugs of Transformer-LS."""

from planted import Bug

FILE = "attention/transformer_ls.py"

BUGS = [
    Bug("summaries read padding", FILE, "None if mask is None else mask[..., None], 1)\n", "None, 1)\n"),
    Bug(
        "windows read padding",
        FILE,
        "seen_of_windows(band, real)",
        "seen_of_windows(band, torch.ones_like(real))",
    ),
    Bug("the window slides with the token", FILE, "[:, None] // self.window * self.window", "[:, None]"),
    Bug("no neighbours of a segment of one token", FILE, "max(self.window // 2, 1)", "self.window // 2"),
    Bug("one norm for tokens and summaries", FILE, "self.norm_slots((weights", "self.norm_tokens((weights"),
    Bug("values without their norm", FILE, "self.norm_tokens(p.value(context))", "p.value(context)"),
    Bug("scores always from the input", FILE, 'context if self.scores == "input" else raw', "context"),
    Bug(
        "the convolution reads padding",
        FILE,
        "self._convolved(zero_padding(values, masks.context))",
        "self._convolved(values)",
    ),
]
