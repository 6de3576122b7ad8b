"""Planted bugs of what a sweep bears: other commands, records of no use, words that mean nothing."""

from planted import Bug

AT_ONCE, ASKED, RECORDS = "tests/run/test_sweeps_at_once.py", "tests/run/test_asked.py", "tests/run/test_records.py"
REPRODUCE, GATHER = "tests/run/test_reproduce.py", "tests/report/test_gather.py"
COMPOSITIONS, COMPOSED = "run/compositions.py", "tests/run/test_compositions.py"

BUGS = [
    Bug("runs of others are failures", "run/launch.py", "if job.finished or _held(job)]", "if False]", AT_ONCE),
    Bug(
        "what others finished is a failure",
        "run/launch.py",
        "if job.finished or _held(job)]",
        "if _held(job)]",
        AT_ONCE,
    ),
    Bug("what others left is left", "run/launch.py", "if not job.finished]):\n", "if False]):\n", AT_ONCE),
    Bug("nobody waits for others", "run/launch.py", "while any(map(_held, busy)):", "while False:", AT_ONCE),
    Bug(
        "a start of others is a failure",
        "run/launch.py",
        "or (job.start is not None and job.start.folder in folders)",
        "",
        AT_ONCE,
    ),
    Bug("real failures are forgotten", "run/launch.py", "{**failures}", "{}", AT_ONCE),
    Bug("a finished run is trained again", "run/train.py", "if not several() and", "if False and", AT_ONCE),
    Bug("any number is a seed", "run/asked.py", "type(seed) is not int or ", "", ASKED),
    Bug("any seed", "run/asked.py", "not 0 <= seed < 2**32", "False", ASKED),
    Bug("seeds count twice", "run/asked.py", "list(dict.fromkeys(seeds))", "seeds", ASKED),
    Bug(
        "tables count twice",
        "run/asked.py",
        "list(dict.fromkeys(_listed(config.table)))",
        "_listed(config.table)",
        ASKED,
    ),
    Bug("a name is its letters", "run/asked.py", "isinstance(value, ListConfig) else [value]", "True else []", ASKED),
    Bug(
        "a shorter training is a reproduction",
        "run/asked.py",
        "            small += own\n",
        "            pass\n",
        ASKED,
    ),
    Bug("a failed write leaves its file", "atomic.py", "place.unlink(missing_ok=True)", "pass", "tests/test_atomic.py"),
    Bug("processes write in one place", "atomic.py", "if several else", "if not several else", "tests/test_atomic.py"),
    Bug("a full disk is a riddle", "run/doors.py", '"unexpected pos" in str(error)', "False", RECORDS),
    Bug("what cannot be kept ends it", COMPOSITIONS, "suppress(OSError), whole", "suppress(KeyError), whole", COMPOSED),
    Bug("any switch", "run/asked.py", "not in (True, False, None)", "in ()", ASKED),
    Bug("the record of another run", "records.py", "FOLDER.fullmatch(run.name) and run.name != name", "False", RECORDS),
    Bug("metrics of words", "records.py", 'extra="forbid", strict=True', 'extra="forbid"', RECORDS),
    Bug("a machine of no name", "records.py", "or part not in value", "or False", RECORDS),
    Bug("an unknown scale ends the page", "run/gather.py", "if not _unknown(scope))", "if scope)", GATHER),
    Bug("nan is a value", "run/cells.py", "not math.isfinite(value)", "False", REPRODUCE),
    Bug(
        "a damaged record ends the table",
        "run/cells.py",
        "except UserError as error:\n                self",
        "except KeyError as error:\n                self",
        REPRODUCE,
    ),
    Bug("nobody hears of nan", "report/ledger.py", "not math.isfinite(value)", "False", GATHER),
]
