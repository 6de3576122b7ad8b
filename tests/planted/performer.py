"""Planted bugs of Performer."""

from planted import Bug

BUGS = [
    Bug(
        "padded keys stay in the normaliser",
        "attention/performer.py",
        "(-half_norm - largest).masked_fill(padding, -math.inf)",
        "(-half_norm - largest)",
    ),
    Bug(
        "ReLU features forget the mask",
        "attention/performer.py",
        "(features if padding is None else features.masked_fill(padding, 0))",
        "features",
    ),
    Bug(
        "padding chooses the largest feature",
        "attention/performer.py",
        "top.masked_fill(padding, torch.finfo(top.dtype).min).amax(2, keepdim=True)",
        "top.amax(2, keepdim=True)",
    ),
    Bug(
        "other rows choose the largest feature",
        "attention/performer.py",
        "torch.finfo(top.dtype).min).amax(2, keepdim=True)",
        "torch.finfo(top.dtype).min).amax((0, 2), keepdim=True)",
    ),
    Bug("no stabiliser", "attention/performer.py", "-half_norm - top.amax(2, keepdim=True)", "-half_norm"),
    Bug("repeated directions count twice", "attention/performer.py", "state * real[:, None])", "state)"),
    Bug("keys without their norm", "attention/performer.py", "half_norm = k.square()", "half_norm = 0 * k.square()"),
    Bug("scale of softmax squared", "attention/performer.py", "** -0.25", "** -0.5"),
    Bug(
        "directions of a fixed side",
        "ops/features.py",
        " * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]",
        "",
        tests="tests/attention/test_performer.py",
    ),
    Bug(
        "directions of one length",
        "ops/features.py",
        "torch.randn(count, width).norm(dim=1, keepdim=True)",
        "math.sqrt(width)",
        tests="tests/attention/test_performer.py",
    ),
    Bug("redrawn before the first step", "attention/performer.py", "step > 0 and ", ""),
    Bug(
        "gradient of the features, not of their logarithm",
        "attention/performer.py",
        "gradient @ x.mT).mul_(features)",
        "gradient @ x.mT)",
    ),
    Bug(
        "no gradient through the norm of keys",
        "attention/performer.py",
        "of_logarithm.sum(-1, keepdim=True) if",
        "0 * of_logarithm[..., :1] if",
    ),
]
