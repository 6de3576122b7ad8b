"""A tenth of the cases of `make chaos`, as far as seventy seconds go; those that do not need the pages of a report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = ("kill.report", "damage.report", "damage.strange")


@pytest.mark.slow
def test_what_is_disturbed_ends_as_its_twin(tmp_path):
    from chaos.__main__ import KINDS

    kinds = ",".join(kind for kind in KINDS if kind not in SLOW)
    command = [sys.executable, "-m", "tests.chaos", f"folder={tmp_path}", "cases=0.1", "seconds=60", f"only={kinds}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert len(verdicts) >= 10
    assert {v["state"] for v in verdicts} == {"ok"}
