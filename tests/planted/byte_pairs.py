"""Planted bugs of the pairs of texts and the two towers."""

from planted import Bug

DATA, TESTS = "data/byte_pairs.py", "tests/data/test_byte_pairs.py"
TOWERS, PAIRS = "backbones/two_towers.py", "tests/backbones/test_two_towers.py"

BUGS = [
    Bug("a byte is its own token", DATA, "side[i].astype(np.int64) + 1", "side[i].astype(np.int64)", TESTS),
    Bug("rows are as long as the first text", DATA, "np.maximum(self.first.lengths, self.second.lengths)",
        "self.first.lengths", TESTS),
    Bug("any count of rows will do", DATA, "if not self.standin and len(labels)", "if False and len(labels)", TESTS),
    Bug("every label is taken", DATA, "if label not in (0, 1):", "if False:", TESTS),
    Bug("a text that is cut off is taken", DATA, " and literal[-1:] == literal[1:2]", "", TESTS),
    Bug("decoded texts are literals", DATA, 'if self.literals == "kept":', "if True:", TESTS),
    Bug("validation reads the test file", DATA, '"val": "new_aan_pairs.eval.tsv"', '"val": "new_aan_pairs.test.tsv"',
        TESTS),
    Bug("the towers swap their texts", TOWERS, '"concat": lambda a, b: [a, b]', '"concat": lambda a, b: [b, a]',
        PAIRS),
    Bug("the towers forget one mask", TOWERS, "(second, second_valid)]", "(second, None)]", PAIRS),
    Bug("the encoder keeps its head", TOWERS, "        self.tower.head = nn.Identity()\n", "", PAIRS),
]  # fmt: skip
