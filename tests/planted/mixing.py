"""Planted bugs of the implied mixing and of the checks of theorems."""

from planted import Bug

MIXING, THEOREMS = "tests/measure/test_mixing.py", "tests/measure/test_theorems.py"

BUGS = [
    Bug(
        "influence sums a channel's squares only",
        "measure/mixing.py",
        "square().sum((0, 2))",
        "square().sum(2)[0]",
        MIXING,
    ),
    Bug(
        "every residual is small enough", "measure/mixing.py", "wanted.norm()) < LINEAR", "wanted.norm()) < 1e9", MIXING
    ),
    Bug(
        "weights are probed on the attention itself",
        "measure/mixing.py",
        "copy.deepcopy(attention)",
        "attention",
        MIXING,
    ),
    Bug(
        "spectrum of squares",
        "measure/mixing.py",
        "return values.cumsum(-1)",
        "values = values**2; return values.cumsum(-1)",
        MIXING,
    ),
    Bug("features without factorials", "measure/theorems/support_vectors.py", "math.factorial(i)", "1", THEOREMS),
    Bug(
        "the bound is never active",
        "measure/theorems/support_vectors.py",
        "(0.0, c) for c in",
        "(0.0, 1e9 * c) for c in",
        THEOREMS,
    ),
    Bug(
        "the draws have unit variance",
        "measure/theorems/johnson_lindenstrauss.py",
        "* math.sqrt(variance)",
        "* 1",
        THEOREMS,
    ),
    Bug(
        "one rank too few",
        "measure/theorems/low_rank.py",
        "(lost > eps**2).sum()) + 1",
        "(lost > eps**2).sum())",
        THEOREMS,
    ),
    Bug(
        "rank by another tolerance", "measure/theorems/lossless_compression.py", "rtol=tolerance", "rtol=0.5", THEOREMS
    ),
    Bug(
        "distance counts equal bits",
        "measure/theorems/hamming.py",
        "h[:, None] != h[None]",
        "h[:, None] == h[None]",
        THEOREMS,
    ),
]
