"""Planted bugs of the sentences that a mistake is answered with."""

from planted import Bug

TESTS, FILES = "tests/run/test_mistakes.py", "tests/data/test_vqa_files.py"
RESUME = "tests/run/test_resume.py"
BUGS = [
    Bug(
        "a misspelt setting is added",
        "run/doors.py",
        "    _check_keys(words, [*_top_keys(), *own])\n",
        "",
        "tests/run/test_mistakes.py",
    ),
    Bug(
        "a program's own setting is a misspelt one of runs",
        "run/doors.py",
        "    _check_keys(words, [*_top_keys(), *own])\n",
        "    _check_keys(words, _top_keys())\n",
        "tests/run/test_mistakes.py",
    ),
    Bug(
        "a word is true for a script",
        "run/doors.py",
        "if kind is bool and",
        "if False and",
        "tests/run/test_mistakes.py",
    ),
    Bug(
        "a word is a number of a script",
        "run/doors.py",
        "if kind in (int, float) and",
        "if False and",
        "tests/run/test_mistakes.py",
    ),
    Bug(
        "a misspelt setting of a group is Hydra's", "run/doors.py", "        _check_settings(sys.argv[1:])\n", "", TESTS
    ),
    Bug("settings of a sweep are not looked at", "run/doors.py", 'not in ("-m", "--multirun")]', "]", TESTS),
    Bug("bounds of seeds are not read", "run/settings.py", "constructor, include_extras=True", "constructor", TESTS),
    Bug("keys of parents are unknown", "run/settings.py", "for p in named} | found", "for p in named}", TESTS),
    Bug(
        "unknown keys pass", "run/settings.py", "if whole and key not in known", "if False and key not in known", TESTS
    ),
    Bug("data of another kind pass", "backbones/base.py", "and not isinstance(spec, wanted)", "and False", TESTS),
    Bug(
        "torch's advice is handed on",
        "run/checkpoints.py",
        "isinstance(error, pickle.UnpicklingError | EOFError | IndexError)",
        "False",
        TESTS,
    ),
    Bug(
        "a moved run forgets its best epoch",
        "run/trainer.py",
        "trainer.callbacks.append(MovedCheckpoints())",
        "pass",
        RESUME,
    ),
    Bug("any data will do", "run/checkpoints.py", "data.fingerprint != trained_on", "False", RESUME),
    Bug("any best checkpoint will do", "run/checkpoints.py", "if reached != best:", "if False:", RESUME),
    Bug(
        "checkpoints may lack anything",
        "run/checkpoints.py",
        'for key in ("state_dict", *needed):',
        "for key in ():",
        RESUME,
    ),
    Bug("a folder may have no name", "run/doors.py", "    _check_paths(words)\n", "", TESTS),
    Bug("tags are letters", "run/train.py", "given if isinstance(given, list) else [given]", "list(given)", TESTS),
    Bug("made-up data look real", "run/report.py", '["data"].get("standin")', '["data"].get("made_up")', TESTS),
    Bug("numbers of any size pass", "data/vqa_files.py", "not 0 <= value < 1 << 63", "False", FILES),
]
