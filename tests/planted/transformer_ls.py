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
    Bug("one norm for tokens and summaries", FILE, "self.norm_slots(slots", "self.norm_tokens(slots"),
    Bug("values without their norm", FILE, "self.norm_tokens(p.value(context))", "p.value(context)"),
    Bug("scores always from the input", FILE, 'context if self.scores == "input" else raw', "context"),
    Bug(
        "the convolution reads padding",
        FILE,
        "values = zero_padding(values, mask)",
        "values = zero_padding(values, None)",
    ),
    Bug("a class token is a token as any other", FILE, "if not masks.class_token:", "if True:"),
    Bug("a class token reads padding", FILE, "None if mask is None else mask[:, None, None]", "None"),
    Bug(
        "a class token joins the summaries normalised",
        FILE,
        "torch.cat([token, slots], 1)",
        "torch.cat([self.norm_tokens(token), slots], 1)",
    ),
    Bug(
        "a class token has the norm of the tokens",
        FILE,
        "key, value = p.key(token), p.value(token)",
        "key, value = (self.norm_tokens(m(token)) for m in (p.key, p.value))",
    ),
    Bug(
        "a class token reads the convolution",
        FILE,
        "torch.cat([value, rows], 1)",
        "torch.cat([value, self._filtered(rows, values, of_tokens)], 1)",
    ),
]
