"""Planted bugs of what measured cells of tables name."""

from planted import Bug

QUANTITIES = "tests/run/test_quantities.py"

BUGS = [
    Bug(
        "additions cost multiplications",
        "run/quantities.py",
        'if operation == "add" else',
        "if bits == 0 else",
        QUANTITIES,
    ),
    Bug("areas are energies", "run/quantities.py", "(energy if of ==", "(energy if of !=", QUANTITIES),
    Bug(
        "every mechanism is a transformer",
        "run/quantities.py",
        'mechanism == "softmax" else',
        "mechanism else",
        QUANTITIES,
    ),
    Bug("latency of all rows", "run/quantities.py", "(16 if reading ==", "(16 if reading !=", QUANTITIES),
    Bug(
        "a gain upside down",
        "run/quantities.py",
        'peaks["softmax"] / peaks["ours"]',
        'peaks["ours"] / peaks["softmax"]',
        QUANTITIES,
    ),
    Bug(
        "heads together where only one fits",
        "run/quantities.py",
        '.append("attention.heads_at_once=1")',
        '.append("attention.heads_at_once=null")',
        QUANTITIES,
    ),
    Bug(
        "memory at the end, not at the peak",
        "measure/shapes.py",
        "return memory.peak",
        "return memory.live",
        QUANTITIES,
    ),
    Bug(
        "what is kept is not read",
        "run/measured.py",
        "found = None if again else known",
        "found = None if run else known",
        QUANTITIES,
    ),
    Bug("words are not shown", "run/show_table.py", "if words := said.get", "if words := {}.get", QUANTITIES),
    Bug(
        "a small run is judged",
        "run/show_table.py",
        "(cell.of_run or not cell.measure)",
        "not cell.measure",
        QUANTITIES,
    ),
    Bug(
        "remarks on all rows name the rows",
        "tables/notes.py",
        'else ", ".join(columns)',
        'else ", ".join(rows)',
        "tests/tables/test_table.py",
    ),
    Bug(
        "a yardstick with keys of the row",
        "run/quantities.py",
        "not (replaced and word",
        "not (False and word",
        QUANTITIES,
    ),
    Bug(
        "costs need weights",
        "run/quantities.py",
        'without_weights(config["task"]["module"]["backbone"])',
        'config["task"]["module"]["backbone"]',
        QUANTITIES,
    ),
    Bug("wide tables are cut", "run/show_table.py", ".maximum > console.width", ".maximum > 1e9", QUANTITIES),
]
