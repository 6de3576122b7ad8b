"""Counts the parameters of models, which are built on the meta device; without Lightning, whose import is slow."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subquad.backbones.encoder import check_fits
from subquad.backbones.patches import on_images
from subquad.config.settings import without_weights
from subquad.planning.cost import Setting
from subquad.results.missing_data import missing_data
from subquad.specs import ImageSpec
from subquad.utils.errors import UserError
from subquad.utils.spread import spread


def parameters_of(settings: Sequence[Setting]) -> list[int | None]:
    """Trainable parameters of the models of settings; None where the model depends on data that are missing here."""
    models = [_model_of(setting) for setting in settings]
    distinct = list(dict.fromkeys(model for model in models if model is not None))
    counts = dict(zip(distinct, spread(_count, distinct), strict=True))
    return [None if model is None else counts[model] for model in models]


def spec_of(data: Mapping[str, Any], prepare: bool = False) -> Any:
    """The spec of data, or None if it depends on files that are missing here.

    Args:
        data: settings of the data.
        prepare: whether to prepare the data if the spec depends on them; otherwise the spec is then None.
    """
    built = instantiate(data, _convert_="all")
    if data.get("synthetic"):
        built.prepare_data()
    try:
        return built.planned_spec
    except (AttributeError, OSError, UserError):
        if not prepare or missing_data(data) is not None:
            return None
    built.prepare_data()
    return built.spec


_Model = tuple[str, int, str]
"""JSON of a backbone's settings, the side of its image patches (0 for none), and JSON of the data's settings."""


def _model_of(setting: Setting) -> _Model | None:
    data = json.dumps(setting.data, sort_keys=True)
    if _spec(data) is None:
        return None
    return json.dumps(without_weights(setting.module["backbone"]), sort_keys=True), setting.module.get("patch", 0), data


@cache
def _spec(data: str) -> Any:
    return spec_of(json.loads(data))


def _count(model: _Model) -> int:
    """Trainable parameters of the network, which are all of the task's module; shared parameters count once."""
    backbone, patch, data = model
    spec = _spec(data)
    with torch.device("meta"), _NoValues():
        factory = instantiate(json.loads(backbone), _convert_="all")
        if isinstance(spec, ImageSpec):
            factory = on_images(factory, patch)
        check_fits(factory, spec)
        network = factory(spec=spec)
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def module_of(setting: Setting) -> tuple[Any, Any]:
    """The task's module of a setting on the meta device, and the spec of its data; or None and None without data."""
    spec = _spec(json.dumps(setting.data, sort_keys=True))
    return (None, None) if spec is None else (meta_module(setting.module, spec), spec)


def meta_module(settings: Mapping[str, Any], spec: Any) -> Any:
    """The task's module with these settings on the meta device."""
    with torch.device("meta"), _NoValues():
        return instantiate(without_weights(settings), _convert_="all")(spec=spec)


class _NoValues(TorchFunctionMode):
    """Skips operations that only write values, which take most of the time of building a model on the meta device."""

    _WRITING = frozenset(
        [
            Tensor.add_,
            Tensor.clamp_,
            Tensor.copy_,
            Tensor.div_,
            Tensor.erfinv_,
            Tensor.fill_,
            Tensor.mul_,
            Tensor.normal_,
            Tensor.sub_,
            Tensor.uniform_,
            Tensor.zero_,
            *(function for name, function in vars(nn.init).items() if name.endswith("_") and name[0] != "_"),
        ]
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._WRITING and (tensor := args[0] if args else kwargs["tensor"]).is_meta:
            return tensor
        return func(*args, **kwargs)
