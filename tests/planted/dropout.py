"""Bugs of dropout."""

from planted import Bug

FILE, TESTS = "ops/dropout.py", "tests/backbones/test_dropout.py"
RAW = "(x.numel() + 3) // 4).view(np.int16)[: x.numel()]"

BUGS = [
    Bug(name, FILE, old, new, tests=TESTS)
    for name, old, new in [
        (
            "the gradient is not scaled",
            "torch.where(keep, gradient, 0.0).mul_(ctx.scale), None",
            "torch.where(keep, gradient, 0.0), None",
        ),
        ("dropout does not scale", "torch.where(keep, x, 0.0).mul_(ctx.scale)\n", "torch.where(keep, x, 0.0)\n"),
        ("dropout drops what it should keep", ">= dropped - _STEPS // 2", "< dropped - _STEPS // 2"),
        ("dropout takes its bits for numbers without a sign", ">= dropped - _STEPS // 2", ">= dropped"),
        ("dropout has one seed for every call", "int(torch.randint(2**62, ()))", "0"),
        ("four entries share one draw", RAW, "(x.numel() + 3) // 4).astype(np.int16).repeat(4)[: x.numel()]"),
        ("dropout outside training", "if not training or p == 0:", "if p == 0:"),
    ]
]
