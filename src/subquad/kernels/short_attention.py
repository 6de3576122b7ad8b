"""Softmax attention over few keys on a CPU, in one pass and without logits in memory.

Where queries see a window, some landmarks or a block, torch's fused kernel multiplies matrices too small for the
library below it. See `short_attention.cpp` for the formulas.
"""

import ctypes
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.kernels.build import allowed, library

MOST_KEYS = 1024
"""With more of them the logits of a tile of queries leave the cache, and torch's kernel is as good."""

_TILE, _VECTOR = 64, 16


_COUNTS = ("batch", "heads", "queries", "keys", "features", "channels", "chunks", "threads")
_POINTERS = ("q", "k", "v", "seen", "y", "lse", "scratch", "dy", "dq", "dk", "dv")


class _Call(ctypes.Structure):
    """`Call` of short_attention.cpp, in its order."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _COUNTS),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((f"{name}_step", ctypes.c_long * 3) for name in ["q", "k", "v", "y", "dy", "dq"]),
        *((f"{name}_step", ctypes.c_long * 4) for name in ["dk", "dv", "seen"]),
    )


def takes(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> bool:
    """Whether the kernel is for these operands, of four axes each, and may run where this is called."""
    return (
        type(q) is type(k) is type(v) is Tensor  # what watches or replaces operators gets torch's own
        and q.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype == torch.float32
        and q.dim() == k.dim() == v.dim() == 4
        and k.shape[:2] == v.shape[:2] == q.shape[:2]
        and 0 < k.shape[2] <= MOST_KEYS
        and q.shape[3] % _VECTOR == v.shape[3] % _VECTOR == 0
        and q.numel() > 0
        and v.numel() > 0
        and (seen is None or (seen.dtype == torch.bool and seen.dim() == 4))
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._is_torch_function_mode_enabled()
        and torch.backends.cuda.flash_sdp_enabled()  # the switch of `torch.nn.attention.sdpa_kernel`
        and allowed()
        and library("short_attention") is not None
    )


def short_attention(
    q: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h m e"],
    v: Float[Tensor, "b h m c"],
    seen: Bool[Tensor, "#b #h #n #m"] | None,
    scale: float,
) -> Float[Tensor, "b h n c"]:
    """softmax(scale · Q Kᵀ) V over the keys that `seen` shows; 0 for a query that sees none. For what `takes` takes."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        y: Tensor = _ShortAttention.apply(q, k, v, seen, scale)
        return y
    return torch.ops.subquad.short_attention(q, k, v, seen, scale)[0]


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
        y, lse = torch.ops.subquad.short_attention(q, k, v, seen, scale)
        ctx.save_for_backward(q, k, v, seen, lse)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, seen, lse = ctx.saved_tensors
        return *torch.ops.subquad.short_attention_backward(dy, q, k, v, seen, lse, ctx.scale), None, None


def _forward(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """y, in memory as [b, n, h, c], and the logarithm of each query's sum of weights."""
    batch, heads, queries, _ = q.shape
    q, k, v = map(_rows, (q, k, v))
    y = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    lse = q.new_empty(batch, heads, queries)
    call, _kept = _call(q, k, v, seen, lse, scale, y=y)
    _library().forward(ctypes.byref(call))
    return y, lse


def _backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, each in memory as its operand."""
    dy, q, k, v = map(_rows, (dy, q, k, v))
    # With few heads the queries of each are cut for the threads, which then add to keys' gradients of their own.
    chunks = min(-(-q.shape[2] // _TILE), -(-torch.get_num_threads() // (q.shape[0] * q.shape[1])))
    dk, dv = (x.new_empty(chunks, *x.shape) if chunks > 1 else torch.empty_like(x)[None] for x in (k, v))
    dq = torch.empty_like(q)
    call, _kept = _call(q, k, v, seen, lse, scale, dy=dy, dq=dq, dk=dk, dv=dv)
    _library().backward(ctypes.byref(call))
    return (dq, dk.sum(0), dv.sum(0)) if chunks > 1 else (dq, dk[0], dv[0])


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _call(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, lse: Tensor, scale: float, **others: Tensor
) -> tuple[_Call, list[Tensor]]:
    """The call, and the tensors whose memory it names, which must outlive it."""
    operands = {"q": q, "k": k, "v": v, "lse": lse, **others}
    if seen is not None:
        # Queries side by side in memory, as the kernel reads them, or one row for all of them.
        rows = seen if seen.shape[2] == 1 or seen.stride(2) <= 1 else seen.mT.contiguous().mT
        operands["seen"] = rows.expand(*q.shape[:3], k.shape[2])
    call = _Call(*q.shape[:3], *k.shape[2:], v.shape[3], scale=scale, threads=torch.get_num_threads())
    call.chunks = len(others["dk"]) if "dk" in others else 1
    for name, x in operands.items():
        setattr(call, name, x.data_ptr())
        if name != "lse":
            setattr(call, f"{name}_step", _steps(x, name))
    scratch = q.new_empty(call.threads * _library().room(ctypes.byref(call)))
    call.scratch = scratch.data_ptr()
    return call, [scratch, *operands.values()]


def _steps(x: Tensor, name: str) -> Any:
    """Strides of all axes but the last, whose numbers lie side by side; of all axes of `seen`."""
    strides = x.stride() if name == "seen" else x.stride()[:-1]
    return (ctypes.c_long * len(strides))(*strides)


def _library() -> ctypes.CDLL:
    loaded = library("short_attention")
    assert loaded is not None
    return loaded


_operators = torch.library.Library("subquad", "DEF")
_operands = "Tensor q, Tensor k, Tensor v, Tensor? seen"
_operators.define(f"short_attention({_operands}, float scale) -> (Tensor, Tensor)")
_operators.define(
    f"short_attention_backward(Tensor dy, {_operands}, Tensor lse, float scale) -> (Tensor, Tensor, Tensor)"
)
_operators.impl("short_attention", _forward, "CPU")
_operators.impl("short_attention_backward", _backward, "CPU")
