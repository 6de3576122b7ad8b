"""The fast path against the naive function: values and gradients, in float64, at the real tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from attention.cells import after, prefix, run, site
from subquad.attention.base import Attention
from subquad.specs import Masks, Pattern

Layer = Callable[[nn.Module, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""One layer written naively, its choices already given: (module, x, context, carry) to (y, carry)."""


def by_head(head: Callable[..., Tensor], heads: int) -> Layer:
    """The layer of a naive function of one head: `head(module, number, q, k, v)` returns that head's output."""

    def layer(attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        maps = attention.projections
        qkv = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
        parts = [head(attention, number, *own) for number, own in enumerate(zip(*qkv, strict=True))]
        return maps.out(torch.cat(parts, 1)), carry

    return layer


def by_scaled_head(head: Callable[..., Tensor], scales: Sequence[int], beta: float | None) -> Layer:
    """As `by_head`, for heads that pool the context: `head(q, context, key, value, scale=..., beta=...)`.

    If `beta` is None, the module's parameter is used.
    """

    def layer(attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        maps, weight = attention.projections, attention.beta if beta is None else beta
        keys, values = (maps_of_heads(linear, len(scales)) for linear in (maps.key, maps.value))
        of_heads = zip(maps.query(x).chunk(len(scales), 1), keys, values, scales, strict=True)
        parts = [head(q, context, key, value, scale=scale, beta=weight) for q, key, value, scale in of_heads]
        return maps.out(torch.cat(parts, 1)), carry

    return layer


def maps_of_heads(linear: nn.Linear, heads: int) -> list[Callable[[Tensor], Tensor]]:
    """The part of a linear map that belongs to each head."""
    parts = zip(linear.weight.chunk(heads), linear.bias.chunk(heads), strict=True)
    return [partial(F.linear, weight=weight, bias=bias) for weight, bias in parts]


LONGEST = 37
LENGTHS = {
    "37": ([37, 37], [37, 37], False),
    "13": ([13, 13], [13, 13], False),
    "padded": ([37, 13, 1], [37, 13, 1], True),
    "short": ([2, 3], [3, 2], True),
}
"""Real tokens of each row (queries, context) and whether there are masks; one token, and fewer tokens than slots."""


def stack(factory: Callable[..., Attention], pattern: Pattern, layers: int = 2, **changes: Any) -> nn.ModuleList:
    """Layers for up to 37 tokens, in float64, with random biases and scales of norms."""
    changes = {"query_len": LONGEST, "context_len": LONGEST, **changes}
    built = nn.ModuleList(factory(site=site(pattern, layer=i, layers=layers, **changes)) for i in range(layers))
    for p in built.parameters():
        if p.ndim == 1:
            nn.init.normal_(p.data, mean=0.5, std=0.5)
    return built.double()


def one(factory: Callable[..., Attention], pattern: Pattern = Pattern.SELF, **changes: Any) -> Attention:
    """A single layer."""
    return stack(factory, pattern, layers=1, **changes)[0]


def tokens(*shape: int) -> Tensor:
    """Random embeddings, small enough that no softmax saturates over the layers."""
    return torch.randn(*shape, dtype=torch.float64) / 2


def agree(layers: nn.ModuleList, reference: Layer, lengths: str) -> None:
    """Asserts that the layers equal the reference, run on each sequence by itself without its padding."""
    dim, pattern = layers[0].site.dim, layers[0].site.pattern
    of_queries, of_context, padded = LENGTHS[lengths]
    context = tokens(len(of_context), max(of_context), dim).requires_grad_()
    x, of_queries = context, of_context if pattern is Pattern.SELF else of_queries[::-1]
    if pattern is Pattern.CROSS:
        x = tokens(len(of_queries), max(of_queries), dim).requires_grad_()
    masks = Masks(prefix(of_queries, x.shape[1]), prefix(of_context, context.shape[1])) if padded else Masks()
    fast = run(layers, x, context, masks)
    got = torch.cat([row[:n] for row, n in zip(fast, of_queries, strict=True)])
    rows = zip(x, context, of_queries, of_context, strict=True)
    want = torch.cat([_printed(layers, reference, a[:n], b[:m], x is context) for a, b, n, m in rows])
    close = {"rtol": 1e-8, "atol": 1e-9}
    assert_close(got, want, **close)
    inputs, weights = {"x": x, "context": context, **dict(layers.named_parameters())}, torch.randn_like(got)
    of_fast, of_printed = (
        torch.autograd.grad(y, [*inputs.values()], weights, allow_unused=True, materialize_grads=True)
        for y in (got, want)
    )
    for name, a, b in zip(inputs, of_fast, of_printed, strict=True):
        assert_close(a, b, **close, msg=lambda message, name=name: f"gradient of {name}: {message}")


def _printed(layers: nn.ModuleList, reference: Layer, x: Tensor, context: Tensor, alone: bool) -> Tensor:
    carry = None
    for layer in layers:
        y, carry = reference(layer, x, x if alone else context, carry)
        x = after(x, y)
    return x
