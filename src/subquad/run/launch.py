"""Training of many runs by one command."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from subquad.run.cells import Job
from subquad.run.doors import ROOT


def train_all(jobs: Sequence[Job], hydra: Sequence[str] = ()) -> bool:
    """One multirun of train.py over all jobs, with words for Hydra such as its launcher; whether any failed."""
    Console().print(f"{len(jobs)} runs are to be trained.")
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "jobs"
        listed.write_text("".join(json.dumps(job.words) + "\n" for job in jobs))
        command = [
            sys.executable,
            str(ROOT / "train.py"),
            "-m",
            "hydra/sweeper=job_list",
            f"hydra.sweeper.jobs={listed}",
        ]
        return subprocess.run([*command, *hydra]).returncode != 0
