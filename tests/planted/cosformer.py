"""Planted bugs of cosFormer."""

from planted import Bug

BUGS = [
    Bug(
        "cosFormer forgets the mask",
        "attention/cosformer.py",
        'zero_padding(p.key(context, "relu"), masks.context)',
        'p.key(context, "relu")',
    ),
    Bug(
        "M is the padded length",
        "attention/cosformer.py",
        "max(self.site.query_len, self.site.context_len)",
        "x.shape[1]",
    ),
    Bug(
        "M is the length of the queries",
        "attention/cosformer.py",
        "max(self.site.query_len, self.site.context_len)",
        "self.site.query_len",
    ),
    Bug("queries without ReLU", "attention/cosformer.py", 'p.query(x, "relu")', "p.query(x)"),
    Bug("the eps is another", "attention/cosformer.py", "*sums, self.eps)", "*sums, 1e-6)"),
]
OPS, TESTS = "ops/wave_attention.py", "tests/kernels/test_wave_attention.py"
BUGS += [
    Bug(name, OPS, old, new, tests=TESTS)
    for name, old, new in [
        ("the least is added, not a floor", ".clamp(min=least)", " + least"),
        ("normaliser of the cosines only", "head_dot(q, total[:, :, 1])", "0 * head_dot(q, total[:, :, 1])"),
        (
            "gradient of the reading is not its transpose",
            "return _spread(gradient, wave), None",
            "return _spread(gradient, wave.flip(-2)), None",
        ),
        (
            "no gradient through the normaliser",
            "-(gradient * y).sum(-1, keepdim=True)",
            "0 * (gradient * y).sum(-1, keepdim=True)",
        ),
        (
            "values are spread by the wrong places in the gradient",
            "_gather(gradient, *ctx.saved_tensors)",
            "_gather(gradient, ctx.saved_tensors[0].flip(-2))",
        ),
    ]
]
KERNEL = "kernels/wave_attention.cpp"
BUGS += [
    Bug(f"kernel: {name}", KERNEL, old, new, tests=TESTS)
    for name, old, new in [
        (
            "the last tile takes tokens that are none",
            "end - token < TOKENS ? end - token : TOKENS, call",
            "TOKENS, call",
        ),
        ("sines are cosines", "at(to + channels + d) = numbers * sine", "at(to + channels + d) = numbers * cosine"),
        ("tiles overwrite the sums", "features, both, count, token > first(chunk));", "features, both, count, false);"),
        ("the least is no floor", "found < call.least ? call.least : found", "found"),
        ("where the weight is the least it has a gradient", "weight > call.least ?", "true ?"),
        ("gradients of keys forget their total", "add_total(dk +", "add_total(room +"),
        ("gradients of queries forget the weight", "-dot(dy, y, channels) / weight : 0", "0 : 0"),
        (
            "gradients of the total forget the weight",
            "of_weight[i] * wave[2 * i],\n                             of",
            "wave[2 * i],\n                             of",
        ),
    ]
]
BUGS += [
    Bug(
        "threads' sums are not added",
        "kernels/wave_attention.py",
        'return sums["of_state"].sum(0), sums',
        'return sums["of_state"][0], sums',
        tests=TESTS,
    ),
]
