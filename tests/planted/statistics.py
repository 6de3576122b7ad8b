"""Planted bugs of comparisons: paired by seed, over settings, and in words."""

from planted import Bug

STATISTICS, DUEL = "tables/statistics.py", "tables/duel.py"
BY_NUMBERS, IN_WORDS = "tests/tables/test_statistics.py", "tests/tables/test_duel.py"
BUGS = [
    Bug("a one-sided p", STATISTICS, "return float(2 * stats.t.sf", "return float(stats.t.sf", BY_NUMBERS),
    Bug(
        "p with a degree too many", STATISTICS, "abs(t), differences.seeds - 1", "abs(t), differences.seeds", BY_NUMBERS
    ),
    Bug("equal differences prove nothing", STATISTICS, "return float(not differences.mean)", "return 1.0", BY_NUMBERS),
    Bug("dust is a difference", STATISTICS, "round(difference, 9) for", "difference for", BY_NUMBERS),
    Bug("counts in place of ranks", STATISTICS, "math.copysign(rank, value)", "math.copysign(1, value)", BY_NUMBERS),
    Bug("five of five is enough", STATISTICS, "self.p < 1 - LEVEL and self.ranks > 0", "self.ranks > 0", BY_NUMBERS),
    Bug("the loser beats", STATISTICS, "self.ranks < 0", "self.ranks < -99", BY_NUMBERS),
    Bug(
        "lower is worse",
        DUEL,
        'a.metric.better == "lower" else 1.0), a',
        'a.metric.better == "l" else 1.0), a',
        IN_WORDS,
    ),
    Bug(
        "other seeds join in",
        DUEL,
        "for seed in sorted(ours.keys() & theirs.keys())",
        "for seed in sorted(ours)",
        IN_WORDS,
    ),
    Bug("means count as a setting", DUEL, "cell.trained or cell.chained for", "not cell.measure for", IN_WORDS),
    Bug("a row against a column", DUEL, "if set(names) <= set(known):", "if set(names) & set(known):", IN_WORDS),
    Bug(
        "missing settings are not told", DUEL, "if found.settings < pairs else", "if found.settings < 0 else", IN_WORDS
    ),
    Bug("the winner by order", DUEL, 'if found.beats else f"{second}', 'if found else f"{second}', IN_WORDS),
]
