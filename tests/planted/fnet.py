"""Planted bugs of FNet."""

from planted import Bug

BUGS = [
    Bug("FNet mixes padding in", "attention/fnet.py", "zero_padding(x, masks.context)", "x"),
    Bug("transform of the padded length", "attention/fnet.py", "self.site.query_len)", "x.shape[1])"),
    Bug("imaginary part", "attention/fnet.py", "s=(length, d)).real", "s=(length, d)).imag"),
    Bug("half of the spectrum is not mirrored along the tokens", "attention/fnet.py", ".flip(1, 2)", ".flip(2)"),
    Bug(
        "gradient transformed over its own length",
        "attention/fnet.py",
        "gradient, ctx.length",
        "gradient, len(gradient[0])",
    ),
    Bug("transform in half precision", "attention/fnet.py", "x.to(torch.promote_types(x.dtype, torch.float32))", "x"),
]
