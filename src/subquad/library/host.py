"""What `swap` knows of one self-attention of a model."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from subquad.attention.base import Attention, Maps
from subquad.backbones.carrying import CarrySlot


@dataclass(frozen=True, kw_only=True)
class Host:
    """One self-attention of a model.

    `max_len` is None where the model does not say how long its inputs are. `maps` are its weights, `lost` the names of
    others, which no attention takes. Hosts of one `stage` have one width. `rotary`: the model rotates its queries and
    keys by their positions. `stack` is what a swapped attention shares with those swapped with it. `install` replaces
    it.
    """

    name: str
    module: nn.Module
    dim: int
    heads: int
    max_len: int | None
    dropout: float
    maps: Maps
    install: Callable[[Attention, CarrySlot], None]
    stage: int = 0
    grid: tuple[int, int] | None = None
    lost: tuple[str, ...] = ()
    rotary: bool = False
    stack: CarrySlot | None = None
