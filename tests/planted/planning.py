"""Planted bugs of plans: what a run takes, by what is known of its kind."""

from planted import Bug

COSTS, PLAN, SHOW, STEP, FACTS = (
    f"run/{name}.py" for name in ("costs", "plan", "show_plan", "step_time", "facts")
)  # fmt: skip
TESTS = "tests/run/test_plan.py"
BUGS = [
    Bug("the last batch of an epoch is left out", COSTS, "-(-rows //", "(rows //", TESTS),
    Bug("epochs are not limited", COSTS, 'trainer["max_epochs"] * per_epoch', "per_epoch", TESTS),
    Bug("clean keeps every row", COSTS, '(1 - data["val_fraction"])', "1", TESTS),
    Bug(
        "the batch size is no matter of time",
        COSTS,
        '"steps_per_epoch",\n',
        '"steps_per_epoch", "batch_size",\n',
        TESTS,
    ),
    Bug("precision is no matter of time", COSTS, 'str(settings["trainer"]["precision"])', "None", TESTS),
    Bug("a smoke run is as good", COSTS, "_REPRESENTATIVE = 0.1", "_REPRESENTATIVE = 0.0", TESTS),
    Bug("any device is as good", COSTS, "(pace.device == here, pace.whole,", "(pace.whole,", TESTS),
    Bug("one GPU of many", COSTS, "return devices * nodes if", "return 1 if", TESTS),
    Bug("the optimiser keeps nothing", COSTS, "optimizer.step()", "", TESTS),
    Bug("finished runs cost again", PLAN, "left * pace.seconds *", "len(work.jobs) * pace.seconds *", TESTS),
    Bug("one copy of a checkpoint", PLAN, "(1 + states)", "1", TESTS),
    Bug("shared runs count twice", PLAN, "[str(job.folder)] = job", "[str(len(found[job.words[:-1]]))] = job", TESTS),
    Bug("a part passes for the whole", SHOW, '"at least " * (share.timed < share.left)', '""', TESTS),
    Bug("binary units", SHOW, "count /= 1000", "count /= 1024", TESTS),
    Bug(
        "weights are fetched to count a model",
        STEP,
        "int(instantiate(without_weights(setting.module)",
        "int(instantiate((setting.module)",
        TESTS,
    ),
    Bug("the first steps count", STEP, "if self.count > self.warmup:", "if self.count:", TESTS),
    Bug("memory is not looked at", STEP, "if needed > free:", "if False:", TESTS),
    Bug(
        "no size is nothing", FACTS, "return found[0] if found else None", 'return found[0] if found else "0 GB"', TESTS
    ),
]
LACKING, SHOW_TABLE = "run/lacking.py", "run/show_table.py"
IN_TABLES = "tests/run/test_lacking.py"
BUGS += [
    Bug("filled cells need data", LACKING, " if not values.get(place)}", "}", IN_TABLES),
    Bug(
        "what a run starts from needs nothing",
        "run/cells.py",
        "None if job.start is None else self.needs(job.start)",
        "None",
        "tests/run/test_chains.py",
    ),
    Bug("means need nothing", LACKING, "for part in cell.mean if part in found", "for part in () if part", IN_TABLES),
    Bug("each attention is asked", "run/cells.py", "if key not in self._missing", "if True", IN_TABLES),
    Bug("not run, data or not", SHOW_TABLE, "Verdict.NEEDS_DATA if needs_data else", "", IN_TABLES),
    Bug("a dash, data or not", SHOW_TABLE, "NEEDS_DATA if empty else '-'", "'-'", IN_TABLES),
]
