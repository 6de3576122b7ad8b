"""Growth of a layer's time and memory with the number of tokens, and its distance to softmax attention."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from subquad.attention.base import AttentionFactory
from subquad.attention.softmax import Softmax
from subquad.backbones.encoder import is_standalone
from subquad.measure.benchmark import Level, Setting, peak_of, program_of
from subquad.measure.growth import exponent
from subquad.measure.timing import interleave
from subquad.specs import Masks, Pattern, Site

LENGTHS = (1024, 2048, 4096, 8192, 16384)
LINEAR_TIME, LINEAR_MEMORY = 1.25, 1.05
"""Largest fitted exponents of a mechanism that its paper calls linear, from 1,024 to 16,384 tokens."""


def stated_complexity(factory: AttentionFactory) -> str:
    """The `complexity` that a mechanism states for these settings; empty if it states none."""
    mechanism: Any = getattr(factory, "func", factory)
    if is_standalone(factory):
        return str(mechanism.complexity)
    pattern = Pattern.SELF if Pattern.SELF in mechanism.patterns else Pattern.CROSS
    attention = factory(site=Site(pattern=pattern, dim=64, heads=2, query_len=64, context_len=64))
    return getattr(attention, "complexity", "")


def is_linear(complexity: str) -> bool:
    """Whether a complexity is stated and grows with the first power of n in time: no n², n√n or n log n."""
    time = complexity.split("memory")[0].replace(" ", "")
    return time != "" and re.search(r"n²|√n|log\(?n|n\^", time) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Seconds of each round and peak bytes of one forward pass at each length, two rounds or more."""

    rounds: dict[int, tuple[float, ...]]
    peak: dict[int, int]

    @property
    def seconds(self) -> dict[int, float]:
        """The shortest time at each length, because other programs can only add time."""
        return {n: min(times) for n, times in self.rounds.items()}

    @property
    def time_exponent(self) -> float:
        """The exponent p of time ~ n^p."""
        return exponent(self.seconds)

    @property
    def time_exponents(self) -> tuple[float, float]:
        """The smallest and the largest exponent of all rounds, the odd ones and the even ones."""
        halves = (exponent({n: min(times[first::2]) for n, times in self.rounds.items()}) for first in (0, 1))
        low, _, high = sorted((self.time_exponent, *halves))
        return low, high

    @property
    def memory_exponent(self) -> float:
        """The exponent p of memory ~ n^p."""
        return exponent(self.peak)

    @property
    def linear(self) -> Literal["holds", "fails", "unsure"]:
        """Whether time and memory grow linearly, up to LINEAR_TIME and LINEAR_MEMORY.

        "unsure" if a longer input took less time than a shorter one, or if the odd and the even rounds disagree: the
        machine was too busy. Memory is counted, so its exponent is exact.
        """
        if self.memory_exponent > LINEAR_MEMORY:
            return "fails"
        times = [self.seconds[n] for n in sorted(self.seconds)]
        too_steep = {p > LINEAR_TIME for p in self.time_exponents}
        if times != sorted(times) or len(too_steep) > 1:
            return "unsure"
        return "fails" if too_steep.pop() else "holds"


def scaling(factory: AttentionFactory, lengths: Sequence[int] = LENGTHS, rounds: int = 6) -> Scaling:
    """Measures a layer, or a standalone encoder, of width 64 with 2 heads on one sequence of each length.

    No gradients are computed. Each round measures every length, so that a slow phase of the machine affects them all.
    """
    level: Level = "model" if is_standalone(factory) else "layer"
    runs = {
        n: program_of(factory, Setting(level=level, mode="inference", length=n, dim=64, heads=2, ffn=128))
        for n in lengths
    }
    timings = interleave({str(n): run for n, run in runs.items()}, rounds)
    return Scaling(rounds={n: timings[str(n)].seconds for n in runs}, peak={n: peak_of(run) for n, run in runs.items()})


@torch.no_grad()
def error_to_softmax(factory: AttentionFactory, length: int = 512, dim: int = 64, heads: int = 2) -> float | None:
    """Relative error (Frobenius) to softmax attention with the same four projections, on N(0, 1) tokens.

    None for backbones, and for mechanisms that do not approximate softmax attention.
    """
    if is_standalone(factory):
        return None
    torch.manual_seed(0)
    site = Site(pattern=Pattern.SELF, dim=dim, heads=heads, query_len=length, context_len=length)
    attention, softmax = factory(site=site).eval(), Softmax(site).eval()
    if not attention.approximates_softmax:
        return None
    shared = {name: value for name, value in attention.state_dict().items() if name.startswith("projections.")}
    softmax.load_state_dict(shared)
    x = torch.randn(1, length, dim)
    wanted = softmax(x, x, Masks())[0]
    return math.sqrt(float((attention(x, x, Masks())[0] - wanted).square().sum() / wanted.square().sum()))
