"""Planted bugs of sweeps: what runs need, how they are started, followed and found again."""

from planted import Bug

NEEDS = "tests/run/test_needs.py"
CHAINS = "tests/run/test_chains.py"
FOLLOW = "tests/run/test_follow.py"
JOB_LIST = "tests/run/test_job_list.py"
SWEEPER = "../hydra_plugins/subquad/job_list.py"

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
    Bug("evaluations are no part of a run", "run/cells.py", "(self.folder, self.evaluations)", "(self.folder)", FOLLOW),
    Bug("each seed has its own start", "run/cells.py", "self.job(cell.start, 0)", "self.job(cell.start, seed)", CHAINS),
    Bug("one evaluation hides the others", "run/cells.py", "(*known.evaluations, *job", "(*job", CHAINS),
    Bug("the start of a finished run", "run/cells.py", "is not None and not whole.finished", "is not None", CHAINS),
    Bug("words without quotes", "run/cells.py", """return "'" + value""", "return value or", CHAINS),
    Bug("weights by their place", "run/identity.py", 'f"{run.name}/{checkpoint.name}"', "str(checkpoint)", CHAINS),
    Bug("any folder is a run", "run/identity.py", " and FOLDER.fullmatch(run.name)", "", CHAINS),
    Bug(
        "old errors count",
        "run/follow.py",
        "(job.folder / records.ERROR) >= self",
        "(job.folder / records.ERROR) > 0 * self",
        FOLLOW,
    ),
    Bug("old starts count", "run/follow.py", "self._started(job) >= self", "self._started(job) > 0 * self", FOLLOW),
    Bug(
        "runs end before evaluations",
        "run/follow.py",
        "[job.folder / records.RESULT, *places]",
        "[job.folder / records.RESULT]",
        FOLLOW,
    ),
    Bug("time left of one at a time", "run/follow.py", "max(1, self.count(State.RUNNING))", "1", FOLLOW),
    Bug("all runs take alike", "run/follow.py", "if setting(path) == setting(folder)]", "]", FOLLOW),
    Bug("the first row is the last", "run/follow.py", "[*_, last] = file", "[last, *_] = file", FOLLOW),
    Bug("a cell hides failures", "run/follow.py", '("!" if State.FAILED in found else "")', '""', FOLLOW),
    Bug("starts wait for nobody", "run/launch.py", "if job not in later]", "]", FOLLOW),
    Bug("waves are one", SWEEPER, 'split("\\n\\n")', 'split("\\r")', JOB_LIST),
    Bug(
        "a failure ends the sweep",
        SWEEPER,
        "            if isinstance(error, SystemExit) and",
        "            if True or",
        JOB_LIST,
    ),
    Bug("an interrupt is a failure", SWEEPER, "error.code == INTERRUPTED", "error.code == -1", JOB_LIST),
    Bug("failures are not told", SWEEPER, "if r.status != JobStatus.COMPLETED]", "if 0]", JOB_LIST),
]
