"""A launcher that trains the runs of a sweep through Ray, on this machine or on a cluster of Ray."""

import os
from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.errors import CompactHydraException

from hydra_plugins.subquad.job_list_sweeper import INTERRUPTED
from hydra_plugins.subquad.remote_launcher import RemoteLauncher


class Ray(RemoteLauncher):
    """Trains the runs that have not finished as tasks of Ray, waits for them and reports their results.

    Settings: configs/hydra/launcher/ray.yaml.
    """

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Ray reads it when imported; it would drop lines of one run
        from subquad.sweep.ray_tasks import size_of, train_all
        from subquad.utils.errors import UserError

        try:
            runs = [self.requested(overrides, size_of) for overrides in job_overrides]
            left = {run.run: run for run in runs if not run.complete}
            failed = train_all(list(left.values()), self.settings, initial_job_idx)
        except UserError as error:
            raise CompactHydraException(str(error)) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        self.show(runs, failed, left)
        return [self.outcome(o, run.run, failed) for o, run in zip(job_overrides, runs, strict=True)]
