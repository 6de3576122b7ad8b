"""A training step that recomputes layers or takes microbatches has the loss and the gradients of the plain step."""

from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from runs import TINY, composed
from torch.testing import assert_close

from subquad.backbones.layerwise import recompute_layers
from subquad.data.batches import Rows
from subquad.data.microbatches import cut
from subquad.kernels.short_attention_kernel import MOST_KEYS
from subquad.specs import DataSpec, SequenceBatch

SPEC = DataSpec(max_len=MOST_KEYS + 30, channels=2, classes=3)
"""So long that softmax attention with dropout is computed in parts."""


def step(tmp_path, again, count, *overrides):
    """Loss and gradients of seven rows, whose microbatches differ in size."""
    config = composed(tmp_path, tmp_path, "task=uea/heartbeat", *TINY, "backbone.layers=2", *overrides)
    torch.manual_seed(0)
    module = instantiate(config.task.module, _convert_="all")(spec=SPEC)
    trainer = module.trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=count)
    lengths = SPEC.max_len - 50 * torch.arange(7)
    valid = torch.arange(SPEC.max_len) < lengths[:, None]
    batch = SequenceBatch(torch.randn(7, SPEC.max_len, 2) * valid[..., None], valid, torch.arange(7) % 3)
    if again:
        recompute_layers(module.network)
    total = torch.zeros(())
    for part in cut(batch, Rows(range(7), place=0), count) if count > 1 else [batch]:
        loss = module.training_step(part) / count
        loss.backward()
        total += loss.detach()
    assert trainer
    return total, torch.cat([p.grad.flatten() for p in module.parameters()])


@pytest.mark.parametrize("attention", ["softmax", "attention_bn", "attention_sh", "attention_bn_sh"])
@pytest.mark.slow
def test_a_step_that_is_made_to_fit_is_the_plain_step(tmp_path, attention):
    """Without dropout all ways; with dropout and batch normalisation recomputed layers, to the bit."""
    chosen = f"attention={attention}"
    plain = step(tmp_path, False, 1, chosen)
    assert_close(step(tmp_path, True, 1, chosen), plain, rtol=0, atol=0)
    divisible = (chosen, "backbone.norm=layer", "backbone.dropout=0.0")
    loss, gradient = step(tmp_path, False, 1, *divisible)
    for again in (False, True):
        found, found_gradient = step(tmp_path, again, 3, *divisible)
        assert_close(found, loss, rtol=1e-6, atol=0)
        assert (found_gradient - gradient).norm() <= 1e-6 * gradient.norm()
