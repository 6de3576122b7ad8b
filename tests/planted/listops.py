"""Planted bugs of the longer expressions of ListOps and of evaluating on changed data."""

from planted import Bug

DATA, TESTS = "data/listops.py", "tests/data/test_listops.py"
EVALUATE, LONGER = "run/evaluate.py", "tests/run/test_evaluate_longer.py"

BUGS = [
    Bug("expressions are joined by MIN", DATA, "for token in (MAX, CLOSE))", "for token in (1, CLOSE))", TESTS),
    Bug("one copy too few", DATA, "*[rows[i]] * copies", "*[rows[i]] * (copies - 1)", TESTS),
    Bug("the longest is forgotten", DATA, "max_len=_length(longest, self.multiply)", "max_len=longest", TESTS),
    Bug("changes of the data are lost", EVALUATE, "    return changed\n", "    return settings\n", LONGER),
    Bug("any key of the data will do", EVALUATE, "if key not in known]", "if False]", LONGER),
]
