"""Softmax attention over few keys on a CPU, in one pass that does not write logits to memory.

For windows, landmarks and blocks, torch's fused kernel calls its BLAS library with matrices that are too small to be
efficient. See `short_attention.cpp` for the formulas.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.kernels.dropout_kernel import new_seed, random_bits, threshold
from subquad.kernels.operands import chunks, fit, like, loaded, operator, point, rows, run, scratch
from subquad.utils.derivatives import first_order

MOST_KEYS = 1024
"""With more keys, the logits of a tile of queries do not fit into the cache, and torch's kernel is as fast. That has no
dropout, with which `subquad.ops.attention_in_parts` runs this kernel on parts of the queries."""

_KERNEL = "short_attention"
_COUNTS = ("batch", "heads", "queries", "keys", "features", "channels", "chunks", "threads", "parts")


class _Part(ctypes.Structure):
    """`Part` of short_attention.cpp, with the same order of fields."""

    _fields_ = (
        ("keys", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("k", "v", "dk", "dv")),
        *((f"{name}_step", ctypes.c_long * 3) for name in ("k", "v")),
        *((f"{name}_step", ctypes.c_long * 4) for name in ("dk", "dv")),
    )


class _Call(ctypes.Structure):
    """`Call` of short_attention.cpp, with the same order of fields."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _COUNTS),
        *((name, ctypes.c_float) for name in ("scale", "share")),
        ("least", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("q", "dy", "seen", "bits", "y", "lse", "scratch", "dq")),
        *((f"{name}_step", ctypes.c_long * 3) for name in ("q", "y", "dy", "dq")),
        ("seen_step", ctypes.c_long * 4),
        ("part", _Part * 2),
    )


def takes(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], seen: Tensor | None) -> bool:
    """Whether the kernel supports these operands, with few keys, and may run in this context."""
    return sum(x.shape[-2] for x in keys) <= MOST_KEYS and supports(q, keys, values, seen)


def supports(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], seen: Tensor | None) -> bool:
    """Whether the kernel supports these operands, of four axes each, and may run in this context."""
    return (
        fit(_KERNEL, q, *keys, *values)
        and len(keys) == len(values) <= 2
        and all(k.shape == (*q.shape[:2], k.shape[2], q.shape[3]) for k in keys)
        and all(v.shape == (*k.shape[:3], values[0].shape[3]) for k, v in zip(keys, values, strict=True))
        and (seen is None or (seen.dtype == torch.bool and seen.dim() == 4))
        and torch.backends.cuda.flash_sdp_enabled()  # the switch of `torch.nn.attention.sdpa_kernel`
    )


def short_attention(
    q: Float[Tensor, "b h n e"], keys: Sequence[Float[Tensor, "b h _ e"]], values: Sequence[Float[Tensor, "b h _ c"]],
    seen: Bool[Tensor, "#b #h #n #m"] | None, scale: float, dropout_p: float = 0.0,
) -> Float[Tensor, "b h n c"]:  # fmt: skip
    """dropout(softmax(scale · Q Kᵀ)) V over visible keys, for operands that `takes` accepts.

    A query without visible keys gets 0. Random bits of dropped weights are drawn again for the gradients, not kept.

    Args:
        keys: one or two tensors, which are used as if concatenated along the tokens, without a copy.
        values: tensors with the tokens of `keys`.
        seen: True where a query sees a key; None if no key is masked.
    """
    seed = new_seed() if dropout_p else None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, *keys, *values)):
        y: Tensor = _ShortAttention.apply(seen, scale, dropout_p, seed, q, *keys, *values)
        return y
    shared: Tensor = compiled(q, keys, values, seen, scale, dropout_p, _bits(seed, q, keys))[0]
    return shared


def _bits(seed: int | None, q: Tensor, keys: Sequence[Tensor]) -> Tensor | None:
    """Random bits of all weights; None without a seed."""
    return None if seed is None else random_bits(seed, math.prod(q.shape[:3]) * sum(x.shape[2] for x in keys))


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, seen: Tensor | None, scale: float, dropout_p: float, seed: int | None, q: Tensor, *parts: Tensor
    ) -> Tensor:
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        ctx.numbers, ctx.seed = (scale, dropout_p), seed
        y, lse = compiled(q, keys, values, seen, *ctx.numbers, _bits(seed, q, keys))
        ctx.save_for_backward(seen, lse, q, *parts)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        seen, lse, q, *parts = ctx.saved_tensors
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        bits = _bits(ctx.seed, q, keys)
        gradients = compiled_backward(dy, q, keys, values, seen, lse, *ctx.numbers, bits)
        return None, None, None, None, *gradients


