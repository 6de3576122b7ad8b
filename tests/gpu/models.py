"""The models of the sweep and of the budgets: every choice of attention and of backbone."""

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from subquad.attention.base import Attention, StatelessAttention
from subquad.backbones.encoder import check_fits, class_of, sized
from subquad.config.choices import options
from subquad.config.compose import compose_run, load_attention
from subquad.measure.inputs import random_batch
from subquad.specs import DataSpec, ImageSpec, Masks, Pattern, Site, TextSpec, VQASpec
from subquad.utils.errors import UserError

DIM, HEADS = 512, 8


@dataclass(frozen=True)
class Model:
    """How to build one model, for at most `length` tokens, and its inputs."""

    build: Callable[[float], nn.Module]
    """Takes the rate of dropout."""
    inputs: Callable[[nn.Module, int, bool], tuple[Any, ...]]
    """Takes the model, the rows of a batch and whether it has padding."""


class Layers(nn.Module):
    """Layers of an attention that pass on tokens and carry."""

    def __init__(self, factory: Callable[..., Attention], layers: int, **site: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(factory(site=Site(layer=i, layers=layers, **site)) for i in range(layers))

    def forward(self, x: Tensor, context: Tensor | None, masks: tuple[Tensor | None, Tensor | None]) -> Tensor:
        carry = None
        for layer in self.layers:
            y, carry = layer(x, x if context is None else context, Masks(*masks), carry)
            x = x + y
        return x


def attention(name: str, pattern: Pattern, length: int, dim: int = DIM) -> Model:
    """Two layers of one choice of attention, or one where layers pass nothing on; the tokens of a square are a grid."""
    factory = load_attention(name)
    layers, side = 1 + (not issubclass(class_of(factory), StatelessAttention)), math.isqrt(length)
    sizes = {"dim": dim, "heads": HEADS, "query_len": length, "context_len": length}
    grid = (side, side) if side**2 == length else None

    def build(dropout: float) -> nn.Module:
        return Layers(factory, layers, pattern=pattern, grid=grid, dropout=dropout, **sizes)

    def inputs(_: nn.Module, rows: int, padded: bool) -> tuple[Any, ...]:
        mask = torch.ones(rows, length, dtype=torch.bool) if padded else None
        tokens = [torch.randn(rows, length, dim) for _ in range(1 + (pattern is Pattern.CROSS))]
        return tokens[0], tokens[1] if len(tokens) > 1 else None, (mask, mask)

    return Model(build, inputs)


def patterns(name: str) -> list[Pattern]:
    """The kinds of attention that a choice supports."""
    return [pattern for pattern in Pattern if pattern in class_of(load_attention(name)).patterns]


def backbone(name: str, length: int, **sizes: Any) -> Model:
    """A choice of backbone with its own attention, or softmax; `sizes` in place of the configured ones."""
    config: Any = OmegaConf.to_container(compose_run([f"backbone={name}"]), resolve=True)
    factory = instantiate(config["backbone"], _convert_="all")
    spec = _spec(sized(factory, **sizes), length)

    def build(dropout: float) -> nn.Module:
        return sized(factory, dropout=dropout, attention_dropout=dropout, drop_path=dropout, **sizes)(spec=spec)

    def inputs(model: nn.Module, rows: int, padded: bool) -> tuple[Any, ...]:
        given: list[Any] = list(random_batch(model, spec, rows).network_inputs)
        for i, part in enumerate(given):
            if part is None and padded:  # the mask of the part before
                given[i] = torch.ones(given[i - 1].shape[:2], dtype=torch.bool)
        return tuple(given)

    return Model(build, inputs)


def _spec(factory: Any, length: int) -> Any:
    """Data that a backbone reads, of the first kind that it does not refuse."""
    text = TextSpec(max_len=length, vocab=100, classes=10, tokenizer="0")
    series = DataSpec(max_len=length, channels=5, classes=10)
    images = ImageSpec(side=64, channels=3, classes=10)
    questions = VQASpec(image_len=100, image_dim=64, text_len=14, vocab=100, classes=10)
    for spec in (text, series, images, questions):
        with suppress(UserError, TypeError, AttributeError):
            check_fits(factory, spec)
            factory(spec=spec)
            return spec
    raise TypeError(f"{factory} reads no kind of data that this test has.")


def first_of_classes() -> list[str]:
    """The first choice of each class of attention."""
    return [*{class_of(load_attention(name)): name for name in reversed(attentions())}.values()]


attentions, backbones = (functools.partial(options, group) for group in ("attention", "backbone"))
