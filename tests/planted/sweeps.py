"""Planted bugs of sweeps: what runs need, how they are started, followed and found again."""

from planted import Bug

NEEDS = "tests/run/test_needs.py"

BUGS = [
    Bug("made-up data are asked for", "run/needs.py", 'if settings.get("standin"):', "if False:", NEEDS),
    Bug("a refusal is no need", "run/needs.py", "return str(cause)", "return None", NEEDS),
    Bug(
        "features are not looked for",
        "data/vqa.py",
        "            open_features(self.features, split, self.image_dim, self.image_len)\n",
        "            pass\n",
        NEEDS,
    ),
    Bug("the reviews are not looked for", "data/byte_text.py", "        _ = self.folder\n", "        pass\n", NEEDS),
]