def _forward(
    q: Tensor, keys: list[Tensor], values: list[Tensor], seen: Tensor | None, scale: float, dropout_p: float,
    bits: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, with the memory layout [b, n, h, c], and the logarithm of each query's sum of weights."""
    batch, heads, queries, _ = q.shape
    y = q.new_empty(batch, queries, heads, values[0].shape[3]).transpose(1, 2)
    lse = q.new_empty(batch, heads, queries)
    parts = [{"k": rows(k), "v": rows(v)} for k, v in zip(keys, values, strict=True)]
    call, _kept = _call(parts, seen, (scale, dropout_p), bits, q=rows(q), y=y, lse=lse)
    run(loaded(_KERNEL).forward, ctypes.byref(call))
    return y, lse


def _backward(
    dy: Tensor, q: Tensor, keys: list[Tensor], values: list[Tensor], seen: Tensor | None, lse: Tensor, scale: float,
    dropout_p: float, bits: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, keys and values, each with the memory layout of its operand."""
    # With few heads, the queries of each head are divided among threads, with separate gradients of keys and values.
    count = chunks(_KERNEL, q.shape[2], q.shape[0] * q.shape[1])
    parts = []
    for k, v in zip(map(rows, keys), map(rows, values), strict=True):
        dk, dv = (x.new_empty(count, *x.shape) if count > 1 else like(x)[None] for x in (k, v))
        parts.append({"k": k, "v": v, "dk": dk, "dv": dv})
    q = rows(q)
    dq = like(q)
    call, _kept = _call(parts, seen, (scale, dropout_p), bits, q=q, dy=rows(dy), lse=lse, dq=dq)
    call.chunks = count
    run(loaded(_KERNEL).backward, ctypes.byref(call))
    gradients = [part[name] for name in ("dk", "dv") for part in parts]
    return [dq, *(x.sum(0) if count > 1 else x[0] for x in gradients)]


def _call(
    parts: list[dict[str, Tensor]], seen: Tensor | None, numbers: tuple[float, float], bits: Tensor | None,
    **operands: Tensor,
) -> tuple[_Call, list[Tensor]]:  # fmt: skip
    """The arguments of a call, and the tensors whose addresses they contain, which must outlive the call.

    `numbers` are the scale and the dropout probability; `bits` are random ones of all weights, None without dropout.
    """
    scale, dropout_p = numbers
    q, keys = operands["q"], sum(part["k"].shape[2] for part in parts)
    sizes = (*q.shape[:3], keys, q.shape[3], parts[0]["v"].shape[3])
    call = _Call(*sizes, threads=torch.get_num_threads(), parts=len(parts), scale=scale)
    if seen is not None:
        # The kernel reads masks with contiguous queries, or one row for all queries.
        turned = seen if seen.shape[2] == 1 or seen.stride(2) <= 1 else seen.mT.contiguous().mT
        operands["seen"] = turned.expand(*q.shape[:3], keys)
    if bits is not None:
        call.least, call.share = threshold(dropout_p)
        operands["bits"] = bits
    point(call, **operands)
    for structure, part in zip(call.part, parts, strict=False):
        point(structure, **part)
        structure.keys = part["k"].shape[2]
    return call, [scratch(_KERNEL, call), *operands.values(), *(x for part in parts for x in part.values())]


_operands = "Tensor q, Tensor[] keys, Tensor[] values, Tensor? seen"
_numbers = "float scale, float dropout_p, Tensor? bits"
compiled = operator(f"short_attention({_operands}, {_numbers}) -> (Tensor, Tensor)", _forward)
"""The kernel without a derivative: y and the logarithms of the sums."""
compiled_backward = operator(
    f"short_attention_backward(Tensor dy, {_operands}, Tensor lse, {_numbers}) -> Tensor[]", _backward
)
"""The gradients of the queries, keys and values."""
