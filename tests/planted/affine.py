"""Planted bugs of the fused affine maps."""

from planted import Bug

TESTS = "tests/attention/test_affine.py"

BUGS = [
    Bug(
        "gradient of the input without the activation",
        "ops/affine.py",
        "torch.ops.aten.threshold_backward(gradient, y, 0)",
        "gradient.clone()",
        tests=TESTS,
    ),
    Bug("the bias has half its gradient", "ops/affine.py", "rows.sum(0) if", "rows.sum(0) / 2 if", tests=TESTS),
    Bug(
        "the way back reads the weight in another order",
        "ops/affine.py",
        "_linear_pointwise(gradient, weight.mT",
        "_linear_pointwise(gradient, weight.flip(1).mT",
        tests=TESTS,
    ),
    Bug(
        "autocast is ignored",
        "ops/affine.py",
        """        and not torch.is_autocast_enabled("cpu")\n""",
        "",
        tests=TESTS,
    ),
]
