"""Verdicts on the page: a mark and a sentence for each, beside its word."""

from dataclasses import dataclass

from subquad.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Mark:
    """How a verdict looks: a sign that is no letter, the name of its colour, and what it means."""

    sign: str
    colour: str
    meaning: str


MARKS = {
    Verdict.REPRODUCED: Mark("✓", "reproduced", "our mean differs by no more than the printed spread or rounding"),
    Verdict.AS_PRINTED: Mark("=", "stated", "a setting, a constant or a cost over itself, as printed: no experiment"),
    Verdict.NOISE: Mark("≈", "noise", "the 95 % intervals overlap; the printed one is taken as two spreads"),
    Verdict.BETTER: Mark("▲", "better", "better than printed, beyond the noise"),
    Verdict.WORSE: Mark("▼", "worse", "worse than printed, beyond the noise"),
    Verdict.MORE: Mark("△", "more", "more than printed, in a count without a better side"),
    Verdict.LESS: Mark("▽", "less", "less than printed, in a count without a better side"),
    Verdict.INCOMPLETE: Mark("…", "incomplete", "fewer seeds than the table declares: no verdict yet"),
    Verdict.OTHER_SCALE: Mark("◇", "other", "smaller scale, other protocol or synthetic data: no reproduction"),
    Verdict.NOT_PRINTED: Mark("+", "new", "measured here, and no number is printed to compare it with"),
    Verdict.NEEDS_DATA: Mark("—", "needs", "not run: its data are not on this machine"),
    Verdict.NOT_RUN: Mark("—", "missing", "nobody has measured it with this code yet"),
}
"""Every verdict, in the order of legends and bars."""
