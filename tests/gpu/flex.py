"""Stand-ins for flex attention, which compiles a kernel for the GPU that is not there.

Importing this module replaces torch's functions for the whole process, so it comes before the package.
"""

import tests.gpu.fake_cuda  # noqa: F401  # isort: skip  before torch

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs

from tests.gpu.trace import Trace, moved_by

BLOCK = 128
"""Tokens of a block of the kernel."""

make_real = torchs.create_block_mask


def create_block_mask(mask_mod: Any, b: int, h: int, n: int, m: int, device: Any = "cuda", **_: Any) -> Any:
    """On the GPU, torch's operators for a mask of blocks: the compiled function evaluates `mask_mod` in one of them.

    On the CPU the real mask of one row and one head.
    """
    if torch.device(device).type == "cpu":
        return make_real(mask_mod, 1, 1, n, m, device, BLOCK_SIZE=BLOCK)
    blocks = -(-n // BLOCK), -(-m // BLOCK)
    make_real(mask_mod, b, h, *blocks, device, BLOCK_SIZE=1)
    return SimpleNamespace(
        to_dense=partial(torch.empty, b or 1, h or 1, *blocks, device=device), seq_lengths=(n, m), BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
    )  # fmt: skip


def flex_attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, block_mask: Any = None, **__: Any) -> Tensor:
    """One launch of which `_density` of the blocks is computed; on the CPU, notes this share."""
    if not q.is_cuda:
        _densities.append(1 - block_mask.sparsity() / 100)
        return q
    return _Flex.apply(q, k, v, next(_replay, 1.0))


_densities: list[float] = []
_replay: Iterator[float] = iter(())


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, density: float) -> Tensor:
        y = q.new_empty(*q.shape[:-1], v.shape[-1])
        ctx.save_for_backward(q, k, v, y)
        ctx.density = density
        _launch(q, k, v, y, density, 1)
        return y

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y = ctx.saved_tensors
        _launch(q, k, v, y, ctx.density, 2.5)
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


def _launch(q: Tensor, k: Tensor, v: Tensor, y: Tensor, density: float, times: float) -> None:
    flops = 2 * q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1]) * density
    if Trace.current is not None:
        Trace.current.add(
            "flex_attention", times * moved_by(q, k, v, y), times * flops, "flex", q.dtype != torch.float32
        )


@contextmanager
def densities_of(found: list[float]) -> Iterator[None]:
    """Inside, the calls of flex attention compute these shares of their blocks, in this order, in each pass."""
    global _replay
    _replay = itertools.cycle(found)
    yield
    _replay = iter(())


def find_densities(model: torch.nn.Module, inputs: tuple[Any, ...]) -> list[float]:
    """The share of the blocks that each call of flex attention computes, by a run on the CPU."""
    _densities.clear()
    users = [m for name, m in sys.modules.items() if name.startswith("subquad.") and hasattr(m, "runs_flex")]
    with ExitStack() as stack, torch.no_grad():
        for user in users:
            stack.enter_context(patch.object(user, "runs_flex", lambda *_: True))
        model.eval()(*inputs)
    return list(_densities)


torchs.create_block_mask, torchs.flex_attention = create_block_mask, flex_attention
torch.compile = lambda function, **_: function
