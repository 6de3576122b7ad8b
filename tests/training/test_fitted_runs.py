"""Fitted mechanisms in whole runs: fitted at the right steps, stored in checkpoints, the same after a crash."""

from pathlib import Path
from unittest import mock

import pytest
from runs import TINY, composed, crash, identical, trained, weights

from subquad import records
from subquad.attention.ecoformer import EcoFormer

WORDS = (
    "task=uea/basic_motions", "attention=ecoformer", "scale=smoke", "limits.epochs=3", "recipe.batch_size=6",
    "+data.steps_per_epoch=5", "attention.refit_epochs=3", "attention.bits=4", "attention.anchors=5", *TINY,
    "backbone.layers=2",
)  # fmt: skip
"""Validates after 5 batches, while a pass over the 24 cases of training has 4."""


@pytest.mark.slow
def test_a_run_fits_at_its_first_batch_and_after_so_many_passes_and_resumes_to_the_same_end(data, tmp_path):
    seen, intact = [], EcoFormer.due

    def due(self, epoch, batch, step):
        answer = intact(self, epoch, batch, step)
        if answer:
            seen.append((self.site.layer, epoch, batch, step))
        return answer

    whole = composed(data, tmp_path / "whole", *WORDS)
    with mock.patch.object(EcoFormer, "due", due):
        trained(whole)
    assert seen == [(0, 0, 0, 0), (1, 0, 0, 0), (0, 3, 0, 12), (1, 3, 0, 12)]

    broken = composed(data, tmp_path / "broken", *WORDS)
    for step in (6, 8, 4):  # in the second interval, right after the second fit, and in the second interval again
        with crash(step), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, tmp_path / "broken", *WORDS))
    trained(composed(data, tmp_path / "broken", *WORDS))
    runs = [Path(config.paths.run) for config in (whole, broken)]
    for name in ("best.ckpt", "last.ckpt"):
        a, b = (weights(run, name) for run in runs)
        assert a["network.layers.0.attention.fitted"]
        assert identical(a, b)
    assert len({(run / "metrics.csv").read_text() for run in runs}) == 1
    assert records.read(runs[0]).metrics == records.read(runs[1]).metrics
