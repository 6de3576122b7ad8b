"""Planted bugs of the windows and blocks of keys below the mechanisms."""

from planted import Bug

BUGS = [
    Bug(
        "windows are one key too short",
        "ops/sparse.py",
        "(distance <= after)\n    return near",
        "(distance < after)\n    return near",
    ),
    Bug(
        "pooled keys are not at their tokens",
        "ops/sparse.py",
        "torch.arange(keys * stride, device=device)[:, None] // stride",
        "torch.arange(keys * stride, device=device)[:, None] % keys",
    ),
    Bug(
        "first keys count twice",
        "ops/sparse.py",
        "real & (torch.arange(length, device=device) >= first)",
        "real & True",
    ),
    Bug(
        "first keys count in every block of a window",
        "ops/sparse.py",
        "near | ((number == 0) & (offset < first))",
        "near | (offset < first)",
    ),
    Bug(
        "first keys are real in any case",
        "ops/sparse.py",
        "_each_block_after(real[:, :first, None],",
        "_each_block_after(torch.ones_like(real)[:, :first, None],",
    ),
    Bug(
        "a block named twice counts twice",
        "ops/sparse.py",
        " & ~(seen[..., None] == seen[..., None, :]).tril(-1).any(-1)",
        "",
    ),
    Bug("a block that does not exist is the nearest", "ops/sparse.py", "(seen >= 0) & (seen < count) & ", ""),
    Bug("blocks of keys of the first row", "ops/sparse.py", "(start + seen) * groups + group", "seen * groups + group"),
    Bug("a GPU forgets the mask", "ops/sparse.py", "if mask is None:\n        shown", "if True:\n        shown"),
    Bug(
        "gradients of a window reach its first part only",
        "ops/blocks.py",
        "enumerate(pieces):",
        "enumerate(pieces[:1]):",
    ),
]
