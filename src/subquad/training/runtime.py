"""How torch computes a run: the precision of float32, the choice of kernels, memory formats and padded lengths."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.accelerators import CUDAAccelerator
from torch import nn
from torch.backends import cudnn
from torch.nn.modules.batchnorm import _BatchNorm

from subquad.backbones.vision import ImageBackbone
from subquad.utils.devices import Float32Precision, switched, torch_settings
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The settings of configs/runtime/, where `auto` depends on the device; `resolved` replaces it by values.

    float32_precision: of matrix products and convolutions of float32 numbers: "highest" is float32, "high" TF32,
    "medium" bfloat16 for products.

    cudnn_attention: whether `scaled_dot_product_attention` may use cuDNN. From torch 2.11 to 2.13 (cuDNN 9.20), its
    backward pass gives NaN in half precision with a mask at lengths of 64 above a multiple of 128
    (https://github.com/pytorch/pytorch/issues/196678).

    deterministic: only kernels that give the same bits in every run on the same machine.

    channels_last: whether images and the weights of their convolutions are stored in NHWC, the format of tensor cores.

    pad_lengths: the length of padded batches is rounded up to a multiple of this number, so that compiled and planned
    kernels see few shapes. A batch without padding keeps its length, and so its kernels without a mask. Never with
    batch normalisation, whose statistics include padding.
    """

    float32_precision: Float32Precision | Literal["auto"] = "auto"
    cudnn_attention: bool = False
    deterministic: bool = False
    channels_last: bool | Literal["auto"] = "auto"
    pad_lengths: Count | Literal["auto"] | None = "auto"

    @classmethod
    def of(cls, config: DictConfig, network: nn.Module, trainer: pl.Trainer) -> "Runtime":
        """The resolved settings of a run; the defaults for the configuration of a version without these settings."""
        runtime: Runtime = instantiate(config.runtime) if "runtime" in config else cls()
        gpu = isinstance(trainer.accelerator, CUDAAccelerator)
        return runtime.resolved(network, gpu, config.recipe.get("float32_precision", "highest"))

    def resolved(self, network: nn.Module, gpu: bool, recipe: str) -> "Runtime":
        """The values for a network on a GPU or a CPU; `recipe` is the precision of float32 that the recipe asks for."""
        padded = gpu and not any(isinstance(part, _BatchNorm) for part in network.modules())
        autos = {
            "float32_precision": recipe if gpu else "highest",
            "channels_last": gpu and isinstance(network, ImageBackbone),
            "pad_lengths": 128 if padded else None,
        }
        return replace(self, **{key: value for key, value in autos.items() if getattr(self, key) == "auto"})  # type: ignore[arg-type]

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """Computes as resolved settings say inside the block; torch's global settings are restored afterwards.

        Raises UserError, with its name, at an operator that is not deterministic if `deterministic` is set.
        """
        for part in network.modules():
            if self.channels_last and isinstance(part, nn.Conv2d):
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
        assert self.float32_precision != "auto"
        switches: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []
        if self.deterministic:
            switches = [
                (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
                (partial(getattr, cudnn, "deterministic"), partial(setattr, cudnn, "deterministic"), True),
                (partial(getattr, cudnn, "benchmark"), partial(setattr, cudnn, "benchmark"), False),
                (partial(os.environ.get, _WORKSPACE), _set_workspace, os.environ.get(_WORKSPACE, ":4096:8")),
            ]
        with torch_settings(self.float32_precision, self.cudnn_attention), switched(switches):
            try:
                yield
            except RuntimeError as error:
                operator, refused, _ = str(error).partition(" does not have a deterministic implementation")
                if not refused:
                    raise
                raise UserError(
                    f"{operator} has no deterministic implementation in torch; set runtime.deterministic=false, or "
                    "choose a model without this operator."
                ) from error


def _set_workspace(value: str | None) -> None:
    """Sets or removes the variable that makes cuBLAS deterministic."""
    os.environ.pop(_WORKSPACE, None)
    if value is not None:
        os.environ[_WORKSPACE] = value
