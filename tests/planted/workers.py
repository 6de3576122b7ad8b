"""Planted bugs of the processes that load data, and of interrupts."""

from planted import Bug

FILE, TESTS = "data/workers.py", "tests/data/test_workers.py"
BUGS = [
    Bug("a worker obeys anyone", FILE, ".si_pid != parent:", ".si_pid == 0:", TESTS),
    Bug("a worker obeys nobody", FILE, "os._exit(0)", "_wait(parent)", TESTS),
    Bug("a worker dies of signals to all", FILE, "        with _held_back():\n", "        if True:\n", TESTS),
    Bug("a run hears no signals", FILE, "signal.pthread_sigmask(signal.SIG_SETMASK, before)", "pass", TESTS),
    Bug(
        "Ctrl-C while a checkpoint is written fails the run", "run/train.py",
        " or isinstance(error.__context__, KeyboardInterrupt)", "", "tests/run/test_resume.py",
    ),
]  # fmt: skip
