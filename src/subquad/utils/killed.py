"""What is known about a run that the system killed: a process that ends in any other way removes its estimate."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ESTIMATE = "memory.txt"


@contextmanager
def estimate_kept(run: Path, estimate: str) -> Iterator[None]:
    """Inside the block, the folder of the run holds the memory that a training step needs, by estimate."""
    path = run / ESTIMATE
    path.write_text(estimate, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def why_killed(run: Path | None) -> str:
    """The probable cause of a kill and the remedy, to continue a sentence; without the estimate where there is none."""
    try:
        estimate = (run / ESTIMATE).read_text(encoding="utf-8") if run else ""
    except OSError:
        estimate = ""
    needed = f" (a training step needs {estimate} by estimate)" if estimate else ""
    return (
        f"most likely because memory ran out{needed}; train fewer runs at a time (sweep.workers=1; on a cluster raise "
        "hydra.launcher.mem_gb), or state the memory that a run may take: trainer.accumulate_grad_batches=4GB"
    )
