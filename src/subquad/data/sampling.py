"""Random subsets of rows and held-out validation rows."""

from collections.abc import Sequence

import numpy as np


def some(rows: int, cases: int | None, seed: int | Sequence[int]) -> np.ndarray:
    """Sorted indices of at most `cases` of `rows` rows, drawn at random; None takes all."""
    if cases is None or cases >= rows:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).permutation(rows)[:cases])


def kept_apart(rows: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and validation rows, both sorted; a `fraction` of the rows, at least one, is for validation."""
    order = np.random.default_rng(seed).permutation(rows)
    fit, val = np.split(order, [len(order) - max(1, round(fraction * len(order)))])
    return np.sort(fit), np.sort(val)


def proportional(strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """`count` sorted indices, drawn in proportion to the strata; every stratum gets one before any gets a second."""
    order = np.random.default_rng(seed).permutation(len(strata))
    rank = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = order[strata[order] == stratum]
        rank[members] = np.arange(len(members)) / len(members)
    return np.sort(order[np.argsort(rank[order], kind="stable")[:count]])
