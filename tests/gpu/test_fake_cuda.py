"""Every attention and backbone on a CUDA device that is not there: nothing that a GPU would suffer from, and its costs.

The device is in processes of its own, because torch finds a GPU wherever it is loaded.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "gpu_budgets.json"

ACCEPTED = {
    r"(s4|s4_dba): double precision: \w+ \(ops/state_space.py:\d+\)":
        "one vector of angles for each kernel, whose cosines near -1 lose all digits in single precision",
}  # fmt: skip
"""What a model does on a GPU although it should not, and why."""


CHOICES = [["--fewer"], pytest.param([], marks=pytest.mark.release)]


def printed(*programs: list[str]) -> list[dict]:
    """What programs of this folder, run side by side, print."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.gpu.{name}", *words, "--json"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, *words in programs
    ]  # fmt: skip
    found = []
    for process in running:
        printed, said = process.communicate()
        assert process.returncode == 0, said[-3000:]
        found.append(json.loads(printed))
    return found


@pytest.mark.parametrize("choices", CHOICES, ids=["fewer", "all"])
def test_nothing_that_a_gpu_would_suffer_from(choices: list[str]) -> None:
    halves = printed(["sweep", "--part", "0/2", *choices], ["sweep", "--part", "1/2", *choices])
    problems = {
        f"{name}: {problem}": settings
        for half in halves
        for name, of_name in half.items()
        for problem, settings in of_name.items()
    }
    new = {problem: s for problem, s in problems.items() if not any(re.fullmatch(a, problem) for a in ACCEPTED)}
    assert not new, "\n".join(f"{problem} [{'; '.join(settings)}]" for problem, settings in new.items())
    for accepted in ACCEPTED:
        assert any(re.fullmatch(accepted, problem) for problem in problems), f"no longer happens; remove: {accepted}"


def test_no_mechanism_costs_more_than_recorded() -> None:
    [now], recorded = printed(["budgets"]), json.loads(GOLDEN.read_text())
    worse = [
        f"{name} in {setting}: {found[key]:g} {unit} instead of {recorded[name][setting][key]:g}"
        for name in now.keys() & recorded.keys()
        for setting, found in now[name].items()
        for key, unit in (("launches", "launches"), ("dispatches", "operators"), ("peak_mib", "MiB at the peak"))
        if found[key] > recorded[name][setting][key] * 1.01
    ]
    remedy = "if that is meant, run `python -m tests.gpu.budgets --record` and say in the commit why"
    assert not worse, f"On a GPU it would cost more: {'; '.join(sorted(worse))}; {remedy}."
    assert now.keys() == recorded.keys(), f"The recorded mechanisms are others; {remedy}."
