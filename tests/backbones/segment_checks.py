"""Encoders of segments against a loop over segments: values and gradients, in float64."""

from collections.abc import Callable

import torch
from attention.cells import prefix
from reference import tlb as printed
from torch import Tensor
from torch.testing import assert_close

from subquad.blocks.embeddings import SinusoidalPositions

LENGTHS = {"37": [37, 37], "20": [20, 20], "padded": [37, 20, 13, 1], "short": [2, 3]}
"""Real tokens of each row; segments of 5 and 7 do and do not divide them."""


def unusual(model: torch.nn.Module) -> torch.nn.Module:
    """In float64, sinusoids too, with random biases and scales of norms."""
    model.double()
    for module in model.modules():
        if isinstance(module, SinusoidalPositions):
            exact = printed.sinusoids(*module.table.shape)
            assert_close(module.table, exact, rtol=0, atol=1e-5)
            module.table = exact
    for p in model.parameters():
        if p.ndim == 1:
            torch.nn.init.normal_(p.data, mean=0.5, std=0.5)
    return model.eval()


def rows(lengths: list[int]) -> tuple[Tensor, Tensor | None]:
    valid = prefix(lengths, max(lengths))
    tokens = torch.randint(1, 11, valid.shape).masked_fill(~valid, 0)
    return tokens, None if valid.all() else valid


def agree(model: torch.nn.Module, latents: Callable[[Tensor], Tensor], lengths: list[int]) -> None:
    """Predictions and gradients equal those of the loop, run on each row by itself without padding."""
    tokens, valid = rows(lengths)
    got = model(tokens, valid)
    each = [latents(model.embed(row[None, :n])[0]) for row, n in zip(tokens, lengths, strict=True)]
    want = torch.stack([printed.predict(model, state) for state in each])
    assert_close(got, want, rtol=1e-8, atol=1e-9)
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = torch.randn_like(got)
    fast, slow = (
        torch.autograd.grad(y, parameters, weights, allow_unused=True, materialize_grads=True) for y in (got, want)
    )
    for name, a, b in zip(names, fast, slow, strict=True):
        assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda message, name=name: f"gradient of {name}: {message}")
