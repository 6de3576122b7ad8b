"""Checks of one attention on a device: agreement with a CPU, padding, refreshing."""

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.base import Attention, AttentionFactory, Discrete, Refreshable
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.specs import Masks, Pattern, Site
from subquad.utils.devices import as_on_a_gpu

OUTPUTS = {"float32": 1e-4, "bfloat16": 0.04}
"""Largest relative error of the outputs at real tokens, by precision; half precision is autocast, as in training."""
GRADIENTS = {"float32": 1e-3, "bfloat16": 0.15}
"""Largest relative error of the gradient of the input or of a parameter (see `_gradient_error`)."""
DISCRETE = 0.1
"""Largest median over tokens of the relative error of a `Discrete` mechanism, whose codes may change by rounding."""
LEAK = 1e-4
"""Largest relative change of outputs at real tokens when the padding changes."""
AWKWARD = (192, 129, 191, 193, 255)
"""Lengths that are 64, 1, 63, 65 and 127 more than a multiple of 128."""
POISON = 1e3
BATCH, DIM, HEADS = 4, 128, 4


@dataclass(frozen=True, slots=True)
class CheckedValue:
    """A value that was compared: its name, the value (infinite if a tensor is not finite), the largest that passes."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit


def parity(factory: AttentionFactory, device: str, length: int = 320, batch: int = BATCH) -> list[CheckedValue]:
    """Outputs and gradients on a device relative to those of a CPU in float64, with the same weights and inputs.

    The rows have different lengths. The layers are in eval mode, because a mechanism that draws random numbers in
    training draws others on another device. Of `Discrete` mechanisms the outputs of the median token are compared, and
    gradients must be finite.
    """
    found = []
    for pattern in _patterns(factory):
        exact, (x, context) = _layer(factory, pattern, length, batch), _inputs(pattern, length, batch)
        masks = _masks(pattern, [length, length // 2 + 1, 64, 1][:batch], length)
        wanted, gradients, weights = _step(exact, x, context, masks, None)
        for precision in OUTPUTS:
            layer = copy.deepcopy(exact).to(device, torch.float32)
            got, other, _ = _step(layer, *_on(device, x, context), masks, weights, precision)
            where = f"{pattern.value}, {precision}"
            if isinstance(exact, Discrete):
                error = _by_token(got, wanted).median().item()
                found.append(CheckedValue(f"outputs of the median token ({where})", error, DISCRETE))
                finite = all(g.isfinite().all() for g in other.values())
                found.append(CheckedValue(f"gradients are finite ({where})", 0.0 if finite else math.inf, 0.0))
                continue
            found.append(CheckedValue(f"outputs ({where})", _distance(got, wanted), OUTPUTS[precision]))
            name, error = _gradient_error(other, gradients)
            found.append(CheckedValue(f"gradient of {name} ({where})", error, GRADIENTS[precision]))
    return found


def padding(factory: AttentionFactory, device: str, lengths: Sequence[int] = AWKWARD) -> list[CheckedValue]:
    """Padding at awkward lengths: nothing is NaN or infinite in half precision, and padding changes no real token.

    Of four rows, one is full, one half full, one has a single token and one is all padding.
    """
    found = []
    for pattern in _patterns(factory):
        for length in lengths:
            rows = [length, length // 2, 1, 0]
            masks = _to(_masks(pattern, rows, length), device)
            where = f"{pattern.value}, {length} tokens"
            x, context = _on(device, *_inputs(pattern, length, len(rows)))
            built = _layer(factory, pattern, length, len(rows), dropout=0.1).to(device, torch.float32)
            for half in (torch.bfloat16, torch.float16):
                layer = copy.deepcopy(built).train()
                outputs, gradients, _ = _step(layer, x, context, masks, None, str(half).removeprefix("torch."))
                finite = all(t.isfinite().all() for t in (outputs, *gradients.values()))
                name = f"outputs and gradients are finite ({where}, {str(half).removeprefix('torch.')})"
                found.append(CheckedValue(name, 0.0 if finite else math.inf, 0.0))
            layer.eval()
            plain, poisoned = (_at_real_tokens(layer, x, context, masks, size) for size in (0.0, POISON))
            found.append(CheckedValue(f"padding is invisible ({where})", _distance(poisoned, plain), LEAK))
    return found


def refreshing(factory: AttentionFactory, device: str, length: int = 320) -> list[CheckedValue]:
    """Fitting or redrawing on a device leaves finite buffers and outputs; empty for mechanisms without such state."""
    found = []
    for pattern in _patterns(factory):
        layer = _layer(factory, pattern, length, BATCH, fit=False).to(device, torch.float32)
        if not isinstance(layer, Refreshable):
            return []
        x, context = _on(device, *_inputs(pattern, length, BATCH))
        masks = _to(_masks(pattern, [length, length // 2, 64, 1], length), device)
        with torch.no_grad():
            layer.refresh(x, context, masks)
            outputs = layer(x, context, masks)[0]
        held = (*(b for b in layer.buffers() if b.is_floating_point()), outputs)
        finite = all(t.isfinite().all() for t in held)
        found.append(CheckedValue(f"refreshed state is finite ({pattern.value})", 0.0 if finite else math.inf, 0.0))
    return found


def _patterns(factory: Any) -> list[Pattern]:
    mechanism = getattr(factory, "func", factory)
    return sorted(getattr(mechanism, "patterns", Pattern), key=lambda pattern: pattern is Pattern.CROSS)


def _queries(pattern: Pattern, length: int) -> int:
    return length if pattern is Pattern.SELF else length // 2 + 1


def _layer(
    factory: AttentionFactory, pattern: Pattern, length: int, batch: int, dropout: float = 0.0, fit: bool = True
) -> Attention:
    """A layer on the CPU in float64 and eval mode; fitted state is fitted to random tokens."""
    torch.manual_seed(0)
    site = Site(
        pattern=pattern, dim=DIM, heads=HEADS, query_len=_queries(pattern, length), context_len=length, dropout=dropout
    )
    layer = factory(site=site).double().eval()
    if fit and isinstance(layer, Refreshable):
        with torch.no_grad():
            layer.refresh(*_inputs(pattern, length, batch), Masks())
    return layer


def _inputs(pattern: Pattern, length: int, batch: int) -> tuple[Tensor, Tensor]:
    """Tokens in float64 on the CPU, the same tensor twice in self-attention."""
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(batch, length, DIM, generator=generator, dtype=torch.float64)
    if pattern is Pattern.SELF:
        return context, context
    return torch.randn(batch, _queries(pattern, length), DIM, generator=generator, dtype=torch.float64), context


def _on(device: str, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens in float32 on a device; in self-attention one tensor stays one."""
    tokens = context.to(device, torch.float32)
    return (tokens if x is context else x.to(device, torch.float32)), tokens


