"""Beltagy et al. 2020, Section 3.1: a window and global tokens, whose own sight has maps of its own."""

from functools import partial

import torch
from torch import Tensor, nn

from reference import pattern


def sees(head: int, i: int, j: int, window: int, global_tokens: int) -> bool:
    return i < global_tokens or j < global_tokens or abs(i - j) <= window / 2


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    window: int,
    global_tokens: int,
) -> tuple[Tensor, Tensor | None]:
    m, maps = attention, attention.projections
    seen = pattern.grid(partial(sees, window=window, global_tokens=global_tokens), heads, len(x))
    y = pattern.attend(maps.query(x), maps.key(context), maps.value(context), seen)
    if global_tokens:
        all_of_them = torch.ones_like(seen)
        wide = pattern.attend(m.global_query(x), m.global_key(context), m.global_value(context), all_of_them)
        y = torch.cat([wide[:global_tokens], y[global_tokens:]])
    return maps.out(y), carry
