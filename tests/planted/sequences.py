"""Planted bugs of what all sequence data share."""

from planted import Bug

LOADING = "tests/data/test_loading.py"

BUGS = [
    Bug("batches are empty", "data/base.py", "place[: len(row)] = row", "place[: len(row)] = 1",
        "tests/data/test_overfit.py"),
    Bug("the time of a file does not count", "data/ragged.py", "path.stat().st_size, path.stat().st_mtime_ns)",
        "path.stat().st_size)", LOADING),
    Bug("the first sequence begins late", "data/ragged.py", "np.cumsum([0, *map(len, parts)]",
        "np.cumsum([1, *map(len, parts)]", LOADING),
]  # fmt: skip
