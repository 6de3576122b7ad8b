"""Models of cells, built at the scale of the paper and run on tensors that have shapes and no numbers."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from subquad.backbones.language import LanguageModel
from subquad.config.settings import check_settings, without_weights
from subquad.measure.inputs import random_batch
from subquad.measure.shapes import fake_tensors
from subquad.planning.model_size import spec_of
from subquad.specs import TextSpec, VQASpec

ROWS = 2


def check_model(config: DictConfig, spec: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """The model of a configuration is built and runs, on its data with some settings changed; equal models once.

    spec: of the data that a cost is measured on, in place of those of the task.
    """
    parts = {name: OmegaConf.to_container(config[name], resolve=True) for name in ("attention", "backbone", "data")}
    data = parts["data"] = parts["data"] | changes
    for section, settings in parts.items():
        check_settings(section, settings)
    module = without_weights(OmegaConf.to_container(config.task.module, resolve=True))
    # Equal models are trained in many ways.
    module |= {"optimizer": None, "scheduler": None}
    known = declared(data) if spec is None else instantiate(spec, _convert_="all")
    _run(json.dumps(module, sort_keys=True), known)


def declared(data: Mapping[str, Any]) -> Any:
    """What a model must know of data that are not here: their settings, and of a published set what it is known for."""
    if (spec := spec_of(data)) is not None:
        return spec
    if "image_len" in data:
        tokens = {"text_dim": 768} if data["text"] == "albert" else {"vocab": 20_000}
        sizes = {key: data[key] for key in ("image_len", "image_dim", "text_len")}
        return VQASpec(**sizes, **tokens, classes=3129)
    classes = None if "masked" in data else 2
    return TextSpec(max_len=data["max_len"], vocab=data["vocab"], classes=classes, tokenizer="0")


@cache
def _run(module: str, spec: Any) -> None:
    with torch.device("meta"):
        network = instantiate(json.loads(module), _convert_="all")(spec=spec).network.eval()
    if isinstance(network, LanguageModel):  # how many tokens it names depends on the data
        network = network.encoder
    with torch.no_grad(), fake_tensors(network, random_batch(network, spec, ROWS).network_inputs) as inputs:
        output = network(*inputs)
    assert len(output) == ROWS
    assert output.is_floating_point()
