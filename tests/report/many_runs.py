"""Records of many finished runs: `PYTHONPATH=tests python tests/report/many_runs.py /tmp/o 2000`.

They are runs of the tables of the papers, with scores drawn at random, to time
`SUBQUAD_OUTPUTS=/tmp/o python scripts/report.py`.
"""

import os
import random
import sys
from pathlib import Path


def main(outputs: str, count: str) -> None:
    """Writes the first `count` runs of all tables, with all their seeds, below `outputs`."""
    os.environ["SUBQUAD_OUTPUTS"] = str(Path(outputs).resolve())
    from made_pages import finish

    from subquad.cli.command import prepare_process
    from subquad.results.cells import RunIndex, load_table
    from subquad.results.collect import all_tables

    prepare_process()
    random.seed(0)
    runs, left = RunIndex(), int(count)
    for name in all_tables():
        for job in runs.specs(load_table(name), None):
            if left and not job.folder.exists():
                left -= 1
                found, seed = runs.compositions[job.overrides[:-1]], int(job.overrides[-1].partition("=")[2])
                job.folder.mkdir(parents=True)
                parts = {key: found.identity[key] for key in ("task", "data", "trainer")}
                parts["trainer"] = {**parts["trainer"], "devices": 1, "num_nodes": 1}
                finish(
                    job.folder, 0.5, seed, found.attention, task=parts["task"]["name"], config=parts,
                    metrics={f"test/{name}": random.random() for name in ("accuracy", "rmse", "perplexity")},
                    finished="2026-01-01T10:00:00+00:00",
                )  # fmt: skip
    runs.compositions.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
