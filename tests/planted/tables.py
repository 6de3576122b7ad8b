"""Planted bugs of the tables of the papers."""

from planted import Bug

TABLE, PRINTED, MEAN = "tables/table.py", "tables/printed.py", "tables/mean.py"
STATISTICS, VERDICT = "tables/statistics.py", "tables/verdict.py"
TESTS = {
    path: f"tests/tables/test_{path.removeprefix('tables/')}" for path in (TABLE, PRINTED, MEAN, STATISTICS, VERDICT)
}
BUGS = [
    Bug(
        "words of the row before the column's",
        TABLE,
        "for line in (column, row)),\n        *own,",
        "for line in (row, column)),\n        *own,",
        TESTS[TABLE],
    ),
    Bug("words of the table are left out", TABLE, '*node.get("words", ())', '*node.get("none", ())', TESTS[TABLE]),
    Bug("a dash is a cell like any other", TABLE, "empty = _EMPTY if", "empty = _EMPTY if False and", TESTS[TABLE]),
    Bug(
        "a hidden column is shown", TABLE, "columns=shown, cells=cells,", "columns=columns, cells=cells,", TESTS[TABLE]
    ),
    Bug("a mean of everything", TABLE, "if mean is True else tuple(mean)", "if mean else ()", TESTS[TABLE]),
    Bug("evaluation elsewhere passes for training", TABLE, " or self.start or self.changes)", ")", TESTS[TABLE]),
    Bug("hidden parts are lost by a choice", TABLE, "column in names[1] | hidden", "column in names[1]", TESTS[TABLE]),
    Bug("any row may be printed", TABLE, "if str(name) not in {row.name for row in rows}", "if not name", TESTS[TABLE]),
    Bug(
        "the digits of a lone number are lost",
        PRINTED,
        "if not isinstance(line, str):",
        "if line is None:",
        TESTS[PRINTED],
    ),
    Bug("thousands are cut off", PRINTED, '.replace(",", "")', '.partition(",")[0]', TESTS[PRINTED]),
    Bug("a whole unit of the last digit", PRINTED, "return 0.5 *", "return 1.0 *", TESTS[PRINTED]),
    Bug(
        "the spread is forgotten",
        PRINTED,
        "return cls(text, float(value), spread,",
        "return cls(text, float(value), None,",
        TESTS[PRINTED],
    ),
    Bug("a mean over all seeds", MEAN, "set.intersection(", "set.union(", TESTS[MEAN]),
    Bug("means are held to the last digit", MEAN, "+ sum(roundings) / len(roundings)", "", TESTS[MEAN]),
    Bug(
        "a normal interval",
        STATISTICS,
        "stats.t.ppf(0.5 + LEVEL / 2, freedom)",
        "stats.norm.ppf(0.5 + LEVEL / 2)",
        TESTS[STATISTICS],
    ),
    Bug("one side of the interval", STATISTICS, "0.5 + LEVEL / 2", "LEVEL", TESTS[STATISTICS]),
    Bug("interval of a run, not of the mean", STATISTICS, "* std / math.sqrt(count)", "* std", TESTS[STATISTICS]),
    Bug(
        "seeds are not paired",
        STATISTICS,
        "common = sorted(a.keys() & b.keys())",
        "common = sorted(a)",
        TESTS[STATISTICS],
    ),
    Bug(
        "beats by the difference alone",
        STATISTICS,
        "return self.low > 0",
        "return self.difference > 0",
        TESTS[STATISTICS],
    ),
    Bug("lower is worse", VERDICT, '!= (better == "lower")', "!= False", TESTS[VERDICT]),
    Bug("one spread to either side", VERDICT, "max(2 * spread,", "max(spread,", TESTS[VERDICT]),
    Bug("few seeds are enough", VERDICT, "if measured.seeds < seeds:", "if measured.seeds < 1:", TESTS[VERDICT]),
    Bug("our own interval is left out", VERDICT, "(measured.half_width or 0.0) + max", "0.0 + max", TESTS[VERDICT]),
    Bug(
        "a misprint in EcoFormer's energies goes by",
        "configs/table/ecoformer/8.yaml",
        "23.07",
        "23.70",
        "tests/tables/test_papers.py",
    ),
]
