"""Planted bugs of the windows and blocks of keys below the mechanisms."""

from planted import Bug

BUGS = [
    Bug(
        "windows are one key too short",
        "ops/sparse.py",
        "place <= query + before + after",
        "place < query + before + after",
    ),
    Bug(
        "pooled keys are not at their tokens",
        "ops/sparse.py",
        "torch.arange(keys * stride, device=device)[:, None] // stride",
        "torch.arange(keys * stride, device=device)[:, None] % keys",
    ),
    Bug("first keys count twice", "ops/sparse.py", "rest if mask is None else mask & rest", "mask"),
    Bug(
        "first keys of the wrong row",
        "ops/sparse.py",
        "real.repeat_interleave(len(queries) // len(real), 0)",
        "real.repeat(len(queries) // len(real), 1)",
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
        "range(0, ctx.width, ctx.step)",
        "range(0, ctx.step, ctx.step)",
    ),
]
