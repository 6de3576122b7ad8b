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
        "features if padding is None else features.masked_fill(padding, 0)",
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
    Bug("repeated directions count twice", "attention/performer.py", "(state * real[:, None])", "state"),
    Bug("keys without their norm", "attention/performer.py", "half_norm = k.square()", "half_norm = 0 * k.square()"),
    Bug("scale of softmax squared", "attention/performer.py", "** -0.25", "** -0.5"),
    Bug(
        "directions of a fixed side",
        "attention/performer.py",
        " * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]",
        "",
    ),
    Bug(
        "directions of one length",
        "attention/performer.py",
        "torch.randn(features, width).norm(dim=1, keepdim=True)",
        "math.sqrt(width)",
    ),
    Bug("redrawn before the first step", "attention/performer.py", "step > 0 and ", ""),
]
