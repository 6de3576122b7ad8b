"""Costs by length: how fast they grow, and where they cross. Importing this module does not import torch."""

import math
from collections.abc import Mapping

import numpy as np

NO_ATTENTION = "no attention"
"""The ceiling: the same model without attention, whose cost no mechanism can undercut."""
DOES_NOT_FIT = "does not fit"
"""Shown where memory was too small for a side."""


def exponent(costs: Mapping[int, float]) -> float:
    """The exponent p of cost ~ n^p, by least squares on the logarithms."""
    lengths, values = zip(*costs.items(), strict=True)
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def crossover(costs: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """The length from which `costs` stay below `others`; logarithms are interpolated linearly between measured lengths.

    The smallest measured length if `costs` are below at all lengths; None if they are not below at the largest.
    """
    lengths = sorted(costs.keys() & others.keys())
    gaps = [math.log(costs[n] / others[n]) for n in lengths]
    if gaps[-1] >= 0:
        return None
    last = max((i for i, gap in enumerate(gaps) if gap >= 0), default=None)
    if last is None:
        return float(lengths[0])
    share = gaps[last] / (gaps[last] - gaps[last + 1])
    return math.exp(math.log(lengths[last]) * (1 - share) + math.log(lengths[last + 1]) * share)
