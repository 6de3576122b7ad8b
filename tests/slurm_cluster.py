"""Commands, jobs and processes on the Slurm clusters that tests start on this machine."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from runs import TINY, program

from subquad import records

SLURM = (
    "-m", "hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1",
    "hydra.launcher.poll_seconds=2", "hydra.launcher.signal_delay_s=30",
)  # fmt: skip
WORDS = (
    "task=uea/basic_motions", "attention=dba", "scale=smoke", "limits.epochs=80", "recipe.batch_size=6",
    "data.num_workers=1", "~callbacks.cores", *TINY,
)  # fmt: skip


def started(data, outputs, environment, *overrides, stderr=subprocess.PIPE) -> "subprocess.Popen[str]":
    """Starts train.py. One thread, as in a job with a core: the last bits depend on the number of threads."""
    outputs.parent.mkdir(exist_ok=True)
    command, settings = program(data, outputs, "train.py", *overrides)
    one_thread = {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, **settings | {"env": settings["env"] | one_thread | environment, "stderr": stderr})


def wait_for(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not found():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def said(environment, *command) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def run_of(outputs: Path, seed: int) -> Path:
    [found] = (outputs / "runs").rglob(f"*-s{seed}")
    return found


def job_of(outputs: Path, seed: int) -> str:
    """The job of a run that has written a checkpoint and is still training."""
    wait_for(lambda: list((outputs / "runs").rglob(f"*-s{seed}/checkpoints/last.ckpt")), f"a checkpoint of seed {seed}")
    run = run_of(outputs, seed)
    assert not (run / records.RESULT).exists(), "the run ended too early for this test"
    return json.loads((run / "slurm.json").read_text())["job"]


def processes_of(job: str) -> list[int]:
    """The training processes of a job, found by their environment; empty while there are none."""
    array, _, task = job.partition("_")
    wanted = {f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}", "SLURM_STEP_ID=0"}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
            if "submitit.core._submit" in command and not command.startswith("srun"):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                worker = "submitit.core._submit" in (Path("/proc") / str(parent) / "cmdline").read_text()
                if wanted <= {*(path / "environ").read_text().split("\0")} and not worker:
                    return [int(path.name)]
        except (OSError, UnicodeDecodeError):
            continue
    return []
