"""Which rows of a split are used, and which of the training rows are kept apart to select on."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What numpy and scikit-learn both take; settings are checked against it before anything is built."""


def some(rows: int, cases: int | None, seed: int | Sequence[int]) -> np.ndarray:
    """Places of at most `cases` of so many rows, drawn by the seed and in order; None takes all."""
    if cases is None or cases >= rows:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).permutation(rows)[:cases])


def kept_apart(rows: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows to train on and those to select on, a `fraction` of them and at least one; both in order."""
    order = np.random.default_rng(seed).permutation(rows)
    fit, val = np.split(order, [len(order) - max(1, round(fraction * len(order)))])
    return np.sort(fit), np.sort(val)
