"""Linear attention with weights that depend on angles of positions, in two passes over the tokens.

With torch's operators, the products of values with cosines and sines would be written to memory and read again. See
`cosine_attention.cpp` for the formulas.
"""

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.kernels.operands import VECTOR, chunks, fit, like, loaded, operator, point, rows, run, scratch
from subquad.utils.derivatives import first_order

_KERNEL = "cosine_attention"
_COUNTS = ("batch", "tokens", "heads", "features", "channels", "chunks", "threads")
_POINTERS = ("wave", "x", "v", "dy", "state", "turned", "total", "y", "weight", "dx", "dv", "of_state", "of_total")


class _Call(ctypes.Structure):
    """`Call` of cosine_attention.cpp, with the same order of fields."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _COUNTS),
        ("least", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "scratch")),
        *((f"{name}_step", ctypes.c_long * 3) for name in ("x", "v", "dy", "y", "dx", "dv")),
    )


def sums_up(k: Tensor, v: Tensor, wave: Tensor) -> bool:
    """Whether `wave_state` supports these features and values, `[b, m, h, _]`, and may run in this context."""
    return fit(_KERNEL, k, v) and k.shape[:3] == v.shape[:3] and _fits(wave, k)


def reads(q: Tensor, wave: Tensor, state: Tensor, total: Tensor) -> bool:
    """Whether `wave_read` supports these sums and features q, `[b, n, h, e]`, and may run in this context."""
    batch, _, heads, features = q.shape
    return (
        fit(_KERNEL, q, state, total)
        and state.shape[:3] == (batch, heads, features)
        and state.shape[3] % (2 * VECTOR) == 0
        and total.shape == (batch, heads, 2, features)
        and _fits(wave, q)
    )


def _fits(wave: Tensor, x: Tensor) -> bool:
    return wave.shape == (x.shape[1], 2) and wave.dtype == x.dtype and wave.device == x.device


def wave_state(
    k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h c"], wave: Float[Tensor, "m 2"]
) -> tuple[Float[Tensor, "b h e f"], Float[Tensor, "b h 2 e"]]:
    """S = Σ_j k_j [v_j cos_j | v_j sin_j]ᵀ and T = Σ_j [cos_j, sin_j] k_j in each head; `wave` holds [cos_j, sin_j]."""
    state, total = _State.apply(k, v, wave)
    return state, total


def wave_read(
    q: Float[Tensor, "b n h e"], wave: Float[Tensor, "n 2"], state: Float[Tensor, "b h e f"],
    total: Float[Tensor, "b h 2 e"], least: float,
) -> Float[Tensor, "b n h c"]:  # fmt: skip
    """y = (A cos + B sin) / max(q · (T₁ cos + T₂ sin), least) with [A | B] = qᵀ S."""
    y: Tensor = _Read.apply(q, wave, state, total, least)
    return y


class _State(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, wave: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(k, v, wave)
        state, total = _wave_state(k, v, wave)
        return state, total

    @staticmethod
    @first_order
    def backward(ctx: Any, of_state: Tensor, of_total: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_wave_state_backward(of_state, of_total, *ctx.saved_tensors), None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, wave: Tensor, state: Tensor, total: Tensor, least: float) -> Tensor:
        y, weight = _wave_read(q, wave, state, total, least)
        ctx.save_for_backward(q, wave, state, total, y, weight)
        ctx.least = least
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        dq, of_state, of_total = _wave_read_backward(dy, *ctx.saved_tensors, ctx.least)
        return dq, None, of_state, of_total, None


def _state(k: Tensor, v: Tensor, wave: Tensor) -> tuple[Tensor, Tensor]:
    call = _call(k, channels=v.shape[3])
    sums = _sums(call)
    _run("state", call, x=k, v=v, wave=wave, **sums)
    return sums["of_state"].sum(0), sums["of_total"].sum(0)


def _state_backward(of_state: Tensor, of_total: Tensor, k: Tensor, v: Tensor, wave: Tensor) -> tuple[Tensor, Tensor]:
    dk, dv = like(rows(k)), like(rows(v))
    gradients = {"state": of_state, "turned": of_state.mT, "total": of_total}
    _run("state_backward", _call(k, channels=v.shape[3]), x=k, v=v, wave=wave, dx=dk, dv=dv, **gradients)
    return dk, dv


def _read(q: Tensor, wave: Tensor, state: Tensor, total: Tensor, least: float) -> tuple[Tensor, Tensor]:
    channels = state.shape[3] // 2
    y, weight = q.new_empty(*q.shape[:3], channels), q.new_empty(q.shape[:3])
    _run("read", _call(q, channels, least), x=q, wave=wave, state=state, total=total, y=y, weight=weight)
    return y, weight


def _read_backward(
    dy: Tensor, q: Tensor, wave: Tensor, state: Tensor, total: Tensor, y: Tensor, weight: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    call, dq = _call(q, y.shape[3], least), like(rows(q))
    sums, kept = _sums(call), {"turned": state.mT, "total": total, "y": y, "weight": weight}
    _run("read_backward", call, x=q, wave=wave, dy=dy, dx=dq, **kept, **sums)
    return dq, sums["of_state"].sum(0), sums["of_total"].sum(0)


def _call(x: Tensor, channels: int, least: float = 0.0) -> _Call:
    """The arguments of a call, without its tensors. Each chunk of a head's tokens has sums of its own."""
    batch, tokens, heads, features = x.shape
    count = chunks(_KERNEL, tokens, batch * heads)
    return _Call(batch, tokens, heads, features, channels, count, torch.get_num_threads(), least)


def _sums(call: _Call) -> dict[str, Tensor]:
    heads = call.chunks, call.batch, call.heads
    return {
        "of_state": torch.empty(*heads, call.features, 2 * call.channels, dtype=torch.float32, device="cpu"),
        "of_total": torch.empty(*heads, 2, call.features, dtype=torch.float32, device="cpu"),
    }


def _run(function: str, call: _Call, **operands: Tensor) -> None:
    """Calls a function of the kernel. Operands are made contiguous, those with strides in the call on the last axis."""
    contiguous = {name: rows(x) if hasattr(call, f"{name}_step") else x.contiguous() for name, x in operands.items()}
    point(call, **contiguous)
    memory = scratch(_KERNEL, call)
    run(getattr(loaded(_KERNEL), function), ctypes.byref(call))
    del memory  # must live until the call has ended


_wave_state = operator("wave_state(Tensor k, Tensor v, Tensor wave) -> (Tensor, Tensor)", _state)
_wave_state_backward = operator(
    "wave_state_backward(Tensor of_state, Tensor of_total, Tensor k, Tensor v, Tensor wave) -> (Tensor, Tensor)",
    _state_backward,
)
_wave_read = operator(
    "wave_read(Tensor q, Tensor wave, Tensor state, Tensor total, float least) -> (Tensor, Tensor)", _read
)
_wave_read_backward = operator(
    "wave_read_backward(Tensor dy, Tensor q, Tensor wave, Tensor state, Tensor total, Tensor y, Tensor weight, "
    "float least) -> (Tensor, Tensor, Tensor)",
    _read_backward,
)
