"""Speed and memory of image models: a forward pass, or a training step without the optimiser."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from subquad.measure.benchmark import Measured, Mode
from subquad.measure.inputs import random_inputs
from subquad.measure.memory import LiveTensors
from subquad.measure.timing import interleave
from subquad.specs import ImageSpec

Models = Mapping[str, nn.Module]
"""Models by their name in the result; all map `[b, c, h, w]` to `[b, classes]`."""


def measure_images(
    models: Models, spec: ImageSpec, mode: Mode, batch: int, rounds: int, device: str = "cpu"
) -> dict[str, Measured]:
    """Time of each round and peak of live tensors of each model on the same images, in turn in one process."""
    [images] = random_inputs(spec, batch, device)
    assert images is not None

    def program(model: nn.Module) -> Callable[[], None]:
        model.to(device).train(mode == "training")

        def infer() -> None:
            with torch.inference_mode():
                model(images)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            model(images).logsumexp(1).mean().backward()

        return infer if mode == "inference" else step

    runs = {name: program(model) for name, model in models.items()}
    timings = interleave(runs, rounds, warmup=1)
    peaks = {}
    for name, run in runs.items():
        models[name].zero_grad(set_to_none=True)
        with LiveTensors() as memory:
            run()
        peaks[name] = memory.peak
        models[name].zero_grad(set_to_none=True)
    return {name: Measured(timing=timings[name], peak=peaks[name]) for name in runs}
