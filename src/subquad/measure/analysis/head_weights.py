"""The attention matrices of a network's softmax heads on real inputs, and the distances between heads."""

import itertools
import math
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subquad.attention.attention_bn import AttentionBN
from subquad.attention.attention_sh import AttentionSH
from subquad.attention.base import Attention
from subquad.attention.softmax import Softmax
from subquad.ops.masks import masked_softmax
from subquad.specs import ContextMask, Masks
from subquad.utils.errors import UserError


class HeadWeights(TorchFunctionMode):
    """Inside the block, each call of a softmax attention of the network appends its weights `[b, h, n, m]` to `layers`.

    Supported are Softmax (fused), Attention-BN and Attention-SH. The weights are computed from the arguments of torch's
    fused kernel, so they are those that the network uses. If a head attends to windows of tokens (Attention-SH), the
    weight of a window is shared equally by its real tokens. Rows of padded queries are 0.

        with HeadWeights(network) as recorded:
            network(*inputs)
        recorded.layers
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.attentions = [
            module for module in network.modules() if isinstance(module, (Softmax, AttentionBN, AttentionSH))
        ]
        self.layers: list[Float[Tensor, "b h n m"]] = []
        self._calls: list[Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for attention in self.attentions:
            self._hooks += [
                attention.register_forward_pre_hook(lambda *_: self._calls.clear()),
                attention.register_forward_hook(lambda module, inputs, _: self._close(module, *inputs)),
            ]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self._calls.append(_weights(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _close(self, module: Attention, x: Tensor, context: Tensor, masks: Masks, *_: Any) -> None:
        if not self._calls:
            return
        scales = [group.scale for group in module.groups] if isinstance(module, AttentionSH) else [1]
        length = context.shape[1]
        spread = [
            _spread(weights, min(scale, length), length, masks.context)
            for weights, scale in zip(self._calls, scales, strict=True)
        ]
        joined = torch.cat(spread, 1)
        if masks.query is not None:
            joined = joined.masked_fill(~masks.query[:, None, :, None], 0)
        self.layers.append(joined)


@torch.no_grad()
def _weights(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(Q Kᵀ · scale) of the kernel's arguments; no supported attention is causal or adds a bias."""
    return masked_softmax(q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale), attn_mask)


def _spread(weights: Float[Tensor, "b h n k"], size: int, length: int, real: ContextMask) -> Float[Tensor, "b h n m"]:
    """Weights of windows of `size` tokens as weights of their real tokens."""
    if size == 1:
        return weights
    tokens = weights.new_ones(1, length) if real is None else real.to(weights.dtype)
    filled = F.pad(tokens, (0, -length % size)).unflatten(-1, (-1, size))
    shares = (filled / filled.sum(-1, keepdim=True).clamp_min(1)).flatten(-2)[:, :length]
    return weights.repeat_interleave(size, -1)[..., :length] * shares[:, None, None]


def distances(weights: Float[Tensor, "b h n m"]) -> Float[Tensor, "b p"]:
    """‖P_a - P_b‖_F of every pair of heads a < b, for each row."""
    pairs = itertools.combinations(range(weights.shape[1]), 2)
    return torch.stack([(weights[:, a] - weights[:, b]).flatten(1).norm(dim=1) for a, b in pairs], 1)


@torch.no_grad()
def head_distances(network: nn.Module, inputs: Iterable[tuple[Any, ...]]) -> tuple[float, float]:
    """Mean and standard deviation, over sequences and pairs of heads, of ‖P_a - P_b‖_F; the mean over layers of both.

    P are the attention matrices of a layer's heads on one sequence, real tokens only. Raises UserError for attentions
    without softmax heads.

    Source: Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Section 4 and Table 4, which names no norm.
    """
    by_layer: list[list[Tensor]] = []
    for batch in inputs:
        with HeadWeights(network) as recorded:
            network(*batch)
        if not recorded.layers or recorded.layers[0].shape[1] < 2:
            raise UserError(
                "Distances between heads need an attention with softmax heads, two at least; choose attention=softmax, "
                "attention_bn, attention_sh or attention_bn_sh."
            )
        by_layer = by_layer or [[] for _ in recorded.layers]
        for of_layer, weights in zip(by_layer, recorded.layers, strict=True):
            of_layer.append(distances(weights).flatten())
    layers = [torch.cat(of_layer) for of_layer in by_layer]
    means, spreads = ([float(value(d)) for d in layers] for value in (torch.mean, lambda d: d.std(correction=0)))
    return sum(means) / len(means), sum(spreads) / len(spreads)