def _masks(pattern: Pattern, rows: Sequence[int], length: int) -> Masks:
    queries = _queries(pattern, length)
    context = torch.arange(length) < torch.tensor(rows)[:, None]
    shorter = torch.tensor(rows).clamp(max=queries)[:, None]
    return Masks(context if pattern is Pattern.SELF else torch.arange(queries) < shorter, context)


def _to(masks: Masks, device: str) -> Masks:
    assert masks.query is not None
    assert masks.context is not None
    return Masks(masks.query.to(device), masks.context.to(device))


def _step(
    layer: nn.Module, x: Tensor, context: Tensor, masks: Masks, weights: Tensor | None, precision: str = ""
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Outputs at real tokens, gradients by name, both in float64 on the CPU, and the weights of the loss.

    The loss is a weighted mean of the outputs at real tokens.
    """
    masks = _to(masks, x.device.type)
    alone, x = x is context, x.clone().requires_grad_()
    context = x if alone else context.clone().requires_grad_()
    half = precision in ("bfloat16", "float16")
    with ExitStack() as stack:
        if half:
            if x.device.type == "cpu":  # which computes more in half precision than CUDA
                stack.enter_context(rules_of_cuda())
                stack.enter_context(as_on_a_gpu())
            stack.enter_context(torch.autocast(x.device.type, getattr(torch, precision)))
        y = layer(x, context, masks)[0][masks.query].double()
    if weights is None:
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (y * weights.to(y.device)).mean().backward()
    leaves = {"x": x, **({} if alone else {"context": context}), **dict(layer.named_parameters())}
    gradients = {name: p.grad.double().cpu() for name, p in leaves.items() if p.grad is not None}
    return y.detach().cpu(), gradients, weights


@torch.no_grad()
def _at_real_tokens(layer: nn.Module, x: Tensor, context: Tensor, masks: Masks, size: float) -> Tensor:
    """Outputs at real tokens when every channel of the padding is `size`."""
    assert masks.query is not None
    assert masks.context is not None
    tokens = context.masked_fill(~masks.context[..., None], size)
    queries = tokens if x is context else x.masked_fill(~masks.query[..., None], size)
    return layer(queries, tokens, masks)[0][masks.query].double().cpu()


def _distance(got: Tensor, wanted: Tensor) -> float:
    """Relative error (Frobenius); infinite if a number is not finite."""
    error = ((got - wanted).norm() / wanted.norm().clamp(min=1e-12)).item()
    return error if math.isfinite(error) else math.inf


def _by_token(got: Tensor, wanted: Tensor) -> Tensor:
    error = (got - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-12)
    return error.nan_to_num(math.inf, math.inf)


def _gradient_error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[str, float]:
    """The name and the error of the worst gradient, relative to its norm, or to 1 % of that of all if it is larger.

    Without the second bound, gradients that are zero but for rounding (biases of keys) would be compared.
    """
    least = 0.01 * math.sqrt(sum(g.square().sum().item() for g in wanted.values()))
    if missing := sorted(wanted.keys() ^ got.keys()):
        return missing[0], math.inf
    errors = {name: ((got[name] - g).norm() / max(g.norm().item(), least, 1e-30)).item() for name, g in wanted.items()}
    name = max(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return name, errors[name] if math.isfinite(errors[name]) else math.inf
