"""The operations that EcoFormer's tables count (Liu et al. 2022, https://arxiv.org/abs/2209.09004, Section 5).

Layers are counted as mmcv 1.3.8 does, and every multiply-accumulate is one multiplication and one addition:
    linear: tokens · in · out (no bias); convolution: outputs · in / groups · k², and an addition-and-multiplication for
    each bias; norms: 2 for each element; activations, residuals, softmax, embeddings and everything else: 0.

Attentions are counted by the formulas below, in n tokens of width d with h heads of width c = d / h, forward only,
without padding. The formulas describe the papers' algorithms, not what this package executes:
    EcoFormer, softmax: from the released code (ziplab/EcoFormer, get_energy.py). For EcoFormer it omits the n·m·d
        squares of ‖q - s‖², the normalisation of q, σ, exp and -μ, and counts hᵀ Σ_t h_t as multiplications although h
        is binary;
    Performer, Bi- and LSH-EcoFormer: fitted, with small terms chosen to reproduce the printed numbers;
    Linformer, Reformer: textbook counts.
docs/measuring.md lists the table rows that they reproduce.
"""

from functools import singledispatch
from typing import Any

from torch import Tensor, nn

from subquad.attention.base import Attention
from subquad.attention.ecoformer import EcoFormer
from subquad.attention.ecoformer_variants import BiEcoFormer, FPEcoFormer, LSHEcoFormer
from subquad.attention.linformer import Linformer
from subquad.attention.performer import Performer
from subquad.attention.reformer import Reformer
from subquad.attention.softmax import Softmax
from subquad.backbones.encoder import StandaloneEncoder
from subquad.measure.aten import Tally, macs
from subquad.specs import Pattern
from subquad.utils.errors import UserError


def count_published(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[dict[str, Tally], dict[str, Tally]]:
    """Runs the model once; returns the counts of its modules by their path, and by their class.

    Raises UserError for an attention without a published count, and for cross-attention, which the tables do not have.
    """
    modules: dict[str, Tally] = {}
    classes: dict[str, Tally] = {}
    hooks = []
    counted: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if published.dispatch(type(module)) is published.dispatch(object) or path.startswith(counted):
            continue
        if isinstance(module, Attention):
            if module.site.pattern is Pattern.CROSS:
                raise UserError("EcoFormer's convention counts self-attention only; choose convention=everything.")
            counted = (*counted, f"{path}." if path else "")  # its projections are part of its own count

        def note(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            tally = published(module, args[0], output)
            for counts, name in ((modules, path), (classes, type(module).__name__)):
                counts[name] = counts.get(name, Tally()) + tally

        hooks.append(module.register_forward_hook(note))
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return modules, classes


@singledispatch
def published(module: nn.Module, x: Tensor, output: Any) -> Tally:
    """The operations of one call of a module, from its first argument and its result."""
    return Tally()


@published.register
def _(module: Attention, x: Tensor, output: Any) -> Tally:
    raise UserError(
        f"EcoFormer's convention has no count for {type(module).__name__}; choose convention=everything, or one of "
        "softmax, ecoformer and its variants, performer, linformer, reformer."
    )


@published.register
def _(module: StandaloneEncoder, x: Tensor, output: Any) -> Tally:
    raise UserError(f"EcoFormer's convention has no count for {type(module).__name__}; choose convention=everything.")


published.register(nn.Linear, lambda module, x, y: macs(y.numel() * module.in_features))
published.register(
    nn.Conv2d, lambda module, x, y: macs(y.numel() * (module.weight[0].numel() + (module.bias is not None)))
)
for norm in (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d):
    published.register(norm, lambda module, x, y: macs(2 * y.numel()))


def _sizes(module: Attention, x: Tensor) -> tuple[int, int, int, int, int]:
    """Rows of the batch, tokens, width, heads, width of a head."""
    rows, tokens, dim = x.shape
    return rows, tokens, dim, module.site.heads, dim // module.site.heads


@published.register
def _(module: Softmax, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, _ = _sizes(module, x)
    return rows * (macs(4 * n * d * d + 2 * n * n * d) + Tally(mul=h * n * n))


@published.register
def _(module: EcoFormer, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, _ = _sizes(module, x)
    m, b = module.anchors.shape[1], module.bits
    hashing = Tally(mul=2 * m * h * n, add=2 * m * n * d) + macs(m * b * h * n)
    normaliser = Tally(mul=(b + 1) * h * n, add=2 * b * h * n)
    read_out = Tally(mul=n * d, add=(2 * b + 1) * n * d)
    return rows * (macs(3 * n * d * d) + hashing + normaliser + read_out)


@published.register(Performer)
@published.register(FPEcoFormer)
def _(module: Performer | FPEcoFormer, x: Tensor, output: Any) -> Tally:
    """The printed row of FP-EcoFormer on PVTv2-B0 equals that of Performer, with separate queries and keys."""
    rows, n, d, h, c = _sizes(module, x)
    f = len(module.directions) if isinstance(module, FPEcoFormer) else module.features
    return rows * macs(4 * n * d * d + h * n * (4 * f * c + 6 * f))


@published.register
def _(module: BiEcoFormer, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, c = _sizes(module, x)
    f = len(module.directions)
    each = Tally(mul=f * c + 3 * c + 3 * f + 1, add=3 * f * c + 3 * c + 4 * f)
    return rows * (macs(3 * n * d * d) + h * n * each)


@published.register
def _(module: LSHEcoFormer, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, c = _sizes(module, x)
    f, b = len(module.directions), module.planes.shape[1]
    each = macs(f * c + 3 * c + 2 * f + f * b) + Tally(add=2 * b + 2 * b * c)
    return rows * (macs(3 * n * d * d) + h * n * each)


@published.register
def _(module: Linformer, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, _ = _sizes(module, x)
    if module.projection != "linear" or len({*module.slots}) > 1:
        raise UserError("EcoFormer counts Linformer with one linear projection of a length; choose projection=linear.")
    k = module.slots[0]
    return rows * (macs(4 * n * d * d + 4 * k * n * d) + Tally(mul=h * n * k))


@published.register
def _(module: Reformer, x: Tensor, output: Any) -> Tally:
    rows, n, d, h, _ = _sizes(module, x)
    keys = 2 * module.chunk
    each = macs(d * module.buckets // 2 + 2 * keys * d) + Tally(mul=h * keys)
    return rows * (macs(3 * n * d * d) + module.hashes * n * each)
