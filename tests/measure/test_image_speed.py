"""Speed and memory of image models: training keeps activations, and models run in the requested mode."""

import pytest
import torch
from torch import nn

from subquad.measure.image_speed import measure_images
from subquad.specs import ImageSpec

SPEC = ImageSpec(side=8, channels=3, classes=5)


class Noting(nn.Module):
    """One linear map of the pixels, and the modes that it was called in."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head, self.recorded = nn.Linear(192, 64), nn.Linear(64, 5), []

    def forward(self, images):
        assert images.shape == (2, 3, 8, 8)
        self.recorded.append((self.training, torch.is_grad_enabled()))
        return self.head(torch.tanh(self.hidden(images.flatten(1))))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.slow
def test_models_run_in_turn_in_the_mode_that_is_measured(mode):
    models = {"a": Noting(), "b": Noting()}
    results = measure_images(models, SPEC, mode, batch=2, rounds=3)
    trains = mode == "training"
    for name, model in models.items():
        assert model.recorded == [(trains, trains)] * 5  # one to warm up, three rounds, one for memory
        assert len(results[name].timing.seconds) == 3
        assert all(p.grad is None for p in model.parameters())
    gradients = 4 * sum(p.numel() for p in models["a"].parameters())
    assert (results["a"].peak >= gradients) == trains
    assert results["a"].peak == results["b"].peak
